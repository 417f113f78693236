"""A model beside the baselines on the same experiments: who won, whether that is beyond chance, where and where not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from knockgraph.bootstrap import Floats, interval, resampled
from knockgraph.screen.genotypes import entry
from knockgraph.screen.ragged import Ints
from knockgraph.train.data import TrainingData
from knockgraph.train.predictor import MOST_NAMED

SAMPLES = 500
_DRAWS = 25_000_000  # experiments × samples: larger parts have fewer samples, 100 at least
WORST = 15
ENOUGH = 10
"""Test labels that a gene needs to be judged alone."""
_FEWEST = 5  # labels of a group
_MOST_GENES = 1000  # in the result
_RARE = ((0, 0, "none"), (1, 9, "1 to 9"), (10, 99, "10 to 99"), (100, None, "100 or more"))


def confidence(
    model: str,
    target: Tensor,
    predicted: Mapping[str, Tensor],
    classes: bool,
    seed: int = 0,
    genotype: Ints | None = None,
) -> dict[str, Any] | None:
    """Bootstrap intervals of each line's score and of the model's lead over it; ``None`` for very many phenotypes.

    Args:
        model: The line whose lead is asked for.
        target: ``[experiments, phenotypes]`` in label units; NaN is not measured.
        predicted: Line → the same shape.
        classes: AUROC instead of Pearson's correlation.
        seed: Of the draws.
        genotype: A number per experiment, equal where the genotypes are.
    """
    if target.shape[1] > MOST_NAMED:
        return None
    samples = max(100, min(SAMPLES, _DRAWS // max(len(target), 1)))
    values = {line: p.double().cpu().numpy() for line, p in predicted.items()}
    found = resampled(target.double().cpu().numpy(), values, classes, samples, seed, genotype)
    score = "auroc" if classes else "pearson"
    lines = found[score]
    return {
        "score": score,
        "samples": samples,
        "experiments": len(target),
        "lines": {line: asdict(interval(v)) for line, v in lines.items()},
        "lead": {line: asdict(interval(lines[model] - v)) for line, v in lines.items() if line != model},
    }


def best_baseline(model: str, metrics: Mapping[str, Mapping[str, float | None]], score: str) -> str | None:
    """The baseline with the highest score; ``None`` where no baseline has one."""
    known = {line: v for line, found in metrics.items() if line != model and (v := number(found[score])) == v}
    return max(known, key=lambda line: known[line]) if known else None


def beyond_chance(lead: Mapping[str, Any] | None) -> bool | None:
    """Whether a 95 % interval leaves out 0; ``None`` where it is not known."""
    if lead is None or math.isnan(low := number(lead["low"])) or math.isnan(high := number(lead["high"])):
        return None
    return low > 0 or high < 0


def verdict(model: str, result: Mapping[str, Any], classes: bool) -> str:
    """The winner, the margin, and whether it is beyond chance, in one sentence.

    >>> metrics = {"hetero": {"pearson": 0.86, "rmse_original": 0.2}}
    >>> metrics["low-rank"] = {"pearson": 0.84, "rmse_original": 0.21}
    >>> verdict("hetero", {"part": "test", "metrics": metrics}, classes=False)
    'hetero wins on the test part: Pearson 0.860 (the best baseline, low-rank: 0.840), RMSE 0.200 (low-rank: 0.210)'
    """
    if str((result.get("about") or {}).get("task", "")).startswith("empty"):
        return "an empty task runs everything but the model, so there is nothing to compare"
    several = "by_phenotype" in result
    mean = "mean " if several else ""
    scores = [("auroc", f"{mean}AUROC", 1), ("average_precision", f"{mean}average precision", 1)]
    if not classes:
        scores = [("pearson", f"{mean}Pearson", 1), ("rmse" if several else "rmse_original", "RMSE", -1)]
    parts: list[str] = []
    won: list[bool] = []
    for key, name, sign in scores:
        own = number(result["metrics"][model][key])
        others = {line: number(found[key]) for line, found in result["metrics"].items() if line != model}
        known = {line: value for line, value in others.items() if not math.isnan(value)}
        if not known:
            continue
        best = max(known, key=lambda line: sign * known[line])
        won.append(sign * own > sign * known[best])
        what = best if parts else f"the best baseline, {best}"
        parts.append(f"{name} {'–' if math.isnan(own) else f'{own:.3f}'} ({what}: {known[best]:.3f})")
    if not parts:
        return f"there is no baseline to compare {model} with on the {result['part']} part"
    rival = best_baseline(model, result["metrics"], scores[0][0])
    lead = ((result.get("confidence") or {}).get("lead") or {}).get(rival)
    outcome = "wins" if all(won) else "is behind" if not any(won) else "is ahead in one of two"
    if beyond_chance(lead) is False:
        outcome = f"is level with {rival}"
    ahead = _ahead(model, result["by_phenotype"], scores[0][0]) if several else ""
    return f"{model} {outcome} on the {result['part']} part: {', '.join(parts)}{_chance(lead, scores[0][1])}{ahead}"


def _chance(lead: Mapping[str, Any] | None, score: str) -> str:
    sure = beyond_chance(lead)
    if lead is None or sure is None:
        return ""
    return (
        f"; the difference in {score}, {signed(lead['value'])} (95 % interval {signed(lead['low'])} to "
        f"{signed(lead['high'])}), is {'beyond' if sure else 'within'} chance"
    )


def _ahead(model: str, by_phenotype: Mapping[str, Mapping[str, list[float]]], score: str) -> str:
    """On how many phenotypes the model is ahead of every baseline."""
    own = np.array(by_phenotype[model][score], dtype=float)
    others = [np.array(each[score], dtype=float) for line, each in by_phenotype.items() if line != model]
    best = np.nan_to_num(np.array(others), nan=-np.inf).max(0)
    return f"; ahead of every baseline on {int((own > best).sum()):,} of {len(own):,} phenotypes"


class Errors:
    """Squared errors of the model and of the best baseline, one for each label of a part.

    Args:
        data: Where the experiments come from.
        rows: Their positions in ``data.bound``.
        measured: ``[experiments, phenotypes]`` in original units (classes: 0 and 1); NaN is not measured.
        predicted: The model's, the same shape and units (classes: probabilities).
        baseline: The best baseline's.
    """

    def __init__(
        self, data: TrainingData, rows: Ints, measured: Floats, predicted: Floats, baseline: Floats | None
    ) -> None:
        self.data, self.measured, self.predicted, self.baseline = data, measured, predicted, baseline
        self.known = ~np.isnan(measured)
        self.experiment, self.column = np.nonzero(self.known)
        # Several phenotypes have units of their own; their errors are compared in units of the training labels' scale.
        scaled = measured.shape[1] > 1 and not data.classes
        self._unit = data.transform.scale.double().numpy() if scaled else np.ones(measured.shape[1])
        self.own = self._squared(predicted)
        self.other = None if baseline is None else self._squared(baseline)
        batch = data.bound.batch(rows)
        self._genes = batch.perturbation_indices.cpu().numpy().astype(np.int64)
        self._ptr = np.append(0, np.cumsum(data.bound.host_ptr[rows + 1] - data.bound.host_ptr[rows]))
        self._values = None if batch.perturbation_values is None else batch.perturbation_values.cpu().numpy()

    def _squared(self, predicted: Floats) -> Floats:
        found: Floats = (((self.measured - predicted) / self._unit) ** 2)[self.known]
        return found

    def worst(self, half_width: Floats | None, most: int = WORST) -> list[dict[str, Any]]:
        """The labels with the largest errors, by gene names; ``half_width`` is ``[experiments, phenotypes]``."""
        found = []
        for k in np.argsort(-self.own, kind="stable")[:most]:
            row, column = int(self.experiment[k]), int(self.column[k])
            p = float(self.predicted[row, column])
            width = None if half_width is None else float(half_width[row, column])
            found.append(
                {
                    "genotype": self._entries(row, standard=False),
                    "standard": self._entries(row, standard=True),
                    "phenotype": self.data.bound.phenotype_types[column],
                    "measured": float(self.measured[row, column]),
                    "predicted": p,
                    "lower": None if width is None else p - width,
                    "upper": None if width is None else p + width,
                    "baseline": None if self.baseline is None else float(self.baseline[row, column]),
                }
            )
        return found

    def _entries(self, row: int, standard: bool) -> list[str]:
        part = slice(self._ptr[row], self._ptr[row + 1])
        genes = self.data.graph.genes
        name = genes.standard if standard else genes.__getitem__
        values = np.zeros(len(self._genes)) if self._values is None else self._values
        return [entry(name(int(g)), float(v)) for g, v in zip(self._genes[part], values[part], strict=True)]

    def groups(self) -> list[dict[str, Any]]:
        """Errors by number of perturbed genes, by how well these are known from training, and by measured value."""
        named = {
            "perturbed genes": self._by_size(),
            "training experiments of the least known gene": self._by_training(),
            "measured": self._by_measured(),
        }
        found = []
        for kind, groups in named.items():
            kept = [(name, chosen) for name, chosen in groups if chosen.sum() >= _FEWEST]
            found += [{"kind": kind, "group": name, **self._compared(chosen)} for name, chosen in kept if len(kept) > 1]
        return found

    def _by_size(self) -> list[tuple[str, npt.NDArray[np.bool_]]]:
        size = np.diff(self._ptr)[self.experiment]
        return [(f"{n}", size == n) for n in np.unique(size)[:8].tolist()]

    def _by_training(self) -> list[tuple[str, npt.NDArray[np.bool_]]]:
        trained = self.data.bound.batch(self.data.rows["train"]).perturbation_indices.cpu().numpy()
        count = np.bincount(trained, minlength=self.data.graph.num_genes)
        some = np.diff(self._ptr) > 0
        least = np.full(len(some), -1)
        if some.any():
            least[some] = np.minimum.reduceat(count[self._genes], self._ptr[:-1][some])
        n = least[self.experiment]
        return [(name, (n >= low) & ((n <= high) if high is not None else True)) for low, high, name in _RARE]

    def _by_measured(self) -> list[tuple[str, npt.NDArray[np.bool_]]]:
        if self.data.classes:
            y = self.measured[self.known]
            return [("negative", y < 0.5), ("positive", y > 0.5)]
        if self.measured.shape[1] > 1 or not len(self.own):
            return []
        y = self.measured[self.known]
        low, high = np.quantile(y, (0.1, 0.9))
        return [("lowest tenth", y <= low), ("between", (y > low) & (y < high)), ("highest tenth", y >= high)]

    def _compared(self, chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        own, n = self.own[chosen], int(chosen.sum())
        found: dict[str, Any] = {"labels": n, "rmse": float(np.sqrt(own.mean()))}
        if self.other is None:
            return {**found, "baseline_rmse": None, "ahead": None}
        other = self.other[chosen]
        gain = other - own
        ahead = _ahead_in(np.array([n]), np.array([gain.sum()]), np.array([(gain**2).sum()]))
        return {**found, "baseline_rmse": float(np.sqrt(other.mean())), "ahead": _WHO[int(ahead[0])]}

    def by_gene(self) -> dict[str, Any]:
        """Of each gene with enough labels: how well the experiments that perturb it are predicted."""
        total, size = self.data.graph.num_genes, np.diff(self._ptr)

        def summed(values: Floats) -> Floats:
            """Of the labels of each gene's experiments."""
            each = np.bincount(self.experiment, values, len(size))
            found: Floats = np.bincount(self._genes, np.repeat(each, size), total).astype(np.float64)
            return found

        count = summed(np.ones(len(self.own))).astype(np.int64)
        chosen = np.flatnonzero(count >= ENOUGH)
        n = count[chosen]
        own = summed(self.own)[chosen]
        r = self._pearson(summed, chosen, n)
        rows: list[dict[str, Any]] = [
            {
                "gene": self.data.graph.genes[int(g)],
                "standard": self.data.graph.genes.standard(int(g)),
                "labels": int(n[k]),
                "pearson": float(r[k]),
                "rmse": float(np.sqrt(own[k] / n[k])),
                "baseline_rmse": None,
                "ahead": None,
            }
            for k, g in enumerate(chosen)
        ]
        if self.other is None:
            rows.sort(key=lambda row: row["rmse"])
            return {"enough": ENOUGH, "genes": len(rows), "ahead": None, "behind": None, "rows": rows[:_MOST_GENES]}
        other, gain = summed(self.other)[chosen], self.other - self.own
        ahead = _ahead_in(n, summed(gain)[chosen], summed(gain**2)[chosen])
        for k, row in enumerate(rows):
            row |= {"baseline_rmse": float(np.sqrt(other[k] / n[k])), "ahead": _WHO[int(ahead[k])]}
        rows.sort(key=lambda row: row["rmse"] - row["baseline_rmse"])
        if len(rows) > _MOST_GENES:
            rows = [*rows[: _MOST_GENES // 2], *rows[-_MOST_GENES // 2 :]]
        sums = {"ahead": int((ahead > 0).sum()), "behind": int((ahead < 0).sum())}
        return {"enough": ENOUGH, "genes": len(chosen), **sums, "rows": rows}

    def _pearson(self, summed: Any, chosen: Ints, n: Ints) -> Floats:
        """Of each chosen gene; NaN where there are several phenotypes, or nothing varies."""
        if self.measured.shape[1] > 1:
            return np.full(len(chosen), np.nan)
        y, p = self.measured[self.known], self.predicted[self.known]
        y, p = y - y.mean(), p - p.mean()
        my, mp, yy, pp, yp = (summed(v)[chosen] / n for v in (y, p, y * y, p * p, y * p))
        with np.errstate(invalid="ignore", divide="ignore"):
            r: Floats = (yp - my * mp) / np.sqrt((yy - my * my) * (pp - mp * mp))
        return np.where(np.isfinite(r) & (np.abs(r) <= 1 + 1e-9), r, np.nan)


_WHO = {1: "model", 0: "level", -1: "baseline"}


def _ahead_in(n: Ints, total: Floats, squares: Floats) -> Ints:
    """1 or −1 where a mean difference leaves 0 by more than 1.96 of its standard errors, else 0."""
    mean = total / n
    error = np.sqrt(np.maximum(squares / n - mean**2, 0.0) / np.maximum(n - 1, 1))
    found: Ints = np.where(np.abs(mean) > 1.96 * error, np.sign(mean), 0).astype(np.int64)
    return found


def number(value: float | None) -> float:
    """NaN where a JSON file has null."""
    return math.nan if value is None else float(value)


def signed(value: float | None) -> str:
    """With its sign, a proper minus.

    >>> signed(0.0204), signed(-0.5)
    ('+0.020', '−0.500')
    """
    return "–" if value is None or math.isnan(value) else f"{value:+.3f}".replace("-", "−")
