"""The reports of a training run and of its evaluation."""

from __future__ import annotations

import math
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from knockgraph.evaluate import verdict
from knockgraph.files import atomic_write
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import lines, scatter
from knockgraph.train.metrics_file import curves
from knockgraph.train.schema import Config


def write_report(directory: Path, config: Config, result: dict[str, Any]) -> None:
    """Write ``report.html`` into a run directory."""
    with atomic_write(directory / "report.html") as part:
        part.write_text(html(directory, config, result), encoding="utf-8")


def html(directory: Path, config: Config, result: dict[str, Any]) -> str:
    """The self-contained page of a run."""
    logged = curves(directory / "metrics.csv")
    score = _score(config)
    loss = {k: v for k, v in logged.items() if k in ("train/loss", "val/mse", "val/bce")}
    learned = {k: v for k, v in logged.items() if k in (f"val/{score}",)}
    drawn = _warnings(result) + (
        figure(lines(loss, "step", "loss"), "Training and validation loss over steps")
        + figure(lines(learned, "step", score), f"Validation {score} over steps")
        + _states(logged)
        + numbers("the numbers", logged)
    )
    compared, *rest = _result(config, result)
    return page("Training run", _lead(config, result), [compared, ("Curves", drawn), *rest, _config(config)])


def _warnings(result: dict[str, Any]) -> str:
    """What looked at the last validation as if the run had not learned."""
    return "".join(f"<p><strong>Warning:</strong> {escape(text)}.</p>" for text in result.get("warnings", ()))


def _states(logged: dict[str, list[tuple[int, float]]]) -> str:
    """How alike the genes' states are, layer by layer, and how noisy z_p is; nothing for models without layers."""
    shown = {name.removeprefix("learn/"): v for name, v in logged.items() if name.startswith("learn/")}
    if not shown:
        return ""
    named = {name.replace("_", " ").replace("z p", "z_p"): points for name, points in sorted(shown.items())}
    about = (
        "How alike the genes' states are: their mean cosine before the first layer and after each one (at 1 the model "
        "cannot tell one gene from another), and the share of z_p that is rounding (it should stay far below 1)."
    )
    return figure(lines(named, "step", "share"), "Likeness of the genes' states over steps") + f"<p>{about}</p>"


def evaluation_html(name: str, config: Config, result: dict[str, Any]) -> str:
    """The self-contained page of a run's evaluation on one part of its split.

    Args:
        name: Of the run.
        config: Of the run.
        result: What :func:`knockgraph.evaluate.evaluate` found.
    """
    title = f"{name}: {result['experiments']:,} experiments of the {result['part']} part"
    return page(title, _lead(config, result), [*_result(config, result), _config(config)])


def _lead(config: Config, result: dict[str, Any]) -> str:
    """What was trained, and who won."""
    said = verdict(config.model.name, result, config.task == "classification")
    return f"{config.model.name} with {config.strategy.name} on {config.data.phenotype}: {said}"


def _result(config: Config, result: dict[str, Any]) -> list[tuple[str, str]]:
    """The table against baselines and, of a regression, the points."""
    metrics: dict[str, dict[str, float]] = result["metrics"]
    keys = [key for key in metrics[config.model.name] if key != "seconds"]
    compared = table(["model", *keys], [[n, *(_cell(m[k]) for k in keys)] for n, m in metrics.items()])
    if result["ceiling"] is not None:
        compared += f"<p>Replicates and stated errors allow a Pearson of at most about {result['ceiling']:.3f}.</p>"
    if result.get("approximation"):
        compared += f"<p>{escape(result['approximation'].capitalize())}.</p>"
    sections = [("Against baselines", compared)]
    if config.task != "classification":
        picture = scatter(result["measured"], result["predicted"], "measured", "predicted")
        behind = {key: result[key] for key in ("measured", "predicted")}
        drawn = figure(picture, "Predicted against measured, one point per experiment") + numbers("the numbers", behind)
        sections.append(("Predicted against measured", drawn))
    return sections


def _config(config: Config) -> tuple[str, str]:
    return "Config", numbers("the resolved config", asdict(config))


def _score(config: Config) -> str:
    return "auroc" if config.task == "classification" else "pearson"


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"
