"""The ring buffer against a plain list."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_cases import case

from knockgraph.losses import LossError
from knockgraph.losses.ring_buffer import RingBuffer


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), st.lists(st.integers(0, 12), max_size=8), st.integers(-1, 12))
def test_recent_is_the_end_of_the_list(capacity: int, sizes: list[int], count: int) -> None:
    ring, pushed = RingBuffer(capacity), []
    for size in sizes:
        rows = torch.arange(len(pushed), len(pushed) + size).float().unsqueeze(1)
        expected = [
            *rows.flatten().tolist(),
            *pushed[-capacity:][max(len(pushed[-capacity:]) - (capacity - size), 0) :],
        ]
        if size >= capacity:
            expected = rows.flatten().tolist()
        assert ring.completed(rows).flatten().tolist() == expected
        ring.push(rows)
        pushed += rows.flatten().tolist()
    last = max(min(count, capacity, len(pushed)), 0)
    assert ring.recent(count).flatten().tolist() == pushed[len(pushed) - last :]


def test_pushed_rows_have_no_gradient_and_are_copies() -> None:
    rows, _ = case(3)
    ring = RingBuffer(4)
    ring.push(rows)
    with torch.no_grad():
        rows.zero_()
    assert not ring.recent(3).requires_grad
    assert ring.recent(3).count_nonzero() == 3


@pytest.mark.parametrize("sizes", [[], [0], [2], [5], [3, 4], [20]])
def test_resume(sizes: list[int]) -> None:
    ring = RingBuffer(5)
    for seed, size in enumerate(sizes):
        ring.push(case(size, 3, seed)[1])
    state = copy.deepcopy(ring.state_dict())
    json.dumps(state["_extra_state"])
    for fresh in (RingBuffer(5), RingBuffer(5)):
        fresh.push(case(2, 3, 9)[1])  # what it held before does not matter
        fresh.load_state_dict(state)
        other = copy.deepcopy(ring)
        for seed in range(4):
            rows = case(2, 3, 20 + seed)[1]
            assert torch.equal(fresh.completed(rows), other.completed(rows))
            assert fresh.completed(rows).dtype == torch.float64
            fresh.push(rows)
            other.push(rows)


def test_a_buffer_of_another_size_is_refused() -> None:
    ring = RingBuffer(5)
    ring.push(torch.zeros(1, 2))
    with pytest.raises(LossError, match="has room for 5 samples, but buffer_size is 6; resume with buffer_size=5"):
        RingBuffer(6).load_state_dict(ring.state_dict())


def test_errors() -> None:
    with pytest.raises(LossError, match="buffer_size is 0, but it must be at least 1"):
        RingBuffer(0)
    ring = RingBuffer(5)
    ring.push(torch.zeros(1, 2))
    for use in (ring.push, ring.completed):
        with pytest.raises(LossError, match="samples have 3 values each, but those in the ring buffer have 2"):
            use(torch.zeros(1, 3))


def test_cleared() -> None:
    ring = RingBuffer(2)
    ring.push(torch.ones(3, 1))
    ring.clear()
    assert ring.completed(torch.zeros(1, 1)).tolist() == [[0.0]]
