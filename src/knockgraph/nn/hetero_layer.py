"""One layer of the hetero cell model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from knockgraph.nn.conv.relation_conv import RelationConv
from knockgraph.nn.grouped_layer_norm import GroupedLayerNorm
from knockgraph.nn.relation_aggregation import RelationAggregation
from knockgraph.ops import DistinctRows, wide_and_narrow
from knockgraph.strategies import PerturbedGraphs

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU}


class HeteroLayer(nn.Module):
    r"""One convolution per relation, then one state again, added to what the layer was given,

    .. math:: x' = x + \mathrm{aggregation}_r\Bigl(\mathrm{dropout}\bigl(\phi(\mathrm{norm}_r(
        \mathrm{conv}_r(A_r, x)))\bigr)\Bigr).

    Without the x in front, a gene with hundreds of neighbours keeps a small share of its own state in each layer, and
    after three of them no two genes can be told apart. It is kept in float32 also under autocast.

    What a layer adds has been normalised and is as large as what it is given. Layers that start small, with the scale
    :math:`s < 1` of the last norm before x is added, let the layers before them learn first.

    Args:
        conv: The convolutions.
        relations: Names of the relations.
        channels: Channels of x.
        aggregation: A :class:`~knockgraph.nn.relation_aggregation.RelationAggregation`.
        norm: Whether there is a LayerNorm, with a scale and shift per relation.
        activation: Name of the activation φ, one of ``ACTIVATIONS``.
        dropout: Share of the activations that are dropped in training.
        residual: Whether x is added.
        scale: Initial scale s of the last norm, if there is one.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[num_genes, batch, channels]``.
    """

    def __init__(
        self,
        conv: RelationConv,
        relations: Sequence[str],
        channels: int,
        aggregation: RelationAggregation,
        norm: bool,
        activation: str,
        dropout: float,
        residual: bool = True,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.conv = conv
        self.relations = tuple(relations)
        self.norm = GroupedLayerNorm(conv.relations or 1, channels) if norm else nn.Identity()
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.aggregation = aggregation
        self.residual = residual
        last = getattr(aggregation, "norm", self.norm)
        if isinstance(last, (nn.LayerNorm, GroupedLayerNorm)):
            last.weight.data.mul_(scale)

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        rows = self._rows(view, x)
        wide, x = wide_and_narrow(x)
        if self.conv.fuses(x, self.activation):
            h = self.conv.fused(view, self.relations, x, rows, self.norm)
        else:
            h = self.activation(self.norm(self.conv(view, self.relations, x, rows)))
        plus = wide.flatten(0, -2) if self.residual else None
        y: Tensor = self.aggregation(self.dropout(h), rows, plus)
        return y.view(*view.keep.shape, y.shape[-1])

    def _rows(self, view: PerturbedGraphs, x: Tensor) -> DistinctRows | None:
        """Where the samples share x, the rows that differ, if leaving the others out pays."""
        if x.dim() == 3 or not self.conv.local:
            return None
        if self.training and self.dropout.p > 0:
            return None  # samples that share a row would share what is dropped
        # On a device the number of rows is not known: only fused kernels can leave some out.
        able = self.aggregation.leaves_out(x) and self.conv.fuses(x, self.activation)
        # On the host their number is known, but not to a compiler.
        known = x.device.type == "cpu" and not torch.compiler.is_compiling()
        return view.distinct_rows() if able or known else None
