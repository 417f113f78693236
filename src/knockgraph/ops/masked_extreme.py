"""``knockgraph::csr_extreme``: the largest or smallest message of each row, and where its gradient goes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.ops.backends import spmm_cpu, spmm_torch
from knockgraph.ops.operator import CsrTable

_TABLE = "Tensor ptr{0}, Tensor index{0}, Tensor? weight{0}, Tensor order{0}"
_SCHEMA = (
    f"({_TABLE.format('')}, {_TABLE.format('_t')}, Tensor x, Tensor? keep_in, Tensor? keep_out, "
    "bool largest, bool with_arg, str backend) -> (Tensor, Tensor)"
)
_GRAD_SCHEMA = f"({_TABLE.format('')}, {_TABLE.format('_t')}, Tensor grad, Tensor arg, str backend) -> Tensor"


@torch.library.custom_op("knockgraph::csr_extreme", mutates_args=(), schema=_SCHEMA)
def _csr_extreme(*arguments: Any) -> tuple[Tensor, Tensor]:
    table, (x, keep_in, keep_out, largest, with_arg, backend) = CsrTable(*arguments[:4]), arguments[8:]
    shape = (table.ptr.numel() - 1, *x.shape[1:])
    if x.numel() == 0 or table.indices.numel() == 0 or shape[0] == 0:
        return x.new_zeros(shape), x.new_full(shape if with_arg else (0,), -1, dtype=torch.int32)
    x = x.contiguous()
    keep_in = keep_in if keep_in is None else keep_in.contiguous()
    keep_out = keep_out if keep_out is None else keep_out.contiguous()
    if backend == "triton":
        from knockgraph.ops.triton import spmm as spmm_triton

        return spmm_triton.csr_extreme(table, x, keep_in, keep_out, largest, with_arg)
    none = float("-inf") if largest else float("inf")
    kept = spmm_torch.scaled(x, keep_in, none)
    # The CSR kernel would multiply the infinity of a source that is left out by the weight's sign, or by zero.
    if backend == "cpu" and table.weight is None:
        y, arg = spmm_cpu.csr_extreme(table, kept, largest, with_arg)
    else:
        y, arg = spmm_torch.csr_extreme(table, kept, largest)
    y = spmm_torch.scaled(torch.where(y == none, 0.0, y), keep_out)
    if not with_arg:
        return y, arg.new_empty(0)
    return y, arg if keep_out is None else spmm_torch.scaled(arg, keep_out, -1)


@_csr_extreme.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    ptr, x, with_arg = arguments[0], arguments[8], arguments[12]
    shape = (ptr.shape[0] - 1, *x.shape[1:])
    return x.new_empty(shape), x.new_empty(shape if with_arg else (0,), dtype=torch.int32)


@torch.library.custom_op("knockgraph::csr_extreme_grad", mutates_args=(), schema=_GRAD_SCHEMA)
def _csr_extreme_grad(*arguments: Any) -> Tensor:
    table, transposed = CsrTable(*arguments[:4]), CsrTable(*arguments[4:8])
    grad, arg, backend = arguments[8:]
    index = table.indices
    if grad.numel() == 0 or index.numel() == 0:
        return _empty(transposed, grad).zero_()
    grad = grad.contiguous()
    if backend == "cpu":
        return spmm_cpu.csr_extreme_grad(table, transposed.ptr.numel() - 1, grad, arg)
    if backend == "triton":
        from knockgraph.ops.triton import spmm as spmm_triton

        return spmm_triton.csr_extreme_grad(transposed, index, grad, arg)
    return spmm_torch.csr_extreme_grad(transposed, index, grad, arg)


@_csr_extreme_grad.register_fake
def _(*arguments: Any) -> Tensor:
    return _empty(CsrTable(*arguments[4:8]), arguments[8])


def _empty(table: CsrTable, x: Tensor) -> Tensor:
    return x.new_empty(table.ptr.shape[0] - 1, *x.shape[1:])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[0:8], output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.backend = inputs[13]


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    *tables, arg = ctx.saved_tensors
    grad_x = _csr_extreme_grad(*tables, grad, arg, ctx.backend) if ctx.needs_input_grad[8] else None
    return (*[None] * 8, grad_x, *[None] * 5)


_csr_extreme.register_autograd(_backward, setup_context=_setup_context)


def masked_extreme(
    table: CsrTable,
    transposed: CsrTable,
    x: Tensor,
    keep_in: Tensor | None,
    keep_out: Tensor | None,
    largest: bool,
    backend: str,
) -> Tensor:
    """``keep_out ⊙ max_j w_j x_j`` over kept neighbours, 0 without any; differentiable (once) in ``x``.

    Args:
        table: ``A``, [rows, columns].
        transposed: Its transpose, in one piece.
        x: [columns, batch, channels].
        keep_in: Bool [columns, batch], or None.
        keep_out: Bool [rows / k, batch], repeated k times, or None.
        largest: Maximum, else minimum.
        backend: A name from :func:`resolve_backend`.
    """
    # The winners take more memory than the result; they are only stored when a gradient will ask for them.
    with_arg = torch.is_grad_enabled() and x.requires_grad
    y: Tensor = _csr_extreme(*table[:4], *transposed[:4], x, keep_in, keep_out, largest, with_arg, backend)[0]
    return y
