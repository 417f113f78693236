"""The fused pooling against the formula, forward and gradient."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from knockgraph.ops.attention_pool import attention_pool

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
# The interpreter multiplies matrices of bfloat16 bit patterns.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def operands(rows: int, batch: int, channels: int) -> tuple[list[Tensor], Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    hidden = channels // 2
    shapes = [(rows, batch, channels), (hidden, channels), (hidden,), (1, hidden), (1,)]
    values = [0.3 * torch.randn(*shape, generator=g).to(DEVICE) for shape in shapes]
    keep = (torch.rand(rows, batch, generator=g) > 0.2).to(DEVICE)
    return values, keep, torch.randn(batch, channels, generator=g).to(DEVICE)


def run(values: list[Tensor], keep: Tensor, dz: Tensor, backend: str) -> list[Tensor]:
    x, *gate = leaves = [v.detach().clone().requires_grad_() for v in values]
    z = attention_pool(x, keep, tuple(gate), backend)
    z.backward(dz.to(z.dtype))
    assert all(leaf.grad is not None for leaf in leaves)
    return [z.detach(), *(leaf.grad for leaf in leaves)]  # type: ignore[misc]


def compare(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for number, (a, b) in enumerate(zip(found[:-1], wanted[:-1], strict=True)):
        error = (a.double() - b).norm() / b.norm()
        assert error <= tolerance, (number, error)
    assert found[-1].abs() <= 1e-3  # what is added to all logits of a softmax changes nothing


def test_the_formula() -> None:
    """Sample by sample, over the rows that are kept."""
    values, keep, dz = operands(9, 4, 6)
    values = [v.double().cpu() for v in values]
    keep, dz = keep.cpu(), dz.cpu()
    found = run(values, keep, dz, "torch")
    x, w, a, u, c = values
    for b in range(4):
        rows = x[keep[:, b], b]
        share = (torch.nn.functional.gelu(rows @ w.t() + a) @ u[0] + c).softmax(0)
        assert torch.allclose(found[0][b], share @ rows)


@needs_triton
@pytest.mark.parametrize(("rows", "batch", "channels"), [(7, 3, 32), (10, 18, 32), (5, 2, 64)])
def test_fused_equals_plain(rows: int, batch: int, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.ops.triton.attention_pool._SHARES", 4)  # of 2 or 3 rows, the last of fewer
    values, keep, dz = operands(rows, batch, channels)
    wanted = run([v.double() for v in values], keep, dz, "torch")
    values[0][~keep] = float("nan")  # it does not matter
    first, second = (run(values, keep, dz, "triton") for _ in range(2))
    compare(first, wanted, 1e-5)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert (first[1][~keep] == 0).all()


@needs_triton
def test_a_sample_without_any_row() -> None:
    values, keep, dz = operands(6, 3, 32)
    keep[:, 1] = False
    found, wanted = (run(values, keep, dz, backend) for backend in ("triton", "torch"))
    assert (found[0][1] == 0).all()
    compare(found, wanted, 1e-5)


@needs_triton
def test_half() -> None:
    values, keep, dz = operands(9, 3, 32)
    wanted = run([v.double() for v in values], keep, dz, "torch")
    with torch.autocast(DEVICE, HALF):
        found = run(values, keep, dz, "triton")
    assert found[0].dtype == torch.float32
    compare(found, wanted, 0.02)
