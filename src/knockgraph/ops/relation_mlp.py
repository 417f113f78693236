"""An MLP of its own for each relation, with norm and activation: one fused operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import autocast_input

_SCHEMA = (
    "Tensor own, Tensor neighbours, Tensor eps, Tensor weight, Tensor bias, Tensor? scale, Tensor? shift, Tensor? count"
)


def relation_mlp(
    own: Tensor,
    neighbours: Tensor,
    eps: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor] | None = None,
    count: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""GIN's MLP for each relation r, then norm and activation,

    .. math::
        h^{(0)}_r &= (1 + \varepsilon_r)\, x + n_r, \qquad
        z^{(l)}_r = h^{(l-1)}_r W^{(l)}_r + b^{(l)}_r, \qquad h^{(l)}_r = \mathrm{GELU}(z^{(l)}_r), \\
        y_r &= \mathrm{GELU}\bigl(\gamma_r \odot \mathrm{norm}(z^{(L)}_r) + \beta_r\bigr).

    The fused kernels need CUDA, Triton, and 16, 32 or 64 channels; equal inputs give equal bits.

    Shapes:
        own ``[rows, channels]``, neighbours ``[relations, rows, channels]`` -> ``[relations, rows, channels]``.

    Args:
        own: The rows' own states x. Under autocast they are cast as for a matrix product.
        neighbours: What each relation's neighbours sent, n.
        eps: ε, ``[relations]``.
        weight: ``[layers, relations, channels, channels]``.
        bias: ``[layers, relations, channels]``.
        norm: γ and β of a layer norm, ``[relations, channels]``, or ``None``: none.
        count: int32 ``[1]``: only the first so many rows are there, the others of the result are undefined.
            ``None``: all.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    own, neighbours = autocast_input(own), autocast_input(neighbours)
    scale, shift = (None, None) if norm is None else norm
    # A size of 1 is a constant to Triton; the kernels want a number.
    if fused(backend, neighbours, weight.shape[-1]) and neighbours.shape[1] > 1:
        y: Tensor = _relation_mlp(own.contiguous(), neighbours.contiguous(), eps, weight, bias, scale, shift, count)[0]
        return y
    return _plain(own, neighbours, eps, weight, bias, scale, shift)


def _plain(
    own: Tensor,
    neighbours: Tensor,
    eps: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    h = torch.addcmul(neighbours, (1 + eps).to(own.dtype).view(-1, 1, 1), own)
    for layer, (w, b) in enumerate(zip(weight, bias, strict=True)):
        h = nn.functional.gelu(h) if layer else h
        h = torch.baddbmm(b.unsqueeze(1), h, w)
    if scale is not None and shift is not None:
        h = torch.addcmul(shift.unsqueeze(1), nn.functional.layer_norm(h, h.shape[-1:]), scale.unsqueeze(1))
    return nn.functional.gelu(h)


@torch.library.custom_op("knockgraph::relation_mlp", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def _relation_mlp(*arguments: Any) -> tuple[Tensor, Tensor]:
    from knockgraph.ops.triton import relation_mlp as relation_mlp_triton

    own, neighbours, eps, weight, bias, scale, shift, count = arguments
    weight = weight.to(neighbours.dtype).contiguous()
    return relation_mlp_triton.forward(own, neighbours, eps, weight, bias.contiguous(), _pair(scale, shift), count)


@_relation_mlp.register_fake
def _(own: Tensor, neighbours: Tensor, eps: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(neighbours), neighbours.new_empty(weight.shape[0], *neighbours.shape)


@torch.library.custom_op(
    "knockgraph::relation_mlp_grad", mutates_args=(), schema=f"({_SCHEMA}, Tensor z, Tensor dy) -> Tensor[]"
)
def _relation_mlp_grad(*arguments: Any) -> list[Tensor]:
    from knockgraph.ops.triton import relation_mlp as relation_mlp_triton

    own, neighbours, eps, weight, _, scale, shift, count, z, dy = arguments
    narrow = weight.to(neighbours.dtype).contiguous()
    found = relation_mlp_triton.backward(own, neighbours, eps, narrow, _pair(scale, shift), count, z, dy)
    return [g.to(t.dtype) for g, t in zip(found, arguments[:7], strict=True) if g is not None and t is not None]


@_relation_mlp_grad.register_fake
def _(*inputs: Any) -> list[Tensor]:
    return [torch.empty_like(t) for t in inputs[:7] if t is not None]


def _pair(scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if scale is None or shift is None else (scale.contiguous(), shift.contiguous())


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, d_z: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 8
    grads = _relation_mlp_grad(*ctx.saved_tensors, dy.contiguous())
    return (*grads, *[None] * (8 - len(grads)))


_relation_mlp.register_autograd(_backward, setup_context=_setup_context)
