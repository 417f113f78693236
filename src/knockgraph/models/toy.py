"""Minimal models that show whether training itself works."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from knockgraph.graph import CellGraph
from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import PerturbationBatch


class ConstantModel(CellModel):
    r""":math:`y = 0`, whatever the sample: its metrics must not move.

    Its one parameter gets a gradient of 0.

    Args:
        graph: The cell graph.
        outputs: Predictions per sample.
    """

    perturbs = False
    hops = 0
    gives = ()

    def __init__(self, graph: CellGraph, outputs: int = 1) -> None:
        super().__init__()
        del graph
        self.unused = nn.Parameter(torch.zeros(outputs))

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Predict 0 for every sample."""
        del encoded
        return Prediction((0 * self.unused).expand(batch.num_samples, -1))


class AdditiveModel(CellModel):
    r""":math:`y = c + \sum_{g \in P} (1 - d_g)\, a_g` over the perturbed genes P, with :math:`d_g = 0` for a deleted
    one: its loss must fall.

    Args:
        graph: The cell graph.
        outputs: Predictions per sample.
    """

    perturbs = False
    hops = 0
    gives = ()

    def __init__(self, graph: CellGraph, outputs: int = 1) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(outputs))
        self.effect = nn.Parameter(torch.zeros(graph.num_genes, outputs))

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Add up the effects of each sample's deleted genes."""
        del encoded
        batch, weight = batch.effects()
        effects = self.effect[batch.perturbation_indices]
        if weight is not None:
            effects = effects * weight.to(effects.dtype).unsqueeze(1)
        total = effects.new_zeros(batch.num_columns, effects.shape[1])
        total = total.index_add(0, batch.perturbation_indices_batch, effects)
        return Prediction(self.offset + total)
