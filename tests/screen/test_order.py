import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from screen_cases import examples

from knockgraph import ScreenError
from knockgraph.screen import EpochOrder

sizes = st.integers(1, 60)
batches = st.integers(1, 9)
worlds = st.integers(1, 5)


def steps(order: EpochOrder, epoch: int, start: int = 0) -> list[list[int]]:
    """The experiments of each step of one rank, from what ``share`` documents."""
    mine, tail, tail_total = order.share(epoch, start)
    b = order.batch_size
    assert len(mine) % b == 0
    cut = [mine[at : at + b].tolist() for at in range(0, len(mine), b)]
    return [*cut, tail.tolist()] if tail_total else cut


def ranks(n: int, b: int, w: int, **options) -> list[EpochOrder]:
    return [EpochOrder(n, b, rank=r, world_size=w, **options) for r in range(w)]


@given(sizes, batches, worlds, st.integers(-5, 5), st.integers(0, 9), st.booleans())
@examples
def test_every_experiment_exactly_once_over_all_ranks(n, b, w, seed, epoch, shuffle):
    visited = [
        experiment
        for order in ranks(n, b, w, seed=seed, shuffle=shuffle)
        for step in steps(order, epoch)
        for experiment in step
    ]
    assert sorted(visited) == list(range(n))


@given(sizes, batches, worlds, st.integers(0, 9))
@examples
def test_many_processes_visit_what_one_visits(n, b, w, epoch):
    alone = steps(EpochOrder(n, w * b, seed=3), epoch)
    together = [steps(order, epoch) for order in ranks(n, b, w, seed=3)]
    assert {len(rank) for rank in together} == {len(alone)}  # every rank takes as many steps
    for k, step in enumerate(alone):
        parts = [rank[k] for rank in together]
        assert [experiment for part in parts for experiment in part] == step  # the short last step included
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert max(map(len, parts)) <= b


@given(sizes, batches, worlds, st.integers(0, 70), st.booleans())
@examples
def test_num_steps_is_the_number_of_steps_from_any_start(n, b, w, start, drop_last):
    assume(not drop_last or n >= b * w)
    for order in ranks(n, b, w, drop_last=drop_last):
        assert order.num_steps(start) == len(steps(order, 0, start))


@given(sizes, batches, worlds)
@examples
def test_drop_last_leaves_out_less_than_a_global_batch(n, b, w):
    assume(n >= b * w)
    kept = [steps(order, 4) for order in ranks(n, b, w, drop_last=True)]
    whole = [steps(order, 4) for order in ranks(n, b, w)]
    assert all(len(step) == b for rank in kept for step in rank)
    for a, c in zip(kept, whole, strict=True):
        assert a == c[: n // (b * w)]


@given(sizes, batches, worlds, st.data())
@examples
def test_a_start_continues_the_same_permutation(n, b, w, data):
    start = data.draw(st.integers(0, n))
    permutation = EpochOrder(n, b).permutation(2).tolist()
    rest = [steps(order, 2, start) for order in ranks(n, b, w)]
    in_order = [experiment for k in range(len(rest[0])) for rank in rest for experiment in rank[k]]
    assert in_order == permutation[start:]


@given(sizes, st.integers(-(2**70), 2**70), st.integers(0, 2**40))
@examples
def test_permutation_depends_on_seed_and_epoch_only(n, seed, epoch):
    first = EpochOrder(n, 1, seed=seed).permutation(epoch)
    assert sorted(first.tolist()) == list(range(n))
    np.random.seed(epoch % 100)  # noqa: NPY002 (the global state must not matter)
    again = EpochOrder(n, 7, seed=seed, rank=2, world_size=3).permutation(epoch)
    assert first.tolist() == again.tolist()


def test_epochs_and_seeds_differ():
    orders = [EpochOrder(50, 4, seed=seed).permutation(epoch).tolist() for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    assert len({tuple(order) for order in orders}) == 9


def test_permutation_is_what_it_was_in_the_first_release():
    # A saved position means nothing if this ever changes.
    assert EpochOrder(10, 1, seed=0).permutation(0).tolist() == [8, 0, 3, 7, 6, 4, 1, 5, 2, 9]
    assert EpochOrder(10, 1, seed=7).permutation(3).tolist() == [0, 9, 3, 6, 5, 1, 8, 7, 4, 2]


def test_the_same_order_in_a_fresh_process():
    code = (
        "import json; from knockgraph.screen import EpochOrder;"
        "print(json.dumps([EpochOrder(1000, 8, seed=5).permutation(e).tolist() for e in (0, 1)]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [EpochOrder(1000, 8, seed=5).permutation(e).tolist() for e in (0, 1)]


def test_without_shuffling_the_order_is_plain():
    order = EpochOrder(7, 3, shuffle=False)
    assert steps(order, 0) == steps(order, 5) == [[0, 1, 2], [3, 4, 5], [6]]


def test_two_ranks_by_hand():
    first, second = ranks(11, 2, 2, shuffle=False)
    assert steps(first, 0) == [[0, 1], [4, 5], [8]]
    assert steps(second, 0) == [[2, 3], [6, 7], [9, 10]]


def test_more_ranks_than_experiments_left():
    together = [steps(order, 0) for order in ranks(5, 1, 4, shuffle=False)]
    assert together == [[[0], []], [[1], []], [[2], []], [[3], [4]]]


def test_global_batch_size():
    assert EpochOrder(100, 8, world_size=3).global_batch_size == 24


@pytest.mark.parametrize("batch_size", [0, -2])
def test_batch_size_is_positive(batch_size):
    with pytest.raises(ScreenError, match=f"batch_size is {batch_size}, but it must be at least 1"):
        EpochOrder(10, batch_size)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_rank_exists(rank, world_size):
    with pytest.raises(ScreenError, match=f"rank {rank} does not exist among {world_size} processes"):
        EpochOrder(10, 1, rank=rank, world_size=world_size)


def test_an_epoch_has_a_step():
    with pytest.raises(ScreenError, match=r"an epoch over 0 experiments has no step$"):
        EpochOrder(0, 4)
    with pytest.raises(
        ScreenError, match="over 7 experiments has no step; keep the short last batch or make the batch"
    ):
        EpochOrder(7, 4, drop_last=True, world_size=2)
