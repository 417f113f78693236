"""One convolution per relation, all relations at once."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph import registry
from knockgraph.errors import ModelError
from knockgraph.nn.conv.gatv2 import GATv2Conv
from knockgraph.nn.conv.gcn import GCNConv
from knockgraph.nn.grouped_layer_norm import GroupedLayerNorm
from knockgraph.nn.grouped_linear import GroupedLinear
from knockgraph.ops import DistinctRows, Reduce, autocast_input, fused, relation_mlp
from knockgraph.strategies import PerturbedGraphs


class RelationConv(nn.Module, ABC):
    r"""A convolution with parameters of its own for each relation, :math:`y_r = \mathrm{conv}_r(A_r, x)`.

    Args:
        relations: Names of the relations, in the order of the result.
        channels: Channels of x and y.

    Attributes:
        local: Whether the result at a gene depends only on the gene and its remaining neighbours' features. Where all
            samples share x, such a layer has few rows that differ, see :class:`~knockgraph.ops.DistinctRows`.
        degrees: Whether the neighbours' degrees count, too, so that a deletion reaches one hop further; ``None``: not
            stated, it may reach any distance.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[relations, num_genes · batch, channels]``; with distinct rows only their places.
    """

    local: bool = False
    degrees: bool | None = None

    def __init__(self, relations: Sequence[str], channels: int) -> None:
        super().__init__()
        self.relations = tuple(relations)
        self.channels = channels

    @abstractmethod
    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""

    def activated(
        self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None, norm: nn.Module, activation: nn.Module
    ) -> Tensor:
        """The convolution, then ``norm``, then ``activation``."""
        y: Tensor = activation(norm(self(view, x, rows)))
        return y

    def fuses(self, x: Tensor, norm: nn.Module, activation: nn.Module) -> bool:
        """Whether :meth:`activated` runs as one fused operation, which leaves out rows that are not there."""
        return False

    def neighbours(self, view: PerturbedGraphs, x: Tensor, reduce: Reduce, rows: DistinctRows | None) -> Tensor:
        """Each relation's aggregation; one product where all relations of the graph are asked for."""
        if self.relations == view.strategy.relation_names:
            if rows is not None:
                return view.aggregate_rows(x, reduce, rows)
            h = view.aggregate_all(x, reduce)
        else:
            h = torch.stack([view.aggregate(name, x, reduce) for name in self.relations])
        h = h.flatten(1, 2)
        return h if rows is None else rows.take(h)

    def own_rows(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None) -> Tensor:
        """The rows' own features, ``[num_genes · batch, channels]`` or the distinct ones."""
        columns = view.keep.shape[1]
        if x.dim() == 2:
            if rows is not None and rows.count is None:
                return x.index_select(0, rows.rows // columns)
            x = x.unsqueeze(1).expand(-1, columns, -1)
        x = x.flatten(0, 1)
        return x if rows is None else rows.take(x.unsqueeze(0)).squeeze(0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.relations)} relations, {self.channels})"


class GINRelationConv(RelationConv):
    r""":math:`y_r = \mathrm{MLP}_r\bigl((1 + \varepsilon_r)\, x + m \odot A_r (m \odot x)\bigr)`, :math:`\varepsilon_r`
    learned.

    Args:
        relations: Names of the relations.
        channels: Channels of x and y.
        mlp_layers: Linear maps of each MLP, GELU between them.
        backend: Of the MLPs, see :func:`~knockgraph.ops.relation_mlp`.
    """

    local = True
    degrees = False

    def __init__(self, relations: Sequence[str], channels: int, mlp_layers: int = 4, backend: str = "auto") -> None:
        super().__init__(relations, channels)
        self.backend = backend
        self.eps = nn.Parameter(torch.zeros(len(self.relations)))
        self.mlp = nn.Sequential()
        for layer in range(mlp_layers):
            if layer:
                self.mlp.append(nn.GELU())
            self.mlp.append(GroupedLinear(len(self.relations), channels, channels, activated=True))

    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""
        x = autocast_input(x)
        own = self.own_rows(view, x, rows)
        factor = (1 + self.eps).to(x.dtype).view(-1, 1, 1)
        y: Tensor = self.mlp(torch.addcmul(self.neighbours(view, x, "sum", rows), factor, own))
        return y

    def activated(
        self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None, norm: nn.Module, activation: nn.Module
    ) -> Tensor:
        """All in one where the kernels can."""
        if not self.fuses(x, norm, activation):
            return super().activated(view, x, rows, norm, activation)
        x = autocast_input(x)
        linear = [module for module in self.mlp if isinstance(module, GroupedLinear)]
        return relation_mlp(
            self.own_rows(view, x, rows),
            self.neighbours(view, x, "sum", rows),
            self.eps,
            torch.stack([module.weight for module in linear]),
            torch.stack([module.bias.squeeze(1) for module in linear if module.bias is not None]),
            (norm.weight.squeeze(1), norm.bias.squeeze(1)) if isinstance(norm, GroupedLayerNorm) else None,
            None if rows is None else rows.count,
            self.backend,
        )

    def fuses(self, x: Tensor, norm: nn.Module, activation: nn.Module) -> bool:
        """Only GELU; see :func:`~knockgraph.ops.relation_mlp` for the rest."""
        return isinstance(activation, nn.GELU) and fused(self.backend, autocast_input(x), self.channels)


class SAGERelationConv(RelationConv):
    r""":math:`y_r = W_r\, \mathrm{mean}_r + V_r\, x + b_r`, the mean over each sample's remaining neighbours."""

    local = True
    degrees = False

    def __init__(self, relations: Sequence[str], channels: int) -> None:
        super().__init__(relations, channels)
        self.neighbour = GroupedLinear(len(self.relations), channels, channels, activated=True)
        self.own = GroupedLinear(len(self.relations), channels, channels, bias=False, activated=True)

    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""
        x = autocast_input(x)
        own = self.own_rows(view, x, rows).expand(len(self.relations), -1, -1)
        mixed: Tensor = self.neighbour(self.neighbours(view, x, "mean", rows)) + self.own(own)
        return mixed


class EachRelationConv(RelationConv):
    r"""A layer of one relation, such as :class:`~knockgraph.nn.GCNConv`, made once for each:
    :math:`y_r = \mathrm{convs}_r(\mathrm{view}, r, x)`.

    Args:
        relations: Names of the relations.
        channels: Channels of x and y.
        convs: As many layers, in their order.
        degrees: See :class:`RelationConv`.
    """

    def __init__(
        self, relations: Sequence[str], channels: int, convs: Iterable[nn.Module], degrees: bool | None = None
    ) -> None:
        super().__init__(relations, channels)
        self.convs = nn.ModuleList(convs)
        self.degrees = degrees

    def forward(self, view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """See the formula above."""
        convs = zip(self.relations, self.convs, strict=True)
        return torch.stack([conv(view, name, x).flatten(0, 1) for name, conv in convs])


class GCNRelationConv(EachRelationConv):
    """:class:`~knockgraph.nn.GCNConv` for each relation."""

    def __init__(self, relations: Sequence[str], channels: int) -> None:
        super().__init__(relations, channels, (GCNConv(channels, channels) for _ in relations), degrees=True)


class GATv2RelationConv(EachRelationConv):
    """:class:`~knockgraph.nn.GATv2Conv` for each relation, the heads side by side.

    Args:
        relations: Names of the relations.
        channels: Channels of x and y, a multiple of ``heads``.
        heads: Number of heads.
    """

    def __init__(self, relations: Sequence[str], channels: int, heads: int = 1) -> None:
        if channels % heads:
            raise ModelError(f"{channels} channels cannot be shared by {heads} heads; choose a divisor")
        convs = (GATv2Conv(channels, channels // heads, heads) for _ in relations)
        super().__init__(relations, channels, convs, degrees=False)


def relation_conv(name: str, relations: Sequence[str], channels: int, **offered: Any) -> RelationConv:
    """A convolution over several relations by name.

    Args:
        name: One of the registry's convolutions, or ``package.module:Class``: a :class:`RelationConv`, or a layer of
            one relation with ``Class(in_channels, out_channels)`` and ``forward(view, relation, x)``.
        relations: Names of the relations.
        channels: Channels of x and y.
        offered: Options of which the class is given those that its signature names.
    """
    kind = registry.find("convolution", name)
    takes = inspect.signature(kind).parameters
    options = {key: value for key, value in offered.items() if key in takes}
    if issubclass(kind, RelationConv):
        conv: RelationConv = kind(relations, channels, **options)
        return conv
    convs = (kind(channels, channels, **options) for _ in relations)
    return EachRelationConv(relations, channels, convs, getattr(kind, "degrees", None))
