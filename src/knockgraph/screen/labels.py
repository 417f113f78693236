"""Label transforms: fitted on the training split, inverted for reporting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from knockgraph.errors import LabelError
from knockgraph.words import listed

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

    Each phenotype is fitted on the labels that it has; a missing one (NaN) stays missing.

    Attributes:
        kind: As above.
        center: float64 ``[phenotypes]``.
        scale: float64 ``[phenotypes]``, positive.
        names: The phenotypes; empty if they were not told.
        known: Share of the labels that were not missing.

    >>> transform = LabelTransform.fit(torch.tensor([[0.0], [2.0], [4.0]]), "min-max")
    >>> transform(torch.tensor([[1.0]])).tolist(), transform.invert(torch.tensor([[0.25]])).tolist()
    ([[0.25]], [[1.0]])
    """

    kind: Kind
    center: Tensor
    scale: Tensor
    names: tuple[str, ...] = ()
    known: float = 1.0
    _placed: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def fit(
        values: Tensor, kind: Kind = "standard", classes: bool = False, names: Sequence[str] = ()
    ) -> LabelTransform:
        """Fit on training labels only.

        Args:
            values: float ``[experiments, phenotypes]`` of the *training* split, NaN where a label is missing.
            kind: Which transform.
            classes: Labels are class numbers, which are never transformed.
            names: Of the phenotypes.
        """
        if values.dim() != 2:
            raise LabelError(f"labels have shape {list(values.shape)}, but they need [experiments, phenotypes]")
        y = values.double().cpu()
        if len(y) == 0:
            raise LabelError("there are no training labels to fit on; check the split")
        _check(y, names)
        count = (~y.isnan()).sum(0)
        known = 1.0 if bool((count == len(y)).all()) else float(count.sum()) / y.numel()
        if kind == "none" or classes:
            zero, one = torch.zeros(y.shape[1], dtype=torch.float64), torch.ones(y.shape[1], dtype=torch.float64)
            return LabelTransform("none", zero, one, tuple(names), known)
        if kind == "standard":
            center = y.mean(0) if known == 1.0 else y.nansum(0) / count
            scale = y.std(0, correction=0) if known == 1.0 else ((y - center).square().nansum(0) / count).sqrt()
        elif kind == "min-max":
            center, scale = _lowest(y), _highest(y) - _lowest(y)
        elif kind == "robust":
            low, center, high = (quantile(y, q) for q in (0.25, 0.5, 0.75))
            scale = high - low
        else:
            raise LabelError(f"unknown label transform {kind!r}: use none, standard, min-max or robust")
        constant = _lowest(y) == _highest(y)  # the scale itself may be off 0 by rounding
        if bool(constant.any()):
            raise LabelError(
                f"the training labels are constant ({_lowest(y)[constant][0].item():g}){_whose(constant, names)}, so "
                "there is nothing to learn; choose another phenotype or split"
            )
        if not bool((scale > 0).all()):
            raise LabelError(
                f"the {kind} scale of the training labels is 0{_whose(scale <= 0, names)}; use the standard transform"
            )
        return LabelTransform(kind, center, scale, tuple(names), known)

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
        about = {"names": list(self.names), "known": self.known}
        return {"kind": self.kind, "center": self.center.tolist(), "scale": self.scale.tolist(), **about}

    @staticmethod
    def from_state_dict(state: dict[str, Any]) -> LabelTransform:
        """The inverse of :meth:`state_dict`."""
        center, scale = (torch.tensor(state[key], dtype=torch.float64) for key in ("center", "scale"))
        # Earlier versions had one phenotype, without missing labels.
        names, known = tuple(state.get("names", ())), float(state.get("known", 1.0))
        return LabelTransform(state["kind"], center, scale, names, known)


def quantile(y: Tensor, q: float) -> Tensor:
    """Interpolated quantile per column, ``[n, outputs]`` → ``[outputs]``, of what is not NaN; torch refuses more than
    16 M rows.
    """
    ranked = y.sort(0).values  # NaN last
    last = (~y.isnan()).sum(0) - 1
    place = q * last.double()
    low = place.long()
    at_low, at_high = (ranked.gather(0, at.unsqueeze(0))[0] for at in (low, torch.minimum(low + 1, last)))
    return at_low + (place - low) * (at_high - at_low)


def _lowest(y: Tensor) -> Tensor:
    return y.nan_to_num(nan=torch.inf).amin(0)


def _highest(y: Tensor) -> Tensor:
    return y.nan_to_num(nan=-torch.inf).amax(0)


def _check(y: Tensor, names: Sequence[str]) -> None:
    """Refuse infinite labels, experiments without any, phenotypes without any."""
    bad = y.isinf().any(1) | y.isnan().all(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise LabelError(f"training label {row} is {y[row].tolist()}; drop experiments without a finite label")
    nothing = y.isnan().all(0)
    if bool(nothing.any()):
        raise LabelError(
            f"no experiment of the training part has a label{_whose(nothing, names) or ' of one of the phenotypes'}; "
            "leave it out of data.phenotypes, or choose another split"
        )


def _whose(which: Tensor, names: Sequence[str]) -> str:
    """`` of fitness``: the phenotypes meant, where there are several and they have names."""
    if len(names) < 2:
        return ""
    return f" of {listed([name for name, meant in zip(names, which.tolist(), strict=True) if meant])}"
