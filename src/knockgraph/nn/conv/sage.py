"""The GraphSAGE layer on perturbed graphs."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from knockgraph.nn.conv.relation_conv import Names, RelationConv, affine, gather, linear, one_map_fuses
from knockgraph.ops import DistinctRows, autocast_input, relation_mlp
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
        backend: Of the maps, norm and activation of several relations, see :func:`~knockgraph.ops.relation_mlp`.

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
        backend: str = "auto",
    ) -> None:
        super().__init__(relations)
        self.backend = backend
        self.reduce: Literal["mean", "max"] = reduce
        self.neighbour = linear(relations, in_channels, out_channels, bias)
        self.own = linear(relations, in_channels, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        self.neighbour.reset_parameters()
        self.own.reset_parameters()

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        return sage(view, relation, x, self.neighbour, self.own, self.reduce, rows)

    def fused(
        self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None, norm: nn.Module
    ) -> Tensor:
        assert self.neighbour.bias is not None
        return relation_mlp(
            *gather(view, relation, autocast_input(x), self.reduce, rows),
            self.own.weight,
            self.neighbour.weight.unsqueeze(0),
            self.neighbour.bias.squeeze(1).unsqueeze(0),
            affine(norm),
            None if rows is None else rows.count,
            self.backend,
        )

    def fuses(self, x: Tensor, activation: nn.Module) -> bool:
        """Only GELU, with a b; see :func:`~knockgraph.ops.relation_mlp` for the rest."""
        return self.neighbour.bias is not None and one_map_fuses(self.backend, x, activation, self.neighbour)

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
