"""The interface of every loss: from a prediction and its labels to one scalar and its named terms."""

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
        labelled: bool ``[samples, outputs]``, where there is a label; ``None``: everywhere.
        known: Share of all training labels that are not missing.
    """

    samples: int
    step_size: int
    world_size: int
    labelled: Tensor | None = None
    known: float = 1.0

    def mean(self, per_sample: Tensor) -> Tensor:
        r""":math:`\frac{w}{S\,O\,q} \sum_{i,o \text{ local, labelled}} \ell_{io}`, see :class:`Loss`.

        Args:
            per_sample: ``[samples, outputs]``; what it holds where there is no label is left out.
        """
        if self.labelled is not None:
            per_sample = torch.where(self.labelled, per_sample, 0.0)
        labels = self.step_size * max(per_sample.shape[1], 1) * self.known
        return per_sample.sum() * (self.world_size / labels)

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

    With :math:`O` outputs, a share :math:`q` of whose labels is known, :math:`\ell_i` is the sum over the outputs that
    sample :math:`i` has a label of, divided by :math:`O q`: the loss is then the mean over all known labels. The share
    is that of the whole training part and not of a step, so that every label counts the same, whichever step it is in,
    over ranks and over accumulated batches.

    A rank without samples contributes 0 and a zero gradient to every parameter that the prediction depends on.
    Everything is computed in float32 (float64 for float64 predictions), also under autocast, and without host
    synchronisation.

    Auxiliary terms of the model that a loss does not use count 0 times: every parameter has a gradient, with
    one process as with several.

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
        known: float = 1.0,
    ) -> LossParts:
        """The loss of this rank's samples.

        Args:
            prediction: The output of the model, ``values [samples, outputs]``.
            target: float ``[samples, outputs]``, NaN where a label is missing.
            step_size: Samples of this step over all ranks.
            world_size: Number of ranks.
            epoch: For terms that are scheduled over epochs.
            known: Share of all training labels that are not missing. At 1 none may be: the loss is NaN then.
        """
        values = at_least_float32(prediction.values)
        if values.dim() != 2 or values.shape != target.shape:
            raise LossError(
                f"the prediction has shape {list(values.shape)} and the target {list(target.shape)}, "
                "but both need [samples, outputs], an output for each phenotype"
            )
        if not 0 < known <= 1:
            raise LossError(f"known is {known}, but it must be the share of labels that are known, above 0 and up to 1")
        target = target.to(values.dtype)
        labelled = None if known == 1.0 else ~target.isnan()
        if labelled is not None:
            target = torch.where(labelled, target, 0.0)
        share = Share(len(values), step_size, world_size, labelled, known)
        if world_size < 1 or step_size < max(len(values), 1):
            raise LossError(
                f"step_size is {step_size} over {world_size} ranks, but this rank alone holds {len(values)} samples; "
                "give the number of samples of all ranks together"
            )
        with torch.autocast(values.device.type, enabled=False):  # half precision has no room for sums of squares
            found = self.compute(prediction, values, target, share, epoch)
            unused = [term for name, term in prediction.auxiliary.items() if name not in self.needs]
            if not unused:
                return found
            return replace(found, total=found.total + 0 * at_least_float32(torch.stack(unused)).sum())

    @abstractmethod
    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """The terms of this loss; values and target, ``[samples, outputs]``, are checked and of full precision.

        A missing label is 0 in the target; ``share.labelled`` tells which, and ``share.mean`` leaves them out.
        """
