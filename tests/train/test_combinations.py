"""Every model × loss × task: each trainable parameter has a gradient, as DDP requires, or the start is refused."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_runs import LEAST, QUIET, config

import knockgraph as kg
from knockgraph import losses, models
from knockgraph.errors import ConfigError
from knockgraph.run import train
from knockgraph.screen import LabelTransform
from knockgraph.train.plain_config import compose_plain
from knockgraph.train.run import make_task
from knockgraph.train.schema import NO_BACKWARD
from knockgraph.train.task import Task

from test_ddp import start  # isort: skip

SMALL = ["model.options.channels=4"]
MODELS: dict[str, list[str]] = {
    "hetero-small": SMALL,
    "hetero": [*SMALL, "model.options.messages.layers=2", "model.options.heads=2"],
    "hetero with metabolism": ["model=hetero-small", *SMALL, "model.options.metabolism.enabled=true"],
    "hetero, pairs, cached": [
        "model=hetero-small",
        *SMALL,
        "model.options.readout.local=pairs",
        "model.options.readout.combine=sum",
        "model.options.readout.wild_type=cached-epoch",
    ],
    "dango": SMALL,
    "additive": [],
    "constant": [],
}
LOSSES = ["own", *losses.available(), "contrastive"]
COMBINATIONS = [
    *itertools.product(MODELS, LOSSES, ["regression", "classification"]),
    *itertools.product(MODELS, ["own"], ["empty", NO_BACKWARD]),  # which compute no loss
]


def overrides(model: str, loss: str, task: str) -> list[str]:
    words = [f"task={task}", *([] if MODELS[model][:1] == ["model=hetero-small"] else [f"model={model}"])]
    if loss == "contrastive":
        words += ["loss=composite", "loss.options.contrastive_weight=0.1", "loss.options.buffer_size=4"]
    elif loss != "own":
        words.append(f"loss={loss}")
    if task == "classification":
        words += ["data.threshold=-0.1", "data.transform=none"]
    return [*words, *MODELS[model]]


def refusal(model: str, loss: str, task: str) -> str | None:
    """Why a combination is refused, if it is."""
    if task.startswith("empty"):
        return None
    dango = loss == "dango" or (loss == "own" and model == "dango")
    if (task == "classification") != (loss == "bce") and not dango:
        return "config key 'loss': task="
    if dango and model != "dango":
        return "the loss dango needs the reconstruction of a model, which .* does not give"
    if loss == "contrastive" and not model.startswith("hetero"):
        return "the loss composite needs the embedding of a model, which .* does not give"
    return None


@functools.cache
def graph() -> kg.CellGraph:
    return kg.demo_cell()


def batches() -> Iterator[kg.PerturbationBatch]:
    """An ordinary one, single mutants, the wild type, and none: a rank may be left without samples."""
    for genotypes in ([[1, 2, 3], [4, 5], [6], []], [[1], [2]], [[]], []):
        batch = kg.PerturbationBatch.from_lists(genotypes, graph().num_genes)
        yield batch


def without_gradient(task: Task, batch: kg.PerturbationBatch, epoch: int) -> list[str]:
    task.zero_grad(set_to_none=True)
    task.model.set_known(torch.ones(graph().num_genes, dtype=torch.bool))
    if not task.model.exact:
        task.model.refresh_wild_type(task.strategy(batch.only_wild_type()))
    prediction = task(batch)
    target = torch.ones(batch.num_samples, 1)
    task.loss(prediction, target, step_size=4, world_size=2, epoch=epoch).total.backward()
    return [name for name, p in task.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.parametrize(("model", "loss", "task"), COMBINATIONS)
def test_every_parameter_has_a_gradient(model: str, loss: str, task: str) -> None:
    transform = LabelTransform.from_state_dict({"kind": "none", "center": [0], "scale": [1]})
    why = refusal(model, loss, task)
    if why is not None:
        with pytest.raises(ConfigError, match=why):
            make_task(compose_plain([*LEAST, *overrides(model, loss, task)]), graph(), transform)
        return
    made = make_task(compose_plain([*LEAST, *overrides(model, loss, task)]), graph(), transform)
    if task.startswith("empty"):
        return  # its loss is made of all parameters, see tests/train/test_empty.py
    for batch, epoch in itertools.product(batches(), (0, 20)):
        made.train()
        assert without_gradient(made, batch, epoch) == []


def test_models_say_what_they_give() -> None:
    """What a model states is what its predictions have."""
    batch = kg.PerturbationBatch.from_lists([[1, 2], []], graph().num_genes)
    for name in models.available():
        if models.is_fitted(name) or name == "residual":  # what has to be fitted first
            continue
        model = models.create(name, graph(), **({"preset": "small"} if name == "hetero" else {}))
        prediction = model(kg.strategies.create("node-mask", graph())(model.columns(batch)), batch)
        found = [*prediction.auxiliary, *([] if prediction.embedding is None else ["embedding"])]
        assert sorted(found) == sorted(model.gives or ()), name


def test_dango_has_its_own_loss(tmp_path: Path) -> None:
    assert config("model=dango").loss.name == "dango"
    chosen = config("model=dango", "task=classification")
    assert (chosen.loss.name, chosen.loss.options) == ("dango", {"interaction": "bce"})
    assert config("model=dango", "data=kuzmin2018").loss == chosen.loss
    assert config("preset=reference", "model=dango").loss.name == "dango"
    assert config("model=dango", "loss=mse").loss.name == "mse"
    said: list[str] = []
    train(config("model=dango", "loss=mse", *SMALL, f"run_dir={tmp_path / 'run'}"), say=said.append)
    assert "note: the loss mse leaves out the reconstruction term of dango" in said


@pytest.mark.full
@pytest.mark.parametrize(("model", "loss", "task"), [c for c in COMBINATIONS if refusal(*c) is None])
def test_two_processes(model: str, loss: str, task: str, tmp_path: Path) -> None:
    least = ["data.experiments=81", "trainer.max_epochs=1", *QUIET]
    for rank in start(tmp_path / "run", *overrides(model, loss, task), options=least):
        rank.wait()
