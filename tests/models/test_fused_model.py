"""The hetero model on fused kernels against the same model on plain formulas."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from model_cases import batch_of, cell, nested

import knockgraph as kg
from knockgraph import models

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
OPTIONS: dict[str, Any] = {"channels": 16, "messages.layers": 2, "messages.mlp_layers": 2, "heads": 2}


def model_on(kernels: str, **options: Any) -> models.CellModel:
    torch.manual_seed(0)
    model = models.create("hetero", cell(), kernels=kernels, **nested({**OPTIONS, **options}))
    with torch.no_grad():
        for parameter in model.parameters():  # those that start at 0 would hide mistakes
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(DEVICE)


FULL = pytest.mark.full  # of these, tests/ops compares the kernel alone in the fast tier


@needs_triton
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="pairwise"),
        pytest.param({"messages.aggregation": "attention"}, id="attention", marks=FULL),
        pytest.param({"messages.aggregation": "sum", "messages.norm": False}, id="sum"),
        pytest.param({"messages.aggregation": "sum", "channels": 32}, id="pooling"),
        pytest.param({"messages.conv": "sage", "messages.aggregation": "mean"}, id="sage"),
        pytest.param({"messages.conv": "gcn", "messages.aggregation": "mean"}, id="gcn"),
        pytest.param({"messages.conv": "gatv2", "messages.aggregation": "sum"}, id="GATv2", marks=FULL),
    ],
)
def test_values_and_gradients(options: dict[str, Any]) -> None:
    """Both layers, the first of them only where rows differ, with how many that are known to the kernels alone."""
    batch = batch_of([[3], [7, 1], []]).to(DEVICE)
    results = []
    for kernels, backend in (("torch", "auto"), ("triton", "triton")):
        model = model_on(kernels, **options)
        strategy = kg.strategies.create("node-mask", cell(), backend=backend).to(DEVICE)
        view = strategy(batch.with_wild_type())
        layer = model.get_submodule("layers.0")
        assert layer.conv.fuses(torch.zeros(1, 16, device=DEVICE), layer.activation) == (kernels == "triton")  # type: ignore[union-attr, operator]
        prediction = model(view, batch)
        prediction.values.asinh().sum().backward()  # also well-conditioned where values are large
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        results.append([prediction.values.detach(), *gradients])
    largest = max(float(plain.abs().max()) for plain in results[0])
    for plain, fused in zip(*results, strict=True):
        # Some gradients are 0 but for rounding: what is added to all logits of a softmax changes nothing.
        assert torch.allclose(plain, fused, rtol=1e-3, atol=1e-4 * float(plain.abs().max()) + 1e-5 * largest)


@pytest.mark.gpu
def test_training_curves_coincide() -> None:
    batches = [batch_of([[k % 14, (k + i + 1) % 14] for k in range(6)]).to(DEVICE) for i in range(4)]
    target = torch.linspace(-1, 1, 6, device=DEVICE).unsqueeze(1)
    curves = []
    for kernels in ("torch", "triton"):
        model = model_on(kernels)
        strategy = kg.strategies.create("node-mask", cell()).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        losses = []
        for step in range(40):
            batch = batches[step % 4]
            loss = (model(strategy(batch.with_wild_type()), batch).values - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        curves.append(torch.stack(losses))
    assert torch.allclose(curves[0], curves[1], rtol=1e-3)
    assert curves[0][-4:].mean() < curves[0][:4].mean()
