"""The first layer's aggregation, where every sample has the same features: ``A(m ⊙ x) = Ax − A[:, P]x[P]``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops.backends import spmm_cpu
from knockgraph.ops.backends.choice import resolve_backend
from knockgraph.ops.masked_sum import raw_sum
from knockgraph.ops.operator import CsrTable, SparseOperator
from knockgraph.ops.precision import accumulator, autocast_input
from knockgraph.ops.spmm import check_operands, relation_axis

if TYPE_CHECKING:
    from knockgraph.ops.distinct_rows import DistinctRows

_TABLE = "Tensor ptr{0}, Tensor index{0}, Tensor? weight{0}, Tensor order{0}"
_TABLES = f"{_TABLE.format('')}, {_TABLE.format('_t')}"
_BATCH = (
    "Tensor genes, Tensor samples, int batch_size, Tensor? scale_out, bool mask_in, str backend, "
    "Tensor? held, Tensor? own, Tensor? count"
)


def spmm_shared(
    operator: SparseOperator,
    x: Tensor,
    perturbation_indices: Tensor,
    perturbation_indices_batch: Tensor,
    batch_size: int,
    *,
    scale_out: Tensor | None = None,
    mask_in: bool = True,
    backend: str = "auto",
) -> Tensor:
    r"""``y_b = scale_out_b ⊙ (Ax − A[:, P_b] x[P_b])``: :func:`spmm` for features that all samples share.

    One product for all samples, then a correction at the neighbours of the deleted genes. The result is that of
    ``spmm(operator, x expanded to the batch, scale_in=keep, scale_out=scale_out)`` up to rounding (sums are kept in
    float32 until the end), and so is the gradient,
    :math:`dx = A^\top \sum_b s_b \odot dy_b` less, at each deleted gene, the part of the samples that lack it.
    Nothing waits for the GPU, and equal inputs give equal bits.

    Shapes:
        x [num_sources, channels] -> y [num_destinations, batch_size, channels], or
        [num_relations, num_destinations, batch_size, channels] if the operator is stacked.

    Args:
        operator: The shared graph.
        x: Floating point features, the same for all samples.
        perturbation_indices: int64 [total], the deleted genes of all samples; one listed twice is deleted once.
        perturbation_indices_batch: int64 [total], the sample of each.
        batch_size: Number of samples.
        scale_out: Keep-vector or factors of the result, as for :func:`spmm`; None keeps all rows.
        mask_in: Whether deleted genes send nothing; False removes only what ``scale_out`` removes.
        backend: As for :func:`spmm`.

    Example:
        >>> operator = SparseOperator.from_edge_index(torch.tensor([[0, 1, 2], [2, 2, 0]]), num_sources=3)
        >>> y = spmm_shared(operator, torch.ones(3, 1), torch.tensor([1]), torch.tensor([0]), batch_size=2)
        >>> y.squeeze(-1)
        tensor([[1., 1.],
                [0., 0.],
                [1., 2.]])
    """
    if x.dim() != 2:
        raise StrategyError(f"x must be [num_sources, channels], not {list(x.shape)}; use spmm for a batch.")
    if perturbation_indices.shape != perturbation_indices_batch.shape or perturbation_indices.dim() != 1:
        raise StrategyError("perturbation_indices and perturbation_indices_batch must be two lists of one length.")
    check_operands(operator, x.unsqueeze(1).expand(-1, batch_size, -1), None, scale_out)
    x = autocast_input(x)
    backend = resolve_backend(backend, x.device)
    batch = (perturbation_indices, perturbation_indices_batch, batch_size)
    return relation_axis(operator, _sum(operator, x, batch, scale_out, mask_in, backend))


def _sum(
    operator: SparseOperator,
    x: Tensor,
    batch: tuple[Tensor, Tensor, int],
    scale_out: Tensor | None,
    mask_in: bool,
    backend: str,
    places: Sequence[Tensor | None] = (None, None, None),
) -> Tensor:
    scale_out = None if scale_out is None else scale_out.flatten(0, -2)
    tables = (*operator.by_destination[:4], *operator.by_source[:4])
    y: Tensor = _shared_sum(*tables, x, *batch, scale_out, mask_in, backend, *places)
    return y


def spmm_shared_rows(
    operator: SparseOperator,
    x: Tensor,
    perturbation_indices: Tensor,
    perturbation_indices_batch: Tensor,
    rows: DistinctRows,
    *,
    scale_out: Tensor,
    mask_in: bool = True,
) -> Tensor:
    """``rows.take`` of :func:`spmm_shared`, without making the rows that are the same: on the host, where their number
    is known, a sixth of the memory on the demo cell; on a device a sixth of the memory traffic.

    Shapes:
        x [num_genes, channels] -> [num_relations, rows, channels], of a stacked operator.

    Args:
        operator: The shared graph, from genes to genes, stacked.
        x: Features, the same for all samples; on the host float32 or float64.
        perturbation_indices: As for :func:`spmm_shared`.
        perturbation_indices_batch: As for :func:`spmm_shared`.
        rows: The rows that differ.
        scale_out: Keep-vector or factors of the result, as for :func:`spmm_shared`.
        mask_in: As for :func:`spmm_shared`.
    """
    if rows.count is not None:
        check_operands(operator, x.unsqueeze(1).expand(-1, rows.batch, -1), None, scale_out)
        batch = (perturbation_indices, perturbation_indices_batch, rows.batch)
        places = (rows.rows, rows.own, rows.count)
        y = _sum(operator, autocast_input(x), batch, scale_out, mask_in, "triton", places)
        return y.view(-1, rows.num_genes * rows.batch, x.shape[1])
    genes, samples, fresh = _sorted_entries(perturbation_indices, perturbation_indices_batch, rows.num_genes, mask_in)
    base = spmm_shared(operator, x, genes[:0], samples[:0], 1).squeeze(2)
    gene, sample = rows.rows // rows.batch, rows.rows % rows.batch
    y = base.index_select(1, gene)
    row, lacks, deleted, factor = touched_entries(operator.by_source, genes[fresh], samples[fresh], x.dtype)
    place = rows.slot[row % rows.num_genes * rows.batch + lacks] + row // rows.num_genes * len(rows.rows)
    y = y.flatten(0, 1).index_add(0, place, x[deleted] * factor, alpha=-1).view_as(y)
    return y * scale_out[..., gene, sample].unsqueeze(-1)


@torch.library.custom_op("knockgraph::shared_sum", mutates_args=(), schema=f"({_TABLES}, Tensor x, {_BATCH}) -> Tensor")
def _shared_sum(*arguments: Any) -> Tensor:
    table, transposed = CsrTable(*arguments[:4]), CsrTable(*arguments[4:8])
    x: Tensor
    x, genes, samples, batch_size, scale_out, mask_in, backend = arguments[8:15]
    rows = table.ptr.numel() - 1
    if table.indices.numel() == 0 or x.numel() == 0 or batch_size == 0:
        return x.new_zeros(rows, batch_size, x.shape[1])
    x = x.contiguous()
    genes, samples, fresh = _sorted_entries(genes, samples, x.shape[0], mask_in)
    if backend == "triton":
        from knockgraph.ops.triton import shared_input as shared_input_triton

        places = None if arguments[15] is None else shared_input_triton.Places(*arguments[15:])
        return shared_input_triton.shared_sum(
            table, transposed, x, genes, samples, fresh, batch_size, scale_out, places
        )
    if x.device.type != "cpu":
        keep = _keep(genes, samples, x.shape[0], batch_size)
        wide = x.unsqueeze(1).expand(-1, batch_size, -1)
        return raw_sum(table, wide, keep, scale_out, backend)
    dtype = accumulator(x.dtype)
    base = raw_sum(table, x.unsqueeze(1).to(dtype), None, None, backend)
    y = base.repeat(1, batch_size, 1)
    row, sample, gene, factor = touched_entries(transposed, genes[fresh], samples[fresh], dtype)
    y.view(-1, x.shape[1]).index_add_(0, row * batch_size + sample, x[gene].to(dtype) * factor, alpha=-1)
    _scale_rows_(y, scale_out)
    return y.to(x.dtype)


@_shared_sum.register_fake
def _(*arguments: Any) -> Tensor:
    x: Tensor = arguments[8]
    return x.new_empty(arguments[0].shape[0] - 1, arguments[11], x.shape[1])


@torch.library.custom_op(
    "knockgraph::shared_sum_grad", mutates_args=(), schema=f"({_TABLES}, Tensor grad, {_BATCH}) -> Tensor"
)
def _shared_sum_grad(*arguments: Any) -> Tensor:
    transposed = CsrTable(*arguments[4:8])
    grad: Tensor
    grad, genes, samples, batch_size, scale_out, mask_in, backend = arguments[8:15]
    num_genes = transposed.ptr.numel() - 1
    if transposed.indices.numel() == 0 or grad.numel() == 0:
        return grad.new_zeros(num_genes, grad.shape[2])
    grad = grad.contiguous()
    genes, samples, fresh = _sorted_entries(genes, samples, num_genes, mask_in)
    if backend == "triton":
        from knockgraph.ops.triton import shared_input as shared_input_triton

        places = None if arguments[15] is None else shared_input_triton.Places(*arguments[15:])
        return shared_input_triton.shared_sum_grad(transposed, grad, genes, samples, fresh, scale_out, places)
    dtype = accumulator(grad.dtype)
    if grad.device.type != "cpu":
        keep = _keep(genes, samples, num_genes, batch_size)
        return raw_sum(transposed, grad, scale_out, keep, backend).sum(1, dtype=dtype).to(grad.dtype)
    grad_sum = grad.to(dtype, copy=True)
    _scale_rows_(grad_sum, scale_out)
    out = raw_sum(transposed, grad_sum.sum(1, keepdim=True), None, None, backend).squeeze(1)
    row, sample, gene, factor = touched_entries(transposed, genes[fresh], samples[fresh], dtype)
    return out.index_add_(0, gene, grad_sum[row, sample] * factor, alpha=-1).to(grad.dtype)


@_shared_sum_grad.register_fake
def _(*arguments: Any) -> Tensor:
    grad: Tensor = arguments[8]
    return grad.new_empty(arguments[4].shape[0] - 1, grad.shape[2])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    genes, samples, batch_size, scale_out, mask_in, backend, *places = inputs[9:]
    ctx.save_for_backward(*inputs[0:8], genes, samples, scale_out, *places)
    ctx.options = (mask_in, backend)
    ctx.batch_size = batch_size


def _saved(ctx: Any, operand: Tensor) -> tuple[Any, ...]:
    *tables, genes, samples, scale_out, held, own, count = ctx.saved_tensors
    return (*tables, operand, genes, samples, ctx.batch_size, scale_out, *ctx.options, held, own, count)


def _only(grad: Tensor | None) -> tuple[Any, ...]:
    return (*[None] * 8, grad, *[None] * 9)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _only(_shared_sum_grad(*_saved(ctx, grad)) if ctx.needs_input_grad[8] else None)


def _backward_of_grad(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _only(_shared_sum(*_saved(ctx, grad)) if ctx.needs_input_grad[8] else None)


# Each is linear, and the other is its transpose.
_shared_sum.register_autograd(_backward, setup_context=_setup_context)
_shared_sum_grad.register_autograd(_backward_of_grad, setup_context=_setup_context)


def _sorted_entries(genes: Tensor, samples: Tensor, num_genes: int, mask_in: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Deleted genes by sample, and whether each is the first of its kind: of fixed length, so nothing is waited for."""
    if not mask_in:
        genes, samples = genes[:0], samples[:0]
    key = (samples * num_genes + genes).sort().values
    fresh = torch.ones_like(key, dtype=torch.bool)
    fresh[1:] = key[1:] != key[:-1]
    return key % num_genes, key // num_genes, fresh


def touched_entries(
    transposed: CsrTable, genes: Tensor, samples: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row, sample, deleted gene and weight [.., 1] of every edge that a deleted gene sends along."""
    start = transposed.ptr[genes].long()
    length = transposed.ptr[genes + 1].long() - start
    entry = torch.repeat_interleave(length)
    position = torch.arange(entry.numel()) - (length.cumsum(0) - length)[entry] + start[entry]
    factor = torch.ones((), dtype=dtype)
    if transposed.weight is not None:
        factor = transposed.weight[position].to(dtype).unsqueeze(-1)
    return transposed.indices[position].long(), samples[entry], genes[entry], factor


def _keep(genes: Tensor, samples: Tensor, num_genes: int, batch_size: int) -> Tensor:
    keep = torch.ones(num_genes * batch_size, dtype=torch.bool, device=genes.device)
    return keep.index_fill_(0, genes * batch_size + samples, False).view(num_genes, batch_size)


def _scale_rows_(y: Tensor, scale: Tensor | None) -> None:
    if scale is not None:
        spmm_cpu.scale_(y.view(-1, scale.shape[0], *y.shape[1:]), scale)
