"""Merged relations against sets of edges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import knockgraph as kg
from knockgraph.graph.relation import Relation

N = 9


def edges(seed: int, count: int = 20) -> Tensor:
    return torch.randint(0, N, (2, count), generator=torch.Generator().manual_seed(seed))


def pairs(relation: Relation) -> list[tuple[int, ...]]:
    return [tuple(edge) for edge in relation.edge_index.t().tolist()]


def cell(**weights: Tensor) -> kg.CellGraph:
    names = ("string_fusion", "physical", "string_database", "string_fission", "regulatory")
    lists = {name: edges(seed) for seed, name in enumerate(names)}
    relations = {name: (e, weights[name]) if name in weights else e for name, e in lists.items()}
    index = {f"g{i}": i for i in range(N)}
    metabolism = kg.Metabolism.from_reactions([kg.Reaction("one", {"a": -1}, gene_rule="g1")], index)
    return kg.CellGraph(list(index), relations, metabolism, {"length": torch.ones(N, 1)}, {"g0": "first"})


def test_the_union_of_the_edges(tmp_path: Path) -> None:
    graph = cell()
    merged = graph.merged({"string": ["string_*"]})
    assert list(merged.relations) == ["string", "physical", "regulatory"]
    members = [pairs(graph.relations[f"string_{name}"]) for name in ("fusion", "database", "fission")]
    found = pairs(merged.relations["string"])
    assert found == list(dict.fromkeys(edge for member in members for edge in member))  # the order of the first ones
    assert merged.relations["string"].weight is None
    assert len(found) < sum(map(len, members))
    assert merged.relations["physical"] == graph.relations["physical"]
    assert merged.genes == graph.genes
    assert merged.metabolism == graph.metabolism
    assert torch.equal(merged.features["length"], graph.features["length"])
    merged.save(tmp_path / "merged.cellgraph")
    assert kg.CellGraph.load(tmp_path / "merged.cellgraph") == merged


def test_several_groups_and_exact_names() -> None:
    merged = cell().merged({"b": ["regulatory", "physical"], "a": ["string_f?sion", "string_database"]})
    assert list(merged.relations) == ["a", "b", "string_fission"]
    assert set(pairs(merged.relations["b"])) == set(pairs(cell().relations["physical"])) | set(
        pairs(cell().relations["regulatory"])
    )
    everything = cell().merged({"all": ["*"]})
    assert list(everything.relations) == ["all"]
    assert set(pairs(everything.relations["all"])) == {e for r in cell().relations.values() for e in pairs(r)}


def test_a_member_may_lend_its_name() -> None:
    merged = cell().merged({"physical": ["physical", "regulatory"]})
    assert list(merged.relations) == ["string_fusion", "physical", "string_database", "string_fission"]


def test_nothing_to_merge() -> None:
    assert cell().merged({}) == cell()


def test_of_several_weights_the_largest_stays() -> None:
    """A relation without weights counts as 1."""
    generator = torch.Generator().manual_seed(8)
    weights = {name: torch.randn(20, generator=generator) for name in ("string_fusion", "string_fission")}
    graph = cell(**weights)
    largest: dict[tuple[int, ...], float] = {}
    for name in ("string_fusion", "string_database", "string_fission"):
        relation = graph.relations[name]
        weight = [1.0] * relation.num_edges if relation.weight is None else relation.weight.tolist()
        for edge, w in zip(pairs(relation), weight, strict=True):
            largest[edge] = max(largest.get(edge, -9.0), w)
    found = graph.merged({"string": ["string_*"]}).relations["string"]
    assert found.weight is not None
    assert dict(zip(pairs(found), found.weight.tolist(), strict=True)) == largest


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"s": ["tflink*"]},
            r"no relation matches 'tflink\*', to be merged into 's'; there are string_fusion, physical",
        ),
        ({"s": []}, "the merged relation 's' needs a list of relations"),
        ({"s": "string_*"}, "the merged relation 's' needs a list of relations"),
        ({"s": ["string_*"], "t": ["*fusion"]}, "relation 'string_fusion' cannot be merged into both 's' and 't'"),
        ({"physical": ["string_*"]}, "there is already a relation 'physical'; give the merged one another name"),
        ({"a.b": ["string_*"]}, "'a.b' cannot name a relation"),
    ],
)
def test_refused(groups: dict[str, list[str]], message: str) -> None:
    with pytest.raises(kg.GraphError, match=message):
        cell().merged(groups)


def test_message_passing_on_the_merged_relation_sends_each_edge_once() -> None:
    graph = cell().merged({"string": ["string_*"]})
    batch = kg.PerturbationBatch.from_lists([[1], [0, 4], []], N)
    x = torch.randn(N, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = kg.strategies.create("node-mask", graph)(batch).aggregate("string", x)
    for sample, deleted in enumerate(({1}, {0, 4}, set())):
        expected = torch.zeros(N, 2, dtype=torch.float64)
        for source, target in {
            e for n in ("fusion", "database", "fission") for e in pairs(cell().relations[f"string_{n}"])
        }:
            if not {source, target} & deleted:
                expected[target] += x[source, sample]
        torch.testing.assert_close(y[:, sample], expected, rtol=1e-12, atol=1e-12)
