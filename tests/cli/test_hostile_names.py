"""Names of genes, relations, phenotypes and runs with HTML, mathematics, paths and escape codes: text, nothing else."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import knockgraph as kg
from knockgraph.html import page

Command = Callable[..., tuple[str, str]]
TAG = "<img src=x onerror=alert(1)>"
NAMES = [TAG.replace("=", ":"), "$\\frac{$", "a\"b'c&d", "{x}%s"]


class Tags(HTMLParser):
    """Every tag of a page, with the names of its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found |= {tag, *(f"@{name}" for name, _ in attrs)}


def sound(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    found = Tags(text).found
    assert not found & {"script", "img", "iframe", "@onerror", "@onload", "@src"}, path
    assert TAG not in text
    return text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    genes = [*NAMES, "../../up", "/etc/x", "C:\\x", "é\u202e", *(f"g{i}" for i in range(8))]
    edges = torch.tensor([list(range(15)), list(range(1, 16))])
    relations = {name: edges if i % 2 else edges.flip(0) for i, name in enumerate(NAMES)}
    graph = kg.CellGraph(genes, relations, features={TAG: torch.rand(16, 2)})
    graph.save(folder / "g.cellgraph")
    pairs = [[a, b] for i, a in enumerate(genes) for b in genes[:i]]
    values = torch.rand(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()
    kg.Screen(pairs, {TAG: values, "$x_{": values}, source=TAG).save(folder / "s.parquet")
    return folder


def test_reports(folder: Path, command: Command, tmp_path: Path) -> None:
    below = tmp_path / "a" / "b" / "c"  # where '../..' would lead out of
    below.mkdir(parents=True)
    command("graph", "info", folder / "g.cellgraph", "--html", below / "graph.html", "--json", below / "graph.json")
    assert "onerror=alert" in sound(below / "graph.html")
    run = below / "<b>$run{"
    words = [f"data.cell={folder}/g.cellgraph", f"data.screen={folder}/s.parquet", f'data.phenotype="{TAG}"']
    words += [f'run_dir="{run}"', "trainer.accelerator=cpu", "trainer.progress_bar=false", "trainer.baselines=[mean]"]
    words += ["trainer.max_epochs=1", "loader.batch_size=64", "model=additive", "strategy=stored-indices"]
    command("train", "data=files", *words, "trainer.plot_every_n_epochs=1")
    assert "onerror=alert" in sound(run / "report.html")
    command("evaluate", run, "--html", below / "evaluated.html")
    assert "&lt;b&gt;$run{" in sound(below / "evaluated.html")
    out = command("predict", run, "--genes", "../../up,g1")[0]
    assert out.splitlines()[1].startswith(("../../up+g1\t", "g1+../../up\t"))
    command("explore", run, "-o", below / "explorer.html", "--pairs", "50", "--explained", "1")
    assert "<img" not in (below / "explorer.html").read_text()
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert all(path.parts[:3] == ("a", "b", "c") for path in written)
    assert not any("up" in path.name or "etc" in path.name for path in written)


def test_a_phenotype_that_looks_like_mathematics(folder: Path, command: Command, tmp_path: Path) -> None:
    words = [f"data.cell={folder}/g.cellgraph", f"data.screen={folder}/s.parquet", "data.phenotype='$x_{'"]
    words += [f"run_dir={tmp_path}/run", "trainer.accelerator=cpu", "trainer.progress_bar=false"]
    words += ["trainer.max_epochs=1", "model=additive", "trainer.baselines=[mean]", "trainer.plot_every_n_epochs=1"]
    command("train", "data=files", *words)
    assert "$x_{" in sound(tmp_path / "run" / "report.html")


@pytest.mark.parametrize("name", ["a/b", "..", "a.b", ""])
def test_relations_are_no_paths(name: str) -> None:
    with pytest.raises(kg.GraphError, match="cannot name a relation"):
        kg.CellGraph(["a", "b"], {name: torch.tensor([[0], [1]])})


def test_every_part_of_a_page_is_text() -> None:
    parts = [
        page.table([TAG], [[TAG], [f"  {TAG}" * 3]]),
        page.numbers(TAG, {TAG: [TAG]}),
        page.figure("<svg ></svg>", TAG),
        page.page(TAG, TAG, [(TAG, "")]),
    ]
    for part in parts:
        assert not re.search(r"<img|onerror=alert\(1\)>", part.replace("onerror=alert(1)&gt;", ""))
