"""A model's recorded message passing against the model itself; needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from model_cases import NUM_GENES, cell, nested

import knockgraph as kg
from knockgraph import models
from knockgraph.models.graphed import GraphedModel, can_be_graphed
from knockgraph.train.exchange import GradientExchange

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "hetero": ("hetero", {"channels": 16, "messages.layers": 2, "heads": 2, "metabolism.enabled": True}),
    "sage": (
        "hetero",
        {"channels": 16, "messages.layers": 2, "heads": 2, "messages.conv": "sage", "messages.aggregation": "sum"},
    ),
    "dango": ("dango", {"channels": 16, "heads": 2}),
}
BATCHES = [[[3], [7, 1, 5], [], [2, 13]], [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]], [[0]], [[], [5]], [[], []]]


def test_only_on_a_gpu() -> None:
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    assert not can_be_graphed(models.create("hetero", graph, channels=16), strategy, torch.device("cpu"))
    assert can_be_graphed(models.create("hetero", graph, channels=16), strategy, torch.device("cuda"))
    assert not can_be_graphed(models.create("additive", graph), strategy, torch.device("cuda"))
    masks = kg.strategies.create("device-vectorized", graph)
    assert not can_be_graphed(models.create("hetero", graph, channels=16), masks, torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients(name: str) -> None:
    graph = cell()
    kind, options = MODELS[name]
    torch.manual_seed(0)
    model = models.create(kind, graph, **nested(options)).cuda()
    strategy = kg.strategies.create("node-mask", graph).cuda()
    graphed = GraphedModel(model, strategy, 4, 12)
    for genotypes in BATCHES:
        batch = kg.PerturbationBatch.from_lists(genotypes, NUM_GENES).to("cuda")
        assert graphed.takes(batch) == any(genotypes)
        if not any(genotypes):
            continue
        results = []
        for recorded in (False, True):
            model.zero_grad(set_to_none=True)
            columns = batch.with_wild_type() if model.perturbs else batch.only_wild_type()
            prediction = graphed(batch) if recorded else model(strategy(columns), batch)
            total = (prediction.values.sin() * torch.arange(1.0, 1 + len(genotypes), device="cuda")[:, None]).sum()
            total = total + sum(prediction.auxiliary.values(), torch.zeros_like(total))
            total.backward()
            results.append([prediction.values.detach(), *(p.grad.clone() for p in model.parameters())])
        for eager, replayed in zip(*results, strict=True):
            assert torch.allclose(eager, replayed, rtol=1e-4, atol=1e-6 + 1e-5 * float(eager.abs().max()))


@pytest.mark.gpu
def test_recording_uses_no_random_numbers() -> None:
    """A run that goes on records in another step than one that was never interrupted, and draws the same masks."""
    graph = cell()
    options = {"channels": 16, "messages.layers": 2, "heads": 2, "messages.dropout": 0.5}
    model = models.create("hetero", graph, **nested(options)).cuda()
    strategy = kg.strategies.create("node-mask", graph).cuda()
    batch = kg.PerturbationBatch.from_lists(BATCHES[1], NUM_GENES).to("cuda")
    torch.manual_seed(0)
    once = GraphedModel(model, strategy, 4, 12)
    expected = [once(batch).values.detach().clone() for _ in range(2)]
    torch.manual_seed(0)
    assert torch.equal(once(batch).values, expected[0])
    again = GraphedModel(model, strategy, 4, 12)
    assert torch.equal(again(batch).values, expected[1])
    assert not torch.equal(expected[0], expected[1])


def trained(name: str, exchanged: bool, accumulate: int) -> list[torch.Tensor]:
    """The weights after six replayed steps, recorded while a process group of one is in use, or without one."""
    graph = cell()
    kind, options = MODELS[name]
    torch.manual_seed(0)
    model = models.create(kind, graph, **nested(options)).cuda()
    strategy = kg.strategies.create("node-mask", graph).cuda()
    exchange = GradientExchange(model.parameters()) if exchanged else None
    if exchanged:  # NCCL's own thread looks for the end of this while the graphs are recorded
        dist.all_reduce(torch.zeros(1 << 20, device="cuda"))
    graphed = GraphedModel(model, strategy, 4, 12)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9, fused=True)
    for step in range(6):
        for number in range(accumulate):
            batch = kg.PerturbationBatch.from_lists(BATCHES[(step + number) % 2], NUM_GENES).to("cuda")
            prediction = graphed(batch)
            total = sum(prediction.auxiliary.values(), prediction.values.square().mean())
            total.backward()
        if exchange is not None:
            exchange()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.gpu
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_replayed_in_a_process_group(name: str, accumulate: int) -> None:
    """With NCCL and one process a step replayed and exchanged is the step replayed.

    Not bit for bit: torch's own gradients of gathered rows are summed in any order.
    """
    alone = trained(name, False, accumulate)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        exchanged = trained(name, True, accumulate)
    finally:
        dist.destroy_process_group()
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(alone, exchanged, strict=True))
    other = trained(name, False, accumulate + 1)
    assert not all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(alone, other, strict=True))
