"""Self times are exact, sum to the span, and equal a slow reference that looks at every nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knockgraph.traces.categories import Categories
from knockgraph.traces.self_time import IDLE, Judge, Timeline, TrackTime, merge, self_times, union, while_idle

RULES = """
categories = ["a", "b", "c", "nested"]
[[rule]]
category = "nested"
name = ['^x$']
inside = ['^q$']
[[rule]]
category = "a"
phase = true
name = ['^p$']
[[rule]]
category = "b"
phase = true
name = ['^q$']
[[rule]]
category = "c"
name = ['^x$']
"""
LABELS = [("p", ""), ("q", ""), ("x", ""), ("y", "")]  # two phases, an operator, a stranger
A, B, C, NESTED, UNMATCHED = range(5)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    path = tmp_path_factory.mktemp("rules") / "rules.toml"
    path.write_text(RULES)
    return Judge(Categories(path), LABELS, device=False)


def run(judge: Judge, events: list[tuple[int, int, int]]) -> TrackTime:
    start, duration, label = (np.array(column, np.int64) for column in zip(*events, strict=True))
    return self_times(start, start + duration, label.astype(np.int32), judge)


def test_nested(judge: Judge) -> None:
    #        0    10   20   30   40   50   60   70   80
    # p      ├─────────────────────────────┤
    # x           ├────┤    ├────┤
    # q                                         ├────┤
    # x                                            ├─┤
    result = run(judge, [(0, 60, 0), (10, 10, 2), (30, 10, 2), (70, 10, 1), (75, 5, 2)])
    assert result.self_ns.tolist() == [40, 10, 10, 5, 5]
    assert result.category.tolist() == [A, A, A, B, B]  # the phase wins over the operators' own rules
    assert result.timeline.since.tolist() == [0, 60, 70, 80]
    assert result.timeline.category.tolist() == [A, IDLE, B, IDLE]
    assert result.overlaps == 0
    assert result.timeline.gaps(-5, 100).tolist() == [10, 5, 20]


def test_the_innermost_phase_wins(judge: Judge) -> None:
    result = run(judge, [(0, 100, 0), (10, 50, 1), (20, 10, 3), (70, 10, 3)])
    assert result.category.tolist() == [A, B, B, A]
    assert result.self_ns.tolist() == [40, 40, 10, 10]


def test_outside_a_phase_operators_count_for_themselves(judge: Judge) -> None:
    result = run(judge, [(0, 10, 2), (20, 10, 3), (22, 3, 2)])
    assert result.category.tolist() == [C, UNMATCHED, C]
    assert result.self_ns.tolist() == [10, 7, 3]


def test_overlap_without_nesting_counts_once(judge: Judge) -> None:
    #        0    10   20   30
    # p      ├─────────┤
    # q           ├─────────┤      the later one owns what they share
    result = run(judge, [(0, 20, 0), (10, 20, 1)])
    assert result.self_ns.tolist() == [10, 20]
    assert result.overlaps == 1


def test_an_outer_one_that_outlasts_a_late_one_gets_the_rest(judge: Judge) -> None:
    result = run(judge, [(0, 100, 0), (10, 20, 1), (15, 30, 1)])
    assert result.self_ns.tolist() == [10 + 55, 5, 30]


def test_equal_beginnings_and_equal_events(judge: Judge) -> None:
    assert run(judge, [(0, 5, 1), (0, 10, 0)]).self_ns.tolist() == [5, 5]  # the longer one is the outer
    assert run(judge, [(0, 10, 0), (0, 10, 1)]).self_ns.tolist() == [0, 10]  # the later line is the inner


def test_no_length_and_no_events(judge: Judge) -> None:
    result = run(judge, [(5, 0, 0), (5, 0, 1)])
    assert result.self_ns.tolist() == [0, 0]
    assert result.timeline.totals(5).tolist() == [0] * 5
    none = np.zeros(0, np.int64)
    empty = self_times(none, none, none.astype(np.int32), judge)
    assert len(empty.self_ns) == len(empty.timeline.since) == 0
    assert empty.timeline.gaps(3, 9).tolist() == [6]
    assert empty.timeline.at(np.array([4])).tolist() == [IDLE]


# ------------------------------------------------------------------------------------------ the slow, obvious reference


def owner_of_each_nanosecond(events: list[tuple[int, int, int]], last: int) -> list[int]:
    """At each nanosecond the event that began last; of those that began together the shortest, then the last line."""
    owners = []
    for t in range(last):
        running = [(s, -(s + d), i) for i, (s, d, _) in enumerate(events) if s <= t < s + d]
        owners.append(max(running)[2] if running else IDLE)
    return owners


def slow_category(events: list[tuple[int, int, int]], i: int) -> int:
    """The category of an event, from the chain of what was running when it began."""
    s, d, label = events[i]
    before = [(e[0], -(e[0] + e[1]), j) for j, e in enumerate(events) if (e[0], -(e[0] + e[1]), j) < (s, -(s + d), i)]
    before = [key for key in before if -key[1] > s]  # still running
    parent = max(before)[2] if before else None
    chain = slow_chain(events, parent)
    if events[i][2] in (0, 1):
        return A if label == 0 else B
    phases = [events[j][2] for j in chain if events[j][2] in (0, 1)]
    if phases:
        return A if phases[-1] == 0 else B
    return C if label == 2 else UNMATCHED


def slow_chain(events: list[tuple[int, int, int]], i: int | None) -> list[int]:
    if i is None:
        return []
    s, d, _ = events[i]
    before = [(e[0], -(e[0] + e[1]), j) for j, e in enumerate(events) if (e[0], -(e[0] + e[1]), j) < (s, -(s + d), i)]
    before = [key for key in before if -key[1] > s]
    return [*slow_chain(events, max(before)[2] if before else None), i]


events_strategy = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=14
)


@settings(max_examples=200, deadline=None)
@given(events=events_strategy)
def test_equals_the_reference(judge: Judge, events: list[tuple[int, int, int]]) -> None:
    result = run(judge, events)
    last = max(s + d for s, d, _ in events)
    owners = owner_of_each_nanosecond(events, last)
    assert result.self_ns.tolist() == [owners.count(i) for i in range(len(events))]
    categories = [slow_category(events, i) for i in range(len(events))]
    assert result.category.tolist() == categories
    doing = [IDLE if o == IDLE else categories[o] for o in owners]
    assert result.timeline.at(np.arange(last)).tolist() == doing
    assert result.timeline.totals(5).tolist() == [doing.count(c) for c in range(5)]
    assert result.self_ns.sum() + result.timeline.gaps(0, last).sum() == last


@settings(max_examples=100, deadline=None)
@given(
    tracks=st.lists(events_strategy, min_size=1, max_size=4),
    gaps=st.sets(st.integers(0, 4)),
    fill=st.sets(st.integers(0, 4)),
)
def test_merging_tracks_equals_the_reference(judge: Judge, tracks: list, gaps: set[int], fill: set[int]) -> None:
    lines = [run(judge, events).timeline for events in tracks]
    each = [line.at(np.arange(110)).tolist() for line in lines]
    merged = merge(lines[0], lines[1:], frozenset(gaps), frozenset(fill))
    expected = []
    for now in zip(*each, strict=True):
        other = next((c for c in now[1:] if c in fill), None)
        expected.append(other if other is not None and (now[0] == IDLE or now[0] in gaps) else now[0])
    assert merged.at(np.arange(110)).tolist() == expected
    busy = union(lines)
    assert (busy.at(np.arange(110)) != IDLE).tolist() == [
        any(c != IDLE for c in now) for now in zip(*each, strict=True)
    ]
    idle = while_idle(lines[0], merged, 0, 110, 5)
    alone = [c for c, first in zip(expected, each[0], strict=True) if first == IDLE]
    assert idle.tolist() == [alone.count(c) for c in range(5)] + [alone.count(IDLE)]


def test_a_rule_may_ask_what_is_around(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("""
categories = ["in optimizer", "elsewhere"]
[[rule]]
category = "in optimizer"
name = ['^mul$']
inside = ['^Optimizer', '^Adam']
[[rule]]
category = "elsewhere"
name = ['^mul$']
""")
    judge = Judge(Categories(path), [("Optimizer.step", ""), ("foreach", ""), ("mul", "")], device=False)
    result = run(judge, [(0, 10, 2), (20, 30, 0), (22, 20, 1), (25, 5, 2), (60, 1, 2)])
    assert result.category.tolist() == [1, 2, 2, 0, 1]


def test_timeline_before_and_after() -> None:
    line = Timeline(np.array([10, 20]), np.array([3, IDLE]))
    assert line.at(np.array([9, 10, 19, 20, 99])).tolist() == [IDLE, 3, 3, IDLE, IDLE]


@pytest.mark.full
def test_many_random_tracks(judge: Judge) -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        n = int(random.integers(1, 60))
        start, length = random.integers(0, 400, n), random.integers(0, 120, n)
        events = list(zip(start.tolist(), length.tolist(), random.integers(0, 4, n).tolist(), strict=True))
        last = max(s + d for s, d, _ in events)
        owners = owner_of_each_nanosecond(events, last)
        assert run(judge, events).self_ns.tolist() == [owners.count(i) for i in range(n)]
