"""Kernels of norm and activation: a tile of rows per program; sums over rows per share of them, then over the shares.

They only read and write; their tiles are the same on every card.
"""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.partial_sums import partial_sums, parts_of
from knockgraph.ops.triton.gelu import gelu, gelu_and_slope, rounded_anyway
from knockgraph.ops.triton.row_norm import normalised

_TILE = 64
# Of the gradient: small tiles, and for each relation as many shares as are at work at once (nine relations, H200).
_GRADIENT_TILE = 32
_SHARES = 58


@triton.jit
def _forward(
    x, scale, shift, count, y, rows, C: tl.constexpr, COUNTED: tl.constexpr, FAST: tl.constexpr, TILE: tl.constexpr
):
    r = tl.program_id(0)
    start = tl.program_id(1) * TILE
    real = rows
    if COUNTED:
        real = tl.load(count)
    if start >= real:
        return
    row = start + tl.arange(0, TILE)
    inside = (row < real)[:, None]
    c = tl.arange(0, C)
    place = (r * rows.to(tl.int64) + row)[:, None] * C + c[None, :]
    hat, _ = normalised(tl.load(x + place, mask=inside, other=0.0).to(tl.float32), C)
    value = hat * tl.load(scale + r * C + c)[None, :] + tl.load(shift + r * C + c)[None, :]
    tl.store(y + place, gelu(value, FAST).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    x,
    scale,
    shift,
    count,
    dy,
    dx,
    d_scale,
    d_shift,
    rows,
    per_share,
    C: tl.constexpr,
    NORM: tl.constexpr,
    COUNTED: tl.constexpr,
    FAST: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
):
    r = tl.program_id(0)
    share = tl.program_id(1)
    real = rows
    if COUNTED:
        real = tl.load(count)
    c = tl.arange(0, C)
    if NORM:
        gamma = tl.load(scale + r * C + c).to(tl.float32)[None, :]
        beta = tl.load(shift + r * C + c).to(tl.float32)[None, :]
        # Summed over the rows of a tile at the end: each thread adds up what it has.
        g_scale = tl.zeros([TILE, C], dtype=tl.float32)
        g_shift = tl.zeros([TILE, C], dtype=tl.float32)
    for start in range(share * TILE, real, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        inside = (row < real)[:, None]
        place = (r * rows.to(tl.int64) + row)[:, None] * C + c[None, :]
        v = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        dv = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            hat, narrow = normalised(v, C)
            _, slope = gelu_and_slope(hat * gamma + beta, FAST)
            dv = dv * slope
            g_scale += dv * hat
            g_shift += dv
            dv = dv * gamma
            along = tl.sum(dv * hat, 1) / C
            dv = (dv - (tl.sum(dv, 1) / C)[:, None] - hat * along[:, None]) * narrow[:, None]
        else:
            _, slope = gelu_and_slope(v, FAST)
            dv = dv * slope
        tl.store(dx + place, dv.to(dx.dtype.element_ty), mask=inside)
    if NORM:
        to = share * per_share + r * C
        tl.store(d_scale + to + c, tl.sum(g_scale, 0))
        tl.store(d_shift + to + c, tl.sum(g_shift, 0))


def forward(x: Tensor, scale: Tensor, shift: Tensor, count: Tensor | None) -> Tensor:
    """The normed and activated rows; arguments as in :func:`knockgraph.ops.norm_gelu`."""
    relations, rows, _ = x.shape
    y = torch.empty_like(x)
    with torch.cuda.device_of(x):
        _forward[(relations, triton.cdiv(rows, _TILE))](
            x, scale.contiguous(), shift.contiguous(), count, y, rows, **_shape(x, count)
        )
    return y


def backward(
    x: Tensor, norm: tuple[Tensor, Tensor] | None, count: Tensor | None, dy: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of x (its type), scale and shift (float32); without a norm, of the activation alone."""
    relations, rows, channels = x.shape
    dx = torch.empty_like(x)
    shares = _SHARES if x.is_cuda else 2  # Triton's interpreter runs one program after the other
    whole, sums = partial_sums(x, shares, (relations, channels), (relations, channels))
    given = (None, None) if norm is None else (part.contiguous() for part in norm)
    with torch.cuda.device_of(x):
        _backward[(relations, shares)](
            x,
            *given,
            count,
            dy,
            dx,
            *sums,
            rows,
            whole.shape[1],
            NORM=norm is not None,
            SHARES=shares,
            **{**_shape(x, count), "TILE": _GRADIENT_TILE},
        )
    if norm is None:
        return dx, None, None
    d_scale, d_shift = parts_of(whole.sum(0), (relations, channels), (relations, channels))
    return dx, d_scale, d_shift.clone()  # not two views of one memory


def _shape(x: Tensor, count: Tensor | None) -> dict[str, Any]:
    return {"C": x.shape[2], "COUNTED": count is not None, "FAST": rounded_anyway(x), "TILE": _TILE}
