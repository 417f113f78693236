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
        activated: Whether an activation follows. Then W starts with variance 2/in_channels, so that the size of the
            states survives a ReLU or GELU (`He et al. <https://arxiv.org/abs/1502.01852>`_), and b starts at 0: with a
            random b after every map, b is soon larger than what differs between rows. Otherwise both start as in
            ``nn.Linear``.

    Shapes:
        x ``[groups, rows, in_channels]`` (or ``[rows, in_channels]``, shared by all groups; with one group any leading
        axes) -> ``[groups, rows, out_channels]`` (with one group those of x); the weight is
        ``[groups, in_channels, out_channels]``, the bias ``[groups, 1, out_channels]``.
    """

    def __init__(
        self, groups: int, in_channels: int, out_channels: int, bias: bool = True, activated: bool = False
    ) -> None:
        super().__init__()
        self.activated = activated
        self.weight = nn.Parameter(torch.empty(groups, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(groups, 1, out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset W and b, see ``activated``."""
        bound = math.sqrt((6 if self.activated else 1) / max(self.weight.shape[1], 1))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            limit = 0.0 if self.activated else bound
            nn.init.uniform_(self.bias, -limit, limit)

    def forward(self, x: Tensor) -> Tensor:
        groups, _, out_channels = self.weight.shape
        h = x.reshape(1, -1, x.shape[-1]) if groups == 1 else x.expand(groups, -1, -1)
        y = torch.bmm(h, self.weight) if self.bias is None else torch.baddbmm(self.bias, h, self.weight)
        return y.view(*x.shape[:-1], out_channels) if groups == 1 else y

    def __repr__(self) -> str:
        groups, in_channels, out_channels = self.weight.shape
        return f"{type(self).__name__}({groups} × {in_channels}, {out_channels}, bias={self.bias is not None})"
