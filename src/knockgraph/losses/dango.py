"""DANGO's loss: reconstruction of the networks, and log-cosh (or cross-entropy) of the interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from knockgraph.errors import LossError
from knockgraph.losses.loss import Loss, LossParts, Share
from knockgraph.losses.pointwise import log_cosh
from knockgraph.losses.schedules import weight_schedule
from knockgraph.models.model import Prediction
from knockgraph.ops import at_least_float32


class DangoLoss(Loss):
    r""":math:`L = \alpha(e)\, L_{\text{reconstruction}} + \beta(e)\, \overline{\log \cosh(\hat y - y)}`.

    For classes the second term is the binary cross-entropy of the logits :math:`\hat y`.

    The reconstruction is the model's own (``prediction.auxiliary["reconstruction"]``): it concerns the wild-type graph
    and not the samples, so every rank has the whole of it and none rescales it. A weight of 0 multiplies, it does not
    skip: every parameter has a gradient in every epoch, with one process as with several.

    Args:
        schedule: :math:`(\alpha, \beta)` over the epochs: ``PreThenPost``, ``LinearUntilUniform`` or
            ``LinearUntilFlipped``, see :mod:`knockgraph.losses.schedules`.
        transition_epoch: The first epoch of the final weights.
        interaction: ``log-cosh``, or ``bce`` for classes, which ``task=classification`` chooses by itself.
    """

    needs = ("reconstruction",)

    def __init__(
        self,
        schedule: str = "LinearUntilUniform",
        transition_epoch: int = 10,
        interaction: Literal["log-cosh", "bce"] = "log-cosh",
    ) -> None:
        super().__init__()
        if interaction not in ("log-cosh", "bce"):
            raise LossError(f"interaction is {interaction!r}, but it must be 'log-cosh' or 'bce'")
        self.classes = interaction == "bce"
        self.schedule = weight_schedule(schedule, transition_epoch)

    @classmethod
    def options_for(cls, classes: bool, options: Mapping[str, Any]) -> dict[str, Any] | None:
        """``interaction`` follows from the task unless it is given."""
        filled = {"interaction": "bce", **options} if classes else dict(options)
        return filled if classes == (filled.get("interaction") == "bce") else None

    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """See :class:`~knockgraph.losses.Loss`."""
        if "reconstruction" not in prediction.auxiliary:
            raise LossError(
                "the dango loss needs a model that reconstructs its networks, but this one gives no 'reconstruction'; "
                "use the dango model, or another loss such as log-cosh"
            )
        reconstruction = at_least_float32(prediction.auxiliary["reconstruction"])
        interaction = share.mean(
            F.binary_cross_entropy_with_logits(values, target, reduction="none")
            if self.classes
            else log_cosh(values - target)
        )
        alpha, beta = self.schedule.weights(epoch)
        parts = {"reconstruction": reconstruction.detach(), "interaction": interaction.detach()}
        return LossParts(alpha * reconstruction + beta * interaction, parts)

    def extra_repr(self) -> str:
        """The options."""
        return f"{self.schedule!r}, interaction={'bce' if self.classes else 'log-cosh'}"
