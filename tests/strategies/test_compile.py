"""The default strategy inside compiled code, without a graph break, and under autocast."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from strategy_cases import CASES, VARIANTS, create, features, relative
from torch import Tensor, nn

import knockgraph as kg
from knockgraph.nn import GATv2Conv, GINConv, SAGEConv

CASE = CASES["random"]
N, B = CASE.graph.num_genes, len(CASE.genotypes)

# Raised inside torch while it traces: nothing of ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Layer(nn.Module):
    """One message-passing layer over all relations; the strategy is part of the module."""

    def __init__(self, strategy: kg.strategies.Strategy, reduce: str, channels: int = 4) -> None:
        super().__init__()
        self.strategy = strategy
        self.reduce = reduce
        self.linear = nn.Linear(channels, channels).double()

    def forward(self, view: kg.PerturbedGraphs, x: Tensor) -> Tensor:
        """[num_genes, batch, channels]."""
        neighbours = view.aggregate_all(x, self.reduce)
        own = x.unsqueeze(1) if x.dim() == 2 else x
        return torch.tanh(self.linear(own + neighbours)).sum(0)


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


def step(layer: nn.Module, parameters: list[Tensor], view: kg.PerturbedGraphs, x: Tensor) -> list[Tensor]:
    leaf = x.clone().requires_grad_()
    for p in parameters:
        p.grad = None
    y = layer(view, leaf)
    y.square().sum().backward()
    return [y.detach(), leaf.grad, *(p.grad for p in parameters)]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_no_graph_break(reduce: str, shared: bool) -> None:
    torch.manual_seed(0)
    strategy = kg.strategies.create("node-mask", CASE.graph)
    layer = Layer(strategy, reduce)
    view = strategy(CASE.batch)
    x = features((N, 4) if shared else (N, B, 4))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    expected = step(layer, list(layer.parameters()), view, x)
    actual = step(compiled, list(layer.parameters()), view, x)
    for mine, other in zip(actual, expected, strict=True):
        assert relative(mine, other) <= 1e-12


def test_strategy_call_inside_the_compiled_step() -> None:
    """From indices to result in one graph."""
    torch.manual_seed(0)
    strategy = kg.strategies.create("node-mask", CASE.graph)
    layer = Layer(strategy, "sum")

    def whole(indices: Tensor, ptr: Tensor, sample: Tensor, x: Tensor) -> Tensor:
        return layer(strategy(kg.PerturbationBatch(indices, ptr, sample, N)), x)

    compiled = torch.compile(whole, fullgraph=True, backend="aot_eager")
    batch = CASE.batch
    given = (batch.perturbation_indices, batch.perturbation_indices_ptr, batch.perturbation_indices_batch)
    x = features((N, B, 4))
    assert relative(compiled(*given, x), whole(*given, x)) <= 1e-12


@pytest.mark.parametrize("kind", ["gin", "sage", "attention"])
def test_layers_compile(kind: str) -> None:
    torch.manual_seed(0)
    conv = {
        "gin": lambda: GINConv(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))),
        "sage": lambda: SAGEConv(4, 4),
        "attention": lambda: GATv2Conv(4, 2, heads=2),
    }[kind]().double()
    view = kg.strategies.create("node-mask", CASE.graph)(CASE.batch)

    def run(view: kg.PerturbedGraphs, x: Tensor) -> Tensor:
        return conv(view, "regulatory", x)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    x = features((N, B, 4))
    parameters = list(conv.parameters())
    expected = step(run, parameters, view, x)
    for mine, other in zip(step(compiled, parameters, view, x), expected, strict=True):
        assert relative(mine, other, scale=1.0) <= 1e-12


@pytest.mark.parametrize("variant", VARIANTS)
def test_autocast(variant: str, tmp_path: Path) -> None:
    """bfloat16 within its precision, gradients in the type of the parameters; counts stay exact."""
    torch.manual_seed(0)
    strategy = create(variant, CASE.graph, "both", CASE.batch, tmp_path)
    conv = GINConv(nn.Linear(4, 4))
    x = features((N, B, 4), torch.float32).requires_grad_()
    with strategy(CASE.batch) as view:
        conv(view, "regulatory", x).square().sum().backward()
        expected = [x.grad, *(p.grad for p in conv.parameters())]
        x.grad = None
        for p in conv.parameters():
            p.grad = None
        degree, strength = view.degree("weighted"), view.strength("weighted")
    with strategy(CASE.batch) as view, torch.autocast("cpu", torch.bfloat16):
        y = conv(view, "regulatory", x)
        assert y.dtype == torch.bfloat16
        y.float().square().sum().backward()
        assert torch.equal(view.degree("weighted"), degree)
        assert torch.equal(view.strength("weighted"), strength)
        if variant == "node-mask":
            assert view.aggregate_all(x).dtype == torch.bfloat16
            assert view.aggregate_all(x.double()).dtype == torch.float64
    for mine, other in zip([x.grad, *(p.grad for p in conv.parameters())], expected, strict=True):
        assert mine.dtype == torch.float32
        assert relative(mine, other) < 3e-2
