"""The graph isomorphism layer on perturbed graphs."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from knockgraph.nn.conv.relation_conv import Names, RelationConv, affine, gather, gather_unmasked, gelu_fuses
from knockgraph.nn.grouped_linear import GroupedLinear
from knockgraph.ops import DistinctRows, autocast_input, relation_mlp
from knockgraph.strategies import PerturbedGraphs


class GINConv(RelationConv):
    r"""The graph isomorphism operator of `Xu et al. <https://arxiv.org/abs/1810.00826>`_ with keep-vector :math:`m`,

    .. math:: y = \mathrm{MLP}\bigl((1 + \varepsilon)\, x + m \odot A (m \odot x)\bigr).

    A deleted gene keeps its self term.

    Args:
        mlp: Maps ``[…, in_channels]`` to ``[…, out_channels]``; of several relations ``[relations, rows, in_channels]``
            with weights of their own, such as those of :meth:`of_channels`.
        eps: Initial :math:`\varepsilon`.
        train_eps: Whether :math:`\varepsilon` is learned.
        relations: How many relations, each with its own :math:`\varepsilon`; ``None``: one at a time.
        backend: Of the MLPs of :meth:`of_channels`, see :func:`~knockgraph.ops.relation_mlp`.

    Shapes:
        See :class:`~knockgraph.nn.RelationConv`.
    """

    local = True
    degrees = False
    eps: Tensor

    def __init__(
        self,
        mlp: nn.Module,
        eps: float = 0.0,
        train_eps: bool = True,
        relations: int | None = None,
        backend: str = "torch",
    ) -> None:
        super().__init__(relations)
        self.mlp = mlp
        self.initial_eps = eps
        self.backend = backend
        value = torch.empty(() if relations is None else (relations,))
        if train_eps:
            self.eps = nn.Parameter(value)
        else:
            self.register_buffer("eps", value)
        self.reset_parameters()

    @classmethod
    def of_channels(
        cls,
        channels: int,
        relations: int | None = None,
        mlp_layers: int = 4,
        backend: str = "auto",
        norm: bool = True,
    ) -> Self:
        r"""With MLPs of as many linear maps, GELU between them, and a learned :math:`\varepsilon`.

        Where no norm follows, the maps start smaller, as in ``nn.Linear``: what adds up over many neighbours is large.
        """
        conv = cls(mlp := nn.Sequential(), relations=relations, backend=backend)
        for layer in range(mlp_layers):
            if layer:
                mlp.append(nn.GELU())
            mlp.append(GroupedLinear(relations or 1, channels, channels, activated=norm))
        return conv

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for module in self.mlp.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        self.eps.data.fill_(self.initial_eps)

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        x = autocast_input(x)
        own, sent = gather(view, relation, x, "sum", rows)
        y: Tensor = self.mlp(torch.addcmul(sent, (1 + self.eps).to(x.dtype).view(-1, 1, 1), own))
        return y

    def fused(
        self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None, norm: nn.Module
    ) -> Tensor:
        linear = [module for module in self.mlp.modules() if isinstance(module, GroupedLinear)]
        own, sent, keep = gather_unmasked(view, relation, autocast_input(x), rows)
        return relation_mlp(
            own,
            sent,
            self.eps,
            torch.stack([module.weight for module in linear]),
            torch.stack([module.bias.squeeze(1) for module in linear if module.bias is not None]),
            affine(norm),
            None if rows is None else rows.count,
            self.backend,
            keep,
        )

    def fuses(self, x: Tensor, activation: nn.Module) -> bool:
        """Only GELU; see :func:`~knockgraph.ops.relation_mlp` for the rest."""
        return gelu_fuses(self.backend, x, activation)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mlp={self.mlp})"
