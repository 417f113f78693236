"""What a perturbation does to the metabolism: one vector per sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.graph import Metabolism
from knockgraph.nn.attention_pooling import AttentionPooling
from knockgraph.nn.gene_to_reaction import GeneToReaction
from knockgraph.nn.reaction_metabolite_conv import ReactionMetaboliteConv
from knockgraph.strategies import PerturbedGraphs


class MetabolicState(nn.Module):
    r"""Living reactions, after some rounds of messages through the metabolites, pooled,

    .. math::
        h_r &= W\, \mathrm{mean}_{g \in r,\, m_g = 1}(x_g) + b + e_r + w^{growth}_r\, v, \\
        h &\leftarrow \mathrm{ReactionMetaboliteConv}(h) \quad \text{rounds times}, \qquad
        z = \mathrm{pool}_{r\ \mathrm{alive}}(h_r),

    with a learned embedding e of each reaction. Dead reactions send, receive and contribute nothing.

    Args:
        metabolism: Of the cell graph.
        num_genes: Of the cell graph.
        channels: Channels of x, h and z.
        rounds: Number of rounds.
        heads: Heads of the attention in the rounds; 0 is without, see :class:`~knockgraph.nn.ReactionMetaboliteConv`.
        isozyme_cap: With doses, see :meth:`Metabolism.activity <knockgraph.graph.Metabolism.activity>`.
        backend: Of the pooling: ``auto``, ``triton`` or ``torch``.

    Shapes:
        x ``[num_genes, batch, channels]`` -> ``[batch, channels]``.
    """

    w_growth: Tensor

    def __init__(
        self,
        metabolism: Metabolism,
        num_genes: int,
        channels: int,
        rounds: int = 2,
        heads: int = 0,
        isozyme_cap: float | None = 1.0,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.from_genes = GeneToReaction(metabolism, num_genes, isozyme_cap)
        self.linear = nn.Linear(channels, channels)
        self.embedding = nn.Parameter(torch.empty(metabolism.num_reactions, channels))
        self.growth = nn.Parameter(torch.empty(channels))
        self.register_buffer("w_growth", metabolism.w_growth.cpu().clone(), persistent=False)
        self.rounds = nn.ModuleList(
            ReactionMetaboliteConv(metabolism, channels, heads=heads, isozyme_cap=isozyme_cap) for _ in range(rounds)
        )
        self.pool = AttentionPooling(channels, backend)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        nn.init.normal_(self.embedding)
        nn.init.normal_(self.growth)
        self.linear.reset_parameters()
        for module in self.rounds:
            assert isinstance(module, ReactionMetaboliteConv)
            module.reset_parameters()
        self.pool.reset_parameters()

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        alive = view.reactions_alive
        own = self.embedding + self.w_growth.unsqueeze(1) * self.growth
        h = self.linear(self.from_genes(view, x)) + own.unsqueeze(1)
        h = torch.where(alive.unsqueeze(-1), h, h.new_zeros(()))
        for conv in self.rounds:
            h = conv(view, h)
        z: Tensor = self.pool(h, alive)
        return z
