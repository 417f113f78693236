"""Prediction encodes the wild type once, and in bf16 rounds only what a perturbation changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import knockgraph as kg
from knockgraph.train.config import compose
from knockgraph.train.predictor import PRECISIONS, Predictor

GRAPH = kg.demo_cell()
LABELS = kg.LabelTransform.fit(torch.tensor([[0.0], [1.0]]))
GENOTYPES = [[3, 17], [5], [], [40, 41, 42], [3, 99]]


def _predictor(*overrides: str) -> Predictor:
    torch.manual_seed(0)
    return Predictor(compose(["data=demo", *overrides]), GRAPH, LABELS).eval()


def _predict(predictor: Predictor, genotypes: list[list[int]] = GENOTYPES) -> Tensor:
    with torch.no_grad():
        return predictor(kg.PerturbationBatch.from_lists(genotypes, GRAPH.num_genes)).values


def _counted(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    columns: list[int] = []
    encode = predictor.model.encode
    monkeypatch.setattr(
        predictor.model, "encode", lambda view: (columns.append(view.batch.num_columns), encode(view))[1]
    )
    return columns


def test_a_model_of_the_wild_type_encodes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = _predictor("model=dango", "model.options.channels=8")
    expected = torch.cat([_predict(predictor.train().eval(), [genotype]) for genotype in GENOTYPES])
    predictor.train().eval()
    columns = _counted(predictor, monkeypatch)
    assert torch.allclose(torch.cat([_predict(predictor, [genotype]) for genotype in GENOTYPES]), expected)
    assert columns == [1]
    with torch.no_grad():
        predictor.model.embedding.add_(1.0)
    changed = _predict(predictor.train().eval())
    assert columns == [1, 1]
    assert not torch.allclose(changed, expected)
    predictor.double()
    assert _predict(predictor).dtype == torch.float64


def test_weights_that_are_loaded_later_count() -> None:
    first, second = (_predictor("model=dango", "model.options.channels=8") for _ in range(2))
    with torch.no_grad():
        second.model.embedding.add_(1.0)
    before = _predict(first)
    first.model.load_state_dict(second.model.state_dict())
    assert torch.equal(_predict(first), _predict(second))
    assert not torch.equal(_predict(first), before)


def test_a_gradient_is_of_the_weights_as_they_are() -> None:
    predictor = _predictor("model=dango", "model.options.channels=8")
    _predict(predictor)
    for _ in range(2):
        predictor(kg.PerturbationBatch.from_lists(GENOTYPES, GRAPH.num_genes)).values.sum().backward()
    assert predictor.model.embedding.grad is not None


def test_bf16_rounds_only_what_a_perturbation_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = _predictor("model=hetero-small")
    torch.nn.init.normal_(predictor.model.global_predictor[-1].weight, std=1e-3)
    exact = _predict(predictor.double())
    predictor.float()
    columns = _counted(predictor, monkeypatch)
    predictor.precision = "bf16"
    mixed = torch.cat([_predict(predictor, GENOTYPES[:3]), _predict(predictor, GENOTYPES[3:])]).double()
    assert sorted(columns) == [1, 3, 4]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        batch = kg.PerturbationBatch.from_lists(GENOTYPES, GRAPH.num_genes)
        with predictor.strategy(batch.with_wild_type()) as view:
            rounded = predictor.model(view, batch).values.double()
    error, plain = (mixed - exact).norm() / exact.std(), (rounded - exact).norm() / exact.std()
    assert 0 < error < plain / 3


def test_nothing_is_rounded_where_the_perturbed_graphs_do_not_count() -> None:
    predictor = _predictor("model=hetero-small")  # its global predictor starts at 0
    full = _predict(predictor)
    predictor.precision = "bf16"
    assert torch.equal(_predict(predictor), full)


def test_in_which_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself bf16 only where it pays and was trained in."""
    mixed, full = (_predictor("model=hetero-small", f"trainer.precision={p}") for p in ("bf16-mixed", "32-true"))
    for place, expected in (("cpu", False), ("cuda", True)):
        for predictor in (mixed, full):
            monkeypatch.setattr(type(predictor.strategy), "device", torch.device(place))
            found = {}
            for precision in PRECISIONS:
                predictor.precision = precision
                found[precision] = predictor.in_bf16
            assert found == {"auto": expected and predictor is mixed, "full": False, "bf16": True}
