"""Metrics of a run on one part of its split against the baselines, and the predictions behind them."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from knockgraph import registry
from knockgraph.errors import KnockgraphError, LabelError
from knockgraph.files import atomic_write
from knockgraph.models import baselines
from knockgraph.train import foreseen
from knockgraph.train.data import TrainingData
from knockgraph.train.metrics import classification_metrics, regression_metrics
from knockgraph.train.run import Say, load_task
from knockgraph.train.schema import Config
from knockgraph.train.task import Task


def evaluate(directory: Path, part: str, which: str, say: Say, device: str = "cpu") -> dict[str, Any]:
    """Metrics of a run on one part of its split, against the baselines; the run may be going on, and is only read."""
    config, task = load_task(directory, which)
    data = TrainingData.from_directory(config, directory)
    _check_labels(data, task, directory, say)
    data.collate = task.strategy.collate
    with foreseen.explained(config, directory), contextlib.ExitStack() as stack:
        try:
            task.strategy.open(directory / "store")
        except KnockgraphError:  # removed to save room, or not written completely yet
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            task.strategy.prepare(data.bound, Path(folder) / "store")
        result = evaluate_part(config, data, task.to(device), part, None, say)
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


def evaluate_part(
    config: Config, data: TrainingData, task: Task, part: str, directory: Path | None, say: Say
) -> dict[str, Any]:
    """Predict one part and compare with what was measured and with every baseline."""
    if part not in data.rows:
        raise KnockgraphError(f"there is no part {part!r}; use {', '.join(data.rows)}")
    if directory is None and task.approximation is not None:  # training has said so
        say(f"note: {task.approximation}")
    prediction = predict_rows(task, data, part)
    rows = data.rows[part]
    target = data.targets(part)
    score = scorer(task.classes, data)
    table = {config.model.name: score(prediction, target)}
    for name, found in baseline_metrics(data, config.trainer.baselines, part, say).items():
        table[name if name not in table else f"{name} (baseline)"] = found  # 'additive' is a model, too
    ceiling = None if task.classes else baselines.reproducibility_ceiling(data.bound)
    measured, predicted = data.bound.values[rows], task.told(prediction, data.bound.num_perturbed[rows])
    if directory is not None:
        _write_predictions(directory / "predictions.parquet", data, rows, measured, predicted)
    _print(table, task.classes, ceiling, part, say)
    return {
        "part": part,
        "experiments": len(rows),
        "metrics": table,
        "ceiling": ceiling,
        "approximation": task.approximation,
        "measured": measured[:, 0].tolist()[:5000],
        "predicted": predicted[:, 0].tolist()[:5000],
    }


def baseline_metrics(data: TrainingData, names: Sequence[str], part: str, say: Say) -> dict[str, dict[str, float]]:
    """Fit each baseline on the training part and measure it on another; one whose package is missing, or
    that knows deletions only where there are doses, is passed over.
    """
    if part not in data.rows:
        raise KnockgraphError(f"there is no part {part!r}; use {', '.join(data.rows)}")
    score = scorer(data.classes, data)
    target = data.targets(part)
    table: dict[str, dict[str, float]] = {}
    for name in names:
        start = time.perf_counter()
        try:
            baseline = baselines.create(name, data.graph)
            baseline.fit(data.bound, data.rows["train"], data.targets("train"))
        except (baselines.MissingPackageError, baselines.NoDosesError) as error:
            say(f"{name} is left out: {error}")
            continue
        table[name] = score(baseline.predict(data.bound, data.rows[part]), target)
        table[name]["seconds"] = time.perf_counter() - start
    return table


def compare_baselines(config: Config, names: Sequence[str], part: str, say: Say) -> dict[str, Any]:
    """The baselines alone on the data that the config names, without a model."""
    for name in names:  # before any data are read
        registry.find("baseline", name)
    data = TrainingData.from_config(config)
    table = baseline_metrics(data, names, part, say)
    ceiling = None if data.classes else baselines.reproducibility_ceiling(data.bound)
    if table:
        _print(table, data.classes, ceiling, part, say)
    sizes = {name: len(rows) for name, rows in data.rows.items()}
    return {"part": part, "experiments": sizes, "metrics": table, "ceiling": ceiling, "split": dict(data.split.about)}


def predict_rows(task: Task, data: TrainingData, part: str) -> Tensor:
    """Predictions in label units, ``[experiments, outputs]``, in the order of ``data.rows[part]``."""
    values = []
    task.eval()
    with torch.no_grad():
        for batch in data.loader(part, shuffle=False):
            values.append(task(batch.to(task.device)).values.cpu())  # noqa: PERF401
    return torch.cat(values)


def scorer(classes: bool, data: TrainingData) -> Any:
    """The function (prediction, target, both in label units) → metric → value."""

    def score(prediction: Tensor, target: Tensor) -> dict[str, float]:
        if classes:
            found = classification_metrics(prediction, target)
        else:
            found = regression_metrics(prediction, target, data.transform.scale)
        return {name: float(value) for name, value in found.items()}

    return score


def _write_predictions(
    path: Path, data: TrainingData, rows: np.ndarray[Any, Any], measured: Tensor, predicted: Tensor
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    screen, name = data.screen, data.config.data.phenotype
    experiment = data.bound.experiment[rows].numpy()
    table = pa.table(
        {
            "genotype": pa.array([list(screen.genotypes[int(row)]) for row in experiment], pa.list_(pa.string())),
            "experiment": experiment,
            f"measured_{name}": measured[:, 0].double().numpy(),
            f"predicted_{name}": predicted[:, 0].numpy(),
        }
    )
    with atomic_write(path) as part:
        pq.write_table(table, part)


def _print(table: dict[str, dict[str, float]], classes: bool, ceiling: float | None, part: str, say: Say) -> None:
    shown = ("auroc", "average_precision") if classes else ("pearson", "spearman", "rmse_original")
    width = max(map(len, table))
    say(f"{part} part:")
    for name, found in table.items():
        figures = "  ".join(f"{key} {_number(found[key])}" for key in shown)
        say(f"  {name:<{width}}  {figures}")
    if ceiling is not None:
        say(f"  {'ceiling':<{width}}  pearson {ceiling:.3f}")


def verdict(model: str, result: dict[str, Any], classes: bool) -> str:
    """Who won and by how much, in one sentence.

    >>> metrics = {"hetero": {"pearson": 0.86, "rmse_original": 0.2}}
    >>> metrics["low-rank"] = {"pearson": 0.84, "rmse_original": 0.21}
    >>> verdict("hetero", {"part": "test", "metrics": metrics}, classes=False)
    'hetero wins on the test part: Pearson 0.860 (the best baseline, low-rank: 0.840), RMSE 0.200 (low-rank: 0.210)'
    """
    scores = [("auroc", "AUROC", 1), ("average_precision", "average precision", 1)]
    if not classes:
        scores = [("pearson", "Pearson", 1), ("rmse_original", "RMSE", -1)]
    others = {name: found for name, found in result["metrics"].items() if name != model}
    parts: list[str] = []
    won = []
    for key, name, sign in scores:
        own = result["metrics"][model][key]
        known = {other: found[key] for other, found in others.items() if not math.isnan(found[key])}
        if not known:
            continue
        best = max(known, key=lambda other: sign * known[other])
        won.append(sign * own > sign * known[best])
        what = best if parts else f"the best baseline, {best}"
        parts.append(f"{name} {_number(own).strip()} ({what}: {known[best]:.3f})")
    if not parts:
        return f"there is no baseline to compare {model} with on the {result['part']} part"
    outcome = "wins" if all(won) else "is behind" if not any(won) else "is ahead in one of two"
    return f"{model} {outcome} on the {result['part']} part: {', '.join(parts)}"


def _number(value: float) -> str:
    return "    –" if math.isnan(value) else f"{value:.3f}"
