"""Layer normalisation with an affine map per group."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GroupedLayerNorm(nn.Module):
    r"""Layer normalisation over the channels, with a scale and a shift of its own for each group,

    .. math:: y_g = \gamma_g \odot \frac{x_g - \mathrm{mean}(x_g)}{\sqrt{\mathrm{var}(x_g) + 10^{-5}}} + \beta_g.

    Args:
        groups: Number of groups.
        channels: Channels of x.

    Shapes:
        x ``[groups, rows, channels]`` -> the same.
    """

    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, 1, channels))
        self.bias = nn.Parameter(torch.empty(groups, 1, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, nn.functional.layer_norm(x, x.shape[-1:]), self.weight)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.weight.shape[0]} × {self.weight.shape[2]})"
