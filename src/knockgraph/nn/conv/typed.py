"""All relations merged into one list of typed edges: one convolution instead of one per relation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knockgraph.nn.conv.relation_conv import RelationConv
from knockgraph.nn.grouped_linear import GroupedLinear
from knockgraph.ops import DistinctRows, autocast_input
from knockgraph.strategies import PerturbedGraphs

MERGED = "merged"
"""The name of the one relation that is left."""


class TypedConv(RelationConv):
    r"""A convolution on the union of all relations, in which each edge keeps its type r,

    .. math:: \mathrm{messages}(x) = \sum_r s_r \odot \bigl(m \odot A_r (m \odot x)\bigr),

    with a learned scale :math:`s_r` per type and channel that starts at 1. A pair of genes that is joined by several
    relations has as many edges.

    Args:
        types: Names of the relations, the types of the edges.
        channels: Channels of x and y.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[1, num_genes · batch, channels]``.
    """

    degrees = False

    def __init__(self, types: Sequence[str], channels: int) -> None:
        super().__init__((MERGED,), channels)
        self.types = tuple(types)
        self.scale = nn.Parameter(torch.ones(len(self.types), channels))

    def messages(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above: ``[num_genes, batch, channels]``."""
        if self.types == view.strategy.relation_names:
            of_type = view.aggregate_all(x)
        else:
            of_type = torch.stack([view.aggregate(name, x) for name in self.types])
        return (of_type * self.scale.to(of_type.dtype)[:, None, None]).sum(0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.types)} types, {self.channels})"


class TypedGINConv(TypedConv):
    r""":math:`y = \mathrm{MLP}\bigl((1 + \varepsilon)\, x + \mathrm{messages}(x)\bigr)`, :math:`\varepsilon` learned.

    Args:
        types: Names of the relations.
        channels: Channels of x and y.
        mlp_layers: Linear maps of the MLP, GELU between them.
    """

    def __init__(self, types: Sequence[str], channels: int, mlp_layers: int = 4) -> None:
        super().__init__(types, channels)
        self.eps = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential()
        for layer in range(mlp_layers):
            if layer:
                self.mlp.append(nn.GELU())
            self.mlp.append(GroupedLinear(1, channels, channels, activated=True))

    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""
        x = autocast_input(x)
        messages = self.messages(view, x)
        own = x.unsqueeze(1) if x.dim() == 2 else x
        h = torch.addcmul(messages, (1 + self.eps).to(x.dtype), own)
        y: Tensor = self.mlp(h.flatten(0, 1).unsqueeze(0))
        return y


class TypedSAGEConv(TypedConv):
    r""":math:`y = W\, \mathrm{messages}(x) / \max(d, 1) + V x + b` with :math:`d`, the number of remaining edges."""

    def __init__(self, types: Sequence[str], channels: int) -> None:
        super().__init__(types, channels)
        self.neighbour = nn.Linear(channels, channels)
        self.own = nn.Linear(channels, channels, bias=False)

    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""
        x = autocast_input(x)
        edges = torch.stack([view.degree(name) for name in self.types]).sum(0).clamp(min=1)
        mean = self.messages(view, x) / edges.to(x.dtype).unsqueeze(-1)
        own: Tensor = self.own(x)
        y: Tensor = self.neighbour(mean) + (own.unsqueeze(1) if x.dim() == 2 else own)
        return y.flatten(0, 1).unsqueeze(0)


class TypedGCNConv(TypedConv):
    r""":math:`y = d \odot \mathrm{messages}(d \odot x W) + d^2 \odot x W + b` with
    :math:`d = (\sum_r m \odot A_r m + 1)^{-1/2}`; the scales of the types have no part in d."""

    degrees = True

    def __init__(self, types: Sequence[str], channels: int) -> None:
        super().__init__(types, channels)
        self.linear = nn.Linear(channels, channels, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""
        h = self.linear(x)
        h = h.unsqueeze(1) if x.dim() == 2 else h
        precision = torch.float64 if h.dtype == torch.float64 else torch.float32
        strength = torch.stack([view.strength(name, precision) for name in self.types]).sum(0)
        d = (strength + 1).rsqrt().to(h.dtype).unsqueeze(-1)
        scaled = d * h
        y: Tensor = d * self.messages(view, scaled) + d * scaled + self.bias
        return y.flatten(0, 1).unsqueeze(0)
