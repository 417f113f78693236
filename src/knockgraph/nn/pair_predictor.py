"""A prediction from the deleted genes' states and all their pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.ops import at_least_float32, pair_terms
from knockgraph.screen import PerturbationBatch


class PairPredictor(nn.Module):
    r"""An MLP on symmetric functions of the states of each sample's deleted genes P,

    .. math::
        y = \mathrm{MLP}\Bigl[\sum_{i \in P} x_i,\ \sum_{i < j \in P} x_i \odot x_j,\
            \sum_{i < j \in P} (x_i - x_j)^2\Bigr],

    for genotypes of any size and in any order: what each gene does, what two have in common, how much they differ. The
    sums over pairs are made of sums over genes, see :func:`~knockgraph.ops.pair_terms`. A gene with the value
    :math:`d_i` counts with the weight :math:`1 - d_i`, a pair with the product of the two.

    Args:
        channels: Channels of x.
        outputs: Predictions per sample.
        dropout: Share of the states' and of the MLP's values that are dropped in training.
        backend: See :func:`~knockgraph.ops.pair_terms`.

    Shapes:
        x ``[num_genes, channels]`` -> ``[samples, outputs]``, float32 under autocast.
    """

    def __init__(self, channels: int, outputs: int = 1, dropout: float = 0.0, backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend
        self.dropout = nn.Dropout(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(3 * channels, 4 * channels), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * channels, outputs)
        )

    def reset_parameters(self) -> None:
        """Reset all learnable parameters."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()

    def forward(self, x: Tensor, batch: PerturbationBatch) -> Tensor:
        batch, weight = batch.effects()
        where = batch.perturbation_indices, batch.perturbation_indices_ptr, batch.perturbation_indices_batch
        with torch.autocast(x.device.type, enabled=False):
            # Dropped for all samples alike: two genes that a sample deletes are to stay comparable.
            terms = pair_terms(self.dropout(at_least_float32(x)), *where, weight, self.backend)
        y: Tensor = at_least_float32(self.mlp(terms))
        return y
