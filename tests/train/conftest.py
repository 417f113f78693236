"""Finished runs that several test modules look at; none may change them."""

from pathlib import Path

import pytest
import torch
from training_runs import config

from knockgraph.run import train

torch.set_num_threads(1)  # the models are tiny and the cores are shared


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny hetero model after two epochs, on the demo cell, in float64: equal means equal."""
    directory = tmp_path_factory.mktemp("runs") / "hetero"
    options = [
        "model=hetero-small",
        "model.options.channels=8",
        "model.options.messages.layers=2",
        "trainer.max_epochs=2",
    ]
    options.append("trainer.precision=64-true")
    train(config(f"run_dir={directory}", "data.experiments=160", *options), say=lambda _: None)
    return directory
