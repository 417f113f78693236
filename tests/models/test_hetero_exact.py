"""The hetero model says the same whatever the strategy, the batch mates, the order of genes and deletions."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import (
    GENOTYPES,
    NUM_GENES,
    assert_same,
    assert_same_gradients,
    batch_of,
    build,
    cell,
    gradients,
    objective,
    predict,
    run,
)

import knockgraph as kg
from knockgraph.models import CellModel
from knockgraph.strategies import Strategy
from knockgraph.train.learning import mean_cosine

BASE: dict[str, Any] = {"channels": 8, "messages.layers": 2, "heads": 2, "messages.mlp_layers": 2}
MODELS: dict[str, dict[str, Any]] = {
    "gin": {"messages.aggregation": "pairwise", "metabolism.enabled": True},
    "sage": {"messages.aggregation": "attention", "metabolism.enabled": True, "metabolism.attention": True},
    "gcn": {"messages.aggregation": "mean", "readout.combine": "mean"},
    "gatv2": {"messages.aggregation": "sum", "input.features": ["length"]},
    "gin-typed": {"messages.conv": "gin", "messages.merge": "typed"},
    "sage-typed": {"messages.conv": "sage", "messages.merge": "typed"},
    "gcn-typed": {"messages.conv": "gcn", "messages.merge": "typed"},
    "gin-replaced": {"messages.conv": "gin", "messages.residual": False},
}
each_model = pytest.mark.parametrize("conv", MODELS)


def model_of(conv: str, graph: kg.CellGraph, seed: int = 0) -> CellModel:
    return build("hetero", graph, seed=seed, **{"messages.conv": conv, **BASE, **MODELS[conv]})


def strategy_of(name: str, graph: kg.CellGraph, folder: Path) -> Strategy:
    if name.startswith("stored") and importlib.util.find_spec("lmdb") is None:
        pytest.skip("lmdb is not installed")
    options = {"hops": 2, "layers": 2} if name == "neighborhood" else {}
    strategy = kg.strategies.create(name, graph, **options)
    assert strategy.exact
    if strategy.placement == "stored":
        strategy.prepare([*GENOTYPES, []], folder / name)
    return strategy


@each_model
@pytest.mark.parametrize("name", [n for n in kg.strategies.available() if n != "node-mask"])
def test_every_strategy_gives_the_same_prediction_and_gradients(name: str, conv: str, tmp_path: Path) -> None:
    graph = cell()
    model = model_of(conv, graph)
    batch = batch_of()
    expected, expected_gradients = run(model, kg.strategies.create("node-mask", graph), batch)
    strategy = strategy_of(name, graph, tmp_path)
    model.zero_grad(set_to_none=True)
    with strategy(batch.with_wild_type()) as view:
        actual = model(view, batch)
        objective(actual).backward()
    assert_same(actual.values, expected.values, 1e-8)
    assert actual.embedding is not None
    assert expected.embedding is not None
    assert_same(actual.embedding, expected.embedding, 1e-8)
    assert_same_gradients(gradients(model), expected_gradients)


@each_model
def test_a_layer_adds_to_the_states_it_is_given(conv: str) -> None:
    """x' = x + layer(x), exactly, for states that all samples share and for states of their own, with gradients."""
    graph = cell()
    layer = model_of(conv, graph).layers[0]  # type: ignore[index, union-attr]
    view = kg.strategies.create("node-mask", graph)(batch_of().with_wild_type())
    torch.manual_seed(2)
    for shape in ((NUM_GENES, 8), (NUM_GENES, len(GENOTYPES) + 1, 8)):
        found = {}
        for residual in (True, False):
            layer.residual = residual
            x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
            y = layer(view, x)
            y.sin().sum().backward()
            found[residual] = (y.detach(), x.grad)
        x = x.detach()
        added = x.unsqueeze(1) if x.dim() == 2 else x
        assert_same(found[True][0], found[False][0] + added, 1e-12)
        # d/dx Σ sin(x + f(x)) = cos(y) + fᵀ'(cos(y)), and the second term is what the layer alone does to cos(y)
        layer.residual = False
        alone = x.clone().requires_grad_()
        upstream = found[True][0].cos()
        layer(view, alone).backward(upstream)
        own = upstream.sum(1) if x.dim() == 2 else upstream
        assert alone.grad is not None
        assert_same(found[True][1], alone.grad + own, 1e-10)


@pytest.mark.parametrize("aggregation", ["mean", "attention", "pairwise"])
def test_genes_can_be_told_apart_after_three_layers_of_many_neighbours(aggregation: str) -> None:
    """Without the residual path a gene is a small part of what its hundreds of neighbours send; see bench learn."""
    n = 600
    relations = {f"r{k}": torch.randint(n, (2, 200 * n), generator=torch.Generator().manual_seed(k)) for k in range(3)}
    graph = kg.CellGraph([f"g{i}" for i in range(n)], relations)
    view = kg.strategies.create("node-mask", graph)(kg.PerturbationBatch.from_lists([], n).only_wild_type())
    alike = {}
    for residual in (True, False):
        torch.manual_seed(0)
        model = kg.models.create(
            "hetero",
            graph,
            preset="reference",
            channels=32,
            input={"norm": True},
            messages={"aggregation": aggregation, "residual": residual},
        )
        with torch.no_grad():
            states, _ = model.states(view)  # type: ignore[operator]
        alike[residual] = mean_cosine(states[:, -1])
    assert alike[False] > 0.85
    assert alike[True] < 0.75


def test_a_model_is_the_same_file_for_every_strategy() -> None:
    """Nothing of a graph or a strategy is in a checkpoint: trained with one, it predicts with another."""
    graph = cell()
    model, other = model_of("gin", graph), model_of("gin", graph, seed=3)
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    assert set(shapes) == {name for name, _ in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        objective(predict(model, kg.strategies.create("device-vectorized", graph), batch_of())).backward()
        optimizer.step()
    other.load_state_dict(model.state_dict())
    expected = predict(model, kg.strategies.create("device-vectorized", graph), batch_of()).values
    for name in ("node-mask", "subgraph", "device-filter"):
        assert_same(predict(other, kg.strategies.create(name, graph), batch_of()).values, expected, 1e-8)


@each_model
def test_batch_mates_do_not_matter(conv: str) -> None:
    graph = cell()
    model, strategy = model_of(conv, graph), kg.strategies.create("node-mask", graph)
    together = predict(model, strategy, batch_of()).values
    for row, genes in enumerate(GENOTYPES):
        assert_same(predict(model, strategy, batch_of([genes])).values[0], together[row], 1e-10)


@each_model
def test_the_order_of_samples_and_deletions_does_not_matter(conv: str) -> None:
    graph = cell()
    model, strategy = model_of(conv, graph), kg.strategies.create("node-mask", graph)
    expected = predict(model, strategy, batch_of()).values
    turned = [genes[::-1] for genes in GENOTYPES[::-1]]
    assert_same(predict(model, strategy, batch_of(turned)).values.flip(0), expected, 1e-10)


@each_model
def test_the_numbering_of_the_genes_does_not_matter(conv: str) -> None:
    order = torch.randperm(NUM_GENES, generator=torch.Generator().manual_seed(4))
    place = order.argsort().tolist()
    graph, renumbered = cell(), cell(order=order)
    model, other = model_of(conv, graph), model_of(conv, renumbered)
    state = model.state_dict()
    state["input.embedding"] = state["input.embedding"][order]
    other.load_state_dict(state)
    expected = predict(model, kg.strategies.create("node-mask", graph), batch_of()).values
    batch = batch_of([[place[g] for g in genes] for genes in GENOTYPES])
    actual = predict(other, kg.strategies.create("node-mask", renumbered), batch).values
    assert_same(actual, expected, 1e-8)


@each_model
def test_a_deletion_changes_the_prediction_through_the_graph(conv: str) -> None:
    """Without the local predictor, and with embeddings that are all alike, only the graph tells genes apart."""
    graph = cell()
    options = {
        "messages.conv": conv,
        **BASE,
        **MODELS[conv],
        "readout.local": False,
        "input.features": (),
        "metabolism.enabled": False,
    }
    model = build("hetero", graph, **options)
    with torch.no_grad():
        model.get_parameter("input.embedding").copy_(torch.ones(NUM_GENES, 8))
    values = predict(model, kg.strategies.create("node-mask", graph), batch_of([[g] for g in range(6)])).values
    if conv != "gatv2":  # attention over equal neighbours is the same whatever their number
        assert len({round(v, 9) for v in values.flatten().tolist()}) > 1


def test_the_local_predictor_sees_the_wild_type() -> None:
    """What the deleted genes mean to each other is read before they are deleted."""
    graph = cell()
    model = build("hetero", graph, **BASE, **{"readout.combine": "mean"})
    strategy = kg.strategies.create("node-mask", graph)
    batch = batch_of()
    both = predict(model, strategy, batch).values
    alone = build("hetero", graph, **BASE, **{"readout.combine": "mean", "readout.local": False})
    alone.load_state_dict(model.state_dict(), strict=False)
    states, _ = model.states(strategy(batch.only_wild_type()))  # type: ignore[operator]
    local = model.local_predictor(states[:, 0], batch)  # type: ignore[operator]
    assert_same(both, (predict(alone, strategy, batch).values + local) / 2, 1e-10)


@pytest.mark.parametrize("local", ["pairs", "hyper-sagnn", False])
@pytest.mark.parametrize("residual", [True, False])
def test_the_input_is_normalised_but_for_pairs_beside_a_residual_path(residual: bool, local: str | bool) -> None:
    graph = kg.demo_cell()
    for norm in (None, True, False):
        torch.manual_seed(0)
        model = kg.models.create(
            "hetero",
            graph,
            channels=16,
            input={"norm": norm},
            messages={"residual": residual},
            readout={"local": local},
        )
        length = model.input().square().mean(1)  # type: ignore[operator, union-attr]
        expected = not (residual and local == "pairs") if norm is None else norm
        assert bool(length.min() > 0.5) == expected
