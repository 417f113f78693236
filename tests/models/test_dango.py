"""DANGO: its parts against plain formulas, and what it looks at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_cases import NUM_GENES, assert_same, assert_same_gradients, batch_of, build, cell, gradients, predict, run
from torch import Tensor

import knockgraph as kg
from knockgraph import models
from knockgraph.models.dango import Dango
from knockgraph.nn.adjacency_reconstruction import AdjacencyReconstruction

BASE: dict[str, Any] = {"channels": 8, "heads": 2}


def dense_error(module: AdjacencyReconstruction, relation: kg.Relation, h: Tensor) -> Tensor:
    """With the whole matrix."""
    n = relation.num_genes
    source, target = relation.edge_index
    adjacency = torch.zeros(n, n, dtype=h.dtype)
    adjacency[source, target] = 1 if relation.weight is None else relation.weight.to(h.dtype)
    weight = torch.full((n, n), module.zero_weight, dtype=h.dtype)
    weight[source, target] = 1
    return (weight * (h @ module.weight.T + module.bias - adjacency) ** 2).mean()


def relations() -> dict[str, kg.Relation]:
    directed = cell().relations["physical"].edge_index
    weight = torch.randn(directed.shape[1], generator=torch.Generator().manual_seed(3))
    return {
        "directed": kg.Relation(directed, NUM_GENES),
        "weighted": kg.Relation(directed, NUM_GENES, weight),
        "symmetric": cell().relations["string_coexpression"],
        "loops": kg.Relation(torch.arange(NUM_GENES).repeat(2, 1), NUM_GENES),
        "empty": kg.Relation(torch.empty(2, 0, dtype=torch.long), NUM_GENES),
    }


@pytest.mark.parametrize("zero_weight", [1.0, 0.1, 0.0])
@pytest.mark.parametrize("name", list(relations()))
def test_reconstruction_equals_the_dense_one(name: str, zero_weight: float) -> None:
    relation = relations()[name]
    torch.manual_seed(0)
    module = AdjacencyReconstruction(relation, 5, zero_weight).double()
    h = torch.randn(NUM_GENES, 5, dtype=torch.float64, requires_grad=True)
    other = h.detach().clone().requires_grad_()
    actual = module(h)
    actual.backward()
    mine = gradients(module)
    module.zero_grad(set_to_none=True)
    expected = dense_error(module, relation, other)
    expected.backward()
    assert_same(actual, expected, 1e-12)
    assert h.grad is not None
    assert other.grad is not None
    assert_same(h.grad, other.grad, 1e-12)
    assert_same_gradients(mine, gradients(module), 1e-12)


def test_reconstruction_is_float32_under_autocast() -> None:
    relation = relations()["symmetric"]
    torch.manual_seed(0)
    module = AdjacencyReconstruction(relation, 5, 0.1)
    h = torch.randn(NUM_GENES, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        error = module(h)
    assert error.dtype == torch.float32
    assert_same(error, dense_error(module, relation, h.float()), 1e-5)


def test_states_follow_the_formula() -> None:
    graph = cell()
    model = build("dango", graph, relations=list(graph.relations), **BASE)
    assert isinstance(model, Dango)
    view = kg.strategies.create("node-mask", graph)(batch_of().only_wild_type())
    expected = []
    for r, relation in enumerate(graph.relations.values()):
        source, target = relation.edge_index
        adjacency = torch.zeros(NUM_GENES, NUM_GENES, dtype=torch.float64)
        adjacency[target, source] = 1
        adjacency = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
        h = model.embedding
        for neighbour, own in zip(model.neighbour, model.own, strict=True):
            h = torch.relu((adjacency @ h) @ neighbour.weight[r] + neighbour.bias[r] + h @ own.weight[r])
        expected.append(h)
    h = torch.stack(expected)
    assert_same(model.states(view), h, 1e-12)
    x = (model.attention(h).softmax(0) * h).sum(0)
    prediction = model(view, batch_of())
    assert_same(prediction.values, model.score(x, batch_of()), 1e-12)
    errors = [m(state) for m, state in zip(model.reconstruction, h, strict=True)]
    assert_same(prediction.auxiliary["reconstruction"], sum(errors) / len(errors), 1e-12)


@pytest.mark.parametrize("options", [{}, {"relations": ["physical"]}, {"outputs": 3}, {"most_deletions": 7}])
@pytest.mark.parametrize("genotypes", [None, [[4, 2]], [[], []], []])
def test_every_parameter_gets_a_gradient(options: dict[str, Any], genotypes: list[list[int]] | None) -> None:
    graph = cell()
    model = build("dango", graph, torch.float32, **{**BASE, **options})
    batch = batch_of(genotypes)
    prediction, gradient = run(model, kg.strategies.create("node-mask", graph), batch)
    assert prediction.values.shape == (batch.num_samples, options.get("outputs", 1))
    assert prediction.embedding is None
    assert prediction.auxiliary["reconstruction"].shape == ()
    assert all(bool(g.isfinite().all()) for g in gradient.values())


@pytest.mark.parametrize("name", ["device-vectorized", "device-filter", "lazy-mask", "subgraph", "neighborhood"])
def test_every_strategy_gives_the_same(name: str) -> None:
    graph = cell()
    model = build("dango", graph, **BASE)
    expected, expected_gradients = run(model, kg.strategies.create("node-mask", graph), batch_of())
    actual, actual_gradients = run(model, kg.strategies.create(name, graph), batch_of())
    assert_same(actual.values, expected.values, 1e-8)
    assert_same_gradients(actual_gradients, expected_gradients)


def test_default_relations_and_weights() -> None:
    graph = cell()
    model = models.create("dango", graph, **BASE)
    assert isinstance(model, Dango)
    assert not model.perturbs
    assert model.relations == ("string_coexpression", "string_fusion")
    assert [m.zero_weight for m in model.reconstruction] == [0.1, 1.0]
    chosen = models.create("dango", graph, relations=["physical"], zero_weight={"physical": 0.3}, **BASE)
    assert isinstance(chosen, Dango)
    assert [m.zero_weight for m in chosen.reconstruction] == [0.3]
    without = kg.CellGraph(graph.genes, {"physical": graph.relations["physical"]})
    other = models.create("dango", without, **BASE)
    assert isinstance(other, Dango)
    assert other.relations == ("physical",)


def test_nothing_of_the_graph_is_in_a_checkpoint() -> None:
    model = models.create("dango", cell(), **BASE)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


def test_batch_mates_and_the_order_of_deletions_do_not_matter() -> None:
    graph = cell()
    model, strategy = build("dango", graph, **BASE), kg.strategies.create("node-mask", graph)
    y = predict(model, strategy, batch_of([[1, 5, 7], [], [3]])).values
    assert_same(predict(model, strategy, batch_of([[7, 1, 5]])).values[0], y[0], 1e-12)
    assert y[1].tolist() == [0.0]


def test_bf16_autocast() -> None:
    graph = cell()
    model, strategy = build("dango", graph, torch.float32, **BASE), kg.strategies.create("node-mask", graph)
    expected = predict(model, strategy, batch_of())
    with torch.autocast("cpu", torch.bfloat16):
        actual = predict(model, strategy, batch_of())
    assert actual.values.dtype == torch.float32
    assert_same(actual.values, expected.values, 0.05)
    assert_same(actual.auxiliary["reconstruction"], expected.auxiliary["reconstruction"], 0.05)
    (actual.values.sum() + actual.auxiliary["reconstruction"]).backward()
    assert all(bool(g.isfinite().all()) for g in gradients(model).values())


def test_wrong_use() -> None:
    graph = cell()
    batch = batch_of()
    model = models.create("dango", graph, **BASE)
    with pytest.raises(kg.ModelError, match=r"pass strategy\(batch.only_wild_type\(\)\)"):
        model(kg.strategies.create("node-mask", graph)(batch.with_wild_type()), batch)
    with pytest.raises(kg.ModelError, match="zero_weight names 'physical', which is not among string_coexpression"):
        models.create("dango", graph, zero_weight={"physical": 0.5}, **BASE)
    with pytest.raises(kg.ModelError, match="no relation 'x'"):
        models.create("dango", graph, relations=["x"], **BASE)
