"""The explorer page: what it holds, how large it may be, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import config

import knockgraph as kg
from knockgraph.errors import KnockgraphError
from knockgraph.report import explorer
from knockgraph.run import train
from knockgraph.sources.demo import demo_cell, demo_screen

Command = Callable[..., tuple[str, str]]
HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tiny model; one gene has HTML as its standard name."""
    cell = demo_cell()
    names = cell.genes.names
    aliases = {**cell.genes.aliases, names[3]: (HOSTILE, "ALIAS3")}
    cell = kg.CellGraph(genes=names, relations=cell.relations, features=cell.features, aliases=aliases)
    return kg.fit(
        cell,
        demo_screen(300),
        epochs=1,
        verbose=False,
        channels=8,
        run_dir=tmp_path_factory.mktemp("explored") / "run",
        **{"model.options.messages.layers": 1, "trainer.baselines": ["mean"], "trainer.accelerator": "cpu"},
    )


def held(path: Path) -> dict[str, Any]:
    """The data of a page."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_what_it_holds(fitted: Any, tmp_path: Path) -> None:
    path = fitted.explorer(tmp_path / "e.html", genes=fitted.graph.genes.names[:30], partners=10, explained=2)
    data = held(path)
    assert len(data["shown"]) == 30
    screen = demo_screen(300)
    pairs = {tuple(sorted(g)): v for g, v in zip(screen.genotypes, _values(screen), strict=True) if len(g) == 2}
    assert pairs
    names = fitted.graph.genes.names
    seen = 0
    for gene, one in data["shown"].items():
        partners = [row[0] for row in one["partners"]]
        assert len(set(partners)) == len(partners)
        assert int(gene) not in partners
        measured = [row for row in one["partners"] if row[1] is not None]
        assert one["measured"] == sum(names[int(gene)] in pair for pair in pairs)
        assert len(measured) == min(one["measured"], 10)
        for other, value, predicted, _, count, _ in measured:
            seen += 1
            assert value == pytest.approx(pairs[tuple(sorted((names[int(gene)], names[other])))], rel=1e-3)
            assert count == 1
            assert predicted is not None
        new = [row for row in one["partners"] if row[1] is None]
        far = [abs(row[2] - data["wild_type"]) for row in new]
        assert far == sorted(far, reverse=True)
        assert not {tuple(sorted((names[int(gene)], names[row[0]]))) for row in new} & pairs.keys()
    assert seen > 5
    # The same numbers as everywhere else.
    some = [(int(g), row) for g, one in data["shown"].items() for row in one["partners"]][:40]
    told = fitted.predict([[names[g], names[row[0]]] for g, row in some])
    np.testing.assert_allclose([row[2] for _, row in some], told["prediction"], rtol=2e-3, atol=1e-4)
    assert data["half_width"] == pytest.approx((told["upper"] - told["lower"])[0] / 2)
    assert len(data["why"]) == 2
    a, b = data["why"][0]["pair"]
    assert [a, b] == data["top"][0][:2]
    why = fitted.explain([names[a], names[b]])
    assert data["why"][0]["words"] == why.in_words()
    assert data["why"][0]["by"][0][2] == pytest.approx(next(iter(why.sums("gene", "relation").values())), rel=1e-3)
    near = data["shown"]["0"]["near"]
    edges = next(iter(fitted.graph.relations.values())).edge_index
    beside = {*edges[1][edges[0] == 0].tolist(), *edges[0][edges[1] == 0].tolist()} - {0}
    assert near[0][0] == len(beside)
    assert set(near[0][1]) <= beside


def _values(screen: kg.Screen) -> list[float]:
    bound = screen.bind(demo_cell(), "gene_interaction")
    return [float(v) for v in bound.values[:, 0]]


def test_names_cannot_leave_the_data(fitted: Any, tmp_path: Path) -> None:
    path = fitted.explorer(tmp_path / "e.html", genes=fitted.graph.genes.names[:6], explained=0)
    text = path.read_text()
    assert HOSTILE not in text
    assert "<img" not in text

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.append(tag)
            assert not any(name in ("src", "href") for name, _ in attrs)

    page = Tags()
    page.feed(text)
    assert page.found.count("script") == 2
    assert held(path)["genes"][3][1:] == [HOSTILE, "ALIAS3"]


def test_too_many_genes_are_cut_with_a_sentence(fitted: Any, tmp_path: Path) -> None:
    path = fitted.explorer(tmp_path / "e.html", pairs=300, partners=3, explained=0)
    data = held(path)
    assert len(data["shown"]) == 25  # 25 · 24 / 2 = 300
    assert "300 pairs of 25 of 360 genes were predicted" in data["lead"]
    assert all("most extreme ones are listed" in one["cut"] for one in data["shown"].values())
    count = {int(g): one["measured"] for g, one in data["shown"].items()}
    screen = demo_screen(300)
    names = fitted.graph.genes.names
    every = {k: sum(len(g) == 2 and name in g for g in screen.genotypes) for k, name in enumerate(names)}
    assert sorted(count.values()) == sorted(every.values())[-25:]
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"genes": ["YAA001W"]}, "give at least two genes to explore"),
        ({"pairs": 0}, "cannot explore with pairs = 0: choose a number from 1 to 2,000,000"),
        ({"pairs": 3_000_000}, "choose a number from 1 to 2,000,000"),
        ({"partners": 1000}, "cannot explore with partners = 1,000: choose a number from 1 to 100"),
        ({"explained": -1}, "cannot explore with explained = -1"),
        ({"genes": "NOBODY"}, "gene name does not resolve"),
        ({"phenotype": "colour"}, "this run does not predict 'colour'"),
    ],
)
def test_refused(fitted: Any, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(KnockgraphError, match=re.escape(message)):
        fitted.explorer(tmp_path / "e.html", **options)
    assert not list(tmp_path.iterdir())


def test_too_many_named_genes(fitted: Any, tmp_path: Path) -> None:
    with pytest.raises(KnockgraphError, match=r"30 genes make 435 pairs, but only 100 are predicted; name at most 14"):
        fitted.explorer(tmp_path / "e.html", genes=fitted.graph.genes.names[:30], pairs=100)


def test_command(fitted: Any, tmp_path: Path, command: Command) -> None:
    genes = ",".join(fitted.graph.genes.names[:5])
    out, _ = command("explore", str(fitted.directory), "-o", str(tmp_path / "e.html"), "--genes", genes)
    assert f"wrote {tmp_path / 'e.html'}" in out
    assert len(held(tmp_path / "e.html")["shown"]) == 5
    _, err = command("explore", str(fitted.directory), "-o", str(tmp_path / "e.txt"), code=1)
    assert "the name must end in .html" in err
    _, err = command("explore", str(tmp_path / "none"), "-o", str(tmp_path / "f.html"), code=1)
    assert len(err.strip().splitlines()) == 1


@pytest.mark.full
@pytest.mark.parametrize("model", ["additive", "pair-gp"])
def test_models_without_explanations(model: str, tmp_path: Path) -> None:
    """They have partners all the same, and the page says why nothing is explained, if it is not."""
    options = ["data.experiments=300", "trainer.max_epochs=1", f"model={model}"]
    directory = train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)
    fitted = kg.load(directory)
    data = held(fitted.explorer(tmp_path / "e.html", genes=fitted.graph.genes.names[:8], explained=2))
    assert len(data["shown"]) == 8
    assert data["why"] or "There are no explanations: " in data["lead"]


def test_the_limits_are_what_the_docs_say() -> None:
    """A page with the most pairs and partners: its rows times the length of a row stay within what is promised."""
    genes = int((1 + np.sqrt(1 + 8 * explorer.MOST_PAIRS)) // 2)
    row = len("[12345,-0.1234,-0.1234,2,1],")
    assert genes * 2 * explorer.MOST_PARTNERS * row < 12_000_000
