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
def _repeated(x, TIMES: tl.constexpr):
    """[n] -> [times · n], one after the other."""
    return tl.reshape(tl.broadcast_to(x[None, :], [TIMES, x.shape[0]]), [TIMES * x.shape[0]])


@triton.jit
def _tile(at, inside, LENGTH: tl.constexpr, SUM: tl.constexpr):
    """States at [length · n, width] as [length, n, width]. Loaded with two axes, a row's lanes lie side by side and the
    neighbours in registers, whatever Triton's version makes of three.
    """
    values = tl.load(at, mask=inside, other=0.0).to(SUM)
    return tl.reshape(values, [LENGTH, values.shape[0] // LENGTH, values.shape[1]])


@triton.jit
def _of_groups(x, SAMPLES: tl.constexpr):
    """[neighbours, heads] -> [neighbours, samples · heads], the same for all samples."""
    wide = tl.broadcast_to(x[:, None, :], [x.shape[0], SAMPLES, x.shape[1]])
    return tl.reshape(wide, [x.shape[0], SAMPLES * x.shape[1]])


@triton.jit
def _of_heads(x, SAMPLES: tl.constexpr, HEADS: tl.constexpr):
    """[neighbours, samples · heads] -> [neighbours, heads], summed over the samples."""
    return tl.sum(tl.reshape(x, [x.shape[0], SAMPLES, HEADS]), axis=1)


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
    SHARED: tl.constexpr,
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
    columns = batch * heads * channels
    real_channel = (channel < channels)[None, :]
    real = there[:, None] & real_channel
    inner = (group * channels)[:, None] + channel[None, :]
    steep = tl.load(slope)
    # Where all samples share the states, these have no axis for samples, and logits are made once for all of them.
    number = tl.arange(0, HEADS)
    narrow = (number * channels)[:, None] + channel[None, :]
    is_head = (number < heads)[:, None] & real_channel
    # Neighbours × samples · heads as one axis, and neighbours × heads.
    far = tl.arange(0, NEIGHBOURS * SAMPLES * HEADS) // (SAMPLES * HEADS)
    far_sample = _repeated(sample, NEIGHBOURS)
    near = tl.arange(0, NEIGHBOURS * HEADS) // HEADS
    near_head = _repeated(number, NEIGHBOURS)
    if SHARED:
        width = heads * channels
        a = tl.load(attention + narrow, mask=is_head, other=0.0)
    else:
        width = columns
        a = tl.load(attention + (head * channels)[:, None] + channel[None, :], mask=real, other=0.0)
    kept_row = there
    if MASKED_OUT:
        kept_row = kept_row & (tl.load(keep_out + row * batch + sample, mask=kept_row, other=0) != 0)
    offset = row * columns
    if SHARED:
        t = tl.load(target + row * width + narrow, mask=is_head, other=0.0).to(SUM)
    else:
        t = tl.load(target + offset + inner, mask=kept_row[:, None] & real, other=0.0).to(SUM)
    low = a * steep
    far_row = _repeated(kept_row, NEIGHBOURS)
    # The product comes last: Triton then knows that it is a multiple of the channels, and reads wide.
    far_within = _repeated(head if SHARED else group, NEIGHBOURS) * channels
    peak = tl.full([SAMPLES * HEADS], NONE, dtype=SUM)
    total = tl.zeros([SAMPLES * HEADS], dtype=SUM)
    result = tl.zeros([SAMPLES * HEADS, WIDTH], dtype=SUM)
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    for i in range(start, end, NEIGHBOURS):
        here = (i + far < end) & far_row
        j = tl.load(index + i + far, mask=here, other=0)
        j = j.to(tl.int64) if WIDE else j
        if MASKED_IN:
            here = here & (tl.load(keep_in + j * batch + far_sample, mask=here, other=0) != 0)
        kept = tl.reshape(here, [NEIGHBOURS, SAMPLES * HEADS])
        at = source + (j * width + far_within)[:, None] + channel[None, :]
        s = _tile(at, here[:, None] & real_channel, NEIGHBOURS, SUM)
        if SHARED:
            once = (i + near < end) & (near_head < heads)
            j = tl.load(index + i + near, mask=once, other=0)
            at = source + (j * width + near_head * channels)[:, None] + channel[None, :]
            z = _tile(at, once[:, None] & real_channel, NEIGHBOURS, SUM) + t[None, :, :]
        else:
            z = s + t[None, :, :]
        logit = tl.sum(z * tl.where(z > 0, a[None, :, :], low[None, :, :]), axis=2)
        if SHARED:
            logit = _of_groups(logit, SAMPLES)
        logit = tl.where(kept, logit, NONE)
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
    SHARED: tl.constexpr,
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
    columns = batch * heads * channels
    real_channel = (channel < channels)[None, :]
    real = there[:, None] & real_channel
    inner = (group * channels)[:, None] + channel[None, :]
    steep = tl.load(slope)
    # Where all samples share the states, these have no axis for samples, and logits are made once for all of them.
    number = tl.arange(0, HEADS)
    narrow = (number * channels)[:, None] + channel[None, :]
    is_head = (number < heads)[:, None] & real_channel
    # Neighbours × samples · heads as one axis, and neighbours × heads.
    far = tl.arange(0, NEIGHBOURS * SAMPLES * HEADS) // (SAMPLES * HEADS)
    far_sample = _repeated(sample, NEIGHBOURS)
    near = tl.arange(0, NEIGHBOURS * HEADS) // HEADS
    near_head = _repeated(number, NEIGHBOURS)
    if SHARED:
        width = heads * channels
        a = tl.load(attention + narrow, mask=is_head, other=0.0)
    else:
        width = columns
        a = tl.load(attention + (head * channels)[:, None] + channel[None, :], mask=real, other=0.0)
    of_row = row * (batch * heads)
    norm = tl.load(lse + of_row + group, mask=there, other=float("inf"))
    kept_row = norm != float("inf")
    offset = row * columns
    inside_row = kept_row[:, None] & real
    if SHARED:
        t = tl.load(target + row * width + narrow, mask=is_head, other=0.0).to(SUM)
    else:
        t = tl.load(target + offset + inner, mask=inside_row, other=0.0).to(SUM)
    dy = tl.load(grad + offset + inner, mask=inside_row, other=0.0).to(SUM)
    expected = tl.sum(dy * tl.load(y + offset + inner, mask=inside_row, other=0.0).to(SUM), axis=1)
    tl.store(mean + of_row + group, expected, mask=there)
    far_row = _repeated(kept_row, NEIGHBOURS)
    # The product comes last: Triton then knows that it is a multiple of the channels, and reads wide.
    far_within = _repeated(head if SHARED else group, NEIGHBOURS) * channels
    dt = tl.zeros(a.shape, dtype=SUM)
    da = tl.zeros(a.shape, dtype=SUM)
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    for i in range(start, end, NEIGHBOURS):
        here = (i + far < end) & far_row
        j = tl.load(index + i + far, mask=here, other=0)
        j = j.to(tl.int64) if WIDE else j
        if MASKED_IN:
            here = here & (tl.load(keep_in + j * batch + far_sample, mask=here, other=0) != 0)
        kept = tl.reshape(here, [NEIGHBOURS, SAMPLES * HEADS])
        at = source + (j * width + far_within)[:, None] + channel[None, :]
        s = _tile(at, here[:, None] & real_channel, NEIGHBOURS, SUM)
        if SHARED:
            once = (i + near < end) & (near_head < heads)
            j = tl.load(index + i + near, mask=once, other=0)
            at = source + (j * width + near_head * channels)[:, None] + channel[None, :]
            z = _tile(at, once[:, None] & real_channel, NEIGHBOURS, SUM) + t[None, :, :]
        else:
            z = s + t[None, :, :]
        slant = tl.where(z > 0, 1.0, steep)
        z = z * slant
        logit = tl.sum(z * a[None, :, :], axis=2)
        if SHARED:
            logit = _of_groups(logit, SAMPLES)
        share = tl.exp(tl.where(kept, logit, float("-inf")) - norm[None, :])
        step = share * (tl.sum(s * dy[None, :, :], axis=2) - expected[None, :])
        if SHARED:
            step = _of_heads(step, SAMPLES, HEADS)
        dt += tl.sum(step[:, :, None] * slant, axis=0)
        da += tl.sum(step[:, :, None] * z, axis=0)
    # One row of partial sums per program: adding them up later keeps the order fixed.
    part = (row * tl.num_programs(1) + tl.program_id(1)) * heads * channels
    value = (dt * a).to(grad_target.dtype.element_ty)
    if SHARED:
        tl.store(grad_target + part + narrow, value, mask=is_head)
    else:
        tl.store(grad_target + offset + inner, value, mask=real)
        da = tl.sum(tl.reshape(da, [SAMPLES, HEADS, WIDTH]), axis=0)
    tl.store(partial + part + narrow, da, mask=is_head)


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
    SHARED: tl.constexpr,
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
    columns = batch * heads * channels
    real_channel = (channel < channels)[None, :]
    real = there[:, None] & real_channel
    inner = (group * channels)[:, None] + channel[None, :]
    steep = tl.load(slope)
    # Where all samples share the states, these have no axis for samples, and logits are made once for all of them.
    number = tl.arange(0, HEADS)
    narrow = (number * channels)[:, None] + channel[None, :]
    is_head = (number < heads)[:, None] & real_channel
    # Neighbours × samples · heads as one axis, and neighbours × heads.
    far = tl.arange(0, NEIGHBOURS * SAMPLES * HEADS) // (SAMPLES * HEADS)
    far_group = _repeated(group, NEIGHBOURS)
    near = tl.arange(0, NEIGHBOURS * HEADS) // HEADS
    near_head = _repeated(number, NEIGHBOURS)
    if SHARED:
        width = heads * channels
        within = (head * channels)[:, None] + channel[None, :]
        a = tl.load(attention + narrow, mask=is_head, other=0.0)
    else:
        width = columns
        within = inner
        a = tl.load(attention + (head * channels)[:, None] + channel[None, :], mask=real, other=0.0)
    kept_row = there
    if MASKED_IN:
        kept_row = kept_row & (tl.load(keep_in + row * batch + sample, mask=kept_row, other=0) != 0)
    offset = row * columns
    s = tl.load(source + row * width + within, mask=kept_row[:, None] & real, other=0.0).to(SUM)
    once = s
    if SHARED:
        once = tl.load(source + row * width + narrow, mask=is_head, other=0.0).to(SUM)
    low = a * steep
    ds = tl.zeros([SAMPLES * HEADS, WIDTH], dtype=SUM)
    of_logits = tl.zeros(a.shape, dtype=SUM)
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    far_row = _repeated(kept_row, NEIGHBOURS)
    for k in range(start, end, NEIGHBOURS):
        here = (k + far < end) & far_row
        i = tl.load(index + k + far, mask=here, other=0)
        i = i.to(tl.int64) if WIDE else i
        groups = i * (batch * heads) + far_group
        norm = tl.load(lse + groups, mask=here, other=float("inf"))
        here = here & (norm != float("inf"))
        kept = tl.reshape(here, [NEIGHBOURS, SAMPLES * HEADS])
        expected = tl.reshape(tl.load(mean + groups, mask=here, other=0.0), [NEIGHBOURS, SAMPLES * HEADS])
        norm = tl.reshape(norm, [NEIGHBOURS, SAMPLES * HEADS])
        at = (groups * channels)[:, None] + channel[None, :]
        inside = here[:, None] & real_channel
        if SHARED:
            whole = (k + near < end) & (near_head < heads)
            i = tl.load(index + k + near, mask=whole, other=0)
            of_head = (i * width + near_head * channels)[:, None] + channel[None, :]
            t = _tile(target + of_head, whole[:, None] & real_channel, NEIGHBOURS, SUM)
        else:
            t = _tile(target + at, inside, NEIGHBOURS, SUM)
        dy = _tile(grad + at, inside, NEIGHBOURS, SUM)
        z = once[None, :, :] + t
        weight = tl.where(z > 0, a[None, :, :], low[None, :, :])
        logit = tl.sum(z * weight, axis=2)
        if SHARED:
            logit = _of_groups(logit, SAMPLES)
        share = tl.exp(tl.where(kept, logit, float("-inf")) - norm)
        step = share * (tl.sum(s[None, :, :] * dy, axis=2) - expected)
        if SHARED:
            ds += tl.sum(share[:, :, None] * dy, axis=0)
            of_logits += tl.sum(_of_heads(step, SAMPLES, HEADS)[:, :, None] * weight, axis=0)
        else:
            ds += tl.sum(share[:, :, None] * dy + step[:, :, None] * weight, axis=0)
    if SHARED:
        part = (row * tl.num_programs(1) + tl.program_id(1)) * heads * channels
        value = of_logits + tl.sum(tl.reshape(ds, [SAMPLES, HEADS, WIDTH]), axis=0)
        tl.store(grad_source + part + narrow, value, mask=is_head)
    else:
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
    batch: int | None = None,
) -> tuple[Tensor, Tensor]:
    """The result and the log-sum-exp of its logits, which is +inf where there is nothing to attend to.

    With a ``batch``, source and target are [genes, heads, channels], shared by so many samples.
    """
    heads, channels = attention.shape
    rows, shared = target.shape[0], batch is not None
    batch = target.shape[1] if batch is None else batch
    y = target.new_empty(rows, batch, heads, channels)
    lse = attention.new_empty(rows, batch, heads)
    launch = _launch(y, shared)
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
    rows, batch, heads, channels = y.shape
    shared = target.dim() == 3
    launch = _launch(y, shared)
    programs = triton.cdiv(batch, launch["SAMPLES"])
    mean = torch.empty_like(lse)
    partial = attention.new_empty(rows, programs, heads, channels)
    if shared:  # sums over the samples, first over those of a program
        grad_source, grad_target = (attention.new_empty(len(x), *partial.shape[1:]) for x in (source, target))
    else:
        grad_source, grad_target = torch.empty_like(source), torch.empty_like(target)
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
            WIDE=grad.numel() > _INT32_MAX,
            **launch,
        )
    if shared:
        grad_source, grad_target = (x.sum(1).to(source.dtype) for x in (grad_source, grad_target))
    return grad_source, grad_target, partial.sum((0, 1))


def _launch(x: Tensor, shared: bool) -> dict[str, Any]:
    """Tile sizes for states like x: all heads' channels side by side, as many samples as fit a row, neighbours as they
    fit the tile. The more samples share their logits, the better.
    """
    heads, width = (triton.next_power_of_2(size) for size in x.shape[2:])
    columns = heads * width
    row = (2 if shared else 1) * _ROW_BYTES // x.element_size()
    samples = max(1, min(row // columns, triton.next_power_of_2(x.shape[1])))
    return {
        "WIDTH": width,
        "HEADS": heads,
        "SAMPLES": samples,
        "NEIGHBOURS": max(1, min(_NEIGHBOURS, _TILE // (samples * columns))),
        "SHARED": shared,
        "SUM": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "num_warps": _WARPS,
    }
