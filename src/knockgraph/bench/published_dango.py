"""DANGO as it was published: gather and scatter along edges, and a dense matrix for every reconstruction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.graph import CellGraph
from knockgraph.models.dango import Dango
from knockgraph.models.model import Prediction
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs


class PublishedDango(Dango):
    """:class:`Dango`, computed as in its authors' code; the same parameters and the same result.

    For comparison in a benchmark: it holds a dense ``[num_genes, num_genes]`` matrix for every relation.

    Args:
        graph: The cell graph.
        options: See :class:`Dango`.
    """

    def __init__(self, graph: CellGraph, **options: Any) -> None:
        super().__init__(graph, **options)
        for number, name in enumerate(self.relations):
            edges = graph.relations[name].edge_index
            n = graph.num_genes
            degree = torch.bincount(edges[1], minlength=n).clamp(min=1).float().unsqueeze(1)
            self.register_buffer(f"edges_{number}", edges, persistent=False)
            self.register_buffer(f"degree_{number}", degree, persistent=False)
            adjacency = torch.zeros(n, n)
            adjacency[edges[0], edges[1]] = 1.0
            self.register_buffer(f"adjacency_{number}", adjacency, persistent=False)

    def forward(self, view: PerturbedGraphs, batch: PerturbationBatch) -> Prediction:
        """The view is not used: there is only the wild type."""
        states: list[Tensor] = []
        errors: list[Tensor] = []
        for number in range(len(self.relations)):
            edges, degree = self.get_buffer(f"edges_{number}"), self.get_buffer(f"degree_{number}")
            h: Tensor = self.embedding
            for neighbour, own in zip(self.neighbour, self.own, strict=True):
                mean = torch.zeros_like(h).index_add_(0, edges[1], h[edges[0]]) / degree
                h = torch.relu(mean @ neighbour.weight[number] + neighbour.bias[number] + h @ own.weight[number])  # type: ignore[index]
            states.append(h)
            errors.append(self._error(number, h))
        stacked = torch.stack(states)
        x = (self.attention(stacked).softmax(0) * stacked).sum(0)
        return Prediction(self.score(x, batch), auxiliary={"reconstruction": torch.stack(errors).mean()})

    def _error(self, number: int, h: Tensor) -> Tensor:
        module, adjacency = self.reconstruction[number], self.get_buffer(f"adjacency_{number}")
        p = nn.functional.linear(h, module.weight, module.bias)  # type: ignore[arg-type]
        weight = torch.full_like(adjacency, module.zero_weight).masked_fill(adjacency > 0, 1.0)  # type: ignore[arg-type]
        return (weight * (p - adjacency) ** 2).mean()
