"""A run that does not learn says so; one that learns does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_runs import config, same, weights

import knockgraph as kg
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.nn.hetero_layer import HeteroLayer
from knockgraph.run import train
from knockgraph.strategies import PerturbedGraphs
from knockgraph.train import learning
from knockgraph.train.learning import Learning, mean_cosine
from knockgraph.train.metrics_file import curves

SMALL = ["model=hetero-small", "model.options.channels=8", "model.options.messages.layers=2", "data.experiments=600"]


def trained(directory: Path, *overrides: str) -> tuple[list[str], dict[str, Any]]:
    """What the run said, and its result."""
    said: list[str] = []
    train(config(f"run_dir={directory}", *overrides), said.append)
    return said, json.loads((directory / "result.json").read_text())


def test_mean_cosine() -> None:
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) + 0.5
    pairs = nn.functional.cosine_similarity(x.unsqueeze(0), x.unsqueeze(1), dim=2).fill_diagonal_(0)
    assert mean_cosine(x) == pytest.approx(float(pairs.sum() / (50 * 49)), abs=1e-6)
    assert mean_cosine(x[:1].expand(5, -1)) == pytest.approx(1)
    assert mean_cosine(x[:1]) == 0
    assert mean_cosine(torch.zeros(3, 2)) == 0


def test_it_is_logged_and_drawn(tmp_path: Path) -> None:
    _, result = trained(tmp_path / "run", *SMALL, "trainer.max_epochs=2", "model.options.readout.local_first=0")
    logged = curves(tmp_path / "run" / "metrics.csv")
    names = ("cosine_input", "cosine_layer_1", "cosine_layer_2", "z_p_noise")
    assert {name for name in logged if name.startswith("learn/")} == {f"learn/{name}" for name in names}
    for name in names:
        assert [step for step, _ in logged[f"learn/{name}"]] == [step for step, _ in logged["val/mse"]]
    assert all(0 < value < 1e-2 for _, value in logged["learn/z_p_noise"])  # in float32
    assert "collapse" not in result["warnings"]
    assert "the share of z_p that is rounding" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("no_page")
def test_layers_that_do_not_take_part_yet_are_not_measured(tmp_path: Path) -> None:
    """The first validation of such a run was an internal error."""
    first = ["model.options.readout.local_states=first", "model.options.readout.local_first=0.5"]
    trained(tmp_path / "run", *SMALL, *first, "model.options.readout.combine=sum", "trainer.max_epochs=2")
    logged = curves(tmp_path / "run" / "metrics.csv")
    assert [step for step, _ in logged["learn/cosine_layer_2"]] == [step for step, _ in logged["val/mse"]][1:]


@pytest.mark.usefixtures("no_page")
def test_it_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and checkpoints are those of a run that is not looked at."""
    options = [*SMALL, "model.options.messages.dropout=0.2", "trainer.max_epochs=2", "data.experiments=160"]
    trained(tmp_path / "looked-at", *options)
    monkeypatch.setattr(learning, "measured", lambda task: {})
    trained(tmp_path / "alone", *options)
    assert same(weights(tmp_path / "looked-at"), weights(tmp_path / "alone"))


def collapse(self: HeteroLayer, view: PerturbedGraphs, x: Tensor) -> Tensor:
    """Every gene gets the mean of all, and a thousandth of what it had."""
    y = forward(self, view, x)
    return y.mean(0, keepdim=True) + 1e-3 * y


forward = HeteroLayer.forward


def test_a_collapse_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeteroLayer, "forward", collapse)
    said, result = trained(tmp_path / "run", *SMALL, "trainer.max_epochs=3", "data.experiments=160")
    (text,) = result["warnings"]
    assert text.startswith("the gene states have become nearly identical (mean cosine 1.000 after layer 2, ")
    assert "try " in text
    assert "or an optimizer.lr below 0.001" in text
    assert said.count(f"warning: {text}") in (1, 2)  # during the run (then with that moment's figures) and at its end
    assert sum("have become nearly identical" in line for line in said) == 2
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<strong>Warning:</strong> the gene states have become nearly identical" in page


@pytest.mark.usefixtures("no_page")
def test_a_z_p_of_rounding_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = HeteroCellModel.decode

    def rounded(self: HeteroCellModel, encoded: tuple[Tensor, ...], batch: Any) -> Any:
        """The pooled states lose their last digits: their difference is all digits."""
        if encoded[1].dtype == torch.float32:
            encoded = (encoded[0], *((z * 8).round() / 8 for z in encoded[1:]))
        return decode(self, encoded, batch)

    monkeypatch.setattr(HeteroCellModel, "decode", rounded)
    _, result = trained(tmp_path / "run", *SMALL, "data.experiments=160")
    (text,) = [text for text in result["warnings"] if text.startswith("rounding")]
    assert "rounding in 32-true is " in text
    assert "try trainer.precision=64-true or " in text


@pytest.mark.parametrize("classes", [False, True])
def test_noise_cannot_be_learned_and_it_says_so(tmp_path: Path, classes: bool) -> None:
    graph, rng = kg.demo_cell(), np.random.default_rng(0)
    names = graph.genes.names
    pairs = [[names[i] for i in rng.choice(len(names), 2, replace=False)] for _ in range(1000)]
    graph.save(tmp_path / "demo.cellgraph")
    labels = rng.normal(size=1000)
    kg.Screen(pairs, {"score": (labels > 0).astype(float) if classes else labels}).save(tmp_path / "noise.parquet")
    options = [f"data.cell={tmp_path}/demo.cellgraph", f"data.screen={tmp_path}/noise.parquet", "data.phenotype=score"]
    options += ["task=classification", "loss=bce"] if classes else []
    said, result = trained(tmp_path / "run", *options, "data.experiments=null", "trainer.baselines=[mean]")
    (text,) = result["warnings"]
    score = "AUROC" if classes else "Pearson"
    assert text.startswith(f"after 1 epoch the validation {score} is ")
    assert "which 100 experiments cannot tell from " + ("0.5," if classes else "0,") in text
    assert "try more epochs, more experiments, another optimizer.lr than 0.003 or more scheduler.warmup_steps" in text
    assert said.count(f"warning: {text}") == 1


def test_a_constant_is_told(tmp_path: Path) -> None:
    _, result = trained(tmp_path / "run", "model=constant", "data.experiments=600")
    (text,) = result["warnings"]
    assert text.startswith(
        "after 1 epoch every validation experiment gets the same prediction; try another optimizer.lr"
    )


def test_few_experiments_say_nothing(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", "model=constant")[1]["warnings"] == []


@pytest.mark.full
def test_a_learner_is_not_told_off(tmp_path: Path) -> None:
    """Also where it took an epoch or two: what is repeated at the end holds at the end."""
    options = ["model=hetero-small", "data.experiments=8000", "loader.batch_size=64", "trainer.max_epochs=2"]
    said, result = trained(tmp_path / "run", *options)
    assert result["warnings"] == []
    assert not [line for line in said if "warning" in line]


@pytest.mark.usefixtures("no_page")
def test_a_warning_that_no_longer_holds_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = iter([{}, {"chance": "it guesses"}, {"chance": "it guesses"}, {}])
    monkeypatch.setattr(learning, "not_learned", lambda *_: next(kinds))
    said, result = trained(tmp_path / "run", "trainer.max_epochs=4", "scheduler.warmup_steps=0")
    assert said.count("warning: it guesses") == 1
    assert result["warnings"] == []


@pytest.mark.usefixtures("no_page")
def test_a_resumed_run_does_not_repeat_it(tmp_path: Path) -> None:
    options = ["model=constant", "data.experiments=600"]
    said, first = trained(tmp_path / "run", *options)
    assert sum("same prediction" in line for line in said) == 1
    said = []
    train(config(f"run_dir={tmp_path}/run", "resume=true"), said.append, max_epochs=2)
    assert sum("same prediction" in line for line in said) == 1  # at the end
    second = json.loads((tmp_path / "run" / "result.json").read_text())
    assert second["warnings"] == [text.replace("1 epoch", "2 epochs") for text in first["warnings"]]
    train(config(f"run_dir={tmp_path}/run", "resume=true"), said.append, max_epochs=2)  # nothing is left to train
    assert json.loads((tmp_path / "run" / "result.json").read_text())["warnings"] == second["warnings"]


def test_an_empty_run_is_not_judged(tmp_path: Path) -> None:
    assert trained(tmp_path / "run", "task=empty", "data.experiments=600")[1]["warnings"] == []


def test_its_state() -> None:
    callback, other = Learning(), Learning()
    callback.warnings, callback._told = {"chance": "it guesses"}, ["chance"]
    other.load_state_dict(callback.state_dict())
    assert other.state_dict() == callback.state_dict()


@pytest.mark.usefixtures("no_page")
def test_it_is_not_told_while_the_learning_rate_is_raised(tmp_path: Path) -> None:
    options = ["model=constant", "data.experiments=600", "trainer.max_epochs=3", "loader.batch_size=64"]
    said, _ = trained(tmp_path / "warming", *options, "scheduler.warmup_steps=10000")
    assert [line.startswith("warning: after 3 epochs") for line in said if "warning" in line] == [True]
    said, _ = trained(tmp_path / "warm", *options, "scheduler.warmup_steps=2")
    assert next(line for line in said if "warning" in line).startswith("warning: after 1 epoch ")
