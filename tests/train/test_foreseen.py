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
from knockgraph.train import checkpoints

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


def edited(finished: Path, directory: Path, *edits: tuple[str, str]) -> Path:
    shutil.copytree(finished, directory)
    text = (directory / "config.yaml").read_text()
    for there, instead in edits:
        assert there in text
        text = text.replace(there, instead)
    (directory / "config.yaml").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("there", "instead", "said"),
    [
        ("batch_size: 16", "batch_size: 64", "loader.batch_size is 64 there and was 16"),
        ("name: mse", "name: log-cosh", "loss.name is 'log-cosh' there and was 'mse'"),
        ("mlp_layers: 2", "mlp_layers: 5", "model.options.messages.mlp_layers is 5 there and was 2"),
        ("residual: false", "residual: true", "model.options.messages.residual is True there and was False"),
        ("channels: 8", "channels: 8\n    no_such: 1", "model.options.no_such is 1 there and was not set"),
    ],
)
def test_an_edited_config(
    tmp_path: Path, finished: Path, command: Command, there: str, instead: str, said: str
) -> None:
    """Some of these fit the checkpoint, and were trained on and predicted with without a word."""
    directory = edited(finished, tmp_path / "run", (there, instead))
    for words in (["train", f"run_dir={directory}", "resume=true", "trainer.max_epochs=3"], ["evaluate", directory]):
        _, err = command(*map(str, words), code=1)
        assert f"{directory}/config.yaml is no longer what the run was trained with ({said}); restore it" in sentence(
            err
        )


def test_an_edit_that_could_be_an_override(tmp_path: Path, finished: Path, command: Command) -> None:
    edits = [
        ("max_epochs: 2", "max_epochs: 3"),
        ("progress_bar: false", "progress_bar: true"),
        ("cell: demo", "cell: x"),
    ]
    directory = edited(finished, tmp_path / "run", *edits)
    command("train", f"run_dir={directory}", "resume=true", "trainer.progress_bar=false")
    assert checkpoints.load(directory / "checkpoints" / checkpoints.LAST)["epoch"] == 3


def test_an_edited_config_of_an_earlier_version(tmp_path: Path, finished: Path, command: Command) -> None:
    """Its checkpoints do not say what they were trained with."""
    directory = edited(finished, tmp_path / "run", ("channels: 8", "channels: 5"))
    for path in (directory / "checkpoints").glob("*.ckpt"):
        state = checkpoints.load(path)
        del state["knockgraph"]["config"]
        checkpoints.save(path, state)
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
