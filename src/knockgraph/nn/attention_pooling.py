"""One vector for all kept genes, or surviving reactions, of a sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.ops import at_least_float32, attention_pool


class AttentionPooling(nn.Module):
    r"""A mean over the rows that are kept, weighted by attention,

    .. math:: z_b = \sum_i \frac{m_{ib} \exp g(x_{ib})}{\sum_j m_{jb} \exp g(x_{jb})}\; x_{ib},

    with a gate :math:`g` (2-layer MLP). What is in a row that is left out (even NaN) does not matter; a sample without
    any row gets 0. Weights and sums are float32 (float64 for float64) also under autocast: what is learned from is the
    small difference between two such means. A row that is kept in part has a number m between 0 and 1.

    Args:
        channels: Channels of x.
        backend: See :func:`~knockgraph.ops.attention_pool`.

    Shapes:
        x ``[rows, batch, channels]``, keep ``[rows, batch]`` -> ``[batch, channels]``.
    """

    def __init__(self, channels: int, backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend
        hidden = max(channels // 2, 1)
        self.gate = nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, 1))

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        if keep.is_floating_point():
            return self._partly(x, keep)
        return attention_pool(x, keep, tuple(self.gate.parameters()), self.backend)

    def _partly(self, x: Tensor, keep: Tensor) -> Tensor:
        """The formula above with any m, differentiable in it."""
        weight = at_least_float32(self.gate(x).squeeze(-1)).t().softmax(1) * keep.t()
        total = weight.sum(1, keepdim=True)
        share = weight / torch.where(total > 0, total, total.new_ones(()))
        return torch.bmm(share.unsqueeze(1), at_least_float32(x).transpose(0, 1)).squeeze(1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.gate[0].in_features})"
