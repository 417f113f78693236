"""Profiles as tables for the terminal and Markdown, and as a page."""

from __future__ import annotations

from html import escape
from typing import Any

from knockgraph import phases
from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import stacked_bars, timeline
from knockgraph.profile.compare import localised, per_step
from knockgraph.profile.explain import comparison, duration, milliseconds, shown, summary

COLORS = {
    phases.WAIT: "#efb118",
    phases.TRANSFER: "#ff725c",
    phases.MASKS: "#a463f2",
    phases.FORWARD: "#4269d0",
    phases.LOSS: "#97bbf5",
    phases.COMPILED: "#2f4b94",
    phases.BACKWARD: "#3ca951",
    phases.SYNC: "#e15759",
    phases.CLIPPING: "#6cc5b0",
    phases.OPTIMIZER: "#9c6b4e",
    phases.LOGGING: "#ff8ab7",
    phases.REMAINDER: "#9aa1a9",
    phases.BETWEEN: "#c7cbd1",
}
Table = tuple[str, tuple[str, ...], list[list[str]]]
_SLICES = 900


def tables(result: dict[str, Any]) -> list[Table]:
    """Title, headings and rows of all that is shown of a profile, a comparison, a trace or an overhead."""
    if result["profile"] == "comparison":
        return _comparison(result)
    found = [
        _phases(result),
        *_ranks(result),
        *_parts(result),
        *_modules(result),
        *_localised(result),
        _epochs([result]),
    ]
    return found


def paragraph(result: dict[str, Any]) -> str:
    """Where the time goes and what to change."""
    return comparison(result) if result["profile"] == "comparison" else summary(result)


def _phases(result: dict[str, Any]) -> Table:
    runs = result["runs"]
    device = "device_phases" in runs["full"]
    names = [name for name in phases.PHASES if any(name in run["phases"] for run in runs.values())]
    rows = []
    for name in names:
        row = [name]
        for run in runs.values():
            row += _cells(run["phases"].get(name), run["steps"], run["wall_seconds"])
        if device:
            run = runs["full"]
            row += _cells(run["device_phases"].get(name), run["device_steps"], run["device_wall_seconds"])
        rows.append(row)
    totals = ["sum of the phases"]
    walls = ["wall clock"]
    for run in runs.values():
        totals += [milliseconds(sum(run["phases"].values()) / run["steps"]), f"{run['accounted']:.1%}"]
        walls += [milliseconds(run["wall_seconds"] / run["steps"]), ""]
    if device:
        run = runs["full"]
        totals += [milliseconds(run["device_wall_seconds"] / run["device_steps"]), ""]
        walls += ["", ""]
    clock = " (host)" if device else ""
    headings = ["phase", *(h for name in runs for h in (f"{name}{clock}", "share"))]
    if device:
        headings += ["full (device)", "share"]
    return "Time per step", tuple(headings), [*rows, totals, walls]


def _cells(seconds: float | None, steps: int, wall: float) -> list[str]:
    return ["–", ""] if seconds is None else [milliseconds(seconds / steps), f"{seconds / wall:.1%}"]


def _ranks(result: dict[str, Any]) -> list[Table]:
    ranks = result["runs"]["full"].get("ranks")
    if not ranks:
        return []
    names = [name for name in phases.PHASES if any(name in rank["phases"] for rank in ranks)]
    rows = [[name, *(_cells(r["phases"].get(name), r["steps"], 1.0)[0] for r in ranks)] for name in names]
    rows.append(["wall clock", *(milliseconds(r["wall_seconds"] / r["steps"]) for r in ranks)])
    return [("Ranks of the full run", ("phase", *(f"rank {i}" for i in range(len(ranks)))), rows)]


def _parts(result: dict[str, Any]) -> list[Table]:
    run = result["runs"]["full"]
    rows = [
        [f"{name}: {part}", milliseconds(seconds / run["steps"]), f"{seconds / run['wall_seconds']:.1%}"]
        for name, parts in run["parts"].items()
        for part, seconds in parts.items()
        if seconds >= 5e-4 * run["wall_seconds"]
    ]
    return [("Parts of the phases, full run", ("part", "per step", "share"), rows)] if rows else []


def _modules(result: dict[str, Any]) -> list[Table]:
    modules = result["runs"].get("model-only", {}).get("modules")
    if not modules:
        return []
    total = sum(m["forward_seconds"] + m["backward_seconds"] for m in modules)
    rows = [
        [
            f"{m['module']} ({m['kind']})",
            milliseconds(m["forward_seconds"]),
            milliseconds(m["backward_seconds"]),
            f"{(m['forward_seconds'] + m['backward_seconds']) / total:.1%}",
        ]
        for m in modules[:12]
    ]
    return [("Modules, by self time on a stored batch", ("module", "forward", "backward", "share"), rows)]


_LOCALISED = {
    "empty": "everything but the model (empty task)",
    "model": "what the model adds (stored batch)",
    "unexplained": "unexplained",
    "full": "full",
}


def _localised(result: dict[str, Any]) -> list[Table]:
    found = localised(result["runs"])
    if found is None:
        return []
    rows = [[text, milliseconds(found[key]), f"{found[key] / found['full']:.1%}"] for key, text in _LOCALISED.items()]
    return [("Full = empty + model + unexplained", ("", "per step", "share"), rows)]


def _both_localised(a: dict[str, Any], b: dict[str, Any]) -> list[Table]:
    left, right = localised(a["runs"]), localised(b["runs"])
    if left is None or right is None:
        return []
    rows = [
        [text, milliseconds(left[key]), milliseconds(right[key]), milliseconds(right[key] - left[key], sign=True)]
        for key, text in _LOCALISED.items()
    ]
    headings = ("per step", a["setting"], b["setting"], "difference")
    return [("Full = empty + model + unexplained", headings, rows)]


def _epochs(results: list[dict[str, Any]]) -> Table:
    headings = ("setting", "training samples", "batch", "processes", "steps", "per step", "predicted", "measured")
    rows = []
    for r in results:
        e = r["epoch"]
        measured = "not run" if e["measured_seconds"] is None else duration(e["measured_seconds"])
        rows.append(
            [
                r["setting"],
                f"{e['training_samples']:,}",
                f"{e['batch']:,}",
                f"{e['processes']:,}",
                f"{e['steps']:,}",
                milliseconds(r["runs"]["full"]["seconds_per_step"]),
                duration(e["predicted_seconds"]),
                measured,
            ]
        )
    return "An epoch", headings, rows


def _comparison(result: dict[str, Any]) -> list[Table]:
    a, b, d = result["a"], result["b"], result["decomposition"]
    unequal = [[x["condition"], shown(x["a"]), shown(x["b"])] for x in result["differences"]]
    left, right = per_step(a["runs"]["full"]), per_step(b["runs"]["full"])
    rows = [
        [
            name,
            milliseconds(left.get(name, 0.0)),
            milliseconds(right.get(name, 0.0)),
            milliseconds(right.get(name, 0.0) - left.get(name, 0.0), sign=True),
        ]
        for name in phases.PHASES
        if name in left or name in right
    ]
    sums = [sum(left.values()), sum(right.values())]
    rows.append(["sum", *map(milliseconds, sums), milliseconds(sums[1] - sums[0], sign=True)])
    factors = [["more steps", f"{d['more_steps']:.3f}×"], ["slower steps", f"{d['slower_steps']:.3f}×"]]
    if "slower_steps_by" in result:
        by = result["slower_steps_by"]
        factors.append([f"    of which the model, {b['conditions']['model']}", f"{by['model']:.3f}×"])
        factors.append([f"    of which the strategy, {b['conditions']['strategy']}", f"{by['strategy']:.3f}×"])
    unexplained = "not measured" if d["unexplained"] is None else f"{d['unexplained']:.3f}×"
    factors.append(["unexplained", unexplained])
    factors.append([f"epoch of {b['setting']} / epoch of {a['setting']}", f"{d['ratio']:.3f}×"])
    names = (a["setting"], b["setting"])
    return [
        ("Unequal conditions", ("condition", *names), unequal or [["none", "", ""]]),
        _epochs([a, b]),
        ("The ratio of the epochs", ("factor", "value"), factors),
        ("Time per step, full run", ("phase", *names, "difference"), rows),
        *_both_localised(a, b),
    ]


def markdown(result: dict[str, Any]) -> str:
    """The tables and the paragraph as Markdown."""
    parts = [f"# {title(result)}", conditions(result), paragraph(result)]
    for heading, headings, rows in tables(result):
        lines = [f"## {heading}", ""]
        lines.append("| " + " | ".join(headings) + " |")
        lines.append("|" + "---|" * len(headings))
        lines += ["| " + " | ".join(cell.replace("|", "\\|").strip() for cell in row) + " |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def title(result: dict[str, Any]) -> str:
    """Of the page."""
    if result["profile"] == "comparison":
        return f"{result['b']['setting']} against {result['a']['setting']}"
    return f"Where the time of {result['setting']} goes"


def conditions(result: dict[str, Any]) -> str:
    """What was measured, in one sentence; of two settings both where they differ."""
    sides = [result["a"], result["b"]] if result["profile"] == "comparison" else [result]
    found, m = sides[0], sides[0]["machine"]
    device = found["conditions"]["device"]
    cores = f"{m['cores']} CPU cores, {m['torch_threads']} thread{'s' * (m['torch_threads'] > 1)}"
    cells, runs = (dict.fromkeys(text(side["conditions"]) for side in sides) for text in (_cell, _run))
    return (
        f"{' and '.join(cells)}; {' and '.join(runs)}; {found['steps']} steps after {found['warmup']}; "
        f"{cores if device == 'cpu' else device}, torch {m['torch']}"
    )


def _cell(c: dict[str, Any]) -> str:
    return f"{c['genes']:,} genes, {len(c['relations'])} relations, {c['edges']:,} edges"


def _run(c: dict[str, Any]) -> str:
    return f"batch {c['batch per process']} × {c['processes']} process{'es' * (c['processes'] > 1)}, {c['precision']}"


def html(result: dict[str, Any]) -> str:
    """The self-contained page."""
    sections = [("In short", f"<p>{escape(paragraph(result))}</p>")]
    below = [(heading, table(headings, rows)) for heading, headings, rows in tables(result)]
    if result["profile"] == "comparison":
        sections.append(below.pop(0))  # unequal conditions come before any number
    bars = _bars(result)
    picture = figure(
        stacked_bars(bars, "milliseconds per step", "", COLORS), "Milliseconds per step by phase, for each run"
    )
    sections.append(("Where the time of a step goes", picture + numbers("the numbers", bars)))
    sections += _timelines(result)
    sections += below
    sections.append(("The numbers", numbers("everything that was measured", result)))
    return page(title(result), conditions(result), sections)


def _bars(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    if result["profile"] == "comparison":
        settings = [result["a"], *([result["middle"]] if "middle" in result else []), result["b"]]
        runs = {x["setting"]: per_step(x["runs"]["full"]) for x in settings}
    else:
        runs = {name: per_step(run) for name, run in result["runs"].items()}
        if "device_phases" in result["runs"]["full"]:
            full = result["runs"]["full"]
            host = {k: v / full["steps"] for k, v in full["phases"].items() if k != phases.BETWEEN}
            runs = {"full, host clock": host, "full, device clock": runs.pop("full"), **runs}
    order = [name for name in phases.PHASES if any(name in run for run in runs.values())]
    return {label: {name: 1e3 * run.get(name, 0.0) for name in order} for label, run in runs.items()}


def _timelines(result: dict[str, Any]) -> list[tuple[str, str]]:
    if result["profile"] == "comparison":
        found = [(x["setting"], x["runs"]["full"]["timeline"]) for x in (result["a"], result["b"])]
    else:
        found = [("", result["runs"]["full"]["timeline"])]
    names, colors = list(COLORS), list(COLORS.values())
    pictures = []
    for label, steps in found:
        length = max((step["milliseconds"] for step in steps), default=0.0)
        if not length:
            continue
        rows = []
        for number, step in enumerate(steps):
            doing = [-1] * _SLICES
            for name, start, end in step["pieces"]:
                first, last = (round(_SLICES * x / length) for x in (start, end))
                doing[first:last] = [names.index(name) if name in COLORS else -1] * (last - first)
            rows.append((f"step {number + 1}", doing))
        of = f" of {label}" if label else ""
        heading = f"The first measured steps{of}, host clock, colours as above"
        picture = timeline(rows, colors, length, "milliseconds since the batch was asked for")
        shown = figure(picture, f"What each of the first measured steps{of} does over time")
        pictures.append((heading, shown + numbers("phase, start and end in milliseconds", steps)))
    return pictures
