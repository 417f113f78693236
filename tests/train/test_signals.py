"""Signals: the step under way is finished, the run is saved, one sentence says how to go on."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from same_run import differences
from test_ddp import OPTIONS, TWO, start
from training_runs import LEAST, Started, config, environment, saved_step, wait_for_steps

from knockgraph.run import train
from knockgraph.train.interrupt import InterruptedRun
from knockgraph.train.task import Task

pytestmark = pytest.mark.usefixtures("no_page")

LONG = ["trainer.max_epochs=100000", "trainer.checkpoint_every_n_steps=7"]
CODES = {signal.SIGTERM: 75, signal.SIGUSR1: 75, signal.SIGHUP: 75, signal.SIGINT: 130}


def raised(at: str, number: int, call: int, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The process hears a signal in the n-th call of a method of the task."""
    original, calls = getattr(Task, at), []

    def heard(self: Task, *arguments: Any) -> Any:
        calls.append(1)
        for _ in range(times if len(calls) == call else 0):
            os.kill(os.getpid(), number)
        return original(self, *arguments)

    monkeypatch.setattr(Task, at, heard)


OPTIONS_OF_ONE = ["trainer.max_epochs=3", "trainer.checkpoint_every_n_steps=100"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("signals") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("knockgraph.run.write_report", lambda *_: None)  # as in the runs that it is compared with
        return train(config(f"run_dir={directory}", *OPTIONS_OF_ONE), say=lambda _: None)


# Four steps an epoch; the first validation step is the sanity check's.
@pytest.mark.parametrize(
    ("number", "at", "call", "step"),
    [
        (signal.SIGTERM, "training_step", 2, 2),
        (signal.SIGUSR1, "training_step", 4, 4),  # the last of an epoch
        (signal.SIGHUP, "validation_step", 2, 4),
        (signal.SIGINT, "on_validation_epoch_end", 3, 8),
    ],
)
def test_nothing_is_lost(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, at: str, call: int, step: int
) -> None:
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        raised(at, number, call, patch)
        with pytest.raises(InterruptedRun, match=f"continue with: knockgraph train run_dir={tmp_path}/run") as stopped:
            train(config(f"run_dir={tmp_path}/run", *OPTIONS_OF_ONE), say=lambda _: None)
    assert stopped.value.by == number
    assert stopped.value.code == CODES[number]
    assert saved_step(tmp_path / "run") == step
    assert signal.getsignal(number) is before
    train(config(f"run_dir={tmp_path}/run", "resume=true"), say=lambda _: None)
    found = differences(whole, tmp_path / "run")
    assert not [place for place in found if "previous" not in place]  # a run that is saved once more has another one


@pytest.mark.parametrize(("number", "saved"), [(signal.SIGTERM, True), (signal.SIGUSR1, True), (signal.SIGINT, False)])
def test_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, saved: bool) -> None:
    """Schedulers send a signal again, and srun passes it on: the step was left without saving. Ctrl-C means it."""
    raised("training_step", number, 2, monkeypatch, times=2)
    with pytest.raises(InterruptedRun) as stopped:
        train(config(f"run_dir={tmp_path}/run"), say=lambda _: None)
    assert (stopped.value.by, stopped.value.resumable) == (number, saved)


def test_a_handler_of_somebody_else_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda *_: heard.append(1))
    try:
        raised("training_step", signal.SIGUSR1, 1, monkeypatch)
        train(config(f"run_dir={tmp_path}/run"), say=lambda _: None)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [1]


@pytest.mark.parametrize("number", CODES)
def test_exit_codes(tmp_path: Path, number: signal.Signals) -> None:
    started = Started("train", f"run_dir={tmp_path}/run", *LEAST, *LONG)
    wait_for_steps(started, tmp_path / "run", 7)
    os.kill(started.process.pid or 0, number)
    said = started.wait(CODES[number]).stderr
    what = "interrupted" if number == signal.SIGINT else f"stopped by {number.name}"
    assert said == f"{what}; continue with: knockgraph train run_dir={tmp_path}/run resume=true\n"


def test_outside_of_the_training(tmp_path: Path) -> None:
    """While the test part is predicted nothing has to be waited for."""
    before = partial(slowly, "knockgraph.evaluate.predict_rows", tmp_path / "reached")
    started = Started("train", f"run_dir={tmp_path}/run", *LEAST, before=before)
    wait_for(tmp_path / "reached", started)
    os.kill(started.process.pid or 0, signal.SIGTERM)
    assert "stopped by SIGTERM; continue with" in started.wait(75).stderr
    assert not (tmp_path / "run" / "result.json").exists()


def slowly(name: str, reached: Path) -> None:
    """Replace a function by one that takes a minute."""
    module, _, function = name.rpartition(".")

    def slow(*_: Any) -> None:
        reached.touch()
        time.sleep(60)

    setattr(sys.modules[module], function, slow)


def wait_for(path: Path, started: Started) -> None:
    deadline = time.time() + 100
    while not path.exists():
        assert started.process.is_alive()
        assert time.time() < deadline
        time.sleep(0.01)


# ── several processes ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("heard_by", [[0], [1], [0, 1, 0, 1]])
def test_ranks_stop_together(tmp_path: Path, heard_by: list[int]) -> None:
    """Whoever hears it, and however often: torchrun passes a signal on to processes that have heard it themselves."""
    options = ["trainer.max_epochs=100000", "trainer.log_every_n_steps=2"]
    ranks = start(tmp_path / "run", *options, "trainer.checkpoint_every_n_steps=3")
    wait_for_steps(ranks[0], tmp_path / "run", 3)
    for rank in heard_by:
        os.kill(ranks[rank].process.pid or 0, signal.SIGTERM)
    said = [rank.wait(75) for rank in ranks]
    assert said[0].stderr == f"stopped by SIGTERM; continue with: knockgraph train run_dir={tmp_path}/run resume=true\n"
    assert said[1].stderr == ""
    assert saved_step(tmp_path / "run") % 5 in (0, 2, 4)  # the ends of the epochs, and every second step


def stopped_or_killed(tmp_path: Path, number: int, *options: str) -> str:
    """What the first rank says when the second one is stopped or killed."""
    ranks = start(tmp_path / "run", "trainer.max_epochs=100000", "trainer.checkpoint_every_n_steps=3", *options)
    try:
        wait_for_steps(ranks[0], tmp_path / "run", 3)
        os.kill(ranks[1].process.pid or 0, number)
        said = ranks[0].wait(1)
    finally:
        ranks[1].process.kill()
        ranks[1].wait(code=None)
    assert said.stderr.count("\n") == 1, said.stderr
    assert said.stderr.startswith("error: ")
    assert f"continue with knockgraph train run_dir={tmp_path}/run resume=true" in said.stderr
    return said.stderr


def test_a_lost_rank(tmp_path: Path) -> None:
    said = stopped_or_killed(tmp_path, signal.SIGKILL)
    assert "another process of this run has ended, and this one cannot continue alone" in said


def test_a_frozen_rank(tmp_path: Path) -> None:
    said = stopped_or_killed(tmp_path, signal.SIGSTOP, "trainer.process_timeout=3")
    assert "a process of this run has not responded for 3 s (trainer.process_timeout)" in said


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_torchrun(tmp_path: Path, number: int) -> None:
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = ["-m", "knockgraph", "train", f"run_dir={tmp_path}/run", *OPTIONS, *TWO, "trainer.max_epochs=100000"]
    words.append("trainer.checkpoint_every_n_steps=3")
    pipe = subprocess.PIPE
    with subprocess.Popen([*launcher, *words], env=environment(), stderr=pipe, text=True, process_group=0) as started:
        while saved_step(tmp_path / "run") < 3:
            assert started.poll() is None
            time.sleep(0.1)
        # Ctrl-C reaches the whole group, SIGTERM the launcher.
        os.killpg(started.pid, number) if number == signal.SIGINT else started.terminate()
        _, err = started.communicate(timeout=60)
    assert err.count("continue with: knockgraph train") == 1
    assert "knockgraph/train" not in err  # no traceback of ours; the launcher shows its own
