"""A benchmark of predictions as Markdown and as a page."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from knockgraph.html.page import numbers, page, table
from knockgraph.words import counted

_MEAN = 2  # the column
_SCORES = {"pearson": "Pearson's r", "auroc": "area under the ROC curve", "average_precision": "average precision"}
_PERMUTED = {
    "networks": "CONTROL: networks and features were given to permuted genes.",
    "labels": "CONTROL: labels were given to permuted experiments.",
}

_UNRANKED = (
    "† is shown but not ranked: its input shares measurement errors with the labels, so part of its score is not "
    "prediction."
)
_UNDEFINED = "“–” is a score that is not defined: all predictions are equal."


def markdown(result: dict[str, Any]) -> str:
    """The tables as Markdown: scores of each seed, their mean in bold if it is the best, and its interval."""
    lines = [about(result), ""]
    for one in result["tables"]:
        headings, rows = _table(one)
        lines += [f"### {_title(one)}", "", _sizes(one), ""]
        lines += [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
        for row, about_row in zip(rows, one["rows"], strict=True):
            if about_row["model"] == one["best"]:
                row[_MEAN] = f"**{row[_MEAN]}**"
            lines.append(f"| {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines)


def html(result: dict[str, Any]) -> str:
    """The self-contained page."""
    sections = []
    for one in result["tables"]:
        best = next((k for k, row in enumerate(one["rows"]) if row["model"] == one["best"]), None)
        sections.append((_title(one), f'<p class="dim">{escape(_sizes(one))}</p>{table(*_table(one), best)}'))
    sections.append(("Numbers", numbers("all numbers, with the settings that were chosen", result)))
    return page("Benchmark", about(result), sections)


def about(result: dict[str, Any]) -> str:
    """How the tables were made, in a few sentences."""
    control = f"{_PERMUTED[result['permute']]} " if result["permute"] in _PERMUTED else ""
    rows = [row for one in result["tables"] for row in one["rows"]]
    empty = any(value is None or math.isnan(value) for row in rows for value in row["seeds"])
    undefined = f"{_UNDEFINED} " if empty else ""
    unranked = "" if all(row["ranked"] for row in rows) else f"{_UNRANKED} "
    return (
        f"{control}Test parts of {counted(len(result['seeds']), 'seed')} ({', '.join(map(str, result['seeds']))}), "
        "of the split and of the model: the score of each, then their mean and its 95 % interval "
        f"({result['samples']} bootstrap samples of the test experiments). Settings that were searched were chosen on "
        "validation parts. "
        "“Behind the best” is a paired difference on the same samples. An asterisk marks the default model of the "
        f"screen, the numbers of experiments are those of the first seed. {unranked}{undefined}"
        f"knockgraph {result['version']}, {result['date']}."
    )


def _title(one: dict[str, Any]) -> str:
    return f"{one['screen']}, {one['split']}: {_SCORES[one['score']]}"


def _sizes(one: dict[str, Any]) -> str:
    train, val, test = (f"{one['experiments'][part]:,}" for part in ("train", "val", "test"))
    parts = f"{train} experiments for training, {val} for validation, {test} in the test part"
    return f"Predicted: {one['phenotype']}. {parts}."


def _table(one: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows."""
    timed = all(row["seconds"] is not None for row in one["rows"])
    rows = [
        [
            row["model"] + (" *" if row["default"] else "") + ("" if row["ranked"] else " †"),
            ", ".join(map(_number, row["seeds"])),
            _number(row["mean"]["value"]),
            _interval(row["mean"]),
            "–" if row["less_than_best"] is None else _difference(row["less_than_best"]),
            *([f"{row['seconds']:.0f} s"] if timed else []),
        ]
        for row in one["rows"]
    ]
    return ["model", "seeds", "mean", "95 % interval", "behind the best", *(["fit"] if timed else [])], rows


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.3f}".replace("-", "−")


def _interval(values: dict[str, float]) -> str:
    return f"{_number(values['low'])} to {_number(values['high'])}"


def _difference(values: dict[str, float]) -> str:
    return f"{_number(values['value'])} ({_interval(values)})"
