"""The attention layer on perturbed graphs."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.strategies import PerturbedGraphs


class GATv2Conv(nn.Module):
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

    Shapes:
        x ``[num_genes, batch, in_channels]`` (or ``[num_genes, in_channels]``, shared by all samples) ->
        ``[num_genes, batch, heads · out_channels]`` or ``[num_genes, batch, out_channels]``.
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
    ) -> None:
        super().__init__()
        if heads < 1:
            raise ModelError(f"heads={heads}, but attention needs at least one")
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.slope = slope
        self.source = nn.Linear(in_channels, heads * out_channels)
        self.target = nn.Linear(in_channels, heads * out_channels)
        self.attention = nn.Parameter(torch.empty(heads, out_channels))
        self.bias = nn.Parameter(torch.empty(heads * out_channels if concat else out_channels)) if bias else None
        self.reset_parameters()

    @classmethod
    def of_channels(cls, channels: int, heads: int = 1) -> Self:
        """With as many channels of x and y, the heads side by side."""
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be divided among {heads} heads; choose a divisor")
        return cls(channels, channels // heads, heads)

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for linear in (self.source, self.target):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)
        nn.init.xavier_uniform_(self.attention)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, view: PerturbedGraphs, relation: str, x: Tensor) -> Tensor:
        shape = (view.keep.shape[0], -1, self.heads, self.out_channels)
        # In a first layer all samples share x: the products are made once and only viewed per sample.
        source, target = self.source(x).view(shape), self.target(x).view(shape)
        columns = view.keep.shape[1]
        if x.dim() == 2:
            source, target = (t.expand(-1, columns, -1, -1) for t in (source, target))
        y = view.attend(relation, source, target, self.attention, self.slope)
        y = y.flatten(2) if self.concat else y.mean(2)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source.in_features}, {self.out_channels}, heads={self.heads})"
