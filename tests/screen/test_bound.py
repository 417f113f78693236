import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import GENES, NAN, assert_same_batch, assert_same_batches, bound, cell, examples, screens, slow_batch

from knockgraph import (
    BoundScreen,
    GeneListMismatchError,
    LabelError,
    Screen,
    ScreenError,
    SplitError,
    UnknownGeneError,
)

ALIASES = {"YAL001C": ["TFC3", "FUN24"], "YBL001C": ["ECM15"], "YCL001C": ["LEU2", "FUN24"]}


def genotypes_of(screen: BoundScreen) -> list[list[str]]:
    return [[GENES[g] for g in screen.indices[a:b].tolist()] for a, b in itertools.pairwise(screen.ptr.tolist())]


def test_tensors_and_types():
    screen = Screen([["YAL002C", "YAL001C"], []], {"fitness": [0.5, 1.0]}, {"fitness": {"std": [0.1, NAN]}}).bind(
        cell()
    )
    assert screen.indices.tolist() == [0, 1]
    assert screen.ptr.tolist() == [0, 2, 2]
    assert screen.host_ptr.tolist() == [0, 2, 2]
    assert screen.experiment.tolist() == [0, 1]
    assert screen.values.tolist() == [[0.5], [1.0]]
    assert screen.stat_values[0].tolist() == [pytest.approx(0.1)]
    assert screen.stat_values[1].isnan().all()
    assert [t.dtype for t in (screen.indices, screen.ptr, screen.experiment, screen.values, screen.stat_values)] == [
        torch.int32,
        torch.int64,
        torch.int64,
        torch.float32,
        torch.float32,
    ]
    assert (screen.phenotype_types, screen.phenotype_stat_types) == (("fitness",), ("fitness.std",))
    assert screen.num_genes == len(GENES)
    assert screen.gene_list_hash == cell().gene_list_hash
    assert len(screen) == 2
    assert screen.nbytes == 2 * 4 + 3 * 8 + 2 * 8 + 2 * 4 + 2 * 4
    assert screen.report.experiments == screen.report.bound == 2


@given(screens(missing=False))
@examples
def test_binding_keeps_every_genotype_and_label(screen):
    b = screen.bind(cell())
    assert genotypes_of(b) == [list(genotype) for genotype in screen.genotypes]
    assert b.experiment.tolist() == list(range(len(screen)))
    for column, name in enumerate(b.phenotype_types):
        np.testing.assert_array_equal(b.values[:, column].numpy(), screen.phenotypes[name].astype(np.float32))
    for column, name in enumerate(b.phenotype_stat_types):
        phenotype, kind = name.split(".")
        expected = screen.statistics[phenotype][kind].astype(np.float32)
        np.testing.assert_array_equal(b.stat_values[:, column].numpy(), expected)
    assert b.stat_values.shape == (len(screen), sum(map(len, screen.statistics.values())))


def test_standard_names_aliases_and_case_resolve():
    graph = cell(aliases=ALIASES)
    b = Screen([["TFC3"], ["ecm15", "yal002c"], ["LEU2"]], {"f": [1, 2, 3]}).bind(graph)
    assert genotypes_of(b) == [["YAL001C"], ["YAL002C", "YBL001C"], ["YCL001C"]]


def test_two_names_of_one_gene_count_once():
    b = Screen([["TFC3", "YAL001C", "yal001c"], ["YBL001C"]], {"f": [1, 2]}).bind(cell(aliases=ALIASES))
    assert genotypes_of(b) == [["YAL001C"], ["YBL001C"]]


def test_genes_are_ascending_rows_even_where_names_are_not():
    genes = list(reversed(GENES))
    b = Screen([[GENES[0], GENES[5], GENES[3]]], {"f": [1]}).bind(cell(genes))
    assert b.indices.tolist() == sorted(genes.index(GENES[i]) for i in (0, 5, 3))


def test_unknown_genes_are_one_error_with_all_names():
    screen = Screen([["YAL001C"], ["NOPE1", "YAL002C"], ["FUN24"], ["YAL01C"]], {"f": [1, 2, 3, 4]})
    with pytest.raises(UnknownGeneError, match=r"3 gene names do not resolve.*did you mean YAL001C") as caught:
        screen.bind(cell(aliases=ALIASES))
    assert sorted(caught.value.names) == ["FUN24", "NOPE1", "YAL01C"]
    assert "'FUN24' is ambiguous (YAL001C or YCL001C)" in str(caught.value)


def test_an_experiment_with_an_unknown_gene_is_dropped_as_a_whole():
    screen = Screen([["YAL001C"], ["NOPE", "YAL002C"], ["NOPE"], [], ["FUN24"]], {"f": [1, 2, 3, 4, 5]})
    b = screen.bind(cell(aliases=ALIASES), unknown="drop")
    # Neither ['YAL002C'], another genotype, nor [], the wild type, may be left of rows 1, 2 and 4.
    assert genotypes_of(b) == [["YAL001C"], []]
    assert b.experiment.tolist() == [0, 3]
    assert b.values.flatten().tolist() == [1.0, 4.0]
    assert b.report.unknown_genes == ("FUN24", "NOPE")
    assert (b.report.experiments, b.report.bound) == (5, 2)
    assert (b.report.with_unknown_genes, b.report.without_label) == (3, 0)


def test_missing_labels_are_an_error_with_count_and_first_row():
    screen = Screen([["NOPE"], ["YAL001C"], ["YAL002C"], []], {"f": [NAN, 1, NAN, NAN]})
    with pytest.raises(LabelError, match=r"2 of 3 experiments have no value for f \(the first is experiment 2\)"):
        screen.bind(cell(), unknown="drop")


def test_missing_labels_dropped_with_a_count():
    screen = Screen([["NOPE"], ["YAL001C"], ["YAL002C"], []], {"f": [NAN, 1, NAN, NAN]})
    b = screen.bind(cell(), unknown="drop", missing="drop")
    assert genotypes_of(b) == [["YAL001C"]]
    assert (b.report.experiments, b.report.bound) == (4, 1)
    assert (b.report.with_unknown_genes, b.report.without_label) == (1, 2)  # row 0 is counted once
    assert not b.values.isnan().any()


def test_of_several_phenotypes_one_may_be_missing():
    screen = Screen([["YAL001C"], ["YAL002C"], []], {"f": [1, NAN, 3], "g": [4, 5, NAN]}, {"g": {"std": [7, 8, 9]}})
    both = screen.bind(cell())
    np.testing.assert_array_equal(both.values, [[1.0, 4.0], [NAN, 5.0], [3.0, NAN]])
    assert both.report.without_label == 0
    neither = Screen([["YAL001C"], []], {"f": [1, NAN], "g": [4, NAN]})
    with pytest.raises(LabelError, match="1 of 2 experiments have no value for f or g"):
        neither.bind(cell())
    assert neither.bind(cell(), missing="drop").report.without_label == 1
    one = screen.bind(cell(), "g", missing="drop")
    assert one.phenotype_types == ("g",)
    assert one.phenotype_stat_types == ("g.std",)
    assert one.values.tolist() == [[4.0], [5.0]]
    assert one.stat_values.tolist() == [[7.0], [8.0]]
    assert one.experiment.tolist() == [0, 1]
    only_f = screen.bind(cell(), ["f"], missing="drop")
    assert only_f.stat_values.shape == (2, 0)
    swapped = screen.bind(cell(), ["g", "f"], missing="drop")
    np.testing.assert_array_equal(swapped.values, both.values[:, [1, 0]])


def test_phenotypes_by_pattern():
    screen = Screen([[]], {"x_1": [1], "y": [2], "x_2": [3], "z[1]": [4], "z1": [5]})
    assert screen.bind(cell(), ["y", "x_*"]).phenotype_types == ("y", "x_1", "x_2")
    assert screen.bind(cell(), ["x_2", "*"]).phenotype_types == ("x_2", "x_1", "y", "z[1]", "z1")
    assert screen.bind(cell(), ["z[1]"]).phenotype_types == ("z[1]",)  # a name before it is a pattern
    with pytest.raises(ScreenError, match=r"no phenotype 'w_\*'; it has x_1, y, x_2"):
        screen.bind(cell(), "w_*")
    with pytest.raises(ScreenError, match="no phenotype was chosen; the screen has x_1"):
        screen.bind(cell(), [])


def test_missing_statistic_does_not_drop_an_experiment():
    screen = Screen([["YAL001C"]], {"f": [1]}, {"f": {"std": [NAN]}})
    assert len(screen.bind(cell())) == 1


def test_nothing_left():
    message = (
        r"nothing is left of 2 experiments: 1 name an unknown gene \(NOPE\), 1 have no value for f; give the cell graph"
    )
    with pytest.raises(ScreenError, match=message):
        Screen([["NOPE"], []], {"f": [1, NAN]}).bind(cell(), unknown="drop", missing="drop")


def test_unknown_phenotype():
    with pytest.raises(ScreenError, match="no phenotype 'g'; it has f and h"):
        Screen([[]], {"f": [1], "h": [1]}).bind(cell(), ["f", "g"])


@pytest.mark.parametrize("option", ["unknown", "missing"])
def test_unknown_policy(option):
    with pytest.raises(ScreenError, match=f"{option}='ignore' is not a policy: use 'error' or 'drop'"):
        Screen([[]], {"f": [1]}).bind(cell(), **{option: "ignore"})


def test_a_label_that_float32_cannot_hold_is_refused():
    with pytest.raises(LabelError, match=r"f of experiment 1 is 1e\+300, which float32 cannot hold"):
        Screen([[], ["YAL001C"]], {"f": [1, 1e300]}).bind(cell())
    with pytest.raises(LabelError, match=r"f\.n of experiment 0 is -1e\+39, which float32 cannot hold"):
        Screen([[]], {"f": [1]}, {"f": {"n": [-1e39]}}).bind(cell())


def test_another_gene_list_of_the_same_size_is_refused():
    b = bound(5)
    b.check(cell(aliases=ALIASES))  # other names for the same list are fine
    swapped = [GENES[1], GENES[0], *GENES[2:]]
    for genes in (swapped, [*GENES[:-1], "YZZ999C"], GENES[:-1]):
        with pytest.raises(GeneListMismatchError, match=r"bound to a different gene list .*screen\.bind\(graph\)"):
            b.check(cell(genes))


def test_binding_does_not_change_the_screen():
    screen = Screen([["YAL002C", "YAL001C"]], {"f": [1.0]})
    b = screen.bind(cell())
    b.values.fill_(7)
    b.indices.fill_(7)
    assert screen == Screen([["YAL002C", "YAL001C"]], {"f": [1.0]})


def test_locate():
    screen = Screen([[], ["NOPE"], ["YAL001C"], ["YAL002C"]], {"f": [1, 2, 3, NAN]})
    b = screen.bind(cell(), unknown="drop", missing="drop")  # rows 0 and 2 are left
    assert b.locate(np.array([2, 0])).tolist() == [1, 0]
    assert b.locate(np.array([0, 1, 3])).tolist() == [0]
    assert b.experiment[b.locate(np.array([1, 2]))].tolist() == [2]
    with pytest.raises(SplitError, match="none of the 2 rows of the test part is left after binding"):
        b.locate(np.array([1, 3]), "the test part")
    with pytest.raises(SplitError, match="none of the 0 rows of these experiments"):
        b.locate(np.array([], dtype=np.int64))
    with pytest.raises(SplitError, match="none of the 1 rows"):
        b.locate(np.array([99]))
    with pytest.raises(SplitError, match="none of the 1 rows"):
        Screen([], {"f": []}).bind(cell()).locate(np.array([0]))


@given(screens(min_size=1), st.data())
@examples
def test_locate_against_a_list(screen, data):
    kept = [row for row in range(len(screen)) if not all(np.isnan(v[row]) for v in screen.phenotypes.values())]
    if not kept:
        return
    b = screen.bind(cell(), missing="drop")
    wanted = data.draw(st.lists(st.integers(0, len(screen) + 2), unique=True))
    expected = [kept.index(row) for row in wanted if row in kept]
    if expected:
        assert b.locate(np.array(wanted)).tolist() == expected


@given(st.integers(1, 30), st.data())
@examples
def test_batch_against_slow_reference(n, data):
    b = bound(n, seed=n)
    rows = data.draw(st.lists(st.integers(0, n - 1), max_size=20))
    assert_same_batch(b.batch(rows), slow_batch(b, rows))
    assert_same_batch(b.batch(np.array(rows, dtype=np.int64)), slow_batch(b, rows))


@given(st.integers(1, 30), st.integers(1, 8), st.data())
@examples
def test_batches_against_slow_reference(n, size, data):
    b = bound(n, seed=n)
    rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=30))
    expected = [slow_batch(b, rows[at : at + size]) for at in range(0, len(rows), size)]
    assert_same_batches(b.batches(np.array(rows), size), expected)
    assert [batch.step_size for batch in b.batches(np.array(rows), size, 99)] == [99] * len(expected)


def test_batch_of_nothing():
    b = bound(4)
    (batch,) = b.batches(np.array([], dtype=np.int64), 3)
    assert_same_batch(batch, slow_batch(b, []))
    assert batch.num_samples == 0


def test_batch_of_wild_types_only():
    b = Screen([[], [], []], {"f": [1, 2, 3]}).bind(cell())
    assert_same_batch(b.batch([2, 0]), slow_batch(b, [2, 0]))
    assert b.batch([2, 0]).keep().all()


def test_a_row_that_does_not_exist():
    with pytest.raises(IndexError):
        bound(4).batch([4])


def test_batches_do_not_share_memory_with_the_screen():
    b = bound(6)
    before = b.values.clone(), b.indices.clone()
    batch = b.batch([0, 1, 2])
    batch.phenotype_values.zero_()
    batch.perturbation_indices.zero_()
    assert torch.equal(b.values, before[0])
    assert torch.equal(b.indices, before[1])


def test_content_hash():
    genotypes, values = [["YAL001C"], ["YAL002C", "YAL003C"]], [1.0, 2.0]
    same = Screen(genotypes, {"f": values}).bind(cell())
    assert same.content_hash == Screen(genotypes, {"f": values}, source="elsewhere").bind(cell()).content_hash
    assert same.content_hash == same.to("cpu").content_hash
    others = [
        Screen(genotypes[::-1], {"f": values}).bind(cell()),
        Screen(genotypes, {"f": [1.0, 2.5]}).bind(cell()),
        Screen([["YAL001C", "YAL002C"], ["YAL003C"]], {"f": values}).bind(cell()),
        Screen(genotypes, {"f": values}).bind(cell(GENES[:-1])),
        Screen(genotypes[:1], {"f": values[:1]}).bind(cell()),
        Screen([["NOPE"], *genotypes], {"f": [0.0, *values]}).bind(cell(), unknown="drop"),
        Screen(genotypes, {"f": values, "g": values}).bind(cell()),
    ]
    hashes = {same.content_hash, *(other.content_hash for other in others)}
    assert len(hashes) == 1 + len(others)


def test_content_hash_of_wild_types_only_and_of_nothing():
    # Empty tensors once could not be hashed, so a screen of wild types could not save its position.
    wild = Screen([[], []], {"f": [1, 2]}).bind(cell())
    nothing = Screen([], {"f": []}).bind(cell())
    assert len({wild.content_hash, nothing.content_hash, Screen([[]], {"f": [1]}).bind(cell()).content_hash}) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_resident_on_the_device():
    here = bound(50)
    there = here.to("cuda")
    assert there.device.type == "cuda"
    assert there.content_hash == here.content_hash
    rows = np.arange(50)[::-1].copy()
    for a, b in zip(there.batches(rows, 7), here.batches(rows, 7), strict=True):
        assert a.device.type == "cuda"
        assert_same_batch(a.to("cpu"), b)
