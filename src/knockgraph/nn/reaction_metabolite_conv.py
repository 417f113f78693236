"""One round of messages between reactions and metabolites."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.graph import Metabolism
from knockgraph.ops import GatedOperator, gated_spmm
from knockgraph.strategies import PerturbedGraphs


class ReactionMetaboliteConv(nn.Module):
    r"""Reactions → metabolites → reactions, each message gated by its stoichiometry,

    .. math::
        u_m &= \phi\Bigl(W_1 \sum_{r \ni m} g^{out}_{rm}\, \alpha_r h_r\Bigr), &
        h'_r &= \alpha_r \Bigl(h_r + W_2 \sum_{m \in r} g^{in}_{rm}\, u_m\Bigr), \\
        g_{rm} &= \sigma\bigl(\mathrm{MLP}[\operatorname{sign} s_{rm},\ \log(1 + |s_{rm}|)]\bigr), &
        \phi &= \mathrm{GELU} \circ \mathrm{LayerNorm},

    with the stoichiometry :math:`s` and the reactions' keep-vector :math:`\alpha` (``view.reactions_alive``): dead
    reactions send and receive nothing, and their rows of the result are 0.

    Args:
        metabolism: Of the cell graph.
        channels: Channels of h.
        gate_channels: Hidden width of the gates' MLPs.

    Shapes:
        h ``[num_reactions, batch, channels]`` -> the same.
    """

    stoichiometry: Tensor

    def __init__(self, metabolism: Metabolism, channels: int, gate_channels: int = 16) -> None:
        super().__init__()
        index = metabolism.rmr_index.cpu()
        self.to_metabolites = GatedOperator(index, metabolism.num_reactions, metabolism.num_metabolites)
        self.to_reactions = GatedOperator(index.flip(0), metabolism.num_metabolites, metabolism.num_reactions)
        s = metabolism.stoichiometry.cpu()
        features = torch.stack([s.sign(), s.abs().log1p()], 1)
        self.register_buffer("stoichiometry", features, persistent=False)
        self.gate_out, self.gate_in = (
            nn.Sequential(nn.Linear(2, gate_channels), nn.GELU(), nn.Linear(gate_channels, 1)) for _ in range(2)
        )
        self.metabolite = nn.Linear(channels, channels)
        self.norm = nn.LayerNorm(channels)
        self.reaction = nn.Linear(channels, channels)

    def reset_parameters(self) -> None:
        """Start anew."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()

    def forward(self, view: PerturbedGraphs, h: Tensor) -> Tensor:
        """See the formula above."""
        alive = view.reactions_alive
        gate_out, gate_in = (gate(self.stoichiometry).squeeze(-1).sigmoid() for gate in (self.gate_out, self.gate_in))
        u = self.metabolite(gated_spmm(self.to_metabolites, gate_out, h, keep_in=alive))
        u = nn.functional.gelu(self.norm(u))
        update = self.reaction(gated_spmm(self.to_reactions, gate_in, u))
        return torch.where(alive.unsqueeze(-1), h + update, h.new_zeros(()))

    def __repr__(self) -> str:
        structure = self.to_metabolites.structure
        return f"{type(self).__name__}({structure.num_sources} reactions, {structure.num_destinations} metabolites)"
