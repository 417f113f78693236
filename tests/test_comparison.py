"""Who won, whether that is beyond chance, and where: against what is counted by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import config

from knockgraph.comparison import ENOUGH, Errors, best_baseline, beyond_chance, confidence, verdict
from knockgraph.run import train
from knockgraph.train.data import TrainingData

METRICS = {
    "hetero": {"pearson": 0.5, "rmse_original": 0.2},
    "mean": {"pearson": None, "rmse_original": 0.3},
    "ridge": {"pearson": 0.4, "rmse_original": 0.25},
}


def said(value: float, low: float, high: float, metrics: dict[str, Any] = METRICS) -> str:
    lead = {"ridge": {"value": value, "low": low, "high": high}}
    return verdict("hetero", {"part": "test", "metrics": metrics, "confidence": {"lead": lead}}, classes=False)


def test_beyond_and_within_chance() -> None:
    start = (
        "on the test part: Pearson 0.500 (the best baseline, ridge: 0.400), RMSE 0.200 (ridge: 0.250); the difference"
    )
    assert said(0.1, 0.02, 0.2) == (
        f"hetero wins {start} in Pearson, +0.100 (95 % interval +0.020 to +0.200), is beyond chance"
    )
    assert said(0.1, -0.02, 0.2) == (
        f"hetero is level with ridge {start} in Pearson, +0.100 (95 % interval −0.020 to +0.200), is within chance"
    )
    behind = {**METRICS, "hetero": {"pearson": 0.1, "rmse_original": 0.9}}
    assert said(-0.3, -0.4, -0.2, behind).startswith("hetero is behind on the test part: Pearson 0.100")
    assert said(-0.3, -0.4, -0.2, behind).endswith("−0.300 (95 % interval −0.400 to −0.200), is beyond chance")


def test_without_baselines_or_intervals() -> None:
    alone = {"part": "val", "metrics": {"hetero": METRICS["hetero"]}}
    assert verdict("hetero", alone, False) == "there is no baseline to compare hetero with on the val part"
    assert "chance" not in verdict("hetero", {"part": "test", "metrics": METRICS, "confidence": None}, False)
    assert beyond_chance(None) is None
    assert beyond_chance({"low": None, "high": 1.0}) is None
    assert best_baseline("hetero", METRICS, "pearson") == "ridge"
    assert best_baseline("hetero", {"hetero": {"pearson": 1.0}}, "pearson") is None


def test_confidence_is_paired_and_bounded() -> None:
    y = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
    found = confidence("a", y, {"a": y * 2 + 1, "b": y + 0.5 * y.flip(0)}, classes=False)
    assert found is not None
    assert found["lines"]["a"]["value"] == pytest.approx(1.0)
    assert found["lead"]["b"]["low"] > 0
    assert set(found["lead"]) == {"b"}
    assert found["samples"] == 500
    assert confidence("a", torch.zeros(3, 21), {"a": torch.zeros(3, 21)}, classes=False) is None
    classes = confidence("a", (y > 0).float(), {"a": y, "b": -y}, classes=True)
    assert classes is not None
    assert (classes["score"], classes["lines"]["a"]["value"], classes["lead"]["b"]["value"]) == ("auroc", 1.0, 1.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    run = tmp_path_factory.mktemp("compared") / "run"
    return TrainingData.from_config(
        config(f"run_dir={run}", "data.experiments=1500", "data.split.fractions=[0.5,0.1,0.4]")
    )


def test_errors_by_hand(data: TrainingData) -> None:
    rows, random = data.rows["test"], np.random.default_rng(0)
    measured = data.bound.values[rows].double().numpy()
    predicted = measured + random.normal(size=measured.shape) * 0.1
    baseline = measured + random.normal(size=measured.shape) * 0.2
    errors = Errors(data, rows, measured, predicted, baseline)
    genotypes = [data.screen.genotypes[int(e)] for e in data.bound.experiment[rows]]
    squared = ((measured - predicted) ** 2)[:, 0]
    other = ((measured - baseline) ** 2)[:, 0]

    width = np.linspace(0.5, 1.0, len(rows))[:, None]
    worst = errors.worst(width, 3)
    order = np.argsort(-squared)[:3]
    assert [one["genotype"] for one in worst] == [sorted(genotypes[k], key=data.graph.genes.names.index) for k in order]
    assert worst[0]["measured"] == measured[order[0], 0]
    assert worst[0]["upper"] - worst[0]["lower"] == pytest.approx(2 * width[order[0], 0])
    assert worst[0]["baseline"] == baseline[order[0], 0]

    sizes = {g["group"]: g for g in errors.groups() if g["kind"] == "perturbed genes"}
    for size, group in sizes.items():
        chosen = np.array([len(g) == int(size) for g in genotypes])
        assert group["labels"] == chosen.sum()
        assert group["rmse"] == pytest.approx(np.sqrt(squared[chosen].mean()))
        assert group["baseline_rmse"] == pytest.approx(np.sqrt(other[chosen].mean()))
        assert group["ahead"] == "model"
    trained = [g for e in data.bound.experiment[data.rows["train"]] for g in data.screen.genotypes[int(e)]]
    least = np.array([min((trained.count(g) for g in genotype), default=-1) for genotype in genotypes])
    known = {g["group"]: g["labels"] for g in errors.groups() if g["kind"].startswith("training")}
    assert known["1 to 9"] == ((least >= 1) & (least <= 9)).sum()
    # Experiments of the validation part do not count; with them, the group would be smaller.
    others = [g for e in data.bound.experiment[data.rows["val"]] for g in data.screen.genotypes[int(e)]]
    more = np.array([min(((trained + others).count(g) for g in genotype), default=-1) for genotype in genotypes])
    assert known["1 to 9"] != ((more >= 1) & (more <= 9)).sum()
    tenths = [g["labels"] for g in errors.groups() if g["kind"] == "measured"]
    assert sum(tenths) == len(rows)

    found = errors.by_gene()
    for row in found["rows"]:
        chosen = np.array([row["gene"] in g for g in genotypes])
        assert row["labels"] == chosen.sum() >= ENOUGH
        assert row["rmse"] == pytest.approx(np.sqrt(squared[chosen].mean()))
        r = np.corrcoef(measured[chosen, 0], predicted[chosen, 0])[0, 1]
        assert row["pearson"] == pytest.approx(r, abs=1e-9)
    counts = [sum(name in g for g in genotypes) for name in data.graph.genes.names]
    assert found["genes"] == len(found["rows"]) == sum(n >= ENOUGH for n in counts) > 0
    assert found["ahead"] > found["behind"] == 0
    gains = [row["rmse"] - row["baseline_rmse"] for row in found["rows"]]
    assert gains == sorted(gains)


def test_the_same_predictions_are_level(data: TrainingData) -> None:
    rows = data.rows["test"]
    measured = data.bound.values[rows].double().numpy()
    predicted = measured + np.random.default_rng(0).normal(size=measured.shape)
    level = Errors(data, rows, measured, predicted, predicted.copy())
    assert {group["ahead"] for group in level.groups()} == {"level"}
    alone = Errors(data, rows, measured, predicted, None)
    assert {group["ahead"] for group in alone.groups()} == {None}
    assert alone.by_gene()["ahead"] is None
    assert alone.worst(None)[0]["lower"] is None


def test_noise_of_two_equals_is_rarely_beyond_chance(data: TrainingData) -> None:
    """A mark at 95 % is wrong for about one group in twenty."""
    rows, random = data.rows["test"], np.random.default_rng(1)
    measured = data.bound.values[rows].double().numpy()
    marks = [
        group["ahead"] != "level"
        for _ in range(40)
        for group in Errors(
            data, rows, measured, *(measured + random.normal(size=measured.shape) for _ in range(2))
        ).groups()
        if group["labels"] > 30
    ]
    assert 0.01 < np.mean(marks) < 0.1


def test_a_run_keeps_it(tmp_path: Path) -> None:
    """The result of a run names genes, groups and intervals."""
    directory = train(config(f"run_dir={tmp_path}/run", "model=additive", "data.experiments=200"), say=lambda _: None)
    result = json.loads((directory / "result.json").read_text())
    assert result["about"]["sizes"] == {"train": 160, "val": 20, "test": 20}
    assert result["about"]["split"]["kind"] == "genotype"
    assert result["rival"] in result["metrics"]
    lines = result["confidence"]["lines"]
    own = result["metrics"]["additive"]["pearson"]
    assert lines["additive"]["value"] == pytest.approx(own, abs=1e-5)
    assert lines["additive"]["low"] <= own <= lines["additive"]["high"]
    assert len(result["worst"]) == 15
