"""The reports of a training run and of its evaluation."""

from __future__ import annotations

import math
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

from knockgraph.evaluate import by_phenotype, coverage_in_words, verdict
from knockgraph.files import atomic_write
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import lines, scatter
from knockgraph.train.metrics_file import curves
from knockgraph.train.predictor import MOST_NAMED
from knockgraph.train.schema import Config
from knockgraph.words import listed

_MOST_SCATTERS = 4


def write_report(directory: Path, config: Config, result: dict[str, Any]) -> None:
    """Write ``report.html`` into a run directory."""
    with atomic_write(directory / "report.html") as part:
        part.write_text(html(directory, config, result), encoding="utf-8")


def html(directory: Path, config: Config, result: dict[str, Any]) -> str:
    """The self-contained page of a run."""
    compared, *rest = _result(config, result)
    if "chosen" in result:  # fitted at once
        fitted = _warnings(result) + _fitted(result)
        return page("Training run", _lead(config, result), [compared, ("Fit", fitted), *rest, _config(config)])
    logged = curves(directory / "metrics.csv")
    score = _score(config)
    loss = {k: v for k, v in logged.items() if k in ("train/loss", "val/mse", "val/bce")}
    learned = {k: v for k, v in logged.items() if k == f"val/{score}" or k.startswith(f"val/{score}/")}
    drawn = _warnings(result) + (
        figure(lines(loss, "step", "loss"), "Training and validation loss over steps")
        + figure(lines(learned, "step", score), f"Validation {score} over steps")
        + _states(logged)
        + numbers("the numbers", logged)
    )
    return page("Training run", _lead(config, result), [compared, ("Curves", drawn), *rest, _config(config)])


def _fitted(result: dict[str, Any]) -> str:
    """How long a fit took, and what was chosen."""
    took = f"<p>Fitted and tested in {result['training_seconds']:.1f} s.</p>"
    if not result["chosen"]:
        return took
    rows = [[name, f"{value:.4g}"] for name, value in result["chosen"].items()]
    return took + "<p>Settings, chosen by the validation part:</p>" + table(["setting", "value"], rows)


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
    return f"{config.model.name} with {config.strategy.name} on {listed(_phenotypes(config, result))}: {said}"


def _phenotypes(config: Config, result: dict[str, Any]) -> list[str]:
    return list(result.get("phenotypes", config.data.phenotypes))  # earlier versions had one, in the config


def _result(config: Config, result: dict[str, Any]) -> list[tuple[str, str]]:
    """The table against baselines, the phenotypes where there are several and, of a regression, the points."""
    metrics: dict[str, dict[str, float]] = result["metrics"]
    keys = [key for key in metrics[config.model.name] if key != "seconds"]
    compared = table(["model", *keys], [[n, *(_cell(m[k]) for k in keys)] for n, m in metrics.items()])
    if result["ceiling"] is not None:
        compared += f"<p>Replicates and stated errors allow a Pearson of at most about {result['ceiling']:.3f}.</p>"
    if result.get("approximation"):
        compared += f"<p>{escape(result['approximation'].capitalize())}.</p>"
    if result.get("intervals"):
        compared += f"<p>{escape(coverage_in_words(result))}.</p>"
    names = _phenotypes(config, result)
    if len(names) > 1:
        compared = f"<p>Means over {len(names):,} phenotypes, errors in label units.</p>" + compared
    sections = [("Against baselines", compared)]
    if len(names) > 1:
        sections.append(("Phenotypes", _by_phenotype(result, _score(config))))
    if config.task != "classification":
        sections.append(("Predicted against measured", _scatter(names, result)))
    return sections


def _by_phenotype(result: dict[str, Any], score: str) -> str:
    """The score of each phenotype; of many how they are spread, from the lowest to the highest."""
    shown, each = table(*by_phenotype(result, score)), result["by_phenotype"]
    if len(result["phenotypes"]) <= MOST_NAMED:
        behind = {key: result[key] for key in ("phenotypes", "labels", "ceilings", "by_phenotype")}
        return shown + numbers("the numbers of each phenotype", behind)
    ranked = {line: sorted(v for v in found[score] if not math.isnan(v)) for line, found in each.items()}
    curves = {line: [(k + 1, v) for k, v in enumerate(values)] for line, values in ranked.items() if values}
    if curves:
        about = f"The {score} of every phenotype, from the lowest to the highest"
        shown += figure(lines(curves, "phenotypes", score), about)
    return shown + "<p class=dim>The figures of each phenotype are in result.json (evaluate: --json).</p>"


def _scatter(names: list[str], result: dict[str, Any]) -> str:
    """One picture for each of the first phenotypes."""
    measured, predicted = result["measured"], result["predicted"]
    if len(names) == 1:
        picture = scatter(measured, predicted, "measured", "predicted")
        behind = {"measured": measured, "predicted": predicted}
        return figure(picture, "Predicted against measured, one point per experiment") + numbers("the numbers", behind)
    drawn = ""
    behind = {name: {"measured": measured[name], "predicted": predicted[name]} for name in names[:_MOST_SCATTERS]}
    for name, points in behind.items():
        picture = scatter(points["measured"], points["predicted"], f"measured {name}", f"predicted {name}")
        drawn += figure(picture, f"Predicted against measured {name}, one point per experiment")
    if len(names) > _MOST_SCATTERS:
        drawn += f"<p class=dim>The first {_MOST_SCATTERS} of {len(names):,} phenotypes are drawn.</p>"
    return drawn + numbers("the numbers", behind)


def _config(config: Config) -> tuple[str, str]:
    return "Config", numbers("the resolved config", asdict(config))


def _score(config: Config) -> str:
    return "auroc" if config.task == "classification" else "pearson"


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"
