"""Sweeps through Hydra's launchers, jobs that are started again, and SLURM."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.accelerators import CUDAAccelerator
from training_runs import KNOCKGRAPH, LEAST, TINY, config, environment, kill_after_steps, run, same, train, weights

from knockgraph import models
from knockgraph.errors import ConfigError
from knockgraph.train import checkpoints
from knockgraph.train.config import load
from knockgraph.train.slurm import check_tasks
from knockgraph.train.trainer import make_trainer, quiet

HETERO = ["model=hetero-small", "model.options.channels=4"]
REQUEUED = ["trainer.max_epochs=2", "trainer.checkpoint_every_n_steps=3", "requeue=true"]


def sweep(folder: Path, *words: str, code: int = 0) -> str:
    done = run("train", "-m", *LEAST, f"hydra.sweep.dir={folder}/sweep", *words, cwd=folder, code=code)
    return done.stdout if code == 0 else done.stderr


def test_a_sweep(tmp_path: Path) -> None:
    """Options need no plus here either, and can be swept over."""
    sweep(tmp_path, "model=hetero-small", "model.options.channels=4,8")
    for job, channels in (("0", 4), ("1", 8)):
        kept = load(tmp_path / "sweep" / job / "config.yaml")
        assert kept.model.options == {
            **models.PRESETS["hetero"]["small"],
            "channels": channels,
            "input": {"norm": True},
        }
        assert (tmp_path / "sweep" / job / "report.html").is_file()
    # The same sweep again: nothing is left to do, and nothing is lost.
    before = weights(tmp_path / "sweep" / "0")
    assert "resuming from" in sweep(tmp_path, "model=hetero-small", "model.options.channels=4,8")
    assert same(before, weights(tmp_path / "sweep" / "0"))
    said = sweep(tmp_path, "seed=3,4", code=1)
    assert "holds a run with another config (its 'seed' differs); choose another run_dir" in " ".join(said.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["banana=1"], "error: the sweep cannot be started: Could not override 'banana'"),
        (["hydra/launcher=rocket"], "error: the sweep cannot be started: .*hydra/launcher/rocket"),
        (["trainer.max_epochs=many"], "error: config key 'trainer.max_epochs'"),
    ],
)
def test_a_sweep_that_cannot_be_started(tmp_path: Path, words: list[str], text: str) -> None:
    said = " ".join(sweep(tmp_path, *words, code=1).split())
    assert re.search(text, said), said
    assert "Traceback" not in said


@pytest.mark.full
def test_jobs_through_submitit(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    words = ["train", "-m", "seed=0,1", *LEAST, *HETERO, "hydra/launcher=submitit_local", "hydra.sweep.dir=sweep"]
    done = subprocess.run([*KNOCKGRAPH, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    logs = list((tmp_path / "sweep" / ".submitit").glob("*/*_log.out"))
    assert len(logs) == 2
    for job in "01":
        assert load(tmp_path / "sweep" / job / "config.yaml").seed == int(job)
        assert (tmp_path / "sweep" / job / "report.html").is_file()
    assert not same(weights(tmp_path / "sweep" / "0"), weights(tmp_path / "sweep" / "1"))


def test_a_requeued_job_continues(tmp_path: Path) -> None:
    """The command is the same each time: first there is nothing to continue, then there is."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert "resuming" not in train(whole, *REQUEUED).stdout
    kill_after_steps(killed, 9, *REQUEUED)
    # The kill may come when the last checkpoint has become the previous one and the new one is not there yet.
    folder = killed / "checkpoints"
    if (folder / checkpoints.LAST).exists():  # else it did
        (folder / checkpoints.LAST).replace(folder / checkpoints.PREVIOUS)
    assert "already holds a run" in run("train", f"run_dir={killed}", *TINY, code=1).stderr
    assert "previous.ckpt" in train(killed, *REQUEUED).stdout
    assert same(weights(whole), weights(killed))


def test_a_requeued_job_needs_its_directory(tmp_path: Path) -> None:
    assert "requeue=true needs run_dir" in run("train", "requeue=true", cwd=tmp_path, code=1).stderr


def test_lightning_does_not_tell_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    log = logging.getLogger("lightning.pytorch.accelerators.cuda")
    monkeypatch.setattr(log, "handle", lambda record: said.append(record.getMessage()))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # set below
    log.setLevel(logging.INFO)
    CUDAAccelerator.set_nvidia_flags(0)
    assert said[0].startswith("LOCAL_RANK: 0")
    quiet()
    CUDAAccelerator.set_nvidia_flags(0)
    assert len(said) == 1


def test_lightning_does_not_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(0o755)  # Lightning would warn of it on every machine of a cluster
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    quiet()
    made = config(f"run_dir={tmp_path}")
    assert not isinstance(
        make_trainer(made, tmp_path, tmp_path)._accelerator_connector.cluster_environment, SLURMEnvironment
    )
    slurm = {"NTASKS": "1", "JOB_NAME": "screen", "JOB_ID": "7", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    cluster = make_trainer(made, tmp_path, tmp_path)._accelerator_connector.cluster_environment
    assert isinstance(cluster, SLURMEnvironment)
    assert not cluster.auto_requeue
    for name in ("RANK", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.setenv(name, "1" if name == "WORLD_SIZE" else "0")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29511")
    cluster = make_trainer(made, tmp_path, tmp_path)._accelerator_connector.cluster_environment
    assert not isinstance(cluster, SLURMEnvironment)  # torchrun inside of a SLURM job


@pytest.mark.parametrize(
    ("started", "wanted", "text"),
    [
        (None, [2, 1], "2 processes are wanted, but SLURM has started one; put srun in front of the command"),
        ("2", [1, 1], r"srun started 2 tasks per node .* trainer\.devices is 1 and trainer\.num_nodes 1; make"),
        ("4", [4, 2], r"srun started 4 tasks per node .* trainer\.devices is 4 and trainer\.num_nodes 2; make"),
        (None, [1, 1], None),
        ("1", [1, 1], None),
        ("4(x2)", [4, 2], None),
    ],
)
def test_as_many_tasks_as_devices(
    monkeypatch: pytest.MonkeyPatch, started: str | None, wanted: list[int], text: str | None
) -> None:
    monkeypatch.delenv("SLURM_STEP_TASKS_PER_NODE", raising=False)
    if started is not None:
        monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", started)
    trainer = config(f"trainer.devices={wanted[0]}", f"trainer.num_nodes={wanted[1]}").trainer
    if text is None:
        check_tasks(trainer)
    else:
        with pytest.raises(ConfigError, match=text):
            check_tasks(trainer)
