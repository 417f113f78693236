"""Convolutions over several relations, ours and somebody else's."""

from __future__ import annotations

import pytest
import torch
from strategy_cases import DIRECTIONS, assert_close, cell, features, random_pairs
from torch import Tensor, nn

import knockgraph as kg
from knockgraph import registry
from knockgraph.nn.conv.by_name import relation_conv
from knockgraph.nn.conv.relation_conv import gather

N, CHANNELS = 9, 4
NAMES = ("a", "b", "c")
GENOTYPES = [[], [3], [7, 1, 5]]


class OneRelation(nn.Module):
    """Somebody's layer of one relation."""

    degrees = False

    def __init__(self, in_channels: int, out_channels: int, mlp_layers: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.mlp_layers = mlp_layers

    def forward(self, view: kg.PerturbedGraphs, relation: str, x: Tensor) -> Tensor:
        return self.linear(view.aggregate(relation, x))  # type: ignore[no-any-return]


class AllRelations(kg.nn.RelationConv):
    """Somebody's layer of all relations at once."""

    def __init__(self, in_channels: int, out_channels: int, relations: int | None = None) -> None:
        super().__init__(relations)
        self.weight = nn.Parameter(torch.randn(relations or 1, in_channels, out_channels))

    def forward(self, view: kg.PerturbedGraphs, relation: object, x: Tensor, rows: object = None) -> Tensor:
        return gather(view, relation, x, "sum", rows)[1] @ self.weight  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, "convolution", {"one": OneRelation, "all": AllRelations})


def view(direction: str = "both") -> kg.PerturbedGraphs:
    graph = cell(N, **{name: random_pairs(N, 0.3, seed) for seed, name in enumerate(NAMES)})
    return kg.strategies.create("node-mask", graph, direction=direction)(kg.PerturbationBatch.from_lists(GENOTYPES, N))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("names", [NAMES, ("c", "a")])
@pytest.mark.parametrize("shared", [False, True])
def test_several_relations_are_each_relation_by_itself(shared: bool, names: tuple[str, ...], direction: str) -> None:
    """y_r = conv_r(A_r, x): a layer of several relations has the weights of as many layers of one."""
    graphs = view(direction)
    x = features((N, CHANNELS) if shared else (N, len(GENOTYPES), CHANNELS))
    for kind, singles in (
        ("sage", kg.nn.SAGEConv),
        ("gcn", kg.nn.GCNConv),
        ("gin", None),
        ("one", None),
        ("all", None),
    ):
        torch.manual_seed(0)
        conv = relation_conv(kind, len(names), CHANNELS, mlp_layers=2).double()
        found = conv(graphs, names, x)
        assert found.shape == (len(names), N * len(GENOTYPES), CHANNELS)
        for number, name in enumerate(names):
            if singles is not None:
                alone: nn.Module = singles(CHANNELS, CHANNELS).double()
                state = {key: value[number].mT.squeeze(-1) for key, value in conv.state_dict().items()}
                alone.load_state_dict(state)
                expected = alone(graphs, name, x)
            elif kind == "gin":
                alone = kg.nn.GINConv.of_channels(CHANNELS, mlp_layers=2).double()
                alone.load_state_dict(
                    {k: v[number] if k == "eps" else v[number : number + 1] for k, v in conv.state_dict().items()}
                )
                expected = alone(graphs, name, x)
            elif kind == "all":
                expected = graphs.aggregate(name, x) @ conv.get_parameter("weight")[number]
            else:
                expected = conv.get_submodule(f"convs.{number}")(graphs, name, x)
            assert_close(found[number].view_as(expected), expected, torch.float64, f"{kind} {name}")


def test_gcn_of_earlier_versions_loads() -> None:
    """It was one layer for each relation."""
    torch.manual_seed(0)
    singles = [kg.nn.GCNConv(CHANNELS, CHANNELS).double() for _ in NAMES]
    for conv in singles:
        nn.init.normal_(conv.bias)  # type: ignore[arg-type]
    together = relation_conv("gcn", len(NAMES), CHANNELS).double()
    holder = nn.ModuleDict({"conv": together})
    holder.load_state_dict(
        {f"conv.convs.{n}.{key}": value for n, conv in enumerate(singles) for key, value in conv.state_dict().items()}
    )
    graphs, x = view(), features((N, len(GENOTYPES), CHANNELS))
    for found, conv, name in zip(together(graphs, NAMES, x), singles, NAMES, strict=True):
        expected = conv(graphs, name, x)
        assert_close(found.view_as(expected), expected, torch.float64, name)


def test_a_state_of_its_own_for_each_relation() -> None:
    graphs = view()
    x = features((3, N, len(GENOTYPES), CHANNELS))
    conv = relation_conv("sage", 3, CHANNELS).double()
    found = conv(graphs, NAMES, x)
    for number in range(3):
        assert_close(found[number], conv(graphs, NAMES, x[number])[number], torch.float64)


def test_somebody_elses_in_the_hetero_model() -> None:
    graph = kg.demo_cell()
    batch = kg.PerturbationBatch.from_lists([[3, 5], [8]], graph.num_genes)
    strategy = kg.strategies.create("node-mask", graph)
    for conv, merge, hops in (("one", "none", 2), ("one", "typed", 2), ("all", "none", None), ("all", "typed", None)):
        messages = {"layers": 2, "conv": conv, "merge": merge, "mlp_layers": 3, "aggregation": "mean"}
        model = kg.models.create("hetero", graph, channels=8, messages=messages)
        assert model.hops == hops
        assert model(strategy(model.columns(batch)), batch).values.shape == (2, 1)
        given = [m.mlp_layers for m in model.modules() if isinstance(m, OneRelation)]
        assert set(given) <= {3}  # of what the model offers it takes what it names


def test_a_local_layer_needs_only_distinct_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norm, activation and aggregation of the first layer skip the rows that no deletion touches."""
    graph = kg.demo_cell()
    batch = kg.PerturbationBatch.from_lists([[3, 5], [8]], graph.num_genes)
    values, rows = [], []
    for local in (False, True):
        monkeypatch.setattr(OneRelation, "local", local, raising=False)
        torch.manual_seed(0)
        messages = {"layers": 2, "conv": "one", "aggregation": "attention"}
        model = kg.models.create("hetero", graph, channels=8, messages=messages).double()
        aggregation = model.get_submodule("layers.0.aggregation")
        aggregation.register_forward_hook(lambda _, given, y: rows.append(given[0].shape[1]))
        strategy = kg.strategies.create("node-mask", graph)
        values.append(model(strategy(model.columns(batch)), batch).values)
    assert_close(values[1], values[0], torch.float64)
    assert rows[0] == 3 * graph.num_genes
    assert graph.num_genes <= rows[1] < rows[0] / 2
