"""Tiny runs through the command line, for the tests of training.

A process of its own for each, but forked from one that has imported everything: otherwise the imports of torch and
Lightning would be most of the time. Where a test is about starting the program itself, it uses ``KNOCKGRAPH``.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from knockgraph.train import checkpoints
from knockgraph.train.plain_config import compose_plain
from knockgraph.train.schema import Config

KNOCKGRAPH = [sys.executable, "-W", "ignore", "-m", "knockgraph"]
QUIET = [
    "trainer.progress_bar=false",
    "trainer.accelerator=cpu",
    "trainer.baselines=[mean,additive]",
    "trainer.log_every_n_steps=1",
]
TINY = [
    "data.experiments=500",
    "loader.batch_size=16",
    "model.options.channels=8",
    "model.options.messages.layers=1",
    *QUIET,
]
# The smallest run that has every part: 64 training experiments, four steps.
LEAST = ["data.experiments=80", "loader.batch_size=16", "trainer.max_epochs=1", "model=additive", *QUIET]

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(
    [
        "knockgraph.cli",
        "knockgraph.evaluate",
        "knockgraph.predict",
        "knockgraph.run",
        "knockgraph.models.hetero",
        "knockgraph.models.toy",
        "knockgraph.losses.composite",
        "knockgraph.losses.pointwise",
        "knockgraph.sources.demo",
        "knockgraph.sources.presets",
        "knockgraph.strategies.node_mask",
        "hydra",
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
        "matplotlib.pyplot",
        "pandas",
        "pyarrow.compute",
        "pyarrow.pandas_compat",
        "pyarrow.parquet",
        "pydantic.type_adapter",
        "safetensors.torch",
        "torch.utils.tensorboard",
        "lightning.pytorch.loggers.tensorboard",
        "lmdb",
    ]
)


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "300"}


def config(*overrides: str) -> Config:
    """A config for runs in this process; the command line takes Hydra's way, which gives the same and takes longer."""
    return compose_plain([*LEAST, *overrides])


class Started:
    """The command line in a process of its own.

    Args:
        arguments: Of the command line.
        cwd: Where it runs.
        variables: Added to its environment.
        before: Called there first.
    """

    def __init__(
        self,
        *arguments: str,
        cwd: Path | None = None,
        variables: dict[str, str] | None = None,
        before: Callable[[], Any] | None = None,
    ) -> None:
        self.arguments = arguments
        self._folder = tempfile.TemporaryDirectory()
        told = (arguments, self._folder.name, str(cwd or Path.cwd()), {**environment(), **(variables or {})}, before)
        self.process = _PROCESSES.Process(target=_main, args=told)
        self.process.start()

    def wait(self, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        self.process.join(300)
        out, err = (Path(self._folder.name, name).read_text() for name in ("stdout", "stderr"))
        found = self.process.exitcode
        assert found is not None, "the run does not end"
        assert code is None or found == code, (self.arguments, found, out, err)
        self._folder.cleanup()
        return subprocess.CompletedProcess(self.arguments, found, out, err)


def _main(
    arguments: tuple[str, ...], folder: str, cwd: str, variables: dict[str, str], before: Callable[[], Any] | None
) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    # As in a process that was not forked from a server: the loader's workers are children of the run and end with it.
    multiprocessing.set_start_method("fork", force=True)
    from lightning.pytorch.utilities import rank_zero_only

    rank_zero_only.rank = int(variables.get("RANK", 0))  # Lightning reads the variable when it is imported
    sys.argv = ["knockgraph", *arguments]
    try:
        if before is not None:
            before()
        from knockgraph.cli import main

        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def forget() -> None:
    """What a fresh process would import of knockgraph is imported again: nothing is there because others asked for it.

    Only other packages stay loaded, which is where the time goes.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "knockgraph"]:
        del sys.modules[name]


def execute(code: str) -> NoReturn:
    """A program instead of the command line."""
    forget()
    exec(compile(code, "program", "exec"), {"__name__": "__main__"})
    sys.exit()


def start_ranks(
    *arguments: str,
    ranks: int = 2,
    variables: dict[str, str] | None = None,
    before: Callable[[], Any] | None = None,
) -> list[Started]:
    """The same command in every rank, with the variables that torchrun would set."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        **(variables or {}),
    }
    return [
        Started(*arguments, variables={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, before=before)
        for rank in range(ranks)
    ]


def run(
    *arguments: str, code: int | None = 0, cwd: Path | None = None, before: Callable[[], Any] | None = None
) -> subprocess.CompletedProcess[str]:
    return Started(*arguments, cwd=cwd, before=before).wait(code)


def train(directory: Path, *overrides: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return run("train", f"run_dir={directory}", *TINY, *overrides, code=code)


def kill_after_steps(directory: Path, steps: int, *overrides: str, extra_seconds: float = 0.0) -> None:
    """Start a run and kill -9 it once a checkpoint of at least ``steps`` optimizer steps is there."""
    started = Started("train", f"run_dir={directory}", *TINY, *overrides)
    try:
        wait_for_steps(started, directory, steps)
        time.sleep(extra_seconds)
    finally:
        started.process.kill()
        started.wait(code=None)


def wait_for_steps(started: Started, directory: Path, steps: int) -> None:
    deadline = time.time() + 200
    while saved_step(directory) < steps:
        assert started.process.is_alive(), f"the run ended by itself: {started.wait(code=None)}"
        assert time.time() < deadline, "no checkpoint in time"
        time.sleep(0.01)


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


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> bool:
    """Whether every parameter agrees, relative to its largest entry (to 0.01 for biases that have hardly moved from 0).

    Two biases of the attention pooling cancel, in its softmax and in the difference to the wild type: their gradient is
    0 up to rounding, and AdamW divides that by itself. They move no prediction and are not compared.
    """
    assert set(a) == set(b)
    compared = [
        (t, b[name])
        for name, t in a.items()
        if name.startswith("model.") and t.numel() and not name.endswith(("pool.gate.2.bias", "pool.transform.bias"))
    ]
    return all(bool(((x - y).abs() <= tolerance * x.abs().max().clamp(min=0.01)).all()) for x, y in compared)
