"""Label transforms: fitted on the training split, inverted for reporting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from knockgraph.errors import LabelError

Kind = Literal["none", "standard", "min-max", "robust"]


@dataclass(frozen=True, eq=False)
class LabelTransform:
    r"""An affine map per phenotype, :math:`y' = (y - c) / s`.

    ============  ===================  ==========================
    kind          :math:`c`            :math:`s`
    ============  ===================  ==========================
    ``none``      0                    1
    ``standard``  mean                 standard deviation
    ``min-max``   smallest value       largest − smallest value
    ``robust``    median               interquartile range
    ============  ===================  ==========================

    Attributes:
        kind: As above.
        center: float64 ``[phenotypes]``.
        scale: float64 ``[phenotypes]``, positive.

    >>> transform = LabelTransform.fit(torch.tensor([[0.0], [2.0], [4.0]]), "min-max")
    >>> transform(torch.tensor([[1.0]])).tolist(), transform.invert(torch.tensor([[0.25]])).tolist()
    ([[0.25]], [[1.0]])
    """

    kind: Kind
    center: Tensor
    scale: Tensor
    _placed: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def fit(values: Tensor, kind: Kind = "standard", classes: bool = False) -> LabelTransform:
        """Fit on training labels only.

        Args:
            values: float ``[experiments, phenotypes]`` of the *training* split.
            kind: Which transform.
            classes: Labels are class numbers, which are never transformed.
        """
        if values.dim() != 2:
            raise LabelError(f"labels have shape {list(values.shape)}, but they need [experiments, phenotypes]")
        y = values.double().cpu()
        if len(y) == 0:
            raise LabelError("there are no training labels to fit on; check the split")
        if not bool(y.isfinite().all()):
            row = int((~y.isfinite()).any(1).nonzero()[0])
            raise LabelError(f"training label {row} is {y[row].tolist()}; drop experiments without a finite label")
        zero, one = torch.zeros(y.shape[1], dtype=y.dtype), torch.ones(y.shape[1], dtype=y.dtype)
        if classes or kind == "none":
            return LabelTransform("none", zero, one)
        if kind == "standard":
            center, scale = y.mean(0), y.std(0, correction=0)
        elif kind == "min-max":
            center, scale = y.amin(0), y.amax(0) - y.amin(0)
        elif kind == "robust":
            low, center, high = (quantile(y, q) for q in (0.25, 0.5, 0.75))
            scale = high - low
        else:
            raise LabelError(f"unknown label transform {kind!r}: use none, standard, min-max or robust")
        constant = (y == y[:1]).all(0)  # the scale itself may be off 0 by rounding
        if bool(constant.any()):
            raise LabelError(
                f"the training labels are constant ({y[0, constant][0].item():g}), so there is nothing to learn; "
                "choose another phenotype or split"
            )
        if not bool((scale > 0).all()):
            raise LabelError(f"the {kind} scale of the training labels is 0; use the standard transform")
        return LabelTransform(kind, center, scale)

    def __call__(self, values: Tensor) -> Tensor:
        """Original units → label units."""
        center, scale = self._at(values)
        return (values - center) / scale

    def invert(self, values: Tensor) -> Tensor:
        """Label units → original units."""
        center, scale = self._at(values)
        return values * scale + center

    def _at(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Both where the values are, taken there once: a copy in every step would wait for the device."""
        key = (values.device, values.dtype)
        if key not in self._placed:
            self._placed[key] = (self.center.to(values), self.scale.to(values))
        return self._placed[key]

    def state_dict(self) -> dict[str, Any]:
        """JSON-safe; floats survive exactly."""
        return {"kind": self.kind, "center": self.center.tolist(), "scale": self.scale.tolist()}

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> LabelTransform:
        """The inverse of :meth:`state_dict`."""
        center, scale = (torch.tensor(state[key], dtype=torch.float64) for key in ("center", "scale"))
        return LabelTransform(state["kind"], center, scale)


def quantile(y: Tensor, q: float) -> Tensor:
    """Interpolated quantile per column, ``[n, outputs]`` → ``[outputs]``; torch refuses more than 16 M rows."""
    ranked = y.sort(0).values
    place = q * (len(y) - 1)
    low = int(place)
    high = min(low + 1, len(y) - 1)
    return ranked[low] + (place - low) * (ranked[high] - ranked[low])
