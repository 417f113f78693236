"""An MLP of its own for each relation, with norm and activation: one fused operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import autocast_input

_SCHEMA = (
    "Tensor own, Tensor neighbours, Tensor own_weight, Tensor weight, Tensor bias, Tensor? scale, Tensor? shift, "
    "Tensor? count, Tensor? keep"
)


def relation_mlp(
    own: Tensor,
    neighbours: Tensor,
    own_weight: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor] | None = None,
    count: Tensor | None = None,
    backend: str = "auto",
    keep: Tensor | None = None,
) -> Tensor:
    r"""An MLP for each relation r, whose first map sees the own states and what the neighbours sent, then norm and
    activation,

    .. math::
        z^{(1)}_r &= \bigl(f_r \odot x + n_r\bigr) W^{(1)}_r + b^{(1)}_r \quad\text{or}\quad
        n_r W^{(1)}_r + x W^{own}_r + b^{(1)}_r, \\
        z^{(l)}_r &= \mathrm{GELU}(z^{(l-1)}_r)\, W^{(l)}_r + b^{(l)}_r, \qquad
        y_r = \mathrm{GELU}\bigl(\gamma_r \odot \mathrm{norm}(z^{(L)}_r) + \beta_r\bigr),

    with :math:`f_r = 1 + \varepsilon_r` for GIN, :math:`f_r` of each row for GCN, and the second form for SAGE.

    The fused kernels need CUDA, Triton, and 16, 32 or 64 channels; equal inputs give equal bits.

    Shapes:
        own ``[rows, channels]``, neighbours ``[relations, rows, channels]`` -> ``[relations, rows, channels]``.

    Args:
        own: The rows' own states x. Under autocast they are cast as for a matrix product.
        neighbours: What each relation's neighbours sent, n.
        own_weight: How x joins: ε ``[relations]``, f ``[relations, rows]``, or W^own
            ``[relations, channels, channels]``.
        weight: ``[layers, relations, channels, channels]``.
        bias: ``[layers, relations, channels]``.
        norm: γ and β of a layer norm, ``[relations, channels]``, or ``None``: none.
        count: int32 ``[1]``: only the first so many rows are there, the others of the result are undefined.
            ``None``: all.
        backend: ``auto``, ``triton`` or ``torch``.
        keep: Bool ``[rows]``, False where n is left out, whatever it holds, and gets no gradient. ``None``: nowhere.
    """
    own, neighbours = autocast_input(own), autocast_input(neighbours)
    scale, shift = (None, None) if norm is None else norm
    # A size of 1 is a constant to Triton; the kernels want a number.
    if fused(backend, neighbours, weight.shape[-1]) and neighbours.shape[1] > 1:
        y: Tensor = _relation_mlp(
            own.contiguous(), neighbours.contiguous(), own_weight, weight, bias, scale, shift, count, keep
        )[0]
        return y
    if keep is not None:
        neighbours = torch.where(keep.unsqueeze(1), neighbours, neighbours.new_zeros(()))
    return _plain(own, neighbours, own_weight, weight, bias, scale, shift)


def _plain(
    own: Tensor,
    neighbours: Tensor,
    own_weight: Tensor,
    weight: Tensor,
    bias: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    h = neighbours
    if own_weight.dim() < 3:
        factor = (1 + own_weight).unsqueeze(1) if own_weight.dim() == 1 else own_weight
        h = torch.addcmul(neighbours, factor.to(own.dtype).unsqueeze(-1), own)
    for layer, (w, b) in enumerate(zip(weight, bias, strict=True)):
        h = nn.functional.gelu(h) if layer else h
        h = torch.baddbmm(b.unsqueeze(1), h, w)
        if layer == 0 and own_weight.dim() == 3:
            h = h + own @ own_weight
    if scale is not None and shift is not None:
        h = torch.addcmul(shift.unsqueeze(1), nn.functional.layer_norm(h, h.shape[-1:]), scale.unsqueeze(1))
    return nn.functional.gelu(h)


@torch.library.custom_op("knockgraph::relation_mlp", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def _relation_mlp(*arguments: Any) -> tuple[Tensor, Tensor]:
    from knockgraph.ops.triton import relation_mlp as relation_mlp_triton

    own, neighbours, own_weight, weight, bias, scale, shift, count, keep = arguments
    maps, norm = _maps(own_weight, weight, neighbours), _pair(scale, shift)
    return relation_mlp_triton.forward(own, neighbours, *maps, bias.contiguous(), norm, count, keep)


@_relation_mlp.register_fake
def _(own: Tensor, neighbours: Tensor, own_weight: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(neighbours), neighbours.new_empty(weight.shape[0], *neighbours.shape)


@torch.library.custom_op(
    "knockgraph::relation_mlp_grad", mutates_args=(), schema=f"({_SCHEMA}, Tensor z, Tensor dy) -> Tensor[]"
)
def _relation_mlp_grad(*arguments: Any) -> list[Tensor]:
    from knockgraph.ops.triton import relation_mlp as relation_mlp_triton

    own, neighbours, own_weight, weight, _, scale, shift, count, keep, z, dy = arguments
    maps, norm = _maps(own_weight, weight, neighbours), _pair(scale, shift)
    found = relation_mlp_triton.backward(own, neighbours, *maps, norm, count, keep, z, dy)
    return [g.to(t.dtype) for g, t in zip(found, arguments[:7], strict=True) if g is not None and t is not None]


@_relation_mlp_grad.register_fake
def _(*inputs: Any) -> list[Tensor]:
    return [torch.empty_like(t) for t in inputs[:7] if t is not None]


def _maps(own_weight: Tensor, weight: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices in the type of the states, numbers as they are."""
    own_weight = own_weight.to(like.dtype) if own_weight.dim() == 3 else own_weight
    return own_weight.contiguous(), weight.to(like.dtype).contiguous()


def _pair(scale: Tensor | None, shift: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if scale is None or shift is None else (scale.contiguous(), shift.contiguous())


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, d_z: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 9
    grads = _relation_mlp_grad(*ctx.saved_tensors, dy.contiguous())
    return (*grads, *[None] * (9 - len(grads)))


_relation_mlp.register_autograd(_backward, setup_context=_setup_context)
