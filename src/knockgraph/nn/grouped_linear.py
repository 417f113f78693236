"""One linear map per group, all of them in one product."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class GroupedLinear(nn.Module):
    r"""A linear map of its own for each group (here: each relation), one batched matrix product for all,

    .. math:: y_g = x_g W_g + b_g.

    Args:
        groups: Number of groups.
        in_channels: Channels of x.
        out_channels: Channels of y.
        bias: Whether there is a b.

    Shapes:
        x ``[groups, rows, in_channels]`` -> ``[groups, rows, out_channels]``; the weight is
        ``[groups, in_channels, out_channels]``, the bias ``[groups, 1, out_channels]``.
    """

    def __init__(self, groups: int, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(groups, 1, out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew, each group as ``nn.Linear`` does."""
        bound = 1 / math.sqrt(max(self.weight.shape[1], 1))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """See the formula above."""
        if self.bias is None:
            return torch.bmm(x, self.weight)
        return torch.baddbmm(self.bias, x, self.weight)

    def __repr__(self) -> str:
        groups, in_channels, out_channels = self.weight.shape
        return f"{type(self).__name__}({groups} × {in_channels}, {out_channels}, bias={self.bias is not None})"
