"""Squared error, distance of distributions, and contrast between embeddings, together."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from knockgraph.errors import LossError
from knockgraph.losses.distributions import rank_n_contrast, wasserstein
from knockgraph.losses.gather import gather_with_gradient, rank_of
from knockgraph.losses.loss import Loss, LossParts, Share
from knockgraph.losses.ring_buffer import RingBuffer
from knockgraph.losses.schedules import TemperatureSchedule
from knockgraph.models.model import Prediction
from knockgraph.ops import at_least_float32
from knockgraph.phases import LOSS, phase
from knockgraph.screen.order import shares


class CompositeLoss(Loss):
    r""":math:`L = \lambda_m\, \mathrm{MSE} + b\, \big(\lambda_w\, W_2^2 + \lambda_s\, L_{\mathrm{RNC}}(\tau)\big)`.

    :math:`W_2^2` is the squared Wasserstein distance between predicted and measured values
    (:func:`~knockgraph.losses.distributions.wasserstein`), :math:`L_{\mathrm{RNC}}` the supervised contrastive
    regression on ``prediction.embedding`` (:func:`~knockgraph.losses.distributions.rank_n_contrast`). A batch is too
    small a sample for either, so both see a *pool*: the batch, with gradient, and before it the most recent samples
    from a ring buffer, without, ``buffer_size`` in all (or the batch alone if it is larger). :math:`b` is 0 until the
    pool is full. Of several phenotypes each term leaves out the labels that are missing.

    Every rank has its own ring buffer, and without gathering its own pool; its terms then count by its share of the
    step's samples. With gathering the pool is that of all ranks together, and the gradient, averaged by DDP, is the
    one of a single process with that pool.

    In evaluation mode the loss is its first term alone, and the ring buffer is neither read nor written: samples of
    another split have no place in it.

    The ring buffer and the counters are in ``state_dict()``. They belong to one rank: save and restore them per rank.
    After a restart with another number of ranks, gathering starts with empty ring buffers.

    Args:
        mse_weight: :math:`\lambda_m`.
        wasserstein_weight: :math:`\lambda_w`; a term of weight 0 is not computed.
        contrastive_weight: :math:`\lambda_s`; needs a model that gives an embedding.
        buffer_size: Samples of the pool, per rank.
        buffer_weight: ``full``: :math:`b` is 1 once the pool is full, 0 before. ``fill``: adaptive, :math:`b` is the
            filled share of the pool.
        gather: ``none`` or ``differentiable``: one pool over all ranks.
        gather_interval: Gather every so many steps, from the first on; the others use the rank's own pool.
        temperature: :math:`\tau` at the start.
        final_temperature: :math:`\tau` after ``temperature_epochs``.
        temperature_schedule: ``constant``, ``linear``, ``cosine`` or ``exponential``, see
            :class:`~knockgraph.losses.schedules.TemperatureSchedule`.
        temperature_epochs: Epochs from the first temperature to the last.
    """

    def __init__(
        self,
        mse_weight: float = 1.0,
        wasserstein_weight: float = 0.1,
        contrastive_weight: float = 0.0,
        buffer_size: int = 216,
        buffer_weight: Literal["full", "fill"] = "full",
        gather: Literal["none", "differentiable"] = "none",
        gather_interval: int = 1,
        temperature: float = 2.0,
        final_temperature: float | None = None,
        temperature_schedule: Literal["constant", "linear", "cosine", "exponential"] = "constant",
        temperature_epochs: int = 100,
    ) -> None:
        super().__init__()
        self.weights = {"mse": mse_weight, "wasserstein": wasserstein_weight, "contrastive": contrastive_weight}
        for name, weight in self.weights.items():
            if not 0 <= weight < float("inf"):
                raise LossError(f"{name}_weight is {weight}, but it must be at least 0")
        if buffer_weight not in ("full", "fill"):
            raise LossError(f"buffer_weight is {buffer_weight!r}, but it must be 'full' or 'fill'")
        if gather not in ("none", "differentiable"):
            raise LossError(f"gather is {gather!r}, but it must be 'none' or 'differentiable'")
        if gather_interval < 1:
            raise LossError(f"gather_interval is {gather_interval}, but it must be at least 1")
        if temperature_schedule != "constant" and final_temperature is None:
            raise LossError(f"a {temperature_schedule} temperature schedule needs a final_temperature")
        self.needs = ("embedding",) if contrastive_weight else ()
        self.adaptive = buffer_weight == "fill"
        self.gather = gather
        self.gather_interval = gather_interval
        last = temperature if final_temperature is None else final_temperature
        self.temperature = TemperatureSchedule(temperature, last, temperature_epochs, temperature_schedule)
        self.ring = RingBuffer(buffer_size)
        self.step = 0  # training steps so far
        self.seen: list[int] = []  # samples that each rank has pushed; every rank counts them all, from step sizes

    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """See :class:`~knockgraph.losses.Loss`."""
        with phase(LOSS, "mse"):
            terms = {"mse": share.mean((values - target).square())}
        if self.training and (self.weights["wasserstein"] or self.weights["contrastive"]):
            with phase(LOSS, "pool"):
                # In the pool a missing label is NaN again: it has to be told from others, also later and elsewhere.
                missing = share.labelled is not None
                measured = torch.where(share.labelled, target, torch.nan) if share.labelled is not None else target
                pool, weight = self._pool(self._rows(prediction, values, measured), share)
            terms.update(self._pool_terms(pool, values.shape[1], weight, epoch, missing))
        total = torch.stack([self.weights[name] * term for name, term in terms.items()]).sum()
        return LossParts(total, {name: term.detach() for name, term in terms.items()})

    def _rows(self, prediction: Prediction, values: Tensor, target: Tensor) -> Tensor:
        """Prediction, target and embedding side by side, so that one buffer and one collective carry them all."""
        if not self.weights["contrastive"]:
            return torch.cat([values, target], 1)
        if prediction.embedding is None:
            raise LossError(
                "the contrastive term needs a model that gives an embedding, but this one gives none; "
                "use the hetero model, or contrastive_weight=0"
            )
        if len(prediction.embedding) != len(values):
            raise LossError(f"there are {len(prediction.embedding)} embeddings for {len(values)} samples")
        return torch.cat([values, target, at_least_float32(prediction.embedding).to(values.dtype)], 1)

    def _pool(self, rows: Tensor, share: Share) -> tuple[Tensor, float]:
        """The pool, and how much its terms count on this rank. Advances the ring buffer and the counters."""
        capacity, world_size = self.ring.capacity, share.world_size
        together = self.gather == "differentiable" and world_size > 1
        rank, sizes = 0, [len(rows) + min(self.ring.seen, max(capacity - len(rows), 0))]
        if together:
            rank = rank_of(world_size)
            sizes = self._all_pool_sizes(rank, share)
        gathered = together and self.step % self.gather_interval == 0
        self.step += 1
        pool = self.ring.completed(rows)
        self.ring.push(rows)

        counted = sizes if gathered else [sizes[rank]]
        fill = sum(min(size, capacity) for size in counted) / (capacity * len(counted))
        weight = fill if self.adaptive or fill == 1.0 else 0.0
        if gathered and weight:
            with phase(LOSS, "gather"):
                return gather_with_gradient(pool, sizes, rank), weight
        return pool, weight * share.weight

    def _all_pool_sizes(self, rank: int, share: Share) -> list[int]:
        batch = shares(share.step_size, share.world_size)
        if batch[rank] != share.samples:
            raise LossError(
                f"rank {rank} holds {share.samples} of {share.step_size} samples, but gathering expects {batch[rank]} "
                "(the loader's share); let the loader share out the samples, or use gather='none'"
            )
        if len(self.seen) != share.world_size:
            self.ring.clear()
            self.seen = [0] * share.world_size
        if self.seen[rank] != self.ring.seen:
            raise LossError(
                f"the ring buffer of rank {rank} has seen {self.ring.seen} samples instead of {self.seen[rank]}: it "
                "holds another rank's state; save and restore the state of the loss per rank"
            )
        capacity = self.ring.capacity
        sizes = [n + min(seen, max(capacity - n, 0)) for n, seen in zip(batch, self.seen, strict=True)]
        self.seen = [seen + n for n, seen in zip(batch, self.seen, strict=True)]
        return sizes

    def _pool_terms(self, pool: Tensor, outputs: int, weight: float, epoch: int, missing: bool) -> dict[str, Tensor]:
        if weight == 0.0:  # 0 that every parameter still has a (zero) gradient of
            nothing = pool[:0].sum()
            return {name: nothing for name in ("wasserstein", "contrastive") if self.weights[name]}
        terms = {}
        predicted, measured, embedding = pool.tensor_split([outputs, 2 * outputs], 1)
        if self.weights["wasserstein"]:
            with phase(LOSS, "wasserstein"):
                terms["wasserstein"] = weight * wasserstein(predicted, measured, missing)
        if self.weights["contrastive"]:
            with phase(LOSS, "contrastive"):
                contrast = rank_n_contrast(embedding, measured, self.temperature(epoch), missing)
                terms["contrastive"] = weight * contrast
        return terms

    def get_extra_state(self) -> dict[str, Any]:
        """The counters, as plain integers."""
        return {"step": self.step, "seen": list(self.seen)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`get_extra_state`."""
        self.step = int(state["step"])
        self.seen = [int(seen) for seen in state["seen"]]

    def extra_repr(self) -> str:
        """The options."""
        weights = ", ".join(f"{name}={weight}" for name, weight in self.weights.items())
        return f"{weights}, gather={self.gather!r}"
