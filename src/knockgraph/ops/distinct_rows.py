"""The distinct rows of the first layer: most of them are identical across samples that share their features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.ops.backends.choice import resolve_backend
from knockgraph.ops.operator import SparseOperator
from knockgraph.ops.shared_input import touched_entries


class DistinctRows:
    r"""Which of the rows (gene, sample) of a first layer differ, so that only those are computed.

    A deletion changes the sums only at the deleted genes and at their neighbours; every other gene's row is the same
    in all samples, and one of them stands for all. On triple deletions of yeast's graph that leaves a sixth of the
    rows.

    Nothing waits for a device: there the tensors have room for all rows, and how many there are stays on the device,
    in ``count``, which the fused kernels read. On the host the tensors have just the rows that there are and ``count``
    is None.

    Args:
        touched: Bool ``[num_genes, batch]``, see :func:`touched_rows`.
        backend: As for :func:`knockgraph.ops.spmm`.

    Attributes:
        rows: int32 ``[room]``, the row (``gene · batch + sample``) that each place holds.
        slot: int32 ``[num_genes · batch]``, the place of each row, or of the one that stands for it.
        touched: Bool ``[num_genes · batch]``, whether a row's place is only its own.
        own: int32 ``[num_genes · batch]`` on a device: as ``slot``, but ``num_genes · batch`` where another row stands
            for it; None on the host.
        count: int32 ``[1]`` on a device, None on the host.
    """

    def __init__(self, touched: Tensor, backend: str = "auto") -> None:
        genes, batch = touched.shape
        self.num_genes, self.batch = genes, batch
        self.backend = resolve_backend(backend, touched.device)
        first = ~touched & ((~touched).cumsum(1) == 1)  # of each gene the first sample that does not touch it
        needed = (touched | first).flatten()
        place = needed.cumsum(0, dtype=torch.int32) - 1
        stands = torch.where(first, place.view(genes, batch), place.new_zeros(())).sum(1, dtype=torch.int32)
        self.slot = torch.where(touched.flatten(), place, stands.repeat_interleave(batch))
        self.touched = touched.flatten()
        self.own: Tensor | None = None
        self.count: Tensor | None = None
        if touched.device.type == "cpu" and self.backend != "triton":
            self.rows = needed.nonzero().squeeze(1).to(torch.int32)
            return
        self.count = place[-1:] + 1
        row = torch.arange(genes * batch, dtype=torch.int32, device=touched.device)
        self.own = torch.where(needed, place, genes * batch)
        # Rows without a place go to one more, which is cut off.
        self.rows = row.new_zeros(genes * batch + 1).scatter_(0, self.own.long(), row)[:-1]

    def take(self, x: Tensor) -> Tensor:
        """``[k, num_genes · batch, channels]`` -> ``[k, room, channels]``; places beyond ``count`` are undefined."""
        if self.count is None:
            return x.index_select(1, self.rows)
        y: Tensor = _take_rows(x.contiguous(), self.rows, self.count)
        return y

    def spread(self, y: Tensor) -> Tensor:
        """``[room, channels]`` -> ``[num_genes, batch, channels]``."""
        if self.count is None:
            x = y.index_select(0, self.slot)
        else:
            x = _spread_rows(y.contiguous(), self.slot, self.touched, self.batch)
        return x.view(self.num_genes, self.batch, y.shape[1])

    def __repr__(self) -> str:
        return f"DistinctRows({self.num_genes} genes, batch {self.batch}, room for {len(self.rows)})"


def touched_rows(
    operator: SparseOperator, keep: Tensor, genes: Tensor, samples: Tensor, *, send: bool = True, backend: str = "auto"
) -> Tensor:
    """Bool ``[num_genes, batch]``: the deleted genes of each sample and the genes that they would send to.

    Args:
        operator: The shared graph, from genes to genes; may be stacked.
        keep: Bool ``[num_genes, batch]``, False where the sample deletes the gene.
        genes: int64 ``[total]``, the deleted genes of all samples.
        samples: int64 ``[total]``, the sample of each.
        send: Whether deletion removes what a gene sends; if not, only the deleted genes are touched.
        backend: As for :func:`knockgraph.ops.spmm`.
    """
    touched = ~keep
    table = operator.by_source
    if not send or table.indices.numel() == 0 or genes.numel() == 0:
        return touched
    if resolve_backend(backend, keep.device) == "triton":
        marked: Tensor = _mark_rows(table.ptr, table.indices, genes, samples, touched)
        return marked
    if keep.device.type == "cpu":
        row, sample, _, _ = touched_entries(table, genes, samples, torch.float32)
        touched[row % keep.shape[0], sample] = True
        return touched
    from knockgraph.ops.spmm import masked_degree

    neighbours = masked_degree(operator, touched, torch.ones_like(keep), backend=backend)
    return touched | (neighbours.view(-1, *keep.shape) > 0).any(0)


@torch.library.custom_op("knockgraph::mark_rows", mutates_args=())
def _mark_rows(ptr: Tensor, index: Tensor, genes: Tensor, samples: Tensor, touched: Tensor) -> Tensor:
    from knockgraph.ops.triton import distinct_rows as distinct_rows_triton

    return distinct_rows_triton.mark(ptr, index, genes, samples, touched)


@_mark_rows.register_fake
def _(ptr: Tensor, index: Tensor, genes: Tensor, samples: Tensor, touched: Tensor) -> Tensor:
    return torch.empty_like(touched)


@torch.library.custom_op(
    "knockgraph::take_rows", mutates_args=(), schema="(Tensor x, Tensor rows, Tensor count) -> Tensor"
)
def _take_rows(x: Tensor, rows: Tensor, count: Tensor) -> Tensor:
    from knockgraph.ops.triton import distinct_rows as distinct_rows_triton

    return distinct_rows_triton.copy_rows(x, rows, count, forth=True)


@_take_rows.register_fake
def _(x: Tensor, rows: Tensor, count: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], rows.shape[0], x.shape[2])


@torch.library.custom_op(
    "knockgraph::put_rows", mutates_args=(), schema="(Tensor y, Tensor rows, Tensor count) -> Tensor"
)
def _put_rows(y: Tensor, rows: Tensor, count: Tensor) -> Tensor:
    from knockgraph.ops.triton import distinct_rows as distinct_rows_triton

    return distinct_rows_triton.copy_rows(y, rows, count, forth=False)


@_put_rows.register_fake
def _(y: Tensor, rows: Tensor, count: Tensor) -> Tensor:
    return torch.empty_like(y)


def _keep_places(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


_take_rows.register_autograd(
    lambda ctx, grad: (_put_rows(grad.contiguous(), *ctx.saved_tensors), None, None), setup_context=_keep_places
)


@torch.library.custom_op(
    "knockgraph::spread_rows", mutates_args=(), schema="(Tensor y, Tensor slot, Tensor touched, int batch) -> Tensor"
)
def _spread_rows(y: Tensor, slot: Tensor, touched: Tensor, batch: int) -> Tensor:
    from knockgraph.ops.triton import distinct_rows as distinct_rows_triton

    # Not y.index_select(0, slot): its kernel has a block for each row, 0.12 ms on an H200 for 191,603 of 64 channels.
    return distinct_rows_triton.copy_rows(y.unsqueeze(0), slot, None, forth=True).squeeze(0)


@_spread_rows.register_fake
def _(y: Tensor, slot: Tensor, touched: Tensor, batch: int) -> Tensor:
    return y.new_empty(slot.shape[0], y.shape[1])


@torch.library.custom_op(
    "knockgraph::sum_rows", mutates_args=(), schema="(Tensor grad, Tensor slot, Tensor touched, int batch) -> Tensor"
)
def _sum_rows(grad: Tensor, slot: Tensor, touched: Tensor, batch: int) -> Tensor:
    from knockgraph.ops.triton import distinct_rows as distinct_rows_triton

    return distinct_rows_triton.sum_rows(grad, slot, touched, batch)


@_sum_rows.register_fake
def _(grad: Tensor, slot: Tensor, touched: Tensor, batch: int) -> Tensor:
    return torch.empty_like(grad)


def _keep_slots(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:3])
    ctx.batch = inputs[3]


_spread_rows.register_autograd(
    lambda ctx, grad: (_sum_rows(grad.contiguous(), *ctx.saved_tensors, ctx.batch), None, None, None),
    setup_context=_keep_slots,
)
