"""Runs on a real SLURM of one node: whatever ends a job, the continued run ends as the uninterrupted one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from one_node_cluster import OneNodeCluster, missing
from same_run import differences
from training_runs import KNOCKGRAPH, QUIET, close, saved_step, weights

from knockgraph.train.checkpoints import LAST, load

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(missing()), reason=f"no SLURM here: {', '.join(missing())} (Debian: slurm-wlm and munge)"),
]
SECONDS = 240  #: for anything that a cluster does
# 65 training experiments: five steps an epoch, forty in all. They are slow (`SLOW_STEPS`) until a job is requeued.
OPTIONS = [
    "data.experiments=81",
    "model=slow_model:SlowModel",
    "model.options.channels=4",
    "model.options.messages.layers=1",
    "model.options.messages.dropout=0.2",
    "trainer.max_epochs=8",
    "trainer.precision=64-true",
    "trainer.checkpoint_every_n_steps=7",
    *QUIET,
]
TWO = ["trainer.devices=2", "loader.batch_size=8"]
ONE = ["loader.batch_size=16"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[OneNodeCluster]:
    with tempfile.TemporaryDirectory(prefix="slurm") as folder:
        (Path(folder) / "bin").mkdir()
        command = Path(folder) / "bin" / "knockgraph"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -W ignore -m knockgraph "$@"\n')
        command.chmod(0o755)
        (Path(folder) / "one").mkdir()
        with OneNodeCluster(Path(folder) / "one") as started:
            source = Path(__file__).parents[2] / "src"
            started.environment |= {
                "PATH": f"{command.parent}:{os.environ['PATH']}",
                "PYTHONPATH": f"{source}:{Path(__file__).parent}",
                "OMP_NUM_THREADS": "1",
                "NO_COLOR": "1",
                "COLUMNS": "300",
            }
            yield started


@pytest.fixture(scope="module")
def whole(cluster: OneNodeCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks that nothing interrupts."""
    job = Job(cluster, tmp_path_factory.mktemp("whole"), slow=0)
    job.wait("COMPLETED")
    assert job.log().count("run directory") == 1
    return job.run


class Job:
    """The batch script of the docs, made small: one node without GPUs, and a tiny model.

    Args:
        cluster: The cluster.
        folder: Where it is submitted.
        *options: Of the run, added to the usual ones.
        slow: Seconds that a step of the first start takes.
    """

    def __init__(self, cluster: OneNodeCluster, folder: Path, *options: str, slow: float = 1.0) -> None:
        self.cluster, self.folder, self.run = cluster, folder, folder / "runs" / "big"
        (folder / "train.sh").write_text(batch_script([*OPTIONS, *TWO, *options]))
        words = ["sbatch", "--parsable", f"--chdir={folder}", f"--output={folder}/log", f"{folder}/train.sh"]
        done = subprocess.run(
            words, env={**cluster.environment, "SLOW_STEPS": str(slow)}, capture_output=True, text=True, cwd=folder
        )
        assert done.returncode == 0, done.stderr
        self.number = int(done.stdout)

    def log(self) -> str:
        return (self.folder / "log").read_text() if (self.folder / "log").exists() else ""

    def shows(self) -> dict[str, str]:
        return self.cluster.job(self.number)

    def wait(self, state: str) -> dict[str, str]:
        """Until the job has ended, or waits again."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        until(lambda: self.shows()["JobState"] in (*ended, state), lambda: f"{self.shows()}\n{self.log()}")
        assert self.shows()["JobState"] == state, self.log()
        return self.shows()

    def wait_for_steps(self, steps: int = 7) -> None:
        until(lambda: saved_step(self.run) >= steps, self.log)


def until(true: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.3)


def batch_script(options: list[str]) -> str:
    text = (Path(__file__).parents[2] / "docs" / "train.md").read_text()
    (script,) = re.findall(r"```text\n(#!/bin/bash\n.*?)```", text, re.DOTALL)
    for found, used in (
        ("--nodes=2", "--nodes=1"),
        ("--ntasks-per-node=4", "--ntasks-per-node=2"),
        ("#SBATCH --gpus-per-node=4\n", ""),
        ("--cpus-per-task=4", "--cpus-per-task=1"),
        ("--time=24:00:00", "--time=20"),
        ("preset=reference trainer=ddp trainer.num_nodes=2 trainer.progress_bar=false", " ".join(options)),
    ):
        assert script.count(found) == 1, found
        script = script.replace(found, used)
    return script


def end_by_time(cluster: OneNodeCluster, *jobs: str) -> None:
    """Give jobs so little time that it is over at once; and enough, when they wait for their second start."""
    for job in jobs:
        cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=2")
    waiting = list(jobs)
    while waiting:
        until(lambda: any(_restarted(cluster, job) for job in waiting), lambda: str([cluster.job(j) for j in jobs]))
        for job in [job for job in waiting if _restarted(cluster, job)]:
            cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=20")
            waiting.remove(job)


def _restarted(cluster: OneNodeCluster, job: str) -> bool:
    return cluster.job(job)["Restarts"] == "1"


@contextmanager
def busy(cluster: OneNodeCluster, folder: Path) -> Iterator[None]:
    """Another job, in the partition that goes first, takes the whole node."""
    words = ["sbatch", "--parsable", "--partition=high", "--ntasks=4", f"--output={folder}/other", "--wrap=sleep 600"]
    other = int(cluster.ask(*words))
    until(lambda: cluster.job(other)["JobState"] == "RUNNING", lambda: str(cluster.job(other)))
    yield
    cluster.ask("scancel", str(other))


# ── the batch script ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_tasks(whole: Path) -> None:
    assert load(whole / "checkpoints" / LAST)["global_step"] == 40
    assert len(load(whole / "checkpoints" / LAST)["knockgraph"]["ranks"]) == 2


def test_two_tasks_equal_one_process(cluster: OneNodeCluster, tmp_path: Path) -> None:
    short = ["model.options.messages.dropout=0", "trainer.max_epochs=2"]
    job = Job(cluster, tmp_path, *short, slow=0)
    words = [*KNOCKGRAPH, "train", f"run_dir={tmp_path}/one", *OPTIONS, *ONE, *short]
    done = subprocess.run(words, env=cluster.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")  # in particular, it does not ask for srun
    job.wait("COMPLETED")
    assert close(weights(tmp_path / "one"), weights(job.run), 1e-10)


def test_time_limit(cluster: OneNodeCluster, whole: Path, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    job.wait_for_steps()
    end_by_time(cluster, str(job.number))
    assert job.wait("COMPLETED")["Restarts"] == "1"
    assert "stopped by SIGTERM; continue with: knockgraph train" in job.log()
    assert job.log().count("resuming from") == 1
    assert differences(whole, job.run) == []


def test_preemption(cluster: OneNodeCluster, whole: Path, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path)
    job.wait_for_steps()
    with busy(cluster, tmp_path):
        assert job.wait("PENDING")["Restarts"] == "1"
    job.wait("COMPLETED")
    assert "stopped by SIGTERM; continue with: knockgraph train" in job.log()
    assert job.log().count("resuming from") == 1
    assert differences(whole, job.run) == []


@pytest.mark.parametrize("back", ["at once", "late"])
def test_a_lost_node(cluster: OneNodeCluster, whole: Path, tmp_path: Path, back: str) -> None:
    """slurmd, its step daemons and the tasks end; SLURM finds the job missing, or gives the node up."""
    job = Job(cluster, tmp_path)
    job.wait_for_steps()
    cluster.lose_node()
    try:
        if back == "late":
            assert job.wait("PENDING")["Restarts"] == "1"
    finally:
        cluster.start_node()
    assert job.wait("COMPLETED")["Restarts"] == "1"
    assert "stopped by" not in job.log()
    assert job.log().count("resuming from") == 1
    assert differences(whole, job.run) == []


def test_a_job_that_fails_and_one_that_is_cancelled(cluster: OneNodeCluster, tmp_path: Path) -> None:
    """Neither comes back by itself; the same script again continues the second."""
    (tmp_path / "a").mkdir()
    failing = Job(cluster, tmp_path / "a", "model.options.channels=-1")
    cancelled = Job(cluster, tmp_path)
    assert failing.wait("FAILED")["ExitCode"] == "1:0"
    cancelled.wait_for_steps()
    cluster.ask("scancel", str(cancelled.number))
    assert cancelled.wait("CANCELLED")["Restarts"] == "0"
    assert "stopped by SIGTERM; continue with" in cancelled.log()


# ── a sweep through submitit ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def alone(cluster: OneNodeCluster, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The runs of the sweep by themselves."""
    runs = [tmp_path_factory.mktemp("alone") / str(seed) for seed in range(2)]
    for seed, run in enumerate(runs):
        words = [*KNOCKGRAPH, "train", f"run_dir={run}", f"seed={seed}", *OPTIONS, *ONE]
        subprocess.run(words, env=cluster.environment, capture_output=True, check=True)
    return runs


@pytest.mark.parametrize("by", ["time", "preemption"])
def test_a_sweep(cluster: OneNodeCluster, alone: list[Path], tmp_path: Path, by: str) -> None:
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    launcher = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=low", "hydra.launcher.timeout_min=20"]
    launcher += ["hydra.launcher.max_num_timeout=3", "hydra.sweep.dir=sweep"]
    words = [*KNOCKGRAPH, "train", "-m", "seed=0,1", *OPTIONS, *ONE, *launcher]
    runs = [tmp_path / "sweep" / str(seed) for seed in range(2)]
    with (tmp_path / "log").open("w") as log:
        variables = {**cluster.environment, "SLOW_STEPS": "1"}
        started = subprocess.Popen(words, cwd=tmp_path, env=variables, stdout=log, stderr=log)
    try:
        until(lambda: min(map(saved_step, runs)) >= 7, (tmp_path / "log").read_text)
        (job,) = {path.name.split("_")[0] for path in (tmp_path / "sweep" / ".submitit").glob("[0-9]*_*")}
        if by == "time":
            end_by_time(cluster, f"{job}_0", f"{job}_1")
        else:
            with busy(cluster, tmp_path):
                pass
        assert started.wait(SECONDS) == 0, (tmp_path / "log").read_text()
    finally:
        started.kill()
        started.wait()
    for run, expected in zip(runs, alone, strict=True):
        added = (".hydra/", "multirun.log")  # Hydra's own
        assert [text for text in differences(expected, run) if not any(name in text for name in added)] == []
    logs = [path.read_text() for path in (tmp_path / "sweep" / ".submitit").glob("*/*_log.out")]
    assert [text.count("resuming from") for text in logs] == [1, 1], logs
    errors = [path.read_text() for path in (tmp_path / "sweep" / ".submitit").glob("*/*_log.err")]
    assert not any("Traceback" in text for text in errors), errors
