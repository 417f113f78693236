"""What every loss is: a prediction and its labels in, one scalar and its named parts out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.errors import LossError
from knockgraph.models.model import Prediction
from knockgraph.ops import at_least_float32


@dataclass(frozen=True)
class LossParts:
    """What a loss says about a step.

    Attributes:
        total: Scalar to differentiate.
        parts: Named scalars for logging, detached. Like ``total``, their mean over ranks is the value of the step.
            Their names depend on the loss, its options and its mode, never on the samples, so that all ranks agree.
    """

    total: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Share:
    """One rank's share of a step.

    Attributes:
        samples: Samples on this rank, possibly none.
        step_size: Samples over all ranks.
        world_size: Number of ranks.
    """

    samples: int
    step_size: int
    world_size: int

    def mean(self, per_sample: Tensor) -> Tensor:
        r""":math:`\frac{w}{S} \sum_{\text{local } i} \frac{1}{O} \sum_o \ell_{io}`, whose mean over ranks is the mean.

        Args:
            per_sample: ``[samples, outputs]``.
        """
        return per_sample.sum() * (self.world_size / (self.step_size * max(per_sample.shape[1], 1)))

    @property
    def weight(self) -> float:
        """:math:`w n / S`: how much a term counts that this rank computes once for all its ``n`` samples."""
        return self.world_size * self.samples / self.step_size


class Loss(nn.Module, ABC):
    r"""A loss whose mean over ranks, and whose gradient's mean over ranks, is that of the whole step.

    The :math:`w` ranks of a step hold :math:`S` samples in total, in unequal shares if :math:`S` is not a multiple of
    :math:`w`. A mean over each rank's own samples, averaged by DDP, would weigh the samples unequally; therefore a
    per-sample loss :math:`\ell` is

    .. math:: L_r = \frac{w}{S} \sum_{i \in r} \ell_i, \qquad \frac{1}{w} \sum_r L_r = \frac{1}{S} \sum_i \ell_i .

    A rank without samples contributes 0 and a zero gradient to every parameter that the prediction depends on.
    Everything is computed in float32 (float64 for float64 predictions), also under autocast, and without host
    synchronisation.

    Auxiliary terms of the model that a loss does not use count 0 times: every parameter has a gradient, as DDP
    requires.

    Attributes:
        needs: What a prediction must have beside its values: ``embedding``, or names of auxiliary terms.
        classes: Whether labels are classes and predictions their logits; ``None``: either.
    """

    needs: tuple[str, ...] = ()
    classes: bool | None = False

    def __init__(self) -> None:
        super().__init__()  # a signature of its own: the options of a loss are those of its constructor

    @classmethod
    def options_for(cls, classes: bool, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """The options with which it suits labels that are classes, or numbers; ``None`` if it does not.

        Args:
            classes: Which of the two the task has.
            options: Those that are given.
        """
        return dict(options) if cls.classes in (None, classes) else None

    def forward(
        self,
        prediction: Prediction,
        target: Tensor,
        *,
        step_size: int,
        world_size: int = 1,
        epoch: int = 0,
    ) -> LossParts:
        """The loss of this rank's samples.

        Args:
            prediction: What the model said, ``values [samples, outputs]``.
            target: float ``[samples, outputs]``.
            step_size: Samples of this step over all ranks.
            world_size: Number of ranks.
            epoch: For terms that are scheduled over epochs.
        """
        values = at_least_float32(prediction.values)
        if values.dim() != 2 or values.shape != target.shape:
            raise LossError(
                f"the prediction has shape {list(values.shape)} and the target {list(target.shape)}, "
                "but both need [samples, outputs]"
            )
        share = Share(len(values), step_size, world_size)
        if world_size < 1 or step_size < max(len(values), 1):
            raise LossError(
                f"step_size is {step_size} over {world_size} ranks, but this rank alone holds {len(values)} samples; "
                "give the number of samples of all ranks together"
            )
        with torch.autocast(values.device.type, enabled=False):  # half precision has no room for sums of squares
            found = self.compute(prediction, values, target.to(values.dtype), share, epoch)
            unused = [term for name, term in prediction.auxiliary.items() if name not in self.needs]
            if not unused:
                return found
            return replace(found, total=found.total + 0 * at_least_float32(torch.stack(unused)).sum())

    @abstractmethod
    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """The terms of this loss; values and target, ``[samples, outputs]``, are checked and of full precision."""
