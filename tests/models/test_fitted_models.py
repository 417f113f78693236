"""Baselines as models: saved and restored they predict the same, and they see the same genotypes in any form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from numpy.random import default_rng
from torch import Tensor

from knockgraph import BoundScreen, CellGraph, Fitted, PerturbationBatch, Screen, demo_cell, demo_screen, models
from knockgraph.errors import ConfigError, KnockgraphError, ModelError
from knockgraph.evaluate import evaluate, predict_rows
from knockgraph.models import baselines
from knockgraph.models.baselines.baseline import Baseline, GenotypeRows
from knockgraph.models.fitted import FittedModel, logistic
from knockgraph.predict import predict
from knockgraph.run import train
from knockgraph.train import checkpoints
from knockgraph.train.config import compose
from knockgraph.train.data import TrainingData
from knockgraph.train.run import load_task

LEAST = {"boosting": {"trees": 5}, "low-rank": {"max_sweeps": 2, "rank": 4}}


@pytest.fixture(scope="module")
def bound() -> BoundScreen:
    """Pairs and triples of genes of the demo cell; some of the cell's genes are never deleted."""
    random = default_rng(0)
    genes = random.permutation(360)[:24]
    sets = [sorted(random.choice(genes, size, replace=False).tolist()) for size in random.choice([1, 2, 2, 3], 400)]
    graph = demo_cell()
    names = [[graph.genes[g] for g in row] for row in sets]
    values = random.normal(size=len(names))
    return Screen(names, {"score": values}).bind(graph, "score")


@pytest.mark.parametrize("name", baselines.available())
def test_a_restored_model_predicts_the_same(name: str, bound: BoundScreen, tmp_path: Path) -> None:
    graph, rows = demo_cell(), np.arange(len(bound))
    model = models.create(name, graph, **LEAST.get(name, {})) if models.is_fitted(name) else None
    model = model or FittedModel(baselines.create(name), name)  # 'additive' is also a model that is trained
    assert isinstance(model, FittedModel)
    values = torch.as_tensor(bound.values[rows[:300]])
    model.prepare(bound, rows[:300], values, (rows[300:], bound.values[300:]), classes=False)
    # The last two have genes that no row deletes.
    batch = PerturbationBatch.from_lists([*_lists(bound, rows[300:]), [3, 1], [0, 5, 7]], graph.num_genes)
    expected = model.decode((), batch).values
    checkpoints.save(tmp_path / "a.ckpt", {"weights": dict(model.state_dict())})
    again = models.create(name, graph, **LEAST.get(name, {})) if models.is_fitted(name) else None
    again = again or FittedModel(baselines.create(name), name)
    again.load_state_dict(checkpoints.load(tmp_path / "a.ckpt")["weights"])
    torch.testing.assert_close(again.decode((), batch).values, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(expected[:100], model.baseline.predict(bound, rows[300:]), rtol=0, atol=1e-6)


def _lists(bound: BoundScreen, rows: np.ndarray) -> list[list[int]]:
    batch = bound.batch(rows)
    parts = torch.split(batch.perturbation_indices, batch.perturbation_indices_ptr.diff().tolist())
    return [part.flip(0).tolist() for part in parts]  # any order of the genes


def test_a_batch_has_the_rows_of_its_samples() -> None:
    batch = PerturbationBatch.from_lists([[5, 2], [], [7, 1]], 8, values=[[0.0, 0.0], [], [1.0, 0.4]])
    rows = GenotypeRows.of_batch(batch)
    assert rows.genes.tolist() == [2, 5, 1]
    assert rows.ptr.tolist() == [0, 2, 2, 3]
    assert rows.effect is not None
    assert rows.effect.tolist() == pytest.approx([1.0, 1.0, 0.6])
    assert GenotypeRows.of_batch(PerturbationBatch.from_lists([[5, 2]], 8)).effect is None


def test_a_baseline_that_cannot_be_saved_is_no_model() -> None:
    class Unsaved(Baseline):
        kept: ClassVar[None] = None

        def _fit(self, genotypes: GenotypeRows, y: np.ndarray) -> None: ...

        def _predict(self, genotypes: GenotypeRows) -> np.ndarray:
            return np.zeros(len(genotypes))

    with pytest.raises(ModelError, match="does not say in 'kept' which attributes a fit sets"):
        FittedModel(Unsaved(), "unsaved")
    with pytest.raises(ModelError, match="the saved weights are not those of a mean model"):
        FittedModel(baselines.create("mean"), "mean").set_extra_state({"genes": "x", "phenotypes": [{}]})


def test_probabilities_are_calibrated() -> None:
    random = default_rng(1)
    score = torch.from_numpy(random.normal(3.0, 0.1, 20_000))
    truth = torch.from_numpy((random.random(20_000) < 1 / (1 + np.exp(-(20 * (score.numpy() - 3.1))))).astype(float))
    slope, offset = logistic(score, truth)
    assert slope == pytest.approx(20, rel=0.05)
    assert offset == pytest.approx(-62, rel=0.05)
    separated = logistic(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1.0]))
    assert 0 < separated[0] < 100
    against = logistic(torch.tensor([1.0, 0.0] * 50), torch.tensor([0.0, 1.0] * 50))
    assert against == (0.0, pytest.approx(0.0, abs=1e-6))  # the order is never turned around


def test_a_fitted_model_is_a_run_like_any_other(tmp_path: Path) -> None:
    words = ["model=pair-gp", "data.experiments=600", f"run_dir={tmp_path}/run", "trainer.baselines=[mean,pair-gp]"]
    said: list[str] = []
    directory = train(compose(words), said.append)
    result = json.loads((directory / "result.json").read_text())
    assert set(result["metrics"]) == {"pair-gp", "mean"}  # not a second time as a baseline
    assert result["chosen"]["noise"] > 0
    assert "Settings, chosen by the validation part" in (directory / "report.html").read_text()
    assert len(pq.read_table(directory / "predictions.parquet")) == result["experiments"]
    assert load_task(directory)[0].model.name == "pair-gp"
    genes = "+".join(max(demo_screen(600).genotypes, key=len))
    lines: list[str] = []
    predict(directory, None, genes=[genes], say=lines.append)
    assert any(line.startswith(genes) for line in lines)
    with pytest.raises(KnockgraphError, match="already holds a run"):
        train(compose(words), said.append)
    before = (directory / "checkpoints" / "last.ckpt").stat().st_mtime_ns
    train(compose([*words, "resume=true"]), said.append)
    assert (directory / "checkpoints" / "last.ckpt").stat().st_mtime_ns == before  # only finished again
    with pytest.raises(ConfigError, match="pair-gp is fitted by one process"):
        train(compose([*words[:2], f"run_dir={tmp_path}/two", "trainer.devices=2"]), said.append)


# What a second fit of the propagation keeps is also in test_pair_kernels.py, on fewer genes.
@pytest.mark.parametrize("name", ["boosting", "pair-gp", pytest.param("profile-propagation", marks=pytest.mark.full)])
@pytest.mark.usefixtures("no_page")
def test_a_model_is_fitted_again_on_both_parts(name: str, tmp_path: Path) -> None:
    """The validation part chooses first; its scores and the intervals are those of the first fit."""
    words = [f"model={name}", "data.experiments=700", "data.split.kind=unseen-genes", "trainer.baselines=[additive]"]
    said: list[str] = []
    once, again = (
        train(compose([*words, f"run_dir={tmp_path}/{refit}", f"trainer.refit={refit}"]), said.append)
        for refit in ("false", "true")
    )
    assert sum("fitting again" in line for line in said) == 1
    first, second = (load_task(run)[1] for run in (once, again))
    data = TrainingData.from_directory(second.config, again)
    val, test = ([predict_rows(task, data, part) for task in (first, second)] for part in ("val", "test"))
    torch.testing.assert_close(val[0], val[1])
    assert not torch.allclose(test[0], test[1], rtol=1e-3)
    intervals = [json.loads((run / "intervals.json").read_text()) for run in (once, again)]
    for level, widths in intervals[0]["half_widths"].items():
        assert widths == pytest.approx(intervals[1]["half_widths"][level], rel=1e-4)
    assert second.model.baseline.chosen().keys() == first.model.baseline.chosen().keys()
    both = np.concatenate([data.rows["train"], data.rows["val"]])
    first.model.baseline.fit(data.bound, data.rows["train"], data.targets("train"), _part(data, "val"))
    first.model.baseline.fit_again(data.bound, both, torch.cat([data.targets("train"), data.targets("val")]))
    torch.testing.assert_close(predict_rows(first, data, "test"), test[1])
    new = data.deleted("val") & ~data.deleted("train")
    assert bool(new.any())
    assert bool(second.trained_genes[new].all())
    assert not bool(first.trained_genes[new].any())
    results = [json.loads((run / "result.json").read_text())["metrics"]["additive"] for run in (once, again)]
    assert results[0]["pearson"] != results[1]["pearson"]  # the baseline has seen the same experiments
    said.clear()
    evaluate(again, "val", "last", said.append)
    assert any("the model was fitted again afterwards" in line for line in said)


def _part(data: TrainingData, part: str) -> tuple[np.ndarray, torch.Tensor]:
    return data.rows[part], data.targets(part)


def test_among_seen_genes_propagation_is_the_process(bound: BoundScreen) -> None:
    """One model serves both regimes: genes that were seen, and genes that were not."""
    rows, graph = np.arange(len(bound)), demo_cell()
    parts = (rows[:300], bound.values[:300], (rows[300:], bound.values[300:]))
    both = [baselines.create(name, graph).fit(bound, *parts) for name in ("pair-gp", "profile-propagation")]
    torch.testing.assert_close(both[0].predict(bound, rows), both[1].predict(bound, rows), rtol=0, atol=1e-6)
    new = PerturbationBatch.from_lists([[3, 1], [0, 5]], graph.num_genes)
    unseen = [one.predict_rows(GenotypeRows.of_batch(new)) for one in both]
    assert not torch.equal(*unseen)


KERNELS = ("soft-impute", "pair-gp", "profile-propagation")


def _kernel_model(name: str, bound: BoundScreen, phenotypes: int = 1) -> FittedModel:
    model = FittedModel(baselines.create(name, demo_cell(), device="cpu"), name, phenotypes)
    rows, values = np.arange(len(bound)), bound.values.repeat(1, phenotypes)
    model.prepare(bound, rows[:300], values[:300], (rows[300:], values[300:]), classes=False)
    return model


def _devices(value: Any) -> set[str]:
    """Where the tensors are that an object has, however deep."""
    if isinstance(value, Tensor):
        return {value.device.type}
    if isinstance(value, dict | list | tuple):
        inside = list(value.values() if isinstance(value, dict) else value)
    elif isinstance(value, CellGraph) or not type(value).__module__.startswith(("knockgraph", "torch.nn")):
        return set()
    else:
        inside = list(vars(value).values())
    return set().union(*map(_devices, inside))


@pytest.mark.parametrize("name", KERNELS[1:])
@pytest.mark.parametrize("phenotypes", [1, 2])
@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_a_kernel_model_follows_the_device(name: str, phenotypes: int, bound: BoundScreen) -> None:
    """``predict --device`` did not move it."""
    model = _kernel_model(name, bound, phenotypes)
    batch = PerturbationBatch.from_lists([[3, 1], [0, 5, 7]], bound.num_genes)
    model.decode((), batch)  # what it remembers of unseen genes moves, too
    assert _devices(model) == {"cpu"}
    model.double()
    assert model.baseline.device.type == "cpu"
    torch.nn.Sequential(model).to("meta")
    assert model.baseline.device.type == "meta"
    assert _devices(model) == {"meta"}


@pytest.mark.parametrize("name", KERNELS)
def test_a_moved_model_predicts_the_same(name: str, bound: BoundScreen) -> None:
    model = _kernel_model(name, bound)
    batch = PerturbationBatch.from_lists([*_lists(bound, np.arange(50)), [3, 1], [0, 5, 7]], bound.num_genes)
    expected = model.decode((), batch).values
    model.baseline.to(torch.device("cpu:0"))  # for torch another device than cpu
    assert model.baseline.device == torch.device("cpu:0")
    torch.testing.assert_close(model.decode((), batch).values, expected, rtol=0, atol=1e-6)
    unfitted = baselines.create(name, demo_cell(), device="cpu")
    rows = np.arange(300)
    again = unfitted.to(torch.device("cpu:0")).fit(bound, rows, bound.values[:300])
    assert again.predict(bound, rows).isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", KERNELS)
def test_a_model_moved_to_a_gpu_and_back(name: str, bound: BoundScreen) -> None:
    model = _kernel_model(name, bound)
    batch = PerturbationBatch.from_lists([*_lists(bound, np.arange(50)), [3, 1], [0, 5, 7]], bound.num_genes)
    expected = model.decode((), batch).values
    for device in ("cuda", "cpu"):
        found = model.to(device).decode((), batch.to(device)).values
        assert (found.device.type, model.baseline.device.type) == (device, device)
        assert name == "soft-impute" or _devices(model) == {device}
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_predicts_on_the_device_that_is_asked_for(device: str, tmp_path: Path) -> None:
    words = ["model=pair-gp", "data.experiments=600", f"run_dir={tmp_path}/run", "trainer.baselines=[mean]"]
    directory = train(compose(words), lambda _: None)
    fitted = Fitted(directory, device)
    assert isinstance(fitted.model, FittedModel)
    assert fitted.model.baseline.device.type == device
    assert _devices(fitted.model.baseline) == {device}
    fitted.predict([[]])
