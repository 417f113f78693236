"""Reactions in the hetero model: what is dead does not matter, what dies does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_cases import NUM_GENES, assert_same, batch_of, build, cell, gradients, predict

import knockgraph as kg
from knockgraph.nn.metabolic_state import MetabolicState

CHANNELS = 8
BASE: dict[str, Any] = {
    "channels": CHANNELS,
    "messages.layers": 1,
    "heads": 2,
    "messages.mlp_layers": 2,
    "metabolism.enabled": True,
}


def state(rounds: int = 2, heads: int = 0) -> tuple[kg.CellGraph, MetabolicState]:
    graph = cell()
    assert graph.metabolism is not None
    torch.manual_seed(0)
    return graph, MetabolicState(graph.metabolism, NUM_GENES, CHANNELS, rounds, heads).double()


def features(columns: int) -> torch.Tensor:
    shape = (NUM_GENES, columns, CHANNELS)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("rounds", "heads"), [(0, 0), (1, 0), (3, 0), (1, 2), (3, 4)])
def test_what_a_dead_reaction_holds_does_not_matter(rounds: int, heads: int) -> None:
    graph, module = state(rounds, heads)
    assert graph.metabolism is not None
    view = kg.strategies.create("node-mask", graph)(batch_of([[0], [0, 5], [1]]))
    dead = ~view.reactions_alive.any(1)
    assert [r for r, d in zip(graph.metabolism.reactions, dead.tolist(), strict=True) if d] == ["complex"]
    expected = module(view, features(3))
    with torch.no_grad():
        module.embedding[dead] = math.nan
    poked = features(3)
    poked[0, :2] = math.nan  # gene 0 is deleted in these samples
    poked[1, 2] = math.nan
    poked.requires_grad_()
    actual = module(view, poked)
    assert_same(actual, expected, 1e-12)
    actual.square().sum().backward()
    for name, gradient in gradients(module).items():
        assert bool(gradient.isfinite().all()), name
    assert bool((module.embedding.grad[dead] == 0).all())  # type: ignore[index]


@pytest.mark.parametrize("heads", [0, 2])
def test_the_whole_complex_is_needed(heads: int) -> None:
    """g0 and g1 run one reaction together: losing either kills it, and then g0's own state no longer counts."""
    graph, module = state(heads=heads)
    strategy = kg.strategies.create("node-mask", graph)
    x = features(1).expand(-1, 4, -1)
    z = module(strategy(batch_of([[], [0], [1], [12]])), x)
    assert not torch.allclose(z[0], z[1])
    assert_same(z[1], z[2], 1e-12)
    assert_same(z[0], z[3], 1e-12)  # g12 runs no reaction


def test_deleting_a_gene_of_a_complex_changes_the_prediction() -> None:
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    model = build("hetero", graph, **BASE, **{"readout.local": False})
    with torch.no_grad():  # leave the reactions' part of z_p alone
        model.get_parameter("joint.weight")[:, :CHANNELS] = 0
    values = predict(model, strategy, batch_of([[], [0], [2], [2, 3]])).values.flatten().tolist()
    assert values[0] != values[1]
    assert len(set(values)) == 4


@pytest.mark.parametrize("attention", [False, True])
def test_no_living_reaction_is_no_nan(attention: bool) -> None:
    graph = cell()
    assert graph.metabolism is not None
    metabolism = kg.Metabolism.from_reactions(
        [kg.Reaction("only", {"a": -1, "b": 1}, gene_rule="g3")], {f"g{i}": i for i in range(NUM_GENES)}
    )
    graph = kg.CellGraph(graph.genes, dict(graph.relations), metabolism)
    model = build("hetero", graph, **BASE, **{"metabolism.attention": attention})
    batch = batch_of([[3], list(range(NUM_GENES))])
    prediction = predict(model, kg.strategies.create("node-mask", graph), batch)
    assert bool(prediction.values.isfinite().all())
    prediction.values.sum().backward()
    assert all(bool(g.isfinite().all()) for g in gradients(model).values())
