r"""How quantities of a loss change over the epochs.

The weights :math:`(\alpha, \beta)` of DANGO's reconstruction and interaction terms at epoch :math:`e`, with the
transition at epoch :math:`T` and :math:`t = \min(e / T, 1)` (:math:`t = 1` if :math:`T = 0`):

======================  =====================================================  ==========================
schedule                :math:`e < T`                                          :math:`e \ge T`
======================  =====================================================  ==========================
``PreThenPost``         :math:`(1, 0)`                                         :math:`(0, 1)`
``LinearUntilUniform``  :math:`(1 - t/2,\ t/2)`                                :math:`(1/2, 1/2)`
``LinearUntilFlipped``  :math:`(1 - t,\ t)`                                    :math:`(0, 1)`
======================  =====================================================  ==========================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from knockgraph.errors import LossError


def progress(epoch: int, end: int) -> float:
    """:math:`t = \\min(e / T, 1)`, and 1 if the end is at epoch 0."""
    return min(epoch / end, 1.0) if end > 0 else 1.0


@dataclass(frozen=True)
class WeightSchedule(ABC):
    """The weights (reconstruction, interaction) as a function of the epoch.

    Args:
        transition_epoch: :math:`T`, the first epoch of the final weights.
    """

    transition_epoch: int

    def __post_init__(self) -> None:
        if self.transition_epoch < 0:
            raise LossError(f"transition_epoch is {self.transition_epoch}, but it must be at least 0")

    @abstractmethod
    def weights(self, epoch: int) -> tuple[float, float]:
        """:math:`(\\alpha, \\beta)` at ``epoch``."""


class PreThenPost(WeightSchedule):
    r""":math:`(1, 0)` before the transition, :math:`(0, 1)` from it on: pre-training, then training."""

    def weights(self, epoch: int) -> tuple[float, float]:
        """See :class:`WeightSchedule`."""
        return (1.0, 0.0) if epoch < self.transition_epoch else (0.0, 1.0)


class LinearUntilUniform(WeightSchedule):
    r""":math:`(1 - t/2,\ t/2)`: from reconstruction alone to both alike at the transition, constant after it.

    >>> [LinearUntilUniform(4).weights(epoch) for epoch in (0, 2, 4, 9)]
    [(1.0, 0.0), (0.75, 0.25), (0.5, 0.5), (0.5, 0.5)]
    """

    def weights(self, epoch: int) -> tuple[float, float]:
        """See :class:`WeightSchedule`."""
        half = 0.5 * progress(epoch, self.transition_epoch)
        return 1.0 - half, half


class LinearUntilFlipped(WeightSchedule):
    r""":math:`(1 - t,\ t)`: from reconstruction alone to interaction alone at the transition, constant after it."""

    def weights(self, epoch: int) -> tuple[float, float]:
        """See :class:`WeightSchedule`."""
        t = progress(epoch, self.transition_epoch)
        return 1.0 - t, t


SCHEDULES: dict[str, type[WeightSchedule]] = {
    schedule.__name__: schedule for schedule in (PreThenPost, LinearUntilUniform, LinearUntilFlipped)
}


def weight_schedule(name: str, transition_epoch: int) -> WeightSchedule:
    """A weight schedule by name."""
    if name not in SCHEDULES:
        raise LossError(f"there is no schedule {name!r}; use one of {', '.join(SCHEDULES)}")
    return SCHEDULES[name](transition_epoch)


@dataclass(frozen=True)
class TemperatureSchedule:
    r"""The temperature :math:`\tau(e)` of a contrastive term, with :math:`t = \min(e / E, 1)`.

    ===============  =====================================================================
    kind             :math:`\tau`
    ===============  =====================================================================
    ``constant``     :math:`\tau_0`
    ``linear``       :math:`\tau_0 + (\tau_1 - \tau_0)\, t`
    ``cosine``       :math:`\tau_0 + (\tau_1 - \tau_0)\, (1 - \cos \pi t) / 2`
    ``exponential``  :math:`\tau_0\, (\tau_1 / \tau_0)^t`
    ===============  =====================================================================

    Args:
        start: :math:`\tau_0`.
        end: :math:`\tau_1`.
        epochs: :math:`E`.
        kind: As above.

    >>> [TemperatureSchedule(2.0, 1.0, 4, "linear")(epoch) for epoch in (0, 2, 4, 9)]
    [2.0, 1.5, 1.0, 1.0]
    """

    start: float
    end: float
    epochs: int
    kind: Literal["constant", "linear", "cosine", "exponential"] = "constant"

    def __post_init__(self) -> None:
        if self.kind not in ("constant", "linear", "cosine", "exponential"):
            raise LossError(
                f"there is no temperature schedule {self.kind!r}; use constant, linear, cosine or exponential"
            )
        for temperature in (self.start, self.end):
            if not (temperature > 0 and math.isfinite(temperature)):
                raise LossError(f"a temperature of {temperature} is not possible; it must be positive")
        if self.epochs < 0:
            raise LossError(f"temperature_epochs is {self.epochs}, but it must be at least 0")

    def __call__(self, epoch: int) -> float:
        """The temperature at ``epoch``."""
        if self.kind == "constant":
            return self.start
        t = progress(epoch, self.epochs)
        if self.kind == "exponential":
            return float(self.start * (self.end / self.start) ** t)
        if self.kind == "cosine":
            t = 0.5 * (1.0 - math.cos(math.pi * t))
        return self.start + (self.end - self.start) * t
