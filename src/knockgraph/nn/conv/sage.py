"""The GraphSAGE layer on perturbed graphs."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from knockgraph.nn.conv.relation_conv import Names, RelationConv, gather, linear
from knockgraph.ops import DistinctRows, autocast_input
from knockgraph.strategies import PerturbedGraphs


class SAGEConv(RelationConv):
    r"""The operator of `Hamilton et al. <https://arxiv.org/abs/1706.02216>`_ with keep-vector :math:`m`,

    .. math:: y = W_1\, \frac{m \odot A (m \odot x)}{\max(m \odot A m,\; 1)} + W_2\, x + b

    for ``mean``; for ``max`` the fraction is the largest remaining neighbour, channel by channel, 0 without one.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of y.
        reduce: ``mean`` or ``max``.
        bias: Whether there is a b.
        relations: How many relations, each with its own W and b; ``None``: one at a time.

    Shapes:
        See :class:`~knockgraph.nn.RelationConv`.
    """

    local = True
    degrees = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        reduce: Literal["mean", "max"] = "mean",
        bias: bool = True,
        relations: int | None = None,
    ) -> None:
        super().__init__(relations)
        self.reduce: Literal["mean", "max"] = reduce
        self.neighbour = linear(relations, in_channels, out_channels, bias)
        self.own = linear(relations, in_channels, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        self.neighbour.reset_parameters()
        self.own.reset_parameters()

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        return sage(view, relation, x, self.neighbour, self.own, self.reduce, rows)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.neighbour}, reduce={self.reduce})"


def sage(
    view: PerturbedGraphs,
    relation: Names,
    x: Tensor,
    neighbour: nn.Module,
    own: nn.Module,
    reduce: Literal["mean", "max"] = "mean",
    rows: DistinctRows | None = None,
) -> Tensor:
    """The formula of :class:`SAGEConv` for maps that belong to somebody else: W₁ with b, and W₂."""
    itself, sent = gather(view, relation, autocast_input(x), reduce, rows)
    y: Tensor = neighbour(sent) + own(itself)
    return y
