"""The report of a training run."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knockgraph.container import atomic_write
from knockgraph.report.page import figure, numbers, page, table
from knockgraph.report.plots import lines, scatter

if TYPE_CHECKING:
    from knockgraph.train.config import Config


def write_report(directory: Path, config: Config, result: dict[str, Any]) -> None:
    """Write ``report.html`` into a run directory."""
    with atomic_write(directory / "report.html") as part:
        part.write_text(html(directory, config, result), encoding="utf-8")


def curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Metric → (step, value), from the run's CSV."""
    from knockgraph.train.metrics_file import rows

    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows(path):
        for name, text in row.items():
            if name not in ("epoch", "step") and text:
                with contextlib.suppress(ValueError):  # a damaged number is none
                    found.setdefault(name, []).append((int(row["step"]), float(text)))
    return found


def html(directory: Path, config: Config, result: dict[str, Any]) -> str:
    """The self-contained page."""
    logged = curves(directory / "metrics.csv")
    classes = config.task == "classification"
    score = "auroc" if classes else "pearson"
    metrics: dict[str, dict[str, float]] = result["metrics"]
    own = metrics[config.model.name]
    keys = [key for key in own if key != "seconds"]
    others = [m[score] for name, m in metrics.items() if name != config.model.name and not math.isnan(m[score])]
    lead = (
        f"{config.model.name} with {config.strategy.name} on {config.data.phenotype}: {result['part']} {score} "
        f"{_cell(own[score])}" + (f"; the best baseline reaches {_cell(max(others))}" if others else "")
    )
    loss = {k: v for k, v in logged.items() if k in ("train/loss", "val/mse", "val/bce")}
    learned = {k: v for k, v in logged.items() if k in (f"val/{score}",)}
    sections = [
        ("Against baselines", table(["model", *keys], [[n, *(_cell(m[k]) for k in keys)] for n, m in metrics.items()])),
        (
            "Curves",
            figure(lines(loss, "step", "loss"))
            + figure(lines(learned, "step", score))
            + numbers("the numbers", logged),
        ),
    ]
    if not classes:
        picture = scatter(result["measured"], result["predicted"], "measured", "predicted")
        behind = {key: result[key] for key in ("measured", "predicted")}
        sections.append(("Predicted against measured", figure(picture) + numbers("the numbers", behind)))
    if result["ceiling"] is not None:
        note = f"<p>Replicates and stated errors allow a Pearson of at most about {result['ceiling']:.3f}.</p>"
        sections[0] = (sections[0][0], sections[0][1] + note)
    from dataclasses import asdict

    sections.append(("Config", numbers("the resolved config", asdict(config))))
    return page("Training run", lead, sections)


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"
