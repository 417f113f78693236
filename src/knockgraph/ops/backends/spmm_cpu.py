"""Sparse products on the CPU with torch's CSR kernel, in blocks of samples that stay in the cache."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor

from knockgraph.ops.operator import CsrTable
from knockgraph.ops.precision import accumulator

# Columns of x handled at once. Wide rows use the vector units well, narrow blocks stay in the cache: with 6,607 genes
# and float32 this is 12 MB. Between 256 and 512 the time is flat, 64 and 1,800 columns take half as long again.
_BLOCK_COLUMNS = 448


def csr_sum(table: CsrTable, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None) -> Tensor:
    """``scale_out ⊙ A(scale_in ⊙ x)``; the scales are applied to blocks that are in the cache anyway."""
    rows, columns = (table.ptr.numel() - 1) // table.panels, x.shape[0] // table.panels
    dtype = accumulator(x.dtype)
    y = x.new_empty(rows, *x.shape[1:])
    if table.panels == 1:
        chunks = list(_row_chunks(table, columns, dtype, rows if scale_out is None else scale_out.shape[0]))
        for samples in _sample_blocks(x):
            block = _block(x, slice(0, columns), samples, scale_in, dtype)
            for part, matrix in chunks:
                _store(y, part, samples, torch.sparse.mm(matrix, block, "sum"), scale_out)
        return y
    panels = [_matrix(table, slice(p * rows, (p + 1) * rows), columns, dtype) for p in range(table.panels)]
    for samples in _sample_blocks(x):
        total = torch.zeros((), dtype=dtype)
        for panel, matrix in enumerate(panels):
            part = slice(panel * columns, (panel + 1) * columns)
            product = torch.sparse.mm(matrix, _block(x, part, samples, scale_in, dtype), "sum")
            total = product if panel == 0 else total.add_(product)
        _store(y, slice(0, rows), samples, total, scale_out)
    return y


def csr_extreme(table: CsrTable, x: Tensor, largest: bool, with_arg: bool) -> tuple[Tensor, Tensor]:
    """Largest or smallest message of each row, ∓inf for none, and the position of the first entry that attains it."""
    rows, columns = table.ptr.numel() - 1, x.shape[0]
    dtype = accumulator(x.dtype)
    none = float("-inf") if largest else float("inf")
    y = x.new_empty(rows, *x.shape[1:])
    arg = torch.empty(y.shape if with_arg else (0,), dtype=torch.int32)
    chunks = list(_row_chunks(table, columns, dtype, rows))
    for samples in _sample_blocks(x):
        # torch reports the winners only when a gradient is wanted, which is how this operator is told so.
        block = _block(x, slice(0, columns), samples, None, dtype).requires_grad_(with_arg)
        for part, matrix in chunks:
            if matrix._nnz() == 0:  # torch would report no winners at all
                y[part, samples] = none
                if with_arg:
                    arg[part, samples] = -1
                continue
            with torch.set_grad_enabled(with_arg):
                best, first = torch.ops.aten._sparse_mm_reduce_impl(matrix, block, "amax" if largest else "amin")
            ptr = table.ptr[part.start : part.stop + 1]
            empty = (ptr[1:] == ptr[:-1]).view(-1, 1, 1)
            y[part, samples] = best.detach().view(empty.shape[0], -1, x.shape[2]).masked_fill_(empty, none)
            if with_arg:
                first = first.view(empty.shape[0], -1, x.shape[2])
                arg[part, samples] = torch.where(first < matrix._nnz(), first + ptr[0], -1).int()
    return y, arg


def csr_extreme_grad(table: CsrTable, num_sources: int, grad: Tensor, arg: Tensor) -> Tensor:
    """Adds each row's gradient to the source that won it, row after row."""
    dtype = accumulator(grad.dtype)
    out = torch.zeros(num_sources, *grad.shape[1:], dtype=dtype)
    for start in range(0, grad.shape[0], num_sources):
        part = slice(start, start + num_sources)
        winner = arg[part].clamp(min=0)
        value = grad[part].to(dtype).masked_fill(arg[part] < 0, 0.0)
        if table.weight is not None:
            value.mul_(table.weight.to(dtype)[winner])
        out.scatter_add_(0, table.indices[winner].long(), value)
    return out.to(grad.dtype)


def _sample_blocks(x: Tensor) -> Iterator[slice]:
    step = max(1, _BLOCK_COLUMNS // max(x.shape[2], 1))
    for start in range(0, x.shape[1], step):
        yield slice(start, min(start + step, x.shape[1]))


def _row_chunks(table: CsrTable, columns: int, dtype: torch.dtype, scale_rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Cut a stacked matrix into its relations, so that the product's result is scaled while it is in the cache."""
    rows = table.ptr.numel() - 1
    step = scale_rows if scale_rows < rows else columns if columns and rows % columns == 0 else rows
    for start in range(0, rows, step):
        yield slice(start, start + step), _matrix(table, slice(start, start + step), columns, dtype)


def _matrix(table: CsrTable, rows: slice, columns: int, dtype: torch.dtype) -> Tensor:
    _silence_beta_warning()
    ptr = table.ptr[rows.start : rows.stop + 1]
    start, end = int(ptr[0]), int(ptr[-1])
    weight = torch.ones(end - start, dtype=dtype) if table.weight is None else table.weight[start:end].to(dtype)
    return torch.sparse_csr_tensor(ptr - start, table.indices[start:end], weight, (rows.stop - rows.start, columns))


@functools.cache
def _silence_beta_warning() -> None:
    """Torch warns once per process that CSR tensors are beta; take that warning here, where it can be ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(
            torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0), (0, 0)
        )


def _block(x: Tensor, rows: slice, samples: slice, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A contiguous, scaled copy of some samples, [rows, samples * channels]."""
    block = x[rows, samples].to(dtype, copy=True, memory_format=torch.contiguous_format)
    if scale is not None:
        parts = block.view(-1, scale.shape[0], *block.shape[1:]) if rows.stop - rows.start > scale.shape[0] else block
        start = rows.start % scale.shape[0]
        scale_(parts, scale[start : start + (rows.stop - rows.start), samples])
    return block.flatten(1)


def _store(y: Tensor, rows: slice, samples: slice, product: Tensor, scale: Tensor | None) -> None:
    product = product.view(product.shape[0], -1, y.shape[2])
    if scale is not None:
        start = rows.start % scale.shape[0]
        scale_(product, scale[start : start + product.shape[0], samples])
    y[rows, samples] = product


def scale_(block: Tensor, scale: Tensor) -> None:
    """``block ← scale ⊙ block``, exact zeros where the scale is zero; block [..., rows, samples, channels]."""
    if scale.dtype != torch.bool:
        block.mul_(scale.unsqueeze(-1))
    # Deleted genes are few: writing their zeros one by one is far cheaper than a pass over the block.
    row, sample = (scale == 0).nonzero(as_tuple=True)
    block[..., row, sample, :] = 0.0
