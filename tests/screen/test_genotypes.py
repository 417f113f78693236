import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import GENES, examples, genotype_lists

from knockgraph import ScreenError
from knockgraph.graph.genes import unfit
from knockgraph.screen import Genotypes
from knockgraph.screen.genotypes import as_text, parse
from knockgraph.sources.written_genotypes import WrittenGenotypes


@given(genotype_lists)
@examples
def test_from_lists_gives_sorted_sets(lists):
    genotypes = Genotypes.from_lists(lists)
    assert list(genotypes) == [tuple(sorted(set(genotype))) for genotype in lists]
    assert len(genotypes) == len(lists)
    assert genotypes.size.tolist() == [len(set(genotype)) for genotype in lists]
    assert genotypes.names == tuple(sorted({gene for genotype in lists for gene in genotype}))


@given(genotype_lists, st.permutations(GENES), st.randoms(use_true_random=False))
@examples
def test_form_is_canonical_whatever_the_order_of_names_and_codes(lists, names, random):
    shuffled = [random.sample(genotype, len(genotype)) for genotype in lists]
    codes = np.array([names.index(gene) for genotype in shuffled for gene in genotype], dtype=np.int64)
    ptr = np.cumsum([0, *map(len, shuffled)])
    a, b = Genotypes.from_lists(lists), Genotypes(names, codes, ptr)
    assert a.hash == b.hash
    assert a == b
    assert hash(a) == hash(b)
    assert a.names == b.names
    assert np.array_equal(a.codes, b.codes)
    assert np.array_equal(a.ptr, b.ptr)
    assert (a.codes.dtype, a.ptr.dtype) == (b.codes.dtype, b.ptr.dtype) == (np.int32, np.int64)


@given(genotype_lists, genotype_lists)
@examples
def test_hash_differs_exactly_where_the_genotypes_do(first, second):
    a, b = Genotypes.from_lists(first), Genotypes.from_lists(second)
    assert (a == b) == ([set(g) for g in first] == [set(g) for g in second])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([["a"], ["b"]], [["b"], ["a"]]),
        ([["a", "b"]], [["a"], ["b"]]),
        ([["a"], []], [[], ["a"]]),
        ([["a"]], [["b"]]),
        ([[]], []),
        ([['a"', '"b']], [['a"b', '"']]),  # however names are joined
    ],
)
def test_hash_tells_apart(first, second):
    assert Genotypes.from_lists(first).hash != Genotypes.from_lists(second).hash


def test_repeated_gene_counts_once():
    assert list(Genotypes.from_lists([["b", "a", "b", "b"]])) == [("a", "b")]


def test_empty_genotype_is_the_wild_type_and_stays():
    genotypes = Genotypes.from_lists([[], ["a"], ()])
    assert list(genotypes) == [(), ("a",), ()]
    assert genotypes.group[0] == genotypes.group[2] != genotypes.group[1]


def test_no_experiment_at_all():
    genotypes = Genotypes.from_lists([])
    assert len(genotypes) == 0
    assert list(genotypes) == []
    assert genotypes.names == ()
    assert genotypes.group.tolist() == []
    assert genotypes == Genotypes([], np.array([]), np.array([0]))


def test_generators_are_read_once():
    assert list(Genotypes.from_lists((name for name in genotype) for genotype in ("ba", "", "c"))) == [
        ("a", "b"),
        (),
        ("c",),
    ]


def test_index_counts_from_the_end_and_stops_there():
    genotypes = Genotypes.from_lists([["a"], ["b", "c"]])
    assert genotypes[-1] == genotypes[1] == ("b", "c")  # once returned (), the wild type
    assert genotypes[-2] == genotypes[0] == ("a",)
    for row in (2, -3):
        with pytest.raises(IndexError):
            genotypes[row]


@given(genotype_lists, st.data())
@examples
def test_take(lists, data):
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8)) if lists else []
    taken = Genotypes.from_lists(lists).take(np.array(rows, dtype=np.int64))
    assert taken == Genotypes.from_lists([lists[row] for row in rows])  # unused names are gone: canonical again


@given(genotype_lists)
@examples
def test_group_is_equality_of_genotypes(lists):
    group = Genotypes.from_lists(lists).group
    for a, first in enumerate(lists):
        assert [group[a] == other for other in group] == [set(first) == set(second) for second in lists]


def test_none_is_refused_with_the_meaning_of_an_empty_list():
    with pytest.raises(ScreenError, match=r"genotype of experiment 1 is None; .*an empty list means the wild type"):
        Genotypes.from_lists([["a"], None])


def test_a_bare_name_is_refused():
    with pytest.raises(ScreenError, match=r"experiment 0 is 'YAL001C'; .*a single gene is a list of one name"):
        Genotypes.from_lists(["YAL001C"])


@pytest.mark.parametrize("gene", [None, 5, float("nan"), b"YAL001C"])
def test_a_gene_that_is_not_a_text_is_refused(gene):
    with pytest.raises(ScreenError, match=r"genotype of experiment 1 is \['b', .*every gene needs a name"):
        Genotypes.from_lists([["a"], ["b", gene]])


@pytest.mark.parametrize("ptr", [[], [1, 2], [0, 1], [0, 3], [0, 2, 1, 2], [[0, 2]], 2])
def test_a_pointer_that_does_not_fit_is_refused(ptr):
    with pytest.raises(ScreenError, match=r"ptr must start at 0, never fall and end at the number of codes \(2\)"):
        Genotypes(["a", "b"], np.array([0, 1]), np.array(ptr))


@pytest.mark.parametrize("code", [-1, 2, 100])
def test_a_code_out_of_range_is_refused(code):
    with pytest.raises(ScreenError, match=r"genotype codes must lie in 0 … 1"):
        Genotypes(["a", "b"], np.array([0, code]), np.array([0, 2]))


def test_repeated_names_are_refused():
    with pytest.raises(ScreenError, match="names of a screen must be unique"):
        Genotypes(["a", "a"], np.array([0, 1]), np.array([0, 2]))


def test_not_equal_to_something_else_and_repr():
    genotypes = Genotypes.from_lists([["a"], []])
    assert genotypes != [("a",), ()]
    assert repr(genotypes) == "Genotypes(2 experiments, 1 genes)"


@pytest.mark.parametrize("name", ["A+B", "A,B", "A|B", "A;B", " A", "A ", "", " ", "A\tB", "A\nB", "WT", "wt"])
def test_a_name_that_would_be_read_as_something_else_is_refused(name):
    """A gene called ``A+B`` was written and read back as two genes."""
    with pytest.raises(ScreenError, match=r"a gene has the name .*; rename it"):
        Genotypes.from_lists([["C"], [name]])


def test_a_name_has_no_value_in_it():
    with pytest.raises(ScreenError, match=r"a gene has the name 'A=0': it .*'='.*; rename it"):
        Genotypes(["A=0"], np.array([0]), np.array([0, 1]))


@examples
@given(
    st.lists(st.text(min_size=1, max_size=5).filter(lambda t: unfit(t) is None), min_size=1, max_size=4, unique=True)
)
def test_genes_joined_are_parsed_to_themselves(names):
    for sign in "+,|;":
        assert parse(f" {sign.join(names)}") == tuple(names)
    assert parse("WT") == ()


@examples
@given(st.lists(st.text("ab'-@1", min_size=1, max_size=4), max_size=3, unique=True))
def test_a_genotype_in_a_table_is_no_formula_and_is_read_back(names):
    text = as_text(names)
    assert text[0] not in "=+-@"
    assert parse(text) == tuple(names)
    written = WrittenGenotypes()
    written.add(pa.array([text]))
    assert list(written.genotypes()) == [tuple(sorted(names))]
