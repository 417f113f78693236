"""A small GIN over all relations, written once, against the view."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import knockgraph as kg


class ToyGIN(nn.Module):
    """``h ← tanh(W[(1 + ε)h + Σ_r c_r aggregate_r(h)])``; the first layer's features are shared by all samples.

    Args:
        embedding: float64 [num_genes, channels].
        num_relations: Of the graph.
        layers: Number of layers.
    """

    def __init__(self, embedding: Tensor, num_relations: int, layers: int = 2) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        channels = embedding.shape[1]
        self.embedding = nn.Parameter(embedding.clone())
        self.mix = nn.Parameter(torch.rand(layers, num_relations, generator=generator, dtype=torch.float64) + 0.5)
        self.eps = nn.Parameter(torch.rand(layers, generator=generator, dtype=torch.float64))
        weight = torch.randn(layers, channels, channels, generator=generator, dtype=torch.float64)
        self.weight = nn.Parameter(weight / channels)

    def forward(self, view: kg.PerturbedGraphs) -> Tensor:
        """[num_genes, batch, channels]."""
        h: Tensor = self.embedding
        for mix, eps, weight in zip(self.mix, self.eps, self.weight, strict=True):
            neighbours = (mix.view(-1, 1, 1, 1) * view.aggregate_all(h)).sum(0)
            own = h.unsqueeze(1) if h.dim() == 2 else h
            h = torch.tanh(((1 + eps) * own + neighbours) @ weight)
        return h
