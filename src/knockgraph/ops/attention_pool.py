"""A mean over rows, weighted by attention: one fused operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.precision import at_least_float32, autocast_input

_SCHEMA = "Tensor x, Tensor keep, Tensor weight, Tensor bias, Tensor out, Tensor bias_out"
_WIDTHS = (16, 32, 64)


def attention_pool(x: Tensor, keep: Tensor, gate: tuple[Tensor, ...], backend: str = "auto") -> Tensor:
    r"""A mean over the rows that are kept, weighted by attention,

    .. math:: z_b = \sum_i \frac{m_{ib} \exp g(x_{ib})}{\sum_j m_{jb} \exp g(x_{jb})}\; x_{ib}, \qquad
        g(x) = u^\top \mathrm{GELU}(W x + a) + c.

    What is in a row that is left out (even NaN) does not matter; a sample without any row gets 0. Weights and sums are
    float32 (float64 for float64); under autocast the gate is computed as matrix products are. The fused kernels read x
    once for the gate and once for the mean, and once in the backward pass; equal inputs give equal bits.

    Shapes:
        x ``[rows, batch, channels]`` -> ``[batch, channels]``.

    Args:
        x: The rows.
        keep: Bool ``[rows, batch]``.
        gate: W ``[hidden, channels]``, a ``[hidden]``, u ``[1, hidden]``, c ``[1]``.
        backend: ``auto``, ``triton`` or ``torch``; widths that the kernels do not know always take ``torch``.
    """
    weight = gate[0]
    # A size of 1 is a constant to Triton; the kernels want a number.
    several = x.shape[0] > 1 and x.shape[1] > 1
    if several and all(w in _WIDTHS for w in weight.shape) and fused(backend, x, *weight.shape):
        z: Tensor = _attention_pool(x.contiguous(), keep, autocast_input(weight), *gate[1:])[0]
        return z
    return _plain(x, keep, gate)


def _plain(x: Tensor, keep: Tensor, gate: tuple[Tensor, ...]) -> Tensor:
    weight, bias, out, bias_out = gate
    x = torch.where(keep.unsqueeze(-1), x, x.new_zeros(()))
    h = nn.functional.gelu(nn.functional.linear(x, weight, bias))
    logits = at_least_float32(nn.functional.linear(h, out, bias_out).squeeze(-1))
    # Not -inf: a sample without any row would become NaN.
    logits = logits.masked_fill(~keep, torch.finfo(logits.dtype).min)
    # Reducing the last axis exposes more parallelism where there are few samples.
    share = torch.where(keep.t(), logits.t().softmax(1), logits.new_zeros(()))
    with torch.autocast(x.device.type, enabled=False):
        return torch.bmm(share.unsqueeze(1), at_least_float32(x).transpose(0, 1)).squeeze(1)


@torch.library.custom_op("knockgraph::attention_pool", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def _attention_pool(x: Tensor, keep: Tensor, *gate: Tensor) -> tuple[Tensor, Tensor]:
    from knockgraph.ops.triton import attention_pool as attention_pool_triton

    return attention_pool_triton.forward(x, keep, _flat(gate))


@_attention_pool.register_fake
def _(x: Tensor, keep: Tensor, *gate: Tensor) -> tuple[Tensor, Tensor]:
    rows, batch, channels = x.shape
    shapes = ((batch, channels), (batch, rows))
    return tuple(torch.empty(shape, dtype=torch.float32, device=x.device) for shape in shapes)  # type: ignore[return-value]


@torch.library.custom_op(
    "knockgraph::attention_pool_grad",
    mutates_args=(),
    schema=f"({_SCHEMA}, Tensor z, Tensor share, Tensor dz) -> Tensor[]",
)
def _attention_pool_grad(x: Tensor, keep: Tensor, *rest: Tensor) -> list[Tensor]:
    from knockgraph.ops.triton import attention_pool as attention_pool_triton

    gate = rest[:4]
    dx, *found = attention_pool_triton.backward(x, keep, _flat(gate), *rest[4:])
    return [dx, *(grad.view(part.shape).to(part.dtype) for grad, part in zip(found, gate, strict=True))]


@_attention_pool_grad.register_fake
def _(x: Tensor, keep: Tensor, *rest: Tensor) -> list[Tensor]:
    return [torch.empty_like(x), *(torch.empty_like(part) for part in rest[:4])]


def _flat(gate: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weight, *vectors = gate
    return weight.contiguous(), *(vector.flatten() for vector in vectors)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dz: Tensor | None, d_share: Tensor | None) -> tuple[Any, ...]:
    if dz is None:
        return (None,) * 6
    dx, *found = _attention_pool_grad(*ctx.saved_tensors, dz.contiguous())
    return (dx, None, *found)


_attention_pool.register_autograd(_backward, setup_context=_setup_context)
