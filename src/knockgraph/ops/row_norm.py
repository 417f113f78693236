"""Layer normalisation of many narrow rows: torch's kernel has too little to do per row to fill a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import at_least_float32


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, plus: Tensor | None = None, backend: str = "auto") -> Tensor:
    r"""Per row, :math:`y = p + \gamma \odot \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + 10^{-5}}} + \beta`.

    Shapes:
        x ``[rows, channels]`` -> the same, float32 for half types.

    Args:
        x: The rows.
        weight: γ, ``[channels]``.
        bias: β, ``[channels]``.
        plus: p, as many rows as x has or one for each so many of them, ``[rows / n, channels]``; ``None``: 0.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    x = at_least_float32(x)
    if fused(backend, x, x.shape[1]):
        y: Tensor = _row_norm(x.contiguous(), weight, bias, None if plus is None else plus.contiguous())
        return y
    return added(nn.functional.layer_norm(x, x.shape[-1:], weight, bias), plus)


def added(y: Tensor, plus: Tensor | None) -> Tensor:
    """``y + plus``, where each row of ``plus`` may count for several of ``y``."""
    return y if plus is None else (y.view(len(plus), -1, y.shape[1]) + plus.unsqueeze(1)).flatten(0, 1)


@torch.library.custom_op("knockgraph::row_norm", mutates_args=())
def _row_norm(x: Tensor, weight: Tensor, bias: Tensor, plus: Tensor | None) -> Tensor:
    from knockgraph.ops.triton import row_norm as row_norm_triton

    return row_norm_triton.forward(x, weight, bias, plus)


@_row_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, plus: Tensor | None) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(
    "knockgraph::row_norm_grad", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor dy) -> Tensor[]"
)
def _row_norm_grad(x: Tensor, weight: Tensor, dy: Tensor) -> list[Tensor]:
    from knockgraph.ops.triton import row_norm as row_norm_triton

    dx, d_weight, d_bias = row_norm_triton.backward(x, weight, dy)
    return [dx, d_weight.to(weight.dtype), d_bias.to(weight.dtype)]


@_row_norm_grad.register_fake
def _(x: Tensor, weight: Tensor, dy: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.plus = None if inputs[3] is None else (len(inputs[3]), inputs[3].dtype)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    d_plus = None
    if ctx.plus is not None and ctx.needs_input_grad[3]:
        rows, dtype = ctx.plus
        d_plus = (dy if rows == len(dy) else dy.view(rows, -1, dy.shape[1]).sum(1)).to(dtype)
    return *_row_norm_grad(*ctx.saved_tensors, dy.contiguous()), d_plus


_row_norm.register_autograd(_backward, setup_context=_setup_context)
