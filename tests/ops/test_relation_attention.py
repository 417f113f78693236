"""The fused attention across relations against the formula, forward and gradient."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops import mix_relations

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
# The interpreter multiplies matrices of bfloat16 bit patterns.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def operands(relations: int, rows: int, channels: int, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    shapes = [
        (relations, rows, channels),
        (3 * channels, channels),
        (3 * channels,),
        (channels, channels),
        (channels,),
    ]
    scales = (1.0, 1.5 / math.sqrt(channels), 0.5, 1.5 / math.sqrt(channels), 0.5)
    return [s * torch.randn(*shape, generator=g).to(DEVICE) for s, shape in zip(scales, shapes, strict=True)]


def slow(h: Tensor, weights: list[Tensor], heads: int) -> Tensor:
    """Row by row, head by head and relation by relation."""
    qkv, qkv_bias, out, out_bias = weights
    size = h.shape[2] // heads
    rows = []
    for n in range(h.shape[1]):
        q, k, v = (h[:, n] @ qkv.t() + qkv_bias).chunk(3, 1)
        answers = []
        for r in range(h.shape[0]):
            parts = [slice(i * size, (i + 1) * size) for i in range(heads)]
            shares = [(k[:, part] @ q[r, part] / math.sqrt(size)).softmax(0) for part in parts]
            mixed = torch.cat([share @ v[:, part] for share, part in zip(shares, parts, strict=True)])
            answers.append(out @ mixed + out_bias)
        rows.append(h[:, n].mean(0) + torch.stack(answers).mean(0))
    return torch.stack(rows)


def run(values: list[Tensor], dy: Tensor, backend: str | None, heads: int, count: Tensor | None = None) -> list[Tensor]:
    """The result and all gradients, of the rows that are there; with ``backend=None`` those of the slow form."""
    h, *weights = (v.detach().clone().requires_grad_() for v in values)
    if backend is None:
        y = slow(h, weights, heads)
    else:
        y = mix_relations(h, (weights[0], weights[1]), (weights[2], weights[3]), heads, count, backend)
    there = h.shape[1] if count is None else int(count)
    d = torch.full_like(y, float("nan"))  # of rows that are not there
    d[:there] = dy[:there].to(y.dtype)
    y.backward(d)
    gradients = [v.grad for v in (h, *weights)]
    assert all(g is not None for g in gradients)
    return [y[:there].detach(), gradients[0][:, :there], *gradients[1:]]  # type: ignore[index, list-item]


def compare(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = (a.double() - b.double()).norm() / b.double().norm()
        assert error <= tolerance, (number, error)


def test_plain_equals_the_slow_form() -> None:
    values = [v.double().cpu() for v in operands(4, 7, 6)]
    dy = torch.randn(7, 6, dtype=torch.float64)
    compare(run(values, dy, "torch", 3), run(values, dy, None, 3), 1e-12)


@needs_triton
@pytest.mark.parametrize(
    ("relations", "rows", "channels", "heads"),
    [(1, 1, 16, 2), (1, 70, 16, 1), (2, 75, 16, 4), (9, 30, 32, 4), (9, 8, 64, 4), (33, 3, 16, 2), (65, 3, 16, 2)],
)
def test_fused_equals_plain(relations: int, rows: int, channels: int, heads: int) -> None:
    values = operands(relations, rows, channels)
    dy = torch.randn(rows, channels, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch", heads)
    compare(run(values, dy, "triton", heads), wanted, 1e-5)


@needs_triton
def test_fused_half() -> None:
    values = operands(9, 30, 32)
    values[0] = values[0].to(HALF)
    dy = torch.randn(30, 32, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch", 4)
    compare(run(values, dy, "triton", 4), wanted, 0.02)


@needs_triton
def test_large_logits() -> None:
    values = operands(3, 20, 16)
    values[0] *= 30
    dy = torch.randn(20, 16, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch", 2)
    compare(run(values, dy, "triton", 2), wanted, 1e-3)


@pytest.mark.parametrize("backend", [pytest.param("triton", marks=needs_triton), "torch"])
@pytest.mark.parametrize("there", [1, 21, 50])
def test_rows_that_are_not_there(backend: str, there: int) -> None:
    values = operands(3, 60, 16)
    values[0][:, there:] = float("nan")
    dy = torch.randn(60, 16, device=DEVICE)
    wanted = run([values[0][:, :there].double(), *(v.double() for v in values[1:])], dy, "torch", 2)
    count = torch.tensor([there], dtype=torch.int32, device=DEVICE)
    compare(run(values, dy, backend, 2, count), wanted, 1e-5)


@needs_triton
def test_equal_bits_twice() -> None:
    values = operands(3, 100, 16)
    dy = torch.randn(100, 16, device=DEVICE)
    for a, b in zip(run(values, dy, "triton", 2), run(values, dy, "triton", 2), strict=True):
        assert torch.equal(a, b)


@needs_triton
def test_no_gradient_keeps_the_values() -> None:
    h, *weights = operands(2, 20, 16)
    given = (h, (weights[0], weights[1]), (weights[2], weights[3]), 2)
    with torch.no_grad():
        y = mix_relations(*given, backend="triton")
    compare([y], [mix_relations(*given, backend="torch")], 1e-5)


def test_refuses_what_it_cannot_do() -> None:
    h, *weights = operands(2, 5, 24)
    given = (h, (weights[0], weights[1]), (weights[2], weights[3]), 2)
    with pytest.raises(StrategyError, match="take widths 16, 32 and 64 and no float64"):
        mix_relations(*given, backend="triton")
    with pytest.raises(StrategyError, match="choose auto, triton or torch"):
        mix_relations(*given, backend="cusparse")
    assert mix_relations(*given).shape == (5, 24)
