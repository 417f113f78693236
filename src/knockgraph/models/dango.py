"""DANGO: message passing on the wild type, once per step; a perturbation only chooses gene embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.relation_choice import relation_choice
from knockgraph.nn.adjacency_reconstruction import AdjacencyReconstruction
from knockgraph.nn.conv.sage import sage
from knockgraph.nn.grouped_linear import GroupedLinear
from knockgraph.nn.hyper_sagnn import HyperSAGNN
from knockgraph.ops import at_least_float32, autocast_input
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs

UNSTABLE = ("neighborhood", "coexpression", "experimental")
"""Channels of STRING in which more than 1 % of the zeros changed between releases."""


class Dango(CellModel):
    r"""The model of `Zhang et al. <https://doi.org/10.1101/2020.11.26.400739>`_,

    .. math::
        h_r^{(0)} &= e, \qquad h_r^{(l)} = \mathrm{ReLU}\bigl(\mathrm{SAGE}^{(l)}_r(A_r, h_r^{(l-1)})\bigr), \qquad
        l = 1, 2, \\
        x &= \sum_r \operatorname{softmax}_r\bigl(\mathrm{MLP}(h_r^{(2)})\bigr)\, h_r^{(2)}, \qquad
        y = \mathrm{HyperSAGNN}(x;\ P),

    on the wild-type graph, with a learned embedding e and the deleted genes P of each sample. Each :math:`h_r^{(2)}`
    also reconstructs its relation's adjacency matrix (:class:`AdjacencyReconstruction`); the mean of these errors is
    ``auxiliary["reconstruction"]``.

    Args:
        graph: The cell graph.
        channels: Channels of the embedding and of all states.
        relations: Names of the relations; by default those whose name starts with ``string``, or all if there is none.
        zero_weight: Relation → weight λ of absent edges in the reconstruction. By default 0.1 for relations whose name
            contains ``neighborhood``, ``coexpression`` or ``experimental`` (many of their zeros became edges with a
            later release of STRING), else 1.
        heads: Heads of Hyper-SAGNN.
        most_deletions: See :class:`HyperSAGNN`.
        outputs: Predictions per sample.
    """

    perturbs = False
    hops = 0
    gives = ("reconstruction",)

    def __init__(
        self,
        graph: CellGraph,
        channels: int = 64,
        relations: Sequence[str] | None = None,
        zero_weight: Mapping[str, float] | None = None,
        heads: int = 4,
        most_deletions: int | None = None,
        outputs: int = 1,
    ) -> None:
        super().__init__()
        if relations is None:
            relations = [name for name in graph.relations if name.startswith("string")] or list(graph.relations)
        self.relations = relation_choice(graph, relations)
        unknown = sorted(set(zero_weight or {}) - set(self.relations))
        if unknown:
            raise ModelError(f"zero_weight names {unknown[0]!r}, which is not among {', '.join(self.relations)}")
        groups = len(self.relations)
        self.embedding = nn.Parameter(torch.empty(graph.num_genes, channels))
        self.neighbour = nn.ModuleList(GroupedLinear(groups, channels, channels) for _ in range(2))
        self.own = nn.ModuleList(GroupedLinear(groups, channels, channels, bias=False) for _ in range(2))
        self.reconstruction = nn.ModuleList(
            AdjacencyReconstruction(graph.relations[name], channels, (zero_weight or {}).get(name, _zero_weight(name)))
            for name in self.relations
        )
        hidden = max(channels // 2, 1)
        self.attention = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        self.score = HyperSAGNN(channels, heads, outputs=outputs, most_deletions=most_deletions)
        nn.init.normal_(self.embedding, std=0.1)

    def encode(self, view: PerturbedGraphs) -> tuple[Tensor, ...]:
        """The genes' states x ``[num_genes, channels]`` and the error of the reconstruction."""
        h = self.states(view)
        errors = [module(state) for module, state in zip(self.reconstruction, h, strict=True)]
        share = at_least_float32(self.attention(h)).softmax(0)
        return (share.to(h.dtype) * h).sum(0), torch.stack(errors).mean()

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Score each sample's deleted genes."""
        x, error = encoded
        return Prediction(self.score(x, batch), auxiliary={"reconstruction": error})

    def gene_states(self, view: PerturbedGraphs) -> Tensor:
        """See :class:`CellModel`: the meta-embeddings."""
        return self.encode(view)[0]

    def states(self, view: PerturbedGraphs) -> Tensor:
        """The genes' state in each relation, ``[relations, num_genes, channels]``."""
        if not view.batch.wild_type or view.keep.shape[1] != 1:
            raise ModelError(
                "DANGO uses only the wild type; pass strategy(batch.only_wild_type()) instead of the batch"
            )
        h = autocast_input(self.embedding)
        if self.relations != view.strategy.relation_names:  # else one product for all relations
            h = h.expand(len(self.relations), -1, -1).unsqueeze(2)
        for neighbour, own in zip(self.neighbour, self.own, strict=True):
            h = sage(view, self.relations, h, neighbour, own).relu().unsqueeze(2)
        return h.squeeze(2)


def _zero_weight(relation: str) -> float:
    return 0.1 if any(name in relation for name in UNSTABLE) else 1.0
