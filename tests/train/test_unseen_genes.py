"""Training for genes that were never deleted: ``model=hetero-pairs``."""

from pathlib import Path

import pytest
import torch
from training_runs import QUIET, config, same, weights

import knockgraph as kg
from knockgraph.graph.structural_features import with_structural_features
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.run import train
from knockgraph.train.data import TrainingData
from knockgraph.train.run import load_task
from knockgraph.train.task import Task

RUN = [
    "data.experiments=300",
    "data.genes=screened",
    "data.split.kind=unseen-genes",
    "data.split.unseen=any",
    "data.split.held_out=0.2",
    "model=hetero-pairs",
    "model.options.channels=8",
    "trainer.max_epochs=1",
    *QUIET,
]


def test_a_run_remembers_which_genes_it_knows(tmp_path: Path) -> None:
    settings = config(f"run_dir={tmp_path / 'run'}", *RUN)
    directory = train(settings)
    data = TrainingData.from_directory(settings, directory)
    _, task = load_task(directory)
    assert isinstance(task.model, HeteroCellModel)
    known = data.deleted("train")
    assert torch.equal(task.model.input.known, known)
    assert not bool(known.all())
    held_out = data.deleted("test") & ~known
    assert bool(held_out.any())
    borrowed = task.model.input().detach()
    task.model.set_known(torch.ones_like(known))
    assert not torch.allclose(borrowed[held_out], task.model.input().detach()[held_out])


def test_a_run_by_one_feature(tmp_path: Path) -> None:
    with_structural_features(kg.demo_cell(), ["diffusion"]).save(tmp_path / "demo.cellgraph")
    one = [f"data.cell={tmp_path / 'demo.cellgraph'}", "model.options.input.similar=diffusion"]
    directory = train(config(f"run_dir={tmp_path / 'run'}", *RUN, *one))
    assert weights(directory)["model.input.sharpness"].shape == ()


def test_a_stopped_run_goes_on_from_its_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are part of the checkpoint, and are not added again."""
    whole = train(config(f"run_dir={tmp_path / 'whole'}", *RUN))

    def end(task: Task, batch: object, batch_idx: int) -> None:
        if batch_idx == 3:
            raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Task, "on_train_batch_start", end)
        with pytest.raises(RuntimeError, match="stopped"):
            train(config(f"run_dir={tmp_path / 'stopped'}", "trainer.checkpoint_every_n_steps=1", *RUN))
    train(config(f"run_dir={tmp_path / 'stopped'}", "resume=true"))
    assert same(weights(whole), weights(tmp_path / "stopped"))
    assert float(weights(whole)["model.input.embedding"].std()) > 0.3
