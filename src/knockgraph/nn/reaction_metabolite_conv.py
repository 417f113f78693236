"""One round of messages between reactions and metabolites."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.graph import Metabolism
from knockgraph.ops import GatedOperator, accumulator, dosed_logits, gated_attend, gated_spmm
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

    With attention each message also has a share, a softmax over the living members,

    .. math::
        &\sum_{r \ni m} g^{out}_{rm} \operatorname{softmax}_r\bigl(a^\top \mathrm{LeakyReLU}(v_r + q_m)\bigr)\, v_r, &
        v_r &= V_1 h_r, \\
        &\sum_{m \in r} g^{in}_{rm} \operatorname{softmax}_m\bigl(b^\top \mathrm{LeakyReLU}(v_m + V_3 h_r)\bigr) v_m, &
        v_m &= V_2 u_m,

    in place of the two sums, for each head; :math:`q_m` is learned, because a metabolite has no state of its own.

    With doses, :math:`\alpha` is ``view.reaction_activity`` in what reactions send, in the weights of the first softmax
    and in what reactions receive, :math:`h'_r = [\alpha_r > 0]\, h_r + \alpha_r W_2 \sum \dots`

    Args:
        metabolism: Of the cell graph.
        channels: Channels of h.
        gate_channels: Hidden width of the gates' MLPs.
        heads: Heads of the attention, a divisor of ``channels``; 0 is without attention.
        isozyme_cap: See :meth:`Metabolism.activity <knockgraph.graph.Metabolism.activity>`.

    Shapes:
        h ``[num_reactions, batch, channels]`` -> the same.
    """

    stoichiometry: Tensor

    def __init__(
        self,
        metabolism: Metabolism,
        channels: int,
        gate_channels: int = 16,
        heads: int = 0,
        isozyme_cap: float | None = 1.0,
    ) -> None:
        super().__init__()
        self.isozyme_cap = isozyme_cap
        if heads < 0 or (heads and channels % heads):
            raise ModelError(
                f"{channels} channels cannot be divided among {heads} heads; choose a divisor, or 0 for none"
            )
        self.heads = heads
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
        if heads:
            shape = (heads, channels // heads)
            self.send_out, self.send_in, self.ask = (nn.Linear(channels, channels) for _ in range(3))
            self.query = nn.Parameter(torch.empty(metabolism.num_metabolites, *shape))
            self.attention_out, self.attention_in = (nn.Parameter(torch.empty(shape)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm)):
                module.reset_parameters()
        if self.heads:
            nn.init.normal_(self.query)
            nn.init.xavier_uniform_(self.attention_out)
            nn.init.xavier_uniform_(self.attention_in)

    def forward(self, view: PerturbedGraphs, h: Tensor) -> Tensor:
        alive = view.reactions_alive
        if self.heads:
            h = torch.where(alive.unsqueeze(-1), h, h.new_zeros(()))  # V_1 and V_3 would learn from dead rows, too
        gate_out, gate_in = (gate(self.stoichiometry).squeeze(-1).sigmoid() for gate in (self.gate_out, self.gate_in))
        activity = view.reaction_activity(self.isozyme_cap).unsqueeze(-1) if view.graded else None
        u = nn.functional.gelu(self.norm(self.metabolite(self._out(gate_out, h, alive, activity))))
        update = self.reaction(self._in(gate_in, u, h, alive))
        if activity is not None:
            update = activity.to(update.dtype) * update
        return torch.where(alive.unsqueeze(-1), h + update, h.new_zeros(()))

    def _out(self, gate: Tensor, h: Tensor, alive: Tensor, activity: Tensor | None) -> Tensor:
        """What metabolites get from their living reactions."""
        if not self.heads:
            sent = h if activity is None else activity.to(accumulator(h.dtype)) * h
            return gated_spmm(self.to_metabolites, gate, sent, keep_in=alive)
        source, attention = self._split(self.send_out(h)), cast(Tensor, self.attention_out)
        target = self.query.to(source.dtype).unsqueeze(1).expand(-1, h.shape[1], -1, -1)
        if activity is None:
            return gated_attend(self.to_metabolites, gate, source, target, attention, keep_in=alive).flatten(2)
        source, target, attention = dosed_logits(source, target, attention, activity.unsqueeze(-1))
        with torch.autocast(h.device.type, enabled=False):
            y = gated_attend(self.to_metabolites, gate, source, target, attention, keep_in=alive)
        return y[..., :-2].flatten(2)

    def _in(self, gate: Tensor, u: Tensor, h: Tensor, alive: Tensor) -> Tensor:
        """What living reactions get from their metabolites."""
        if not self.heads:
            return gated_spmm(self.to_reactions, gate, u)
        source, target = self._split(self.send_in(u)), self._split(self.ask(h))
        return gated_attend(self.to_reactions, gate, source, target, self.attention_in, keep_out=alive).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)

    def __repr__(self) -> str:
        structure = self.to_metabolites.structure
        return f"{type(self).__name__}({structure.num_sources} reactions, {structure.num_destinations} metabolites)"
