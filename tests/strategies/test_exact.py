"""Every strategy × relation × reduction × direction against the slow reference, values and gradients."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import slow_reference as slow
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategy_cases import (
    CASES,
    DIRECTIONS,
    REDUCTIONS,
    TOLERANCE,
    VARIANTS,
    Case,
    assert_close,
    cell,
    create,
    features,
    small_metabolism,
)
from torch import Tensor

import knockgraph as kg

CHANNELS = 3
HEADS = 2
DTYPES = (torch.float64, torch.float32)

each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_direction = pytest.mark.parametrize("direction", DIRECTIONS)
each_case = pytest.mark.parametrize("name", CASES)


def test_every_strategy_is_here() -> None:
    assert {name for name, _ in VARIANTS.values()} == set(kg.strategies.available())


class Expected:
    """What the slow reference says about one case, worked out once and compared with every strategy."""

    def __init__(self, case: Case, direction: str) -> None:
        n, b = case.graph.num_genes, len(case.genotypes)
        self.x = features((n, b, CHANNELS))
        self.shared = features((n, CHANNELS), seed=2)
        self.upstream = features((len(case.graph.relations), n, b, CHANNELS), seed=3)
        self.states = [features((n, b, HEADS, CHANNELS), seed=s) for s in (4, 5)]
        self.attention = features((HEADS, CHANNELS), seed=6)
        self.attended_upstream = features((n, b, HEADS, CHANNELS), seed=7)
        self.masks, self.degrees, self.strengths, self.attended = [], [], [], []
        self.aggregated: dict[tuple[str, bool], list[tuple[Tensor, Tensor]]] = {}
        sets = case.sets
        edges = [slow.edge_list(r.edge_index) for r in case.graph.relations.values()]
        weight = [None if r.weight is None else r.weight.tolist() for r in case.graph.relations.values()]
        for e, w in zip(edges, weight, strict=True):
            self.masks.append(slow.mask(e, sets, direction))
            self.degrees.append(slow.degree(e, n, sets, direction))
            self.strengths.append(slow.strength(e, w, n, sets, direction))
            self.attended.append(
                slow.value_and_gradients(
                    lambda s, t, a, e=e: slow.attend(e, s, t, a, sets, direction),
                    [*self.states, self.attention],
                    self.attended_upstream,
                )
            )
        for reduce in REDUCTIONS:
            for shared in (False, True):
                results = []
                for r, (e, w) in enumerate(zip(edges, weight, strict=True)):

                    def run(x: Tensor, e=e, w=w, shared=shared, reduce=reduce) -> Tensor:
                        wide = x.unsqueeze(1).expand(-1, b, -1) if shared else x
                        return slow.aggregate(e, w, wide, sets, reduce, direction)

                    value, (gradient,) = slow.value_and_gradients(
                        run, [self.shared if shared else self.x], self.upstream[r]
                    )
                    results.append((value, gradient))
                self.aggregated[reduce, shared] = results
        self.alive = slow.alive(case.rules, sets)


@cache
def expected_of(name: str, direction: str) -> Expected:
    return Expected(CASES[name], direction)


def check_aggregations(
    strategy: kg.strategies.Strategy, batch: kg.PerturbationBatch, expected: Expected, dtype: torch.dtype
) -> None:
    """``aggregate`` and ``aggregate_all`` of every relation and reduction, own and shared features."""
    names = strategy.relation_names
    for (reduce, shared), results in expected.aggregated.items():
        given = (expected.shared if shared else expected.x).to(dtype)
        # Shared features are differences of sums (Ax − A[:, P]x[P]): rounding is relative to what is subtracted from.
        scale = float(given.double().norm()) if shared else 0.0
        upstream = expected.upstream.to(dtype)
        with strategy(batch) as view:
            for r, (value, gradient) in enumerate(results):
                what = (strategy.name, names[r], reduce, "shared" if shared else "own", dtype)
                x = given.clone().requires_grad_()
                y = view.aggregate(names[r], x, reduce=reduce)
                assert y.dtype == dtype, what
                assert_close(y, value, dtype, what, scale)
                assert not y[~view.keep].any(), what
                (y * upstream[r]).sum().backward()
                assert x.grad is not None, what
                assert_close(x.grad, gradient, dtype, ("gradient", *what), scale and float(upstream.double().norm()))
                assert torch.equal(x.detach(), given), what
            x = given.clone().requires_grad_()
            y = view.aggregate_all(x, reduce=reduce)
            what = (strategy.name, "aggregate_all", reduce, "shared" if shared else "own", dtype)
            assert y.dtype == dtype, what
            assert_close(y, torch.stack([value for value, _ in results]), dtype, what, scale)
            (y * upstream).sum().backward()
            total = torch.stack([gradient for _, gradient in results]).sum(0)
            assert_close(x.grad, total, dtype, ("gradient", *what), scale and float(upstream.double().norm()))


def check_attention(
    strategy: kg.strategies.Strategy, batch: kg.PerturbationBatch, expected: Expected, dtype: torch.dtype
) -> None:
    for r, (value, gradients) in enumerate(expected.attended):
        inputs = [t.to(dtype).requires_grad_() for t in (*expected.states, expected.attention)]
        inputs = [t.detach().requires_grad_() for t in inputs]
        with strategy(batch) as view:
            y = view.attend(strategy.relation_names[r], *inputs)
            assert y.dtype == dtype
            assert_close(y, value, dtype, (strategy.name, "attend", r, dtype))
            (y * expected.attended_upstream.to(dtype)).sum().backward()
        size = float(expected.attended_upstream.norm())
        for leaf, gradient, part in zip(inputs, gradients, ("source", "target", "attention"), strict=True):
            actual = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            # With one neighbour the gradient of the logits is 1 − 1: exactly nothing, or rounding.
            assert_close(actual, gradient, dtype, (strategy.name, "attend", r, part, dtype), size)


def check_structure(strategy: kg.strategies.Strategy, batch: kg.PerturbationBatch, expected: Expected) -> None:
    """Masks, keep-vectors, degrees and reactions, bit for bit."""
    with strategy(batch) as view:
        assert torch.equal(view.keep, batch.keep())
        for name, mask, degree, strength in zip(
            strategy.relation_names, expected.masks, expected.degrees, expected.strengths, strict=True
        ):
            actual = view.edge_mask(name)
            assert actual.dtype == torch.bool
            assert torch.equal(actual, mask), (strategy.name, name)
            assert view.degree(name).dtype == torch.float32
            assert torch.equal(view.degree(name).double(), degree), (strategy.name, name)
            size = float(strength.norm()) + 1
            assert_close(view.strength(name), strength, torch.float32, (strategy.name, name, "strength"), size)
            exact = view.strength(name, torch.float64)
            assert exact.dtype == torch.float64
            assert_close(exact, strength, torch.float64, (strategy.name, name, "strength"), size)
        if strategy.metabolism is not None:
            assert torch.equal(view.reactions_alive, expected.alive)


@each_case
@each_direction
@each_variant
def test_equals_the_slow_reference(variant: str, direction: str, name: str, tmp_path: Path) -> None:
    case, expected = CASES[name], expected_of(name, direction)
    strategy = create(variant, case.graph, direction, case.batch, tmp_path)
    check_structure(strategy, case.batch, expected)
    for dtype in DTYPES:
        check_aggregations(strategy, case.batch, expected, dtype)
        check_attention(strategy, case.batch, expected, dtype)


@each_direction
@each_variant
def test_after_its_own_collation(variant: str, direction: str, tmp_path: Path) -> None:
    """The payload that loader workers attach gives what the bare batch gives."""
    case = CASES["random"]
    strategy = create(variant, case.graph, direction, case.batch, tmp_path)
    batch = strategy.collate(case.batch)
    check_structure(strategy, batch, expected_of("random", direction))
    check_aggregations(strategy, batch, expected_of("random", direction), torch.float64)


@each_direction
@each_variant
def test_with_the_wild_type_as_last_column(variant: str, direction: str, tmp_path: Path) -> None:
    """With features that all samples share, the neighborhood strategy is exact too when it borrows."""
    case = CASES["random"]
    batch = case.batch.with_wild_type()
    sets = [*case.sets, set()]
    strategy = create(variant, case.graph, direction, batch, tmp_path)
    x = features((case.graph.num_genes, CHANNELS), seed=2)
    for name, relation in case.graph.relations.items():
        weight = None if relation.weight is None else relation.weight.tolist()
        for reduce in REDUCTIONS:
            wide = x.unsqueeze(1).expand(-1, len(sets), -1)
            expected = slow.aggregate(slow.edge_list(relation.edge_index), weight, wide, sets, reduce, direction)
            with strategy(batch) as view:
                assert_close(view.aggregate(name, wide, reduce=reduce), expected, torch.float64, (name, reduce))
                scale = float(x.norm())
                assert_close(view.aggregate(name, x, reduce=reduce), expected, torch.float64, (name, reduce), scale)


@pytest.mark.parametrize("reduce", ["max", "min"])
@each_direction
@each_variant
def test_ties_give_one_gradient(variant: str, direction: str, reduce: str, tmp_path: Path) -> None:
    """Equal extremes: the first neighbour of the gene list gets all of the gradient, whatever the order of edges."""
    graph = cell(5, a=[[4, 0], [2, 0], [3, 0], [1, 0], [3, 4], [0, 4]], w=([[3, 1], [2, 1]], torch.tensor([2.0, 2.0])))
    genotypes = [[], [1], [1, 2], [0], [4]]
    x = torch.ones(5, len(genotypes), 2, dtype=torch.float64)
    strategy = create(variant, graph, direction, genotypes, tmp_path)
    batch = kg.PerturbationBatch.from_lists(genotypes, 5)
    for name, relation in graph.relations.items():
        weight = None if relation.weight is None else relation.weight.tolist()
        upstream = features((5, len(genotypes), 2), seed=9)
        value, (gradient,) = slow.value_and_gradients(
            lambda x, relation=relation, weight=weight: slow.aggregate(
                slow.edge_list(relation.edge_index), weight, x, [set(g) for g in genotypes], reduce, direction
            ),
            [x],
            upstream,
        )
        leaf = x.clone().requires_grad_()
        with strategy(batch) as view:
            y = view.aggregate(name, leaf, reduce=reduce)
            (y * upstream).sum().backward()
        assert torch.equal(y, value)
        assert torch.equal(leaf.grad, gradient)


@each_variant
def test_no_relations(variant: str, tmp_path: Path) -> None:
    graph = kg.CellGraph(["a", "b"], {})
    strategy = create(variant, graph, "both", [[0]], tmp_path)
    with strategy(kg.PerturbationBatch.from_lists([[0]], 2)) as view:
        assert view.aggregate_all(torch.ones(2, 1, 3)).shape == (0, 2, 1, 3)
        assert view.keep.tolist() == [[False], [True]]


@each_variant
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_type(variant: str, dtype: torch.dtype, tmp_path: Path) -> None:
    case = CASES["random"]
    strategy = create(variant, case.graph, "both", case.batch, tmp_path)
    expected = expected_of("random", "both")
    for reduce in REDUCTIONS:
        with strategy(case.batch) as view:
            x = expected.x.to(dtype).requires_grad_()
            y = view.aggregate("regulatory", x, reduce=reduce)
            y.float().sum().backward()
        assert y.dtype == dtype
        assert x.grad.dtype == dtype
        value = expected.aggregated[reduce, False][1][0]
        assert float((y.detach().double() - value).norm() / value.norm()) < 2e-2


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, str]:
    n = draw(st.integers(1, 7))
    gene = st.integers(0, n - 1)
    relations = {}
    for r in range(draw(st.integers(1, 3))):
        pairs = draw(st.lists(st.tuples(gene, gene), max_size=14, unique=True))
        if draw(st.booleans()):
            # Sixteenths: products and short sums are exact in every type, so that ties stay ties.
            weight = draw(st.lists(st.integers(-32, 32), min_size=len(pairs), max_size=len(pairs)))
            kind = draw(st.sampled_from([torch.float32, torch.float64]))
            relations[f"r{r}"] = (pairs, torch.tensor(weight, dtype=kind) / 16)
        else:
            relations[f"r{r}"] = pairs
    metabolism, rules = small_metabolism(n, draw(st.booleans())) if n > 5 and draw(st.booleans()) else (None, [])
    genotypes = draw(st.lists(st.lists(gene, unique=True, max_size=n), max_size=4))
    return Case(cell(n, metabolism, **relations), genotypes, rules), draw(st.sampled_from(DIRECTIONS))


def check_everything(case: Case, direction: str, folder: Path) -> None:
    expected = Expected(case, direction)
    for variant in VARIANTS:
        strategy = create(variant, case.graph, direction, case.batch, folder)
        check_structure(strategy, case.batch, expected)
        for dtype in TOLERANCE:
            check_aggregations(strategy, case.batch, expected, dtype)
            check_attention(strategy, case.batch, expected, dtype)


_suppressed = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@settings(max_examples=8, deadline=None, suppress_health_check=_suppressed)
@given(drawn=cases())
def test_random_graphs(drawn: tuple[Case, str], tmp_path: Path) -> None:
    check_everything(*drawn, tmp_path)


@pytest.mark.full
@settings(max_examples=200, deadline=None, suppress_health_check=_suppressed)
@given(drawn=cases())
def test_many_random_graphs(drawn: tuple[Case, str], tmp_path: Path) -> None:
    check_everything(*drawn, tmp_path)
