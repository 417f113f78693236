"""Self-attention over the relations of each row, averaged over the relations that ask: one fused operation."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import autocast_input

_MOST_RELATIONS = 64
_SCHEMA = "Tensor h, Tensor ask, Tensor lean, Tensor tell, Tensor bias, Tensor? count"


def mix_relations(
    h: Tensor,
    qkv: tuple[Tensor, Tensor],
    out: tuple[Tensor, Tensor],
    heads: int,
    count: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""Self-attention across the relations of each row, and their mean,

    .. math:: y = \frac1R \sum_r h_r + W_o \frac1R \sum_r \sum_s
        \operatorname{softmax}_s\bigl(q_r^\top k_s / \sqrt d\bigr)\, v_s + b_o,
        \qquad q, k, v = W_q h + b_q, W_k h + b_k, W_v h + b_v,

    with several heads of d channels. The weights of the relations s add up to 1, and :math:`q_r^\top b_k` is the same
    for all s. So each head is, with :math:`w_s = \frac1R \sum_r \operatorname{softmax}_s(\cdot)`,

    .. math:: \operatorname{softmax}_s\bigl((A h_r + a)^\top h_s\bigr), \qquad B \sum_s w_s h_s, \qquad
        A = W_k^\top W_q / \sqrt d, \quad a = W_k^\top b_q / \sqrt d, \quad B = W_o W_v,

    plus the bias :math:`W_o b_v + b_o` once. This is what the fused kernels compute, from h alone in both directions;
    equal inputs give equal bits. They need CUDA, Triton, 16, 32 or 64 channels and at most 64 relations.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``; fused, float32.

    Args:
        h: The states. Under autocast they are cast as for a matrix product.
        qkv: :math:`[W_q; W_k; W_v]` ``[3 · channels, channels]`` and the biases ``[3 · channels]``.
        out: :math:`W_o` ``[channels, channels]`` and :math:`b_o` ``[channels]``.
        heads: Number of heads; divides the channels.
        count: int32 ``[1]``: only the first so many rows are there, the others of the result are undefined.
            ``None``: all.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    relations, rows, channels = h.shape
    given = autocast_input(h)
    # A size of 1 is a constant to Triton; the kernels want a number.
    if fused(backend, given, channels) and rows > 1 and relations <= _MOST_RELATIONS:
        with torch.autocast(h.device.type, enabled=False):
            weights = _composed(*qkv, *out, heads)
        y: Tensor = _mix_relations(given.contiguous(), *weights, count)
        return y
    if count is None:
        return _plain(h, qkv, out, heads)
    there = (torch.arange(rows, device=h.device) < count).unsqueeze(1)
    y = _plain(torch.where(there, h, h.new_zeros(())), qkv, out, heads)
    return torch.where(there, y, y.new_zeros(()))  # so that no gradient comes from the others


def _plain(h: Tensor, qkv: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], heads: int) -> Tensor:
    relations, rows, channels = h.shape
    # [3, rows, heads, relations, d]
    parts = nn.functional.linear(h, *qkv).view(relations, rows, 3, heads, channels // heads).permute(2, 1, 3, 0, 4)
    q, k, v = parts.unbind(0)
    weight = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
    # The mean over the asking relations commutes with the sum over the answering ones.
    mixed = (weight.mean(-2, keepdim=True).to(v.dtype) @ v).flatten(1)
    return h.mean(0) + nn.functional.linear(mixed, *out)


def _composed(
    qkv: Tensor, qkv_bias: Tensor, out: Tensor, out_bias: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Aᵀ, a and Bᵀ of each head, for rows from the left, and the bias."""
    channels = out.shape[0]
    size = channels // heads
    q, k, v = qkv.view(3, heads, size, channels).unbind(0)
    q_bias, _, v_bias = qkv_bias.view(3, heads, 1, size).unbind(0)
    k = k / math.sqrt(size)
    tell = v.transpose(1, 2) @ out.view(channels, heads, size).permute(1, 2, 0)
    return q.transpose(1, 2) @ k, (q_bias @ k).squeeze(1), tell, torch.addmv(out_bias, out, v_bias.flatten())


@torch.library.custom_op("knockgraph::mix_relations", mutates_args=(), schema=f"({_SCHEMA}) -> Tensor")
def _mix_relations(h: Tensor, ask: Tensor, lean: Tensor, tell: Tensor, bias: Tensor, count: Tensor | None) -> Tensor:
    from knockgraph.ops.triton import relation_attention

    return relation_attention.forward(h, ask.to(h.dtype), lean, tell.to(h.dtype), bias, count)


@_mix_relations.register_fake
def _(h: Tensor, *rest: Any) -> Tensor:
    return torch.empty(h.shape[1:], dtype=torch.float32, device=h.device)


@torch.library.custom_op(
    "knockgraph::mix_relations_grad", mutates_args=(), schema=f"({_SCHEMA}, Tensor dy) -> Tensor[]"
)
def _mix_relations_grad(
    h: Tensor, ask: Tensor, lean: Tensor, tell: Tensor, bias: Tensor, count: Tensor | None, dy: Tensor
) -> list[Tensor]:
    from knockgraph.ops.triton import relation_attention

    dh, *of_weights = relation_attention.backward(h, ask.to(h.dtype), lean, tell.to(h.dtype), count, dy)
    return [dh, *(grad.to(w.dtype) for grad, w in zip(of_weights, (ask, lean, tell, bias), strict=True))]


@_mix_relations_grad.register_fake
def _(h: Tensor, *rest: Any) -> list[Tensor]:
    return [torch.empty_like(h), *(torch.empty_like(w) for w in rest[:4])]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


_mix_relations.register_autograd(
    lambda ctx, dy: (*_mix_relations_grad(*ctx.saved_tensors, dy.contiguous()), None), setup_context=_setup_context
)
