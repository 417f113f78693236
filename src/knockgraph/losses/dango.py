"""DANGO's loss: reconstruction of the networks and log-cosh of the interaction scores."""

from __future__ import annotations

from torch import Tensor

from knockgraph.losses.loss import Loss, LossError, LossParts, Share, full_precision
from knockgraph.losses.pointwise import log_cosh
from knockgraph.losses.schedules import weight_schedule
from knockgraph.models.model import Prediction


class DangoLoss(Loss):
    r""":math:`L = \alpha(e)\, L_{\text{reconstruction}} + \beta(e)\, \overline{\log \cosh(\hat y - y)}`.

    The reconstruction is the model's own (``prediction.auxiliary["reconstruction"]``): it concerns the wild-type graph
    and not the samples, so every rank has the whole of it and none rescales it. A weight of 0 multiplies, it does not
    skip: every parameter has a gradient in every epoch, as DDP needs it.

    Args:
        schedule: :math:`(\alpha, \beta)` over the epochs: ``PreThenPost``, ``LinearUntilUniform`` or
            ``LinearUntilFlipped``, see :mod:`knockgraph.losses.schedules`.
        transition_epoch: The first epoch of the final weights.
    """

    def __init__(self, schedule: str = "LinearUntilUniform", transition_epoch: int = 10) -> None:
        super().__init__()
        self.schedule = weight_schedule(schedule, transition_epoch)

    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """See :class:`~knockgraph.losses.Loss`."""
        if "reconstruction" not in prediction.auxiliary:
            raise LossError(
                "the dango loss needs a model that reconstructs its networks, but this one gives no 'reconstruction'; "
                "use the dango model, or another loss such as log-cosh"
            )
        reconstruction = full_precision(prediction.auxiliary["reconstruction"])
        interaction = share.mean(log_cosh(values - target))
        alpha, beta = self.schedule.weights(epoch)
        parts = {"reconstruction": reconstruction.detach(), "interaction": interaction.detach()}
        return LossParts(alpha * reconstruction + beta * interaction, parts)

    def extra_repr(self) -> str:
        """The options."""
        return repr(self.schedule)
