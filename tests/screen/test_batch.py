from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import FIELDS, assert_same_batch, examples

from knockgraph import PerturbationBatch, PerturbationError
from knockgraph.screen.batch import map_tensors

NUM_GENES = 9
gene_lists = st.lists(st.lists(st.integers(0, NUM_GENES - 1), unique=True, max_size=5), max_size=8)


def full_batch() -> PerturbationBatch:
    return PerturbationBatch.from_lists(
        [[5, 2], [], [7]],
        8,
        phenotype_values=torch.tensor([[1.0], [2.0], [3.0]]),
        phenotype_stat_values=torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
        experiment=torch.tensor([30, 10, 20]),
    )


@given(gene_lists)
@examples
def test_from_lists(lists):
    batch = PerturbationBatch.from_lists(lists, NUM_GENES)
    assert batch.tolist() == lists
    assert batch.perturbation_indices.tolist() == [g for genes in lists for g in genes]
    assert batch.perturbation_indices_batch.tolist() == [b for b, genes in enumerate(lists) for _ in genes]
    assert batch.perturbation_indices_ptr[0] == 0
    assert batch.perturbation_indices_ptr.diff().tolist() == [len(genes) for genes in lists]
    assert {getattr(batch, name).dtype for name in FIELDS[:3]} == {torch.int64}
    assert len(batch) == batch.num_columns == batch.num_samples == batch.step_size == len(lists)
    assert not batch.wild_type


@given(gene_lists)
@examples
def test_from_tensors_is_from_lists(lists):
    batch = PerturbationBatch.from_lists(lists, NUM_GENES)
    indices, ptr = batch.perturbation_indices, batch.perturbation_indices_ptr
    assert_same_batch(PerturbationBatch.from_tensors(indices.int(), ptr.int(), NUM_GENES), batch)


@given(gene_lists, st.sampled_from([torch.bool, torch.float32, torch.float64, torch.uint8]))
@examples
def test_keep(lists, dtype):
    batch = PerturbationBatch.from_lists(lists, NUM_GENES)
    expected = torch.tensor([[gene not in genes for genes in lists] for gene in range(NUM_GENES)])
    expected = expected.reshape(NUM_GENES, len(lists)).to(dtype)
    keep = batch.keep(dtype)
    assert keep.dtype == dtype
    assert torch.equal(keep, expected)
    with_wild_type = batch.with_wild_type().keep(dtype)
    assert torch.equal(with_wild_type[:, :-1], expected)
    assert torch.equal(with_wild_type[:, -1], torch.ones(NUM_GENES, dtype=dtype))


def test_a_repeated_gene_in_a_list_counts_once():
    assert PerturbationBatch.from_lists([[3, 1, 3, 3]], 4).tolist() == [[3, 1]]


def test_lists_may_be_tensors_tuples_or_generators():
    batch = PerturbationBatch.from_lists((g for g in (torch.tensor([1, 2]), (0,), range(0))), 4)
    assert batch.tolist() == [[1, 2], [0], []]


def test_empty_batch():
    batch = PerturbationBatch.from_lists([], 5)
    assert len(batch) == 0
    assert batch.tolist() == []
    assert batch.keep().shape == (5, 0)
    assert batch.perturbation_indices_ptr.tolist() == [0]
    assert batch.with_wild_type().keep().tolist() == [[True]] * 5
    assert batch.with_wild_type().num_samples == 0


@pytest.mark.parametrize(("index", "shown"), [(8, "8"), (-1, "-1"), (2011, "2011")])
def test_index_out_of_range(index, shown):
    text = rf"sample 1 deletes gene {shown}, but gene indices run from 0 to 7 \(its list: \[3, {shown}, 4\]\)"
    with pytest.raises(PerturbationError, match=text + "; .*must not be offset by batching"):
        PerturbationBatch.from_lists([[0, 1], [3, index, 4], [99]], 8)
    with pytest.raises(PerturbationError, match=text):
        PerturbationBatch.from_tensors(torch.tensor([0, 1, 3, index, 4]), torch.tensor([0, 2, 5]), 8)


def test_index_out_of_range_names_its_own_sample_behind_empty_ones():
    with pytest.raises(PerturbationError, match=r"sample 3 deletes gene 9.*\(its list: \[9\]\)"):
        PerturbationBatch.from_lists([[], [1], [], [9], []], 8)


@pytest.mark.parametrize(
    ("ptr", "text"),
    [
        ([], r"ptr has shape \[0\], but it needs \[samples \+ 1\], starting with 0"),
        ([[0, 3]], r"ptr has shape \[1, 2\]"),
        ([1, 3], "ptr starts at 1, but it must start at 0"),
        ([-1, 3], "ptr starts at -1, but it must start at 0"),
        ([0, 2, 1, 3], "ptr decreases from 2 to 1 at sample 1, but it must not decrease"),
        ([0, 4, 3], "ptr decreases from 4 to 3 at sample 1"),
        ([0, 2], "ptr ends at 2, but there are 3 perturbation_indices"),
        ([0, 2, 5], "ptr ends at 5, but there are 3 perturbation_indices"),
        ([0], "ptr ends at 0, but there are 3 perturbation_indices"),
    ],
)
def test_bad_pointer(ptr, text):
    with pytest.raises(PerturbationError, match="perturbation_indices_" + text):
        PerturbationBatch.from_tensors(torch.tensor([0, 1, 2]), torch.tensor(ptr, dtype=torch.long), 8)


def test_a_gene_listed_twice_in_tensors():
    with pytest.raises(PerturbationError, match="sample 1 lists gene 5 twice; list each deleted gene once"):
        PerturbationBatch.from_tensors(torch.tensor([5, 5, 2, 5]), torch.tensor([0, 1, 4]), 8)
    PerturbationBatch.from_tensors(torch.tensor([5, 5, 2]), torch.tensor([0, 1, 3]), 8)  # in two samples: fine


@pytest.mark.parametrize("name", ["phenotype_values", "phenotype_stat_values", "experiment"])
def test_rows_that_do_not_fit(name):
    with pytest.raises(PerturbationError, match=f"{name} has 3 rows for 2 samples"):
        PerturbationBatch.from_lists([[1], []], 8, **{name: torch.zeros(3)})


def test_one_phenotype_may_be_a_vector():
    batch = PerturbationBatch.from_lists([[1], []], 8, phenotype_values=torch.tensor([1.0, 2.0]))
    assert batch.phenotype_values.tolist() == [[1.0], [2.0]]
    assert batch.phenotype_stat_values is None
    assert batch.experiment is None


def test_with_wild_type_is_the_last_column_and_touches_nothing_else():
    batch = full_batch()
    both = batch.with_wild_type()
    assert both.tolist() == [[5, 2], [], [7], []]
    assert (both.num_columns, both.num_samples, len(both), both.step_size) == (4, 3, 4, 3)
    assert both.wild_type
    for name in set(FIELDS) - {"perturbation_indices_ptr"}:
        assert torch.equal(getattr(both, name), getattr(batch, name)), name
    assert batch.tolist() == [[5, 2], [], [7]]  # a new batch; the old one is as it was
    assert not batch.wild_type


def test_with_wild_type_is_idempotent():
    both = full_batch().with_wild_type()
    assert both.with_wild_type() is both


def test_keep_is_a_new_tensor_each_time():
    batch = full_batch()
    batch.keep().zero_()
    assert batch.keep().sum() == 8 * 3 - 3


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


def with_payload(payload) -> PerturbationBatch:
    batch = full_batch()
    object.__setattr__(batch, "payload", payload)
    return batch


def test_to_moves_every_tensor_and_the_payload():
    mask = torch.ones(2, dtype=torch.bool)
    batch = with_payload({"mask": mask, "parts": [mask, (mask, "name")], "count": 3})
    moved = batch.to("meta")
    assert moved.device.type == "meta"
    for name in FIELDS:
        assert getattr(moved, name).device.type == "meta", name
    assert moved.payload["mask"].device.type == "meta"
    assert moved.payload["parts"][0].device.type == "meta"
    assert moved.payload["parts"][1][0].device.type == "meta"
    assert moved.payload["parts"][1][1] == "name"
    assert moved.payload["count"] == 3
    assert (moved.num_genes, moved.step_size, moved.num_samples) == (8, 3, 3)
    assert batch.device.type == "cpu"
    assert batch.payload["mask"] is mask


def test_map_tensors_keeps_the_containers():
    one = torch.ones(1)
    mapped = map_tensors([Pair(one, one * 2), {"a": (one,)}, None], lambda t: t + 1)
    assert mapped == [Pair(torch.tensor([2.0]), torch.tensor([3.0])), {"a": (torch.tensor([2.0]),)}, None]
    assert type(mapped[0]) is Pair
    assert type(mapped[1]["a"]) is tuple


def test_nbytes():
    batch = PerturbationBatch.from_lists([[1, 2, 3]] * 28, 6607)
    assert batch.nbytes == 8 * (84 + 29 + 84)
    assert full_batch().nbytes == 8 * (3 + 4 + 3) + 8 * 3 + 4 * 3 + 4 * 6
    extra = with_payload([torch.zeros(10, dtype=torch.bool), {"x": torch.zeros(3)}])
    assert extra.nbytes == full_batch().nbytes + 10 + 12


def test_repr():
    assert repr(full_batch()) == "PerturbationBatch(3 samples, 3 deletions, 8 genes)"
    assert repr(full_batch().with_wild_type()) == "PerturbationBatch(3 samples + wild type, 3 deletions, 8 genes)"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_pinned_and_on_the_device():
    batch = with_payload({"mask": torch.ones(2)})
    pinned = batch.pin_memory()
    assert all(getattr(pinned, name).is_pinned() for name in FIELDS)
    assert pinned.payload["mask"].is_pinned()
    moved = pinned.to("cuda", non_blocking=True)
    assert moved.device.type == "cuda"
    assert torch.equal(moved.with_wild_type().keep().cpu(), batch.with_wild_type().keep())
    assert_same_batch(moved.to("cpu"), batch)
