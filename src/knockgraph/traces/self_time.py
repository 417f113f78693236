r"""Self time: at each nanosecond a track belongs to one event, the one that began last among those still running.

For properly nested events this is the duration minus that of the children. Events that overlap without being nested
share no nanosecond either, so on every track

.. math:: \sum_i \mathrm{self}_i + \mathrm{idle} = \mathrm{span}

exactly, in integer nanoseconds. Of two events that begin together the longer one is the outer; of two equal ones, the
one that stands first in the file.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from knockgraph.traces.categories import Categories, Verdict

Integers = NDArray[np.int64]
IDLE = -1  # the category of nothing
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Timeline:
    """What a track does over time: category ``category[i]`` from ``since[i]`` until ``since[i + 1]``.

    Before the first time and from the last one on, it is idle.
    """

    since: Integers
    category: NDArray[np.int64]

    def at(self, times: Integers) -> NDArray[np.int64]:
        """The category at each time."""
        if not len(self.since):
            return np.full(len(times), IDLE, np.int64)
        place = np.searchsorted(self.since, times, side="right") - 1
        return np.where(place < 0, IDLE, self.category[np.maximum(place, 0)])

    def totals(self, categories: int) -> Integers:
        """Nanoseconds in each category, idle time left out."""
        return _sums(self.category[:-1], np.diff(self.since), categories)

    def gaps(self, first: int, last: int) -> Integers:
        """The lengths of the idle gaps between two times that enclose the timeline."""
        if not len(self.since):
            return np.array([last - first], np.int64)
        inner = np.diff(self.since)[self.category[:-1] == IDLE]
        edges = np.array([self.since[0] - first, last - self.since[-1]], np.int64)
        every = np.concatenate([inner, edges])
        return every[every > 0]


@dataclass(frozen=True)
class TrackTime:
    """The result for one track, event by event as given, and over time."""

    self_ns: Integers
    category: NDArray[np.int64]
    timeline: Timeline
    overlaps: int  # events that outlast the event they began in


class Judge:
    """The categories of the events of one trace, given the enclosing events.

    Args:
        categories: The rules.
        labels: Name and ``cat`` of the events.
        device: Whether they ran on a device.
    """

    def __init__(self, categories: Categories, labels: list[tuple[str, str]], device: bool) -> None:
        self.unmatched = categories.unmatched
        self.bits = [categories.enclosing_bits(name) for name, _ in labels]
        self._candidates = [categories.candidates(name, cat, device) for name, cat in labels]
        self._known: dict[tuple[int, int], Verdict | None] = {}

    def verdict(self, label: int, enclosing_bits: int) -> Verdict | None:
        """The first matching rule, or None."""
        key = (label, enclosing_bits)
        if key not in self._known:
            fits = (verdict for bit, verdict in self._candidates[label] if not bit or bit & enclosing_bits)
            self._known[key] = next(fits, None)
        return self._known[key]


def self_times(start: Integers, end: Integers, label: NDArray[np.int32], judge: Judge) -> TrackTime:
    """Self time and category of each event of one track.

    Args:
        start: Of the events, in the order of the file.
        end: Likewise.
        label: Likewise.
        judge: Decides their categories.
    """
    count = len(start)
    order = np.lexsort((np.arange(count), -end, start))
    own, owner = array("q", bytes(8 * count)), array("q", bytes(8 * count))
    since, doing = array("q"), array("q")
    # The events that run, innermost last: end, row, what it counts to, the phase around it, the rules it encloses.
    ends: list[int] = []
    rows: list[int] = []
    counts_to: list[int] = []
    phases: list[int] = []
    around: list[int] = []
    now, last, overlaps = int(start.min()) if count else 0, IDLE, 0

    for begin in range(0, count, _CHUNK):
        part = order[begin : begin + _CHUNK]
        columns = zip(part.tolist(), start[part].tolist(), end[part].tolist(), label[part].tolist(), strict=True)
        for row, starts, ends_at, kind in columns:
            while ends and ends[-1] <= starts:
                until, inner, category = ends.pop(), rows.pop(), counts_to.pop()
                phases.pop()
                around.pop()
                if until > now:
                    own[inner] += until - now
                    if category != last:
                        since.append(now)
                        doing.append(category)
                        last = category
                    now = until
            if starts > now:
                category = counts_to[-1] if ends else IDLE
                if ends:
                    own[rows[-1]] += starts - now
                if category != last:
                    since.append(now)
                    doing.append(category)
                    last = category
                now = starts
            enclosing_bits = around[-1] if around else 0
            phase = phases[-1] if phases else IDLE
            verdict = judge.verdict(kind, enclosing_bits)
            if verdict is None:
                category = judge.unmatched if phase == IDLE else phase
            elif verdict.phase:
                category = phase = verdict.category
            else:
                category = verdict.category if phase == IDLE else phase
            if ends and ends_at > ends[-1]:
                overlaps += 1
            owner[row] = category
            ends.append(ends_at)
            rows.append(row)
            counts_to.append(category)
            phases.append(phase)
            around.append(enclosing_bits | judge.bits[kind])
    while ends:
        until, inner, category = ends.pop(), rows.pop(), counts_to.pop()
        if until > now:
            own[inner] += until - now
            if category != last:
                since.append(now)
                doing.append(category)
                last = category
            now = until
    if last != IDLE:
        since.append(now)
        doing.append(IDLE)
    return TrackTime(_integers(own), _integers(owner), Timeline(_integers(since), _integers(doing)), overlaps)


def merge(main: Timeline, others: list[Timeline], gaps: frozenset[int], filled_by: frozenset[int]) -> Timeline:
    """The main track, with its gaps filled by what the others do in the meantime, in their order.

    Args:
        main: The main track.
        others: Those that may fill its gaps.
        gaps: Categories that are gaps too, as idle time is.
        filled_by: The categories that may fill them.
    """
    times = np.unique(np.concatenate([timeline.since for timeline in (main, *others)]))
    category = main.at(times)
    open_ = np.isin(category, [IDLE, *gaps])
    for other in others:
        meanwhile = other.at(times)
        fill = open_ & np.isin(meanwhile, list(filled_by))
        category[fill] = meanwhile[fill]
        open_ &= ~fill
    return _compact(times, category)


def union(timelines: list[Timeline]) -> Timeline:
    """Category 0 where any of them is busy."""
    times = np.unique(np.concatenate([timeline.since for timeline in timelines]))
    busy = np.zeros(len(times), bool)
    for timeline in timelines:
        busy |= timeline.at(times) != IDLE
    return _compact(times, np.where(busy, 0, IDLE))


def while_idle(busy: Timeline, doing: Timeline, first: int, last: int, categories: int) -> Integers:
    """Nanoseconds of each category, idle last, that ``doing`` spends while ``busy`` is idle, between two times."""
    times = np.unique(np.concatenate([busy.since, doing.since, np.array([first, last], np.int64)]))
    times = times[(times >= first) & (times <= last)]
    category = doing.at(times)[:-1]
    category[category == IDLE] = categories
    lengths = np.where(busy.at(times)[:-1] == IDLE, np.diff(times), 0)
    return _sums(category, lengths, categories + 1)


def _compact(times: Integers, category: NDArray[np.int64]) -> Timeline:
    keep = np.ones(len(times), bool)
    keep[1:] = category[1:] != category[:-1]
    return Timeline(times[keep], category[keep])


def _sums(category: NDArray[np.int64], lengths: Integers, categories: int) -> Integers:
    total = np.zeros(categories, np.int64)
    busy = category != IDLE
    np.add.at(total, category[busy], lengths[busy])
    return total


def _integers(values: array[int]) -> Integers:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)
