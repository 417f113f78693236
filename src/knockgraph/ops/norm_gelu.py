"""Norm and activation after a convolution over several relations: one fused operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import autocast_input


def norm_gelu(x: Tensor, scale: Tensor, shift: Tensor, count: Tensor | None = None, backend: str = "auto") -> Tensor:
    r"""Per row and relation r, :math:`y_r = \mathrm{GELU}(\gamma_r \odot \mathrm{norm}(x_r) + \beta_r)`.

    The fused kernels need CUDA, Triton, and 16, 32 or 64 channels; equal inputs give equal bits.

    Shapes:
        x ``[relations, rows, channels]`` -> the same.

    Args:
        x: The rows. For the fused kernels they are cast, under autocast, as for a matrix product.
        scale: γ, ``[relations, channels]``.
        shift: β, ``[relations, channels]``.
        count: int32 ``[1]``: only the first so many rows are there, the others of the result are undefined, and only
            the fused kernels leave them out of the gradients. ``None``: all.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    given = autocast_input(x)
    # A size of 1 is a constant to Triton; the kernels want a number.
    if fused(backend, given, x.shape[-1]) and x.shape[1] > 1:
        y: Tensor = _norm_gelu(given.contiguous(), scale, shift, count)
        return y
    h = torch.addcmul(shift.unsqueeze(1), nn.functional.layer_norm(x, x.shape[-1:]), scale.unsqueeze(1))
    return nn.functional.gelu(h)


@torch.library.custom_op("knockgraph::norm_gelu", mutates_args=())
def _norm_gelu(x: Tensor, scale: Tensor, shift: Tensor, count: Tensor | None) -> Tensor:
    from knockgraph.ops.triton import norm_gelu as norm_gelu_triton

    return norm_gelu_triton.forward(x, scale, shift, count)


@_norm_gelu.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, count: Tensor | None) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op(
    "knockgraph::norm_gelu_grad",
    mutates_args=(),
    schema="(Tensor x, Tensor scale, Tensor shift, Tensor? count, Tensor dy) -> Tensor[]",
)
def _norm_gelu_grad(x: Tensor, scale: Tensor, shift: Tensor, count: Tensor | None, dy: Tensor) -> list[Tensor]:
    from knockgraph.ops.triton import norm_gelu as norm_gelu_triton

    dx, d_scale, d_shift = norm_gelu_triton.backward(x, (scale, shift), count, dy)
    assert d_scale is not None
    assert d_shift is not None
    return [dx, d_scale.to(scale.dtype), d_shift.to(shift.dtype)]


@_norm_gelu_grad.register_fake
def _(x: Tensor, scale: Tensor, shift: Tensor, *rest: Any) -> list[Tensor]:
    return [torch.empty_like(x), torch.empty_like(scale), torch.empty_like(shift)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


_norm_gelu.register_autograd(
    lambda ctx, dy: (*_norm_gelu_grad(*ctx.saved_tensors, dy.contiguous()), None), setup_context=_setup_context
)
