"""Whole models inside compiled code, without a graph break."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_cases import assert_same, assert_same_gradients, batch_of, build, cell, gradients, objective, run, view_for

import knockgraph as kg

BASE: dict[str, Any] = {"channels": 8, "heads": 2}
HETERO: dict[str, Any] = {**BASE, "messages.layers": 1, "messages.mlp_layers": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gin": ("hetero", {**HETERO, "metabolism.enabled": True}),
    "gin-blocks": ("hetero", {**HETERO, "messages.rows_at_once": 50}),
    "sage": ("hetero", {**HETERO, "messages.conv": "sage", "messages.aggregation": "attention"}),
    "gin-typed": ("hetero", {**HETERO, "messages.merge": "typed"}),
    "gatv2": ("hetero", {**HETERO, "messages.conv": "gatv2", "messages.aggregation": "sum"}),
    "dango": ("dango", BASE),
}

# Raised inside torch while it traces: nothing of ours.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch.compiler.reset()


@pytest.mark.parametrize(
    "name", ["gin", *(pytest.param(name, marks=pytest.mark.full) for name in MODELS if name != "gin")]
)
def test_no_graph_break(name: str, request: pytest.FixtureRequest) -> None:
    kind, options = MODELS[name]
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    model = build(kind, graph, **options)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    # Another batch is another shape, which is compiled once more: only in the long tier.
    others = [[[3, 4], [1]]] if request.node.get_closest_marker("full") else []
    for batch in map(batch_of, [None, *others]):
        expected, expected_gradients = run(model, strategy, batch)
        model.zero_grad(set_to_none=True)
        prediction = compiled(view_for(model, strategy, batch), batch)
        objective(prediction).backward()
        assert_same(prediction.values, expected.values, 1e-10)
        assert_same_gradients(gradients(model), expected_gradients, 1e-10)
