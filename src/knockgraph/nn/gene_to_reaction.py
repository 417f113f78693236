"""From genes to the reactions that they run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.graph import Metabolism
from knockgraph.ops import SparseOperator, accumulator, spmm
from knockgraph.strategies import PerturbedGraphs


class GeneToReaction(nn.Module):
    r"""The mean of a living reaction's kept genes,

    .. math:: y_r = \alpha_r \; \frac{\sum_{g \in r} m_g x_g}{\max(\sum_{g \in r} m_g,\; 1)},

    with the genes' keep-vector :math:`m` and the reactions' :math:`\alpha` (``view.reactions_alive``). Dead reactions
    and reactions without genes get 0. With doses :math:`d`, which take the place of :math:`m`, the sum is divided by
    :math:`\sum_{g \in r} d_g`, and :math:`\alpha` is ``view.reaction_activity``.

    Args:
        metabolism: Of the cell graph.
        num_genes: Of the cell graph.
        isozyme_cap: See :meth:`Metabolism.activity <knockgraph.graph.Metabolism.activity>`.

    Shapes:
        x ``[num_genes, batch, channels]`` -> ``[num_reactions, batch, channels]``.
    """

    def __init__(self, metabolism: Metabolism, num_genes: int, isozyme_cap: float | None = 1.0) -> None:
        super().__init__()
        self.isozyme_cap = isozyme_cap
        # A gene may stand in several complexes of one unsplit reaction; it counts once.
        pairs = torch.unique(metabolism.gpr_index.cpu(), dim=1)
        self.operator = SparseOperator.from_edge_index(pairs, num_genes, metabolism.num_reactions)

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        if not view.graded:
            return spmm(self.operator, x, scale_in=view.keep, scale_out=view.reactions_alive, reduce="mean")
        kind = accumulator(x.dtype)
        d, alive = view.dose.to(kind).unsqueeze(-1), view.reactions_alive.unsqueeze(-1)
        with torch.autocast(x.device.type, enabled=False):
            share = spmm(self.operator, d)
            mean = spmm(self.operator, d * x) / torch.where(share > 0, share, share.new_ones(()))
        return torch.where(alive, view.reaction_activity(self.isozyme_cap).to(kind).unsqueeze(-1) * mean, 0.0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.operator.num_sources} genes, {self.operator.num_destinations} reactions)"
