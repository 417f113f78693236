"""Gather–scatter over explicit edges: what the strategies with edge masks or edge lists compute with."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops import Reduce


def reduce_edges(
    messages: Tensor,
    target: Tensor,
    num_rows: int,
    reduce: Reduce,
    mask: Tensor | None = None,
    tie: Tensor | None = None,
) -> Tensor:
    """Reduce the messages of each target row; rows without a message are 0.

    Args:
        messages: ``[edges, …, channels]``.
        target: int64 ``[edges]``, the row each edge points to.
        num_rows: Rows of the result.
        reduce: ``sum``, ``mean``, ``max`` or ``min``.
        mask: bool ``[edges, …]``; False leaves a message out, whatever its value.
        tie: int64 ``[edges]``, distinct among the edges of a row. Of equal extremes the one with the smallest ``tie``
            gets the gradient, so that every strategy has the same gradient.

    Returns:
        ``[num_rows, …, channels]``.
    """
    if mask is not None:
        mask = mask.unsqueeze(-1)
    if reduce in ("sum", "mean"):
        if mask is not None:
            messages = torch.where(mask, messages, messages.new_zeros(()))
        total = messages.new_zeros(num_rows, *messages.shape[1:]).index_add(0, target, messages)
        if reduce == "sum":
            return total
        return (total / count_edges(target, num_rows, messages, mask).clamp(min=1)).to(messages.dtype)
    if reduce not in ("max", "min"):
        raise StrategyError(f"unknown reduction {reduce!r}: use sum, mean, max or min")
    if tie is None:
        raise StrategyError("max and min need a tie-breaking key")
    winner = _winner(messages.detach(), target, num_rows, reduce == "max", mask, tie)
    return messages.new_zeros(num_rows, *messages.shape[1:]).index_add(
        0, target, torch.where(winner, messages, messages.new_zeros(()))
    )


def count_edges(target: Tensor, num_rows: int, like: Tensor, mask: Tensor | None) -> Tensor:
    """Edges of each row, ``[num_rows, …, 1]`` (``mask [edges, …, 1]``), in the dtype of ``like``."""
    kind = torch.float64 if like.dtype == torch.float64 else torch.float32  # bf16 counts only to 256
    shape = (target.numel(), *[1] * (like.dim() - 1)) if mask is None else mask.shape
    ones = torch.ones(shape, dtype=kind, device=like.device) if mask is None else mask.to(kind)
    return torch.zeros(num_rows, *shape[1:], dtype=kind, device=like.device).index_add(0, target, ones)


def _winner(messages: Tensor, target: Tensor, num_rows: int, largest: bool, mask: Tensor | None, tie: Tensor) -> Tensor:
    """bool like ``messages``: the one message per row and channel that is the extreme."""
    worst = float("-inf") if largest else float("inf")
    shown = messages if mask is None else messages.masked_fill(~mask, worst)
    index = target.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)
    best = shown.new_full((num_rows, *messages.shape[1:]), worst)
    best = best.scatter_reduce(0, index, shown, "amax" if largest else "amin")
    hit = (shown == best[target]) & (shown != worst)
    key = tie.view(-1, *[1] * (messages.dim() - 1)).expand_as(messages)
    none = torch.iinfo(tie.dtype).max
    first = tie.new_full(best.shape, none).scatter_reduce(0, index, torch.where(hit, key, none), "amin")
    return hit & (key == first[target])


def attend_edges(
    source: Tensor,
    target_state: Tensor,
    target: Tensor,
    num_rows: int,
    attention: Tensor,
    slope: float,
    mask: Tensor | None,
) -> Tensor:
    r"""GATv2 over explicit edges, see :meth:`PerturbedGraphs.attend`.

    Args:
        source: :math:`s_j` of each edge, ``[edges, …, heads, channels]``.
        target_state: :math:`t_i` of each edge, the same shape.
        target: int64 ``[edges]``.
        num_rows: Rows of the result.
        attention: ``[heads, channels]``.
        slope: Of the LeakyReLU.
        mask: bool ``[edges, …]`` or ``None``.
    """
    if mask is not None:
        # Not only the logits: 0 · NaN of a deleted gene would reach its neighbours and the gradient.
        whole = mask.view(*mask.shape, 1, 1)
        source = torch.where(whole, source, source.new_zeros(()))
        target_state = torch.where(whole, target_state, target_state.new_zeros(()))
    logit = (torch.nn.functional.leaky_relu(source + target_state, slope) * attention).sum(-1)
    if mask is not None:
        logit = logit.masked_fill(~mask.unsqueeze(-1), float("-inf"))
    index = target.view(-1, *[1] * (logit.dim() - 1)).expand_as(logit)
    peak = logit.new_full((num_rows, *logit.shape[1:]), float("-inf"))
    peak = peak.scatter_reduce(0, index, logit.detach(), "amax")
    peak = torch.where(peak.isfinite(), peak, peak.new_zeros(()))  # rows without an edge
    weight = (logit - peak[target]).exp()
    total = weight.new_zeros(peak.shape).index_add(0, target, weight)
    share = weight / torch.where(total > 0, total, total.new_ones(()))[target]
    messages = share.unsqueeze(-1) * source
    return messages.new_zeros(num_rows, *messages.shape[1:]).index_add(0, target, messages)
