"""Attention as Triton kernels: one warp per row and block of samples, several neighbours in flight.

A warp alone never waits for others: sums over a row stay in its registers or are exchanged between its lanes.
Imported on first use only. The same kernels run on a CPU through Triton's interpreter (``TRITON_INTERPRET=1``).
"""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.triton.spmm import as_factors

# A program reads this many bytes of each neighbour's row, and at most this many neighbours at once, so many that a tile
# with its logits, states and sums stays in the registers.
_ROW_BYTES = 512
_NEIGHBOURS = 8
_TILE = 2048
_WARPS = 1
_INT32_MAX = 2**31 - 1


@triton.jit
def _attend_rows(
    ptr,
    index,
    order,
    source,
    target,
    attention,
    slope,
    keep_in,
    keep_out,
    y,
    lse,
    batch,
    heads,
    channels,
    MASKED_IN: tl.constexpr,
    MASKED_OUT: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    SAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    NONE = float("-inf")
    row = tl.load(order + tl.program_id(0)).to(tl.int64)
    # Samples and heads as one axis: a neighbour's states of several samples lie side by side.
    place = tl.arange(0, SAMPLES * HEADS)
    sample = tl.program_id(1) * SAMPLES + place // HEADS
    head = place % HEADS
    there = (sample < batch) & (head < heads)
    group = sample * heads + head
    channel = tl.arange(0, WIDTH)
    lane = tl.arange(0, NEIGHBOURS)
    columns = batch * heads * channels
    real = there[:, None] & (channel < channels)[None, :]
    inner = (group * channels)[:, None] + channel[None, :]
    a = tl.load(attention + (head * channels)[:, None] + channel[None, :], mask=real, other=0.0)
    steep = tl.load(slope)
    kept_row = there
    if MASKED_OUT:
        kept_row = kept_row & (tl.load(keep_out + row * batch + sample, mask=kept_row, other=0) != 0)
    offset = row * columns
    t = tl.load(target + offset + inner, mask=kept_row[:, None] & real, other=0.0).to(SUM)
    low = a * steep
    peak = tl.full([SAMPLES * HEADS], NONE, dtype=SUM)
    total = tl.zeros([SAMPLES * HEADS], dtype=SUM)
    result = tl.zeros([SAMPLES * HEADS, WIDTH], dtype=SUM)
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    for i in range(start, end, NEIGHBOURS):
        here = i + lane < end
        j = tl.load(index + i + lane, mask=here, other=0)
        j = j.to(tl.int64) if WIDE else j
        kept = here[:, None] & kept_row[None, :]
        if MASKED_IN:
            kept = kept & (tl.load(keep_in + (j * batch)[:, None] + sample[None, :], mask=kept, other=0) != 0)
        base = j * columns
        inside = kept[:, :, None] & real[None, :, :]
        s = tl.load(source + base[:, None, None] + inner[None, :, :], mask=inside, other=0.0).to(SUM)
        z = s + t[None, :, :]
        logit = tl.where(kept, tl.sum(z * tl.where(z > 0, a[None, :, :], low[None, :, :]), axis=2), NONE)
        new_peak = tl.maximum(peak, tl.max(logit, axis=0))
        level = tl.where(new_peak == NONE, 0.0, new_peak)
        share = tl.exp(logit - level[None, :])
        fade = tl.exp(peak - level)
        total = total * fade + tl.sum(share, axis=0)
        result = result * fade[:, None] + tl.sum(share[:, :, None] * s, axis=0)
        peak = new_peak
    found = total != 0
    total = tl.where(found, total, 1.0)
    value = tl.where(found[:, None], result / total[:, None], 0.0)
    tl.store(y + offset + inner, value.to(y.dtype.element_ty), mask=real)
    top = tl.where(found, peak + tl.log(total), float("inf"))
    tl.store(lse + row * (batch * heads) + group, top, mask=there)


@triton.jit
def _grad_of_targets(
    ptr,
    index,
    order,
    source,
    target,
    attention,
    slope,
    keep_in,
    y,
    lse,
    grad,
    mean,
    grad_target,
    partial,
    batch,
    heads,
    channels,
    MASKED_IN: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    SAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.load(order + tl.program_id(0)).to(tl.int64)
    # Samples and heads as one axis: a neighbour's states of several samples lie side by side.
    place = tl.arange(0, SAMPLES * HEADS)
    sample = tl.program_id(1) * SAMPLES + place // HEADS
    head = place % HEADS
    there = (sample < batch) & (head < heads)
    group = sample * heads + head
    channel = tl.arange(0, WIDTH)
    lane = tl.arange(0, NEIGHBOURS)
    columns = batch * heads * channels
    real = there[:, None] & (channel < channels)[None, :]
    inner = (group * channels)[:, None] + channel[None, :]
    a = tl.load(attention + (head * channels)[:, None] + channel[None, :], mask=real, other=0.0)
    steep = tl.load(slope)
    of_row = row * (batch * heads)
    norm = tl.load(lse + of_row + group, mask=there, other=float("inf"))
    kept_row = norm != float("inf")
    offset = row * columns
    inside_row = kept_row[:, None] & real
    t = tl.load(target + offset + inner, mask=inside_row, other=0.0).to(SUM)
    dy = tl.load(grad + offset + inner, mask=inside_row, other=0.0).to(SUM)
    expected = tl.sum(dy * tl.load(y + offset + inner, mask=inside_row, other=0.0).to(SUM), axis=1)
    tl.store(mean + of_row + group, expected, mask=there)
    dt = tl.zeros([SAMPLES * HEADS, WIDTH], dtype=SUM)
    da = tl.zeros([SAMPLES * HEADS, WIDTH], dtype=SUM)
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    for i in range(start, end, NEIGHBOURS):
        here = i + lane < end
        j = tl.load(index + i + lane, mask=here, other=0)
        j = j.to(tl.int64) if WIDE else j
        kept = here[:, None] & kept_row[None, :]
        if MASKED_IN:
            kept = kept & (tl.load(keep_in + (j * batch)[:, None] + sample[None, :], mask=kept, other=0) != 0)
        base = j * columns
        inside = kept[:, :, None] & real[None, :, :]
        s = tl.load(source + base[:, None, None] + inner[None, :, :], mask=inside, other=0.0).to(SUM)
        z = s + t[None, :, :]
        slant = tl.where(z > 0, 1.0, steep)
        z = z * slant
        logit = tl.where(kept, tl.sum(z * a[None, :, :], axis=2), float("-inf"))
        share = tl.exp(logit - norm[None, :])
        step = share * (tl.sum(s * dy[None, :, :], axis=2) - expected[None, :])
        dt += tl.sum(step[:, :, None] * slant, axis=0)
        da += tl.sum(step[:, :, None] * z, axis=0)
    value = dt * a
    tl.store(grad_target + offset + inner, value.to(grad_target.dtype.element_ty), mask=real)
    # One row of partial sums per program: adding them up later keeps the order fixed.
    part = (row * tl.num_programs(1) + tl.program_id(1)) * heads * channels
    by_head = tl.sum(tl.reshape(da, [SAMPLES, HEADS, WIDTH]), axis=0)
    number = tl.arange(0, HEADS)
    at = partial + part + (number * channels)[:, None] + channel[None, :]
    tl.store(at, by_head, mask=(number < heads)[:, None] & (channel < channels)[None, :])


@triton.jit
def _grad_of_sources(
    ptr,
    index,
    order,
    source,
    target,
    attention,
    slope,
    keep_in,
    lse,
    grad,
    mean,
    grad_source,
    batch,
    heads,
    channels,
    MASKED_IN: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    SAMPLES: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.load(order + tl.program_id(0)).to(tl.int64)
    # Samples and heads as one axis: a neighbour's states of several samples lie side by side.
    place = tl.arange(0, SAMPLES * HEADS)
    sample = tl.program_id(1) * SAMPLES + place // HEADS
    head = place % HEADS
    there = (sample < batch) & (head < heads)
    group = sample * heads + head
    channel = tl.arange(0, WIDTH)
    lane = tl.arange(0, NEIGHBOURS)
    columns = batch * heads * channels
    real = there[:, None] & (channel < channels)[None, :]
    inner = (group * channels)[:, None] + channel[None, :]
    a = tl.load(attention + (head * channels)[:, None] + channel[None, :], mask=real, other=0.0)
    steep = tl.load(slope)
    kept_row = there
    if MASKED_IN:
        kept_row = kept_row & (tl.load(keep_in + row * batch + sample, mask=kept_row, other=0) != 0)
    offset = row * columns
    s = tl.load(source + offset + inner, mask=kept_row[:, None] & real, other=0.0).to(SUM)
    low = a * steep
    ds = tl.zeros([SAMPLES * HEADS, WIDTH], dtype=SUM)
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    for k in range(start, end, NEIGHBOURS):
        here = k + lane < end
        i = tl.load(index + k + lane, mask=here, other=0)
        i = i.to(tl.int64) if WIDE else i
        kept = here[:, None] & kept_row[None, :]
        groups = (i * (batch * heads))[:, None] + group[None, :]
        norm = tl.load(lse + groups, mask=kept, other=float("inf"))
        kept = kept & (norm != float("inf"))
        expected = tl.load(mean + groups, mask=kept, other=0.0)
        base = i * columns
        inside = kept[:, :, None] & real[None, :, :]
        t = tl.load(target + base[:, None, None] + inner[None, :, :], mask=inside, other=0.0).to(SUM)
        dy = tl.load(grad + base[:, None, None] + inner[None, :, :], mask=inside, other=0.0).to(SUM)
        z = s[None, :, :] + t
        weight = tl.where(z > 0, a[None, :, :], low[None, :, :])
        logit = tl.where(kept, tl.sum(z * weight, axis=2), float("-inf"))
        share = tl.exp(logit - norm)
        step = share * (tl.sum(s[None, :, :] * dy, axis=2) - expected)
        ds += tl.sum(share[:, :, None] * dy + step[:, :, None] * weight, axis=0)
    tl.store(grad_source + offset + inner, ds.to(grad_source.dtype.element_ty), mask=real)


def forward(
    ptr: Tensor,
    index: Tensor,
    order: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    keep_in: Tensor | None,
    keep_out: Tensor | None,
    slope: float,
) -> tuple[Tensor, Tensor]:
    """The result and the log-sum-exp of its logits, which is +inf where there is nothing to attend to."""
    rows, batch, heads, channels = target.shape
    y = torch.empty_like(target)
    lse = attention.new_empty(rows, batch, heads)
    launch = _launch(source)
    with torch.cuda.device_of(source):
        _attend_rows[(rows, triton.cdiv(batch, launch["SAMPLES"]))](
            ptr,
            index,
            order,
            source,
            target,
            attention,
            attention.new_full((1,), slope),
            as_factors(keep_in),
            as_factors(keep_out),
            y,
            lse,
            batch,
            heads,
            channels,
            MASKED_IN=keep_in is not None,
            MASKED_OUT=keep_out is not None,
            WIDE=source.numel() > _INT32_MAX,
            **launch,
        )
    return y, lse


def backward(
    ptr: Tensor,
    index: Tensor,
    order: Tensor,
    ptr_t: Tensor,
    index_t: Tensor,
    order_t: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    keep_in: Tensor | None,
    y: Tensor,
    lse: Tensor,
    grad: Tensor,
    slope: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of source, target and attention: each row gathers its own, so there are no atomics."""
    rows, batch, heads, channels = target.shape
    launch = _launch(source)
    programs = triton.cdiv(batch, launch["SAMPLES"])
    grad_source, grad_target = torch.empty_like(source), torch.empty_like(target)
    mean = torch.empty_like(lse)
    partial = attention.new_empty(rows, programs, heads, channels)
    keep = as_factors(keep_in)
    states = (source, target, attention, attention.new_full((1,), slope), keep)
    launch = {**launch, "MASKED_IN": keep is not None}
    with torch.cuda.device_of(source):
        _grad_of_targets[(rows, programs)](
            *(ptr, index, order),
            *states,
            *(y, lse, grad, mean, grad_target, partial),
            *(batch, heads, channels),
            WIDE=source.numel() > _INT32_MAX,
            **launch,
        )
        _grad_of_sources[(source.shape[0], programs)](
            *(ptr_t, index_t, order_t),
            *states,
            *(lse, grad, mean, grad_source),
            *(batch, heads, channels),
            WIDE=target.numel() > _INT32_MAX,
            **launch,
        )
    return grad_source, grad_target, partial.sum((0, 1))


def _launch(x: Tensor) -> dict[str, Any]:
    """Tile sizes: all heads' channels side by side, as many samples as fit a row, neighbours as they fit the tile."""
    heads, width = (triton.next_power_of_2(size) for size in x.shape[2:])
    columns = heads * width
    samples = max(1, min(_ROW_BYTES // x.element_size() // columns, triton.next_power_of_2(x.shape[1])))
    return {
        "WIDTH": width,
        "HEADS": heads,
        "SAMPLES": samples,
        "NEIGHBOURS": max(1, min(_NEIGHBOURS, _TILE // (samples * columns))),
        "SUM": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "num_warps": _WARPS,
    }
