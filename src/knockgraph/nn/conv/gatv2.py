"""The attention layer on perturbed graphs."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.nn.conv.relation_conv import Names, RelationConv, gelu_fuses, linear
from knockgraph.ops import DistinctRows, autocast_input
from knockgraph.strategies import PerturbedGraphs


class GATv2Conv(RelationConv):
    r"""The operator of `Brody et al. <https://arxiv.org/abs/2105.14491>`_, the mask inside the softmax,

    .. math:: y_i = \sum_{j \to i,\; m_i m_j = 1} \operatorname{softmax}_j\bigl(a^\top
        \mathrm{LeakyReLU}(W_1 x_j + W_2 x_i)\bigr)\; W_1 x_j + b,

    for each head. There are no self loops beside those of the relation; a gene without a remaining neighbour gets b.
    Edge weights are not used.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of each head.
        heads: Number of heads.
        concat: Heads side by side (``heads · out_channels`` channels) or averaged.
        slope: Of the LeakyReLU for negative inputs.
        bias: Whether there is a b.
        relations: How many relations, each with its own :math:`W_1, W_2, a, b`; ``None``: one at a time.
        backend: Of the norm and activation of several relations, see :func:`~knockgraph.ops.norm_gelu`.

    Shapes:
        See :class:`~knockgraph.nn.RelationConv`; the result has ``heads · out_channels`` or ``out_channels`` channels.
    """

    local = True
    degrees = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        slope: float = 0.2,
        bias: bool = True,
        relations: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__(relations)
        if heads < 1:
            raise ModelError(f"heads={heads}, but attention needs at least one")
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.slope = slope
        self.backend = backend
        self.source = linear(relations, in_channels, heads * out_channels)
        self.target = linear(relations, in_channels, heads * out_channels)
        width = heads * out_channels if concat else out_channels
        several = () if relations is None else (relations,)
        self.attention = nn.Parameter(torch.empty(*several, heads, out_channels))
        self.bias = nn.Parameter(torch.empty(*(() if relations is None else (relations, 1)), width)) if bias else None
        self.reset_parameters()

    @classmethod
    def of_channels(cls, channels: int, heads: int = 1, relations: int | None = None, backend: str = "auto") -> Self:
        """With as many channels of x and y, the heads side by side."""
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be divided among {heads} heads; choose a divisor")
        return cls(channels, channels // heads, heads, relations=relations, backend=backend)

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for made in (self.source, self.target):
            assert made.bias is not None
            nn.init.zeros_(made.bias)
        for weight in (self.source.weight, self.target.weight, self.attention):
            for part in [weight] if self.relations is None else weight:
                nn.init.xavier_uniform_(part)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        if isinstance(relation, str):
            y = self._attend(view, relation, x.dim() == 2, self.source(x), self.target(x), self.attention)
            return y if self.bias is None else y + self.bias.to(y.dtype)
        shared = x.dim() == 2
        x = autocast_input(x if shared else x.flatten(-3, -2))
        x = x.unsqueeze(0) if x.dim() == 2 else x
        states = zip(relation, self.source(x), self.target(x), self.attention, strict=True)
        y = torch.stack([self._attend(view, name, shared, *rest).flatten(0, 1) for name, *rest in states])
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return y if rows is None else rows.take(y)

    def _attend(
        self, view: PerturbedGraphs, relation: str, shared: bool, source: Tensor, target: Tensor, attention: Tensor
    ) -> Tensor:
        # In a first layer all samples share their states.
        shape = (len(view.keep), *(() if shared else (-1,)), self.heads, self.out_channels)
        y = view.attend(relation, source.view(shape), target.view(shape), attention, self.slope)
        return y.flatten(2) if self.concat else y.mean(2)

    def fuses(self, x: Tensor, activation: nn.Module) -> bool:
        """Only GELU, and only what comes after the attention; see :func:`~knockgraph.ops.norm_gelu`."""
        return gelu_fuses(self.backend, x, activation)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Earlier versions had one layer for each relation.
        for name in ("source.weight", "source.bias", "target.weight", "target.bias", "attention", "bias"):
            keys = [f"{prefix}convs.{number}.{name}" for number in range(self.relations or 0)]
            parts = [state_dict.pop(key) for key in keys if key in state_dict]
            if parts:
                whole = torch.stack(parts)
                whole = whole.unsqueeze(1) if name.endswith("bias") else whole
                state_dict[prefix + name] = whole.transpose(1, 2) if name.endswith("weight") else whole
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source}, {self.heads} × {self.out_channels})"
