"""Perturbations with values: every strategy, layer and model against the table of formulas, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import slow_reference as slow
import torch
from strategy_cases import DIRECTIONS, REDUCTIONS, VARIANTS, assert_close, cell, create, features, random_pairs, weights
from strategy_cases import small_metabolism as metabolism_of
from torch import Tensor, nn

import knockgraph as kg
from knockgraph.models import create as create_model
from knockgraph.nn import GATv2Conv, GCNConv, GINConv, SAGEConv
from knockgraph.nn.attention_pooling import AttentionPooling
from knockgraph.nn.conv.by_name import relation_conv
from knockgraph.nn.hyper_sagnn import HyperSAGNN
from knockgraph.nn.metabolic_state import MetabolicState
from knockgraph.nn.pair_predictor import PairPredictor

N, CHANNELS = 9, 2
PAIRS = random_pairs(N, 0.3, seed=1)
RELATIONS = ("plain", "weighted")
GENOTYPES = [[1, 4], [0, 2, 5], [], [7, 3]]
VALUES = [[0.3, 2.0], [0.0, 1.0, 0.5], [], [1.5, 0.25]]
ABOVE_ZERO = [[0.3, 2.0], [0.7, 1.0, 0.5], [], [1.5, 0.25]]
DOSED = [name for name in VARIANTS if name != "neighborhood"]


def _graph(split: bool = True) -> kg.CellGraph:
    metabolism, _ = metabolism_of(N, split)
    return cell(N, metabolism, plain=PAIRS, weighted=(PAIRS, weights(len(PAIRS), 3).abs() + 0.1))


GRAPH = _graph()


def _batch(values: list[list[float]] = VALUES) -> kg.PerturbationBatch:
    flat = torch.tensor([v for row in values for v in row], dtype=torch.float64)
    return kg.PerturbationBatch.from_lists(GENOTYPES, N).with_values(flat)


def _dose(values: list[list[float]] = VALUES) -> Tensor:
    dose = torch.ones(N, len(GENOTYPES), dtype=torch.float64)
    for sample, (genes, given) in enumerate(zip(GENOTYPES, values, strict=True)):
        for gene, value in zip(genes, given, strict=True):
            dose[gene, sample] = value
    return dose


def _edges(relation: str) -> tuple[list[tuple[int, int]], list[float] | None]:
    found = GRAPH.relations[relation]
    return slow.edge_list(found.edge_index), None if found.weight is None else found.weight.double().tolist()


def test_the_dose_vector() -> None:
    batch = kg.PerturbationBatch.from_lists([[5, 2], [7]], num_genes=N, values=[[0.0, 0.3], [2.0]])
    assert torch.equal(batch.perturbation_values, torch.tensor([0.0, 0.3, 2.0]))
    view = kg.strategies.create("node-mask", GRAPH)(batch.with_wild_type())
    expected = torch.ones(N, 3)
    expected[5, 0], expected[2, 0], expected[7, 1] = 0.0, 0.3, 2.0
    assert torch.equal(view.dose, expected)
    assert torch.equal(view.keep, expected != 0)
    plain = kg.PerturbationBatch.from_lists([[5, 2], [7]], num_genes=N)
    assert torch.equal(plain.perturbation_values, torch.zeros(3))
    assert not plain.graded


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([[0.0, -0.5], [1.0]], r"sample 0 gives gene 2 the value -0.5, but a value is finite and at least 0"),
        ([[0.0, 0.5], [float("nan")]], r"sample 1 gives gene 7 the value nan, but"),
        ([[float("inf"), 0.5], [1.0]], r"sample 0 gives gene 5 the value inf, but"),
        ([[0.5], [1.0]], r"values must have one number for each gene"),
    ],
)
def test_bad_values(values: list[list[float]], why: str) -> None:
    with pytest.raises(kg.PerturbationError, match=why):
        kg.PerturbationBatch.from_lists([[5, 2], [7]], N, values=values)


def test_one_value_per_gene() -> None:
    batch = kg.PerturbationBatch.from_lists([[5, 5]], N, values=[[0.5, 0.5]])
    assert batch.tolist() == [[5]]
    with pytest.raises(kg.PerturbationError, match=r"sample 0 gives gene 5 two values, 0.5 and 0.25; give it one"):
        kg.PerturbationBatch.from_lists([[5, 5]], N, values=[[0.5, 0.25]])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", DOSED)
def test_every_strategy_follows_the_formulas(variant: str, direction: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, direction, _batch(), tmp_path).double()
    assert strategy.supports("doses")
    at_zero = strategy.supports("gradients at 0")
    values = VALUES if at_zero else ABOVE_ZERO
    x = features((N, len(GENOTYPES), CHANNELS))
    upstream = features(x.shape, seed=2)
    for relation in RELATIONS:
        edges, weight = _edges(relation)
        for reduce in REDUCTIONS:

            def reference(
                x: Tensor, d: Tensor, reduce: str = reduce, edges: Any = edges, weight: Any = weight
            ) -> Tensor:
                return slow.dosed_aggregate(edges, weight, x, d, reduce, direction)

            expected, _ = slow.value_and_gradients(reference, [x, _dose()], upstream)
            with strategy(strategy.collate(_batch())) as view:
                assert_close(view.aggregate(relation, x, reduce), expected, torch.float64, (relation, reduce))
            expected, (grad_x, grad_d) = slow.value_and_gradients(reference, [x, _dose(values)], upstream)
            with strategy(strategy.collate(_batch(values))) as view:
                leaf, dose = x.clone().requires_grad_(), view.dose.requires_grad_()
                y = view.aggregate(relation, leaf, reduce)
                (y * upstream).sum().backward()
                assert_close(y, expected, torch.float64, (relation, reduce))
                assert_close(leaf.grad, grad_x, torch.float64, (relation, reduce, "x"))
                # With direction="in" a mean does not depend on the doses at all.
                found = torch.zeros_like(grad_d) if dose.grad is None else dose.grad
                assert_close(found, grad_d, torch.float64, (relation, reduce, "dose"), scale=1.0)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("variant", DOSED)
def test_every_strategy_attends_by_dose(variant: str, direction: str, tmp_path: Path) -> None:
    strategy = create(variant, GRAPH, direction, _batch(), tmp_path).double()
    values = VALUES if strategy.supports("gradients at 0") else ABOVE_ZERO
    shape = (N, len(GENOTYPES), 2, CHANNELS)
    given = [features(shape), features(shape, seed=3), features((2, CHANNELS), seed=4)]
    upstream = features(shape, seed=5)
    edges, _ = _edges("plain")

    def reference(s: Tensor, t: Tensor, a: Tensor, d: Tensor) -> Tensor:
        return slow.dosed_attend(edges, s, t, a, d, direction)

    expected, _ = slow.value_and_gradients(reference, [*given, _dose()], upstream)
    with strategy(strategy.collate(_batch())) as view:
        assert_close(view.attend("plain", *given), expected, torch.float64)
    expected, gradients = slow.value_and_gradients(reference, [*given, _dose(values)], upstream)
    with strategy(strategy.collate(_batch(values))) as view:
        leaves = [t.clone().requires_grad_() for t in given]
        dose = view.dose.requires_grad_()
        y = view.attend("plain", *leaves)
        (y * upstream).sum().backward()
        assert_close(y, expected, torch.float64)
        for leaf, gradient in zip([*leaves, dose], gradients, strict=True):
            assert_close(leaf.grad, gradient, torch.float64)


def test_gradients_at_0_are_refused_where_the_edges_are_gone() -> None:
    strategy = kg.strategies.create("lazy-mask", GRAPH)
    view = strategy(_batch())
    view.dose.requires_grad_()
    with pytest.raises(
        kg.StrategyError, match=r"lazy-mask has no gradient with respect to a value of 0.*use node-mask"
    ):
        view.aggregate("plain", features((N, CHANNELS)))


def test_a_strategy_without_doses_says_so() -> None:
    strategy = kg.strategies.create("neighborhood", GRAPH)
    assert not strategy.supports("doses")
    with pytest.raises(kg.StrategyError, match=r"the strategy neighborhood shows deletions only.*use node-mask"):
        strategy(_batch())
    assert strategy(_batch([[0.0, 1.0], [0.0, 1.0, 0.0], [], [1.0, 1.0]])).keep.sum() == 4 * N - 3
    with pytest.raises(kg.StrategyError, match=r"'flying' is not an ability of strategies; they are doses,"):
        strategy.supports("flying")  # type: ignore[arg-type]


def _layer(layer: nn.Module) -> Callable[[kg.PerturbedGraphs, Tensor], Tensor]:
    return lambda view, x: torch.cat([layer(view, name, x) for name in RELATIONS])


def _joint(layer: nn.Module) -> Callable[[kg.PerturbedGraphs, Tensor], Tensor]:
    layer = layer.double()
    return lambda view, x: layer(view, RELATIONS, x)


def _layers() -> dict[str, Callable[[kg.PerturbedGraphs, Tensor], Tensor]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(CHANNELS, 4), nn.Tanh(), nn.Linear(4, CHANNELS))
    single: dict[str, nn.Module] = {
        "gin": GINConv(mlp),
        "sage-mean": SAGEConv(CHANNELS, CHANNELS),
        "sage-max": SAGEConv(CHANNELS, CHANNELS, "max"),
        "gcn": GCNConv(CHANNELS, CHANNELS),
        "gatv2": GATv2Conv(CHANNELS, CHANNELS, heads=2),
    }
    made = {name: _layer(layer.double()) for name, layer in single.items()}
    for name in ("gin", "sage", "gcn", "gatv2"):
        made[f"relations-{name}"] = _joint(relation_conv(name, len(RELATIONS), CHANNELS, heads=1))
    for name in ("gin", "sage", "gcn"):
        made[f"typed-{name}"] = _joint(relation_conv(name, len(RELATIONS), CHANNELS, typed=True))
    pool = AttentionPooling(CHANNELS).double()
    gin = made["gin"]
    made["pooled"] = lambda view, x: pool(gin(view, x)[:N], view.keep)
    return made


LAYERS = _layers()


@pytest.mark.parametrize("name", LAYERS)
def test_finite_differences(name: str) -> None:
    strategy = kg.strategies.create("node-mask", GRAPH).double()
    x = features((N, CHANNELS))
    batch = _batch(ABOVE_ZERO)

    def layer(values: Tensor) -> Tensor:
        return LAYERS[name](strategy(batch.with_values(values).with_wild_type()), x)

    values = batch.perturbation_values.clone().requires_grad_()
    assert torch.autograd.gradcheck(layer, (values,), eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("heads", [0, 2])
@pytest.mark.parametrize("split", [True, False])
def test_finite_differences_of_metabolism(split: bool, heads: int) -> None:
    graph = _graph(split)
    torch.manual_seed(0)
    state = MetabolicState(graph.metabolism, N, 4, heads=heads).double()
    strategy = kg.strategies.create("node-mask", graph).double()
    batch = _batch([[0.3, 2.0], [0.7, 1.1, 0.5], [], [1.5, 0.25]])
    x = features((N, len(GENOTYPES), 4))
    values = batch.perturbation_values.clone().requires_grad_()
    made = lambda v: state(strategy(batch.with_values(v)), x)  # noqa: E731
    assert torch.autograd.gradcheck(made, (values,), eps=1e-6, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("make", [lambda: HyperSAGNN(4, heads=2), lambda: PairPredictor(4)])
def test_finite_differences_of_local_predictors(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    x, batch = features((N, 4)), _batch(ABOVE_ZERO)
    values = torch.tensor([0.3, 1.8, 0.7, 0.9, 0.5, 1.5, 0.25], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: model(x, batch.with_values(v)), (values,), eps=1e-6, atol=1e-6)
    # A gene at 1 counts for nothing, near 0 it counts as deleted.
    zero_or_one = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    deleted = model(x, kg.PerturbationBatch.from_lists([[1], [0, 5], [], []], N))
    assert torch.equal(model(x, batch.with_values(zero_or_one)), deleted)
    nearly = zero_or_one.where(zero_or_one == 1, 1e-12)
    assert_close(model(x, batch.with_values(nearly)), deleted, torch.float64, scale=1e3)


@pytest.mark.parametrize("options", [{"conv": "gin"}, {"conv": "gcn", "local": "pairs"}, {"conv": "gatv2", "heads": 1}])
def test_finite_differences_of_the_model(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = create_model(
        "hetero",
        GRAPH,
        channels=4,
        heads=options.get("heads", 2),
        messages={"layers": 2, "mlp_layers": 1, "conv": options["conv"]},
        readout={"local": options.get("local", True)},
        metabolism={"enabled": True},
    ).double()
    strategy = kg.strategies.create("node-mask", GRAPH).double()
    batch = _batch([[0.3, 1.8], [0.7, 0.9, 0.5], [], [1.5, 0.25]])  # not where sums of |1 - d| pass 1

    def predicted(values: Tensor) -> Tensor:
        dosed = batch.with_values(values)
        return model(strategy(model.columns(dosed)), dosed).values

    values = batch.perturbation_values.clone().requires_grad_()
    assert torch.autograd.gradcheck(predicted, (values,), eps=1e-6, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_values_of_0_and_1_are_deletions_bit_for_bit(variant: str, tmp_path: Path) -> None:
    genotypes, values = [[1, 4], [0, 2, 5], [], [7]], [[0.0, 1.0], [1.0, 0.0, 0.0], [], [1.0]]
    listed = kg.PerturbationBatch.from_lists(genotypes, N, values=values)
    deleted = kg.PerturbationBatch.from_lists([[1], [2, 5], [], []], N)
    torch.manual_seed(0)
    model = create_model(
        "hetero", GRAPH, channels=4, heads=2, messages={"layers": 1}, metabolism={"enabled": True}
    ).eval()
    strategy = create(variant, GRAPH, genotypes=deleted, folder=tmp_path)
    made = []
    for samples in (listed, deleted):
        with strategy(strategy.collate(samples.with_wild_type())) as view:
            made.append(model(view, samples).values.detach())
    assert torch.equal(*made)


@pytest.mark.parametrize("split", [True, False])
def test_reactions_work_at_the_minimum_and_isozymes_add_up(split: bool) -> None:
    metabolism, rules = metabolism_of(N, split)
    dose = _dose()
    for cap in (1.0, None, 3.0):
        expected = torch.ones(len(rules), dose.shape[1], dtype=torch.float64)
        for r, rule in enumerate(rules):
            for b in range(dose.shape[1]):
                parts = [min(float(dose[g, b]) for g in genes) for genes in rule]
                limit = float("inf") if cap is None else max([cap, *parts])
                expected[r, b] = min(sum(parts), limit) if rule else 1.0
        assert torch.equal(metabolism.activity(dose, cap), expected)
    keep = dose != 0
    assert torch.equal(metabolism.activity(keep.double()), metabolism.reactions_alive(keep).double())


def test_the_wild_type_is_where_all_values_are_1() -> None:
    torch.manual_seed(0)
    model = create_model("hetero", GRAPH, channels=4, heads=2, messages={"layers": 2}).double()
    strategy = kg.strategies.create("node-mask", GRAPH).double()
    batch = _batch([[1 - 1e-9] * len(row) for row in VALUES])
    found = model(strategy(model.columns(batch)), batch).values
    wild = kg.PerturbationBatch.from_lists([[]] * len(GENOTYPES), N)
    assert_close(found, model(strategy(model.columns(wild)), wild).values, torch.float64, scale=1e5)
