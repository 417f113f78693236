"""The graph convolution layer on perturbed graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.strategies import PerturbedGraphs


class GCNConv(nn.Module):
    r"""The operator of `Kipf and Welling <https://arxiv.org/abs/1609.02907>`_ with keep-vector :math:`m`,

    .. math::
        d &= (m \odot A m + 1)^{-1/2} \\
        y &= d \odot m \odot A\,(m \odot d \odot x W) + d^2 \odot x W + b.

    Every gene, a deleted one too, has one self loop beside the edges of the relation. Weights of the relation count in
    A, so also in d; they must be positive.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of y.
        bias: Whether there is a b.

    Shapes:
        x ``[num_genes, batch, in_channels]`` (or ``[num_genes, in_channels]``, shared by all samples) ->
        ``[num_genes, batch, out_channels]``.
    """

    degrees = True

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels, bias=False)
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        nn.init.xavier_uniform_(self.linear.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, view: PerturbedGraphs, relation: str, x: Tensor) -> Tensor:
        h = self.linear(x)
        h = h.unsqueeze(1) if x.dim() == 2 else h
        precision = torch.float64 if h.dtype == torch.float64 else torch.float32
        d = (view.strength(relation, precision) + 1).rsqrt().to(h.dtype).unsqueeze(-1)
        scaled = d * h
        y: Tensor = d * view.aggregate(relation, scaled) + d * scaled
        return y if self.bias is None else y + self.bias

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.linear.in_features}, {self.linear.out_features})"
