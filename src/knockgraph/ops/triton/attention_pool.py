"""Kernels of attention pooling: a program takes the rows of 16 samples of one share of the genes, gene after gene.

Sums are taken per share and then over the shares, always in the same order: equal inputs give equal bits.
"""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.partial_sums import apart, partial_sums, parts_of
from knockgraph.ops.triton.gelu import gelu_and_slope, rounded_anyway
from knockgraph.ops.triton.spmm import as_factors

# With 29 samples the gradient's programs fill an H200, three on each SM, twice.
_SAMPLES = 16
_SHARES = 396


@triton.jit
def _gate(weight, bias, out, c, hidden, C: tl.constexpr):
    """W transposed, in the type in which it is multiplied, and a and u as rows."""
    w = tl.load(weight + hidden[None, :] * C + c[:, None])
    return w, tl.load(bias + hidden).to(tl.float32)[None, :], tl.load(out + hidden).to(tl.float32)[None, :]


@triton.jit
def _logits(
    x,
    keep,
    weight,
    bias,
    out,
    bias_out,
    logits,
    rows,
    batch,
    per_share,
    C: tl.constexpr,
    H: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    sample = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
    real = sample < batch
    c = tl.arange(0, C)
    hidden = tl.arange(0, H)
    w, b, u = _gate(weight, bias, out, c, hidden, C)
    start = tl.program_id(0) * per_share
    for row in range(start, tl.minimum(start + per_share, rows)):
        at = tl.cast(row, tl.int64) * batch + sample
        kept = real & (tl.load(keep + at, mask=real, other=0) != 0)
        h = tl.load(x + at[:, None] * C + c[None, :], mask=kept[:, None], other=0.0).to(w.dtype)
        g, _ = gelu_and_slope(tl.dot(h, w, input_precision=PRECISION) + b, FAST)
        value = tl.sum(g * u, 1) + tl.load(bias_out).to(tl.float32)
        # Not -inf: a sample without any row would become NaN.
        tl.store(logits + sample.to(tl.int64) * rows + row, tl.where(kept, value, -3.4028234e38), mask=real)


@triton.jit
def _mean(x, keep, share, sums, rows, batch, per_share, C: tl.constexpr, SAMPLES: tl.constexpr):
    sample = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
    real = sample < batch
    c = tl.arange(0, C)
    total = tl.zeros([SAMPLES, C], dtype=tl.float32)
    start = tl.program_id(0) * per_share
    for row in range(start, tl.minimum(start + per_share, rows)):
        at = tl.cast(row, tl.int64) * batch + sample
        kept = real & (tl.load(keep + at, mask=real, other=0) != 0)
        h = tl.load(x + at[:, None] * C + c[None, :], mask=kept[:, None], other=0.0).to(tl.float32)
        total += h * tl.load(share + sample.to(tl.int64) * rows + row, mask=kept, other=0.0)[:, None]
    place = (tl.program_id(0) * batch + sample)[:, None] * C + c[None, :]
    tl.store(sums + place, total, mask=real[:, None])


@triton.jit
def _backward(
    x,
    keep,
    weight,
    bias,
    out,
    share,
    z,
    dz,
    dx,
    d_weight,
    d_bias,
    d_out,
    d_bias_out,
    rows,
    batch,
    per_share,
    per_sum,
    C: tl.constexpr,
    H: tl.constexpr,
    FAST: tl.constexpr,
    PRECISION: tl.constexpr,
    SAMPLES: tl.constexpr,
):
    r"""With the shares w of the rows: :math:`dx = w\,dz + W^\top \dots`, and of a logit
    :math:`w\,(dz \cdot x - dz \cdot z)`.
    """
    sample = tl.program_id(1) * SAMPLES + tl.arange(0, SAMPLES)
    real = sample < batch
    c = tl.arange(0, C)
    hidden = tl.arange(0, H)
    w, b, u = _gate(weight, bias, out, c, hidden, C)
    of_sample = sample[:, None] * C + c[None, :]
    grad = tl.load(dz + of_sample, mask=real[:, None], other=0.0)
    along = tl.sum(grad * tl.load(z + of_sample, mask=real[:, None], other=0.0), 1)
    g_weight = tl.zeros([C, H], dtype=tl.float32)
    g_bias = tl.zeros([H], dtype=tl.float32)
    g_out = tl.zeros([H], dtype=tl.float32)
    g_logit = tl.zeros([SAMPLES], dtype=tl.float32)
    start = tl.program_id(0) * per_share
    for row in range(start, tl.minimum(start + per_share, rows)):
        at = tl.cast(row, tl.int64) * batch + sample
        kept = real & (tl.load(keep + at, mask=real, other=0) != 0)
        place = at[:, None] * C + c[None, :]
        full = tl.load(x + place, mask=kept[:, None], other=0.0).to(tl.float32)
        part = tl.load(share + sample.to(tl.int64) * rows + row, mask=kept, other=0.0)
        d_logit = part * (tl.sum(grad * full, 1) - along)
        h = full.to(w.dtype)
        g, slope = gelu_and_slope(tl.dot(h, w, input_precision=PRECISION) + b, FAST)
        d_hidden = d_logit[:, None] * u * slope
        g_logit += d_logit
        g_out += tl.sum(d_logit[:, None] * g, 0)
        g_bias += tl.sum(d_hidden, 0)
        d_hidden = d_hidden.to(w.dtype)
        g_weight = tl.dot(tl.trans(h), d_hidden, g_weight, input_precision=PRECISION)
        found = part[:, None] * grad + tl.dot(d_hidden, tl.trans(w), input_precision=PRECISION)
        found = tl.where(kept[:, None], found, 0.0)
        tl.store(dx + place, found.to(dx.dtype.element_ty), mask=real[:, None])
    to = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * per_sum
    tl.store(d_weight + to + hidden[None, :] * C + c[:, None], g_weight)
    tl.store(d_bias + to + hidden, g_bias)
    tl.store(d_out + to + hidden, g_out)
    tl.store(d_bias_out + to, tl.sum(g_logit, 0))


def forward(x: Tensor, keep: Tensor, gate: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """The means [batch, channels], float32, and the share of each row in them, [batch, rows].

    Args:
        x: [rows, batch, channels].
        keep: Bool [rows, batch].
        gate: Weight [hidden, channels] of the type in which it is multiplied, bias [hidden], weight [hidden] and
            bias [1] of the second map.
    """
    rows, batch, channels = x.shape
    logits = torch.empty(batch, rows, device=x.device)
    grid, per_share = _grid(rows, batch)
    with torch.cuda.device_of(x):
        _logits[grid](x, as_factors(keep), *gate, logits, rows, batch, per_share, **_shape(gate))
        share = logits.softmax(1)
        sums = torch.empty(grid[0], batch, channels, device=x.device)
        _mean[grid](x, as_factors(keep), share, sums, rows, batch, per_share, C=channels, SAMPLES=_SAMPLES)
    return sums.sum(0), share


def backward(x: Tensor, keep: Tensor, gate: tuple[Tensor, ...], z: Tensor, share: Tensor, dz: Tensor) -> list[Tensor]:
    """Gradients of x (its type) and of the gate (float32)."""
    rows, batch, _ = x.shape
    dx = torch.empty_like(x)
    grid, per_share = _grid(rows, batch)
    shapes = [tuple(part.shape) for part in gate]
    whole, parts = partial_sums(x, grid[0] * grid[1], *shapes)
    with torch.cuda.device_of(x):
        _backward[grid](
            x,
            as_factors(keep),
            *gate[:3],
            share,
            z,
            dz,
            dx,
            *parts,
            rows,
            batch,
            per_share,
            whole.shape[1],
            **_shape(gate),
        )
    return [dx, *apart(parts_of(whole.sum(0), *shapes))]


def _grid(rows: int, batch: int) -> tuple[tuple[int, int], int]:
    """Shares of the rows and of the samples, and how many rows a share has."""
    per_share = triton.cdiv(rows, _SHARES)
    return (triton.cdiv(rows, per_share), triton.cdiv(batch, _SAMPLES)), per_share


def _shape(gate: tuple[Tensor, ...]) -> dict[str, Any]:
    hidden, channels = gate[0].shape
    return {
        "C": channels,
        "H": hidden,
        "FAST": rounded_anyway(gate[0]),
        "PRECISION": "ieee" if gate[0].dtype == torch.float32 else "tf32",
        "SAMPLES": _SAMPLES,
    }
