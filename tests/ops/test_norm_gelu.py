"""The fused norm and activation against the formula, forward and gradient."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

from knockgraph.errors import StrategyError
from knockgraph.nn.grouped_layer_norm import GroupedLayerNorm
from knockgraph.ops import norm_gelu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def operands(relations: int, rows: int, channels: int) -> list[Tensor]:
    g = torch.Generator().manual_seed(relations)
    shapes = [(relations, rows, channels), (relations, channels), (relations, channels)]
    return [torch.randn(*shape, generator=g).to(DEVICE) for shape in shapes]


def run(values: list[Tensor], dy: Tensor, backend: str, count: Tensor | None = None) -> list[Tensor]:
    """The result and all gradients, of the rows that are there."""
    x, scale, shift = (v.detach().clone().requires_grad_() for v in values)
    y = norm_gelu(x, scale, shift, count, backend)
    there = x.shape[1] if count is None else int(count)
    d = torch.full_like(y, float("nan"))  # of rows that are not there
    d[:, :there] = dy[:, :there].to(y.dtype)
    y.backward(d)
    assert x.grad is not None
    assert scale.grad is not None
    assert shift.grad is not None
    return [y[:, :there].detach(), x.grad[:, :there], scale.grad, shift.grad]


def compare(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = (a.double() - b.double()).norm() / b.double().norm()
        assert error <= tolerance, (number, error)


def test_plain_is_what_the_layers_do() -> None:
    x, scale, shift = (v.double().cpu() for v in operands(3, 7, 6))
    norm = GroupedLayerNorm(3, 6).double()
    norm.weight.data, norm.bias.data = scale.unsqueeze(1), shift.unsqueeze(1)
    assert torch.equal(norm_gelu(x, scale, shift), nn.functional.gelu(norm(x)))


@needs_triton
@pytest.mark.parametrize(("relations", "rows", "channels"), [(1, 1, 16), (3, 70, 16), (2, 250, 32), (2, 5, 64)])
def test_fused_equals_plain(relations: int, rows: int, channels: int) -> None:
    values = operands(relations, rows, channels)
    dy = torch.randn(relations, rows, channels, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch")
    compare(run(values, dy, "triton"), wanted, 1e-5)
    half = [values[0].to(torch.bfloat16), *values[1:]]
    compare(run(half, dy, "triton"), run([v.double() for v in half], dy, "torch"), 0.01)


@needs_triton
def test_rows_that_are_not_there() -> None:
    values = operands(2, 200, 16)
    values[0][:, 150:] = float("nan")
    dy = torch.randn(2, 200, 16, device=DEVICE)
    wanted = run([values[0][:, :150].double(), *(v.double() for v in values[1:])], dy, "torch")
    count = torch.tensor([150], dtype=torch.int32, device=DEVICE)
    found, again = (run(values, dy, "triton", count) for _ in range(2))
    compare(found, wanted, 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_refuses_what_it_cannot_do() -> None:
    x, scale, shift = operands(2, 5, 24)
    with pytest.raises(StrategyError, match="take widths 16, 32 and 64 and no float64"):
        norm_gelu(x, scale, shift, backend="triton")
    assert norm_gelu(x, scale, shift).shape == (2, 5, 24)
