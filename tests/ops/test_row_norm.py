"""The norm of narrow rows against torch's."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from knockgraph.ops.row_norm import row_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


COUNTS, SHAPES = (None, 1, 10), ((1, 16), (70, 32), (130, 64))
# In the fast tier every shape and every count once.
CROSSED = [
    pytest.param(*SHAPES[s], COUNTS[c], marks=() if s == c else pytest.mark.full) for s in range(3) for c in range(3)
]


@needs_triton
@pytest.mark.parametrize(("rows", "channels", "each"), CROSSED)
def test_forward_and_gradient(rows: int, channels: int, each: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(rows, channels, generator=g).to(DEVICE) for _ in range(2))
    weight, bias = (torch.randn(channels, generator=g).to(DEVICE) for _ in range(2))
    given = [x, weight, bias]
    if each is not None:
        given.append(torch.randn(max(rows // each, 1), channels, generator=g).to(DEVICE))
    results = []
    for backend, kind in (("triton", torch.float32), ("torch", torch.float64)):
        leaves = [t.detach().to(kind).requires_grad_() for t in given]
        y = row_norm(*leaves, backend=backend)
        y.backward(dy.to(kind))
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for found, wanted in zip(*results, strict=True):
        assert found is not None
        assert wanted is not None
        assert (found.double() - wanted).norm() <= 1e-5 * wanted.norm()


def test_half_becomes_float32() -> None:
    x = torch.randn(3, 8).half()
    y = row_norm(x, torch.ones(8), torch.zeros(8))
    assert y.dtype == torch.float32
    assert torch.allclose(y, torch.nn.functional.layer_norm(x.float(), (8,)))


@pytest.mark.parametrize("each", [1, 5])
def test_what_is_added(each: int) -> None:
    x, plus = torch.randn(10, 8).double(), torch.randn(10 // each, 8).double()
    y = row_norm(x, torch.ones(8).double(), torch.zeros(8).double(), plus)
    normed = torch.nn.functional.layer_norm(x, (8,))
    assert torch.allclose(y, torch.stack([normed[row] + plus[row // each] for row in range(10)]))
