"""Where the time of a step goes: nested phases whose self times add up to the wall clock.

Switched off, :func:`phase` gives a context that does nothing. Switched on, a :class:`PhaseClock` keeps a stack of
phases; at every moment exactly one of them, the innermost, is charged. So the phases of a step add up to its wall clock
by construction, and nothing is counted twice. With a CUDA device every change of phase also leaves an event on the
stream, unless it lasted so briefly that it cannot have launched anything, and in a sample of the steps: an event costs
the host some 20 µs, and Lightning changes phase 86 times a step. The events are read after the run, so the step itself
never waits for the device.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch._C._autograd import _profiler_enabled

WAIT, TRANSFER, MASKS, FORWARD, LOSS = "wait for data", "host to device", "masks", "forward", "loss"
BACKWARD, SYNC, CLIPPING, OPTIMIZER = "backward", "gradient sync", "clipping", "optimizer"
LOGGING, COMPILED, REMAINDER, BETWEEN = "logging and callbacks", "step (compiled)", "remainder", "between epochs"

PHASES = (
    WAIT,
    TRANSFER,
    MASKS,
    FORWARD,
    LOSS,
    COMPILED,
    BACKWARD,
    SYNC,
    CLIPPING,
    OPTIMIZER,
    LOGGING,
    REMAINDER,
    BETWEEN,
)
"""In the order of a step; ``between epochs`` is part of a run but of no step."""

Key = tuple[str, str]
"""A phase and its part; an empty part is the phase itself."""

_LAUNCHES_NOTHING = 5_000
"""Nanoseconds: a piece of a phase that takes the host less time has not launched a kernel."""

_OFF: AbstractContextManager[Any] = contextlib.nullcontext()
_BASE: Key = (REMAINDER, "")
_clock: PhaseClock | None = None


def phase(name: str, part: str = "") -> AbstractContextManager[Any]:
    """Charge the block to a phase; costs nothing to speak of unless a clock runs.

    While a ``torch.profiler`` records, the block also stands in its trace, as ``knockgraph::NAME``.

    Args:
        name: One of :data:`PHASES`.
        part: What inside that phase.
    """
    if torch.compiler.is_compiling():
        return _OFF
    if _clock is not None:
        return _Charged(_clock, (name, part))
    if _profiler_enabled():
        return torch.profiler.record_function(label((name, part)))
    return _OFF


def label(key: Key) -> str:
    """The name of a phase in a trace.

    >>> label(("loss", "")), label(("loss", "mse"))
    ('knockgraph::loss', 'knockgraph::loss/mse')
    """
    return f"knockgraph::{key[0]}/{key[1]}" if key[1] else f"knockgraph::{key[0]}"


@contextlib.contextmanager
def running(clock: PhaseClock) -> Iterator[PhaseClock]:
    """Inside the block :func:`phase` charges this clock."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield clock
    finally:
        _clock = before


class _Charged:
    __slots__ = ("clock", "key")

    def __init__(self, clock: PhaseClock, key: Key) -> None:
        self.clock = clock
        self.key = key

    def __enter__(self) -> None:
        self.clock.push(self.key)

    def __exit__(self, *error: object) -> None:
        self.clock.pop()


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        start: Nanoseconds on the host's clock.
        wall: Nanoseconds.
        times: Key → nanoseconds; they add up to ``wall``.
    """

    start: int
    wall: int
    times: Mapping[Key, int]


@dataclass(frozen=True)
class Segment:
    """An uninterrupted piece of one phase, for the picture of a few steps; nanoseconds on the host's clock."""

    key: Key
    start: int
    end: int


@dataclass
class _Open:
    """The step that is running."""

    start: int
    times: defaultdict[Key, int] = field(default_factory=lambda: defaultdict(int))
    events: list[tuple[str, Any]] | None = None


class PhaseClock:
    """Self times of nested phases, step by step.

    Args:
        device: With a CUDA device the phases are also timed on its stream.
        first: Steps before this one (the warm-up) are not kept.
        last: Steps after this one are not kept, either.
        most: Keep at most so many steps singly; the totals hold all.
        drawn: Steps whose segments are kept, for the timeline.
        annotate: Put every phase into the trace of a ``torch.profiler`` that is recording.
        every: Steps that are timed on the device, too: the first so many, then one in so many. The default and the ten
            steps from one log line to the next have no common divisor, so each of these is met.

    Attributes:
        totals: Key → nanoseconds over all steps from ``first`` on.
        outside: The same for what belongs to no step: between epochs, validation.
        count: Steps from ``first`` on.
        steps: The first ``most`` of them.
        segments: Of the first ``drawn`` of them.
        device_totals: Phase → seconds on the device's stream, after :meth:`read_device`.
        device_count: Steps in them.
    """

    def __init__(
        self,
        device: torch.device | None = None,
        first: int = 0,
        last: int | None = None,
        most: int = 2_000,
        drawn: int = 6,
        annotate: bool = False,
        every: int = 7,
    ) -> None:
        self.device = device
        self.every = every
        self.first, self.last = first, last
        self.most, self.drawn, self.annotate = most, drawn, annotate
        self.totals: defaultdict[Key, int] = defaultdict(int)
        self.outside: defaultdict[Key, int] = defaultdict(int)
        self.count = 0
        self.steps: list[Step] = []
        self.segments: list[Segment] = []
        self.device_totals: dict[str, float] = {}
        self.device_count = 0
        self.behind = 0  # steps at whose end the device had not yet finished the backward pass
        self._seen = 0
        self._stack: list[Key] = [_BASE]
        self._ranges: list[Any] = []
        self._step: _Open | None = None
        self._times = self.outside
        self._drawing = False
        self._plain = not annotate  # nothing to do but to add up
        self._last = time.perf_counter_ns()
        self._marked, self._marked_at = "", 0
        self._measured: list[list[tuple[str, Any]]] = []

    @property
    def in_step(self) -> bool:
        """Whether a step is running."""
        return self._step is not None

    @property
    def _kept(self) -> bool:
        return self._seen >= self.first and (self.last is None or self._seen <= self.last)

    def push(self, key: Key) -> None:
        """Enter a phase."""
        now = time.perf_counter_ns()
        if self._plain:  # dozens of times per step: the short way
            self._times[self._stack[-1]] += now - self._last
            self._last = now
            self._stack.append(key)
            return
        self._spend(now)
        self._stack.append(key)
        if self.annotate:
            self._ranges.append(_range(key))
        self._mark(key[0])

    def pop(self) -> None:
        """Leave the innermost phase."""
        now = time.perf_counter_ns()
        if self._plain:
            self._times[self._stack.pop()] += now - self._last
            self._last = now
            return
        self._spend(now)
        self._stack.pop()
        if self.annotate and self._ranges:
            recorded = self._ranges.pop()
            if recorded is not None:
                recorded.__exit__(None, None, None)
        self._mark(self._stack[-1][0])

    def replace(self, key: Key) -> None:
        """Charge another phase from now on, in place of the innermost; for what is not nested."""
        self._spend(time.perf_counter_ns())
        self._stack[-1] = key
        self._mark(key[0])

    def begin_step(self) -> None:
        """A step starts, and the one before ends."""
        self.end_step()
        self._step = _Open(self._last)
        self._times = self._step.times
        kept = self._kept
        self._drawing = kept and len(self.steps) < self.drawn
        if kept and self._on_device():
            self._step.events = [("", _event())]
            self._marked, self._marked_at = self._stack[-1][0], self._last
        self._plain = not (self._drawing or self.annotate or self._step.events is not None)

    def _on_device(self) -> bool:
        """Whether the step that begins is timed on the device, too."""
        if self.device is None or self.device.type != "cuda" or self.device_count >= self.most:
            return False
        number = self._seen - self.first
        return (number < self.every or number % self.every == 0) and not torch.cuda.is_current_stream_capturing()

    def end_step(self) -> None:
        """The running step, if any, ends; what follows belongs to none."""
        self._spend(time.perf_counter_ns())
        step, self._step = self._step, None
        self._times, self._drawing, self._plain = self.outside, False, not self.annotate
        if step is None:
            return
        if self._kept:
            self.count += 1
            for key, spent in step.times.items():
                self.totals[key] += spent
            if len(self.steps) < self.most:
                self.steps.append(Step(step.start, self._last - step.start, dict(step.times)))
            if step.events is not None:
                self._close_events(step.events)
        self._seen += 1

    def drop_step(self) -> None:
        """The running step was none: the loader had no batch left."""
        self._spend(time.perf_counter_ns())
        if self._step is not None:
            for key, spent in self._step.times.items():
                self.outside[key] += spent
        self._step = None
        self._times, self._drawing, self._plain = self.outside, False, not self.annotate

    def _spend(self, now: int) -> None:
        key, start = self._stack[-1], self._last
        self._times[key] += now - start
        if self._drawing:
            self.segments.append(Segment(key, start, now))
        self._last = now

    def _mark(self, name: str) -> None:
        """Another phase begins; the event stands for the end of the one before."""
        step = self._step
        if step is None or step.events is None or name == self._marked or torch.cuda.is_current_stream_capturing():
            return
        now = time.perf_counter_ns()
        if now - self._marked_at >= _LAUNCHES_NOTHING:
            step.events.append((self._marked, _event()))
        self._marked, self._marked_at = name, now

    def _close_events(self, events: list[tuple[str, Any]]) -> None:
        last_of_backward = [event for name, event in events if name in (BACKWARD, SYNC)]
        if last_of_backward and not last_of_backward[-1].query():
            self.behind += 1
        events.append((self._marked, _event()))
        self._measured.append(events)
        self.device_count += 1

    def read_device(self) -> None:
        """Read the events; waits for the device, so only after the run."""
        if not self._measured:
            return
        torch.cuda.synchronize(self.device)
        spent: defaultdict[str, float] = defaultdict(float)
        for events in self._measured:
            for (_, start), (name, end) in pairwise(events):
                spent[name] += start.elapsed_time(end) / 1e3
        self.device_totals = {name: spent[name] for name in _ordered(spent)}
        self._measured.clear()


def _event() -> Any:
    """A mark on the current stream."""
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _range(key: Key) -> Any:
    """An open range in the trace, if one is being recorded."""
    if not _profiler_enabled():
        return None
    recorded: Any = torch.profiler.record_function(label(key))
    recorded.__enter__()
    return recorded


def by_phase(totals: Mapping[Key, int]) -> dict[str, float]:
    """Seconds per phase, in the order of :data:`PHASES`.

    >>> by_phase({("loss", "mse"): 2_000_000, ("loss", ""): 1_000_000, ("forward", ""): 5_000_000})
    {'forward': 0.005, 'loss': 0.003}
    """
    spent: defaultdict[str, int] = defaultdict(int)
    for (name, _), nanoseconds in totals.items():
        spent[name] += nanoseconds
    return {name: spent[name] / 1e9 for name in _ordered(spent)}


def _ordered(names: Iterable[str]) -> list[str]:
    """In the order of a step; what is not a phase of it comes last."""
    known = list(names)
    return [name for name in PHASES if name in known] + [name for name in known if name not in PHASES]


def by_part(totals: Mapping[Key, int]) -> dict[str, dict[str, float]]:
    """Phase → part → seconds for phases that have named parts; what is in no part is called ``itself``.

    >>> by_part({("loss", "mse"): 2_000_000, ("loss", ""): 1_000_000, ("forward", ""): 5_000_000})
    {'loss': {'mse': 0.002, 'itself': 0.001}}
    """
    found: dict[str, dict[str, float]] = {}
    for name in by_phase(totals):
        parts = {part or "itself": spent / 1e9 for (phase_name, part), spent in totals.items() if phase_name == name}
        if set(parts) != {"itself"}:
            found[name] = dict(sorted(parts.items(), key=lambda item: -item[1]))
    return found
