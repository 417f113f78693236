"""W&B, when it is installed: offline, so that nothing is sent anywhere."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from training_runs import LEAST, config, run

from knockgraph.errors import ConfigError
from knockgraph.train import wandb_run

OFFLINE = [
    *LEAST,
    "logging.wandb=offline",
    "logging.project=screens",
    "logging.entity=laboratory",
    "logging.group=trigenic",
    "logging.tags=[yeast,lazy]",
]


TOLD = ("laboratory", "trigenic", "yeast", "lazy")


def test_an_offline_run_and_its_continuation(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    directory = tmp_path / "mine"
    run("train", f"run_dir={directory}", *OFFLINE, "trainer.plot_every_n_epochs=1")
    (folder,) = (directory / "wandb").glob("offline-run-*")
    name = (directory / "wandb" / "id").read_text()
    written = (folder / f"run-{name}.wandb").read_bytes()
    for text in ("val/pearson", "train/loss", "screens", "mine", "loader", "plots/predicted", *TOLD):
        assert text.encode() in written, text
    assert len(list((folder / "files" / "media" / "images" / "plots").glob("*.png"))) == 2

    run("train", f"run_dir={directory}", "resume=true", "trainer.max_epochs=2")
    folders = list((directory / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    assert all((f / f"run-{name}.wandb").is_file() for f in folders)  # both are sent to the same run


@pytest.mark.full
def test_a_sweep_has_a_run_of_its_own_for_each_job(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run("train", "-m", "seed=0,1", *OFFLINE, f"hydra.sweep.dir={tmp_path}/sweep", cwd=tmp_path)
    ids = [(tmp_path / "sweep" / job / "wandb" / "id").read_text() for job in "01"]
    assert len(set(ids)) == 2
    for job, name in zip("01", ids, strict=True):
        (file,) = (tmp_path / "sweep" / job / "wandb").glob("offline-run-*/*.wandb")
        assert file.name == f"run-{name}.wandb"
        assert b"val/pearson" in file.read_bytes()


def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(wandb_run, "find_spec", lambda name: None if name == "wandb" else found(name))
    with pytest.raises(
        ConfigError, match=r"config key 'logging\.wandb': W&B is not installed; pip install 'knockgraph"
    ):
        wandb_run.wandb_logger(config("logging.wandb=offline"), tmp_path, True)
