import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from random_graphs import cell_graphs
from torch_geometric.data import HeteroData

from knockgraph import CellGraph, GraphError, Metabolism, Reaction

GPR = ("gene", "gpr", "reaction")
RMR = ("reaction", "rmr", "metabolite")


def example(split: bool = True) -> CellGraph:
    metabolism = Metabolism.from_reactions(
        [
            Reaction("r1", {"x": -1.0, "y": 2.0}, gene_rule="(A and B) or C"),
            Reaction("r2", {"y": -1.0}, growth=True),
        ],
        {"A": 0, "B": 1, "C": 2},
        split=split,
    )
    return CellGraph(
        ["A", "B", "C"],
        {"physical": torch.tensor([[0, 1], [1, 0]]), "tflink": (torch.tensor([[0], [2]]), torch.tensor([0.5]))},
        metabolism,
        {"f": torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), "g": torch.tensor([[7.0], [8.0], [9.0]])},
        {"A": ["TFC3"]},
    )


def test_names_of_the_specification() -> None:
    data = example().to_hetero_data()
    assert data["gene"].node_ids == ["A", "B", "C"]
    assert data["gene"].num_nodes == 3
    assert data["gene"].x.tolist() == [[1.0, 2.0, 7.0], [3.0, 4.0, 8.0], [5.0, 6.0, 9.0]]
    assert data["gene", "physical", "gene"].edge_index.tolist() == [[0, 1], [1, 0]]
    assert data["gene", "physical", "gene"].num_edges == 2
    assert "edge_weight" not in data["gene", "physical", "gene"]
    assert data["gene", "tflink", "gene"].edge_weight.tolist() == [0.5]
    # Nodes: r1 by the complex A+B, r1 by C, r2 without genes.
    assert data["reaction"].num_nodes == 3
    assert data["reaction"].w_growth.tolist() == [0.0, 0.0, 1.0]
    assert data["metabolite"].node_ids == ["x", "y"]
    assert data[GPR].hyperedge_index.tolist() == [[0, 1, 2], [0, 0, 1]]
    assert data[RMR].hyperedge_index.tolist() == [[0, 0, 1, 1, 2], [0, 1, 0, 1, 1]]
    assert data[RMR].stoichiometry.tolist() == [-1.0, 2.0, -1.0, 2.0, -1.0]
    assert data[RMR].reaction_to_genes == {0: ["A", "B"], 1: ["C"]}
    assert data[RMR].reaction_to_genes_indices == {0: [0, 1], 1: [2]}
    assert data[GPR].num_edges == 2
    assert data.validate()


@pytest.mark.parametrize("split", [True, False])  # False: several complexes on one reaction node
def test_round_trip(split: bool) -> None:
    graph = example(split)
    again = CellGraph.from_hetero_data(graph.to_hetero_data())
    assert again == graph
    keep = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])  # [genes, samples]
    assert torch.equal(again.metabolism.reactions_alive(keep), graph.metabolism.reactions_alive(keep))


@given(cell_graphs())
@settings(deadline=None, max_examples=60)
def test_round_trip_of_random_graphs(graph: CellGraph) -> None:
    again = CellGraph.from_hetero_data(graph.to_hetero_data())
    assert again == graph
    assert list(again.relations) == list(graph.relations)


def test_data_is_a_copy_both_ways() -> None:
    graph = example()
    data = graph.to_hetero_data()
    again = CellGraph.from_hetero_data(data)
    for store in data.stores:
        for value in store.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    data["gene"].node_ids.clear()
    assert graph == example()
    assert again == example()


def test_reading_does_not_change_the_data() -> None:
    data = example().to_hetero_data()
    before = copy.deepcopy(data).to_dict()
    CellGraph.from_hetero_data(data)
    assert list(data.to_dict()) == list(before)
    assert {kind: list(store) for kind, store in data.to_dict().items()} == {k: list(s) for k, s in before.items()}


def test_foreign_data_without_complexes_is_the_split_form() -> None:
    data = HeteroData()
    data["gene"].node_ids = ["A", "B", "C"]
    data["gene"].x = torch.zeros(3, 0)  # as the reference project stores "no features"
    data["gene", "physical", "gene"].edge_index = torch.tensor([[0], [2]])
    data["reaction"].num_nodes = 3
    data["metabolite"].num_nodes = 1
    data[GPR].hyperedge_index = torch.tensor([[0, 1, 2], [2, 2, 0]])
    data[RMR].hyperedge_index = torch.tensor([[0, 2], [0, 0]])
    data[RMR].stoichiometry = torch.tensor([1, -1])
    graph = CellGraph.from_hetero_data(data)
    assert graph.features == {}
    metabolism = graph.metabolism
    assert metabolism is not None
    assert metabolism.reactions == ("reaction_0", "reaction_1", "reaction_2")
    assert metabolism.metabolites == ("metabolite_0",)
    assert metabolism.w_growth.tolist() == [0.0, 0.0, 0.0]
    assert metabolism.stoichiometry.tolist() == [1.0, -1.0]
    keep = ~torch.eye(3, dtype=torch.bool)  # sample i deletes gene i
    # Node 2 needs A and B, node 0 needs C, node 1 needs none.
    assert metabolism.reactions_alive(keep).tolist() == [[True, True, False], [True, True, True], [False, False, True]]


def test_foreign_features_become_one_feature() -> None:
    data = example().to_hetero_data()
    del data["gene"].feature_sizes
    assert list(CellGraph.from_hetero_data(data).features) == ["x"]


def test_data_without_metabolism_or_relations() -> None:
    data = HeteroData()
    data["gene"].node_ids = ["A"]
    graph = CellGraph.from_hetero_data(data)
    assert graph == CellGraph(["A"], {})
    assert data.node_types == ["gene"]


def without(kind: str | tuple[str, str, str], name: str) -> Callable[[HeteroData], None]:
    return lambda data: data[kind].__delattr__(name)


def without_store(kind: str | tuple[str, str, str]) -> Callable[[HeteroData], None]:
    return lambda data: data.__delitem__(kind)


def with_value(kind: str, name: str, value: object) -> Callable[[HeteroData], None]:
    return lambda data: setattr(data[kind], name, value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (without("gene", "node_ids"), r'no gene names; set data\["gene"\].node_ids to the list of gene names'),
        (without_store("gene"), "this HeteroData has no gene names"),
        (with_value("gene", "node_ids", ["A", "A", "B"]), "gene names must be unique"),
        (with_value("gene", "node_ids", ["A", "B"]), "but gene indices run from 0 to 1"),
        (with_value("gene", "x", torch.ones(3, 7)), "x has 7 columns, but feature_sizes adds up to 3; correct or"),
        (with_value("gene", "x", torch.ones(3)), r"feature 'x' has shape \[3\]"),
        (without(("gene", "physical", "gene"), "edge_index"), 'data."gene", \'physical\', "gene". has no edge_index'),
        (without(GPR, "hyperedge_index"), r"data\['gene', 'gpr', 'reaction'\] has no hyperedge_index; set it"),
        (without(RMR, "hyperedge_index"), r"data\['reaction', 'rmr', 'metabolite'\] has no hyperedge_index"),
        (without(RMR, "stoichiometry"), "has no stoichiometry"),
        (without_store(GPR), r"needs both gpr and rmr entries, but data\['gene', 'gpr', 'reaction'\] is missing"),
        (without_store(RMR), r"data\['reaction', 'rmr', 'metabolite'\] is missing"),
        (without_store("reaction"), "the reaction nodes have neither names nor a number; set"),
        (without_store("metabolite"), r'the metabolite nodes .* set data\["metabolite"\].node_ids or num_nodes'),
    ],
)
def test_incomplete_data_is_refused(change: Callable[[HeteroData], None], text: str) -> None:
    data = example().to_hetero_data()
    change(data)
    node_types = list(data.node_types)
    with pytest.raises(GraphError, match=text):
        CellGraph.from_hetero_data(data)
    assert data.node_types == node_types  # asking a HeteroData for a missing node type would create it
