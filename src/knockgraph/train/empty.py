"""The empty task: a training run without the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.losses import LossParts
from knockgraph.models.model import Prediction
from knockgraph.phases import FORWARD, LOSS, phase
from knockgraph.screen import PerturbationBatch
from knockgraph.train.schema import NO_BACKWARD
from knockgraph.train.task import Task


class EmptyTask(Task):
    r""":math:`L = 0 \cdot \sum_\theta \sum_i \theta_i`: what a step costs without the model.

    Batches are loaded, moved and perturbed, gradients (zeros) are exchanged, clipped and applied, metrics are logged as
    in the run that the config describes. Every parameter has a gradient. With ``task=empty-no-backward`` there is no
    backward pass either, and so no gradient to exchange or apply.
    """

    def forward(self, batch: PerturbationBatch) -> Prediction:
        """0 for every sample, after its graph was perturbed."""
        with self.strategy(self._columns(batch)):
            return Prediction(self._zeros(batch))

    def _zeros(self, batch: PerturbationBatch) -> Tensor:
        outputs = 1 if batch.phenotype_values is None else batch.phenotype_values.shape[1]
        kind = torch.float64 if self.config.trainer.precision == "64-true" else torch.float32
        return torch.zeros(batch.num_samples, outputs, dtype=kind, device=batch.perturbation_indices.device)

    def _loss_of(self, batch: PerturbationBatch) -> LossParts:
        self.perturbed(batch)
        with phase(FORWARD):
            values = self._zeros(batch)
        with phase(LOSS):
            total = values.sum()
            if self.config.task != NO_BACKWARD:
                parameters = [p for p in self.parameters() if p.requires_grad]
                total = total + 0 * torch.stack([p.sum().to(total.dtype) for p in parameters]).sum()
        return LossParts(total, {})

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Nothing without a backward pass."""
        if self.config.task != NO_BACKWARD:
            super().backward(loss, *args, **kwargs)
