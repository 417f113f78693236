"""A trace with the self time and the category of every event."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knockgraph.traces.categories import Categories
from knockgraph.traces.reader import Integers, Trace
from knockgraph.traces.self_time import Judge, Timeline, TrackTime, merge, self_times


@dataclass
class Analysis:
    """A trace with the self time and the category of every event.

    Args:
        trace: The trace.
        categories: The rules.
        self_ns: Self time of each event.
        category: The category of each event.
        tracks: Per track.
        main: The track of the main thread; None if no thread of the host is in the trace.
        first: When the first event began.
        last: When the last event ended.
        wall: The main thread, its gaps filled.
    """

    trace: Trace
    categories: Categories
    self_ns: Integers
    category: NDArray[np.int64]
    tracks: list[TrackTime]
    main: int | None
    first: int
    last: int
    wall: Timeline

    @property
    def span(self) -> int:
        """From the first event to the last."""
        return self.last - self.first

    def on_device(self) -> NDArray[np.bool_]:
        """Which events ran on a device."""
        kinds = np.array([track.device for track in self.trace.tracks], bool)
        return kinds[self.trace.track]


def analyse(trace: Trace, categories: Categories) -> Analysis:
    """Self time and category of every event."""
    count = len(trace.start)
    self_ns, category = np.zeros(count, np.int64), np.zeros(count, np.int64)
    judges = {device: Judge(categories, trace.labels, device) for device in (False, True)}
    end = trace.end
    rows_of = _rows_by_track(trace)
    tracks = []
    for track, rows in zip(trace.tracks, rows_of, strict=True):
        result = self_times(trace.start[rows], end[rows], trace.label[rows], judges[track.device])
        self_ns[rows], category[rows] = result.self_ns, result.category
        tracks.append(result)
    main = _main_track(trace, rows_of, tracks)
    threads = [tracks[i].timeline for i, track in enumerate(trace.tracks) if not track.device and i != main]
    if main is None:
        wall = Timeline(np.zeros(0, np.int64), np.zeros(0, np.int64))
    else:
        wall = merge(tracks[main].timeline, threads, categories.gaps, categories.filled_by)
    first, last = int(trace.start.min()), int(end.max())
    return Analysis(trace, categories, self_ns, category, tracks, main, first, last, wall)


def _rows_by_track(trace: Trace) -> list[Integers]:
    order = np.argsort(trace.track, kind="stable")
    edges = np.searchsorted(trace.track[order], np.arange(len(trace.tracks) + 1))
    return [order[a:b] for a, b in itertools.pairwise(edges.tolist())]


def _main_track(trace: Trace, rows_of: list[Integers], tracks: list[TrackTime]) -> int | None:
    """The thread with the steps; without steps, the busiest one."""
    hosts = [i for i, track in enumerate(trace.tracks) if not track.device and len(rows_of[i])]
    if not hosts:
        return None
    steps = {i for i, (name, _) in enumerate(trace.labels) if name == "ProfilerStep#"}
    counts = {i: int(np.isin(trace.label[rows_of[i]], list(steps)).sum()) if steps else 0 for i in hosts}
    return max(hosts, key=lambda i: (counts[i], int(tracks[i].self_ns.sum()), -i))


def track_name(analysis: Analysis, i: int) -> str:
    """A readable name of a track."""
    track = analysis.trace.tracks[i]
    if track.device:
        return f"GPU {track.process} stream {track.thread}"
    given = analysis.trace.thread_names.get((track.process, track.thread), "")
    inner = re.search(r"\(([^()]+)\)$", given)  # torch writes "thread 123 (python)"
    name = f"thread {track.thread}" + (f" ({inner[1]})" if inner else f" ({given})" if given else "")
    return f"{name}, main" if i == analysis.main else name


def by_category(analysis: Analysis, where: NDArray[np.bool_]) -> Integers:
    """Self time of the events chosen, by category."""
    total = np.zeros(len(analysis.categories.names), np.int64)
    np.add.at(total, analysis.category[where], analysis.self_ns[where])
    return total


def named(names: tuple[str, ...], values: Integers) -> dict[str, int]:
    """Category → value."""
    return {name: int(value) for name, value in zip(names, values, strict=True)}
