"""From one state per relation to one state: four ways."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from knockgraph.errors import ModelError
from knockgraph.nn.attention_pooling import at_least_float32

AGGREGATIONS = ("sum", "mean", "attention", "pairwise")


def relation_aggregation(
    name: str, relations: int, channels: int, *, heads: int = 4, rows_at_once: int | None = None
) -> nn.Module:
    """A module that maps ``[relations, rows, channels]`` to ``[rows, channels]``.

    Args:
        name: One of ``sum``, ``mean``, ``attention``, ``pairwise``.
        relations: Number of relations.
        channels: Channels of a state.
        heads: Of ``attention``.
        rows_at_once: Of ``pairwise``, see :class:`PairwiseAggregation`.
    """
    if name == "sum":
        return SumAggregation()
    if name == "mean":
        return MeanAggregation()
    if name == "attention":
        return AttentionAggregation(channels, heads)
    if name == "pairwise":
        return PairwiseAggregation(relations, channels, rows_at_once=rows_at_once)
    raise ModelError(f"there is no relation aggregation {name!r}; use one of {', '.join(AGGREGATIONS)}")


class SumAggregation(nn.Module):
    r""":math:`y = \sum_r h_r`: ``[relations, rows, channels]`` -> ``[rows, channels]``."""

    def forward(self, h: Tensor) -> Tensor:
        """See the formula above."""
        return h.sum(0)


class MeanAggregation(nn.Module):
    r""":math:`y = \frac1R \sum_r h_r`: ``[relations, rows, channels]`` -> ``[rows, channels]``."""

    def forward(self, h: Tensor) -> Tensor:
        """See the formula above."""
        return h.mean(0)


class AttentionAggregation(nn.Module):
    r"""Self-attention across the relations of each row,

    .. math:: y = \mathrm{LayerNorm}\Bigl(\frac1R \sum_r h_r + W_o \frac1R \sum_r \sum_s
        \operatorname{softmax}_s\bigl(q_r^\top k_s / \sqrt d\bigr)\, v_s\Bigr),
        \qquad q, k, v = W_q h, W_k h, W_v h,

    with several heads of d channels.

    Args:
        channels: Channels of h, a multiple of ``heads``.
        heads: Number of heads.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``.
    """

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be shared by {heads} heads; choose a divisor")
        self.heads = heads
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, h: Tensor) -> Tensor:
        """See the formula above."""
        relations, rows, channels = h.shape
        # [3, rows, heads, relations, d]
        qkv = self.qkv(h).view(relations, rows, 3, self.heads, channels // self.heads).permute(2, 1, 3, 0, 4)
        q, k, v = qkv.unbind(0)
        weight = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1)
        # The mean over the asking relations commutes with the sum over the answering ones.
        mixed = (weight.mean(-2, keepdim=True).to(v.dtype) @ v).flatten(1)
        y: Tensor = self.norm(h.mean(0) + self.out(mixed))
        return y


class PairwiseAggregation(nn.Module):
    r"""A small MLP for each pair of relations, weighted by a shared scorer,

    .. math::
        o_{ij} &= V_{ij}\, \mathrm{GELU}\bigl(A_{ij} h_i + B_{ij} h_j + a_{ij}\bigr) + b_{ij} \quad (i \le j), \qquad
        o_0 = \frac1R \sum_r h_r, \\
        y &= \mathrm{LayerNorm}\Bigl(\sum_p \operatorname{softmax}_p\bigl(s(o_p)\bigr)\, o_p\Bigr),
        \qquad s = \mathrm{Linear} \circ \mathrm{GELU} \circ \mathrm{Linear}.

    :math:`[A_{ij}\ B_{ij}]` is what would be applied to the concatenation of the two states; nothing is concatenated.
    Every relation is part of R + 1 (pair, side) combinations, so one batched product with R groups makes all the terms
    :math:`A_{ij} h_i` and :math:`B_{ij} h_j`.

    Args:
        relations: Number of relations R; there are R(R + 1)/2 pairs.
        channels: Channels of h.
        hidden: Width of the pairs' MLPs and of the scorer.
        rows_at_once: Rows that are worked on together. Each block is computed again in the backward pass, so that no
            tensor of pairs × rows × channels outlives its block. ``None``: all rows at once, nothing computed twice.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``. Parameters: ``weight_first`` and ``weight_second``
        ``[pairs, channels, hidden]``, ``bias_in`` ``[pairs, 1, hidden]``, ``weight_out`` ``[pairs, hidden, channels]``,
        ``bias_out`` ``[pairs, 1, channels]``.
    """

    slot_pair: Tensor

    def __init__(self, relations: int, channels: int, hidden: int = 32, rows_at_once: int | None = None) -> None:
        super().__init__()
        if rows_at_once is not None and rows_at_once < 1:
            raise ModelError(f"rows_at_once={rows_at_once}, but a block has at least one row; None takes all")
        self.relations = relations
        self.rows_at_once = rows_at_once
        self.pairs = list(itertools.combinations_with_replacement(range(relations), 2))
        pairs = len(self.pairs)
        self.weight_first = nn.Parameter(torch.empty(pairs, channels, hidden))
        self.weight_second = nn.Parameter(torch.empty(pairs, channels, hidden))
        self.bias_in = nn.Parameter(torch.empty(pairs, 1, hidden))
        self.weight_out = nn.Parameter(torch.empty(pairs, hidden, channels))
        self.bias_out = nn.Parameter(torch.empty(pairs, 1, channels))
        self.scorer = nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, 1))
        self.norm = nn.LayerNorm(channels)
        # For each relation its R + 1 rows of [weight_first; weight_second].
        slots = [
            [p + side * pairs for side in (0, 1) for p, pair in enumerate(self.pairs) if pair[side] == r]
            for r in range(relations)
        ]
        self._where = [(slots[i].index(p), slots[j].index(p + pairs)) for p, (i, j) in enumerate(self.pairs)]
        self.register_buffer("slot_pair", torch.tensor(slots).flatten(), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew, each MLP as two ``nn.Linear`` do."""
        _, channels, hidden = self.weight_first.shape
        for fan_in, parameters in (
            (2 * channels, (self.weight_first, self.weight_second, self.bias_in)),
            (hidden, (self.weight_out, self.bias_out)),
        ):
            for parameter in parameters:
                nn.init.uniform_(parameter, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        for module in (*self.scorer, self.norm):
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()

    def forward(self, h: Tensor) -> Tensor:
        """See the formula above."""
        if self.rows_at_once is None:
            y = self._mix(h)
        elif torch.is_grad_enabled():
            blocks = torch.split(h, self.rows_at_once, 1)
            y = torch.cat([checkpoint(self._mix, block, use_reentrant=False) for block in blocks])
        else:
            y = torch.cat([self._mix(block) for block in torch.split(h, self.rows_at_once, 1)])
        normed: Tensor = self.norm(y)
        return normed

    def _mix(self, h: Tensor) -> Tensor:
        relations, rows, channels = h.shape
        hidden = self.weight_first.shape[2]
        weight = torch.cat([self.weight_first, self.weight_second])[self.slot_pair]
        weight = weight.view(relations, relations + 1, channels, hidden).transpose(1, 2).flatten(2)
        # [relations, rows, R + 1, hidden], taken apart without a copy
        slots = torch.bmm(h, weight).view(relations, rows, relations + 1, hidden)
        terms = [of_relation.unbind(1) for of_relation in slots.unbind(0)]
        places = zip(self.pairs, self._where, strict=True)
        t = torch.stack([terms[i][first] + terms[j][second] for (i, j), (first, second) in places])
        t = nn.functional.gelu(t + self.bias_in.to(t.dtype))
        o = torch.baddbmm(self.bias_out, t, self.weight_out)
        identity = h.mean(0)
        score = torch.cat([self.scorer(o), self.scorer(identity).unsqueeze(0)])
        share = at_least_float32(score).softmax(0).to(o.dtype)
        return (share[:-1] * o).sum(0) + share[-1] * identity.to(o.dtype)

    def extra_repr(self) -> str:
        """Shown by ``repr``."""
        return f"{self.relations} relations, {len(self.pairs)} pairs, rows_at_once={self.rows_at_once}"
