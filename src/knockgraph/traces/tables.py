"""Traces as tables, for the terminal, as Markdown and for :mod:`knockgraph.traces.page`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from knockgraph.traces.findings import short


@dataclass(frozen=True)
class Section:
    """A heading, sentences, at most one table (its first column is text), and sentences below it."""

    title: str
    headings: tuple[str, ...] = ()
    rows: list[list[str]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)


def sections(result: dict[str, Any], top: int = 20) -> list[Section]:
    """The sections shown for one trace, for two compared, or for one per rank.

    Args:
        result: What :func:`knockgraph.cli.trace.trace` makes: ``traces``, and ``comparison`` or ``ranks``.
        top: How many operators are listed.
    """
    if result["comparison"] is not None:
        return _comparison(result["comparison"], result["traces"], top)
    if result["ranks"] is not None:
        return _ranks(result["ranks"], result["traces"])
    return _single(result["traces"][0], top)


def _single(report: dict[str, Any], top: int) -> list[Section]:
    steps = report["steps"]["count"] if report["steps"] else 0
    shown = [
        Section(report["file"], sentences=[*report["findings"], *report["notes"]]),
        _shares("Where the wall clock goes", "category", report["wall_ns"], report["span_ns"], steps),
    ]
    if report["gpu"] is not None:
        shown += _gpu(report, steps)
    shown += [
        _tracks(report),
        _operators(
            "Operators of the host by self time", report["host_operators"], sum(report["host"].values()), steps, top
        ),
    ]
    if report["device_operators"]:
        total = sum(report["device"].values())
        shown.append(_operators("Kernels and copies by self time", report["device_operators"], total, steps, top))
    if report["unmatched"]:
        rows = [[short(r["name"]), r["cat"] or "–", f"{r['count']:,}", _ms(r["self_ns"])] for r in report["unmatched"]]
        left = _left([r["self_ns"] for r in report["unmatched"]], top)
        shown.append(Section("Unmatched names", ("name", "cat", "count", "self ms"), rows[:top], below=left))
    return [*shown, *_waits_and_copies(report, steps), *_memory(report), *_steps(report)]


def _shares(title: str, what: str, values: dict[str, int], total: int, steps: int) -> Section:
    """Time by category, with its sum."""
    headings = (what, "ms", "share") + (("ms per step",) if steps else ())
    rows = []
    for name, ns in [*values.items(), ("sum", sum(values.values()))]:
        if ns or name == "sum":
            rows.append([name, _ms(ns), _share(ns, total)] + ([_ms(ns / steps)] if steps else []))
    return Section(title, headings, rows)


def _gpu(report: dict[str, Any], steps: int) -> list[Section]:
    gpu = report["gpu"]
    rows = [
        [d["device"], str(d["streams"]), _ms(d["busy_ns"]), f"{d['busy_share']:.1%}", _ms(d["idle_ns"])]
        for d in gpu["devices"]
    ]
    kernels = gpu["kernels"]
    each = f" ({kernels['count'] / steps:,.1f} and {_ms(kernels['self_ns'] / steps)} ms per step)" if steps else ""
    said = [f"{kernels['count']:,} kernels take {_ms(kernels['self_ns'])} ms{each}."]
    shown = [
        Section("The device", ("device", "streams", "busy ms", "busy", "idle ms"), rows, below=said),
        _shares("Device time by type", "category", report["device"], gpu["self_ns"], steps),
        _shares(
            "Device time by the host phase that launched it",
            "category",
            gpu["by_host_category"],
            gpu["self_ns"],
            steps,
        ),
    ]
    for d in gpu["devices"]:
        if d["idle_ns"]:
            title = f"What the host does while {d['device']} is idle"
            shown.append(_shares(title, "category", d["idle_while_host"], d["idle_ns"], steps))
    return shown


def _tracks(report: dict[str, Any]) -> Section:
    rows = []
    for track in report["tracks"]:
        largest = sorted(track["categories"].items(), key=lambda item: -item[1])[:3]
        doing = ", ".join(f"{name} {_ms(ns)}" for name, ns in largest if ns)
        rows.append(
            [
                track["name"],
                f"{track['events']:,}",
                _ms(track["covered_ns"]),
                _share(track["covered_ns"], report["span_ns"]),
                _ms(track["idle_ns"]),
                _ms(track["longest_gap_ns"]),
                doing,
            ]
        )
    headings = ("track", "events", "busy ms", "busy", "idle ms", "longest gap ms", "mostly (ms)")
    return Section("Threads and streams", headings, rows)


def _operators(title: str, operators: list[dict[str, Any]], total: int, steps: int, top: int) -> Section:
    launches = any("device_ns" in row for row in operators)
    headings: tuple[str, ...] = ("name", "category", "count", "self ms", "share")
    headings += (("ms per step",) if steps else ()) + (("launched on the GPU ms",) if launches else ())
    rows = []
    for row in operators[:top]:
        category, ns = max(row["categories"].items(), key=lambda item: item[1])
        several = f" {_share(ns, row['self_ns'])}" if len(row["categories"]) > 1 else ""
        line = [short(row["name"]), category + several, f"{row['count']:,}", _ms(row["self_ns"])]
        line.append(_share(row["self_ns"], total))
        line += [_ms(row["self_ns"] / steps)] if steps else []
        line += [_ms(row["device_ns"]) if "device_ns" in row else "–"] if launches else []
        rows.append(line)
    return Section(title, headings, rows, below=_left([row["self_ns"] for row in operators], top))


def _waits_and_copies(report: dict[str, Any], steps: int) -> list[Section]:
    shown = []
    syncs = report["syncs"]
    if syncs["count"] or syncs["values_read"]:
        rows = [
            [name, f"{row['count']:,}", f"{row['in_steps']:,}", _ms(row["wait_ns"])]
            for name, row in syncs["names"].items()
        ]
        each = f", {syncs['values_read'] / steps:,.1f} per step" if steps else ""
        said = [f"{syncs['values_read']:,} single values were read by the host (aten::_local_scalar_dense){each}."]
        headings = ("call that waits for the device", "count", "inside steps", "ms")
        shown.append(
            Section("Waits for the device, values read by the host", headings if rows else (), rows, below=said)
        )
    if report["copies"]:
        rows = [
            [
                row["direction"],
                f"{row['count']:,}",
                f"{row['bytes'] / 1e6:,.3f}",
                _ms(row["ns"]),
                "–" if row["gb_per_s"] is None else f"{row['gb_per_s']:,.2f}",
            ]
            for row in report["copies"]
        ]
        shown.append(Section("Copies", ("direction", "count", "MB", "ms", "GB/s"), rows))
    return shown


def _memory(report: dict[str, Any]) -> list[Section]:
    if not report["memory"]:
        return []
    rows = [
        [
            device,
            *(f"{m[key] / 1e6:,.3f}" for key in ("first_bytes", "peak_bytes", "last_bytes", "peak_reserved_bytes")),
        ]
        for device, m in report["memory"].items()
    ]
    return [Section("Memory allocated", ("device", "first MB", "peak MB", "last MB", "peak reserved MB"), rows)]


def _steps(report: dict[str, Any]) -> list[Section]:
    s = report["steps"]
    if s is None:
        return []
    row = [f"{s['first']} to {s['last']}", str(s["count"])]
    row += [_ms(s[key]) for key in ("mean_ns", "median_ns", "min_ns", "max_ns", "outside_ns")]
    headings = ("steps", "count", "mean ms", "median ms", "shortest ms", "longest ms", "outside steps ms")
    return [Section("Steps", headings, [row])]


def _comparison(comparison: dict[str, Any], traces: list[dict[str, Any]], top: int) -> list[Section]:
    a, b = comparison["labels"]
    unit = f"ms per {comparison['per']}"
    headings = (f"A, {unit}", f"B, {unit}", "B − A", "B / A")
    unequal = [f"The conditions differ – {text}." for text in comparison["unequal_conditions"]]
    said = unequal or ["The conditions are equal, as far as the traces tell."]
    notes = [f"{name}: {note}" for name, s in zip("AB", traces, strict=True) for note in s["notes"]]
    shown = [Section("Two traces", sentences=[*said, f"A is {a}, B is {b}.", comparison["answer"], *notes])]

    def rows(of: list[dict[str, Any]]) -> list[list[str]]:
        return [
            [short(r["name"]), _ms(r["a_ns"]), _ms(r["b_ns"]), f"{r['difference_ns'] / 1e6:+,.3f}", _ratio(r["ratio"])]
            for r in of
        ]

    whole = [comparison["span"]] + ([comparison["step"]] if "step" in comparison else [])
    shown.append(Section("Where the wall clock goes", ("category", *headings), rows([*comparison["wall"], *whole])))
    for key, title, what in (
        ("host", "Self time of all host threads", "category"),
        ("device", "Device time", "category"),
        ("host_operators", "Operators of the host", "name"),
        ("device_operators", "Kernels and copies", "name"),
    ):
        if comparison[key]:
            left = _left([abs(r["difference_ns"]) for r in comparison[key]], top, "that differ by")
            shown.append(Section(title, (what, *headings), rows(comparison[key][:top]), below=left))
    others = [
        [r["name"], _number(r["a"]), _number(r["b"]), _number(r["difference"], "+"), _ratio(r["ratio"])]
        for r in comparison["other"]
    ]
    shown.append(Section(f"Other figures per {comparison['per']}", ("figure", "A", "B", "B − A", "B / A"), others))
    return shown


def _ranks(spread: dict[str, Any], traces: list[dict[str, Any]]) -> list[Section]:
    unequal = [f"The conditions differ – {text}." for text in spread["unequal_conditions"]]
    rows = []
    for name, s in zip(spread["ranks"], traces, strict=True):
        wall = s["wall_ns"]
        largest = sorted(wall.items(), key=lambda item: -item[1])[:3]
        rows.append(
            [
                name,
                _ms(s["span_ns"]),
                str(s["steps"]["count"]) if s["steps"] else "–",
                _ms(s["steps"]["mean_ns"]) if s["steps"] else "–",
                f"{s['gpu']['busy_share']:.1%}" if s["gpu"] else "–",
                f"{s['syncs']['count']:,}",
                ", ".join(f"{category} {_share(ns, s['span_ns'])}" for category, ns in largest if ns),
            ]
        )
    headings = ("trace", "span ms", "steps", "mean step ms", "GPU busy", "syncs", "mostly")
    notes = [f"{name}: {note}" for name, s in zip(spread["ranks"], traces, strict=True) for note in s["notes"]]
    spreads = [
        [r["name"], _ms(min(r["values_ns"])), r["fastest"], _ms(max(r["values_ns"])), r["slowest"], _ratio(r["ratio"])]
        for r in spread["rows"]
    ]
    per = f"ms per {spread['per']}"
    return [
        Section(f"{len(traces)} traces", headings, rows, [*unequal, *notes]),
        Section(
            "Spread between them", ("wall clock", f"least, {per}", "in", f"most, {per}", "in", "most / least"), spreads
        ),
    ]


def markdown(result: dict[str, Any], top: int = 20) -> str:
    """The report as Markdown."""
    parts = []
    for i, section in enumerate(sections(result, top)):
        parts.append(f"{'#' if i == 0 else '##'} {section.title}\n")
        parts += [f"{_escaped(sentence)}\n" for sentence in section.sentences]
        if section.headings:
            rule = "|---|" + "---:|" * (len(section.headings) - 1)
            rows = [f"| {' | '.join(map(_escaped, row))} |" for row in section.rows]
            parts.append("\n".join([f"| {' | '.join(section.headings)} |", rule, *rows]) + "\n")
        parts += [f"{_escaped(sentence)}\n" for sentence in section.below]
    return "\n".join(parts)


def _left(values: list[int] | list[float], top: int, what: str = "with") -> list[str]:
    """A note on what a shortened list leaves out."""
    rest = values[top:]
    return [f"{len(rest):,} more names {what} {_ms(sum(rest))} ms in all are not listed."] if rest else []


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "–"


def _ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:,.2f}×"


def _number(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{value:{sign},.3f}".rstrip("0").rstrip(".")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
