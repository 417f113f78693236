"""One convolution per relation, all relations at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.nn.gatv2_conv import GATv2Conv
from knockgraph.nn.gcn_conv import GCNConv
from knockgraph.nn.grouped_linear import GroupedLinear
from knockgraph.ops import Reduce
from knockgraph.ops.spmm import autocast_input
from knockgraph.strategies import PerturbedGraphs


class RelationConv(nn.Module, ABC):
    r"""A convolution with parameters of its own for each relation, :math:`y_r = \mathrm{conv}_r(A_r, x)`.

    Args:
        relations: Names of the relations, in the order of the result.
        channels: Channels of x and y.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[relations, num_genes, batch, channels]``.
    """

    def __init__(self, relations: Sequence[str], channels: int) -> None:
        super().__init__()
        self.relations = tuple(relations)
        self.channels = channels

    @abstractmethod
    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""

    def neighbours(self, view: PerturbedGraphs, x: Tensor, reduce: Reduce) -> Tensor:
        """Each relation's aggregation; one product where all relations of the graph are asked for."""
        if self.relations == view.strategy.relation_names:
            return view.aggregate_all(x, reduce)
        return torch.stack([view.aggregate(name, x, reduce) for name in self.relations])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.relations)} relations, {self.channels})"


class GINRelationConv(RelationConv):
    r""":math:`y_r = \mathrm{MLP}_r\bigl((1 + \varepsilon_r)\, x + m \odot A_r (m \odot x)\bigr)`, :math:`\varepsilon_r`
    learned.

    Args:
        relations: Names of the relations.
        channels: Channels of x and y.
        mlp_layers: Linear maps of each MLP, GELU between them.
    """

    def __init__(self, relations: Sequence[str], channels: int, mlp_layers: int = 4) -> None:
        super().__init__(relations, channels)
        self.eps = nn.Parameter(torch.zeros(len(self.relations)))
        self.mlp = nn.Sequential()
        for layer in range(mlp_layers):
            if layer:
                self.mlp.append(nn.GELU())
            self.mlp.append(GroupedLinear(len(self.relations), channels, channels))

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""
        x = autocast_input(x)
        neighbours = self.neighbours(view, x, "sum")
        own = x.unsqueeze(1) if x.dim() == 2 else x
        h = torch.addcmul(neighbours, (1 + self.eps).to(x.dtype).view(-1, 1, 1, 1), own)
        y: Tensor = self.mlp(h.flatten(1, 2))
        return y.view(neighbours.shape)


class SAGERelationConv(RelationConv):
    r""":math:`y_r = W_r\, \mathrm{mean}_r + V_r\, x + b_r`, the mean over each sample's remaining neighbours."""

    def __init__(self, relations: Sequence[str], channels: int) -> None:
        super().__init__(relations, channels)
        self.neighbour = GroupedLinear(len(self.relations), channels, channels)
        self.own = GroupedLinear(len(self.relations), channels, channels, bias=False)

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""
        x = autocast_input(x)
        neighbours = self.neighbours(view, x, "mean")
        own = x.unsqueeze(1) if x.dim() == 2 else x
        rows = own.flatten(0, 1).expand(len(self.relations), -1, -1)
        mixed: Tensor = self.neighbour(neighbours.flatten(1, 2))
        kept: Tensor = self.own(rows)
        return mixed.view(neighbours.shape) + kept.view(-1, *own.shape)


class GCNRelationConv(RelationConv):
    """:class:`~knockgraph.nn.GCNConv` for each relation."""

    def __init__(self, relations: Sequence[str], channels: int) -> None:
        super().__init__(relations, channels)
        self.convs = nn.ModuleList(GCNConv(channels, channels) for _ in self.relations)

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""
        return torch.stack([conv(view, name, x) for name, conv in zip(self.relations, self.convs, strict=True)])


class GATv2RelationConv(RelationConv):
    """:class:`~knockgraph.nn.GATv2Conv` for each relation, the heads side by side.

    Args:
        relations: Names of the relations.
        channels: Channels of x and y, a multiple of ``heads``.
        heads: Number of heads.
    """

    def __init__(self, relations: Sequence[str], channels: int, heads: int = 1) -> None:
        super().__init__(relations, channels)
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be shared by {heads} heads; choose a divisor")
        self.convs = nn.ModuleList(GATv2Conv(channels, channels // heads, heads) for _ in self.relations)

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""
        return torch.stack([conv(view, name, x) for name, conv in zip(self.relations, self.convs, strict=True)])
