"""The hetero model's message passing as one CUDA graph: hundreds of launches become two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.models.hetero import HeteroCellModel
from knockgraph.models.model import Prediction
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import Strategy
from knockgraph.strategies.node_mask import NodeMask


def can_be_graphed(model: nn.Module, strategy: Strategy, device: torch.device) -> bool:
    """Whether :class:`GraphedModel` takes them: an exact hetero model with ``node-mask`` on a CUDA device."""
    exact = isinstance(model, HeteroCellModel) and model.exact
    return exact and isinstance(strategy, NodeMask) and device.type == "cuda"


class GraphedModel:
    """A hetero model in training, its states recorded once and replayed for every batch.

    A CUDA graph has fixed shapes: a batch with fewer samples gets further columns without a deletion, a batch with
    fewer deletions repeats its last one, and neither changes the result. What the model predicts from the states
    depends on how many deletions each sample has, and runs as it always does.

    The gradients of the recorded part live in memory that the next replay overwrites, so they must be used (or
    copied) before it: gradients cannot be accumulated over batches.

    Args:
        model: The model, in training mode.
        strategy: Its strategy.
        samples: Samples of the largest batch.
        deletions: Deletions of the largest batch.
    """

    def __init__(self, model: HeteroCellModel, strategy: NodeMask, samples: int, deletions: int) -> None:
        self.model = model
        self.samples = samples
        self.deletions = deletions
        device = strategy.device
        self._places = torch.arange(deletions, device=device)
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        part = _States(model, strategy, samples + 1, kind)
        example = (torch.zeros_like(self._places), torch.zeros_like(self._places))
        with torch.autocast("cuda", kind, enabled=kind is not None, cache_enabled=False):
            self._states: Any = torch.cuda.make_graphed_callables(part, example)

    def takes(self, batch: PerturbationBatch) -> bool:
        """Whether a batch fits; a batch without any deletion has nothing to repeat."""
        total = len(batch.perturbation_indices)
        return batch.num_samples <= self.samples and 0 < total <= self.deletions and self.model.training

    def __call__(self, batch: PerturbationBatch) -> Prediction:
        """Predict a batch."""
        place = self._places.clamp(max=len(batch.perturbation_indices) - 1)
        x_wild, z = self._states(batch.perturbation_indices[place], batch.perturbation_indices_batch[place])
        return self.model.predict(x_wild, z[:, -1:], z[:, : batch.num_samples], batch)


class _States(nn.Module):
    """From deletions to the wild type's gene states and everybody's pooled states, with nothing else to train."""

    ptr: Tensor

    def __init__(self, model: HeteroCellModel, strategy: NodeMask, columns: int, kind: torch.dtype | None) -> None:
        super().__init__()
        self.parts = nn.ModuleList([model.input, model.layers, model.pool])
        if model.metabolic is not None:
            self.parts.append(model.metabolic)
        self.register_buffer("ptr", torch.zeros(columns + 1, dtype=torch.long, device=strategy.device))
        self._model = (model, strategy)  # in a tuple: not a part whose parameters are looked for
        self._kind = kind

    def forward(self, genes: Tensor, samples: Tensor) -> tuple[Tensor, Tensor]:
        model, strategy = self._model
        # The pointer only says how many columns there are; node-mask goes by each deletion's sample.
        batch = PerturbationBatch(genes, self.ptr, samples, strategy.num_genes, wild_type=True)
        with torch.autocast("cuda", self._kind, enabled=self._kind is not None, cache_enabled=False):
            x, z = model.states(strategy(batch))
        return x[:, -1], z
