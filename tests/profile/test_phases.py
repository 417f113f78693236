"""The clock: self times of nested phases, exactly, and the names in a trace."""

import contextlib
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from knockgraph import phases
from knockgraph.phases import BACKWARD, FORWARD, LOSS, MASKS, REMAINDER, SYNC, PhaseClock, phase, running


class Hand:
    """A clock that only moves when it is told to."""

    now = 0

    def perf_counter_ns(self) -> int:
        return self.now


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    clock = Hand()
    monkeypatch.setattr(phases, "time", clock)
    return clock


def test_off_there_is_nothing() -> None:
    assert phase(FORWARD) is phase(LOSS, "mse")  # one context for all, without state
    assert isinstance(phase(FORWARD), contextlib.nullcontext)


def test_nested_phases_are_charged_once(hand: Hand) -> None:
    clock = PhaseClock()
    with running(clock):
        clock.begin_step()
        hand.now = 5
        with phase(FORWARD):
            hand.now = 15
            with phase(LOSS, "mse"):
                hand.now = 18
            hand.now = 25
        hand.now = 30
        clock.end_step()
    assert isinstance(phase(FORWARD), contextlib.nullcontext)
    (step,) = clock.steps
    assert step.times == {(REMAINDER, ""): 10, (FORWARD, ""): 17, (LOSS, "mse"): 3}
    assert step.wall == 30 == sum(step.times.values())
    assert phases.by_phase(clock.totals) == {FORWARD: 17e-9, LOSS: 3e-9, REMAINDER: 10e-9}
    assert phases.by_part(clock.totals) == {LOSS: {"mse": 3e-9}}
    assert [(s.key[0], s.start, s.end) for s in clock.segments if s.end > s.start] == [
        (REMAINDER, 0, 5),
        (FORWARD, 5, 15),
        (LOSS, 15, 18),
        (FORWARD, 18, 25),
        (REMAINDER, 25, 30),
    ]


def test_an_error_closes_its_phase(hand: Hand) -> None:
    def fail() -> None:
        with phase(FORWARD):
            hand.now = 4
            raise ValueError("oops")

    clock = PhaseClock()
    with running(clock):
        clock.begin_step()
        with pytest.raises(ValueError, match="oops"):
            fail()
        hand.now = 6
        clock.end_step()
    assert clock.totals == {(FORWARD, ""): 4, (REMAINDER, ""): 2}


def test_warm_up_and_what_is_outside(hand: Hand) -> None:
    clock = PhaseClock(first=1, last=3, most=2, drawn=1)
    for wall in (100, 1, 2, 3, 100):
        clock.begin_step()
        hand.now += wall
        clock.end_step()
        hand.now += 10
    assert (clock.count, [step.wall for step in clock.steps]) == (3, [1, 2])
    assert clock.totals == {(REMAINDER, ""): 6}
    clock.begin_step()
    hand.now += 7
    clock.drop_step()  # no batch came
    assert clock.count == 3
    assert sum(clock.outside.values()) == 5 * 10 + 7
    assert len({s.start for s in clock.segments}) == 1


# A step as a sequence of: open a phase, close the innermost, let time pass.
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from([(FORWARD, ""), (LOSS, ""), (LOSS, "mse"), (MASKS, "")])),
        st.tuples(st.just("close"), st.none()),
        st.tuples(st.just("pass"), st.integers(0, 50)),
    ),
    max_size=40,
)


@given(st.lists(MOVES, min_size=1, max_size=4))
def test_any_nesting_adds_up(steps: list[list[tuple[str, object]]]) -> None:
    """Against a slow reference that asks, nanosecond by nanosecond, which phase is innermost."""
    with pytest.MonkeyPatch.context() as patch:
        hand = Hand()
        patch.setattr(phases, "time", hand)
        clock = PhaseClock()
        expected: defaultdict[tuple[str, str], int] = defaultdict(int)
        for moves in steps:
            clock.begin_step()
            stack = [(REMAINDER, "")]
            for move, value in moves:
                if move == "open":
                    clock.push(value)  # type: ignore[arg-type]
                    stack.append(value)  # type: ignore[arg-type]
                elif move == "close" and len(stack) > 1:
                    clock.pop()
                    stack.pop()
                elif move == "pass":
                    for _ in range(value):  # type: ignore[call-overload]
                        expected[stack[-1]] += 1
                    hand.now += value  # type: ignore[operator]
            while len(stack) > 1:
                clock.pop()
                stack.pop()
        clock.end_step()
    assert {key: spent for key, spent in clock.totals.items() if spent} == expected
    assert sum(step.wall for step in clock.steps) == sum(expected.values())
    assert all(sum(step.times.values()) == step.wall for step in clock.steps)


@pytest.mark.parametrize("on", [False, True])
def test_phases_have_names_in_a_trace(on: bool) -> None:
    """With and without timers, as long as a torch.profiler records."""
    clock = PhaseClock(annotate=True)
    with torch.profiler.profile() as recorded:
        with running(clock) if on else contextlib.nullcontext(), phase(LOSS, "mse"):
            torch.ones(2).sum()
        clock.end_step()
    assert "knockgraph::loss/mse" in {event.name for event in recorded.events()}


class Mark:
    """An event of a stream that is always a second behind the host."""

    def __init__(self, hand: Hand, late: bool) -> None:
        self.at, self.late = hand.now + 1_000_000_000, late

    def elapsed_time(self, other: "Mark") -> float:
        return (other.at - self.at) / 1e6

    def query(self) -> bool:
        return not self.late


@pytest.mark.parametrize("late", [False, True])
def test_events_of_a_device(hand: Hand, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark wherever the phase changes; they are read after the run, and add up, too."""
    waits: list[object] = []
    marks: list[Mark] = []

    def event() -> Mark:
        marks.append(Mark(hand, late))
        return marks[-1]

    monkeypatch.setattr(phases, "_event", event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "synchronize", waits.append)
    clock = PhaseClock(torch.device("cuda"), first=1)
    for _ in range(3):
        clock.begin_step()
        for name, part, seconds in (
            ("wait for data", "", 1),
            (LOSS, "", 2),
            (LOSS, "mse", 3),
            (BACKWARD, "", 4),
            (SYNC, "", 5),
        ):
            clock.push((name, part))
            hand.now += seconds * 10**9
            clock.pop()
        clock.end_step()
    assert not waits
    assert clock.behind == (2 if late else 0)
    clock.read_device()
    assert len(waits) == 1
    # Between two parts of the loss the phase is left for a moment without length.
    assert {k: v for k, v in clock.device_totals.items() if v} == {"wait for data": 2, LOSS: 10, BACKWARD: 8, SYNC: 10}
    assert sum(clock.device_totals.values()) * 1e9 == sum(step.wall for step in clock.steps)
    assert clock.device_count == 2
    assert len(marks) == 2 * (1 + 5 + 1)  # a start, the ends of five phases, and the end: nothing for moments between


def test_a_sample_of_the_steps_is_timed_on_the_device(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ``every``, then one in ``every``; the warm-up never."""
    marked: list[int] = []

    def event() -> Mark:
        marked.append(hand.now)
        return Mark(hand, late=False)

    monkeypatch.setattr(phases, "_event", event)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    clock = PhaseClock(torch.device("cuda"), first=2, every=3)
    for number in range(14):
        hand.now = number
        clock.begin_step()
        clock.end_step()
    assert sorted(set(marked)) == [2, 3, 4, 5, 8, 11]
    assert clock.device_count == 6
    assert clock.count == 12


def test_no_mark_in_a_graph_that_is_being_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "_event", lambda: pytest.fail("an event was recorded"))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    clock = PhaseClock(torch.device("cuda"))
    clock.begin_step()
    clock.push((FORWARD, ""))
    clock.pop()
