"""Sparse products from plain torch operations: any device, deterministic, slow. The fallback of the other backends."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.ops.operator import CsrTable
from knockgraph.ops.precision import accumulator

# Messages are [num_entries, columns]; columns are cut so that they stay below this.
_MESSAGE_BYTES = 2**28


def scaled(x: Tensor, scale: Tensor | None, fill: float = 0.0) -> Tensor:
    """``scale ⊙ x``, with ``fill`` where the scale is zero, whatever ``x`` holds there (even NaN).

    Args:
        x: [k * rows, batch, channels].
        scale: Bool or floating [rows, batch], repeated k times, or None for no scaling.
        fill: Value of the entries that are left out.
    """
    if scale is None:
        return x
    parts = x.view(-1, *scale.shape, x.shape[2])
    if scale.dtype == torch.bool:
        return torch.where(scale.unsqueeze(-1), parts, fill).reshape(x.shape)
    factor = scale.unsqueeze(-1)
    product = parts.to(accumulator(x.dtype)) * factor.to(accumulator(x.dtype))
    return torch.where(factor != 0, product, fill).to(x.dtype).reshape(x.shape)


def csr_sum(table: CsrTable, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None) -> Tensor:
    """``scale_out ⊙ A(scale_in ⊙ x)`` by gathering messages and reducing segments."""
    rows = (table.ptr.numel() - 1) // table.panels
    dtype = accumulator(x.dtype)
    row, column = _coordinates(table, x.shape[0] // table.panels)
    dense = scaled(x, scale_in).flatten(1)
    y = dense.new_empty(rows, dense.shape[1])
    for part in _column_blocks(row.numel(), dense):
        messages = dense[:, part].to(dtype).index_select(0, column)
        if table.weight is not None:
            messages = messages * table.weight.to(dtype).unsqueeze(-1)
        y[:, part] = _segment_sum(messages, table.ptr).view(table.panels, rows, -1).sum(0)
    return scaled(y.view(rows, *x.shape[1:]), scale_out)


def csr_extreme(table: CsrTable, x: Tensor, largest: bool) -> tuple[Tensor, Tensor]:
    """Largest or smallest message of each row, ∓inf for none, and the position of the first entry that attains it."""
    rows = table.ptr.numel() - 1
    row, column = _coordinates(table, x.shape[0])
    dense = x.flatten(1)
    none = float("-inf") if largest else float("inf")
    y = dense.new_full((rows, dense.shape[1]), none)
    arg = torch.full_like(y, -1, dtype=torch.int32)
    position = torch.arange(row.numel(), device=x.device).unsqueeze(-1)
    for part in _column_blocks(row.numel(), dense):
        messages = dense[:, part].index_select(0, column)
        if table.weight is not None:
            product = messages.to(accumulator(x.dtype)) * table.weight.unsqueeze(-1)
            # A source that was left out stays so, whatever the sign of its weight.
            messages = torch.where(messages == none, none, product.to(x.dtype))
        target = row.unsqueeze(-1).expand_as(messages)
        best = y[:, part].scatter_reduce(0, target, messages, "amax" if largest else "amin")
        attains = (messages == best.index_select(0, row)) & (messages != none)
        candidates = torch.where(attains, position, row.numel())
        first = torch.full_like(best, row.numel(), dtype=torch.int64).scatter_reduce(0, target, candidates, "amin")
        y[:, part] = best
        arg[:, part] = torch.where(first < row.numel(), first, -1).int()
    shape = (rows, *x.shape[1:])
    return y.view(shape), arg.view(shape)


def csr_extreme_grad(transposed: CsrTable, index: Tensor, grad: Tensor, arg: Tensor) -> Tensor:
    """Every source collects the gradients of the rows it won; a gather, so the order of the sum is fixed."""
    rows = transposed.ptr.numel() - 1
    row, column = _coordinates(transposed, grad.shape[0])
    winner = winning_source(index, arg).flatten(1)
    dense = grad.flatten(1)
    out = dense.new_empty(rows, dense.shape[1])
    for part in _column_blocks(row.numel(), dense):
        won = winner[:, part].index_select(0, column) == row.unsqueeze(-1)
        messages = torch.where(won, dense[:, part].to(accumulator(grad.dtype)).index_select(0, column), 0.0)
        if transposed.weight is not None:
            messages = messages * transposed.weight.to(messages.dtype).unsqueeze(-1)
        out[:, part] = _segment_sum(messages, transposed.ptr)
    return out.view(rows, *grad.shape[1:])


def winning_source(index: Tensor, arg: Tensor) -> Tensor:
    """The source gene of each winning entry, −1 for none: int32, shaped like ``arg``."""
    if index.numel() == 0:
        return arg
    return torch.where(arg >= 0, index[arg.clamp(min=0)], -1)


def _coordinates(table: CsrTable, columns: int) -> tuple[Tensor, Tensor]:
    """Row (within all panels) and column (within x) of each entry; sizes are known, so a GPU is not waited for."""
    entries = table.indices.numel()
    ptr = table.ptr.long()
    row = torch.repeat_interleave(ptr[1:] - ptr[:-1], output_size=entries)
    rows = (ptr.numel() - 1) // table.panels
    column = table.indices.long()
    return row, column if table.panels == 1 else column + row // max(rows, 1) * columns


def _segment_sum(messages: Tensor, ptr: Tensor) -> Tensor:
    if messages.numel() == 0:
        return messages.new_zeros(ptr.numel() - 1, messages.shape[1])
    return torch.segment_reduce(messages, "sum", offsets=ptr.long(), axis=0, unsafe=True, initial=0.0)


def _column_blocks(entries: int, dense: Tensor) -> list[slice]:
    width = max(1, _MESSAGE_BYTES // (8 * max(entries, 1)))
    return [slice(start, start + width) for start in range(0, dense.shape[1], width)]
