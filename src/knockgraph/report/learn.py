"""The learning benchmark as a table, in words and as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from knockgraph.bench.learn import MATRIX, WARM
from knockgraph.comparison import verdict
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import lines

_MOST_CURVES = 12
_WIDE = 8  # times as long: then a logarithmic axis of time


def headings(report: dict[str, Any]) -> list[str]:
    """Of :func:`rows`."""
    c = report["conditions"]
    second = "average precision" if _classes(report) else "RMSE"
    goal = "" if c["goal"] is None else f" to {c['goal']:.3g}"
    return [
        "variant",
        f"test {_name(report)}",
        f"test {second}",
        "best validation",
        f"steps{goal}",
        f"s{goal}",
        "training s",
        "steps",
        "ms/step",
        "parameters",
    ]


def rows(report: dict[str, Any]) -> list[list[str]]:
    """One row of text per variant and baseline, the best test score first; what was skipped has two: name, reason."""
    key, second = report["conditions"]["score"], "average_precision" if _classes(report) else "rmse_original"
    shown = []
    for r in ranked(report):
        point = r.get("to_goal")
        own = r["kind"] == "model"
        best = _best(r, key)
        shown.append(
            [
                r["name"] if own else f"{r['name']} (baseline)",
                _score(r["test"][key]),
                _score(r["test"][second]),
                _score(best),
                f"{point['step']:,}" if point else "–",
                _seconds(point["seconds"]) if point else "–",
                _seconds(r["seconds"]),
                f"{r['steps']:,}" if own else "–",
                f"{r['ms_per_step']:,.1f}" if own else "–",
                f"{r['parameters']:,}" if own else "–",
            ]
        )
    return shown + [[r["name"], f"skipped: {r['skipped']}"] for r in report["results"] if "skipped" in r]


def ranked(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What has a test score, the best first; what has none (a constant) last."""
    key = report["conditions"]["score"]
    done = [r for r in report["results"] if "test" in r]
    return sorted(done, key=lambda r: -math.inf if r["test"][key] is None else r["test"][key], reverse=True)


def conditions(report: dict[str, Any]) -> str:
    """What was compared, in one sentence."""
    c, machine = report["conditions"], report["machine"]
    place = machine["cuda_devices"][0] if c["device"] == "cuda" else f"{machine['cores']} CPU cores"
    n = c["experiments"]
    validated = "" if n["validated"] == n["val"] else f" ({n['validated']:,} of them used)"
    return (
        f"{c['phenotype']} of {c['screen']}, split by {c['split'].get('kind', '?')}: {n['train']:,} experiments for "
        f"training, {n['val']:,} for validation{validated}, {n['test']:,} for the test; {c['genes']:,} genes, "
        f"{c['relations']} relation{'s' * (c['relations'] > 1)}, {c['edges']:,} edges; {place}, "
        f"torch {machine['torch']}"
    )


def outcome(report: dict[str, Any]) -> list[str]:
    """Who won and by how much, who was first to the goal, and what the noise allows, a sentence each."""
    c, key, name = report["conditions"], report["conditions"]["score"], _name(report)
    done = [r for r in ranked(report) if r["test"][key] is not None]
    own = [r for r in done if r["kind"] == "model"]
    said = []
    if own:
        lines = {r["name"]: r["test"] for r in (own[0], *(r for r in done if r["kind"] == "baseline"))}
        result = {"part": "test", "metrics": lines, "confidence": report.get("confidence")}
        said.append(f"{verdict(own[0]['name'], result, _classes(report))}.")
    if c["goal"] is not None and own:
        there = sorted((r for r in own if r.get("to_goal")), key=lambda r: r["to_goal"]["seconds"])
        what = f"a validation {name} of {c['goal']:.3f}"
        if there:
            point = there[0]["to_goal"]
            said.append(
                f"{there[0]['name']} is first to {what}: {_counted(point['step'])}, {_seconds(point['seconds'])} s of "
                "training."
            )
        else:
            said.append(f"No model reached {what}.")
    said += [f"{r['name']}: {text}." for r in own for text in r["warnings"]]
    if c["ceiling"] is not None:
        said.append(f"Replicates and stated errors allow a Pearson of at most about {c['ceiling']:.3f}.")
    return said


def html(report: dict[str, Any]) -> str:
    """A self-contained page."""
    said = outcome(report)
    sections = [("Who won", "".join(f"<p>{escape(line)}</p>" for line in said) + _table(report))]
    curves = [r for r in ranked(report) if r.get("curve")]
    if curves:
        sections.append(("Learning over time", _curves(report, curves)))
    if set(MATRIX) <= {r["name"] for r in report["results"]}:
        sections.append(("Matrix", _matrix(report)))
    sections.append(("Numbers", numbers("all numbers of this run", report)))
    return page("Time to quality", conditions(report), sections)


def _table(report: dict[str, Any]) -> str:
    shown = [row for row in rows(report) if len(row) > 2]
    skipped = "".join(f"<p>{escape(', '.join(row))}</p>" for row in rows(report) if len(row) == 2)
    return (
        table(headings(report), shown)
        + skipped
        + "<p class=dim>Seconds are of training (for a baseline, of its fit), without the time spent validating. The "
        "test part was predicted once, by the checkpoint with the best validation error. The time of a step leaves out "
        f"the first {WARM}, in which kernels are compiled and recorded; the seconds do not.</p>"
    )


def _curves(report: dict[str, Any], done: Sequence[dict[str, Any]]) -> str:
    key, name = report["conditions"]["score"], _name(report)
    shown = done[:_MOST_CURVES]
    levels = _levels(report)
    drawn = ""
    for axis, unit in (("seconds", "seconds of training"), ("step", "steps")):
        series = {r["name"]: [(p[axis], p[key]) for p in r["curve"] if p[key] is not None] for r in shown}
        lengths = [r["curve"][-1][axis] for r in shown]
        log = min(lengths) > 0 and max(lengths) > _WIDE * min(lengths)
        drawn += figure(lines(series, unit, f"validation {name}", levels, log), f"Validation {name} over {unit}")
    left_out = len(done) - len(shown)
    note = f"<p class=dim>The {len(shown)} best of {len(done)} are drawn.</p>" if left_out else ""
    return drawn + note + numbers("the numbers", {r["name"]: r["curve"] for r in done})


def _levels(report: dict[str, Any]) -> dict[str, float]:
    """The best baseline's validation score, and the goal where it is another."""
    c, found = report["conditions"], {}
    fitted = [r for r in report["results"] if r["kind"] == "baseline" and "validation" in r]
    fitted = [r for r in fitted if r["validation"][c["score"]] is not None]
    if fitted:
        best = max(fitted, key=lambda r: r["validation"][c["score"]])
        found[best["name"]] = float(best["validation"][c["score"]])
    if c["goal"] is not None and c["goal"] not in found.values():
        found["goal"] = float(c["goal"])
    return found


def _matrix(report: dict[str, Any]) -> str:
    """Test scores: a row for each convolution and aggregation, a column for each local predictor."""
    key = report["conditions"]["score"]
    found = {r["name"]: r["test"][key] if "test" in r else None for r in report["results"]}
    predictors = list(dict.fromkeys(name.split(", ")[2] for name in MATRIX))
    pairs = list(dict.fromkeys(name.rpartition(", ")[0] for name in MATRIX))
    body = [[pair, *(_score(found[f"{pair}, {local}"]) for local in predictors)] for pair in pairs]
    return f"<p>Test {_name(report)} by local predictor.</p>" + table(["convolution, aggregation", *predictors], body)


def _best(r: dict[str, Any], key: str) -> float | None:
    if r["kind"] == "baseline":
        return r["validation"][key]  # type: ignore[no-any-return]
    return max((p[key] for p in r["curve"] if p[key] is not None), default=None)


def _classes(report: dict[str, Any]) -> bool:
    return bool(report["conditions"]["score"] == "auroc")


def _name(report: dict[str, Any]) -> str:
    return "AUROC" if _classes(report) else "Pearson"


def _counted(steps: int) -> str:
    return f"{steps:,} step{'s' * (steps != 1)}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 0.1 else f"{value:.3f}"
