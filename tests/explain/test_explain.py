"""Explanations: the parts add up, for every model; the path ends where it should; a known model has known parts."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import knockgraph as kg
from knockgraph.explain import Explanation, explain, explanation
from knockgraph.explain.path import _Path
from knockgraph.nn.attention_pooling import AttentionPooling
from knockgraph.screen import LabelTransform
from knockgraph.strategies.node_mask import NodeMask
from knockgraph.strategies.partly_cut import CutEdges, PartlyCutGraphs
from knockgraph.train.config import compose
from knockgraph.train.task import Task

Command = Callable[..., tuple[str, str]]
DEMO = kg.demo_cell()


def small_graph(seed: int = 0, genes: int = 14) -> kg.CellGraph:
    """Self loops, a directed and a weighted relation, genes with one neighbour and without any."""
    random = np.random.default_rng(seed)
    edges = torch.from_numpy(random.integers(0, genes - 2, (2, 30)))
    weighted = torch.from_numpy(random.integers(0, genes - 1, (2, 12)))
    weight = torch.from_numpy(random.uniform(0.5, 2.0, 12)).float()
    relations = {"physical": torch.cat([edges, edges.flip(0)], 1), "weighted": (weighted, weight)}
    return kg.CellGraph([f"G{k}" for k in range(genes)], relations)


def task_of(graph: kg.CellGraph, *words: str, phenotype: str = "gene_interaction") -> Task:
    """A model with random weights, none of which is 0; in float64."""
    transform = LabelTransform.fit(torch.randn(50, 1) * 0.3 + 0.1, "standard", False, (phenotype,))
    task = Task(compose([*words, f"data.phenotype={phenotype}"]), graph, transform).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return task.eval()


def predicted(task: Task, genotypes: list[list[int]]) -> list[float]:
    """Through the strategy of training, in original units; the interaction of the wild type is 0."""
    batch = kg.PerturbationBatch.from_lists(genotypes, task.num_genes)
    with torch.no_grad():
        values = task(batch).values
    return task.told(values, torch.tensor([len(g) for g in genotypes]))[:, 0].tolist()


def check_sum(task: Task, genes: list[int], most: float = 1e-5) -> Explanation:
    found = explain(task, genes)
    prediction, wild_type = predicted(task, [genes, []])
    assert found.prediction == pytest.approx(prediction, rel=1e-9, abs=1e-12)
    assert found.wild_type == pytest.approx(wild_type, rel=1e-9, abs=1e-12)
    assert len({part[:3] for part in found.rows}) == len(found.rows)  # both directions of an edge are one part
    total = math.fsum(part.value for part in found.rows)
    assert total + found.residual == pytest.approx(prediction - wild_type, rel=1e-9, abs=1e-12)
    assert abs(found.residual) <= most * max(sum(abs(part.value) for part in found.rows), 1e-2)
    return found


MODELS = {
    "small": ["model=hetero-small"],
    "reference": ["model=hetero"],
    "sage": ["model=hetero", "model.options.messages.conv=sage"],
    "gcn": ["model=hetero", "model.options.messages.conv=gcn"],
    "gatv2": ["model=hetero", "model.options.messages.conv=gatv2", "model.options.messages.layers=1"],
    "typed": ["model=hetero", "model.options.messages.merge=typed"],
    "gated": ["model=hetero", "model.options.readout.local=hyper-sagnn", "model.options.readout.combine=gating"],
    "global": ["model=hetero-small", "model.options.readout.local=false"],
    "dango": ["model=dango"],
    "additive": ["model=additive"],
}


def words_of(name: str) -> list[str]:
    return MODELS[name] + (["model.options.channels=8"] if name != "additive" else [])


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_add_up(name: str) -> None:
    task = task_of(small_graph(), *words_of(name))
    for genes in ([3], [3, 5], [0, 5, 13], [13]):  # the last gene has no edge
        check_sum(task, genes)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10_000), genes=st.sets(st.integers(0, 13), min_size=1, max_size=5))
def test_the_parts_add_up_on_any_graph(seed: int, genes: set[int]) -> None:
    found = check_sum(task_of(small_graph(seed), *words_of("reference")), sorted(genes))
    assert found.genes == tuple(f"G{gene}" for gene in sorted(genes))


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("direction", ["both", "in"])
def test_the_parts_add_up_on_many_graphs(name: str, direction: str) -> None:
    for seed in range(8):
        task = task_of(small_graph(seed), *words_of(name), f"strategy.options.direction={direction}")
        for genes in ([seed], [1, 4, seed + 5], list(range(6))):
            check_sum(task, sorted(set(genes)))


def test_only_incoming_edges() -> None:
    task = task_of(small_graph(), *words_of("small"), "strategy.options.direction=in")
    found = check_sum(task, [3, 5])
    source, target = task.graph.relations["weighted"].edge_index.tolist()
    into = {(f"G{t}", f"G{s}") for s, t in zip(source, target, strict=True) if t in (3, 5)}
    shown = {(part.gene, part.neighbour) for part in found.rows if part.relation == "weighted"}
    assert shown <= into | {(b, a) for a, b in into if b in ("G3", "G5")}


def test_metabolism() -> None:
    """Genes of reactions: their activity has a part, and what jumps when reactions die is booked."""
    task = task_of(DEMO, "model=hetero-small", "model.options.channels=8", "model.options.metabolism.enabled=true")
    metabolism = DEMO.metabolism
    assert metabolism is not None
    genes = sorted(set(metabolism.gpr_index[0].tolist()))[:2]
    found = check_sum(task, genes)
    relations = {key[0] for key in found.sums("relation")}
    assert {"reactions", "left out at deletion"} <= relations


@pytest.mark.parametrize("name", ["small", "sage", "gatv2", "gated"])
def test_against_finite_differences(name: str) -> None:
    """Every slope of every factor, against differences of the model's values."""
    task = task_of(small_graph(), *words_of(name))
    path = _Path(task, [3, 5])
    alpha = torch.tensor([0.05, 0.37, 0.71, 0.93]).double()
    fast = path._gradients(alpha, 0)
    h = 1e-6
    for group, found in enumerate(fast):
        for row in range(len(found)):
            ends = []
            for step in (h, -h):
                leaves = path._leaves(alpha)
                flat = [*leaves.scale, leaves.member, leaves.weight, leaves.activity]
                flat[group][row] += step
                with torch.no_grad():
                    ends.append(path._forward(leaves)[:, 0])
            assert found[row].tolist() == pytest.approx(((ends[0] - ends[1]) / (2 * h)).tolist(), rel=1e-4, abs=1e-8)
    assert max(float(found.abs().max()) for found in fast) > 1e-3


@pytest.mark.parametrize("direction", ["both", "in"])
def test_the_path_begins_and_ends_where_it_should(direction: Any) -> None:
    """With all factors 1 it is the wild type, with all 0 the deletion, for everything that a view gives."""
    graph = small_graph(2)
    strategy = NodeMask(graph, direction).double()
    genes = torch.tensor([1, 4, 6])
    edges = [
        CutEdges.of(r.edge_index, r.weight, genes, graph.num_genes, direction == "in") for r in graph.relations.values()
    ]
    batch = kg.PerturbationBatch.from_lists([[], genes.tolist()], graph.num_genes)
    x = torch.randn(graph.num_genes, 3, 4, dtype=torch.float64)
    ones = torch.ones(graph.num_genes, 3, dtype=torch.float64)
    scale = [torch.tensor([1.0, 0.0]).double().expand(len(cut), -1) for cut in edges]
    view = PartlyCutGraphs(strategy, batch.with_wild_type(), edges, scale, ones.bool(), ones)
    heads = x.unsqueeze(2)
    attention = torch.randn(1, 4, dtype=torch.float64)
    with strategy(batch.with_wild_type()) as plain:
        for name in graph.relations:
            for reduce in ("sum", "mean"):
                torch.testing.assert_close(view.aggregate(name, x, reduce), plain.aggregate(name, x, reduce))
            torch.testing.assert_close(view.degree(name), plain.degree(name).double())
            torch.testing.assert_close(view.strength(name, torch.float64), plain.strength(name, torch.float64))
            torch.testing.assert_close(
                view.attend(name, heads, heads, attention), plain.attend(name, heads, heads, attention)
            )
        torch.testing.assert_close(view.aggregate_all(x[:, 0]), plain.aggregate_all(x[:, 0]))
    with pytest.raises(kg.StrategyError, match="takes the max over neighbours cannot be explained"):
        view.aggregate("physical", x, "max")


def test_pooling_in_part() -> None:
    """With numbers 0 and 1 in place of the keep-vector the pooled state is the same."""
    pool = AttentionPooling(4).double()
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    keep = torch.rand(6, 3) > 0.4
    torch.testing.assert_close(pool(x, keep.double()), pool(x, keep))
    assert torch.equal(pool(x, torch.zeros(6, 3).double()), torch.zeros(3, 4).double())


class Sums(nn.Module):
    """The sum of all messages: a deletion takes away what its edges carry, and nothing else."""

    def __init__(self, graph: kg.CellGraph, masked: bool = False) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(graph.num_genes, 1))
        self.masked = masked

    def forward(self, view: kg.PerturbedGraphs, batch: kg.PerturbationBatch) -> Tensor:
        h = view.aggregate("weighted", self.x) + 5.0
        return (h * view.keep.unsqueeze(-1)).sum(0) if self.masked else h.sum(0)


@pytest.mark.parametrize("masked", [False, True])
def test_known_parts(masked: bool) -> None:
    """Of a linear model the part of an edge is what it carried; leaving genes out of a sum is a jump."""
    kg.register("model", "sums", Sums)
    words = ["model=sums", f"model.options.masked={str(masked).lower()}", "data.transform=none"]
    task = task_of(small_graph(), *words, phenotype="fitness")
    found = check_sum(task, [3, 5], most=1e-9)
    relation = task.graph.relations["weighted"]
    assert relation.weight is not None
    factor = float(task.transform.scale)
    expected: dict[tuple[str, str], float] = {}
    for (s, t), w in zip(relation.edge_index.T.tolist(), relation.weight.tolist(), strict=True):
        ends = {(a, b) for a, b in ((s, t), (t, s)) if a in (3, 5)}
        for a, b in ends:
            key = (f"G{a}", f"G{b}")
            expected[key] = expected.get(key, 0.0) - factor * w * task.model.module.x[s].item() / len(ends)
    sums = {key: value for key, value in found.sums("gene", "neighbour").items() if key[1]}
    assert sums == {key: pytest.approx(value) for key, value in expected.items()}
    jump = found.sums("relation").get(("left out at deletion",), 0.0)
    assert jump == pytest.approx(-2 * 5.0 * factor if masked else 0.0, abs=1e-6)
    assert {part.relation for part in found.rows} <= {"weighted", "left out at deletion"}


def test_what_a_model_does_not_use_has_no_part() -> None:
    task = task_of(small_graph(), *words_of("small"), "model.options.messages.relations=[weighted]")
    found = check_sum(task, [3, 5])
    assert {"weighted", "pooling", "local predictor"} >= {part.relation for part in found.rows} - {
        "the model's wild type"
    }


def test_a_definition_is_a_part_of_its_own() -> None:
    """What the model says of the wild type, where it is 0 by definition."""
    for phenotype, there in (("gene_interaction", True), ("fitness", False)):
        task = task_of(small_graph(), *words_of("small"), phenotype=phenotype)
        found = check_sum(task, [3, 5])
        assert (("the model's wild type",) in found.sums("relation")) == there
        assert (found.wild_type == 0) == there


def test_what_cannot_be_explained() -> None:
    task = task_of(small_graph(), *words_of("small"))
    with pytest.raises(kg.KnockgraphError, match="the wild type has no deleted genes"):
        explain(task, [])
    with pytest.raises(kg.KnockgraphError, match="this run does not predict 'growth', but gene_interaction"):
        explain(task, [3], "growth")
    task.config.data.zero_below = 2
    task._zero_below = torch.tensor([2])
    with pytest.raises(kg.KnockgraphError, match="its value follows from its definition"):
        explain(task, [3])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {"epochs": 1, "channels": 8, "baselines": ["mean"], "accelerator": "cpu"}
    place = tmp_path_factory.mktemp("runs") / "run"
    return kg.fit(DEMO, kg.demo_screen(160), run_dir=place, verbose=False, **options).directory


def test_tables_and_pictures(finished: Path, command: Command, tmp_path: Path) -> None:
    """From the command line and from Python the same, as text, page, picture, table and JSON."""
    a, b = DEMO.genes.names[3], DEMO.genes.names[40]
    files = {suffix: tmp_path / f"why.{suffix}" for suffix in ("html", "png", "csv", "parquet", "json")}
    fitted = kg.load(finished)
    found = fitted.explain([a, b])
    assert found.prediction == pytest.approx(fitted.predict([[a, b]])["prediction"][0], rel=1e-6)
    assert list(found.parts.columns) == ["gene", "relation", "neighbour", "standard", "neighbour_standard", "part"]
    for table in (found.parts, found.by_gene(), found.by_relation(), found.by_neighbour()):
        assert table["part"].sum() + found.residual == pytest.approx(found.prediction - found.wild_type, abs=1e-12)
        assert table["part"].abs().is_monotonic_decreasing
    out, _ = command("explain", str(finished), "--genes", f"{a},{b}", "--json", files["json"], "--top", "3")
    assert found.in_words() in out
    assert len(out.splitlines()) == 2 + len(found.sums("gene", "relation")) + 1 + 3 + 1
    told = json.loads(files["json"].read_text())
    assert math.fsum(part["value"] for part in told["parts"]) + told["residual"] == pytest.approx(
        told["prediction"] - told["wild_type"]
    )
    for suffix in ("html", "png", "csv", "parquet"):
        found.save(files[suffix])
    assert pq.read_table(files["parquet"]).num_rows == len(found.rows)
    assert files["png"].read_bytes()[:4] == b"\x89PNG"
    page = files["html"].read_text()
    assert "<svg" in page
    assert f"Deleted: {a} ({DEMO.genes.standard(3)}), {b} ({DEMO.genes.standard(40)})." in page
    assert not re.search(r"(src|href)=.?http|@import|url\(http", page)
    assert "\n" not in repr(found)
    assert found._repr_html_().startswith("<div>")
    with pytest.raises(kg.KnockgraphError, match=r"the name must end in .html, .png"):
        found.save(tmp_path / "why.pdf")
    assert "only deletions are explained" in command("explain", str(finished), "--genes", f"{a}=0.5", code=1)[1]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_table_has_no_formulas(suffix: str, tmp_path: Path) -> None:
    """Names of genes and relations that a spreadsheet would compute are marked as text; numbers are left alone."""
    parts = pa.table({"gene": ["@SUM(1)", "g", None], "relation": ["=1+1", "", "-x"], "part": [0.5, -2.0, 1.0]})
    explanation._write_table(parts, tmp_path / "why", suffix)
    lines = (tmp_path / "why").read_text().replace('"', "").replace("\t", ",").splitlines()
    assert lines == ["gene,relation,part", "'@SUM(1),'=1+1,0.5", "g,,-2", ",'-x,1"]
