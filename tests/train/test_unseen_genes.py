"""Training for genes that were never deleted: ``model=hetero-pairs``."""

from pathlib import Path

import torch
from training_runs import QUIET, config

import knockgraph as kg
from knockgraph.graph.structural_features import with_structural_features
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.run import train
from knockgraph.train.data import TrainingData
from knockgraph.train.run import load_task


def test_a_run_remembers_which_genes_it_knows(tmp_path: Path) -> None:
    with_structural_features(kg.demo_cell(), ["diffusion"]).save(tmp_path / "demo.cellgraph")
    settings = config(
        f"data.cell={tmp_path / 'demo.cellgraph'}",
        "data.experiments=300",
        "data.genes=screened",
        "data.split.kind=unseen-genes",
        "data.split.unseen=any",
        "data.split.held_out=0.2",
        "model=hetero-pairs",
        "model.options.channels=8",
        "trainer.max_epochs=1",
        f"run_dir={tmp_path / 'run'}",
        *QUIET,
    )
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
