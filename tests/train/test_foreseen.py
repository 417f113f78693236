"""What can be foreseen is one sentence with a way out, not an internal error and not a wait without end."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import LEAST, environment

from knockgraph.strategies.lazy_mask import MaskBuilder

Command = Callable[..., tuple[str, str]]
WORKERS = [
    *LEAST,
    "model=hetero-small",
    "model.options.channels=4",
    "model.options.messages.layers=1",
    "strategy=lazy-mask",
]
WORKERS += ["loader.num_workers=1", "loader.timeout=2"]


def sentence(err: str) -> str:
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("key", ["channels", "layers"])
def test_an_edited_config(tmp_path: Path, finished: Path, command: Command, key: str) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    text = (directory / "config.yaml").read_text()
    there = {"channels": "channels: 8", "layers": "layers: 2"}[key]
    assert there in text
    (directory / "config.yaml").write_text(text.replace(there, f"{key}: 5"))
    _, err = command("train", f"run_dir={directory}", "resume=true", "trainer.max_epochs=3", code=1)
    assert "the checkpoint does not fit the model of config.yaml, which has been changed" in sentence(err)


@pytest.mark.parametrize("channels", [10**7, 10**12])
def test_an_absurd_model(tmp_path: Path, command: Command, channels: int) -> None:
    words = ["model=hetero-small", f"model.options.channels={channels}"]
    _, err = command("train", f"run_dir={tmp_path}/run", *LEAST, *words, code=1)
    assert "config key 'model.options': the model hetero does not fit into the memory" in sentence(err)
    assert not list(tmp_path.iterdir())


def test_a_killed_worker(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskBuilder, "masks", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    _, err = command("train", f"run_dir={tmp_path}/run", *WORKERS, code=1)
    assert "a worker of the loader has ended" in sentence(err)
    assert "start the run again with loader.num_workers=0" in err


@pytest.mark.full
def test_a_worker_that_hangs(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MaskBuilder, "masks", lambda *_: time.sleep(30))
    _, err = command("train", f"run_dir={tmp_path}/run", *WORKERS, code=1)
    assert "the loader's workers have made no batch in 2 s (loader.timeout)" in sentence(err)


def test_no_shared_memory(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker said so in a traceback and went on; the run waited for the batch."""

    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("unable to allocate shared memory(shm) for file: No space left on device (28)")

    monkeypatch.setattr(torch.UntypedStorage, "_share_fd_cpu_", full)
    _, err = command("train", f"run_dir={tmp_path}/run", *WORKERS, code=1)
    assert "a worker of the loader has ended" in sentence(err)


def starved(command: list[str], before: Callable[[], None] | None = None) -> str:
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200, preexec_fn=before)
    assert done.returncode == 1, done.stderr
    return sentence(done.stderr)


TRAIN = [sys.executable, "-W", "ignore", "-m", "knockgraph", "train", *WORKERS, "loader.timeout=100"]


@pytest.mark.full
def test_few_open_files(tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    assert "loader.num_workers=0" in starved([*TRAIN, f"run_dir={tmp_path}/run"], few)


@pytest.mark.full
def test_a_small_dev_shm(tmp_path: Path) -> None:
    private = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*private, "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    assert "loader.num_workers=0" in starved([*private, *TRAIN, f"run_dir={tmp_path}/run"])
