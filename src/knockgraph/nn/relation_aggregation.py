"""From one state per relation to one state: four ways."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from knockgraph.errors import ModelError
from knockgraph.ops import DistinctRows, fused, mix_pairs, mix_relations, pair_tables, row_norm
from knockgraph.ops.row_norm import added

AGGREGATIONS = ("sum", "mean", "attention", "pairwise")


def relation_aggregation(
    name: str,
    relations: int,
    channels: int,
    *,
    heads: int = 4,
    rows_at_once: int | None = None,
    backend: str = "auto",
) -> RelationAggregation:
    """The aggregation of that name.

    Args:
        name: One of ``sum``, ``mean``, ``attention``, ``pairwise``.
        relations: Number of relations.
        channels: Channels of a state.
        heads: Of ``attention``.
        rows_at_once: Of ``pairwise``, see :class:`PairwiseAggregation`.
        backend: Of ``attention`` and ``pairwise``: ``auto``, ``triton`` or ``torch``.
    """
    if name == "sum":
        return SumAggregation()
    if name == "mean":
        return MeanAggregation()
    if name == "attention":
        return AttentionAggregation(channels, heads, backend)
    if name == "pairwise":
        return PairwiseAggregation(relations, channels, rows_at_once=rows_at_once, backend=backend)
    raise ModelError(f"there is no relation aggregation {name!r}; use one of {', '.join(AGGREGATIONS)}")


class RelationAggregation(nn.Module, ABC):
    """From one state per relation to one state.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``; with distinct rows h has only their places, and the
        result all rows.
    """

    @abstractmethod
    def forward(self, h: Tensor, rows: DistinctRows | None = None, plus: Tensor | None = None) -> Tensor:
        """One state for each row.

        Args:
            h: The states.
            rows: Which rows differ.
            plus: What is added to the result, ``[rows, channels]``, or to each n rows of it, ``[rows / n, channels]``.
        """

    def leaves_out(self, h: Tensor) -> bool:
        """Whether padding rows, whatever they hold, cannot affect gradients on a device."""
        return False


class SumAggregation(RelationAggregation):
    r""":math:`y = \sum_r h_r`."""

    def forward(self, h: Tensor, rows: DistinctRows | None = None, plus: Tensor | None = None) -> Tensor:
        return added(_spread(h.sum(0), rows), plus)

    def leaves_out(self, h: Tensor) -> bool:
        """There are no parameters, so padding is harmless."""
        return True


class MeanAggregation(RelationAggregation):
    r""":math:`y = \frac1R \sum_r h_r`."""

    def forward(self, h: Tensor, rows: DistinctRows | None = None, plus: Tensor | None = None) -> Tensor:
        return added(_spread(h.mean(0), rows), plus)

    def leaves_out(self, h: Tensor) -> bool:
        """There are no parameters, so padding is harmless."""
        return True


class AttentionAggregation(RelationAggregation):
    r"""Self-attention across the relations of each row,

    .. math:: y = \mathrm{LayerNorm}\Bigl(\frac1R \sum_r h_r + W_o \frac1R \sum_r \sum_s
        \operatorname{softmax}_s\bigl(q_r^\top k_s / \sqrt d\bigr)\, v_s\Bigr),
        \qquad q, k, v = W_q h, W_k h, W_v h,

    with several heads of d channels.

    Args:
        channels: Channels of h, a multiple of ``heads``.
        heads: Number of heads.
        backend: See :func:`~knockgraph.ops.mix_relations`.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``.
    """

    def __init__(self, channels: int, heads: int = 4, backend: str = "auto") -> None:
        super().__init__()
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be divided among {heads} heads; choose a divisor")
        self.heads = heads
        self.backend = backend
        self.qkv = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, h: Tensor, rows: DistinctRows | None = None, plus: Tensor | None = None) -> Tensor:
        count = None if rows is None else rows.count
        qkv, out = ((linear.weight, linear.bias) for linear in (self.qkv, self.out))
        y = mix_relations(h, qkv, out, self.heads, count, self.backend)
        return row_norm(_spread(y, rows), self.norm.weight, self.norm.bias, plus, self.backend)

    def leaves_out(self, h: Tensor) -> bool:
        """The fused kernels do not look at them."""
        return fused(self.backend, h, h.shape[-1])


class PairwiseAggregation(RelationAggregation):
    r"""A small MLP for each pair of relations, weighted by a shared scorer,

    .. math::
        o_{ij} &= V_{ij}\, \mathrm{GELU}\bigl(A_{ij} h_i + B_{ij} h_j + a_{ij}\bigr) + b_{ij} \quad (i \le j), \qquad
        o_0 = \frac1R \sum_r h_r, \\
        y &= \mathrm{LayerNorm}\Bigl(\sum_p \operatorname{softmax}_p\bigl(s(o_p)\bigr)\, o_p\Bigr),
        \qquad s = \mathrm{Linear} \circ \mathrm{GELU} \circ \mathrm{Linear}.

    :math:`[A_{ij}\ B_{ij}]` is what would be applied to the concatenation of the two states; nothing is concatenated.

    Args:
        relations: Number of relations R; there are R(R + 1)/2 pairs.
        channels: Channels of h.
        hidden: Width of the pairs' MLPs and of the scorer.
        rows_at_once: Rows that are worked on together. Each block is computed again in the backward pass, so that no
            tensor of pairs × rows × channels outlives its block. ``None``: all rows at once, nothing computed twice.
            The fused kernels never keep such a tensor and take no notice.
        backend: See :func:`~knockgraph.ops.mix_pairs`.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``. Parameters: ``weight_first`` and ``weight_second``
        ``[pairs, channels, hidden]``, ``bias_in`` ``[pairs, 1, hidden]``, ``weight_out`` ``[pairs, hidden, channels]``,
        ``bias_out`` ``[pairs, 1, channels]``.
    """

    pair_index: Tensor
    slot_pair: Tensor

    def __init__(
        self, relations: int, channels: int, hidden: int = 32, rows_at_once: int | None = None, backend: str = "auto"
    ) -> None:
        super().__init__()
        if rows_at_once is not None and rows_at_once < 1:
            raise ModelError(f"rows_at_once={rows_at_once}, but a block has at least one row; None takes all")
        self.relations = relations
        self.rows_at_once = rows_at_once
        self.backend = backend
        pairs = relations * (relations + 1) // 2
        self.weight_first = nn.Parameter(torch.empty(pairs, channels, hidden))
        self.weight_second = nn.Parameter(torch.empty(pairs, channels, hidden))
        self.bias_in = nn.Parameter(torch.empty(pairs, 1, hidden))
        self.weight_out = nn.Parameter(torch.empty(pairs, hidden, channels))
        self.bias_out = nn.Parameter(torch.empty(pairs, 1, channels))
        # A bias of the last map would be the same for all pairs: it falls out of the softmax.
        self.scorer = nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, 1, bias=False))
        self.norm = nn.LayerNorm(channels)
        pair_index, slot_pair = pair_tables(relations)
        self.register_buffer("pair_index", pair_index, persistent=False)
        self.register_buffer("slot_pair", slot_pair, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the weights as in ``nn.Linear``, the biases of the MLPs to 0: they are the same for all genes."""
        _, channels, hidden = self.weight_first.shape
        for fan_in, weights in ((2 * channels, (self.weight_first, self.weight_second)), (hidden, (self.weight_out,))):
            for weight in weights:
                nn.init.uniform_(weight, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        nn.init.zeros_(self.bias_in)
        nn.init.zeros_(self.bias_out)
        for module in (*self.scorer, self.norm):
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()

    def forward(self, h: Tensor, rows: DistinctRows | None = None, plus: Tensor | None = None) -> Tensor:
        if self.rows_at_once is None or self.leaves_out(h):
            y = self._mix(h, None if rows is None else rows.count)
        elif torch.is_grad_enabled():
            blocks = torch.split(h, self.rows_at_once, 1)
            y = torch.cat([checkpoint(self._mix, block, use_reentrant=False) for block in blocks])
        else:
            y = torch.cat([self._mix(block) for block in torch.split(h, self.rows_at_once, 1)])
        return row_norm(_spread(y, rows), self.norm.weight, self.norm.bias, plus, self.backend)

    def leaves_out(self, h: Tensor) -> bool:
        """The fused kernels do not look at them."""
        return fused(self.backend, h, *self.weight_first.shape[1:])

    def _mix(self, h: Tensor, count: Tensor | None = None) -> Tensor:
        scorer_in, _, scorer_out = self.scorer
        assert isinstance(scorer_in, nn.Linear)
        assert isinstance(scorer_out, nn.Linear)
        weights = (
            self.weight_first,
            self.weight_second,
            self.bias_in,
            self.weight_out,
            self.bias_out,
            scorer_in.weight.t(),
            scorer_in.bias,
            scorer_out.weight.squeeze(0),
        )
        return mix_pairs(h, weights, (self.pair_index, self.slot_pair), count, self.backend)

    def extra_repr(self) -> str:
        """Shown by ``repr``."""
        return f"{self.relations} relations, {len(self.weight_first)} pairs, rows_at_once={self.rows_at_once}"


def _spread(y: Tensor, rows: DistinctRows | None) -> Tensor:
    return y if rows is None else rows.spread(y).flatten(0, 1)
