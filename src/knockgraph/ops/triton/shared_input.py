"""Kernels of the shared-input product: nothing about the deletions has to be known on the host."""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.operator import CsrTable
from knockgraph.ops.triton.spmm import as_factors, csr_sum

_ROWS = 32
_NEIGHBOURS = 128
# Programs that share the neighbours of one deleted gene.
_SPLITS = 8


class Places(NamedTuple):
    """The rows (``gene · batch + sample``) that differ, see :class:`~knockgraph.ops.DistinctRows`.

    Args:
        held: int32 [num_genes · batch], the row that each place holds.
        own: int32 [num_genes · batch], the place of each row, ``num_genes · batch`` where another stands for it.
        number: int32 [1], how many places there are.
    """

    held: Tensor
    own: Tensor
    number: Tensor


@triton.jit
def _mark_neighbours(
    ptr, index, weight, genes, fresh, mark, rows, WEIGHTED: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr
):
    entry = tl.program_id(0)
    gene = tl.load(genes + entry)
    start = tl.load(ptr + gene)
    # A gene listed twice in one sample is deleted once.
    end = tl.where(tl.load(fresh + entry) != 0, tl.load(ptr + gene + 1), start)
    lane = tl.arange(0, WIDTH)
    for i in range(start + tl.program_id(1) * WIDTH, end, SPLITS * WIDTH):
        here = i + lane < end
        row = tl.load(index + i + lane, mask=here, other=0)
        value = tl.load(weight + i + lane, mask=here, other=0.0) if WEIGHTED else tl.full([WIDTH], 1, dtype=tl.uint8)
        tl.store(mark + entry.to(tl.int64) * rows + row, value, mask=here)


@triton.jit
def _subtract_deleted(
    base,
    x,
    mark,
    genes,
    entry_ptr,
    scale,
    y,
    rows,
    batch,
    channels,
    scale_rows,
    SCALED: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    sample = tl.program_id(0)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    real = row < rows
    inside = real[:, None] & (channel < channels)[None, :]
    long_row = row.to(tl.int64)
    result = tl.load(base + long_row[:, None] * channels + channel[None, :], mask=inside, other=0.0)
    for entry in range(tl.load(entry_ptr + sample), tl.load(entry_ptr + sample + 1)):
        gene = tl.load(genes + entry)
        edge = tl.load(mark + tl.cast(entry, tl.int64) * rows + row, mask=real, other=0).to(SUM)
        value = tl.load(x + gene * channels + channel, mask=channel < channels, other=0.0).to(SUM)
        result -= tl.where(edge[:, None] != 0, edge[:, None] * value[None, :], 0.0)
    if SCALED:
        factor = tl.load(scale + (row % scale_rows) * batch + sample, mask=real, other=0).to(SUM)[:, None]
        result = tl.where(factor != 0, result * factor, 0.0)
    offset = (long_row[:, None] * batch + sample) * channels + channel[None, :]
    tl.store(y + offset, result.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _subtract_in_places(
    base,
    x,
    mark,
    genes,
    entry_ptr,
    scale,
    y,
    held,
    count,
    rows,
    num_genes,
    batch,
    channels,
    scale_rows,
    SCALED: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """``_subtract_deleted`` for the rows (gene, sample) that are held, each in its place, of one relation."""
    start = tl.program_id(0) * ROWS
    real = tl.load(count)
    if start >= real:
        return
    place = start + tl.arange(0, ROWS)
    channel = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    inside = place < real
    within = inside[:, None] & (channel < channels)[None, :]
    which = tl.load(held + place, mask=inside, other=0)
    sample = which % batch
    row = tl.program_id(1) * num_genes + which // batch
    result = tl.load(base + row.to(tl.int64)[:, None] * channels + channel[None, :], mask=within, other=0.0)
    entry = tl.load(entry_ptr + sample, mask=inside, other=0)
    end = tl.load(entry_ptr + sample + 1, mask=inside, other=0)
    for _ in range(0, tl.max(end - entry)):
        there = entry < end
        gene = tl.load(genes + entry, mask=there, other=0)
        edge = tl.load(mark + entry.to(tl.int64) * rows + row, mask=there, other=0).to(SUM)
        sent = (edge != 0)[:, None]
        value = tl.load(x + gene[:, None] * channels + channel[None, :], mask=within & sent, other=0.0).to(SUM)
        result -= tl.where(sent, edge[:, None] * value, 0.0)
        entry += 1
    if SCALED:
        factor = tl.load(scale + (row % scale_rows) * batch + sample, mask=inside, other=0).to(SUM)[:, None]
        result = tl.where(factor != 0, result * factor, 0.0)
    offset = (tl.program_id(1).to(tl.int64) * num_genes * batch + place)[:, None] * channels + channel[None, :]
    tl.store(y + offset, result.to(y.dtype.element_ty), mask=within)


@triton.jit
def _begin(row, sample, real, places, num_genes, batch, channels, PLACED: tl.constexpr):
    """Where the row (relation and gene) of a sample begins, and whether it is there: another may stand for it."""
    row = row.to(tl.int64)
    if PLACED:
        place = tl.load(places + row % num_genes * batch + sample, mask=real, other=0)
        return (row // num_genes * num_genes * batch + place) * channels, real & (place < num_genes * batch)
    else:
        return (row * batch + sample) * channels, real


@triton.jit
def _sum_samples(
    grad,
    scale,
    places,
    total,
    rows,
    num_genes,
    batch,
    channels,
    scale_rows,
    PLACED: tl.constexpr,
    SCALED: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    real = row < rows
    inside = real[:, None] & (channel < channels)[None, :]
    result = tl.zeros([ROWS, WIDTH], dtype=SUM)
    for sample in range(0, batch):
        begin, there = _begin(row, sample, real, places, num_genes, batch, channels, PLACED)
        value = tl.load(grad + begin[:, None] + channel[None, :], mask=inside & there[:, None], other=0.0).to(SUM)
        if SCALED:
            factor = tl.load(scale + (row % scale_rows) * batch + sample, mask=real, other=0).to(SUM)[:, None]
            value = tl.where(factor != 0, value * factor, 0.0)
        result += value
    tl.store(total + row.to(tl.int64)[:, None] * channels + channel[None, :], result, mask=inside)


@triton.jit
def _grad_of_deleted(
    ptr,
    index,
    weight,
    genes,
    samples,
    fresh,
    grad,
    scale,
    places,
    out,
    num_genes,
    batch,
    channels,
    scale_rows,
    PLACED: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SCALED: tl.constexpr,
    SUM: tl.constexpr,
    NEIGHBOURS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    entry = tl.program_id(0)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    gene = tl.load(genes + entry)
    sample = tl.load(samples + entry)
    start = tl.load(ptr + gene)
    end = tl.where(tl.load(fresh + entry) != 0, tl.load(ptr + gene + 1), start)
    lane = tl.arange(0, NEIGHBOURS)
    total = tl.zeros([NEIGHBOURS, WIDTH], dtype=SUM)
    for i in range(start, end, NEIGHBOURS):
        here = i + lane < end
        row = tl.load(index + i + lane, mask=here, other=0).to(tl.int64)
        factor = tl.full([NEIGHBOURS], 1.0, dtype=SUM)
        if SCALED:
            factor = tl.load(scale + (row % scale_rows) * batch + sample, mask=here, other=0).to(SUM)
            here = here & (factor != 0)
        if WEIGHTED:
            factor *= tl.load(weight + i + lane, mask=here, other=0.0).to(SUM)
        begin, here = _begin(row, sample, here, places, num_genes, batch, channels, PLACED)
        mask = here[:, None] & (channel < channels)[None, :]
        value = tl.load(grad + begin[:, None] + channel[None, :], mask=mask, other=0.0).to(SUM)
        total += value * factor[:, None]
    result = tl.sum(total, axis=0)
    tl.store(out + entry.to(tl.int64) * channels + channel, result, mask=channel < channels)


def shared_sum(
    table: CsrTable,
    transposed: CsrTable,
    x: Tensor,
    genes: Tensor,
    samples: Tensor,
    fresh: Tensor,
    batch: int,
    scale_out: Tensor | None,
    places: Places | None = None,
) -> Tensor:
    """``scale_out ⊙ (Ax − A[:, P]x[P])``, each value rounded once.

    Args:
        table: ``A``, [rows, num_genes].
        transposed: Its transpose in one piece.
        x: [num_genes, channels].
        genes: int64 [total], deleted genes, sorted by sample.
        samples: int64 [total], their samples, ascending.
        fresh: Bool [total], False where a gene repeats an earlier one of its sample.
        batch: Number of samples.
        scale_out: Bool or floating [rows / k, batch], or None.
        places: Of each relation only the rows that differ, one after the other; ``None``: all rows.
    """
    rows, channels = table.ptr.numel() - 1, x.shape[1]
    sum_type, tl_type = _sum_type(x)
    base = torch.empty(rows, 1, channels, dtype=sum_type, device=x.device)
    csr_sum(table, x.unsqueeze(1), None, None, out=base)
    mark_type = torch.uint8 if transposed.weight is None else transposed.weight.dtype
    mark = torch.zeros(genes.numel(), rows, dtype=mark_type, device=x.device)
    entry_ptr = torch.searchsorted(samples, torch.arange(batch + 1, device=x.device), out_int32=True)
    y = x.new_empty(rows, batch, channels)
    scale = as_factors(scale_out)
    width = min(64, triton.next_power_of_2(channels))
    with torch.cuda.device_of(x):
        if genes.numel():
            _mark_neighbours[(genes.numel(), _SPLITS)](
                transposed.ptr,
                transposed.indices,
                transposed.weight,
                genes,
                as_factors(fresh),
                mark,
                rows,
                WEIGHTED=transposed.weight is not None,
                SPLITS=_SPLITS,
                WIDTH=_NEIGHBOURS,
            )
        shape = {"SCALED": scale is not None, "SUM": tl_type, "ROWS": _ROWS, "WIDTH": width}
        scale_rows = rows if scale is None else scale.shape[0]
        wide = triton.cdiv(channels, width)
        if places is None:
            _subtract_deleted[(batch, triton.cdiv(rows, _ROWS), wide)](
                base, x, mark, genes, entry_ptr, scale, y, rows, batch, channels, scale_rows, **shape
            )
        else:
            num_genes = x.shape[0]
            _subtract_in_places[(triton.cdiv(num_genes * batch, _ROWS), rows // num_genes, wide)](
                base,
                x,
                mark,
                genes,
                entry_ptr,
                scale,
                y,
                places.held,
                places.number,
                rows,
                num_genes,
                batch,
                channels,
                scale_rows,
                **shape,
            )
    return y


def shared_sum_grad(
    transposed: CsrTable,
    grad: Tensor,
    genes: Tensor,
    samples: Tensor,
    fresh: Tensor,
    scale_out: Tensor | None,
    places: Places | None = None,
) -> Tensor:
    """``Aᵀ(Σ_b s_b ⊙ dy_b)``, less what the deleted genes' samples contributed to them; same arguments."""
    rows, batch, channels = grad.shape
    num_genes = transposed.ptr.numel() - 1
    sum_type, tl_type = _sum_type(grad)
    total = torch.empty(rows, 1, channels, dtype=sum_type, device=grad.device)
    excess = torch.empty(genes.numel(), channels, dtype=sum_type, device=grad.device)
    scale = as_factors(scale_out)
    scale_rows = rows if scale is None else scale.shape[0]
    width = min(64, triton.next_power_of_2(channels))
    with torch.cuda.device_of(grad):
        _sum_samples[(triton.cdiv(rows, _ROWS), triton.cdiv(channels, width))](
            grad,
            scale,
            None if places is None else places.own,
            total,
            rows,
            num_genes,
            batch,
            channels,
            scale_rows,
            PLACED=places is not None,
            SCALED=scale is not None,
            SUM=tl_type,
            ROWS=_ROWS,
            WIDTH=width,
        )
        if genes.numel():
            _grad_of_deleted[(genes.numel(), triton.cdiv(channels, width))](
                transposed.ptr,
                transposed.indices,
                transposed.weight,
                genes,
                samples,
                as_factors(fresh),
                grad,
                scale,
                None if places is None else places.own,
                excess,
                num_genes,
                batch,
                channels,
                scale_rows,
                PLACED=places is not None,
                WEIGHTED=transposed.weight is not None,
                SCALED=scale is not None,
                SUM=tl_type,
                NEIGHBOURS=_NEIGHBOURS,
                WIDTH=width,
                num_warps=8,
            )
    out = csr_sum(transposed, total, None, None).squeeze(1)
    # index_put_ sorts before it accumulates, so a gene deleted in several samples is summed in a fixed order.
    return out.index_put_((genes,), excess.neg_(), accumulate=True).to(grad.dtype)


def _sum_type(x: Tensor) -> tuple[torch.dtype, tl.dtype]:
    return (torch.float64, tl.float64) if x.dtype == torch.float64 else (torch.float32, tl.float32)
