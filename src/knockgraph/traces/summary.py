"""Summary of one trace: self time per track, category and operator, device work, syncs, copies, memory, steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knockgraph.traces.analysis import Analysis, analyse, by_category, named, track_name
from knockgraph.traces.categories import IDLE, UNMATCHED, Categories
from knockgraph.traces.device import NO_LAUNCH, copies_by_direction, device_work, launched_by_label, syncs
from knockgraph.traces.findings import findings
from knockgraph.traces.pictures import memory_series, timelines
from knockgraph.traces.reader import Trace, read_trace
from knockgraph.traces.self_time import Timeline


def summarise_file(
    path: Path, categories: Categories, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """Read and summarise a trace.

    Args:
        path: The file.
        categories: The rules for categories.
        progress: Called with the numbers of events and characters read.
    """
    return summarise(analyse(read_trace(path, progress), categories))


def summarise(analysis: Analysis) -> dict[str, Any]:
    """Everything that is shown, JSON-safe; times in nanoseconds unless the name says seconds."""
    trace, names = analysis.trace, analysis.categories.names
    steps = _steps(analysis)
    wall = named(names, analysis.wall.totals(len(names)))
    wall[IDLE] = analysis.span - sum(wall.values())
    gpu = device_work(analysis)
    on_device = analysis.on_device()
    report = {
        "file": str(trace.path),
        "characters": trace.characters,
        "events": {
            "timed": len(trace.start),
            **{f"not timed: {kind}": count for kind, count in sorted(trace.others.items())},
        },
        "conditions": _conditions(trace, steps),
        "wall_seconds": analysis.span / 1e9,
        "phases": {name: ns / 1e9 for name, ns in wall.items()},
        "span_ns": analysis.span,
        "wall_ns": wall,
        "steps": steps,
        "tracks": _tracks(analysis),
        "host": named(names, by_category(analysis, ~on_device)),
        "device": named(names, by_category(analysis, on_device)),
        **_operators(analysis, on_device),
        "gpu": gpu,
        "syncs": syncs(analysis),
        "copies": copies_by_direction(trace),
        "memory": {device: memory_series(*columns, analysis.first) for device, columns in sorted(trace.memory.items())},
        "timelines": timelines(analysis.wall, _timeline_rows(analysis), analysis.first, analysis.last, trace.steps),
        "category_names": list(names),
    }
    report["notes"] = _notes(analysis, report)
    report["findings"] = findings(report)
    return report


def _steps(analysis: Analysis) -> dict[str, Any] | None:
    steps = analysis.trace.steps
    if not steps:
        return None
    durations = [duration for _, _, duration in steps]
    inside, until = 0, analysis.first
    for _, start, duration in steps:  # by start; steps that overlap count once
        inside += max(start + duration - max(start, until), 0)
        until = max(until, start + duration)
    return {
        "count": len(steps),
        "first": steps[0][0],
        "last": steps[-1][0],
        "mean_ns": sum(durations) / len(durations),
        "min_ns": min(durations),
        "max_ns": max(durations),
        "median_ns": float(np.median(durations)),
        "outside_ns": analysis.span - inside,
        "durations_ns": durations,
    }


def _tracks(analysis: Analysis) -> list[dict[str, Any]]:
    trace, names = analysis.trace, analysis.categories.names
    shown = []
    for i, (track, result) in enumerate(zip(trace.tracks, analysis.tracks, strict=True)):
        if not len(result.self_ns):
            continue
        covered = int(result.self_ns.sum())
        gaps = result.timeline.gaps(analysis.first, analysis.last)
        shown.append(
            {
                "name": track_name(analysis, i),
                "kind": "device" if track.device else "host",
                "process": track.process,
                "thread": track.thread,
                "main": i == analysis.main,
                "events": len(result.self_ns),
                "covered_ns": covered,
                "idle_ns": analysis.span - covered,
                "longest_gap_ns": int(gaps.max()) if len(gaps) else 0,
                "overlapping_events": result.overlaps,
                "categories": named(names, result.timeline.totals(len(names))),
            }
        )
    return sorted(shown, key=lambda row: (row["kind"] == "device", not row["main"], -row["covered_ns"]))


def _operators(analysis: Analysis, on_device: NDArray[np.bool_]) -> dict[str, Any]:
    """Names by self time, and those that no rule matched."""
    trace, names = analysis.trace, analysis.categories.names
    width = len(names)
    key = (trace.label.astype(np.int64) * width + analysis.category) * 2 + on_device
    found, place = np.unique(key, return_inverse=True)
    own = np.zeros(len(found), np.int64)
    np.add.at(own, place, analysis.self_ns)
    count = np.bincount(place, minlength=len(found))
    launched = launched_by_label(analysis, on_device)
    rows: dict[tuple[str, bool], dict[str, Any]] = {}
    unmatched: dict[tuple[str, str], dict[str, Any]] = {}
    for k, ns, n in zip(found.tolist(), own.tolist(), count.tolist(), strict=True):
        label, category, device = k // 2 // width, k // 2 % width, bool(k % 2)
        name, cat = trace.labels[label]
        row = rows.setdefault(
            (name, device),
            {"name": name, "kind": "device" if device else "host", "count": 0, "self_ns": 0, "categories": {}},
        )
        row["count"] += n
        row["self_ns"] += ns
        row["categories"][names[category]] = row["categories"].get(names[category], 0) + ns
        if category == analysis.categories.unmatched:
            alien = unmatched.setdefault((name, cat), {"name": name, "cat": cat, "count": 0, "self_ns": 0})
            alien["count"] += n
            alien["self_ns"] += ns
    for label, ns in launched.items():
        row = rows[trace.labels[label][0], False]
        row["device_ns"] = row.get("device_ns", 0) + ns
    ranked = sorted(rows.values(), key=lambda r: (-r["self_ns"], r["name"]))
    return {
        "host_operators": [row for row in ranked if row["kind"] == "host"],
        "device_operators": [row for row in ranked if row["kind"] == "device"],
        "unmatched": sorted(unmatched.values(), key=lambda r: (-r["self_ns"], r["name"])),
    }


def _timeline_rows(analysis: Analysis) -> list[tuple[str, Timeline]]:
    """The busiest tracks."""
    ranked = sorted(
        (i for i, result in enumerate(analysis.tracks) if len(result.self_ns)),
        key=lambda i: (i != analysis.main, -int(analysis.tracks[i].self_ns.sum())),
    )
    chosen = sorted(ranked[:12], key=lambda i: (analysis.trace.tracks[i].device, ranked.index(i)))
    return [(track_name(analysis, i), analysis.tracks[i].timeline) for i in chosen]


def _conditions(trace: Trace, steps: dict[str, Any] | None) -> dict[str, Any]:
    header = trace.header
    given = header.get("deviceProperties")
    devices = [str(d.get("name", "unknown")) for d in given if isinstance(d, dict)] if isinstance(given, list) else []
    distributed = header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    rank = distributed.get("rank")
    if rank is None and (named := re.search(r"rank[-_ ]?(\d+)", trace.path.name)):
        rank = int(named[1])
    return {
        "devices": devices,
        "device_events": any(track.device for track in trace.tracks),
        "steps": steps["count"] if steps else 0,
        "rank": rank,
        "world_size": distributed.get("world_size"),
        "shapes_recorded": bool(header.get("record_shapes")),
        "memory_recorded": bool(header.get("profile_memory") or trace.memory),
        "stacks_recorded": bool(header.get("with_stack")) or any(cat == "python_function" for _, cat in trace.labels),
        "host": header.get("host_name"),
    }


def _notes(analysis: Analysis, report: dict[str, Any]) -> list[str]:
    """Caveats for the reader, one sentence each."""
    trace, notes = analysis.trace, []
    if report["gpu"] is None:
        notes.append(
            "This trace holds no GPU events, so only the host is shown: to see the device, run on it and record with "
            "ProfilerActivity.CUDA."
        )
    elif missing := report["gpu"]["by_host_category"][NO_LAUNCH]:
        notes.append(
            f"{missing / 1e6:,.3f} ms of device time were launched by calls that are not in the trace, most likely "
            "before it began."
        )
    if report["steps"] is None:
        notes.append(
            "This trace has no ProfilerStep#n, so nothing is given per step: call profiler.step() once a step."
        )
    unmatched = report["host"][UNMATCHED] + report["device"][UNMATCHED]
    total = sum(report["host"].values()) + sum(report["device"].values())
    if unmatched:
        notes.append(
            f"{unmatched / 1e6:,.3f} ms ({unmatched / total:.1%} of all self time) match no rule and are shown as "
            "unmatched; use --categories FILE for your own rules."
        )
    if overlaps := sum(result.overlaps for result in analysis.tracks):
        notes.append(
            f"{overlaps:,} events outlast the event they began in; shared time is counted once, for the later one."
        )
    if trace.malformed:
        notes.append(f"{trace.malformed:,} events have no usable time and were left out.")
    if trace.unmatched_begins or trace.unmatched_ends:
        notes.append(
            f"{trace.unmatched_begins:,} events never end (they are taken to last until the end of the trace) and "
            f"{trace.unmatched_ends:,} ends have no beginning (left out)."
        )
    if trace.overhead_ns:
        notes.append(f"The profiler itself reports {trace.overhead_ns / 1e6:,.3f} ms of its own overhead.")
    if not trace.closed:
        notes.append("The list of events is not closed, which the format allows: the trace may be cut off.")
    return notes
