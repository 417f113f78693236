"""The graph isomorphism layer on perturbed graphs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.strategies import PerturbedGraphs


class GINConv(nn.Module):
    r"""The graph isomorphism operator of `Xu et al. <https://arxiv.org/abs/1810.00826>`_ with keep-vector :math:`m`,

    .. math:: y = \mathrm{MLP}\bigl((1 + \varepsilon)\, x + m \odot A (m \odot x)\bigr).

    A deleted gene keeps its self term.

    Args:
        mlp: Maps ``[…, in_channels]`` to ``[…, out_channels]``.
        eps: Initial :math:`\varepsilon`.
        train_eps: Whether :math:`\varepsilon` is learned.

    Shapes:
        x ``[num_genes, batch, in_channels]`` (or ``[num_genes, in_channels]``, shared by all samples) ->
        ``[num_genes, batch, out_channels]``.
    """

    eps: Tensor

    def __init__(self, mlp: nn.Module, eps: float = 0.0, train_eps: bool = True) -> None:
        super().__init__()
        self.mlp = mlp
        self.initial_eps = eps
        if train_eps:
            self.eps = nn.Parameter(torch.empty(()))
        else:
            self.register_buffer("eps", torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew."""
        for module in self.mlp.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        self.eps.data.fill_(self.initial_eps)

    def forward(self, view: PerturbedGraphs, relation: str, x: Tensor) -> Tensor:
        """See the formula above."""
        neighbours = view.aggregate(relation, x)
        own = x.unsqueeze(1) if x.dim() == 2 else x
        y: Tensor = self.mlp((1 + self.eps) * own + neighbours)
        return y

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mlp={self.mlp})"
