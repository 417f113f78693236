"""The GraphSAGE layer on perturbed graphs."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from knockgraph.strategies import PerturbedGraphs


class SAGEConv(nn.Module):
    r"""The operator of `Hamilton et al. <https://arxiv.org/abs/1706.02216>`_ with keep-vector :math:`m`,

    .. math:: y = W_1\, \frac{m \odot A (m \odot x)}{\max(m \odot A m,\; 1)} + W_2\, x + b

    for ``mean``; for ``max`` the fraction is the largest remaining neighbour, channel by channel, 0 without one.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of y.
        reduce: ``mean`` or ``max``.
        bias: Whether there is a b.

    Shapes:
        x ``[num_genes, batch, in_channels]`` (or ``[num_genes, in_channels]``, shared by all samples) ->
        ``[num_genes, batch, out_channels]``.
    """

    def __init__(
        self, in_channels: int, out_channels: int, reduce: Literal["mean", "max"] = "mean", bias: bool = True
    ) -> None:
        super().__init__()
        self.reduce: Literal["mean", "max"] = reduce
        self.neighbour = nn.Linear(in_channels, out_channels, bias=bias)
        self.own = nn.Linear(in_channels, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Start anew."""
        self.neighbour.reset_parameters()
        self.own.reset_parameters()

    def forward(self, view: PerturbedGraphs, relation: str, x: Tensor) -> Tensor:
        """See the formula above."""
        own = self.own(x)
        own = own.unsqueeze(1) if x.dim() == 2 else own
        y: Tensor = self.neighbour(view.aggregate(relation, x, self.reduce)) + own
        return y

    def __repr__(self) -> str:
        lin = self.neighbour
        return f"{type(self).__name__}({lin.in_features}, {lin.out_features}, reduce={self.reduce})"
