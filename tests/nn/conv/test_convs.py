"""The convolutions against PyG's own layers on really filtered edges, with every strategy behind them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import slow_reference as slow
import torch
from strategy_cases import DIRECTIONS, VARIANTS, assert_close, cell, create, features, random_pairs
from torch import Tensor, nn
from torch_geometric import nn as pyg

import knockgraph as kg
from knockgraph.nn import GATv2Conv, GCNConv, GINConv, SAGEConv

N = 10
IN, OUT = 3, 4
GENOTYPES = [[], [3], [7, 1, 5], [0, 2, 4, 6, 8], list(range(N))]


def _graph() -> kg.CellGraph:
    plain = [e for e in random_pairs(N, 0.3, seed=70) if e[0] != e[1]]
    weight = torch.rand(len(plain), generator=torch.Generator().manual_seed(71)) + 0.1
    loops = [[i, i] for i in range(0, N, 2)]
    return cell(N, plain=plain, weighted=(plain, weight), looped=plain + loops, empty=[])


GRAPH = _graph()


def _gin(reduce: str = "") -> tuple[nn.Module, nn.Module]:
    mlp = nn.Sequential(nn.Linear(IN, 6), nn.ReLU(), nn.Linear(6, OUT))
    mine = GINConv(mlp, eps=0.3)
    theirs = pyg.GINConv(nn.Sequential(nn.Linear(IN, 6), nn.ReLU(), nn.Linear(6, OUT)), eps=0.3, train_eps=True)
    theirs.nn.load_state_dict(mlp.state_dict())
    return mine, theirs


def _sage(reduce: str) -> tuple[nn.Module, nn.Module]:
    mine, theirs = SAGEConv(IN, OUT, reduce=reduce), pyg.SAGEConv(IN, OUT, aggr=reduce)
    theirs.lin_l.load_state_dict(mine.neighbour.state_dict())
    theirs.lin_r.load_state_dict(mine.own.state_dict())
    return mine, theirs


def _gcn() -> tuple[nn.Module, nn.Module]:
    mine, theirs = GCNConv(IN, OUT), pyg.GCNConv(IN, OUT)
    nn.init.normal_(mine.bias)
    theirs.lin.weight.data.copy_(mine.linear.weight.data)
    theirs.bias.data.copy_(mine.bias.data)
    return mine, theirs


def _gat(heads: int, concat: bool) -> tuple[nn.Module, nn.Module]:
    mine = GATv2Conv(IN, OUT, heads=heads, concat=concat)
    theirs = pyg.GATv2Conv(IN, OUT, heads=heads, concat=concat, add_self_loops=False)
    for p in (mine.bias, mine.source.bias, mine.target.bias):
        nn.init.normal_(p)
    theirs.lin_l.load_state_dict(mine.source.state_dict())
    theirs.lin_r.load_state_dict(mine.target.state_dict())
    theirs.att.data.copy_(mine.attention.data.unsqueeze(0))
    theirs.bias.data.copy_(mine.bias.data)
    return mine, theirs


LAYERS: dict[str, tuple[Callable[[], tuple[nn.Module, nn.Module]], list[str]]] = {
    "gin": (_gin, ["plain", "looped", "empty"]),
    "sage-mean": (lambda: _sage("mean"), ["plain", "looped", "empty"]),
    "sage-max": (lambda: _sage("max"), ["plain", "looped", "empty"]),
    # PyG replaces loops that are there already; see test_gcn_with_loops for ours.
    "gcn": (_gcn, ["plain", "weighted", "empty"]),
    "gatv2": (lambda: _gat(1, True), ["plain", "looped", "empty"]),
    "gatv2-heads": (lambda: _gat(3, True), ["plain"]),
    "gatv2-mean": (lambda: _gat(2, False), ["plain"]),
}

#: Parameters of ours → PyG's, whatever they are called in the layer compared with.
PARTNERS: dict[str, list[str]] = {
    "eps": ["eps"],
    "mlp.0.weight": ["nn.0.weight"],
    "mlp.0.bias": ["nn.0.bias"],
    "mlp.2.weight": ["nn.2.weight"],
    "mlp.2.bias": ["nn.2.bias"],
    "neighbour.weight": ["lin_l.weight"],
    "neighbour.bias": ["lin_l.bias"],
    "own.weight": ["lin_r.weight"],
    "linear.weight": ["lin.weight"],
    "source.weight": ["lin_l.weight"],
    "source.bias": ["lin_l.bias"],
    "target.weight": ["lin_r.weight"],
    "target.bias": ["lin_r.bias"],
    "attention": ["att"],
    "bias": ["bias"],
}


def filtered(relation: str, deleted: list[int], direction: str) -> tuple[Tensor, Tensor | None]:
    r = GRAPH.relations[relation]
    left = slow.remaining(slow.edge_list(r.edge_index), set(deleted), direction)
    return r.edge_index[:, left], None if r.weight is None else r.weight[left].double()


def theirs_on_filtered_edges(layer: nn.Module, relation: str, x: Tensor, direction: str) -> Tensor:
    columns = []
    for sample, deleted in enumerate(GENOTYPES):
        edge_index, weight = filtered(relation, deleted, direction)
        own = x[:, sample]
        columns.append(layer(own, edge_index) if weight is None else layer(own, edge_index, weight))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_pyg(variant: str, kind: str, direction: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make, relations = LAYERS[kind]
    mine, theirs = (layer.double() for layer in make())
    strategy = create(variant, GRAPH, direction, GENOTYPES, tmp_path)
    batch = kg.PerturbationBatch.from_lists(GENOTYPES, N)
    for relation in relations:
        x = features((N, len(GENOTYPES), IN))
        leaves = [x.clone().requires_grad_() for _ in range(2)]
        expected = theirs_on_filtered_edges(theirs, relation, leaves[0], direction)
        upstream = features(tuple(expected.shape), seed=2)
        mine.zero_grad()
        theirs.zero_grad()
        (expected * upstream).sum().backward()
        with strategy(batch) as view:
            y = mine(view, relation, leaves[1])
            (y * upstream).sum().backward()
        what = (variant, kind, relation, direction)
        assert_close(y, expected, torch.float64, what)
        size = float(upstream.norm())
        assert_close(leaves[1].grad, leaves[0].grad, torch.float64, what, size)
        partners = dict(theirs.named_parameters())
        assert len(partners) == len(list(mine.parameters()))
        for name, parameter in mine.named_parameters():
            gradient = next(partners[partner] for partner in PARTNERS[name] if partner in partners).grad
            gradient = torch.zeros_like(parameter) if gradient is None else gradient.view_as(parameter)
            given = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert_close(given, gradient, torch.float64, (*what, name), size)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("relation", ["looped", "weighted"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gcn_formula(variant: str, relation: str, direction: str, tmp_path: Path) -> None:
    """``d = (m ⊙ Am + 1)^-½``, ``y = d⊙m⊙A(m⊙d⊙xW) + d²⊙xW + b``: a loop of the relation is one more edge."""
    torch.manual_seed(0)
    conv = GCNConv(IN, OUT).double()
    nn.init.normal_(conv.bias)
    strategy = create(variant, GRAPH, direction, GENOTYPES, tmp_path)
    x = features((N, len(GENOTYPES), IN))
    r = GRAPH.relations[relation]
    h = x @ conv.linear.weight.T
    columns = []
    for sample, deleted in enumerate(GENOTYPES):
        edge_index, weight = filtered(relation, deleted, direction)
        A = torch.zeros(N, N, dtype=torch.float64)
        A[edge_index[1], edge_index[0]] = torch.ones(edge_index.shape[1]).double() if weight is None else weight
        d = (A.sum(1) + 1).pow(-0.5).unsqueeze(1)
        columns.append(d * (A @ (d * h[:, sample])) + d * d * h[:, sample] + conv.bias)
    with strategy(kg.PerturbationBatch.from_lists(GENOTYPES, N)) as view:
        y = conv(view, relation, x)
    assert (r.num_self_loops > 0) == (relation == "looped")
    assert_close(y, torch.stack(columns, 1), torch.float64)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_shared_features(variant: str, kind: str, tmp_path: Path) -> None:
    """``x [num_genes, channels]`` of a first layer is the same as x repeated for every sample; gradients too."""
    torch.manual_seed(0)
    make, relations = LAYERS[kind]
    conv = make()[0].double()
    strategy = create(variant, GRAPH, "both", GENOTYPES, tmp_path)
    batch = kg.PerturbationBatch.from_lists(GENOTYPES, N)
    for relation in relations:
        results = []
        for expanded in (False, True):
            x = features((N, IN)).requires_grad_()
            conv.zero_grad()
            with strategy(batch) as view:
                y = conv(view, relation, x.unsqueeze(1).expand(-1, len(GENOTYPES), -1) if expanded else x)
                (y * features(tuple(y.shape), seed=2)).sum().backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in conv.parameters()]
            results.append([y.detach(), x.grad, *gradients])
        for shared, wide in zip(*results, strict=True):
            assert_close(shared, wide, torch.float64, (kind, relation), scale=10.0)


@pytest.mark.parametrize("kind", LAYERS)
def test_shapes_names_and_start(kind: str) -> None:
    conv = LAYERS[kind][0]()[0]
    view = kg.strategies.create("node-mask", GRAPH)(kg.PerturbationBatch.from_lists(GENOTYPES, N))
    width = OUT * (conv.heads if kind == "gatv2-heads" else 1)
    assert conv(view, "plain", torch.ones(N, len(GENOTYPES), IN)).shape == (N, len(GENOTYPES), width)
    assert type(conv).__name__ in repr(conv)
    assert str(OUT) in repr(conv)
    torch.manual_seed(1)
    conv.reset_parameters()
    first = [p.clone() for p in conv.parameters()]
    with torch.no_grad():
        for p in conv.parameters():
            p.add_(1)
    torch.manual_seed(1)
    conv.reset_parameters()
    assert all(torch.equal(a, b) for a, b in zip(first, conv.parameters(), strict=True))


def test_options() -> None:
    with pytest.raises(kg.ModelError, match="heads=0, but attention needs at least one"):
        GATv2Conv(IN, OUT, heads=0)
    assert GCNConv(IN, OUT, bias=False).bias is None
    assert GATv2Conv(IN, OUT, bias=False).bias is None
    assert SAGEConv(IN, OUT, bias=False).neighbour.bias is None
    fixed = GINConv(nn.Linear(IN, OUT), eps=0.5, train_eps=False)
    assert "eps" not in dict(fixed.named_parameters())
    assert float(fixed.eps) == 0.5
    view = kg.strategies.create("node-mask", GRAPH)(kg.PerturbationBatch.from_lists(GENOTYPES, N))
    for conv in (GCNConv(IN, OUT, bias=False), GATv2Conv(IN, OUT, bias=False), SAGEConv(IN, OUT, bias=False)):
        assert not conv(view, "plain", torch.zeros(N, len(GENOTYPES), IN)).detach().any()


@pytest.mark.parametrize("kind", LAYERS)
def test_deleted_gene_keeps_its_self_term(kind: str) -> None:
    """Its row is what a gene without neighbours gets, not zero and not the wild type's."""
    torch.manual_seed(0)
    conv = LAYERS[kind][0]()[0].double()
    view = kg.strategies.create("node-mask", GRAPH)(kg.PerturbationBatch.from_lists([[3]], N))
    x = features((N, 1, IN))
    assert_close(conv(view, "plain", x)[3], conv(view, "empty", x)[3], torch.float64)
