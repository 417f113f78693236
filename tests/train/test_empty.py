"""The empty task: everything but the model, for any model and strategy, alone and under DDP."""

import json
from pathlib import Path

import pytest
import torch
from test_ddp import two
from training_runs import config, weights

from knockgraph import strategies
from knockgraph.errors import KnockgraphError
from knockgraph.predict import predict
from knockgraph.run import train
from knockgraph.train.data import TrainingData
from knockgraph.train.empty import EmptyTask
from knockgraph.train.metrics_file import curves
from knockgraph.train.run import make_task

EMPTY = ["task=empty", "optimizer.weight_decay=0"]
SMALL = ["data.experiments=40", "model.options.channels=4", "model.options.messages.layers=1"]


@pytest.mark.parametrize("task", ["empty", "empty-no-backward"])
def test_it_trains_nothing(task: str, tmp_path: Path) -> None:
    options = ["model=hetero-small", *SMALL, *EMPTY, f"task={task}", f"run_dir={tmp_path}/run"]
    before = make_task(config(*options), *_data(*options)).state_dict()
    said: list[str] = []
    train(config(*options), say=said.append)
    assert said[-1] == "an empty task runs everything but the model, so there is nothing to compare"
    after = weights(tmp_path / "run")
    assert all(torch.equal(before[name], value) for name, value in after.items() if isinstance(value, torch.Tensor))
    assert {value for _, value in curves(tmp_path / "run" / "metrics.csv")["train/loss"]} == {0.0}
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(set(result["predicted"]) - {0.0}) == 1  # the wild type's interaction is 0 by definition
    with pytest.raises(KnockgraphError, match="is a run of the empty task, which has no model; predict from another"):
        predict(tmp_path / "run", None, genes=["QAB1"])


@pytest.mark.parametrize("strategy", strategies.available())
@pytest.mark.parametrize("model", ["hetero-small", "dango", "constant"])
def test_every_parameter_has_a_gradient(model: str, strategy: str, tmp_path: Path) -> None:
    size = SMALL[:1] if model == "constant" else SMALL[:2] if model == "dango" else SMALL
    cfg = config(f"model={model}", f"strategy={strategy}", *size, *EMPTY)
    graph, transform = _data(f"model={model}", *size)
    task = make_task(cfg, graph, transform)
    assert isinstance(task, EmptyTask)
    data = TrainingData.from_config(cfg)
    task.strategy.prepare(data.bound, tmp_path)
    batch = next(iter(data.loader("train", False, task.strategy)))
    task._loss_of(batch).total.backward()
    task.on_after_backward()
    assert all(p.grad is not None and not p.grad.any() for p in task.parameters() if p.requires_grad)


@pytest.mark.parametrize("task", ["empty", "empty-no-backward"])
def test_under_ddp(task: str, tmp_path: Path) -> None:
    """Zeros are exchanged, or nothing at all."""
    two(tmp_path / "run", f"task={task}", "trainer.max_epochs=1")
    assert len(curves(tmp_path / "run" / "metrics.csv")["train/loss"]) == 5


def test_any_loss_will_do() -> None:
    assert config("task=empty", "loss=bce").loss.name == "bce"


def _data(*overrides: str) -> tuple[object, object]:
    data = TrainingData.from_config(config(*overrides))
    return data.graph, data.transform
