"""The fused MLPs of the relations against the formula, forward and gradient."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

from knockgraph.ops import tiles
from knockgraph.ops.relation_mlp import relation_mlp

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
# The interpreter multiplies matrices of bfloat16 bit patterns.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def operands(
    relations: int, rows: int, channels: int, layers: int, norm: bool = True, own: str = "eps"
) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes: list[tuple[int, ...]] = [
        (rows, channels),
        (relations, rows, channels),
        {"eps": (relations,), "factors": (relations, rows), "maps": (relations, channels, channels)}[own],
        (layers, relations, channels, channels),
        (layers, relations, channels),
    ]
    shapes += [(relations, channels)] * (2 if norm else 0)
    return [0.4 * torch.randn(*shape, generator=g).to(DEVICE) for shape in shapes]


def slow(values: list[Tensor]) -> Tensor:
    """Relation by relation, with torch's own layers."""
    own, neighbours, own_weight, weight, bias, *norm = values
    result = []
    for r in range(len(neighbours)):
        h = neighbours[r]
        if own_weight.dim() == 1:
            h = h + (1 + own_weight[r]) * own
        elif own_weight.dim() == 2:
            h = h + torch.stack([factor * row for factor, row in zip(own_weight[r], own, strict=True)])
        for layer in range(len(weight)):
            h = nn.functional.gelu(h) if layer else h
            h = nn.functional.linear(h, weight[layer, r].t(), bias[layer, r])
            if layer == 0 and own_weight.dim() == 3:
                h = h + nn.functional.linear(own, own_weight[r].t())
        h = nn.functional.layer_norm(h, h.shape[-1:], norm[0][r], norm[1][r]) if norm else h
        result.append(nn.functional.gelu(h))
    return torch.stack(result)


def run(
    values: list[Tensor], dy: Tensor, backend: str | None, rows: int | None = None, count: Tensor | None = None
) -> list[Tensor]:
    leaves = [v.detach().clone().requires_grad_() for v in values]
    norm = tuple(leaves[5:]) or None
    y = slow(leaves) if backend is None else relation_mlp(*leaves[:5], norm, count, backend)  # type: ignore[misc, arg-type]
    y.backward(dy.to(y.dtype))
    gradients = [v.grad for v in leaves]
    assert all(g is not None for g in gradients)
    return [y[:, :rows].detach(), gradients[0][:rows], gradients[1][:, :rows], *gradients[2:]]  # type: ignore[index, list-item]


def compare(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = (a.double() - b.double()).norm() / b.double().norm()
        assert error <= tolerance, (number, error)


@pytest.mark.parametrize("own", ["eps", "factors", "maps"])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("layers", [1, 4])
def test_plain_equals_the_slow_form(layers: int, norm: bool, own: str) -> None:
    values = [v.double().cpu() for v in operands(3, 9, 6, layers, norm, own)]
    dy = torch.randn(3, 9, 6, dtype=torch.float64)
    compare(run(values, dy, "torch"), run(values, dy, None), 1e-12)


@needs_triton
@pytest.mark.parametrize(
    ("relations", "rows", "channels", "layers", "norm", "own"),
    [
        (3, 70, 16, 4, True, "eps"),
        (2, 130, 32, 2, True, "eps"),
        (1, 1, 16, 1, True, "eps"),
        (2, 130, 16, 3, False, "eps"),
        (2, 20, 16, 5, True, "eps"),
        (3, 130, 16, 1, True, "factors"),
        (2, 70, 32, 2, False, "factors"),
        (3, 130, 16, 1, True, "maps"),
        (2, 70, 32, 2, False, "maps"),
    ],
)
def test_fused_equals_plain(relations: int, rows: int, channels: int, layers: int, norm: bool, own: str) -> None:
    values = operands(relations, rows, channels, layers, norm, own)
    dy = torch.randn(relations, rows, channels, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch")
    compare(run(values, dy, "triton"), wanted, 1e-5)


@needs_triton
@pytest.mark.parametrize(("layers", "own"), [(4, "eps"), (1, "factors"), (1, "maps")])
def test_fused_half(layers: int, own: str) -> None:
    values = operands(2, 70, 32, layers, own=own)
    values[:2] = (v.to(HALF) for v in values[:2])
    dy = torch.randn(2, 70, 32, device=DEVICE).to(HALF)
    compare(run(values, dy, "triton"), run([v.double() for v in values], dy, "torch"), 0.05)


@pytest.mark.parametrize("backend", ["torch", pytest.param("triton", marks=needs_triton)])
@pytest.mark.parametrize(("layers", "own"), [(4, "eps"), (1, "eps"), (2, "factors"), (1, "maps")])
def test_what_is_left_out_of_the_neighbours(layers: int, own: str, backend: str) -> None:
    values = operands(2, 70, 16, layers, own=own)
    dy = torch.randn(2, 70, 16, device=DEVICE)
    keep = torch.rand(70, generator=torch.Generator().manual_seed(1)).to(DEVICE) > 0.2
    values[1][:, ~keep] = 0.0
    wanted = run([v.double() for v in values], dy, None)
    wanted[2][:, ~keep] = 0.0
    values[1][:, ~keep] = float("nan")
    leaves = [v.requires_grad_() for v in values]
    y = relation_mlp(*leaves[:5], (leaves[5], leaves[6]), None, backend, keep)  # type: ignore[misc]
    y.backward(dy)
    compare([y.detach(), *(v.grad for v in leaves)], wanted, 1e-5)  # type: ignore[list-item]
    assert (leaves[1].grad[:, ~keep] == 0).all()  # type: ignore[index]


@needs_triton
@pytest.mark.parametrize(("layers", "own"), [(4, "eps"), (1, "maps")])
def test_rows_that_are_not_there(layers: int, own: str) -> None:
    values = operands(2, 200, 16, layers, own=own)
    dy = torch.randn(2, 200, 16, device=DEVICE)
    short = [values[0][:150].double(), values[1][:, :150].double(), *(v.double() for v in values[2:])]
    wanted = run(short, dy[:, :150], "torch")
    for tensor in (values[0][150:], values[1][:, 150:], dy[:, 150:]):
        tensor.fill_(float("nan"))
    count = torch.tensor([150], dtype=torch.int32, device=DEVICE)
    compare(run(values, dy, "triton", 150, count), wanted, 1e-5)


@needs_triton
@pytest.mark.parametrize(
    ("layers", "norm", "own", "count"),
    [
        pytest.param(1, True, "eps", None, marks=pytest.mark.full),
        pytest.param(2, True, "eps", None, marks=pytest.mark.full),
        (2, False, "maps", 50),
        (3, True, "factors", 50),
        pytest.param(3, True, "maps", None, marks=pytest.mark.full),
        pytest.param(4, True, "eps", 50, marks=pytest.mark.full),
        pytest.param(4, False, "factors", None, marks=pytest.mark.full),
        (5, False, "eps", None),
    ],
)
def test_how_many_gelus_changes_no_bit(layers: int, norm: bool, own: str, count: int | None) -> None:
    values = operands(2, 70, 16, layers, norm, own)
    dy = torch.randn(2, 70, 16, device=DEVICE)
    limit = None if count is None else torch.tensor([count], dtype=torch.int32, device=DEVICE)
    short = [values[0][:count], values[1][:, :count], *values[2:]]
    if own == "factors":
        short[2] = short[2][:, :count]
    wanted = run([v.double() for v in short], dy[:, :count], None)
    first = None
    for gelus in (2, 1):
        name = "gradient of MLPs"
        with tiles.trying({name: {**tiles.tile(name, dy), "TILE": 32, "SHARES": 2, "GELUS": gelus}}):
            found = run(values, dy, "triton", count, limit)
        if own == "factors":
            found[3] = found[3][:, :count]
        compare(found, wanted, 1e-5)
        first = first or found
        assert DEVICE == "cuda" or all(map(torch.equal, found, first))


@needs_triton
def test_equal_bits_twice() -> None:
    values = operands(3, 100, 16, 4)
    dy = torch.randn(3, 100, 16, device=DEVICE)
    for a, b in zip(run(values, dy, "triton"), run(values, dy, "triton"), strict=True):
        assert torch.equal(a, b)
