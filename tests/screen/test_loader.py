import itertools
import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from screen_cases import assert_same_batch, assert_same_batches, bound, cell, examples, slow_batch
from torch.utils.data import get_worker_info

from knockgraph import KnockgraphError, PerturbationBatch, Screen, ScreenError, ScreenLoader
from knockgraph.screen import EpochOrder
from knockgraph.screen import loader as loader_module
from knockgraph.screen.ahead import copied_ahead

sizes = st.integers(1, 40)
batch_sizes = st.integers(1, 9)
worlds = st.integers(1, 4)


def rows_of(batches: list[PerturbationBatch]) -> list[list[int]]:
    return [batch.experiment.tolist() for batch in batches]


def through_json(loader: ScreenLoader) -> dict:
    return json.loads(json.dumps(loader.state_dict()))


def where_made(batch: PerturbationBatch) -> PerturbationBatch:
    """A collate that notes its worker and process."""
    worker = get_worker_info()
    made = {"worker": None if worker is None else worker.id, "process": os.getpid(), "keep": batch.keep()}
    return replace(batch, payload=made)


@given(sizes, batch_sizes, worlds, st.booleans())
@examples
def test_every_experiment_exactly_once_over_all_ranks_in_each_epoch(n, b, w, shuffle):
    screen = bound(n)
    loaders = [ScreenLoader(screen, batch_size=b, rank=r, world_size=w, shuffle=shuffle, seed=n) for r in range(w)]
    for _epoch in range(2):
        together = [list(loader) for loader in loaders]
        assert {len(batches) for batches in together} == {len(loaders[0])}
        seen = [row for batches in together for rows in rows_of(batches) for row in rows]
        assert sorted(seen) == list(range(n))


@given(sizes, batch_sizes, worlds)
@examples
def test_many_processes_equal_one_with_their_batches_together(n, b, w):
    screen = bound(n)
    alone = list(ScreenLoader(screen, batch_size=w * b, seed=1))
    together = [list(ScreenLoader(screen, batch_size=b, seed=1, rank=r, world_size=w)) for r in range(w)]
    for k, batch in enumerate(alone):
        parts = [batches[k] for batches in together]
        assert [genes for part in parts for genes in part.tolist()] == batch.tolist()
        assert torch.equal(torch.cat([part.phenotype_values for part in parts]), batch.phenotype_values)
        assert {part.step_size for part in parts} == {batch.step_size} == {batch.num_samples}
    assert {len(batches) for batches in together} == {len(alone)}


@given(sizes, batch_sizes, st.integers(0, 3), st.data())
@examples
def test_batches_against_slow_reference(n, b, epoch, data):
    screen = bound(n)
    chosen = data.draw(st.lists(st.integers(0, n - 1), unique=True, min_size=1))
    loader = ScreenLoader(screen, np.array(chosen), batch_size=b, seed=9)
    loader.set_epoch(epoch)
    order = [chosen[at] for at in EpochOrder(len(chosen), b, seed=9).permutation(epoch)]
    assert_same_batches(list(loader), [slow_batch(screen, order[at : at + b]) for at in range(0, len(order), b)])


@given(sizes, batch_sizes, st.integers(1, 12))
@examples
def test_the_gathering_chunk_does_not_show(n, b, chunk):
    screen = bound(n)
    whole = list(ScreenLoader(screen, batch_size=b))
    before, loader_module._CHUNK = loader_module._CHUNK, chunk
    try:
        assert_same_batches(list(ScreenLoader(screen, batch_size=b)), whole)
    finally:
        loader_module._CHUNK = before


def test_epochs_advance_and_differ_and_repeat():
    screen = bound(30)
    loader = ScreenLoader(screen, batch_size=7)
    first, second = list(loader), list(loader)
    assert loader.epoch == 2
    assert rows_of(first) != rows_of(second)
    again = ScreenLoader(screen, batch_size=7)
    assert_same_batches(list(again), first)
    assert_same_batches(list(again), second)
    again.set_epoch(0)
    assert_same_batches(list(again), first)


def test_seeds_differ():
    screen = bound(30)
    assert rows_of(list(ScreenLoader(screen, batch_size=30))) != rows_of(
        list(ScreenLoader(screen, batch_size=30, seed=1))
    )


def test_without_shuffling():
    loader = ScreenLoader(bound(7), np.array([6, 2, 4, 0, 1]), batch_size=2, shuffle=False)
    assert rows_of(list(loader)) == rows_of(list(loader)) == [[6, 2], [4, 0], [1]]


def test_drop_last():
    loader = ScreenLoader(bound(11), batch_size=4, drop_last=True)
    assert len(loader) == 2
    for _epoch in range(2):
        assert [batch.num_samples for batch in loader] == [4, 4]
    assert loader.epoch == 2


def test_step_size_is_the_global_one():
    sizes = [[b.step_size for b in ScreenLoader(bound(11), batch_size=2, rank=r, world_size=2)] for r in range(2)]
    assert sizes == [[4, 4, 3], [4, 4, 3]]


def test_a_rank_without_an_experiment_in_the_last_step_still_takes_it():
    last = [list(ScreenLoader(bound(5), batch_size=1, rank=r, world_size=4))[-1] for r in range(4)]
    assert sorted(batch.num_samples for batch in last) == [0, 0, 0, 1]
    assert {batch.step_size for batch in last} == {1}
    assert all(batch.keep().shape == (12, batch.num_samples) for batch in last)


@given(sizes, batch_sizes, st.integers(0, 2), st.data())
@examples
def test_resume_at_any_step_gives_exactly_the_rest(n, b, epoch, data):
    screen = bound(n)
    whole = ScreenLoader(screen, batch_size=b, seed=4)
    whole.set_epoch(epoch)
    batches = list(whole)
    taken = data.draw(st.integers(0, len(batches)))

    interrupted = ScreenLoader(screen, batch_size=b, seed=4)
    interrupted.set_epoch(epoch)
    begun = iter(interrupted)
    head = list(itertools.islice(begun, taken))
    resumed = ScreenLoader(screen, batch_size=b, seed=4)
    resumed.load_state_dict(through_json(interrupted))
    assert_same_batches(head + list(resumed), batches)
    assert resumed.epoch == epoch + 1
    assert_same_batches(list(resumed), list(whole))  # and the epoch after it is whole


@given(sizes, batch_sizes, worlds, batch_sizes, worlds, st.data())
@examples
def test_resume_with_another_batch_size_and_world_size(n, b, w, new_b, new_w, data):
    screen = bound(n)
    before = [ScreenLoader(screen, batch_size=b, rank=r, world_size=w) for r in range(w)]
    taken = data.draw(st.integers(0, len(before[0])))
    seen = [row for loader in before for rows in rows_of(itertools.islice(loader, taken)) for row in rows]
    states = [through_json(loader) for loader in before]
    if taken < len(before[0]):
        assert all(state == states[0] for state in states)  # any rank's state will do
    else:
        assume(all(state["position"] == n for state in states))
    rest = []
    for r in range(new_w):
        loader = ScreenLoader(screen, batch_size=new_b, rank=r, world_size=new_w)
        loader.load_state_dict(states[0])
        rest += [row for rows in rows_of(list(loader)) for row in rows]
        assert loader.epoch == 1
    assert sorted(seen + rest) == list(range(n))


def test_position_semantics_by_hand():
    loader = ScreenLoader(bound(10), batch_size=3, shuffle=False)
    next(iter(loader))
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 3)
    other = ScreenLoader(bound(10), batch_size=4, shuffle=False)
    other.load_state_dict(loader.state_dict())
    assert rows_of(list(other)) == [[3, 4, 5, 6], [7, 8, 9]]
    assert other.state_dict()["position"] == 0


def test_a_state_after_the_last_batch_leaves_nothing_of_that_epoch():
    loader = ScreenLoader(bound(6), batch_size=4)
    for _batch in loader:
        state = through_json(loader)  # the last one is taken before the loop ends
    resumed = ScreenLoader(bound(6), batch_size=4)
    resumed.load_state_dict(state)
    assert list(resumed) == []
    assert resumed.epoch == 1


def test_resume_with_drop_last():
    screen = bound(11)
    loader = ScreenLoader(screen, batch_size=4, drop_last=True)
    batches = list(loader)
    again = ScreenLoader(screen, batch_size=4, drop_last=True)
    first = next(iter(again))
    resumed = ScreenLoader(screen, batch_size=4, drop_last=True)
    resumed.load_state_dict(through_json(again))
    assert_same_batches([first, *resumed], batches)


def test_a_loaded_state_is_used_once():
    screen = bound(10)
    loader = ScreenLoader(screen, batch_size=2)
    next(iter(loader))
    resumed = ScreenLoader(screen, batch_size=2)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.state_dict() == loader.state_dict()
    assert len(list(resumed)) == 4
    assert len(list(resumed)) == 5
    resumed.load_state_dict(loader.state_dict())
    assert len(list(itertools.islice(resumed, 2))) == 2
    assert len(list(resumed)) == 5  # left early: the epoch starts again, not at the loaded position


def test_breaking_out_restarts_the_epoch():
    loader = ScreenLoader(bound(10), batch_size=2)
    whole = list(ScreenLoader(bound(10), batch_size=2))
    for k, batch in enumerate(loader):
        assert_same_batch(batch, whole[k])
        if k == 2:
            break
    assert loader.epoch == 0
    assert_same_batches(list(loader), whole)
    assert loader.epoch == 1


def test_set_epoch():
    loader = ScreenLoader(bound(20), batch_size=3)
    epochs = [list(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert loader.epoch == 1
    assert_same_batches(list(loader), epochs[1])
    assert loader.epoch == 2


def test_set_epoch_to_the_resumed_one_keeps_the_position():
    # Lightning and hand-written loops call set_epoch(current) after restoring the state.
    screen = bound(10)
    loader = ScreenLoader(screen, batch_size=2)
    loader.set_epoch(3)
    next(iter(loader))
    state = loader.state_dict()
    for epoch, steps in ((3, 4), (4, 5)):
        resumed = ScreenLoader(screen, batch_size=2)
        resumed.load_state_dict(state)
        resumed.set_epoch(epoch)
        assert len(list(resumed)) == steps


def test_state_is_small_and_plain():
    state = ScreenLoader(bound(1000), batch_size=8).state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 200


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: ScreenLoader(bound(10, seed=1), batch_size=2), "other experiments"),
        (lambda: ScreenLoader(bound(10), np.arange(9), batch_size=2), "other experiments"),
        (lambda: ScreenLoader(bound(10), np.arange(10)[::-1], batch_size=2), "other experiments"),
        (lambda: ScreenLoader(bound(11), batch_size=2), "other experiments"),
        (lambda: ScreenLoader(bound(10), batch_size=2, seed=1), r"another seed \(seed: 0, here 1\)"),
        (lambda: ScreenLoader(bound(10), batch_size=2, shuffle=False), "another order"),
    ],
)
def test_a_state_of_something_else_is_refused(other, what):
    state = ScreenLoader(bound(10), batch_size=2).state_dict()
    loader = other()
    before = loader.state_dict()
    with pytest.raises(KnockgraphError, match=f"this loader state belongs to {what}.*resume with the data and seed"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before  # refused as a whole


def test_a_state_that_is_none_is_refused():
    with pytest.raises(KnockgraphError, match="belongs to other experiments"):
        ScreenLoader(bound(10), batch_size=2).load_state_dict({})


def test_wild_types_only():
    screen = Screen([[]] * 5, {"f": range(5)}).bind(cell())
    loader = ScreenLoader(screen, batch_size=2)
    first = next(iter(loader))
    assert first.tolist() == [[], []]
    resumed = ScreenLoader(screen, batch_size=2)
    resumed.load_state_dict(through_json(loader))
    assert [batch.num_samples for batch in resumed] == [2, 1]


def test_collate_is_applied_in_this_process_without_workers():
    for batch in ScreenLoader(bound(5), batch_size=2, collate=where_made):
        assert batch.payload["worker"] is None
        assert batch.payload["process"] == os.getpid()


@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_are_the_same_for_any_number_of_workers(num_workers):
    screen, rows = bound(23), np.arange(22)
    plain = ScreenLoader(screen, rows, batch_size=4, seed=2)
    loader = ScreenLoader(screen, rows, batch_size=4, seed=2, num_workers=num_workers, collate=where_made)
    assert len(loader) == len(plain) == 6
    for _epoch in range(2):
        batches = list(loader)
        assert_same_batches(batches, list(plain))
        assert {batch.payload["worker"] for batch in batches} == set(range(num_workers))
        assert os.getpid() not in {batch.payload["process"] for batch in batches}
        for batch in batches:
            assert torch.equal(batch.payload["keep"], batch.keep())
    assert loader.epoch == plain.epoch == 2


def test_spawned_workers_give_the_same_batches():
    screen = bound(9)
    options = {"batch_size": 4, "rank": 1, "world_size": 2}
    spawned = ScreenLoader(screen, num_workers=1, multiprocessing_context="spawn", collate=where_made, **options)
    batches = list(spawned)
    assert_same_batches(batches, list(ScreenLoader(screen, **options)))
    assert [batch.payload["worker"] for batch in batches] == [0, 0]


@pytest.mark.full
def test_spawned_persistent_workers_resume():
    screen = bound(40)
    options = {"batch_size": 3, "num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"}
    plain, spawned = ScreenLoader(screen, batch_size=3), ScreenLoader(screen, **options)
    for _epoch in range(3):
        assert_same_batches(list(spawned), list(plain))
    next(iter(plain))
    spawned.load_state_dict(through_json(plain))
    assert_same_batches(list(spawned), list(plain)[1:])


def test_persistent_workers_over_epochs_resumption_and_early_exit():
    screen = bound(20)
    plain = ScreenLoader(screen, batch_size=3)
    loader = ScreenLoader(screen, batch_size=3, num_workers=2, persistent_workers=True, collate=where_made)
    epochs = [list(plain) for _ in range(3)]
    made = [list(loader) for _ in range(2)]
    for batches, expected in zip(made, epochs, strict=False):
        assert_same_batches(batches, expected)
    processes = [{batch.payload["process"] for batch in batches} for batches in made]
    assert processes[0] == processes[1]  # the same workers served both epochs

    head = list(itertools.islice(loader, 2))  # leaves batches of this epoch in the workers' queues
    state = through_json(loader)
    assert_same_batches(head, epochs[2][:2])
    assert_same_batches(list(loader), epochs[2])  # from its start again
    loader.load_state_dict(state)
    assert_same_batches(list(loader), epochs[2][2:])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resume_with_workers_counts_delivered_batches_only(num_workers):
    # The workers are ahead of the training loop; what they prepared but nobody took is made again.
    screen = bound(30)
    batches = list(ScreenLoader(screen, batch_size=3))
    loader = ScreenLoader(screen, batch_size=3, num_workers=num_workers, prefetch_factor=4)
    head = list(itertools.islice(loader, 3))
    assert loader.state_dict()["position"] == 9
    resumed = ScreenLoader(screen, batch_size=3, num_workers=2 - num_workers)
    resumed.load_state_dict(through_json(loader))
    assert_same_batches(head + list(resumed), batches)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_global_random_state_is_not_touched(num_workers):
    # torch's DataLoader draws from it at every iter(), which a resumed run does once more than an uninterrupted one.
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    list(ScreenLoader(bound(6), batch_size=2, num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before  # noqa: NPY002


def broken(batch: PerturbationBatch) -> PerturbationBatch:
    raise ScreenError("this collate fails")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_in_collate_reaches_the_caller(num_workers):
    with pytest.raises(ScreenError, match="this collate fails"):
        list(ScreenLoader(bound(6), batch_size=2, num_workers=num_workers, collate=broken))


@pytest.mark.parametrize("rows", [[0, 5], [-1, 2], [99]])
def test_rows_out_of_range(rows):
    with pytest.raises(ScreenError, match="rows must lie in 0 … 4, the positions of the bound screen"):
        ScreenLoader(bound(5), np.array(rows), batch_size=2)


def test_a_mask_is_not_a_list_of_rows():
    # True and False were once taken for rows 1 and 0.
    with pytest.raises(ScreenError, match=r"rows is a mask, but positions are needed; use numpy\.flatnonzero"):
        ScreenLoader(bound(3), np.array([True, False, True]), batch_size=2)


def test_nothing_to_visit():
    with pytest.raises(ScreenError, match="an epoch over 0 experiments has no step"):
        ScreenLoader(bound(5), np.array([], dtype=np.int64), batch_size=2)
    with pytest.raises(ScreenError, match="an epoch over 0 experiments has no step"):
        ScreenLoader(Screen([], {"f": []}).bind(cell()), batch_size=2)
    with pytest.raises(ScreenError, match="an epoch over 5 experiments has no step; keep the short last batch"):
        ScreenLoader(bound(5), batch_size=6, drop_last=True)


def test_bad_batch_size_and_rank():
    with pytest.raises(ScreenError, match="batch_size is 0, but it must be at least 1"):
        ScreenLoader(bound(5), batch_size=0)
    with pytest.raises(ScreenError, match="rank 2 does not exist among 2 processes"):
        ScreenLoader(bound(5), batch_size=1, rank=2, world_size=2)


def test_batch_size_property():
    assert ScreenLoader(bound(5), batch_size=3).batch_size == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_the_device():
    here, there = bound(50), bound(50).to("cuda")
    for a, b in zip(ScreenLoader(there, batch_size=7), ScreenLoader(here, batch_size=7), strict=True):
        assert a.device.type == "cuda"
        assert_same_batch(a.to("cpu"), b)
    for num_workers in (0, 1):
        for batch in ScreenLoader(here, batch_size=7, num_workers=num_workers, pin_memory=True):
            assert batch.phenotype_values.is_pinned()
    with pytest.raises(ScreenError, match="worker processes cannot read a screen on the GPU; use num_workers=0"):
        ScreenLoader(there, batch_size=7, num_workers=1)
    state = ScreenLoader(here, batch_size=7).state_dict()
    ScreenLoader(there, batch_size=7).load_state_dict(state)  # the same data, wherever it lives


# Copied ahead


@given(st.integers(1, 25), st.integers(1, 7), st.integers(0, 5))
@examples
def test_batches_copied_ahead_are_the_same_and_resume_the_same(n, b, stop):
    """The position is that of the batch in hand, not of the one that is under way."""
    screen, cpu = bound(n), torch.device("cpu")
    plain, ahead = (ScreenLoader(screen, batch_size=b, ahead=place) for place in (None, cpu))
    seen, states = [], []
    for batch in ahead:
        seen.append(batch)
        states.append(ahead.state_dict())
    expected, expected_states = [], []
    for batch in plain:
        expected.append(batch)
        expected_states.append(plain.state_dict())
    assert_same_batches(seen, expected)
    assert states == expected_states
    again = ScreenLoader(screen, batch_size=b, ahead=cpu)
    again.load_state_dict(states[min(stop, len(states) - 1)])
    assert_same_batches(list(again), expected[min(stop, len(states) - 1) + 1 :])


def test_one_batch_is_under_way_while_another_is_in_hand():
    made = []

    def source():
        for k in range(4):
            made.append(k)
            yield PerturbationBatch.from_lists([[k]], 9)

    moved = copied_ahead(source(), torch.device("cpu"))
    found = [(int(batch.perturbation_indices), len(made)) for batch in moved]
    assert found == [(0, 2), (1, 3), (2, 4), (3, 4)]
    assert list(copied_ahead([], torch.device("cpu"))) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_copied_ahead_on_a_side_stream(num_workers):
    screen, cuda = bound(200), torch.device("cuda")
    options = {"batch_size": 7, "num_workers": num_workers, "pin_memory": True}
    ahead = ScreenLoader(screen, ahead=cuda, **options)
    seen = []
    for batch in ahead:
        assert batch.device.type == "cuda"
        torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda")  # keeps the stream busy
        seen.append(batch.to("cpu"))
    ahead.close()
    assert_same_batches(seen, list(ScreenLoader(screen, batch_size=7)))
