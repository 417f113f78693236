"""Losses of one sample and its label at a time: squared error, log-cosh, Gaussian noise, binary cross-entropy."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from knockgraph.errors import LossError
from knockgraph.losses.loss import Loss, LossParts, Share
from knockgraph.models.model import Prediction


def log_cosh(error: Tensor) -> Tensor:
    r""":math:`\log \cosh x = |x| + \operatorname{softplus}(-2|x|) - \log 2`; ``cosh`` itself overflows at 90.

    >>> log_cosh(torch.tensor([0.0, 1e6])).tolist()
    [0.0, 999999.3125]
    """
    size = error.abs()
    return size + F.softplus(-2 * size) - math.log(2.0)


class PointwiseLoss(Loss):
    """The mean of a loss that each sample and output has on its own, see :class:`Loss`."""

    name: ClassVar[str]

    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """See :class:`Loss`."""
        total = share.mean(self.per_sample(values, target))
        return LossParts(total, {self.name: total.detach()})

    @abstractmethod
    def per_sample(self, values: Tensor, target: Tensor) -> Tensor:
        """``[samples, outputs]``."""


class MSELoss(PointwiseLoss):
    r""":math:`\ell = (\hat y - y)^2`."""

    name = "mse"

    def per_sample(self, values: Tensor, target: Tensor) -> Tensor:
        """See :class:`PointwiseLoss`."""
        return (values - target).square()


class LogCoshLoss(PointwiseLoss):
    r""":math:`\ell = \log \cosh (\hat y - y)`."""

    name = "log_cosh"

    def per_sample(self, values: Tensor, target: Tensor) -> Tensor:
        """See :class:`PointwiseLoss`."""
        return log_cosh(values - target)


class GaussianLoss(Loss):
    r"""The negative log-likelihood of labels with noise, whose size :math:`s_o` is learned for each output,

    .. math:: \ell = \frac{(\hat y_o - y_o)^2}{2 s_o^2} + \log s_o .

    Several screens that are trained together have a noise each: the noisier one counts less.

    Args:
        outputs: Predictions per sample, as a run fills in; with 1 all of them share one noise.
    """

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        if outputs < 1:
            raise LossError(f"outputs is {outputs}, but it must be at least 1")
        self.log_noise = nn.Parameter(torch.zeros(outputs))

    def compute(self, prediction: Prediction, values: Tensor, target: Tensor, share: Share, epoch: int) -> LossParts:
        """See :class:`Loss`."""
        if len(self.log_noise) not in (1, values.shape[1]):
            raise LossError(
                f"the loss has a noise for each of {len(self.log_noise)} outputs, but there are {values.shape[1]}; "
                f"give it outputs={values.shape[1]}"
            )
        squared, log_noise = (values - target).square(), self.log_noise.to(values.dtype)
        total = share.mean(0.5 * squared * (-2 * log_noise).exp() + log_noise)
        noise = log_noise.detach().exp().mean()
        return LossParts(total, {"squared_error": share.mean(squared.detach()), "noise": noise})

    def extra_repr(self) -> str:
        """The options."""
        return f"outputs={len(self.log_noise)}"


class BCELoss(PointwiseLoss):
    r""":math:`\ell = -p\, y \log \sigma(\hat y) - (1 - y) \log (1 - \sigma(\hat y))`, with :math:`\hat y` a logit.

    Args:
        positive_weight: :math:`p`, one number or one per output; negatives / positives balances the classes.
    """

    name = "bce"
    classes = True
    _positive_weight: Tensor

    def __init__(self, positive_weight: float | Sequence[float] | None = None) -> None:
        super().__init__()
        self.positive_weight = positive_weight
        weight = torch.tensor(1.0 if positive_weight is None else positive_weight, dtype=torch.float64)
        if weight.dim() > 1 or not bool((weight > 0).all() and weight.isfinite().all()):
            raise LossError(f"positive_weight is {positive_weight}, but it must be one positive number (per output)")
        self.register_buffer("_positive_weight", weight, persistent=False)  # an option, not a state

    def per_sample(self, values: Tensor, target: Tensor) -> Tensor:
        """See :class:`PointwiseLoss`."""
        weight = self._positive_weight
        if weight.dim() == 1 and len(weight) != values.shape[1]:
            raise LossError(f"there are {len(weight)} positive weights for {values.shape[1]} outputs; give one each")
        return F.binary_cross_entropy_with_logits(values, target, pos_weight=weight.to(values), reduction="none")

    def extra_repr(self) -> str:
        """The options."""
        return f"positive_weight={self.positive_weight}"
