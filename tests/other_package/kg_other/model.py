"""A plain torch module as a model: it has never heard of CellModel."""

import torch
from torch import nn


class PooledModel(nn.Module):
    hops = 1

    def __init__(self, graph, channels: int = 8):
        super().__init__()
        self.embedding = nn.Parameter(0.1 * torch.randn(graph.num_genes, channels))
        self.out = nn.Linear(channels, 1)
        self.relation = next(iter(graph.relations))

    def forward(self, view, batch):
        h = torch.relu(view.aggregate(self.relation, self.embedding))  # [genes, batch + wild type, channels]
        z = h.sum(0)
        return self.out(z[-1] - z)
