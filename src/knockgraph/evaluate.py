"""Metrics of a run on one part of its split against the baselines, and the predictions behind them."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph import __version__, comparison, registry
from knockgraph.comparison import verdict
from knockgraph.errors import KnockgraphError, LabelError
from knockgraph.files import atomic_write
from knockgraph.models import baselines
from knockgraph.models.baselines.baseline import Floats, GenotypeRows
from knockgraph.models.fitted import FittedModel
from knockgraph.train import foreseen
from knockgraph.train.data import TrainingData
from knockgraph.train.intervals import COVERAGE, Intervals
from knockgraph.train.metrics import headline, metrics_of
from knockgraph.train.predictor import MOST_NAMED, Say, checkpoint_of
from knockgraph.train.run import load_task, refits
from knockgraph.train.schema import Config
from knockgraph.train.task import Task
from knockgraph.words import listed

_MOST_POINTS = 5000  # of a phenotype, in the result and the report
_MANY = 100  # phenotypes, to each of which a baseline is fitted


def evaluate(directory: Path, part: str, which: str, say: Say, device: str = "cpu") -> dict[str, Any]:
    """Metrics of a run on one part of its split, compared with the baselines; the run may still be training and is only
    read.
    """
    config, task = load_task(directory, which)
    data = TrainingData.from_directory(config, directory)
    _check_labels(data, task, directory, say)
    intervals = Intervals.load(directory, checkpoint_of(config, which, directory))
    with foreseen.explained(config, directory), contextlib.ExitStack() as stack:
        try:
            task.strategy.open(directory / "store")
        except KnockgraphError:  # removed to save space, or not yet complete
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            task.strategy.prepare(data.bound, Path(folder) / "store")
        result = evaluate_part(config, data, task.to(device), part, None, say, intervals)
    say(verdict(config.model.name, result, task.classes))
    return result


def _check_labels(data: TrainingData, task: Task, directory: Path, say: Say) -> None:
    """Runs of earlier versions do not remember their labels, but how their training labels were scaled."""
    if data.split.labels_hash is not None:
        return
    now, then = data.transform.state_dict(), task.transform.state_dict()
    if not all(np.allclose(now[key], then[key], rtol=1e-4, atol=1e-12) for key in ("center", "scale")):
        raise LabelError(
            f"the labels of {data.config.data.screen} are not those that {directory} was trained on: their center and "
            f"scale are {now['center'][0]:.6g} and {now['scale'][0]:.6g} instead of {then['center'][0]:.6g} and "
            f"{then['scale'][0]:.6g}; put that screen back"
        )
    say("note: an earlier version made this run, without a hash of its labels; they were checked by their scale only")


def measure_intervals(task: Task, data: TrainingData, which: str) -> Intervals:
    """The intervals that the errors of the validation part allow."""
    rows = data.rows["val"]
    predicted = task.told(predict_rows(task, data, "val"), data.bound.num_perturbed[rows])
    measured, spread = data.bound.values[rows].double().numpy(), spread_of_rows(task, data, "val")
    return Intervals.of_errors(which, task.phenotypes, measured, predicted.numpy(), spread)


def evaluate_part(
    config: Config,
    data: TrainingData,
    task: Task,
    part: str,
    directory: Path | None,
    say: Say,
    intervals: Intervals | None = None,
) -> dict[str, Any]:
    """Predict one part and compare with what was measured and with every baseline."""
    if part not in data.rows:
        raise KnockgraphError(f"there is no part {part!r}; use {', '.join(data.rows)}")
    if directory is None and task.approximation is not None:  # training has said so
        say(f"note: {task.approximation}")
    prediction, rows = predict_rows(task, data, part), data.rows[part]
    target, deleted = data.targets(part), data.bound.num_perturbed[rows]
    scores, lines = {config.model.name: task.metrics(prediction, target)}, {config.model.name: prediction}
    seconds = {}
    others, again = config.trainer.baselines, False
    if isinstance(task.model, FittedModel):
        others = [name for name in others if name != config.model.name]
        again = task.model.validated is not None  # all lines have seen the same experiments
    if part == "val" and again:
        say("note: these are scores of fits on the training part; the model was fitted again afterwards")
    for name, found, took in fitted_baselines(data, others, part, say, again):
        line = name if name not in scores else f"{name} (baseline)"  # 'additive' is a model, too
        scores[line], seconds[line] = metrics_of(found, target, data.transform, data.classes), took
        lines[line] = found
    measured, predicted = data.bound.values[rows], task.told(prediction, deleted)
    if directory is not None:
        _write_predictions(directory / "predictions.parquet", data, rows, measured, predicted)
    result = {
        "part": part,
        "experiments": len(rows),
        "about": _about(config, data),
        **_figures(data, scores, seconds, part),
        "confidence": comparison.confidence(
            config.model.name, target, lines, data.classes, config.seed, data.genotypes(part)
        ),
        "approximation": task.approximation,
        **_points(task.phenotypes, measured, predicted),
    }
    width = None
    if intervals is not None:
        spread = spread_of_rows(task, data, part) if intervals.scaled else None
        width = intervals.widths(predicted.numpy(), spread)
        result["intervals"] = _coverage(intervals, measured, predicted, spread)
    best = comparison.best_baseline(config.model.name, result["metrics"], "auroc" if data.classes else "pearson")
    told = None if best is None else task.told(lines[best].cpu(), deleted).numpy()
    errors = comparison.Errors(data, rows, measured.double().numpy(), predicted.numpy(), told)
    result |= {"rival": best, "worst": errors.worst(width), "groups": errors.groups(), "by_gene": errors.by_gene()}
    _print(result, task.classes, say)
    if intervals is not None:
        say(coverage_in_words(result))
    return result


def _about(config: Config, data: TrainingData) -> dict[str, Any]:
    """What was asked, and with what."""
    return {
        "version": __version__,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": config.seed,
        "task": config.task,
        "cell": config.data.cell,
        "screen": config.data.screen,
        "genes": data.graph.num_genes,
        "relations": len(data.graph.relations),
        "edges": data.graph.num_edges,
        "split": dict(data.split.about),
        "sizes": {name: len(rows) for name, rows in data.rows.items()},
    }


def _coverage(intervals: Intervals, measured: Tensor, predicted: Tensor, spread: Floats | None) -> dict[str, Any]:
    """What the intervals promise, and how many labels of this part lie in them; a list where several phenotypes are."""
    found = intervals.measured(measured.double().numpy(), predicted.numpy(), spread=spread)
    chance = intervals.by_chance((~measured.isnan()).sum(0).tolist())
    about: dict[str, Any] = {"coverage": COVERAGE, "measured": found, "by_chance": list(map(list, chance))}
    width = intervals.widths(predicted.numpy(), spread)
    if not intervals.scaled or not len(width):
        return {**about, "half_width": intervals.half_width().tolist()}
    ends = np.quantile(width, [0.05, 0.95], axis=0).T.tolist()
    about |= {"half_width": np.median(width, axis=0).tolist(), "half_width_of_most": ends}
    truth = measured.double().numpy()
    return {**about, "by_width": _by_width(np.abs(truth - predicted.numpy()) <= width, width, ~np.isnan(truth))}


def _by_width(inside: npt.NDArray[np.bool_], width: Floats, known: npt.NDArray[np.bool_]) -> list[list[float]]:
    """Of each phenotype, the shares of labels inside, from the quarter with the narrowest intervals to the widest; none
    of fewer than four labels.
    """
    found = []
    for k, label in enumerate(known.T):
        ascending = inside[label, k][np.argsort(width[label, k], kind="stable")]
        found.append([float(part.mean()) for part in np.array_split(ascending, 4)] if len(ascending) > 3 else [])
    return found


def coverage_in_words(result: Mapping[str, Any]) -> str:
    """What the intervals promise and what they hold, in one sentence.

    >>> found = {"coverage": 0.9, "measured": [0.912], "by_chance": [[0.871, 0.93]], "half_width": [0.2]}
    >>> coverage_in_words({"part": "test", "intervals": found}).partition(": ")[2]
    '91.2 % of the test labels lie in theirs (87.1 to 93.0 % is within chance)'
    """
    found = result["intervals"]
    shares = [share for share in found["measured"] if share is not None and not math.isnan(share)]
    widths = ["∞" if q is None or math.isinf(q) else f"{q:.3g}" for q in found["half_width"]]
    width = f"± {widths[0]}" if len(widths) == 1 else "± a width for each phenotype"
    if "half_width_of_most" in found:
        low, high = found["half_width_of_most"][0]
        width = f"± {low:.3g} to {high:.3g} for most" if len(widths) == 1 else "± a width of its own"
    share = f"{100 * sum(shares) / len(shares):.1f} %" if shares else "none"
    mean = "" if len(widths) == 1 else ", on average over the phenotypes,"
    ends = found.get("by_chance", []) if len(widths) == 1 else []  # runs of earlier versions have none
    chance = "".join(f" ({100 * low:.1f} to {100 * high:.1f} % is within chance)" for low, high in ends)
    quarters = [q for q in found.get("by_width", []) if q] if len(widths) == 1 else []
    each = "".join(
        f"; of the narrowest quarter {100 * q[0]:.1f} %, of the widest {100 * q[-1]:.1f} %" for q in quarters
    )
    return (
        f"{100 * found['coverage']:g} % intervals (prediction {width}, from the validation part): "
        f"{share} of the {result['part']} labels{mean} lie in theirs{chance}{each}"
    )


def _figures(
    data: TrainingData, scores: Mapping[str, Mapping[str, Tensor]], seconds: Mapping[str, float], part: str
) -> dict[str, Any]:
    """The headline of each line and the ceiling; of several phenotypes also the figures of each."""
    names = data.bound.phenotype_types
    table = {line: {key: float(value) for key, value in headline(found).items()} for line, found in scores.items()}
    for line, took in seconds.items():
        table[line]["seconds"] = took
    mean, ceilings = ceiling(data)
    figures: dict[str, Any] = {"phenotypes": list(names), "metrics": table, "ceiling": mean}
    if len(names) > 1:
        figures["labels"] = (~data.targets(part).isnan()).sum(0).tolist()
        figures["ceilings"] = ceilings
        figures["by_phenotype"] = {
            line: {key: values.tolist() for key, values in found.items()} for line, found in scores.items()
        }
    return figures


def ceiling(data: TrainingData) -> tuple[float | None, list[float | None]]:
    """The best Pearson that the labels' errors allow: the mean over the phenotypes, if it is known of all, and each."""
    names = data.bound.phenotype_types
    each = [None if data.classes else baselines.reproducibility_ceiling(data.bound, phenotype=name) for name in names]
    known = [value for value in each if value is not None]
    return sum(known) / len(known) if len(known) == len(each) else None, each


def _points(names: Sequence[str], measured: Tensor, predicted: Tensor) -> dict[str, Any]:
    """Measured and predicted, one list each; of several phenotypes one list for each of the first few."""
    points: dict[str, tuple[list[float], list[float]]] = {}
    for name, y, p in zip(names, measured.T, predicted.T, strict=False):
        if len(points) == MOST_NAMED:
            break
        known = ~y.isnan()
        points[name] = y[known].tolist()[:_MOST_POINTS], p[known].tolist()[:_MOST_POINTS]
    if len(names) == 1:
        return dict(zip(("measured", "predicted"), points[names[0]], strict=True))
    return {key: {name: both[k] for name, both in points.items()} for k, key in enumerate(("measured", "predicted"))}


def fitted_baselines(
    data: TrainingData, names: Sequence[str], part: str, say: Say, again: bool = False
) -> Iterator[tuple[str, Tensor, float]]:
    """Fit each baseline on the training part (then, if ``again``, on the validation part, too, unless that is to be
    predicted) and predict another: its name, its predictions in label units ``[experiments, phenotypes]`` and the
    seconds that it took; one whose package is missing is passed over.
    """
    if part not in data.rows:
        raise KnockgraphError(f"there is no part {part!r}; use {', '.join(data.rows)}")
    target = data.targets(part)
    if names and target.shape[1] > _MANY:
        say(f"fitting {listed(names)} to {target.shape[1]:,} phenotypes one by one; trainer.baselines chooses fewer")
    for name in names:
        start = time.perf_counter()
        try:
            baseline = baselines.create(name, data.graph)
            validation = data.rows["val"], data.targets("val")
            baseline.fit(data.bound, data.rows["train"], data.targets("train"), validation, data.classes)
            if again and part != "val":
                rows = np.concatenate([data.rows["train"], data.rows["val"]])
                baseline.fit_again(data.bound, rows, torch.cat([data.targets("train"), data.targets("val")]))
        except (baselines.MissingPackageError, baselines.NoDosesError) as error:
            say(f"{name} is left out: {error}")
            continue
        yield name, baseline.predict(data.bound, data.rows[part]), time.perf_counter() - start


def compare_baselines(config: Config, names: Sequence[str], part: str, say: Say) -> dict[str, Any]:
    """The baselines alone on the data that the config names, without a model."""
    for name in names:  # before any data are read
        registry.find("baseline", name)
    data = TrainingData.from_config(config)
    found = list(fitted_baselines(data, names, part, say, refits(config, data)))
    target, seconds = data.targets(part), {name: took for name, _, took in found}
    scores = {name: metrics_of(one, target, data.transform, data.classes) for name, one, _ in found}
    result = {"part": part, **_figures(data, scores, seconds, part)}
    if scores:
        _print(result, data.classes, say)
    sizes = {name: len(rows) for name, rows in data.rows.items()}
    return {**result, "experiments": sizes, "split": dict(data.split.about)}


def predict_rows(task: Task, data: TrainingData, part: str) -> Tensor:
    """Predictions in label units, ``[experiments, outputs]``, in the order of ``data.rows[part]``; of the validation
    part those before it was used for fitting.
    """
    if isinstance(task.model, FittedModel):  # all rows at once: each call has its price, and no row needs much memory
        if part == "val" and task.model.validated is not None:
            return task.model.validated
        return task.model.predicted(GenotypeRows.of(data.bound, data.rows[part])).cpu()
    values = []
    task.eval()
    with torch.no_grad():
        for batch in data.loader(part, False, task.strategy):
            values.append(task(batch.to(task.device)).values.detach().cpu())  # noqa: PERF401
    return torch.cat(values)


def spread_of_rows(task: Task, data: TrainingData, part: str) -> Floats | None:
    """How far each label is expected to be from :func:`predict_rows`, ``[experiments, outputs]``, if known."""
    model = task.model
    if isinstance(model, FittedModel) and part == "val" and model.validated is not None:
        found = model.validated_spread
    else:
        found = model.spread(data.bound.batch(data.rows[part]))
    return None if found is None else found.numpy()


def scorer(data: TrainingData) -> Callable[[Tensor, Tensor], dict[str, float]]:
    """The function (prediction, target, both in label units) → metric → headline figure."""

    def score(prediction: Tensor, target: Tensor) -> dict[str, float]:
        found = metrics_of(prediction, target, data.transform, data.classes)
        return {name: float(value) for name, value in headline(found).items()}

    return score


def _write_predictions(
    path: Path, data: TrainingData, rows: np.ndarray[Any, Any], measured: Tensor, predicted: Tensor
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    screen, names = data.screen, data.bound.phenotype_types
    experiment = data.bound.experiment[rows].numpy()
    genotypes = pa.array([list(screen.genotypes[int(row)]) for row in experiment], pa.list_(pa.string()))
    columns = {"genotype": genotypes, "experiment": pa.array(experiment)}
    for name, y, p in zip(names, measured.T, predicted.T, strict=True):
        columns[f"measured_{name}"] = pa.array(y.double().numpy(), from_pandas=len(names) > 1)  # null where missing
        columns[f"predicted_{name}"] = pa.array(p.contiguous().numpy())
    table = pa.table(columns)
    with atomic_write(path) as part:
        pq.write_table(table, part)


def _print(result: dict[str, Any], classes: bool, say: Say) -> None:
    """The headline of each line, then the score of each phenotype, or where there are many, how they are spread."""
    table, names = result["metrics"], result["phenotypes"]
    error = "rmse" if len(names) > 1 else "rmse_original"
    shown = ("auroc", "average_precision") if classes else ("pearson", "spearman", error)
    width = max(map(len, table))
    say(f"{result['part']} part{f', means over {len(names):,} phenotypes' if len(names) > 1 else ''}:")
    for name, found in table.items():
        figures = "  ".join(f"{key} {_number(found[key])}" for key in shown)
        say(f"  {name:<{width}}  {figures}")
    if result["ceiling"] is not None:
        say(f"  {'ceiling':<{width}}  pearson {result['ceiling']:.3f}")
    if len(names) > 1:
        headings, rows = by_phenotype(result, shown[0])
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        for row in (headings, *rows):
            cells = (f"{text:>{w}}" for text, w in zip(row[1:], widths[1:], strict=True))
            say(f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}")


def by_phenotype(result: dict[str, Any], score: str) -> tuple[list[str], list[list[str]]]:
    """The score of every line for each phenotype, as headings and rows of text; of many phenotypes, the quantiles.

    Args:
        result: Of several phenotypes, see :func:`evaluate_part`.
        score: ``pearson`` or ``auroc``.
    """
    names, found = result["phenotypes"], {line: each[score] for line, each in result["by_phenotype"].items()}
    if score == "pearson" and any(value is not None for value in result["ceilings"]):
        found["ceiling"] = [math.nan if value is None else value for value in result["ceilings"]]
    if len(names) <= MOST_NAMED:
        rows = [
            [name, f"{labels:,}", *(_number(values[k]).strip() for values in found.values())]
            for k, (name, labels) in enumerate(zip(names, result["labels"], strict=True))
        ]
        return ["phenotype", "labels", *(f"{score} {line}" for line in found)], rows
    shares = {"lowest": 0.0, "lowest tenth": 0.1, "median": 0.5, "highest tenth": 0.9, "highest": 1.0}
    spread = {line: _quantiles(values, list(shares.values())) for line, values in found.items()}
    labels = _quantiles(result["labels"], list(shares.values()))
    rows = [
        [name, f"{labels[k]:,.0f}", *(_number(values[k]).strip() for values in spread.values())]
        for k, name in enumerate(shares)
    ]
    return [f"of {len(names):,} phenotypes", "labels", *(f"{score} {line}" for line in found)], rows


def _quantiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    known = np.array([value for value in values if not math.isnan(value)])
    return [math.nan] * len(shares) if len(known) == 0 else [float(q) for q in np.quantile(known, shares)]


def _number(value: float) -> str:
    return "    –" if math.isnan(value) else f"{value:.3f}"
