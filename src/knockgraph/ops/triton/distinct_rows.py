"""Kernels that find, take and spread the rows of a first layer that differ."""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 32
_NEIGHBOURS = 128
# Programs that share the neighbours of one deleted gene.
_SPLITS = 8


@triton.jit
def _mark(ptr, index, genes, samples, touched, num_genes, batch, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    entry = tl.program_id(0)
    gene = tl.load(genes + entry)
    sample = tl.load(samples + entry)
    end = tl.load(ptr + gene + 1)
    lane = tl.arange(0, WIDTH)
    one = tl.full([WIDTH], 1, dtype=tl.uint8)
    for i in range(tl.load(ptr + gene) + tl.program_id(1) * WIDTH, end, SPLITS * WIDTH):
        here = i + lane < end
        row = tl.load(index + i + lane, mask=here, other=0) % num_genes
        tl.store(touched + row.to(tl.int64) * batch + sample, one, mask=here)


@triton.jit
def _copy(
    x,
    rows,
    count,
    y,
    total,
    channels,
    FORTH: tl.constexpr,
    COUNTED: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = total
    if COUNTED:
        real = tl.load(count)
    if tl.program_id(0) * ROWS >= real:
        return
    inside = place < real
    layer = tl.program_id(1).to(tl.int64)
    row = tl.load(rows + place, mask=inside, other=0).to(tl.int64)
    taken = (layer * total + place.to(tl.int64)) * channels
    full = (layer * total + row) * channels
    for start in range(0, channels, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        mask = inside[:, None] & (channel < channels)[None, :]
        if FORTH:
            value = tl.load(x + full[:, None] + channel[None, :], mask=mask, other=0.0)
            tl.store(y + taken[:, None] + channel[None, :], value, mask=mask)
        else:
            value = tl.load(x + taken[:, None] + channel[None, :], mask=mask, other=0.0)
            tl.store(y + full[:, None] + channel[None, :], value, mask=mask)


@triton.jit
def _sum_back(grad, slot, touched, out, batch, channels, SUM: tl.constexpr, WIDTH: tl.constexpr):
    gene = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = channel < channels
    total = tl.zeros([WIDTH], dtype=SUM)
    shared = tl.full([], -1, dtype=tl.int32)
    for b in range(0, batch):
        row = gene * batch + b
        value = tl.load(grad + row * channels + channel, mask=inside, other=0.0)
        place = tl.load(slot + row)
        flag = tl.load(touched + row).to(tl.int32)
        alone = (flag + tl.zeros([WIDTH], dtype=tl.int32)) != 0
        tl.store(out + place.to(tl.int64) * channels + channel, value, mask=inside & alone)
        total += tl.where(alone, 0.0, value.to(SUM))
        shared = tl.where(flag != 0, shared, place)
    where = shared.to(tl.int64) * channels + channel  # negative if all rows are touched
    tl.store(out + where, total.to(out.dtype.element_ty), mask=inside & (where >= 0))


def mark(ptr: Tensor, index: Tensor, genes: Tensor, samples: Tensor, touched: Tensor) -> Tensor:
    """``touched`` with the genes that the deleted ones send to; ``ptr`` and ``index`` are the table by source."""
    marks = touched.to(torch.uint8)
    with torch.cuda.device_of(touched):
        _mark[(genes.numel(), _SPLITS)](
            ptr,
            index,
            genes,
            samples,
            marks,
            touched.shape[0],
            touched.shape[1],
            SPLITS=_SPLITS,
            WIDTH=_NEIGHBOURS,
        )
    return marks.bool()


def copy_rows(x: Tensor, rows: Tensor, count: Tensor | None, forth: bool) -> Tensor:
    """Forth: ``x[:, rows]`` into room for all; back: into zeros, each row to its own place. Without a count, all."""
    layers, total, channels = x.shape
    y = torch.empty_like(x) if forth else torch.zeros_like(x)
    with torch.cuda.device_of(x):
        _copy[(triton.cdiv(rows.numel(), _ROWS), layers)](
            x,
            rows,
            count,
            y,
            total,
            channels,
            FORTH=forth,
            COUNTED=count is not None,
            ROWS=_ROWS,
            WIDTH=_width(channels),
        )
    return y


def sum_rows(grad: Tensor, slot: Tensor, touched: Tensor, batch: int) -> Tensor:
    """The transpose of ``y[slot]``: rows with a place of their own are copied, the others of a gene summed in order."""
    total, channels = grad.shape
    out = torch.empty_like(grad)
    width = _width(channels)
    with torch.cuda.device_of(grad):
        _sum_back[(total // batch, triton.cdiv(channels, width))](
            grad,
            slot,
            touched.view(torch.uint8),
            out,
            batch,
            channels,
            SUM=tl.float64 if grad.dtype == torch.float64 else tl.float32,
            WIDTH=width,
        )
    return out


def _width(channels: int) -> int:
    return min(64, int(triton.next_power_of_2(channels)))
