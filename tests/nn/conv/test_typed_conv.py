"""Convolutions on one list of typed edges against explicit lists: each sample's edges are really filtered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from strategy_cases import VARIANTS, assert_close, create, features
from torch import Tensor

import knockgraph as kg
from knockgraph.nn import GATv2Conv, GCNConv, GINConv, SAGEConv
from knockgraph.nn.conv.by_name import relation_conv
from knockgraph.nn.conv.typed import MERGED, TypedConv, TypedGraphs

N, CHANNELS = 8, 4
EDGES = {
    "physical": [[0, 1, 1, 2, 3, 3, 5, 6], [1, 0, 2, 1, 3, 4, 6, 5]],  # a self loop at 3; gene 7 has no edge
    "string": [[0, 1, 2, 4, 5, 6], [1, 2, 1, 5, 4, 0]],  # shares edges with physical
    "regulatory": [[0, 0, 0], [1, 2, 3]],
}
GENOTYPES = [[], [1], [0, 3], [2, 4, 6], list(range(N))]
LAYERS = ["gin", "sage", "gcn"]


def graph() -> kg.CellGraph:
    return kg.CellGraph([f"g{i}" for i in range(N)], {name: torch.tensor(edges) for name, edges in EDGES.items()})


def layer_of(name: str, types: int = len(EDGES)) -> TypedConv:
    torch.manual_seed(0)
    layer = relation_conv(name, types, CHANNELS, typed=True).double()
    assert isinstance(layer, TypedConv)
    with torch.no_grad():
        for parameter in layer.parameters():  # those that start at 0 or 1 would hide mistakes
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


def reference(layer: TypedConv, types: list[str], x: Tensor, direction: str = "both") -> Tensor:
    """One list of (source, target, type) per sample, without those of deleted genes; one message per edge."""
    columns, conv = [], layer.conv
    for sample, deleted in enumerate(map(set, GENOTYPES)):
        left = [
            (source, target, layer.scale[number])
            for number, name in enumerate(types)
            for source, target in zip(*EDGES[name], strict=True)
            if target not in deleted and (source not in deleted or direction == "in")
        ]
        own = x[:, sample]
        degree = [sum(1 for _, target, _ in left if target == gene) for gene in range(N)]
        count = torch.tensor(degree, dtype=x.dtype).unsqueeze(1)
        if isinstance(conv, GCNConv):
            d = (count + 1) ** -0.5
            own = d * (own @ conv.linear.weight.T)
        rows = [own.sum(0) * 0 for _ in range(N)]
        for source, target, scale in left:
            rows[target] = rows[target] + scale * own[source]
        got = torch.stack(rows)
        if isinstance(conv, GINConv):
            h = (1 + conv.eps) * own + got
            for module in conv.mlp:
                h = (
                    torch.nn.functional.gelu(h)
                    if isinstance(module, torch.nn.GELU)
                    else h @ module.weight[0] + module.bias[0]
                )
            columns.append(h)
        elif isinstance(conv, SAGEConv):
            mean = torch.stack([row / max(n, 1) for row, n in zip(got, degree, strict=True)])
            columns.append(mean @ conv.neighbour.weight.T + conv.neighbour.bias + own @ conv.own.weight.T)
        else:
            columns.append(d * got + d * own + conv.bias)
    return torch.stack(columns, 1)


def both(
    layer: TypedConv, view: kg.PerturbedGraphs, x: Tensor, direction: str = "both", types: list[str] | None = None
) -> None:
    types = types or list(EDGES)
    upstream = features((N, len(GENOTYPES), CHANNELS), seed=2)
    results = []
    for fast in (False, True):
        leaf = x.clone().requires_grad_()
        given = leaf if fast or leaf.dim() == 3 else leaf.unsqueeze(1).expand(-1, len(GENOTYPES), -1)
        layer.zero_grad()
        y = layer(view, types, given).view(upstream.shape) if fast else reference(layer, types, given, direction)
        (y * upstream).sum().backward()
        results.append([y.detach(), leaf.grad, *(p.grad.clone() for p in layer.parameters())])  # type: ignore[union-attr]
    for name, expected, actual in zip(["y", "x", *dict(layer.named_parameters())], *results, strict=True):
        assert_close(actual, expected, torch.float64, name)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_against_explicit_edges(name: str, shared: bool) -> None:
    x = features((N, CHANNELS) if shared else (N, len(GENOTYPES), CHANNELS))
    view = kg.strategies.create("node-mask", graph())(kg.PerturbationBatch.from_lists(GENOTYPES, N))
    both(layer_of(name), view, x)
    both(layer_of(name, 2), view, x, types=["string", "physical"])  # not all of the graph's, in another order


@pytest.mark.parametrize("name", LAYERS)
def test_incoming_edges_only(name: str) -> None:
    strategy = kg.strategies.create("node-mask", graph(), direction="in")
    both(layer_of(name), strategy(kg.PerturbationBatch.from_lists(GENOTYPES, N)), features((N, 5, CHANNELS)), "in")


@pytest.mark.parametrize("variant", VARIANTS)
def test_any_strategy(variant: str, tmp_path: Path) -> None:
    strategy = create(variant, graph(), "both", GENOTYPES, tmp_path)
    with strategy(kg.PerturbationBatch.from_lists(GENOTYPES, N)) as view:
        both(layer_of("gin"), view, features((N, len(GENOTYPES), CHANNELS)))


def test_with_scales_of_one_gin_is_that_of_the_sum_of_the_adjacencies() -> None:
    """What was merged before, with weights that count the relations of an edge, gives the same."""
    count: dict[tuple[int, int], float] = {}
    for edges in EDGES.values():
        for edge in zip(*edges, strict=True):
            count[edge] = count.get(edge, 0.0) + 1
    weighted = kg.CellGraph(
        [f"g{i}" for i in range(N)], {"one": (torch.tensor(list(count)).T, torch.tensor(list(count.values())))}
    )
    layer = layer_of("gin")
    with torch.no_grad():
        layer.scale.fill_(1.0)
    batch = kg.PerturbationBatch.from_lists(GENOTYPES, N)
    x = features((N, len(GENOTYPES), CHANNELS))
    view = kg.strategies.create("node-mask", graph())(batch)
    found = TypedGraphs(view, list(EDGES), layer.scale).aggregate(MERGED, x)
    assert_close(found, kg.strategies.create("node-mask", weighted)(batch).aggregate("one", x), torch.float64)
    assert repr(layer).startswith("TypedConv(3 types, GINConv(")


@pytest.mark.parametrize("name", LAYERS)
def test_parameters_as_earlier_versions_named_them(name: str) -> None:
    layer = layer_of(name)
    flat = {key.removeprefix("conv."): value for key, value in layer.state_dict().items()}
    again = relation_conv(name, len(EDGES), CHANNELS, typed=True).double()
    again.load_state_dict(flat)
    for key, value in layer.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_only_what_is_a_sum_of_messages() -> None:
    view = kg.strategies.create("node-mask", graph())(kg.PerturbationBatch.from_lists(GENOTYPES, N))
    x = features((N, CHANNELS))
    for conv, match in (
        (SAGEConv(CHANNELS, CHANNELS, reduce="max"), "it has no max; do not merge"),
        (GATv2Conv(CHANNELS, CHANNELS), "it has no attention; do not merge"),
    ):
        with pytest.raises(kg.ModelError, match=match):
            TypedConv(conv.double(), len(EDGES), CHANNELS)(view, list(EDGES), x)
