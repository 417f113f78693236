"""``knockgraph::csr_sum``, the custom operator behind every masked sum: what autograd and the compiler see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.ops.backends import spmm_cpu, spmm_torch
from knockgraph.ops.operator import CsrTable

# Custom operators take plain tensors, so the schema spells both tables out. Swapping the two halves gives the
# transposed product, which is how the gradient is computed (and the gradient's gradient).
_TABLE = "Tensor ptr{0}, Tensor index{0}, Tensor? weight{0}, Tensor order{0}, int panels{0}"
_SCHEMA = (
    f"({_TABLE.format('')}, {_TABLE.format('_t')}, "
    "Tensor x, Tensor? scale_in, Tensor? scale_out, str backend) -> Tensor"
)


@torch.library.custom_op("knockgraph::csr_sum", mutates_args=(), schema=_SCHEMA)
def _csr_sum(*arguments: Any) -> Tensor:
    table, (x, scale_in, scale_out, backend) = CsrTable(*arguments[:5]), arguments[10:]
    if x.numel() == 0 or table.ptr.numel() == 1 or table.indices.numel() == 0:
        return _empty(table, x).zero_()
    return raw_sum(table, x, scale_in, scale_out, backend)


def raw_sum(table: CsrTable, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None, backend: str) -> Tensor:
    """The product without autograd, by the named backend; operands must not be empty."""
    x = x.contiguous()
    scale_in = scale_in if scale_in is None else scale_in.contiguous()
    scale_out = scale_out if scale_out is None else scale_out.contiguous()
    if backend == "cpu":
        return spmm_cpu.csr_sum(table, x, scale_in, scale_out)
    if backend == "triton":
        from knockgraph.ops.triton import spmm as spmm_triton

        return spmm_triton.csr_sum(table, x, scale_in, scale_out)
    if backend == "cusparse":
        from knockgraph.ops.backends import spmm_cusparse

        return spmm_cusparse.csr_sum(table, x, scale_in, scale_out)
    return spmm_torch.csr_sum(table, x, scale_in, scale_out)


@_csr_sum.register_fake
def _(*arguments: Any) -> Tensor:
    return _empty(CsrTable(*arguments[:5]), arguments[10])


def _empty(table: CsrTable, x: Tensor) -> Tensor:
    return x.new_empty((table.ptr.shape[0] - 1) // table.panels, *x.shape[1:])


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *table, panels = inputs[0:5]
    *table_t, panels_t = inputs[5:10]
    scale_in, scale_out, backend = inputs[11:14]
    ctx.save_for_backward(*table, *table_t, scale_in, scale_out)
    ctx.panels, ctx.panels_t, ctx.backend = panels, panels_t, backend


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    table, table_t, (scale_in, scale_out) = saved[0:4], saved[4:8], saved[8:10]
    grad_x = None
    if ctx.needs_input_grad[10]:
        grad_x = _csr_sum(*table_t, ctx.panels_t, *table, ctx.panels, grad, scale_out, scale_in, ctx.backend)
    return (*[None] * 10, grad_x, None, None, None)


_csr_sum.register_autograd(_backward, setup_context=_setup_context)


def masked_sum(
    table: CsrTable,
    transposed: CsrTable,
    x: Tensor,
    scale_in: Tensor | None,
    scale_out: Tensor | None,
    backend: str,
) -> Tensor:
    """``scale_out ⊙ A(scale_in ⊙ x)``, differentiable in ``x``.

    Args:
        table: ``A``, [rows, columns].
        transposed: Its transpose, possibly in panels.
        x: [columns, batch, channels].
        scale_in: Bool or floating [columns / k, batch], repeated k times, or None.
        scale_out: Bool or floating [rows / k, batch], repeated k times, or None.
        backend: A name from :func:`resolve_backend`.
    """
    y: Tensor = _csr_sum(*table, *transposed, x, scale_in, scale_out, backend)
    return y
