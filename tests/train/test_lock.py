"""One process at a time trains into a run directory; nothing stale is left by one that was killed."""

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from test_ddp import start
from training_runs import LEAST, Started, run, saved_step, wait_for_steps

from knockgraph.errors import KnockgraphError
from knockgraph.train.lock import NAME, RunLock

LONG = ["trainer.max_epochs=100000", "trainer.checkpoint_every_n_steps=5"]
Command = Callable[..., tuple[str, str]]


def other_process(directory: Path) -> int:
    """0 if a process of its own gets the lock."""
    child = os.fork()
    if child == 0:
        try:
            RunLock(directory).acquire()
        except KnockgraphError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_it_belongs_to_one_process(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.acquire()  # it is held already
    assert other_process(tmp_path) == 1
    assert f"process {os.getpid()} on " in (tmp_path / NAME).read_text()
    lock.release()
    assert not list(tmp_path.iterdir())
    assert other_process(tmp_path) == 0  # it ends without giving it back
    assert other_process(tmp_path) == 0


def test_the_file_may_vanish_while_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process before removes its file after we have opened it: the lock would be worth nothing."""
    lockf, calls = fcntl.lockf, []

    def late(handle: int, how: int) -> None:
        if not calls:
            (tmp_path / NAME).unlink()
        calls.append(how)
        lockf(handle, how)

    monkeypatch.setattr(fcntl, "lockf", late)
    RunLock(tmp_path).acquire()
    assert len(calls) == 2
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize(("resume", "workers"), [(False, 0), pytest.param(True, 1, marks=pytest.mark.full)])
def test_a_second_run_is_refused(tmp_path: Path, resume: bool, workers: int) -> None:
    directory = tmp_path / "run"
    first = Started("train", f"run_dir={directory}", *LEAST, *LONG, f"loader.num_workers={workers}")
    try:
        wait_for_steps(first, directory, 5)
        said = run("train", f"run_dir={directory}", *LEAST, *(["resume=true"] if resume else []), code=1).stderr
        assert said.startswith(f"error: {directory} is in use: process {first.process.pid} on ")
        assert said.count("\n") == 1
        assert first.process.is_alive()
    finally:
        first.process.kill()
        first.wait(code=None)
    # Killed, it holds the lock no longer, although its workers may live for some seconds.
    step = saved_step(directory)
    again = Started("train", f"run_dir={directory}", "resume=true")
    wait_for_steps(again, directory, step + 5)
    os.kill(again.process.pid or 0, signal.SIGTERM)
    again.wait(75)
    assert not (directory / NAME).exists()


def test_a_refused_start_leaves_nothing(tmp_path: Path, command: Command) -> None:
    command("train", f"run_dir={tmp_path}/run", *LEAST, "data.relations=[nothing]", code=1)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()
    command("train", f"run_dir={tmp_path}/mine", *LEAST, "data.relations=[nothing]", code=1)
    assert not list((tmp_path / "mine").iterdir())


def test_the_number_of_processes_is_the_runs_own(tmp_path: Path, command: Command) -> None:
    directory = tmp_path / "run"
    command("train", f"run_dir={directory}", *LEAST)
    for rank in start(directory, "resume=true"):
        said = rank.wait(1).stderr
        assert "torchrun started 2 processes, but trainer.devices × trainer.num_nodes is 1" in said
        assert said.count("\n") == 1
