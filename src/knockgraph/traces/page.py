"""Traces as a page: bars and timelines, the numbers behind each, every table."""

from __future__ import annotations

from html import escape
from typing import Any

from knockgraph.html.page import figure, numbers, page, table
from knockgraph.html.plots import PALETTE, lines, runs, stacked_bars, timeline
from knockgraph.traces.categories import IDLE, UNMATCHED
from knockgraph.traces.device import NO_LAUNCH
from knockgraph.traces.findings import short
from knockgraph.traces.tables import Section, sections

_GREY = "#9aa1a9"  # unmatched
_DARK = "#6b7178"  # work whose launch is not in the trace
_PALE = "#8b949e44"  # idle: hardly there, on light and on dark


def html(result: dict[str, Any], top: int = 20) -> str:
    """The self-contained page: stacked bars and timelines first, then every table."""
    first, *rest = sections(result, top)
    traces = result["traces"]
    names = _names(result)
    shown = [("In short", _content(first))]
    colors = _colors(traces)
    unit, bars = _bars(result, names, colors)
    picture = stacked_bars(bars, unit, "Wall clock by category, GPU work by the phase that launched it", colors)
    shown.append(("Wall clock", figure(picture, f"{unit} by category, for each trace") + numbers("the numbers", bars)))
    for name, s in _drawn(result, names):
        of = f" of {name}" if len(traces) > 1 else ""
        palette = [colors[category] for category in s["category_names"]]
        for line in s["timelines"]:
            rows = [(short(row["name"], 34), row["categories"]) for row in line["rows"]]
            used = {s["category_names"][c] for _, doing in rows for c in doing if c >= 0}
            picture = timeline(rows, palette, line["length_ns"] / 1e6, "milliseconds")
            legend = _legend({category: color for category, color in colors.items() if category in used})
            drawn = figure(picture, f"What the threads and streams{of} do over time, {line['title']}")
            behind = numbers("category, start and end in milliseconds", _stretches(line, s["category_names"]))
            shown.append((f"Timeline{of}: {line['title']}", legend + drawn + behind))
        curves = {
            device: [(ns / 1e6, size / 1e6) for ns, size in m["series"]]
            for device, m in s["memory"].items()
            if len(m["series"]) > 1
        }
        if curves:
            drawn = figure(lines(curves, "milliseconds", "MB allocated"), f"Memory allocated{of} over time")
            shown.append((f"Memory over time{of}", drawn + numbers("milliseconds and MB", curves)))
    shown += [(section.title, _content(section)) for section in rest]
    bare = [{k: v for k, v in s.items() if k != "timelines"} for s in traces]
    shown.append(("All numbers", numbers("as JSON", bare)))
    return page(
        f"Trace: {', '.join(names)}", "Self time: every nanosecond of a thread or stream is counted once.", shown
    )


def _names(result: dict[str, Any]) -> list[str]:
    if result["comparison"] is not None:
        names: list[str] = result["comparison"]["labels"]
        return names
    if result["ranks"] is not None:
        ranks: list[str] = result["ranks"]["ranks"]
        return ranks
    return [result["traces"][0]["file"].rpartition("/")[2]]


def _stretches(line: dict[str, Any], names: list[str]) -> dict[str, list[tuple[str, float, float]]]:
    """What a timeline draws, as numbers: thread or stream → category, start and end in milliseconds."""
    found = {}
    for row in line["rows"]:
        doing = row["categories"]
        width = line["length_ns"] / 1e6 / max(len(doing), 1)
        found[row["name"]] = [(names[doing[a]], round(a * width, 6), round(b * width, 6)) for a, b in runs(doing)]
    return found


def _bars(result: dict[str, Any], names: list[str], colors: dict[str, str]) -> tuple[str, dict[str, dict[str, float]]]:
    """Unit; wall-clock time and device work of each trace by category, per step where all have steps."""
    traces = result["traces"]
    per_step = all(s["steps"] for s in traces)
    bars: dict[str, dict[str, float]] = {}
    for name, s in zip(names, traces, strict=True):
        by = 1e6 * (s["steps"]["count"] if per_step else 1)
        name = short(name, 40)
        bars[name] = {category: ns / by for category, ns in s["wall_ns"].items()}
        if s["gpu"] is not None:
            bars[f"{name}: GPU work"] = {c: ns / by for c, ns in s["gpu"]["by_host_category"].items()}
    used = [category for category in colors if any(row.get(category) for row in bars.values())]
    ordered = {name: {category: row.get(category, 0.0) for category in used} for name, row in bars.items()}
    return "milliseconds per step" if per_step else "milliseconds", ordered


def _drawn(result: dict[str, Any], names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The traces whose timelines are drawn: of many ranks the shortest and the longest."""
    named = list(zip(names, result["traces"], strict=True))
    if result["ranks"] is None:
        return named
    by_span = sorted(named, key=lambda pair: pair[1]["span_ns"])
    return [by_span[0], by_span[-1]]


def _colors(traces: list[dict[str, Any]]) -> dict[str, str]:
    """Category → colour, the same in every picture of a page."""
    categories = list(dict.fromkeys(c for s in traces for c in s["category_names"] if c != UNMATCHED))
    chosen = {category: PALETTE[i % len(PALETTE)] for i, category in enumerate(categories)}
    return {**chosen, UNMATCHED: _GREY, NO_LAUNCH: _DARK, IDLE: _PALE}


def _legend(colors: dict[str, str]) -> str:
    mark = '<span aria-hidden="true" style="color:{}">■</span>'
    marks = "".join(
        f'<span style="white-space:nowrap">{mark.format(color)} {escape(name)}</span>&emsp;'
        for name, color in colors.items()
    )
    return f'<p style="font-size:.8rem;line-height:1.7">{marks}</p>'


def _content(section: Section) -> str:
    said, below = ("".join(f"<p>{escape(text)}</p>" for text in texts) for texts in (section.sentences, section.below))
    return said + (table(section.headings, section.rows) if section.headings else "") + below
