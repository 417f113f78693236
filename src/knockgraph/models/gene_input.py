"""What a model knows about a gene before it looks at the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph


class GeneInput(nn.Module):
    r"""Learned embedding, given features, or both, through two layers,

    .. math:: u = W_1 [e;\ f] + b_1, \qquad
        x = \mathrm{LayerNorm}\bigl(u + W_2\, \mathrm{GELU}(\mathrm{LayerNorm}(u)) + b_2\bigr).

    The second layer only adds to the first, and the embedding starts small, so that a few hundred steps move it far: on
    the demo cell both were needed to get past a plateau. A learned embedding says nothing about genes that no training
    sample deletes or reaches; those need features. Features are standardised per column; they belong to the cell graph
    and are not part of a checkpoint.

    Args:
        graph: The cell graph.
        channels: Channels of x and of the embedding.
        embedding: Whether there is a learned embedding e.
        features: Names of the graph's features to use as f.

    Shapes:
        nothing -> ``[num_genes, channels]``.
    """

    features: Tensor | None

    def __init__(self, graph: CellGraph, channels: int, embedding: bool = True, features: Sequence[str] = ()) -> None:
        super().__init__()
        unknown = [name for name in features if name not in graph.features]
        if unknown:
            known = ", ".join(graph.features) or "none"
            raise StrategyError(f"the graph has no gene feature {unknown[0]!r}; it has {known}")
        if not embedding and not features:
            raise StrategyError("genes need an input: embedding=True, features=[…], or both")
        self.embedding = nn.Parameter(torch.empty(graph.num_genes, channels)) if embedding else None
        given = torch.cat([graph.features[name].double() for name in features], 1) if features else None
        self.register_buffer("features", None if given is None else _standardised(given).float(), persistent=False)
        width = channels * embedding + (0 if given is None else given.shape[1])
        self.first = nn.Linear(width, channels)
        self.norm_first = nn.LayerNorm(channels)
        self.second = nn.Linear(channels, channels)
        self.norm_second = nn.LayerNorm(channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start anew."""
        if self.embedding is not None:
            nn.init.normal_(self.embedding, std=0.03)
        for module in (self.first, self.norm_first, self.second, self.norm_second):
            module.reset_parameters()

    def forward(self) -> Tensor:
        """See the formula above."""
        u = self.first(torch.cat([part for part in (self.embedding, self.features) if part is not None], 1))
        x: Tensor = self.norm_second(u + self.second(nn.functional.gelu(self.norm_first(u))))
        return x


def _standardised(x: Tensor) -> Tensor:
    """Columns with mean 0 and standard deviation 1; a constant column becomes 0."""
    centred = x - x.mean(0)
    deviation = centred.square().mean(0).sqrt()
    return centred / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
