import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from random_graphs import cell_graphs

from knockgraph import CellGraph, GeneNames, GraphError, Metabolism, Reaction, Relation, UnknownGeneError
from knockgraph.graph.summary import remarks, summarise

EDGES = torch.tensor([[0, 1, 2], [1, 0, 2]])


def metabolism(*genes: str) -> Metabolism:
    rules = [Reaction("r1", {"x": -1.0, "y": 1.0}, gene_rule=" and ".join(genes)), Reaction("r2", {"y": -1.0})]
    return Metabolism.from_reactions(rules, {name: i for i, name in enumerate("ABCDE")})


def example() -> CellGraph:
    return CellGraph(
        ["A", "B", "C"],
        {"physical": EDGES, "regulatory": (torch.tensor([[0, 0], [1, 2]]), torch.tensor([0.5, -1.0]))},
        metabolism("A", "B"),
        {"length": torch.tensor([[1.0], [2.0], [3.0]])},
        {"A": ["TFC3", "FUN24"]},
    )


def test_what_a_graph_tells() -> None:
    graph = example()
    assert graph.num_genes == 3
    assert graph.num_edges == 5
    assert list(graph.relations) == ["physical", "regulatory"]
    assert torch.equal(graph.relations["physical"].edge_index, EDGES)
    assert graph.relations["physical"].num_edges == 3
    assert graph.gene_list_hash == GeneNames(["A", "B", "C"]).hash
    assert repr(graph) == "CellGraph(3 genes, 2 relations, 5 edges, features length, 2 reactions)"
    assert repr(CellGraph(["A"], {"p": torch.empty(2, 0)})) == "CellGraph(1 genes, 1 relation, 0 edges)"


def test_relations_keep_their_order() -> None:
    names = ["z", "a", "m"]
    assert list(CellGraph(["A"], {name: torch.empty(2, 0) for name in names}).relations) == names


def test_gene_index() -> None:
    graph = example()
    assert graph.gene_index(["C", "tfc3", "fun24", "b"]).tolist() == [2, 0, 0, 1]
    with pytest.raises(UnknownGeneError, match="2 gene names do not resolve in this graph of 3 genes: 'D', 'E'"):
        graph.gene_index(["A", "D", "E"])


def test_ready_parts_are_accepted() -> None:
    genes, relation = GeneNames(["A", "B", "C"], {"A": ["X"]}), Relation(EDGES, 3)
    graph = CellGraph(genes, {"physical": relation})
    assert graph.genes is genes
    assert graph.relations["physical"] is relation


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"genes": []}, "a cell graph needs at least one gene"),
        ({"genes": ["A", "A", "B"]}, "gene names must be unique, but these are repeated: 'A'"),
        ({"genes": GeneNames(["A", "B", "C"]), "aliases": {"A": ["X"]}}, "either inside GeneNames or as aliases="),
        ({"aliases": {"Q": ["X"]}}, "aliases are given for names that are not in the gene list: 'Q'"),
        ({"relations": {"p": torch.tensor([[0], [3]])}}, r"relation 'p': edge 0 is \(0 → 3\).* run from 0 to 2"),
        ({"relations": {"p": torch.zeros(2, 2)}}, "relation 'p': edge_index has dtype torch.float32"),
        ({"relations": {"p": (EDGES, torch.ones(2))}}, r"relation 'p': weight has shape \[2\], but there are 3 edges"),
        ({"relations": {"p": (EDGES,)}}, r"relation 'p': give edge_index or the pair \(edge_index, weight\)"),
        ({"relations": {"p": Relation(EDGES, 4)}}, "relation 'p' was built for 4 genes, but the graph has 3"),
        ({"relations": {"": EDGES}}, "'' cannot name a relation"),
        ({"relations": {"a/b": EDGES}}, "'a/b' cannot name a relation: use a non-empty string without '/' and '.'"),
        ({"relations": {"a.b": EDGES}}, "'a.b' cannot name a relation"),
        ({"relations": {3: EDGES}}, "3 cannot name a relation"),
        ({"features": {"f": torch.ones(3)}}, r"feature 'f' has shape \[3\], but it needs \[3, d\] with d ≥ 1"),
        ({"features": {"f": torch.ones(2, 4)}}, r"feature 'f' has shape \[2, 4\]"),
        ({"features": {"f": torch.ones(3, 0)}}, r"feature 'f' has shape \[3, 0\]"),
        ({"features": {"f": torch.ones(3, 1, dtype=torch.long)}}, "feature 'f' has dtype torch.int64"),
        ({"features": {"f": torch.tensor([[0.0], [float("nan")], [1.0]])}}, "feature 'f' is not finite at gene 1"),
        ({"features": {"f": torch.tensor([[0.0], [1.0], [float("inf")]])}}, "feature 'f' is not finite at gene 2"),
        ({"metabolism": metabolism("A", "E")}, "refers to gene 4, but this graph has genes 0 to 2; build both from"),
    ],
)
def test_bad_parts_are_refused(arguments: dict, text: str) -> None:
    complete = {"genes": ["A", "B", "C"], "relations": {"physical": EDGES}} | arguments
    with pytest.raises(GraphError, match=text):
        CellGraph(**complete)


@pytest.mark.parametrize("name", ["genes", "relations", "features", "metabolism", "num_genes", "anything"])
def test_graph_is_immutable(name: str) -> None:
    graph = example()
    with pytest.raises(AttributeError, match=f"a CellGraph is immutable; build a new one instead of setting '{name}'"):
        setattr(graph, name, None)
    with pytest.raises(AttributeError, match="a CellGraph is immutable"):
        delattr(graph, name)
    with pytest.raises(TypeError, match="does not support item assignment"):
        graph.relations["new"] = Relation(EDGES, 3)
    with pytest.raises(TypeError, match="does not support item assignment"):
        graph.features["new"] = torch.ones(3, 1)
    assert graph == example()


def test_what_the_caller_changes_later_does_not_reach_the_graph() -> None:
    genes, edges, feature = ["A", "B", "C"], EDGES.clone(), torch.ones(3, 1)
    relations, features = {"physical": edges}, {"f": feature}
    graph = CellGraph(genes, relations, features=features)
    same = copy.deepcopy(graph)
    genes[0] = "Z"
    edges.zero_()
    feature.zero_()
    relations.clear()
    features.clear()
    assert graph == same
    assert graph.relations["physical"].edge_index.tolist() == EDGES.tolist()
    assert graph.features["f"].tolist() == [[1.0], [1.0], [1.0]]


@given(graph=cell_graphs())
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_save_and_load_give_the_same_graph(tmp_path: Path, graph: CellGraph) -> None:
    path = tmp_path / "random.cellgraph"
    content_hash = graph.save(path)
    again = CellGraph.load(path)
    assert again == graph
    assert again.genes.aliases == graph.genes.aliases
    assert again.gene_list_hash == graph.gene_list_hash
    assert list(again.relations) == list(graph.relations)
    for name, relation in graph.relations.items():
        loaded = again.relations[name]
        assert loaded.edge_index.dtype == torch.long
        assert loaded.num_duplicates == relation.num_duplicates
        assert loaded.symmetric == relation.symmetric
        assert (loaded.weight is None) == (relation.weight is None)
        assert relation.weight is None or loaded.weight.dtype == relation.weight.dtype
    assert {name: x.dtype for name, x in again.features.items()} == {
        name: x.dtype for name, x in graph.features.items()
    }
    assert again.save(path) == content_hash


@given(graph=cell_graphs())
@settings(deadline=None, max_examples=30)
def test_pickle_and_copy_give_the_same_graph(graph: CellGraph) -> None:
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert copy.copy(graph) == graph
    assert copy.deepcopy(graph) == graph


def seen_by_worker(graph: CellGraph) -> tuple[str, str, list[list[int]], list[int]]:
    return (
        repr(graph),
        graph.gene_list_hash,
        graph.relations["physical"].edge_index.tolist(),
        graph.gene_index(["TFC3"]),
    )


def test_graph_travels_to_a_spawned_process() -> None:
    graph = example()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seen = pool.submit(seen_by_worker, graph).result(timeout=300)
    assert seen == (repr(graph), graph.gene_list_hash, EDGES.tolist(), torch.tensor([0]))


def test_content_hash_tells_graphs_apart(tmp_path: Path) -> None:
    path = tmp_path / "g"
    variants = [
        CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]])}),
        CellGraph(["B", "A"], {"p": torch.tensor([[0], [1]])}),
        CellGraph(["A", "B"], {"q": torch.tensor([[0], [1]])}),
        CellGraph(["A", "B"], {"p": torch.tensor([[1], [0]])}),
        CellGraph(["A", "B"], {"p": (torch.tensor([[0], [1]]), torch.ones(1))}),
        CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]])}, aliases={"A": ["X"]}),
        CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]])}, features={"f": torch.ones(2, 1)}),
        CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]])}, features={"f": torch.ones(2, 2)}),
        CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]])}, metabolism("A")),
        CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]]), "q": torch.tensor([[0], [1]])}),
        CellGraph(["A", "B"], {"q": torch.tensor([[0], [1]]), "p": torch.tensor([[0], [1]])}),
    ]
    assert len({graph.save(path) for graph in variants}) == len(variants)
    for i, a in enumerate(variants):
        assert [a == b for b in variants] == [i == j for j in range(len(variants))]
    assert variants[0] != "graph"
    assert variants[0].save(path) == variants[0].save(tmp_path / "elsewhere")


def test_one_relation_under_two_names_is_saved(tmp_path: Path) -> None:
    # safetensors refuses tensors that share memory.
    relation = Relation(EDGES, 3, torch.ones(3))
    graph = CellGraph(["A", "B", "C"], {"a": relation, "b": relation})
    graph.save(tmp_path / "g")
    assert CellGraph.load(tmp_path / "g") == graph


def test_loaded_graph_does_not_depend_on_its_file(tmp_path: Path) -> None:
    path = tmp_path / "g"
    example().save(path)
    graph = CellGraph.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    path.unlink()
    assert graph == example()


def test_summary() -> None:
    summary = summarise(example())
    assert summary["genes"] == 3
    assert summary["other_names"] == 2
    assert summary["edges"] == 5
    assert summary["features"] == {"length": 1}
    assert summary["metabolism"] == {
        "reactions": 2,
        "reactions_with_genes": 1,
        "metabolites": 2,
        "gpr": 2,
        "rmr": 3,
        "growth_reactions": 0,
    }
    assert summary["relations"]["physical"] == {
        "genes_touched": 3,
        "edges": 3,
        "symmetric": True,
        "self_loops": 1,
        "duplicates_removed": 0,
        "weighted": False,
        "in_degree_max": 1,
        "out_degree_max": 1,
        "degree_median": 2.0,
        "components": {"count": 2, "largest": 2},
    }
    assert summary["components"] == {"count": 1, "largest": 3}
    assert summary["relations"]["regulatory"]["out_degree_max"] == 2
    assert summary["relations"]["regulatory"]["weighted"]
    assert summarise(CellGraph(["A"], {"p": torch.empty(2, 0)}))["relations"]["p"]["degree_median"] == 0.0


def test_remarks() -> None:
    assert remarks(example()) == []
    graph = CellGraph(["A", "B", "C"], {"p": torch.tensor([[0, 0], [1, 1]]), "q": torch.empty(2, 0)})
    assert remarks(graph) == [
        "relation 'p' was given 1 duplicate edges; they were removed",
        "relation 'q' has no edges",
        "1 of 3 genes have no edge in any relation",
    ]
    assert "the graph has no relation" in remarks(CellGraph(["A"], {}))
