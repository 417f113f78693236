"""Sparse products as Triton kernels: one program per row and block of columns, several neighbours in flight.

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

from knockgraph.ops.backends.spmm_torch import winning_source
from knockgraph.ops.operator import CsrTable

# A program reads this many bytes of each neighbour's row and has this many neighbours in flight. Measured on an H200,
# nine yeast relations, batch 29 × 64 channels, bf16: forward 1.18 ms, transposed 1.04 ms. Narrower rows with more
# neighbours pay for the many short rows of the forward product (512 bytes × 16: 5.1 ms).
_ROW_BYTES = 2048
_NEIGHBOURS = 8
# Rows of one sample are so narrow that the longest, with thousands of neighbours, would keep all others waiting.
_NARROW = 128
_NEIGHBOURS_OF_NARROW = 32
_WARPS = 4
_INT32_MAX = 2**31 - 1


@triton.jit
def _scale_rows(
    x,
    scale,
    y,
    columns,
    batch,
    scale_rows,
    FILL,
    CHANNELS: tl.constexpr,
    FACTORS: tl.constexpr,
    IN_PLACE: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    factor = tl.load(scale + (row % scale_rows) * batch + column // CHANNELS, mask=inside, other=0)
    offset = row.to(tl.int64) * columns + column
    if IN_PLACE and not FACTORS:  # what is kept is there already
        left_out = tl.zeros([WIDTH], dtype=tl.float32) + FILL
        tl.store(y + offset, left_out.to(y.dtype.element_ty), mask=inside & (factor == 0))
    else:
        # Loaded even where it is left out: a mask that depends on the factor would break up the 16-byte loads.
        value = tl.load(x + offset, mask=inside, other=0.0)
        if FACTORS:
            value = value * factor
        tl.store(y + offset, tl.where(factor != 0, value, FILL).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _sum_rows(
    ptr,
    index,
    weight,
    order,
    x,
    scale,
    y,
    columns,
    batch,
    scale_rows,
    CHANNELS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SCALED: tl.constexpr,
    WIDE: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.load(order + tl.program_id(0))
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    lane = tl.arange(0, NEIGHBOURS)
    total = tl.zeros([NEIGHBOURS, WIDTH], dtype=SUM)
    source = tl.load(index + start + lane, mask=start + lane < end, other=0)
    for i in range(start, end, NEIGHBOURS):
        here = i + lane < end
        # Fetched one round ahead, so that the gathers below never wait for their addresses.
        ahead = tl.load(index + i + NEIGHBOURS + lane, mask=i + NEIGHBOURS + lane < end, other=0)
        offset = source.to(tl.int64) * columns if WIDE else source * columns
        value = tl.load(x + offset[:, None] + column[None, :], mask=here[:, None] & inside[None, :], other=0.0).to(SUM)
        if WEIGHTED:
            value *= tl.load(weight + i + lane, mask=here, other=0.0).to(SUM)[:, None]
        # Added lane by lane; the sum over lanes is taken once, at the end, always in the same order.
        total += value
        source = ahead
    result = tl.sum(total, axis=0)
    if SCALED:
        factor = tl.load(scale + (row % scale_rows) * batch + column // CHANNELS, mask=inside, other=0).to(SUM)
        result = tl.where(factor != 0, result * factor, 0.0)
    tl.store(y + row.to(tl.int64) * columns + column, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _extreme_rows(
    ptr,
    index,
    weight,
    order,
    x,
    keep,
    y,
    arg,
    columns,
    batch,
    keep_rows,
    NONE,
    CHANNELS: tl.constexpr,
    LARGEST: tl.constexpr,
    WEIGHTED: tl.constexpr,
    MASKED: tl.constexpr,
    WITH_ARG: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.load(order + tl.program_id(0))
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    lane = tl.arange(0, NEIGHBOURS)
    best = tl.full([NEIGHBOURS, WIDTH], NONE, dtype=SUM)
    first = tl.full([NEIGHBOURS, WIDTH], 2147483647, dtype=tl.int32)
    for i in range(start, end, NEIGHBOURS):
        here = i + lane < end
        source = tl.load(index + i + lane, mask=here, other=0).to(tl.int64)
        value = tl.load(
            x + source[:, None] * columns + column[None, :], mask=here[:, None] & inside[None, :], other=NONE
        ).to(SUM)
        if WEIGHTED:
            factor = tl.load(weight + i + lane, mask=here, other=1.0).to(SUM)
            # A source that was left out stays so, whatever the sign of its weight.
            left_out = value == NONE
            value = tl.where(left_out, NONE, tl.where(left_out, 0.0, value) * factor[:, None])
        better = value > best if LARGEST else value < best
        best = tl.where(better, value, best)
        first = tl.where(better, (i + lane)[:, None], first)
    result = tl.max(best, axis=0) if LARGEST else tl.min(best, axis=0)
    found = result != NONE
    if MASKED:
        found = found & (tl.load(keep + (row % keep_rows) * batch + column // CHANNELS, mask=inside, other=0) != 0)
    offset = row.to(tl.int64) * columns + column
    tl.store(y + offset, tl.where(found, result, 0.0).to(y.dtype.element_ty), mask=inside)
    if WITH_ARG:
        position = tl.min(tl.where(best == result[None, :], first, 2147483647), axis=0)
        tl.store(arg + offset, tl.where(found, position, -1), mask=inside)


@triton.jit
def _extreme_grad_rows(
    ptr,
    index,
    weight,
    order,
    grad,
    winner,
    out,
    columns,
    WEIGHTED: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.load(order + tl.program_id(0))
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    start = tl.load(ptr + row)
    end = tl.load(ptr + row + 1)
    lane = tl.arange(0, NEIGHBOURS)
    total = tl.zeros([NEIGHBOURS, WIDTH], dtype=SUM)
    for i in range(start, end, NEIGHBOURS):
        here = i + lane < end
        target = tl.load(index + i + lane, mask=here, other=0).to(tl.int64)
        offset = target[:, None] * columns + column[None, :]
        mask = here[:, None] & inside[None, :]
        won = tl.load(winner + offset, mask=mask, other=-1) == row
        value = tl.load(grad + offset, mask=won, other=0.0).to(SUM)
        if WEIGHTED:
            value *= tl.load(weight + i + lane, mask=here, other=0.0).to(SUM)[:, None]
        total += value
    result = tl.sum(total, axis=0)
    tl.store(out + row.to(tl.int64) * columns + column, result.to(out.dtype.element_ty), mask=inside)


def csr_sum(
    table: CsrTable, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """``scale_out ⊙ A(scale_in ⊙ x)``: the input is scaled in a pass of its own, the output as it is stored.

    Rows that the table's ``order`` leaves out are not written; ``out`` is where the others go.
    """
    # Scaling at the gather would load a factor for each of the many times a row is read; a pass reads it once.
    x = x if scale_in is None else scale_rows(x, scale_in)
    columns, batch, channels = x.shape[1] * x.shape[2], x.shape[1], x.shape[2]
    rows = table.ptr.numel() - 1
    y = x.new_empty(rows, batch, channels) if out is None else out
    scale = as_factors(scale_out)
    launch = row_launch(x, columns)
    with torch.cuda.device_of(x):
        _sum_rows[(table.order.numel(), triton.cdiv(columns, launch["WIDTH"]))](
            table.ptr,
            table.indices,
            table.weight,
            table.order,
            x,
            scale,
            y,
            columns,
            batch,
            rows if scale is None else scale.shape[0],
            CHANNELS=channels,
            WEIGHTED=table.weight is not None,
            SCALED=scale is not None,
            WIDE=x.numel() > _INT32_MAX,
            **launch,
        )
    return y


def csr_extreme(
    table: CsrTable, x: Tensor, keep_in: Tensor | None, keep_out: Tensor | None, largest: bool, with_arg: bool
) -> tuple[Tensor, Tensor]:
    """Largest or smallest kept message of each row, 0 for none, and the position of the first entry that attains it."""
    none = float("-inf") if largest else float("inf")
    x = x if keep_in is None else scale_rows(x, keep_in, none)
    columns, batch, channels = x.shape[1] * x.shape[2], x.shape[1], x.shape[2]
    rows = table.ptr.numel() - 1
    y = x.new_empty(rows, batch, channels)
    arg = torch.empty(y.shape if with_arg else (0,), dtype=torch.int32, device=x.device)
    keep = as_factors(keep_out)
    launch = row_launch(x, columns)
    with torch.cuda.device_of(x):
        _extreme_rows[(rows, triton.cdiv(columns, launch["WIDTH"]))](
            table.ptr,
            table.indices,
            table.weight,
            table.order,
            x,
            keep,
            y,
            arg,
            columns,
            batch,
            rows if keep is None else keep.shape[0],
            none,
            CHANNELS=channels,
            LARGEST=largest,
            WEIGHTED=table.weight is not None,
            MASKED=keep is not None,
            WITH_ARG=with_arg,
            **launch,
        )
    return y, arg


def csr_extreme_grad(transposed: CsrTable, index: Tensor, grad: Tensor, arg: Tensor) -> Tensor:
    """Every source collects the gradients of the rows it won: a gather, so there are no atomics."""
    columns = grad.shape[1] * grad.shape[2]
    rows = transposed.ptr.numel() - 1
    out = grad.new_empty(rows, *grad.shape[1:])
    winner = winning_source(index, arg)
    launch = row_launch(grad, columns)
    with torch.cuda.device_of(grad):
        _extreme_grad_rows[(rows, triton.cdiv(columns, launch["WIDTH"]))](
            transposed.ptr,
            transposed.indices,
            transposed.weight,
            transposed.order,
            grad,
            winner,
            out,
            columns,
            WEIGHTED=transposed.weight is not None,
            **launch,
        )
    return out


def scale_rows(x: Tensor, scale: Tensor, fill: float = 0.0, out: Tensor | None = None) -> Tensor:
    """``scale ⊙ x`` in one pass, ``fill`` where the scale is zero.

    Args:
        x: [k * rows, batch, channels], contiguous.
        scale: Bool or floating [rows, batch], repeated k times.
        fill: Value of the entries that are left out.
        out: Where the result goes, contiguous; may be ``x`` itself.
    """
    y = torch.empty_like(x) if out is None else out
    columns = x.shape[1] * x.shape[2]
    width = min(1024, triton.next_power_of_2(columns))
    with torch.cuda.device_of(x):
        _scale_rows[(x.shape[0], triton.cdiv(columns, width))](
            x,
            as_factors(scale),
            y,
            columns,
            x.shape[1],
            scale.shape[0],
            fill,
            CHANNELS=x.shape[2],
            FACTORS=scale.dtype != torch.bool,
            IN_PLACE=y is x,
            WIDTH=width,
        )
    return y


def as_factors(scale: Tensor | None) -> Tensor | None:
    """Contiguous factors; a bool keep-vector as bytes, which every version of Triton loads the same way."""
    if scale is None:
        return None
    scale = scale.contiguous()
    return scale.view(torch.uint8) if scale.dtype == torch.bool else scale


def row_launch(x: Tensor, columns: int) -> dict[str, Any]:
    """Tile sizes for a matrix with rows of ``columns`` elements of the type of ``x``."""
    width = min(_ROW_BYTES // x.element_size(), triton.next_power_of_2(columns))
    return {
        "WIDTH": width,
        "NEIGHBOURS": _NEIGHBOURS if width > _NARROW else _NEIGHBOURS_OF_NARROW,
        "SUM": tl.float64 if x.dtype == torch.float64 else tl.float32,
        "num_warps": _WARPS,
    }
