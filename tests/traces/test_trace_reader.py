"""From events to columns: exact times, halves matched, odd events counted and left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_cases import MAIN, PROCESS, memory, metadata, span, training, write

from knockgraph.errors import FileFormatError
from knockgraph.traces.reader import Track, nanoseconds, read_trace


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("3883249689318.097", 3883249689318097),
        ("1790857026123456.789", 1790857026123456789),  # a float would be off by 120 ns here
        ("-1.500", -1500),
        ("0.001", 1),
        ("12.5", 12500),
        ("1.0625", 1062),  # half to even
        ("2.5e2", 250_000),
        (7, 7000),
        ("1e400", None),
        ("nan", None),
        ("abc.def", None),
        ("", None),
        (None, None),
        (float("nan"), None),
        (True, None),
        ([1], None),
    ],
)
def test_nanoseconds(given: Any, expected: int | None) -> None:
    assert nanoseconds(given) == expected


def test_times_of_day_keep_their_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    event = '{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1790857026123456.789, "dur": 0.011}'
    path.write_text(f"[{event}]")
    trace = read_trace(path)
    assert trace.start.tolist() == [1790857026123456789]
    assert trace.duration.tolist() == [11]


def half(phase: str, time: float, name: str | None = None, tid: int = 1) -> dict[str, Any]:
    event = {"ph": phase, "pid": 1, "tid": tid, "ts": time}
    return event if name is None else {**event, "name": name}


def test_halves_are_matched_like_brackets(tmp_path: Path) -> None:
    events = [
        half("B", 0, "outer"),
        half("B", 2, "inner"),
        half("B", 3, "other thread", tid=2),
        half("E", 5, "inner"),
        half("E", 9, tid=2),
        half("E", 10),
        half("B", 10, "next"),
        half("E", 12),
    ]
    trace = read_trace(write(tmp_path / "t.json", events))
    found = {trace.labels[k][0]: (s, d) for k, s, d in zip(trace.label, trace.start, trace.duration, strict=True)}
    assert found == {
        "outer": (0, 10_000),
        "inner": (2_000, 3_000),
        "other thread": (3_000, 6_000),
        "next": (10_000, 2_000),
    }
    assert (trace.unmatched_begins, trace.unmatched_ends) == (0, 0)


def test_halves_may_stand_in_any_order_and_be_alone(tmp_path: Path) -> None:
    events = [
        half("E", 20),
        half("B", 10, "a"),
        half("E", 5),  # an end without a beginning
        half("B", 30, "never ends"),
        span("whole", 50, 10, pid=1, tid=1),
    ]
    trace = read_trace(write(tmp_path / "t.json", events))
    found = {trace.labels[k][0]: (s, d) for k, s, d in zip(trace.label, trace.start, trace.duration, strict=True)}
    assert found == {"a": (10_000, 10_000), "never ends": (30_000, 30_000), "whole": (50_000, 10_000)}
    assert (trace.unmatched_begins, trace.unmatched_ends) == (1, 1)


def test_threads_and_streams(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json", training(2)))
    assert set(trace.tracks) == {
        Track(False, 100, 100),
        Track(False, 100, 200),
        Track(True, 0, 7),
        Track(True, 0, 20),
    }
    assert trace.thread_names == {(100, 100): "thread 100 (python)", (100, 200): "thread 200 (pt_autograd_0)"}
    assert [step[0] for step in trace.steps] == [0, 1]
    assert trace.steps[1] == (1, 6_000_000, 1_000_000)
    assert trace.copies["Memcpy HtoD (Pinned -> Device)"].bytes == 8_000
    assert trace.others == {"gpu_user_annotation": 2, "i": 2}


def test_a_process_may_have_the_number_of_a_device(tmp_path: Path) -> None:
    events = [span("aten::mm", 0, 10, pid=0, tid=7), span("gemm", 5, 10, pid=0, tid=7, cat="kernel")]
    assert len(read_trace(write(tmp_path / "t.json", events)).tracks) == 2


def test_names_may_come_first_or_last(tmp_path: Path) -> None:
    work = [span("a", 0, 1)]
    first = read_trace(write(tmp_path / "1.json", [*metadata(), *work]))
    last = read_trace(write(tmp_path / "2.json", [*work, *metadata()]))
    assert first.thread_names == last.thread_names != {}


def test_memory_per_device(tmp_path: Path) -> None:
    on_cpu = memory(8, 77)
    on_cpu["args"] |= {"Device Type": 0, "Device Id": -1}
    events = [span("a", 0, 1), memory(5, 10), on_cpu, memory(6, 30), {**memory(7, 1), "args": {"Total Allocated": "x"}}]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert {device: columns[1].tolist() for device, columns in trace.memory.items()} == {"GPU 0": [10, 30], "CPU": [77]}


ODD = [
    {"ph": "X", "name": "no time", "pid": 1, "tid": 1},
    {"ph": "X", "name": "time is text", "ts": "soon", "dur": 1, "pid": 1, "tid": 1},
    {"ph": "X", "name": "negative", "ts": 5, "dur": -1, "pid": 1, "tid": 1},
    {"ph": "X", "name": "too far", "ts": 10**18, "dur": 1, "pid": 1, "tid": 1},
    {"ph": "B", "name": "no time", "pid": 1, "tid": 1},
]


def test_events_without_a_usable_time_are_counted(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.json", [*ODD, span("good", 0, 1)]))
    assert trace.malformed == len(ODD)
    assert len(trace.start) == 1


def test_events_that_lack_everything_else_are_kept(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "ts": 1, "dur": 1},
        {"ph": "X", "ts": 2, "name": 5, "cat": 7, "pid": [1], "tid": None, "args": "text"},
        {"ph": 5},
        {"ph": "M"},
        {"ph": "i", "name": "[memory]"},
        {},
    ]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert trace.labels == [("(no name)", ""), ("5", "")]
    assert trace.duration.tolist() == [1000, 0]


def test_no_events(tmp_path: Path) -> None:
    with pytest.raises(
        FileFormatError,
        match=r"holds no event with a duration \(others: 1 'i'\): the profiler's active window was never reached; "
        r"record at least one active step",
    ):
        read_trace(write(tmp_path / "t.json", [memory(0, 1)]))
    with pytest.raises(FileFormatError, match=r"\(others: none at all\)"):
        read_trace(write(tmp_path / "t.json", []))


def test_the_profilers_own_events_are_no_work(tmp_path: Path) -> None:
    events = [
        span("a", 0, 10),
        span("PyTorch Profiler (0)", 0, 99, tid="PyTorch Profiler", pid="Spans", cat="Trace"),
        span("Activity Buffer Request", 3, 5, tid=0, pid=-1, cat="overhead"),
        span("Stream Wait Event", 3, 5, tid=7, pid=0, cat="cuda_sync"),
    ]
    trace = read_trace(write(tmp_path / "t.json", events))
    assert trace.tracks == [Track(False, PROCESS, MAIN)]
    assert trace.overhead_ns == 5_000
    assert trace.others == {"trace": 1, "overhead": 1, "cuda_sync": 1}


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    read_trace(write(tmp_path / "t.json", training(1)), lambda events, characters: told.append((events, characters)))
    assert told[0][0] == 0
    assert told[0][1] > 0


def test_old_spelling_of_the_external_id(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([span("a", 0, 1, **{"external id": 5})]))
    assert read_trace(path).external.tolist() == [5]
