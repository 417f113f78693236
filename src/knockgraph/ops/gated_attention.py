"""Attention whose messages are also gated: reactions and metabolites, attention among the living ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops.attention import attend_backward, attend_forward, check_attention
from knockgraph.ops.gated import GatedOperator
from knockgraph.ops.precision import accumulator, autocast_input

_STATES = "Tensor ptr, Tensor index, Tensor gate, Tensor source, Tensor target, Tensor attention, Tensor? keep_in"
_SCHEMA = f"({_STATES}, Tensor? keep_out, float slope) -> (Tensor, Tensor)"
_GRAD_SCHEMA = f"({_STATES}, Tensor y, Tensor lse, Tensor grad, float slope) -> (Tensor, Tensor, Tensor, Tensor)"


def gated_attend(
    operator: GatedOperator,
    gate: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    *,
    slope: float = 0.2,
    keep_in: Tensor | None = None,
    keep_out: Tensor | None = None,
) -> Tensor:
    r""":math:`y_i = \sum_{e: j \to i} g_e\operatorname{softmax}_j\bigl(a^\top \mathrm{LeakyReLU}(s_j + t_i)\bigr) s_j`.

    As :func:`attend`, each message multiplied by the gate of its entry; the gates have no part in the softmax. Plain
    torch on every device, in blocks: there are few entries between reactions and metabolites.

    Shapes:
        gate [entries], source [num_sources, batch, heads, channels], target [num_destinations, batch, heads, channels]
        -> y [num_destinations, batch, heads, channels].

    Args:
        operator: Which entries there are.
        gate: One factor per entry, in the order of the operator's ``edge_index``.
        source: :math:`s`, what nodes send.
        target: :math:`t`, of the same type.
        attention: :math:`a`, [heads, channels].
        slope: Of the LeakyReLU for negative inputs.
        keep_in: Bool [num_sources, batch], which nodes send; None keeps all.
        keep_out: Bool [num_destinations, batch], which nodes receive; None keeps all.

    Example:
        >>> operator = GatedOperator(torch.tensor([[0, 1], [2, 2]]), num_sources=2, num_destinations=3)
        >>> source, target = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1), torch.zeros(3, 1, 1, 1)
        >>> gated_attend(operator, torch.tensor([1.0, 0.5]), source, target, torch.zeros(1, 1)).flatten()
        tensor([0.0000, 0.0000, 1.2500])
    """
    source, target = autocast_input(source), autocast_input(target)
    check_attention(operator.structure, source, target, attention, keep_in, keep_out)
    if gate.shape != (operator.num_entries,) or not gate.is_floating_point():
        raise StrategyError(
            f"gate must be floating point [entries={operator.num_entries}], not {gate.dtype} {list(gate.shape)}."
        )
    precision = accumulator(source.dtype)
    table = operator.structure.by_destination
    y: Tensor = _gated_attend(
        table.ptr,
        table.indices,
        gate.to(precision).index_select(0, operator.entry_by_destination),
        source,
        target,
        attention.to(precision),
        None if keep_in is None else keep_in != 0,
        None if keep_out is None else keep_out != 0,
        slope,
    )[0]
    return y


@torch.library.custom_op("knockgraph::gated_attend", mutates_args=(), schema=_SCHEMA)
def _gated_attend(*arguments: Any) -> tuple[Tensor, Tensor]:
    ptr, index, gate, source, target, attention, keep_in, keep_out, slope = arguments
    if index.numel() == 0 or source.numel() == 0:
        lse = target.new_full(target.shape[:3], float("inf"), dtype=attention.dtype)
        return torch.zeros_like(target, memory_format=torch.contiguous_format), lse
    states = (source.contiguous(), target.contiguous(), attention.contiguous())
    return attend_forward(ptr, index, *states, keep_in, keep_out, slope, gate)


@_gated_attend.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    target, attention = arguments[4:6]
    return target.new_empty(target.shape), target.new_empty(target.shape[:3], dtype=attention.dtype)


@torch.library.custom_op("knockgraph::gated_attend_grad", mutates_args=(), schema=_GRAD_SCHEMA)
def _gated_attend_grad(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ptr, index, gate, *states, keep_in, y, lse, grad, slope = arguments
    grad_gate = torch.zeros_like(gate)
    source, target, attention = (state.contiguous() for state in states)
    if index.numel() == 0 or source.numel() == 0:
        return grad_gate, torch.zeros_like(source), torch.zeros_like(target), torch.zeros_like(attention)
    given = (source, target, attention, keep_in, y, lse, grad.contiguous(), slope)
    return grad_gate, *attend_backward(ptr, index, *given, gate, grad_gate)


@_gated_attend_grad.register_fake
def _(*arguments: Any) -> tuple[Tensor, ...]:
    return tuple(state.new_empty(state.shape) for state in arguments[2:6])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.slope = inputs[8]


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    return (None, None, *_gated_attend_grad(*ctx.saved_tensors, grad, ctx.slope), None, None, None)


_gated_attend.register_autograd(_differentiate, setup_context=_save)
