"""The graph convolution layer on perturbed graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.nn.conv.relation_conv import Names, RelationConv, affine, linear, one_map_fuses, own_states
from knockgraph.ops import DistinctRows, accumulator, autocast_input, relation_mlp
from knockgraph.strategies import PerturbedGraphs


class GCNConv(RelationConv):
    r"""The operator of `Kipf and Welling <https://arxiv.org/abs/1609.02907>`_ with keep-vector :math:`m`,

    .. math::
        d &= (m \odot A m + 1)^{-1/2} \\
        y &= d \odot m \odot A\,(m \odot d \odot x W) + d^2 \odot x W + b.

    Every gene, a deleted one too, has one self loop beside the edges of the relation. Weights of the relation count in
    A, so also in d; they must be positive. Of several relations, W comes after the sums, which is the same.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of y.
        bias: Whether there is a b.
        relations: How many relations, each with its own W and b; ``None``: one at a time.
        backend: Of the maps, norm and activation of several relations, see :func:`~knockgraph.ops.relation_mlp`.

    Shapes:
        See :class:`~knockgraph.nn.RelationConv`.
    """

    degrees = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        relations: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(relations)
        self.backend = backend
        self.linear = linear(relations, in_channels, out_channels, bias=False)
        shape = (out_channels,) if relations is None else (relations, 1, out_channels)
        self.bias = nn.Parameter(torch.empty(shape)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for weight in [self.linear.weight] if self.relations is None else self.linear.weight:
            nn.init.xavier_uniform_(weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        if isinstance(relation, str):
            y = self._one(view, relation, x)
        else:
            own, sent, factor = self._gathered(view, relation, autocast_input(x))
            y = self.linear(torch.addcmul(sent, factor.to(sent.dtype).unsqueeze(-1), own))
        y = y if self.bias is None else y + self.bias
        return y if rows is None else rows.take(y)

    def _one(self, view: PerturbedGraphs, relation: str, x: Tensor) -> Tensor:
        h: Tensor = self.linear(x)
        h = h.unsqueeze(1) if x.dim() == 2 else h
        d = (view.strength(relation, accumulator(h.dtype)) + 1).rsqrt().to(h.dtype).unsqueeze(-1)
        scaled = d * h
        return d * view.aggregate(relation, scaled) + d * scaled

    def _gathered(self, view: PerturbedGraphs, relations: Names, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The genes' own states, what their neighbours send, d ⊙ m ⊙ A(m ⊙ d ⊙ x), and d² ``[relations, rows]``."""
        strength = torch.stack([view.strength(name, accumulator(x.dtype)) for name in relations])
        d = (strength + 1).rsqrt()
        sent = view.aggregate_scaled(relations, x, d)
        return own_states(view, x), sent.flatten(1, 2), d.square().flatten(1)

    def fused(
        self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None, norm: nn.Module
    ) -> Tensor:
        assert self.bias is not None
        assert rows is None  # degrees reach further than the rows that a sum changes
        return relation_mlp(
            *self._gathered(view, relation, autocast_input(x)),
            self.linear.weight.unsqueeze(0),
            self.bias.squeeze(1).unsqueeze(0),
            affine(norm),
            None,
            self.backend,
        )

    def fuses(self, x: Tensor, activation: nn.Module) -> bool:
        """Only GELU, with a b; see :func:`~knockgraph.ops.relation_mlp` for the rest."""
        return self.bias is not None and one_map_fuses(self.backend, x, activation, self.linear)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Earlier versions had one layer for each relation.
        for name in ("linear.weight", "bias"):
            keys = [f"{prefix}convs.{number}.{name}" for number in range(self.relations or 0)]
            parts = [state_dict.pop(key) for key in keys if key in state_dict]
            if parts:
                state_dict[prefix + name] = torch.stack([part.t() if part.dim() == 2 else part[None] for part in parts])
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.linear})"
