"""Scores of predictions with bootstrap intervals, and differences between models on the same experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.integer[Any]]
_AT_ONCE = 50  # samples whose weights are kept in memory together


@dataclass(frozen=True)
class Interval:
    """A value, and where 95 % of the bootstrap samples lie."""

    value: float
    low: float
    high: float


def resampled(
    measured: Floats,
    predicted: Mapping[str, Floats],
    classes: bool,
    samples: int,
    seed: int,
    genotype: Ints | None = None,
) -> dict[str, dict[str, Floats]]:
    r"""Score → model → its value, then those of ``samples`` bootstrap samples, ``[1 + samples]``.

    A sample draws as many genotypes as there are, with replacement: all experiments of genotype i count :math:`w_i`
    times, because repeated measurements are not independent tests of a prediction. All models see the same samples, so
    that differences between them are paired. Of several phenotypes the score is their mean.

    Args:
        measured: Labels, ``[experiments]`` or ``[experiments, phenotypes]``; of classes 0 and 1; NaN is not measured.
        predicted: Model → its predictions of the same experiments, of the same shape.
        classes: Whether the scores are AUROC and average precision, or else Pearson's correlation.
        samples: How many.
        seed: Of the draws.
        genotype: A number per experiment, equal where the genotypes are, ``[experiments]``; by default all differ.
    """
    random, n = np.random.default_rng(seed), len(measured)
    group = np.arange(n) if genotype is None else np.unique(genotype, return_inverse=True)[1]
    groups = int(group.max(initial=-1)) + 1
    truth = measured.reshape(n, -1)
    found: dict[str, dict[str, list[Floats]]] = {}
    for start in range(0, samples + 1, _AT_ONCE):
        count = min(_AT_ONCE, samples + 1 - start)
        weight = random.multinomial(groups, np.full(groups, 1 / groups), size=count).astype(np.float64)
        if groups < n:
            weight = weight[:, group]
        if start == 0:
            weight[0] = 1.0
        for model, p in predicted.items():
            for score, values in _mean(truth, p.reshape(n, -1), weight, classes).items():
                found.setdefault(score, {}).setdefault(model, []).append(values)
    return {score: {model: np.concatenate(v) for model, v in each.items()} for score, each in found.items()}


def _mean(measured: Floats, predicted: Floats, weight: Floats, classes: bool) -> dict[str, Floats]:
    """Score → its mean over the phenotypes where it is defined, ``[samples]``."""
    found: dict[str, list[Floats]] = {}
    for y, p in zip(measured.T, predicted.T, strict=True):
        known = ~np.isnan(y)
        y, p, w = (y, p, weight) if known.all() else (y[known], p[known], weight[:, known])
        scores = _ranking(y, p, w) if classes else {"pearson": _pearson(y, p, w)}
        for score, values in scores.items():
            found.setdefault(score, []).append(values)
    return {score: each[0] if len(each) == 1 else _known_mean(np.stack(each)) for score, each in found.items()}


def _known_mean(values: Floats) -> Floats:
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(known, values, 0.0).sum(0) / known.sum(0)
    return mean


def interval(values: Floats) -> Interval:
    """Of a value and its bootstrap samples, ``[1 + samples]``; NaN where it is not defined."""
    if np.isnan(values[0]):
        return Interval(*[float("nan")] * 3)
    drawn = values[1:][~np.isnan(values[1:])]
    low, high = np.quantile(drawn, (0.025, 0.975)) if len(drawn) else (np.nan, np.nan)
    return Interval(float(values[0]), float(low), float(high))


def mean_over_seeds(seeds: Sequence[Floats]) -> Floats:
    """Of values and samples of each seed."""
    mean: Floats = np.mean(np.stack(seeds), 0)
    return mean


def _pearson(y: Floats, p: Floats, weight: Floats) -> Floats:
    if len(y) == 0 or p.min() == p.max() or y.min() == y.max():
        return np.full(len(weight), np.nan)
    y, p = (y - y.mean()) / y.std(), (p - p.mean()) / p.std()
    with np.errstate(invalid="ignore"):
        moments = weight @ np.stack([y, p, y * y, p * p, y * p], 1) / weight.sum(1)[:, None]
    my, mp, yy, pp, yp = moments.T
    with np.errstate(invalid="ignore", divide="ignore"):  # a sample may hold one experiment many times
        r: Floats = (yp - my * mp) / np.sqrt((yy - my * my) * (pp - mp * mp))
    return np.where(np.isfinite(r), r, np.nan)


def _ranking(y: Floats, p: Floats, weight: Floats) -> dict[str, Floats]:
    """Area under the ROC curve and average precision; ties count together."""
    order = np.argsort(-p, kind="stable")
    last = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))  # the last of each tie
    truth, w = y[order], weight[:, order]
    hits = np.cumsum(w * truth, 1)[:, last]
    seen = np.cumsum(w, 1)[:, last]
    new = np.diff(hits, axis=1, prepend=0.0)
    positives, negatives = hits[:, -1], seen[:, -1] - hits[:, -1]
    misses = seen - hits
    below = negatives[:, None] - misses + 0.5 * np.diff(misses, axis=1, prepend=0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        auroc = (new * below).sum(1) / (positives * negatives)
        precision = np.where(seen > 0, hits / np.maximum(seen, 1e-12), 0.0)
        average = (new * precision).sum(1) / positives
    return {"auroc": auroc, "average_precision": average}
