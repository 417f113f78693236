"""Tiny runs through the real command line, for the tests of training."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from knockgraph.train import checkpoints

KNOCKGRAPH = [sys.executable, "-W", "ignore", "-c", "from knockgraph.cli import main; main()"]
TINY = [
    "data.experiments=500",
    "loader.batch_size=16",
    "model.options.channels=8",
    "model.options.layers=1",
    "trainer.progress_bar=false",
    "trainer.accelerator=cpu",
    "trainer.baselines=[mean,additive]",
    "trainer.log_every_n_steps=1",
]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "300"}


def run(*arguments: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*KNOCKGRAPH, *arguments], capture_output=True, text=True, timeout=300, env=environment(), cwd=cwd
    )
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done


def train(directory: Path, *overrides: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run("train", f"run_dir={directory}", *TINY, *overrides, code=code)


def kill_after_steps(directory: Path, steps: int, *overrides: str, extra_seconds: float = 0.0) -> None:
    """Start a run and kill -9 it once a checkpoint of at least ``steps`` optimizer steps is there."""
    process = subprocess.Popen(
        [*KNOCKGRAPH, "train", f"run_dir={directory}", *TINY, *overrides],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.time() + 200
        while time.time() < deadline:
            if process.poll() is not None:
                raise AssertionError(f"the run ended by itself with {process.returncode} before it could be killed")
            if saved_step(directory) >= steps:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("no checkpoint in time")
        time.sleep(extra_seconds)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def saved_step(directory: Path) -> int:
    try:
        path, _ = checkpoints.newest_valid(directory / "checkpoints")
        return int(checkpoints.load(path)["global_step"])
    except Exception:  # not there yet, or just being replaced
        return -1


def weights(directory: Path, name: str = "last") -> dict[str, torch.Tensor]:
    state = checkpoints.load(directory / "checkpoints" / f"{name}.ckpt")
    return dict(state["state_dict"])


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(t, b[k]) for k, t in a.items() if isinstance(t, torch.Tensor))
