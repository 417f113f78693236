"""``knockgraph::split_sum``: the masked sum of stacked relations, the crowded ones as dense matrices.

A sparse product fetches a row of ``x`` for every edge; a dense one multiplies with every zero, but on matrix units. In
half precision on an H200 the second is faster once a relation has more than about 1 % of all possible edges.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.ops.backends import spmm_torch
from knockgraph.ops.masked_sum import raw_sum
from knockgraph.ops.operator import CsrTable, SplitOperator

_TABLE = "Tensor ptr{0}, Tensor index{0}, Tensor order{0}"
_TABLES = f"{_TABLE.format('')}, {_TABLE.format('_t')}, Tensor[] matrices, int[] first"
_SCALES = "Tensor? scale_in, Tensor? scale_out, str backend"


@torch.library.custom_op("knockgraph::split_sum", mutates_args=(), schema=f"({_TABLES}, Tensor x, {_SCALES}) -> Tensor")
def _split_sum(*arguments: Any) -> Tensor:
    (ptr, index, order), (matrices, first, x, scale_in, scale_out, backend) = arguments[:3], arguments[6:]
    genes = x.shape[0]
    # The matrices' rows are padded with zeros for the matrix units, so x gets rows of zeros.
    padded = x.new_empty(matrices[0].shape[1], *x.shape[1:])
    padded[genes:].zero_()
    _scale_into(padded[:genes], x.contiguous(), scale_in, backend)
    y = _empty(ptr, x)
    for matrix, start in zip(matrices, first, strict=True):
        part = y[start : start + matrix.shape[0]]
        torch.mm(matrix, padded.flatten(1), out=part.flatten(1))
        scale = scale_out
        if scale is not None and scale.shape[0] == y.shape[0]:  # else it is the same for all relations
            scale = scale[start : start + matrix.shape[0]]
        _scale_into(part, part, scale, backend)
    _sparse_into(y, CsrTable(ptr, index, None, order), padded[:genes], scale_out, backend)
    return y


@_split_sum.register_fake
def _(*arguments: Any) -> Tensor:
    return _empty(arguments[0], arguments[8])


@torch.library.custom_op(
    "knockgraph::split_sum_grad", mutates_args=(), schema=f"({_TABLES}, Tensor grad, {_SCALES}) -> Tensor"
)
def _split_sum_grad(*arguments: Any) -> Tensor:
    ptr, index, order, matrices, first, grad, scale_in, scale_out, backend = arguments[3:]
    scaled = grad = grad.contiguous()
    if scale_out is not None:
        scaled = torch.empty_like(grad)
        _scale_into(scaled, grad, scale_out, backend)
    # As high as the matrices are wide: the fast kernels want whole rows.
    padded = grad.new_empty(matrices[0].shape[1], *grad.shape[1:])
    out: Tensor = padded[: ptr.shape[0] - 1]
    padded[out.shape[0] :].zero_()
    _sparse_into(out, CsrTable(ptr, index, None, order), scaled, None, backend)
    for matrix, start in zip(matrices, first, strict=True):
        padded.flatten(1).addmm_(matrix.t(), scaled[start : start + matrix.shape[0]].flatten(1))
    _scale_into(out, out, scale_in, backend)
    return out


@_split_sum_grad.register_fake
def _(*arguments: Any) -> Tensor:
    return _empty(arguments[3], arguments[8])


def _empty(ptr: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, *x.shape[1:])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tables, matrices, first, _, scale_in, scale_out, ctx.backend = inputs
    ctx.save_for_backward(*tables, scale_in, scale_out, *matrices)
    ctx.first = first


def _saved(ctx: Any, operand: Tensor) -> tuple[Any, ...]:
    *tables, scale_in, scale_out = ctx.saved_tensors[:8]
    return (*tables, list(ctx.saved_tensors[8:]), ctx.first, operand, scale_in, scale_out, ctx.backend)


def _only(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
    return (*[None] * 6, [None] * (len(ctx.saved_tensors) - 8), None, grad, None, None, None)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _only(ctx, _split_sum_grad(*_saved(ctx, grad)) if ctx.needs_input_grad[8] else None)


def _backward_of_grad(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return _only(ctx, _split_sum(*_saved(ctx, grad)) if ctx.needs_input_grad[8] else None)


# Each is linear, and the other is its transpose.
_split_sum.register_autograd(_backward, setup_context=_setup_context)
_split_sum_grad.register_autograd(_backward_of_grad, setup_context=_setup_context)


def split_sum(
    operator: SplitOperator, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None, backend: str
) -> Tensor:
    """``scale_out ⊙ A(scale_in ⊙ x)``, differentiable in ``x``; arguments as for ``masked_sum``."""
    tables = (operator.sparse, operator.sparse_transposed)
    parts = [part for table in tables for part in (table.ptr, table.indices, table.order)]
    y: Tensor = _split_sum(*parts, operator.matrices, operator.first, x, scale_in, scale_out, backend)
    return y


def _sparse_into(out: Tensor, table: CsrTable, x: Tensor, scale_out: Tensor | None, backend: str) -> None:
    """The rows of the sum that the table's ``order`` names."""
    if table.indices.numel() == 0:
        out.index_fill_(0, table.order.long(), 0)
    elif backend == "triton":
        from knockgraph.ops.triton import spmm as spmm_triton

        spmm_triton.csr_sum(table, x, None, scale_out, out)
    else:
        rows = table.order.long()
        out[rows] = raw_sum(table, x, None, scale_out, backend)[rows]


def _scale_into(out: Tensor, x: Tensor, scale: Tensor | None, backend: str) -> None:
    """``out = scale ⊙ x``; both may be the same memory."""
    if scale is None:
        out.copy_(x)
    elif backend == "triton":
        from knockgraph.ops.triton import spmm as spmm_triton

        spmm_triton.scale_rows(x, scale.contiguous(), out=out)
    else:
        out.copy_(spmm_torch.scaled(x, scale))
