"""The tiny cell that the models are tested on, and batches of genotypes on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import knockgraph as kg
from knockgraph import models
from knockgraph.models import CellModel, Prediction
from knockgraph.strategies import Strategy

torch.set_num_threads(1)  # the tensors are tiny and the cores are shared

NUM_GENES = 14
GENOTYPES = [[3], [7, 1, 5], [], [11, 9, 0, 1, 2, 3, 4], [2, 13]]


def cell(seed: int = 0, order: Tensor | None = None) -> kg.CellGraph:
    """Two undirected and one directed relation, two features, a metabolism; ``order`` renumbers: new gene → old."""
    n = NUM_GENES
    generator = torch.Generator().manual_seed(seed)
    relations: dict[str, Tensor] = {}
    for name, density in (("physical", 0.12), ("string_coexpression", 0.2), ("string_fusion", 0.05)):
        present = torch.rand(n, n, generator=generator) < density
        relations[name] = (present | present.T if name != "physical" else present).nonzero().T
    features = {"length": torch.randn(n, 2, generator=generator), "domain": torch.randn(n, 3, generator=generator)}
    names = [f"g{i}" for i in range(n)]
    index = {name: i for i, name in enumerate(names)}
    if order is not None:
        place = order.argsort()
        relations = {name: place[edges] for name, edges in relations.items()}
        features = {name: x[order] for name, x in features.items()}
        names = [names[i] for i in order.tolist()]
        index = {name: i for i, name in enumerate(names)}
    metabolism = kg.Metabolism.from_reactions(
        [
            kg.Reaction("uptake", {"a": 1}),
            kg.Reaction("complex", {"a": -1, "b": 2}, gene_rule="g0 and g1"),
            kg.Reaction("isozymes", {"b": -1, "c": 1}, lower_bound=-1000, gene_rule="g2 or (g3 and g4)"),
            kg.Reaction("growth", {"c": -1, "a": -0.5}, growth=True),
        ],
        index,
    )
    return kg.CellGraph(names, relations, metabolism, features)


def batch_of(genotypes: list[list[int]] | None = None) -> kg.PerturbationBatch:
    return kg.PerturbationBatch.from_lists(GENOTYPES if genotypes is None else genotypes, NUM_GENES)


def nested(options: dict[str, Any]) -> dict[str, Any]:
    """Options with dotted names, ``messages.layers``, in their groups."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        group, _, option = key.partition(".")
        if option:
            found.setdefault(group, {})[option] = value
        else:
            found[key] = value
    return found


def build(
    name: str, graph: kg.CellGraph, dtype: torch.dtype = torch.float64, seed: int = 0, **options: Any
) -> CellModel:
    """A model whose parameters are all random: those that start at 0 (ReZero, ε, biases) would hide mistakes."""
    torch.manual_seed(seed)
    model = models.create(name, graph, **nested(options)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def view_for(model: CellModel, strategy: Strategy, batch: kg.PerturbationBatch) -> kg.PerturbedGraphs:
    return strategy(batch.with_wild_type() if model.perturbs else batch.only_wild_type())


def predict(model: CellModel, strategy: Strategy, batch: kg.PerturbationBatch) -> Prediction:
    prediction: Prediction = model(view_for(model, strategy, batch), batch)
    return prediction


def objective(prediction: Prediction) -> Tensor:
    """A scalar that everything a model predicts takes part in."""
    weight = torch.arange(1, prediction.values.numel() + 1, dtype=prediction.values.dtype)
    total = (weight.view_as(prediction.values) * prediction.values).sin().sum()
    return total + sum(prediction.auxiliary.values(), torch.zeros_like(total))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing, f"no gradient for {missing}"
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def run(model: CellModel, strategy: Strategy, batch: kg.PerturbationBatch) -> tuple[Prediction, dict[str, Tensor]]:
    """Prediction and gradients."""
    model.zero_grad(set_to_none=True)
    prediction = predict(model, strategy, batch)
    objective(prediction).backward()
    return prediction, gradients(model)


def assert_same(actual: Tensor, expected: Tensor, tolerance: float = 1e-8, what: str = "", scale: float = 0.0) -> None:
    assert actual.shape == expected.shape, what
    error = float((actual.detach() - expected.detach()).norm())
    size = max(float(expected.detach().norm()), scale)
    assert error <= tolerance * size or error == 0, f"{what}: relative error {error / max(size, 1e-300):.1e}"


def assert_same_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-8) -> None:
    assert actual.keys() == expected.keys()
    # Some gradients are 0 up to rounding (a bias inside a softmax), so the size is that of all of them together.
    scale = float(torch.cat([g.flatten() for g in expected.values()]).norm())
    for name, gradient in expected.items():
        assert_same(actual[name], gradient, tolerance, name, scale)
