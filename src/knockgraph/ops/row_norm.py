"""Layer normalisation of many narrow rows: torch's kernel has too little to do per row to fill a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import at_least_float32


def row_norm(x: Tensor, weight: Tensor, bias: Tensor, backend: str = "auto") -> Tensor:
    r"""Per row, :math:`y = \gamma \odot \frac{x - \mathrm{mean}(x)}{\sqrt{\mathrm{var}(x) + 10^{-5}}} + \beta`.

    Shapes:
        x ``[rows, channels]`` -> the same, float32 for half types.

    Args:
        x: The rows.
        weight: γ, ``[channels]``.
        bias: β, ``[channels]``.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    x = at_least_float32(x)
    if fused(backend, x, x.shape[1]):
        y: Tensor = _row_norm(x.contiguous(), weight, bias)
        return y
    return nn.functional.layer_norm(x, x.shape[-1:], weight, bias)


@torch.library.custom_op("knockgraph::row_norm", mutates_args=())
def _row_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from knockgraph.ops.triton import row_norm as row_norm_triton

    return row_norm_triton.forward(x, weight, bias)


@_row_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
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


_row_norm.register_autograd(
    lambda ctx, dy: tuple(_row_norm_grad(*ctx.saved_tensors, dy.contiguous())), setup_context=_setup_context
)
