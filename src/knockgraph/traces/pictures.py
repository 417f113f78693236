"""Data for the plots of a trace: a few hundred points, whatever its size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from knockgraph.traces.self_time import Timeline

Integers = NDArray[np.int64]
BINS = 360
POINTS = 200


def timelines(
    wall: Timeline, rows: list[tuple[str, Timeline]], first: int, last: int, steps: list[tuple[int, int, int]]
) -> list[dict[str, Any]]:
    """The whole trace, and the step of median length in detail: for each bin the category with the most time.

    Args:
        wall: The wall clock.
        rows: Name and timeline of the tracks.
        first: When the trace begins.
        last: When it ends.
        steps: Number, start and duration of the steps.
    """
    windows = [("the whole trace", first, last)]
    if len(steps) > 1:
        number, start, duration = sorted(steps, key=lambda step: step[2])[len(steps) // 2]
        windows.append((f"step {number}, the one of median length", start, start + duration))
    return [
        {
            "title": title,
            "start_ns": begin - first,
            "length_ns": end - begin,
            "rows": [
                {"name": name, "categories": _largest(timeline, begin, end)}
                for name, timeline in [("wall clock", wall), *rows]
            ],
        }
        for title, begin, end in windows
        if end > begin
    ]


def _largest(timeline: Timeline, begin: int, end: int) -> list[int]:
    """For each bin the category with most time, −1 for idle."""
    edges = np.linspace(0, end - begin, BINS + 1)
    best, most = np.full(BINS, -1, np.int64), np.zeros(BINS)
    if not len(timeline.since):
        return best.tolist()
    times = (timeline.since - begin).astype(np.float64)
    lengths = np.diff(times)
    idle = np.diff(edges)
    for category in np.unique(timeline.category[timeline.category >= 0]).tolist():
        until = np.concatenate([[0.0], np.cumsum(np.where(timeline.category[:-1] == category, lengths, 0.0))])
        inside = np.diff(np.interp(edges, times, until))
        idle = idle - inside
        wins = inside > most
        best[wins], most[wins] = category, inside[wins]
    best[idle > most] = -1
    return best.tolist()


def memory_series(times: Integers, allocated: Integers, reserved: Integers, first: int) -> dict[str, Any]:
    """Peak, ends and a short series of the bytes allocated; each point is the peak of its stretch of time.

    Args:
        times: Of the allocations and releases.
        allocated: Bytes allocated after each.
        reserved: Bytes reserved after each.
        first: When the trace begins.
    """
    order = np.argsort(times, kind="stable")
    times, allocated = times[order], allocated[order]
    stretches = np.array_split(np.arange(len(times)), min(len(times), POINTS))
    series = []
    for stretch in stretches:
        highest = stretch[int(allocated[stretch].argmax())]
        series.append([int(times[highest]) - first, int(allocated[highest])])
    return {
        "peak_bytes": int(allocated.max()),
        "peak_ns": int(times[int(allocated.argmax())]) - first,
        "peak_reserved_bytes": int(reserved.max()),
        "first_bytes": int(allocated[0]),
        "last_bytes": int(allocated[-1]),
        "series": series,
    }
