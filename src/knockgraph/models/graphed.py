"""A model's message passing as one CUDA graph: hundreds of launches become two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import Strategy


def can_be_graphed(model: CellModel, strategy: Strategy, device: torch.device) -> bool:
    """Whether :class:`GraphedModel` takes them: an exact model that looks at graphs, a strategy with static shapes, a
    CUDA device.
    """
    looks = model.encodes and model.exact
    return looks and strategy.supports("static shapes") and device.type == "cuda"


class GraphedModel:
    """A model in training, its :meth:`~CellModel.encode` recorded once and replayed for every batch.

    A CUDA graph has fixed shapes: a batch with fewer samples gets further columns without a deletion, a batch with
    fewer deletions repeats its last one, and neither changes the result. :meth:`~CellModel.decode`, which depends on
    how many deletions each sample has, runs as it always does.

    The backward pass sets (or adds to) the parameters' ``grad`` itself, all at once, instead of handing autograd one
    gradient after the other; hooks on the parameters, such as those of ``DistributedDataParallel``, do not see it.

    Args:
        model: The model, in training mode.
        strategy: Its strategy.
        samples: Samples of the largest batch.
        deletions: Deletions of the largest batch.
    """

    def __init__(self, model: CellModel, strategy: Strategy, samples: int, deletions: int) -> None:
        self.model = model
        self.samples = samples
        self.deletions = deletions
        self._places = torch.arange(max(deletions, 1), device=strategy.device)
        self._kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        # A run that goes on records anew: it must not see other dropout masks than one that was never interrupted.
        with torch.random.fork_rng(devices=[strategy.device]):
            self._recording = _Recording(lambda *given: self._encode(strategy, *given), self._places.shape, model)

    def _encode(self, strategy: Strategy, genes: Tensor, samples: Tensor) -> tuple[Tensor, ...]:
        # The pointer only says how many columns there are; such a strategy goes by each deletion's sample.
        ptr = genes.new_zeros(self.samples + 1)
        batch = self.model.columns(PerturbationBatch(genes, ptr, samples, strategy.num_genes))
        # A cast that is cached would be recorded once and never be made again.
        with torch.autocast("cuda", self._kind, enabled=self._kind is not None, cache_enabled=False):
            return self.model.encode(strategy(batch))

    def takes(self, batch: PerturbationBatch) -> bool:
        """Whether a batch fits; a batch without any deletion has nothing to repeat, and values are not recorded."""
        total = len(batch.perturbation_indices)
        if batch.given_values is not None:
            return False
        return batch.num_samples <= self.samples and 0 < total <= self.deletions and self.model.training

    def __call__(self, batch: PerturbationBatch) -> Prediction:
        """Predict a batch."""
        place = self._places.clamp(max=len(batch.perturbation_indices) - 1)
        encoded = self._recording(batch.perturbation_indices[place], batch.perturbation_indices_batch[place])
        return self.model.decode(encoded, batch)


class _Recording:
    """A function of two lists of numbers, and its gradient in a model's parameters, as two CUDA graphs."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], shape: torch.Size, model: CellModel) -> None:
        device = next(model.parameters()).device
        self.inputs = tuple(torch.zeros(shape, dtype=torch.long, device=device) for _ in range(2))
        parameters = [p for p in model.parameters() if p.requires_grad]
        aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            for _ in range(3):  # kernels are compiled and chosen before anything is recorded
                outputs = function(*self.inputs)
                found = _gradients(outputs, parameters, [torch.zeros_like(o) for o in outputs])
        torch.cuda.current_stream(device).wait_stream(aside)
        del outputs
        used = [p for p, g in zip(parameters, found, strict=True) if g is not None]
        del found
        self.parameters = used
        self.forth, self.back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # Other threads may go on using the device: NCCL's asks for its events, the loader's pins memory.
        # On one stream with what came before: autograd may still hold nodes of it, and those belong to their stream.
        how: Any = {"stream": aside, "capture_error_mode": "thread_local"}
        with torch.cuda.graph(self.forth, **how):
            outputs = function(*self.inputs)
        self.upstream = tuple(torch.zeros_like(o) for o in outputs)
        with torch.cuda.graph(self.back, pool=self.forth.pool(), **how):
            found = _gradients(outputs, used, self.upstream)
            self.gradients = [_laid_out_as(p, g) for p, g in zip(used, found, strict=True) if g is not None]
        # Without autograd's record: the memory stays, it belongs to the graphs.
        self.outputs = tuple(o.detach() for o in outputs)
        self._trigger = torch.zeros((), device=device, requires_grad=True)

    def __call__(self, *given: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = _Replay.apply(self, self._trigger, *given)  # type: ignore[no-untyped-call]
        return outputs


def _gradients(
    outputs: Sequence[Tensor], parameters: Sequence[Tensor], upstream: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(outputs, parameters, upstream, allow_unused=True)


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Laid out as autograd does; a fused optimizer accepts nothing else."""
    same = gradient.stride() == parameter.stride() and gradient.dtype == parameter.dtype
    return gradient if same else torch.empty_like(parameter).copy_(gradient)


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recording: _Recording, trigger: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        for place, value in zip(recording.inputs, given, strict=True):
            place.copy_(value)
        recording.forth.replay()
        return tuple(o.detach() for o in recording.outputs)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        recording: _Recording = ctx.recording
        for place, value in zip(recording.upstream, upstream, strict=True):
            place.copy_(value)
        pairs = list(zip(recording.parameters, recording.gradients, strict=True))
        for parameter, gradient in pairs:  # of an earlier batch that has not been used yet
            if parameter.grad is gradient:
                parameter.grad = gradient.clone()
        recording.back.replay()
        new = [(p, g) for p, g in pairs if p.grad is None]
        old = [(p.grad, g) for p, g in pairs if p.grad is not None]
        if old:
            torch._foreach_add_([a for a, _ in old], [g for _, g in old])
        for parameter, gradient in new:
            parameter.grad = gradient
        return (None,) * (2 + len(recording.inputs))
