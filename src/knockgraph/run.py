"""A whole run: train, test the best checkpoint, write predictions and report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from knockgraph.comparison import verdict
from knockgraph.evaluate import evaluate_part, measure_intervals
from knockgraph.files import write_json
from knockgraph.models.fitted import FittedModel
from knockgraph.models.model import parameter_counts
from knockgraph.profile.training import watch
from knockgraph.report.training import write_report
from knockgraph.train import checkpoints
from knockgraph.train.data import TrainingData
from knockgraph.train.predictor import Say
from knockgraph.train.run import fit, load_task
from knockgraph.train.schema import Config
from knockgraph.train.task import Task


def train(
    config: Config,
    say: Say = print,
    max_epochs: int | None = None,
    overrides: Sequence[str] = (),
    data: TrainingData | None = None,
) -> Path:
    """Run or resume what the config says; returns the run directory.

    A resumed run keeps the config it was started with, but for ``max_epochs`` and ``overrides``.

    Args:
        config: The config.
        say: Called with messages for the user.
        max_epochs: Lets a resumed run train for longer (or shorter) than it was started for.
        overrides: ``key=value``, of those in ``config`` the ones that are meant to change a resumed run.
        data: What to learn from, instead of what the config names.
    """
    return fit(config, watch, _finish, say, max_epochs, overrides, data)


def _finish(config: Config, data: TrainingData, task: Task, directory: Path, seconds: float, say: Say) -> None:
    """Test the best checkpoint, write predictions, result and report."""
    # A run that was shorter than an epoch has not validated, and what is fitted at once has one state.
    which = "best-error" if checkpoints.any_best(directory / "checkpoints") else "last"
    if which == "last" and not isinstance(task.model, FittedModel):
        say("note: the run ended before its first validation, so its last state is tested and predicts")
    _, best = load_task(directory, which)
    best.strategy.open(directory / "store")  # what a worker does not bring, such as the wild type alone, is asked here
    best = best.to(task.device)
    intervals = measure_intervals(best, data, which) if config.task == "regression" else None
    result = evaluate_part(config, data, best, "test", directory, say, intervals)
    if intervals is not None:
        intervals.save(directory)
    remark = best.model.remark()
    if remark is not None:
        say(f"note: {remark}")
    result["training_seconds"] = seconds
    result["parameters"] = sum(p.numel() for p in task.parameters() if p.requires_grad)
    result["parameters_by_part"] = parameter_counts(task.model)
    result["warnings"] = task.warnings
    if isinstance(task.model, FittedModel):
        result["chosen"] = task.model.baseline.chosen()
    write_json(directory / "result.json", result)
    write_report(directory, config, result)
    say(f"report {directory / 'report.html'}")
    say(verdict(config.model.name, result, task.classes))
