"""One layer of the hetero cell model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from knockgraph.nn.grouped_layer_norm import GroupedLayerNorm
from knockgraph.nn.relation_conv import RelationConv
from knockgraph.strategies import PerturbedGraphs

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU}


class HeteroLayer(nn.Module):
    r"""One convolution per relation, then one state again,

    .. math:: x' = \mathrm{aggregation}_r\Bigl(\mathrm{dropout}\bigl(\phi(\mathrm{norm}_r(
        \mathrm{conv}_r(A_r, x)))\bigr)\Bigr).

    Args:
        conv: The convolutions.
        aggregation: Maps ``[relations, rows, channels]`` to ``[rows, channels]``.
        norm: Whether there is a LayerNorm, with a scale and shift per relation.
        activation: Name of the activation φ, one of ``ACTIVATIONS``.
        dropout: Share of the activations that are dropped in training.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[num_genes, batch, channels]``.
    """

    def __init__(self, conv: RelationConv, aggregation: nn.Module, norm: bool, activation: str, dropout: float) -> None:
        super().__init__()
        self.conv = conv
        self.norm = GroupedLayerNorm(len(conv.relations), conv.channels) if norm else nn.Identity()
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.aggregation = aggregation

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""
        h: Tensor = self.conv(view, x)
        y: Tensor = self.aggregation(self.dropout(self.activation(self.norm(h.flatten(1, 2)))))
        return y.view(h.shape[1:])
