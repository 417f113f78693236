"""How well gene states predict the rows of an adjacency matrix, without a dense matrix."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from knockgraph.graph import Relation
from knockgraph.ops import GatedOperator, gated_dot


class AdjacencyReconstruction(nn.Module):
    r"""Weighted mean squared error of a linear reconstruction of all rows of the adjacency matrix,

    .. math:: \frac1{N^2} \sum_{ij} \omega_{ij}\, (p_{ij} - a_{ij})^2, \qquad p = h W^\top + 1 b^\top, \qquad
        \omega_{ij} = \begin{cases} 1 & \text{if } i \to j \\ \lambda & \text{else,} \end{cases}

    where a is the weight of an edge (1 without weights) and 0 without an edge. Neither p nor a is ever made: with
    :math:`\tilde h = [h, 1]` and :math:`\tilde W = [W, b]` the sum is

    .. math:: \lambda \sum \tilde h^\top \tilde h \odot \tilde W^\top \tilde W
        + \sum_{i \to j} \bigl((p_{ij} - a_{ij})^2 - \lambda p_{ij}^2\bigr).

    Computed in float32 (float64 for float64) also under autocast. The edges are not part of a checkpoint.

    Args:
        relation: The relation.
        channels: Channels of h.
        zero_weight: λ.

    Shapes:
        h ``[num_genes, channels]`` -> scalar.
    """

    target: Tensor | None

    def __init__(self, relation: Relation, channels: int, zero_weight: float = 1.0) -> None:
        super().__init__()
        self.zero_weight = zero_weight
        # Rows of the result are sources: gene i reconstructs what it has edges to.
        self.edges = GatedOperator(relation.edge_index.cpu().long().flip(0), relation.num_genes)
        weight = None if relation.weight is None else relation.weight.detach().cpu().float()
        self.register_buffer("target", weight, persistent=False)
        self.weight = nn.Parameter(torch.empty(relation.num_genes, channels))
        self.bias = nn.Parameter(torch.empty(relation.num_genes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset all learnable parameters, as ``nn.Linear`` does."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, h: Tensor) -> Tensor:
        with torch.autocast(h.device.type, enabled=False):
            h = h.to(self.weight.dtype)
            h = torch.cat([h, h.new_ones(len(h), 1)], 1)
            w = torch.cat([self.weight, self.bias.unsqueeze(1)], 1)
            everywhere = ((h.t() @ h) * (w.t() @ w)).sum()
            p = gated_dot(self.edges, w.unsqueeze(1), h.unsqueeze(1))  # of each edge, in the order of the relation
            a = 1.0 if self.target is None else self.target
            at_edges = ((p - a) ** 2 - self.zero_weight * p**2).sum()
            return (self.zero_weight * everywhere + at_edges) / len(h) ** 2

    def extra_repr(self) -> str:
        """Shown by ``repr``."""
        return f"{self.edges.num_entries} edges, zero_weight={self.zero_weight}"
