"""A chrome trace as columns: about 40 bytes per event, whatever its arguments were."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from knockgraph.errors import FileFormatError
from knockgraph.traces.stream import TraceStream

Integers = NDArray[np.int64]
NONE = -1  # no correlation, no external id
_DEVICE = {"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"}
# On a GPU track these overlap the kernels and are not work: annotations, waits, the profiler's own overhead.
_NOT_WORK = {"gpu_user_annotation", "cuda_sync", "overhead"}
_STEP = re.compile(r"^ProfilerStep\s*#?\s*(\d+)$")
_LIMIT = 1 << 61  # nanoseconds: 73 years either way, so that sums of two fit into 64 bits
_DEVICE_TYPES = {0: "CPU", 1: "GPU"}


@dataclass(frozen=True)
class Track:
    """A thread, or a stream of a device: something that does one thing at a time."""

    device: bool
    process: int | str
    thread: int | str


@dataclass
class Copies:
    """All copies of one kind."""

    count: int = 0
    bytes: int = 0
    nanoseconds: int = 0


@dataclass
class Trace:
    """The timed events of a chrome trace. Times are absolute nanoseconds; row i of all columns is one event.

    Args:
        path: Where it came from.
        header: The fields beside the events.
        tracks: Threads and streams.
        labels: Name and ``cat`` (lower case) of the events; the number of a step is left out of its name.
    """

    path: Path
    header: dict[str, Any]
    tracks: list[Track]
    labels: list[tuple[str, str]]
    start: Integers
    duration: Integers
    label: NDArray[np.int32]
    track: NDArray[np.int32]
    correlation: Integers
    external: Integers
    steps: list[tuple[int, int, int]]  # number, start, duration
    thread_names: dict[tuple[int | str, int | str], str]
    copies: dict[str, Copies]
    memory: dict[str, tuple[Integers, Integers, Integers]]  # device → time, bytes allocated, bytes reserved
    characters: int = 0
    others: Counter[str] = field(default_factory=Counter)  # events that are no work on a track: kind → number
    unmatched_begins: int = 0
    unmatched_ends: int = 0
    malformed: int = 0
    overhead_ns: int = 0
    closed: bool = True

    @property
    def end(self) -> Integers:
        """When each event ended."""
        return self.start + self.duration


def nanoseconds(microseconds: Any) -> int | None:
    """Exact, from the text of a number or an integer; None if it is not a finite number.

    >>> nanoseconds("1790857026123456.789"), nanoseconds(12), nanoseconds("1.5e3"), nanoseconds("x")
    (1790857026123456789, 12000, 1500000, None)
    """
    if type(microseconds) is str:
        if microseconds[-4:-3] == ".":  # as torch writes them
            digits = microseconds[:-4] + microseconds[-3:]
            if digits.isdecimal():
                return int(digits)
        try:
            value = Decimal(microseconds)
            return int((value * 1000).to_integral_value()) if value.is_finite() and value.adjusted() < 20 else None
        except InvalidOperation:
            return None
    return microseconds * 1000 if type(microseconds) is int else None


def read_trace(path: Path, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Read a chrome trace, ``.json`` or ``.json.gz``.

    Args:
        path: The file.
        progress: Called from time to time with the numbers of events and characters read.
    """
    stream = TraceStream(path)
    columns = _Columns()
    add, begin_end, other = columns.add, columns.begin_or_end, columns.other
    for number, event in enumerate(stream):
        phase = event.get("ph")
        if phase == "X":
            add(event)
        elif phase == "B" or phase == "E":
            begin_end(event, phase == "B")
        else:
            other(event, phase)
        if progress is not None and number % 20_000 == 0:
            progress(number, stream.read_characters)
    trace = columns.trace(path, stream.header)
    trace.characters, trace.closed = stream.read_characters, stream.closed
    if not len(trace.start):
        found = ", ".join(f"{count:,} {kind!r}" for kind, count in trace.others.most_common(4)) or "none at all"
        raise FileFormatError(
            f"{path} holds no event with a duration (others: {found}): the profiler's active window was never reached; "
            "record at least one active step"
        )
    return trace


class _Columns:
    """Collects the events while they are streamed."""

    def __init__(self) -> None:
        self.tracks: dict[tuple[bool, int | str, int | str], int] = {}
        self.labels: dict[tuple[str, str], int] = {}
        self.start, self.duration, self.correlation, self.external = (array("q") for _ in range(4))
        self.label, self.track = array("i"), array("i")
        # 'B' and 'E' events, matched when all are there
        self.half_time, self.half_label, self.half_track = array("q"), array("i"), array("i")  # label −1: an end
        self.thread_names: dict[tuple[int | str, int | str], str] = {}
        self.copies: dict[str, Copies] = {}
        self.memory: dict[str, tuple[array[int], array[int], array[int]]] = {}
        self.others: Counter[str] = Counter()
        self.malformed = 0
        self.overhead_ns = 0

    def add(self, event: dict[str, Any]) -> None:
        """An event with a duration."""
        get = event.get
        cat = get("cat")
        cat = cat.lower() if type(cat) is str else ""
        start, duration = nanoseconds(get("ts")), nanoseconds(get("dur", 0))
        if start is None or duration is None or duration < 0 or not -_LIMIT < start <= start + duration < _LIMIT:
            self.malformed += 1
            return
        if cat in _NOT_WORK or (cat == "trace" and get("pid") == "Spans"):
            self.others[cat] += 1
            self.overhead_ns += duration if cat == "overhead" else 0
            return
        device = cat in _DEVICE
        arguments = get("args")
        correlation = external = NONE
        if type(arguments) is dict:
            correlation = _id(arguments.get("correlation"))
            external = _id(arguments.get("External id", arguments.get("external id")))
            if device and "mem" in cat:
                self._copy(get("name"), arguments.get("bytes"), duration)
        self.start.append(start)
        self.duration.append(duration)
        self.label.append(self._label(get("name"), cat))
        self.track.append(self._track(device, get("pid"), get("tid")))
        self.correlation.append(correlation)
        self.external.append(external)

    def begin_or_end(self, event: dict[str, Any], begins: bool) -> None:
        """The begin or the end of an event."""
        time = nanoseconds(event.get("ts"))
        if time is None or not -_LIMIT < time < _LIMIT:
            self.malformed += 1
            return
        cat = event.get("cat")
        label = self._label(event.get("name"), cat.lower() if type(cat) is str else "") if begins else -1
        self.half_time.append(time)
        self.half_label.append(label)
        self.half_track.append(self._track(False, event.get("pid"), event.get("tid")))

    def other(self, event: dict[str, Any], phase: Any) -> None:
        """Metadata, memory, and what has no duration."""
        name, arguments = event.get("name"), event.get("args")
        if phase == "M":
            if name == "thread_name" and type(arguments) is dict:
                place = (_place(event.get("pid")), _place(event.get("tid")))
                self.thread_names[place] = str(arguments.get("name", ""))
            return
        if name == "[memory]" and type(arguments) is dict:
            self._memory(event, arguments)
        self.others[phase if type(phase) is str else "no phase"] += 1

    def _label(self, name: Any, cat: str) -> int:
        labels = self.labels
        key = (name if type(name) is str else "(no name)" if name is None else str(name), cat)
        found = labels.get(key)
        return labels.setdefault(key, len(labels)) if found is None else found

    def _track(self, device: bool, process: Any, thread: Any) -> int:
        key = (device, _place(process), _place(thread))
        found = self.tracks.get(key)
        return self.tracks.setdefault(key, len(self.tracks)) if found is None else found

    def _copy(self, name: Any, size: Any, duration: int) -> None:
        kind = self.copies.setdefault(str(name), Copies())
        kind.count += 1
        kind.bytes += size if type(size) is int else 0
        kind.nanoseconds += duration

    def _memory(self, event: dict[str, Any], arguments: dict[str, Any]) -> None:
        time, allocated = nanoseconds(event.get("ts")), arguments.get("Total Allocated")
        if time is None or type(allocated) is not int or not -_LIMIT < time < _LIMIT or not 0 <= allocated < _LIMIT:
            return
        kind, number = arguments.get("Device Type"), arguments.get("Device Id")
        device = _DEVICE_TYPES.get(kind, f"device type {kind}") if type(kind) is int else "unknown device"
        if type(number) is int and number >= 0 and kind != 0:
            device = f"{device} {number}"
        reserved = arguments.get("Total Reserved")
        times, all_allocated, all_reserved = self.memory.setdefault(device, (array("q"), array("q"), array("q")))
        times.append(time)
        all_allocated.append(allocated)
        all_reserved.append(reserved if type(reserved) is int and 0 <= reserved < _LIMIT else 0)

    def trace(self, path: Path, header: dict[str, Any]) -> Trace:
        """The columns as arrays."""
        lost = self._match_halves()
        labels, steps_of = [], {}
        for place, (name, cat) in enumerate(self.labels):
            step = _STEP.match(name)
            if step:
                steps_of[place] = int(step[1])
            labels.append(("ProfilerStep#" if step else name, cat))
        label = np.frombuffer(self.label, np.int32) if self.label else np.zeros(0, np.int32)
        start, duration = _integers(self.start), _integers(self.duration)
        rows = np.flatnonzero(np.isin(label, list(steps_of))) if steps_of else np.zeros(0, np.int64)
        steps = sorted((steps_of[int(label[i])], int(start[i]), int(duration[i])) for i in rows)
        return Trace(
            path,
            header,
            [Track(*key) for key in self.tracks],
            labels,
            start,
            duration,
            label,
            np.frombuffer(self.track, np.int32) if self.track else np.zeros(0, np.int32),
            _integers(self.correlation),
            _integers(self.external),
            sorted(steps, key=lambda step: step[1]),
            self.thread_names,
            self.copies,
            {device: (_integers(t), _integers(a), _integers(r)) for device, (t, a, r) in self.memory.items()},
            others=self.others,
            unmatched_begins=lost[0],
            unmatched_ends=lost[1],
            malformed=self.malformed,
            overhead_ns=self.overhead_ns,
        )

    def _match_halves(self) -> tuple[int, int]:
        """Combine 'B' and 'E' into events; a begin without an end lasts until the end of the trace."""
        if not self.half_time:
            return 0, 0
        times = _integers(self.half_time)
        last = int(times.max())
        if self.start:
            last = max(last, int((_integers(self.start) + _integers(self.duration)).max()))
        open_begins: dict[int, list[tuple[int, int]]] = {}
        ends_alone = 0
        for i in np.lexsort((np.arange(len(times)), times)).tolist():  # stable: the order of the file at equal times
            track, label = self.half_track[i], self.half_label[i]
            stack = open_begins.setdefault(track, [])
            if label >= 0:
                stack.append((self.half_time[i], label))
            elif stack:
                self._whole(*stack.pop(), self.half_time[i], track)
            else:
                ends_alone += 1
        begins_alone = 0
        for track, stack in open_begins.items():
            for start, label in reversed(stack):
                self._whole(start, label, last, track)
                begins_alone += 1
        return begins_alone, ends_alone

    def _whole(self, start: int, label: int, end: int, track: int) -> None:
        self.start.append(start)
        self.duration.append(end - start)
        self.label.append(label)
        self.track.append(track)
        self.correlation.append(NONE)
        self.external.append(NONE)


def _id(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _LIMIT else NONE


def _place(value: Any) -> int | str:
    return value if type(value) is int or type(value) is str else str(value)


def _integers(values: array[int]) -> Integers:
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)
