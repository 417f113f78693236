"""Screens of PyG datasets, as torchcell and kg.PerturbationDataset make their samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import GENES, bound, cell, examples
from torch_geometric.data import Data, HeteroData, InMemoryDataset

import knockgraph as kg
from knockgraph import Screen, ScreenError

TYPES = ["fitness", "gene_interaction"]
STATISTICS = ["fitness_se", "gene_interaction_p_value"]


def sample(
    genes, values, kinds, items=None, stats=(), stat_kinds=(), stat_items=(), types=TYPES, **other
) -> HeteroData:
    """A sample as torchcell's processor makes it."""
    data = HeteroData()
    gene = data["gene"]
    gene.num_nodes = 4
    if genes is not None:
        gene.perturbed_genes = genes
    gene.phenotype_values = torch.tensor(values)
    gene.phenotype_type_indices = torch.tensor(kinds, dtype=torch.long)
    gene.phenotype_sample_indices = torch.tensor(items or [0] * len(values))
    gene.phenotype_types = types
    gene.phenotype_stat_values = torch.tensor(stats)
    gene.phenotype_stat_type_indices = torch.tensor(stat_kinds, dtype=torch.long)
    gene.phenotype_stat_sample_indices = torch.tensor(stat_items, dtype=torch.long)
    gene.phenotype_stat_types = STATISTICS
    for name, value in other.items():
        gene[name] = value
    return data


def dataset(samples) -> InMemoryDataset:
    made = InMemoryDataset()
    made._data, made.slices = InMemoryDataset.collate(samples)
    return made


SAMPLES = [
    sample(["YAL001C"], [0.5], [0]),
    sample(["YBL001C", "YAL001C"], [0.25, -0.125], [0, 1], [0, 1], [0.5, 0.75], [1, 0], [1, 0]),
    sample([], [1.0, 0.75], [0, 0], [0, 1], [0.25], [0], [1]),  # measured twice
    sample(["YAL002W"], [-0.5], [1]),
]
EXPECTED = Screen(
    [["YAL001C"], ["YAL001C", "YBL001C"], [], [], ["YAL002W"]],
    {
        "fitness": [0.5, 0.25, 1.0, 0.75, np.nan],
        "gene_interaction": [np.nan, -0.125, np.nan, np.nan, -0.5],
    },
    {
        "fitness": {"se": [np.nan, 0.75, np.nan, 0.25, np.nan]},
        "gene_interaction": {"p_value": [np.nan, 0.5, np.nan, np.nan, np.nan]},
    },
)


@pytest.mark.parametrize("form", [list, iter, dataset], ids=["list", "iterator", "in-memory"])
def test_types_statistics_and_repeated_measurements(form):
    assert Screen.from_pyg(form(SAMPLES)) == EXPECTED


def test_a_part_of_an_in_memory_dataset():
    part = dataset(SAMPLES)[torch.tensor([3, 1])]
    assert Screen.from_pyg(part) == Screen.from_pyg([SAMPLES[3], SAMPLES[1]])


@given(st.integers(1, 20), st.integers(0, 5))
@examples
def test_a_screen_survives_the_way_through_pyg(n, seed):
    screen = bound(n, seed)
    view = kg.PerturbationDataset(screen, cell())
    there = [Screen.from_pyg(view), Screen.from_pyg(dataset(list(view)))]
    for back in there:
        again = back.bind(cell())
        assert torch.equal(again.indices, screen.indices)
        assert torch.equal(again.ptr, screen.ptr)
        assert torch.equal(again.values.nan_to_num(9), screen.values.nan_to_num(9))
        assert torch.equal(again.stat_values.nan_to_num(9), screen.stat_values.nan_to_num(9))
        assert again.phenotype_stat_types == screen.phenotype_stat_types
    assert there[0] == there[1]


@pytest.mark.parametrize("first", [0, 2], ids=["the first", "a later one"])
def test_samples_without_any_statistic_lack_the_attributes(first):
    """torchcell leaves them out where no statistic was measured; all were lost if the first sample lacked them."""
    samples = [s.clone() for s in SAMPLES]
    for bare in (samples[0], samples[3]):
        for name in ("values", "type_indices", "sample_indices", "types"):
            del bare["gene"][f"phenotype_stat_{name}"]
    order = [*range(first, 4), *range(first)]
    there = Screen.from_pyg([samples[i] for i in order])
    assert there == Screen.from_pyg([SAMPLES[i] for i in order])
    assert np.nanmin(there.statistics["gene_interaction"]["p_value"]) == 0.5


def test_the_values_before_a_transform():
    """A dataset that standardises its labels keeps the original ones beside them."""
    changed = [sample(["YAL001C"], [9.0], [0], phenotype_values_original=torch.tensor([0.5]))]
    for form in (list, dataset):
        assert Screen.from_pyg(form(changed)).phenotypes["fitness"].tolist() == [0.5]
    with pytest.raises(ScreenError, match="sample 0 has no phenotype_values_original, but sample 1 has"):
        Screen.from_pyg([SAMPLES[0], *changed])


def test_types_in_any_order():
    mixed = [
        sample(["YAL001C"], [0.5, 0.25], [0, 1]),
        sample(["YAL001C"], [0.25, 0.5], [0, 1], types=["gene_interaction", "fitness"]),
    ]
    screen = Screen.from_pyg(mixed)
    assert screen.phenotypes["fitness"].tolist() == [0.5, 0.5]
    assert screen.phenotypes["gene_interaction"].tolist() == [0.25, 0.25]


def test_indices_need_a_gene_list():
    def made(*indices):
        return sample(None, [0.5], [0], perturbation_indices=torch.tensor(indices))

    with pytest.raises(ScreenError, match=r"say which they are: genes=GRAPH in Python, --genes FILE\.cellgraph"):
        Screen.from_pyg([made(0)])
    for genes in (cell(), cell().genes, list(GENES)):
        assert list(Screen.from_pyg([made(1, 0), made(2)], genes).genotypes) == [
            tuple(sorted([GENES[0], GENES[1]])),
            (GENES[2],),
        ]
    with pytest.raises(
        ScreenError, match=r"sample 1 perturbs gene 99, but there are \d+ gene names; give the gene list"
    ):
        Screen.from_pyg([made(0), made(99)], cell())


def test_the_gene_list_of_the_datasets_own_cell_graph():
    one = dataset([sample(None, [0.5], [0], perturbation_indices=torch.tensor([1]))])
    one.cell_graph = cell().to_hetero_data()
    assert list(Screen.from_pyg(one).genotypes) == [(GENES[1],)]


def test_names_as_older_samples_have_them_and_samples_without_node_types():
    plain = Data(ids_pert=["YAL001C"], phenotype_values=torch.tensor([0.5]), phenotype_types=["fitness"], num_nodes=4)
    assert Screen.from_pyg([plain]) == Screen([["YAL001C"]], {"fitness": [0.5]})


def test_values_of_genes():
    one = sample(["YAL001C", "YAL002W"], [0.5], [0], perturbation_values=torch.tensor([0.25, 0.0]))
    assert list(Screen.from_pyg([one]).genotypes) == [("YAL001C=0.25", "YAL002W")]


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "the dataset has no samples with perturbed genes"),
        ([Data(x=torch.zeros(1))], "the dataset has no samples with perturbed genes"),
        ([Data(phenotype_values=torch.zeros(1))], r"neither perturbed_genes \(names\) nor perturbation_indices"),
        ([Data(perturbed_genes=["a"])], "the samples have no phenotype_values"),
        (
            [Data(perturbed_genes=[1], phenotype_values=torch.zeros(1))],
            "perturbed_genes holds 1; every gene needs a name",
        ),
        ([SAMPLES[0], None], "sample 1 of the dataset is missing; leave it out"),
        ([SAMPLES[0], Data()], "sample 1 has no perturbed_genes, but sample 0 has"),
        ([sample(["a"], [0.5], [2])], r"sample 0 has a value of type 2, but its phenotype_types are \['fitness', "),
        ([sample(["a"], [0.5], [0, 1])], "sample 0 has 1 values, but 2 entries in phenotype_type_indices"),
        (
            [sample(["a"], [0.5, 0.5], [0, 0], [0, 0], [0.5], [0], [0])],
            "sample 0 has two values of 'fitness' for one measurement",
        ),
        ([sample(["a"], [0.5], [0], [0], [0.5], [1], [0])], "a statistic of 'gene_interaction' but no value of it"),
        (
            [sample(["a"], [0.5], [0], perturbation_values=torch.zeros(3))],
            "perturbation_values needs one value for each perturbed gene",
        ),
    ],
)
def test_refused(samples, message):
    with pytest.raises(ScreenError, match=message):
        Screen.from_pyg(samples)


def test_slices_that_do_not_fit():
    for name, cut in (("phenotype_values", [0, 1, 2**40, 5, 6]), ("phenotype_values", [0, 3, 1, 4, 6])):
        damaged = dataset(SAMPLES)
        damaged.slices["gene"][name] = torch.tensor(cut)
        with pytest.raises(ScreenError, match="the slices of the dataset do not fit its 6 values; save it again"):
            Screen.from_pyg(damaged)
    damaged.slices["gene"]["phenotype_values"] = torch.tensor([0, 6])
    with pytest.raises(ScreenError, match="those of different numbers of samples"):
        Screen.from_pyg(damaged)


def test_a_statistic_of_no_phenotype():
    one = sample(["a"], [0.5], [0], types=["fitness"])
    one["gene"].phenotype_stat_types = ["x", "y"]
    with pytest.raises(ScreenError, match=r"of which phenotype 'x' is a statistic \(fitness\); call it PHENOTYPE_x"):
        Screen.from_pyg([one])
