"""Kernels of the row norm: a tile of rows per program; sums over rows per share of them, then over the shares."""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.partial_sums import partial_sums, parts_of

_TILE = 64
# Of the gradient: small tiles and many shares, so that an SM always has enough of them waiting for memory.
_GRADIENT_TILE = 32
_SHARES = 528


@triton.jit
def normalised(x, C: tl.constexpr):
    """Rows with mean 0 and variance 1, and the factor that made them so."""
    centred = x - (tl.sum(x, 1) / C)[:, None]
    factor = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / C + 1e-5)
    return centred * factor[:, None], factor


@triton.jit
def _forward(x, weight, bias, plus, y, rows, each, C: tl.constexpr, PLUS: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = (row < rows)[:, None]
    c = tl.arange(0, C)
    place = row.to(tl.int64)[:, None] * C + c[None, :]
    hat, _ = normalised(tl.load(x + place, mask=inside, other=0.0), C)
    value = hat * tl.load(weight + c)[None, :] + tl.load(bias + c)[None, :]
    if PLUS:
        at = (row // each).to(tl.int64)[:, None] * C + c[None, :]
        value += tl.load(plus + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, value, mask=inside)


@triton.jit
def _backward(x, weight, dy, dx, d_weight, d_bias, rows, C: tl.constexpr, SHARES: tl.constexpr, TILE: tl.constexpr):
    share = tl.program_id(0)
    c = tl.arange(0, C)
    gamma = tl.load(weight + c)[None, :]
    # Summed over the rows of a tile at the end: each thread adds up what it has.
    g_weight = tl.zeros([TILE, C], dtype=tl.float32)
    g_bias = tl.zeros([TILE, C], dtype=tl.float32)
    for start in range(share * TILE, rows, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        inside = (row < rows)[:, None]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        hat, factor = normalised(tl.load(x + place, mask=inside, other=0.0), C)
        grad = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        g_weight += grad * hat
        g_bias += grad
        grad = grad * gamma
        along = tl.sum(grad * hat, 1) / C
        grad = (grad - (tl.sum(grad, 1) / C)[:, None] - hat * along[:, None]) * factor[:, None]
        tl.store(dx + place, grad, mask=inside)
    tl.store(d_weight + share * 2 * C + c, tl.sum(g_weight, 0))
    tl.store(d_bias + share * 2 * C + c, tl.sum(g_bias, 0))


def forward(x: Tensor, weight: Tensor, bias: Tensor, plus: Tensor | None) -> Tensor:
    """The normalised rows; x is float32 [rows, channels], ``plus`` [rows / n, channels] is added."""
    rows, channels = x.shape
    y = torch.empty_like(x)
    each = 1 if plus is None else rows // max(len(plus), 1)
    with torch.cuda.device_of(x):
        _forward[(triton.cdiv(rows, _TILE),)](
            x, weight, bias, plus, y, rows, each, C=channels, PLUS=plus is not None, TILE=_TILE
        )
    return y


def backward(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias."""
    rows, channels = x.shape
    dx = torch.empty_like(x)
    whole, of_affine = partial_sums(x, _SHARES, (channels,), (channels,))
    with torch.cuda.device_of(x):
        _backward[(_SHARES,)](x, weight, dy, dx, *of_affine, rows, C=channels, SHARES=_SHARES, TILE=_GRADIENT_TILE)
    d_weight, d_bias = parts_of(whole.sum(0), (channels,), (channels,))
    return dx, d_weight, d_bias.clone()  # not two views of one memory
