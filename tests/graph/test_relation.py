import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from knockgraph import GraphError, Relation
from knockgraph.graph import Csr

Edge = tuple[int, int]


def tensor(edges: list[Edge]) -> Tensor:
    return torch.tensor(edges, dtype=torch.long).reshape(-1, 2).T


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, list[Edge], list[float]]:
    """Few genes and many edges: duplicates, self loops, reversed edges and isolated genes all occur."""
    num_genes = draw(st.integers(1, 6))
    gene = st.integers(0, num_genes - 1)
    edges = draw(st.lists(st.tuples(gene, gene), max_size=25))
    if draw(st.booleans()):
        edges = edges + [(d, s) for s, d in edges]
    # Two values only, so that weights of reversed edges are often equal.
    weights = draw(st.lists(st.sampled_from([0.5, -1.0]), min_size=len(edges), max_size=len(edges)))
    return num_genes, edges, weights


def slow_unique(edges: list[Edge], weights: list[float]) -> dict[Edge, float]:
    first: dict[Edge, float] = {}
    for edge, weight in zip(edges, weights, strict=True):
        first.setdefault(edge, weight)
    return first


def slow_rows(edges: list[Edge], num_genes: int, row: int) -> list[list[Edge]]:
    """Per gene its (other end, position) pairs, ascending."""
    return [sorted((e[1 - row], i) for i, e in enumerate(edges) if e[row] == g) for g in range(num_genes)]


def rows_of(csr: Csr, num_genes: int) -> list[list[Edge]]:
    ptr, index, edge = csr.ptr.tolist(), csr.index.tolist(), csr.edge.tolist()
    return [list(zip(index[ptr[g] : ptr[g + 1]], edge[ptr[g] : ptr[g + 1]], strict=True)) for g in range(num_genes)]


@given(edge_lists())
@settings(deadline=None, max_examples=200)
def test_tables_equal_the_slow_reference(example) -> None:
    num_genes, given_edges, weights = example
    relation = Relation(tensor(given_edges), num_genes, torch.tensor(weights))
    unique = slow_unique(given_edges, weights)
    edges = list(unique)

    assert relation.edge_index.T.tolist() == [list(e) for e in edges]  # given order, first one kept
    assert relation.weight is not None
    assert relation.weight.tolist() == list(unique.values())
    assert relation.num_edges == len(edges)
    assert relation.num_duplicates == len(given_edges) - len(edges)
    assert relation.num_self_loops == sum(s == d for s, d in edges)
    assert relation.num_genes_touched == len({g for e in edges for g in e})

    assert rows_of(relation.by_destination, num_genes) == slow_rows(edges, num_genes, row=1)
    assert rows_of(relation.by_source, num_genes) == slow_rows(edges, num_genes, row=0)
    assert relation.by_destination.degree.tolist() == [sum(d == g for _, d in edges) for g in range(num_genes)]

    ptr, edge = relation.incidence
    assert ptr.dtype == edge.dtype == torch.int32
    for g in range(num_genes):
        incoming = [i for _, i in slow_rows(edges, num_genes, row=1)[g]]
        outgoing = [i for other, i in slow_rows(edges, num_genes, row=0)[g] if other != g]
        assert edge[ptr[g] : ptr[g + 1]].tolist() == incoming + outgoing

    triples = {(s, d, w) for (s, d), w in unique.items()}
    assert relation.symmetric == (triples == {(d, s, w) for s, d, w in triples})
    unweighted = Relation(tensor(given_edges), num_genes)
    assert unweighted.weight is None
    assert unweighted.symmetric == (set(edges) == {(d, s) for s, d in edges})


@given(edge_lists())
@settings(deadline=None)
def test_incidence_is_exactly_what_a_deletion_removes(example) -> None:
    num_genes, edges, _ = example
    relation = Relation(tensor(edges), num_genes)
    ptr, edge = relation.incidence
    for g in range(num_genes):
        touched = (relation.edge_index == g).any(0).nonzero()[:, 0].tolist()
        assert sorted(edge[ptr[g] : ptr[g + 1]].tolist()) == touched


@pytest.mark.parametrize("num_genes", [46_340, 46_341, 70_000])  # around the switch to 64-bit sort keys
def test_large_gene_numbers_do_not_overflow_the_sort_key(num_genes: int) -> None:
    last = num_genes - 1
    edges = [(last, last), (0, last), (last, 0), (last, last), (1, 0), (0, last)]
    relation = Relation(tensor(edges), num_genes)
    assert relation.edge_index.T.tolist() == [[last, last], [0, last], [last, 0], [1, 0]]
    assert relation.num_duplicates == 2
    assert rows_of(relation.by_destination, num_genes)[last] == [(0, 1), (last, 0)]
    assert rows_of(relation.by_source, num_genes)[last] == [(0, 2), (last, 0)]


@pytest.mark.parametrize("empty", [torch.empty(2, 0), torch.empty(2, 0, dtype=torch.long), [[], []]])
def test_empty_relation(empty) -> None:
    relation = Relation(empty, 3, torch.empty(0))
    assert relation.edge_index.shape == (2, 0)
    assert relation.edge_index.dtype == torch.long
    assert (relation.num_edges, relation.num_duplicates, relation.num_genes_touched) == (0, 0, 0)
    assert relation.by_destination.ptr.tolist() == relation.by_source.ptr.tolist() == [0, 0, 0, 0]
    assert relation.incidence[0].tolist() == [0, 0, 0, 0]
    assert relation.incidence[1].tolist() == []
    assert relation.symmetric


def test_self_loops_are_ordinary_edges() -> None:
    relation = Relation(tensor([(1, 1), (0, 1)]), 2)
    assert relation.num_edges == 2
    assert relation.num_self_loops == 1
    assert relation.incidence[1].tolist() == [1, 1, 0]  # gene 0: edge 1; gene 1: edges 1 and 0, the loop once


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.int64])
def test_any_integer_dtype_becomes_int64(dtype: torch.dtype) -> None:
    relation = Relation(torch.tensor([[0, 1], [1, 2]], dtype=dtype), 3)
    assert relation.edge_index.dtype == torch.long
    assert (
        relation.by_source.ptr.dtype == relation.by_source.index.dtype == relation.by_source.edge.dtype == torch.int32
    )


def test_lists_and_arrays_are_accepted() -> None:
    expected = Relation(tensor([(0, 1), (1, 2)]), 3)
    assert Relation([[0, 1], [1, 2]], 3) == expected
    assert Relation(np.array([[0, 1], [1, 2]]), 3) == expected


@pytest.mark.parametrize(
    ("weight", "dtype"),
    [
        (torch.tensor([1, 2]), torch.float32),
        (torch.tensor([True, False]), torch.float32),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), torch.float64),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), torch.float16),
        ([1.0, 2.0], torch.float32),
    ],
)
def test_weight_dtypes(weight, dtype: torch.dtype) -> None:
    relation = Relation(tensor([(0, 1), (1, 2)]), 3, weight)
    assert relation.weight is not None
    assert relation.weight.dtype == dtype


@pytest.mark.parametrize(
    ("edge_index", "weight", "text"),
    [
        (torch.zeros(3, 2, dtype=torch.long), None, r"edge_index has shape \[3, 2\], but it needs \[2, num_edges\]"),
        (torch.zeros(2, dtype=torch.long), None, r"edge_index has shape \[2\]"),
        (torch.zeros(2, 2, 2, dtype=torch.long), None, r"edge_index has shape \[2, 2, 2\]"),
        (torch.zeros(2, 2), None, "edge_index has dtype torch.float32, but gene indices are integers"),
        (torch.zeros(2, 2, dtype=torch.bool), None, "edge_index has dtype torch.bool"),
        (torch.zeros(2, 2, dtype=torch.complex64), None, "edge_index has dtype torch.complex64"),
        (torch.tensor([[0, 1, 3], [1, 2, 0]]), None, r"edge 2 is \(3 → 0\), but gene indices run from 0 to 2"),
        (torch.tensor([[0, 0], [1, -1]]), None, r"edge 1 is \(0 → -1\)"),
        (torch.tensor([[0, 7], [9, 1]]), None, r"edge 0 is \(0 → 9\)"),
        ([[0, 1], [1]], None, "edge_index is not a tensor or a rectangular list of numbers"),
        ("physical", None, "edge_index is not a tensor"),
        (None, None, "edge_index is not a tensor"),
        (torch.tensor([[0, 1], [1, 2]]), torch.ones(3), r"weight has shape \[3\], but there are 2 edges"),
        (torch.tensor([[0, 1], [1, 2]]), torch.ones(2, 1), r"weight has shape \[2, 1\]"),
        (torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, float("nan")]), "weight 1 is nan; remove the edge or"),
        (torch.tensor([[0, 1], [1, 2]]), torch.tensor([float("-inf"), 1.0]), "weight 0 is -inf"),
        (torch.tensor([[0, 1], [1, 2]]), torch.ones(2, dtype=torch.complex64), "weight has dtype torch.complex64"),
        (torch.tensor([[0, 1], [1, 2]]), ["a", "b"], "weight is not a tensor"),
    ],
)
def test_bad_input_is_refused_by_name(edge_index, weight, text: str) -> None:
    with pytest.raises(GraphError, match="^relation 'physical': " + text):
        Relation(edge_index, 3, weight, "physical")
    with pytest.raises(GraphError, match="^" + text):
        Relation(edge_index, 3, weight)


def test_too_many_genes_for_one_sort_key() -> None:
    with pytest.raises(GraphError, match="more than one sort key can hold"):
        Relation(torch.empty(2, 0), 2**32)


def test_an_edge_of_no_genes_is_refused() -> None:
    with pytest.raises(GraphError, match=r"edge 0 is \(0 → 0\)"):
        Relation(tensor([(0, 0)]), 0)


@pytest.mark.parametrize("edges", [[(0, 1), (1, 2)], [(0, 1), (0, 1), (1, 2)]])
def test_the_callers_tensors_stay_the_callers(edges: list[Edge]) -> None:
    edge_index, weight = tensor(edges).contiguous(), torch.arange(1.0, len(edges) + 1)
    edge_before, weight_before = edge_index.clone(), weight.clone()
    relation = Relation(edge_index, 3, weight)
    first = relation.edge_index.clone(), relation.weight.clone()
    assert torch.equal(edge_index, edge_before)
    assert torch.equal(weight, weight_before)
    edge_index.fill_(2)
    weight.fill_(9)
    assert torch.equal(relation.edge_index, first[0])
    assert torch.equal(relation.weight, first[1])
    assert relation.by_source.index.tolist() == [1, 2]


def test_weight_that_needs_a_gradient_is_detached() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert not Relation(tensor([(0, 1)]), 2, weight).weight.requires_grad


def test_equality() -> None:
    a, weight = tensor([(0, 1), (1, 0)]), torch.tensor([1.0, 2.0])
    assert Relation(a, 2) == Relation(a, 2)
    assert Relation(a, 2, weight) == Relation(a, 2, weight)
    assert Relation(a, 2) != Relation(a, 3)
    assert Relation(a, 2) != Relation(a.flip(1), 2)
    assert Relation(a, 2) != Relation(a, 2, weight)
    assert Relation(a, 2, weight) != Relation(a, 2, weight.flip(0))
    assert Relation(a, 2) != a.tolist()


def test_repr_and_pickle() -> None:
    relation = Relation(tensor([(0, 1), (0, 1)]), 2, torch.ones(2))
    assert repr(relation) == "Relation(2 genes, 1 edges, weighted)"
    assert repr(Relation(tensor([]), 2)) == "Relation(2 genes, 0 edges)"
    again = pickle.loads(pickle.dumps(relation))
    assert again == relation
    assert again.num_duplicates == 1


def test_yeast_sized_relation() -> None:
    num_genes, num_edges = 6_607, 2_423_370
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_genes, (2, num_edges), generator=generator)
    relation = Relation(edge_index, num_genes)
    distinct = torch.unique(edge_index[0] * num_genes + edge_index[1]).numel()
    assert relation.num_edges == distinct
    assert relation.num_duplicates == num_edges - distinct > 0
    assert not relation.symmetric
    for csr, row in ((relation.by_destination, 1), (relation.by_source, 0)):
        key = relation.edge_index[row] * num_genes + relation.edge_index[1 - row]
        assert int(csr.ptr[-1]) == distinct
        assert torch.equal(key[csr.edge.long()], key.sort().values)
        assert torch.equal(csr.index.long(), relation.edge_index[1 - row][csr.edge.long()])
    ptr, edge = relation.incidence
    assert len(edge) == 2 * distinct - relation.num_self_loops
    for g in (0, 1, 3_000, num_genes - 1):
        touched = (relation.edge_index == g).any(0).nonzero()[:, 0]
        assert torch.equal(edge[ptr[g] : ptr[g + 1]].long().sort().values, touched)
