"""A model's message passing as one CUDA graph: hundreds of launches become two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import Strategy
from knockgraph.strategies.node_mask import NodeMask


def can_be_graphed(model: CellModel, strategy: Strategy, device: torch.device) -> bool:
    """Whether :class:`GraphedModel` takes them: an exact model that looks at graphs, ``node-mask``, a CUDA device."""
    looks = type(model).encode is not CellModel.encode and model.exact
    return looks and isinstance(strategy, NodeMask) and device.type == "cuda"


class GraphedModel:
    """A model in training, its :meth:`~CellModel.encode` recorded once and replayed for every batch.

    A CUDA graph has fixed shapes: a batch with fewer samples gets further columns without a deletion, a batch with
    fewer deletions repeats its last one, and neither changes the result. :meth:`~CellModel.decode`, which depends on
    how many deletions each sample has, runs as it always does.

    The gradients of the recorded part live in memory that the next replay overwrites, so they must be used (or
    copied) before it: gradients cannot be accumulated over batches.

    Args:
        model: The model, in training mode.
        strategy: Its strategy.
        samples: Samples of the largest batch.
        deletions: Deletions of the largest batch.
    """

    def __init__(self, model: CellModel, strategy: NodeMask, samples: int, deletions: int) -> None:
        self.model = model
        self.samples = samples
        self.deletions = deletions
        self._places = torch.arange(max(deletions, 1), device=strategy.device)
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        part = _Encoding(model, strategy, samples + 1, kind)
        example = (torch.zeros_like(self._places), torch.zeros_like(self._places))
        with torch.autocast("cuda", kind, enabled=kind is not None, cache_enabled=False):
            # What only decode() uses is unused here.
            self._encode: Any = torch.cuda.make_graphed_callables(part, example, allow_unused_input=True)

    def takes(self, batch: PerturbationBatch) -> bool:
        """Whether a batch fits; a batch without any deletion has nothing to repeat."""
        total = len(batch.perturbation_indices)
        return batch.num_samples <= self.samples and 0 < total <= self.deletions and self.model.training

    def __call__(self, batch: PerturbationBatch) -> Prediction:
        """Predict a batch."""
        place = self._places.clamp(max=len(batch.perturbation_indices) - 1)
        encoded = self._encode(batch.perturbation_indices[place], batch.perturbation_indices_batch[place])
        return self.model.decode(encoded, batch)


class _Encoding(nn.Module):
    """From deletions to what a model encodes of them."""

    ptr: Tensor

    def __init__(self, model: CellModel, strategy: NodeMask, columns: int, kind: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self.strategy = strategy
        self.register_buffer("ptr", torch.zeros(columns + 1, dtype=torch.long, device=strategy.device))
        self._kind = kind

    def forward(self, genes: Tensor, samples: Tensor) -> tuple[Tensor, ...]:
        # The pointer only says how many columns there are; node-mask goes by each deletion's sample.
        batch = PerturbationBatch(genes, self.ptr, samples, self.strategy.num_genes, wild_type=True)
        if not self.model.perturbs:
            batch = batch.only_wild_type()
        with torch.autocast("cuda", self._kind, enabled=self._kind is not None, cache_enabled=False):
            return self.model.encode(self.strategy(batch))
