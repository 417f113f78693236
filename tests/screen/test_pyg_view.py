import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import GENES, assert_same_batch, assert_same_batches, bound, cell, examples, slow_batch
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader

import knockgraph as kg
from knockgraph import GeneListMismatchError, MissingPointerError, PerturbationBatch, PerturbationError, Screen

FOLLOW = ["perturbation_indices"]


def pyg_batches(screen: kg.BoundScreen, batch_size: int, **options) -> list[PerturbationBatch]:
    dataset = kg.PerturbationDataset(screen, cell())
    loader = DataLoader(dataset, batch_size, follow_batch=FOLLOW, **options)
    return [PerturbationBatch.from_hetero_batch(batch) for batch in loader]


def flat_batches(screen: kg.BoundScreen, batch_size: int) -> list[PerturbationBatch]:
    return list(kg.ScreenLoader(screen, batch_size=batch_size, shuffle=False))


@given(st.integers(1, 25), st.integers(1, 7), st.integers(0, 5))
@examples
def test_both_loaders_give_the_same_batches(n, b, seed):
    screen = bound(n, seed)
    assert_same_batches(pyg_batches(screen, b), flat_batches(screen, b))


def test_the_same_batches_from_workers():
    screen = bound(13)
    assert_same_batches(pyg_batches(screen, 4, num_workers=2), flat_batches(screen, 4))


def test_any_order_of_samples():
    screen = bound(13)
    rows = [5, 0, 12, 5]
    dataset = kg.PerturbationDataset(screen, cell())
    (batch,) = DataLoader([dataset[row] for row in rows], 4, follow_batch=FOLLOW)
    assert_same_batch(PerturbationBatch.from_hetero_batch(batch), slow_batch(screen, rows))


def test_wild_types_only():
    screen = Screen([[], [], []], {"fitness": [1, 2, 3]}).bind(cell())
    made = pyg_batches(screen, 2)
    assert_same_batches(made, flat_batches(screen, 2))
    assert made[0].tolist() == [[], []]
    assert made[0].keep().all()


def test_a_wild_type_first_last_and_between():
    screen = Screen([[], ["YAL001C"], [], ["YBL001C", "YAL001C"], []], {"fitness": range(5)}).bind(cell())
    (batch,) = pyg_batches(screen, 5)
    assert batch.tolist() == [[], [0], [], [0, 3], []]


def test_without_statistics():
    screen = Screen([["YAL001C"], []], {"fitness": [1, 2]}).bind(cell())
    (batch,) = pyg_batches(screen, 2)
    assert batch.phenotype_stat_values.shape == (2, 0)
    assert_same_batches([batch], flat_batches(screen, 2))


def test_indices_are_not_offset_by_batching():
    last = len(GENES) - 1
    screen = Screen([[GENES[last]]] * 3, {"fitness": [1, 2, 3]}).bind(cell())
    (pyg_batch,) = DataLoader(kg.PerturbationDataset(screen, cell()), 3, follow_batch=FOLLOW)
    store = pyg_batch["gene"]
    assert store.perturbation_indices.tolist() == [last] * 3
    assert store.perturbation_indices_ptr.tolist() == [0, 1, 2, 3]
    assert store.perturbation_indices_batch.tolist() == [0, 1, 2]
    assert store.experiment.tolist() == [0, 1, 2]
    assert store.num_nodes == 3 * len(GENES)


def test_a_sample_holds_what_pyg_users_expect():
    screen = Screen(
        [[], ["YBL001C", "YAL001C"]],
        {"fitness": [1.0, 0.5], "gi": [0.0, -0.25]},
        {"fitness": {"std": [0.125, 0.25]}, "gi": {"p_value": [0.5, 0.75], "std": [1, 2]}},
    ).bind(cell())
    dataset = kg.PerturbationDataset(screen, cell())
    assert len(dataset) == 2
    gene = dataset[1]["gene"]
    assert gene.num_nodes == len(GENES)
    assert gene.perturbed_genes == ["YAL001C", "YBL001C"]
    assert gene.perturbation_indices.tolist() == [0, 3]
    assert gene.pert_mask.nonzero().flatten().tolist() == [0, 3]
    assert torch.equal(gene.mask, ~gene.pert_mask)
    assert gene.experiment.tolist() == [1]
    assert gene.gene_list_hash == cell().gene_list_hash
    assert gene.phenotype_values.tolist() == [0.5, -0.25]
    assert gene.phenotype_type_indices.tolist() == [0, 1]
    assert gene.phenotype_sample_indices.tolist() == [0, 0]
    assert gene.phenotype_types == ["fitness", "gi"]
    assert gene.phenotype_stat_values.tolist() == [0.25, 0.75, 2.0]
    assert gene.phenotype_stat_type_indices.tolist() == [0, 1, 2]
    assert gene.phenotype_stat_sample_indices.tolist() == [0, 0, 0]
    assert gene.phenotype_stat_types == ["fitness.std", "gi.p_value", "gi.std"]


def test_coordinate_form_counts_samples_up_and_types_not():
    screen = bound(3)
    (batch,) = DataLoader(kg.PerturbationDataset(screen, cell()), 3, follow_batch=FOLLOW)
    store = batch["gene"]
    for prefix, values in (("phenotype", screen.values), ("phenotype_stat", screen.stat_values)):
        assert store[f"{prefix}_type_indices"].tolist() == [0, 1, 0, 1, 0, 1]
        assert store[f"{prefix}_sample_indices"].tolist() == [0, 0, 1, 1, 2, 2]
        dense = torch.zeros(3, 2)
        dense[store[f"{prefix}_sample_indices"], store[f"{prefix}_type_indices"]] = store[f"{prefix}_values"]
        assert torch.equal(dense, values)


def test_masks_stack_to_the_keep_vectors():
    screen = bound(4)
    (batch,) = DataLoader(kg.PerturbationDataset(screen, cell()), 4, follow_batch=FOLLOW)
    keep = PerturbationBatch.from_hetero_batch(batch).keep()
    assert torch.equal(batch["gene"].mask.reshape(4, len(GENES)).T, keep)
    assert torch.equal(~batch["gene"].pert_mask.reshape(4, len(GENES)).T, keep)


@pytest.mark.parametrize("options", [{}, {"follow_batch": ["mask"]}])
def test_missing_pointer_says_exactly_what_to_add(options):
    (batch,) = DataLoader(kg.PerturbationDataset(bound(3), cell()), 3, **options)
    with pytest.raises(MissingPointerError, match=r'follow_batch=\["perturbation_indices"\]') as caught:
        PerturbationBatch.from_hetero_batch(batch)
    assert "perturbation_indices_ptr" in str(caught.value)
    assert "train, validation, test and predict" in str(caught.value)


def test_a_single_sample_that_was_never_batched():
    with pytest.raises(MissingPointerError, match=r'follow_batch=\["perturbation_indices"\]'):
        PerturbationBatch.from_hetero_batch(kg.PerturbationDataset(bound(3), cell())[0])


def test_samples_without_indices():
    sample = HeteroData()
    sample["gene"].x = torch.zeros(4, 1)
    (batch,) = DataLoader([sample, sample], 2, follow_batch=FOLLOW)
    text = (
        r'no perturbation_indices; .*kg\.PerturbationDataset, or give each sample data\["gene"\]\.perturbation_indices'
    )
    with pytest.raises(PerturbationError, match=text) as caught:
        PerturbationBatch.from_hetero_batch(batch)
    assert not isinstance(caught.value, MissingPointerError)
    other = HeteroData()
    other["protein"].x = torch.zeros(4, 1)
    with pytest.raises(PerturbationError, match="no perturbation_indices"):
        PerturbationBatch.from_hetero_batch(other)
    with pytest.raises(PerturbationError, match="no perturbation_indices"):
        PerturbationBatch.from_hetero_batch(Data(x=torch.zeros(4, 1)))


def hetero(indices: list[int], num_nodes: int | None = 6, **fields) -> HeteroData:
    sample = HeteroData()
    sample["gene"].perturbation_indices = torch.tensor(indices, dtype=torch.long)
    if num_nodes is not None:
        sample["gene"].num_nodes = num_nodes
    for name, value in fields.items():
        sample["gene"][name] = value
    return sample


def collate(samples: list) -> PerturbationBatch:
    (batch,) = DataLoader(samples, len(samples), follow_batch=FOLLOW)
    return PerturbationBatch.from_hetero_batch(batch)


def test_plain_hetero_samples_of_ones_own():
    batch = collate([hetero([5, 0]), hetero([]), hetero([3])])
    assert batch.tolist() == [[5, 0], [], [3]]
    assert batch.num_genes == 6
    assert batch.experiment is None
    assert batch.phenotype_values is None
    assert batch.gene_list_hash is None


def test_homogeneous_samples():
    samples = [
        Data(
            x=torch.zeros(6, 2),
            edge_index=torch.tensor([[0, 1], [1, 2]]),
            perturbation_indices=torch.tensor(genes, dtype=torch.long),
            phenotype_values=torch.tensor([float(len(genes))]),
            experiment=torch.tensor([10 + len(genes)]),
        )
        for genes in ([5, 0], [], [3])
    ]
    batch = collate(samples)
    assert batch.tolist() == [[5, 0], [], [3]]  # although edge_index is offset, these are not
    assert batch.num_genes == 6
    assert batch.phenotype_values.tolist() == [[2.0], [0.0], [1.0]]
    assert batch.experiment.tolist() == [12, 10, 11]


def test_homogeneous_samples_without_follow_batch():
    samples = [Data(num_nodes=6, perturbation_indices=torch.tensor([1])) for _ in range(2)]
    (batch,) = DataLoader(samples, 2)
    with pytest.raises(MissingPointerError, match=r'follow_batch=\["perturbation_indices"\]'):
        PerturbationBatch.from_hetero_batch(batch)


def test_an_index_out_of_range_of_the_sample():
    with pytest.raises(
        PerturbationError, match=r"sample 1 deletes gene 6, but gene indices run from 0 to 5 .*\[2, 6\]"
    ):
        collate([hetero([1]), hetero([2, 6])])


def test_indices_that_were_offset_by_somebody():
    with pytest.raises(PerturbationError, match=r"sample 1 deletes gene 7.*must not be offset by batching"):
        collate([hetero([1]), hetero([1 + 6])])


def test_samples_of_different_size():
    with pytest.raises(PerturbationError, match="the batch has 11 gene nodes for 2 samples; set the same"):
        collate([hetero([1]), hetero([1], num_nodes=5)])


def test_different_numbers_of_phenotypes():
    text = "phenotype_values has 3 entries for 2 samples; every sample needs the same types"
    with pytest.raises(PerturbationError, match=text):
        collate([hetero([1], phenotype_values=torch.zeros(1)), hetero([1], phenotype_values=torch.zeros(2))])


def test_another_number_of_phenotypes_is_seen_even_where_the_sum_fits():
    """One value and three values made two rows of two."""
    with pytest.raises(PerturbationError, match="every sample needs the same types"):
        collate([hetero([1], phenotype_values=torch.zeros(1)), hetero([1], phenotype_values=torch.zeros(3))])


def labelled(genes: list[int], types: list[str], values: list[float], indices: list[int] | None = None) -> HeteroData:
    numbers = list(range(len(values))) if indices is None else indices
    return hetero(
        genes,
        phenotype_values=torch.tensor(values),
        phenotype_type_indices=torch.tensor(numbers, dtype=torch.long),
        phenotype_types=types,
    )


def batched(*samples: HeteroData, **options) -> PerturbationBatch:
    (batch,) = DataLoader(list(samples), len(samples), follow_batch=FOLLOW)
    return PerturbationBatch.from_hetero_batch(batch, **options)


def test_phenotypes_of_different_types_do_not_share_a_column():
    """An interaction of -0.3 and a fitness of 0.95 became one column of labels."""
    a, b = labelled([1], ["gene_interaction"], [-0.3]), labelled([2], ["fitness"], [0.95])
    with pytest.raises(PerturbationError, match=r"sample 0 has .*gene_interaction.*sample 1 has \['fitness'\]"):
        batched(a, b)
    vocabulary = ["gene_interaction", "fitness"]
    a, b = labelled([1], vocabulary, [-0.3], [0]), labelled([2], vocabulary, [0.95], [1])
    with pytest.raises(PerturbationError, match=r"sample 1 has \['fitness'\].*phenotype_types=\[…\]"):
        batched(a, b)
    with pytest.raises(PerturbationError, match=r"sample 1 has no value of 'gene_interaction' \(it has fitness\)"):
        batched(a, b, phenotype_types=["gene_interaction"])


def test_another_order_of_types_does_not_swap_columns():
    types = ["gene_interaction", "fitness"]
    a = labelled([1], types, [-0.3, 0.9])
    for b in (labelled([2], types[::-1], [0.95, -0.1]), labelled([2], types, [0.95, -0.1], [1, 0])):
        with pytest.raises(PerturbationError, match="in which order"):
            batched(a, b)
        batch = batched(a, b, phenotype_types=["fitness", "gene_interaction"])
        assert batch.phenotype_types == ("fitness", "gene_interaction")
        torch.testing.assert_close(batch.phenotype_values, torch.tensor([[0.9, -0.3], [0.95, -0.1]]))
        only = batched(a, b, phenotype_types=["fitness"])
        torch.testing.assert_close(only.phenotype_values, torch.tensor([[0.9], [0.95]]))
    both = labelled([2], types, [0.95, -0.1], [1, 0])
    assert batched(both, both).phenotype_types == ("fitness", "gene_interaction")  # as the values stand


def test_types_that_do_not_fit_the_values():
    with pytest.raises(PerturbationError, match="two values of one type"):
        batched(labelled([1], ["fitness"], [1.0, 2.0], [0, 0]))
    with pytest.raises(PerturbationError, match=r"type_indices \[0, 1\], which do not fit its phenotype_types"):
        batched(labelled([1], ["fitness"], [1.0, 2.0]))
    with pytest.raises(PerturbationError, match="1 entries for 2 phenotype_values"):
        batched(labelled([1], ["fitness"], [1.0, 2.0], [0]))
    with pytest.raises(PerturbationError, match="the samples have no phenotype_types"):
        batched(hetero([1], phenotype_values=torch.zeros(1)), phenotype_types=["fitness"])


@given(st.integers(1, 6), st.permutations(["a", "b", "c"]), st.randoms(use_true_random=False))
@examples
def test_columns_follow_types_in_any_order(n, wanted, random):
    truth = [{name: random.random() for name in "abc"} for _ in range(n)]
    samples = []
    for k, values in enumerate(truth):
        vocabulary, measured = random.sample("abc", 3), random.sample("abc", 3)
        samples.append(
            labelled([k % 6], vocabulary, [values[m] for m in measured], [vocabulary.index(m) for m in measured])
        )
    batch = batched(*samples, phenotype_types=wanted)
    expected = torch.tensor([[values[name] for name in wanted] for values in truth])
    torch.testing.assert_close(batch.phenotype_values, expected)


def test_samples_of_different_gene_lists():
    text = "the samples of this batch belong to different gene lists"
    with pytest.raises(GeneListMismatchError, match=text):
        collate([hetero([1], gene_list_hash="a"), hetero([1], gene_list_hash="b")])


def test_dataset_of_another_gene_list_is_refused():
    swapped = [GENES[1], GENES[0], *GENES[2:]]
    with pytest.raises(GeneListMismatchError, match="bound to a different gene list"):
        kg.PerturbationDataset(bound(3), cell(swapped))


def test_dataset_is_a_pyg_dataset_with_subsets():
    screen = bound(9)
    part = kg.PerturbationDataset(screen, cell())[np.array([7, 2])]
    (batch,) = DataLoader(part, 2, follow_batch=FOLLOW)
    assert_same_batch(PerturbationBatch.from_hetero_batch(batch), slow_batch(screen, [7, 2]))


def test_masks_of_reactions_and_metabolites():
    reactions = [
        kg.Reaction("both", {"x": -1.0, "y": 1.0}, gene_rule="YAL001C and YBL001C"),
        kg.Reaction("either", {"x": -1.0}, gene_rule="YAL001C or YBL001C"),
        kg.Reaction("free", {"y": -1.0}),
    ]
    plain = cell()
    metabolism = kg.Metabolism.from_reactions(reactions, {g: i for i, g in enumerate(GENES)})
    graph = kg.CellGraph(plain.genes, dict(plain.relations), metabolism)
    screen = Screen([["YAL001C"], [], ["YBL001C"]], {"fitness": [1, 2, 3]}).bind(graph)
    dataset = kg.PerturbationDataset(screen, graph)
    names = list(metabolism.reactions)
    dead = [{names[r] for r in sample["reaction"].pert_mask.nonzero().flatten().tolist()} for sample in dataset]
    assert [len(d) for d in dead] == [2, 0, 2]
    for sample in dataset:
        assert sample["reaction"].num_nodes == len(names) == 4
        assert torch.equal(sample["reaction"].mask, ~sample["reaction"].pert_mask)
        assert sample["metabolite"].mask.tolist() == [True, True]
        assert not sample["metabolite"].pert_mask.any()
    (batch,) = DataLoader(dataset, 3, follow_batch=FOLLOW)
    alive = metabolism.reactions_alive(PerturbationBatch.from_hetero_batch(batch).keep())
    assert torch.equal(batch["reaction"].mask.reshape(3, 4).T, alive)
