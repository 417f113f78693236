"""Intervals around predictions, from the errors on the validation part."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import FileFormatError, KnockgraphError
from knockgraph.files import write_json

Floats = npt.NDArray[np.float64]

FILE = "intervals.json"
COVERAGE = 0.9
"""The coverage that is used unless another one is asked for."""
LEVELS = (0.5, 0.6, 0.7, 0.8, COVERAGE, 0.95, 0.99)
"""Coverages that a run keeps half widths for."""


@dataclass(frozen=True)
class Intervals:
    r"""Split-conformal intervals: a prediction p becomes :math:`[p - q, p + q]`, for each phenotype with

    .. math:: q = \text{the } \lceil (n + 1)\,c \rceil\text{-th smallest of } |y_1 - p_1|, \dots, |y_n - p_n|

    over the n labels of the validation part, infinite where n is too small. Some models know how far a measurement is
    expected to be from each prediction (:meth:`CellModel.spread <knockgraph.models.model.CellModel.spread>`). Then
    errors are divided by that spread s, and the interval is :math:`[p - q s, p + q s]`, wider where less is known.

    If a new experiment is exchangeable with those of the validation part (drawn in the same way, and not used to train
    or to choose the model), its measured value lies in the interval with a probability of at least the coverage c,
    whatever the model.

    Attributes:
        checkpoint: The checkpoint that the errors are those of.
        phenotypes: Names.
        labels: Number n of each phenotype.
        half_widths: Coverage → q of each phenotype, in original units; if scaled, to be multiplied by the spread.
        scaled: Whether the model knows the spread.
    """

    checkpoint: str
    phenotypes: tuple[str, ...]
    labels: tuple[int, ...]
    half_widths: dict[float, tuple[float, ...]]
    scaled: bool = False

    @staticmethod
    def of_errors(
        checkpoint: str, phenotypes: Sequence[str], measured: Floats, predicted: Floats, spread: Floats | None = None
    ) -> Intervals:
        """From measured and predicted values ``[experiments, phenotypes]``, in original units; NaN is not measured.

        Args:
            checkpoint: Whose predictions these are.
            phenotypes: Names.
            measured: Labels.
            predicted: Predictions.
            spread: s of each, if the model knows it.
        """
        scaled = np.abs(measured - predicted) / (1.0 if spread is None else spread)
        errors = [np.sort(e[~np.isnan(e)]) for e in scaled.T]
        widths = {level: tuple(half_width(e, level) for e in errors) for level in LEVELS}
        return Intervals(checkpoint, tuple(phenotypes), tuple(map(len, errors)), widths, spread is not None)

    def half_width(self, coverage: float = COVERAGE) -> Floats:
        """q of each phenotype, ``[phenotypes]``."""
        for level, widths in self.half_widths.items():
            if math.isclose(level, coverage):
                return np.array(widths)
        known = ", ".join(f"{level:g}" for level in self.half_widths)
        raise KnockgraphError(f"there are no intervals with a coverage of {coverage:g}; use one of {known}")

    def widths(self, predicted: Floats, spread: Floats | None = None, coverage: float = COVERAGE) -> Floats:
        """Half widths of the intervals around predictions, ``[samples, phenotypes]``.

        Args:
            predicted: ``[samples, phenotypes]``.
            spread: s of each, if these intervals are scaled by it.
            coverage: One of :data:`LEVELS`.
        """
        if self.scaled and spread is None:
            raise KnockgraphError(
                f"the intervals of {FILE} are scaled by the spread of errors, which this model does not know; remove "
                "the file, and predictions will have no intervals"
            )
        q = self.half_width(coverage)
        return q * spread if self.scaled and spread is not None else np.broadcast_to(q, predicted.shape)

    def around(
        self,
        predicted: Floats,
        exact: npt.NDArray[np.bool_],
        coverage: float = COVERAGE,
        spread: Floats | None = None,
    ) -> tuple[Floats, Floats]:
        """Lower and upper ends ``[samples, phenotypes]``.

        Args:
            predicted: ``[samples, phenotypes]``, in original units.
            exact: The same shape: where the value follows from its definition, so that there is no width.
            coverage: One of :data:`LEVELS`.
            spread: See :meth:`widths`.
        """
        width = np.where(exact, 0.0, self.widths(predicted, spread, coverage))
        return predicted - width, predicted + width

    def measured(
        self, measured: Floats, predicted: Floats, coverage: float = COVERAGE, spread: Floats | None = None
    ) -> list[float]:
        """The share of labels that lie in their intervals, for each phenotype; NaN without a label."""
        inside = np.abs(measured - predicted) <= self.widths(predicted, spread, coverage)
        known = ~np.isnan(measured)
        return [float(i[k].mean()) if k.any() else math.nan for i, k in zip(inside.T, known.T, strict=True)]

    def by_chance(self, tested: Sequence[int], coverage: float = COVERAGE) -> list[tuple[float, float]]:
        """For each phenotype, see :func:`by_chance`; ``tested`` has the numbers of labels to be covered."""
        return [by_chance(n, m, coverage) for n, m in zip(self.labels, tested, strict=True)]

    def save(self, directory: Path) -> None:
        """Write ``intervals.json`` into a run directory."""
        widths = {f"{level:g}": list(values) for level, values in self.half_widths.items()}
        document: dict[str, Any] = {"method": "split-conformal", "part": "val", "checkpoint": self.checkpoint}
        document |= {"phenotypes": list(self.phenotypes), "labels": list(self.labels), "half_widths": widths}
        document |= {"scaled": self.scaled}
        write_json(directory / FILE, document)

    @staticmethod
    def load(directory: Path, checkpoint: str) -> Intervals | None:
        """Those of a run directory; ``None`` for another checkpoint, for classes and for runs of earlier versions."""
        path = directory / FILE
        if not path.is_file():
            return None
        try:
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            widths = {
                float(level): tuple(math.inf if q is None else float(q) for q in values)
                for level, values in document["half_widths"].items()
            }
            names, labels = tuple(map(str, document["phenotypes"])), tuple(map(int, document["labels"]))
            if any(len(row) != len(names) for row in (labels, *widths.values())):
                raise ValueError("the lists differ in length")
            scaled = bool(document.get("scaled", False))  # runs of earlier versions do not say
            found = Intervals(str(document["checkpoint"]), names, labels, widths, scaled)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FileFormatError(
                f"{path} cannot be read: {error}; remove it, and predictions will have no intervals"
            ) from error
        return found if found.checkpoint == checkpoint else None


def half_width(errors: Floats, coverage: float) -> float:
    """The :math:`\\lceil (n + 1) c \\rceil`-th smallest of n ascending errors; infinite if there are not as many.

    >>> half_width(np.arange(1.0, 20.0), 0.9), half_width(np.arange(1.0, 9.0), 0.9)
    (18.0, inf)
    """
    rank = math.ceil((len(errors) + 1) * coverage - 1e-9)  # 0.9 · 20 is 18, not 18.000000000000004
    return float(errors[rank - 1]) if rank <= len(errors) else math.inf


def by_chance(labels: int, tested: int, coverage: float) -> tuple[float, float]:
    r"""Between which shares of m tested labels lie in intervals from n others in 95 of 100 cases, if all of them are
    drawn in the same way: of the beta-binomial distribution, by its mean and variance,

    .. math:: \mu \pm 1.96 \sqrt{\mu (1 - \mu) \frac{n + 1 + m}{m (n + 2)}}, \quad
        \mu = \frac{\lceil (n + 1)\,c \rceil}{n + 1}.

    >>> [round(end, 3) for end in by_chance(800, 800, 0.9)]
    [0.871, 0.929]
    """
    mean = min(math.ceil((labels + 1) * coverage - 1e-9) / (labels + 1), 1.0)
    if not tested:
        return 0.0, 1.0
    room = 1.96 * math.sqrt(mean * (1 - mean) * (labels + 1 + tested) / (tested * (labels + 2)))
    return max(mean - room, 0.0), min(mean + room, 1.0)
