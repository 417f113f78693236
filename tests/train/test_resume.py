"""A killed run continues as if nothing had happened: same order, same weights, bit for bit."""

import shutil
from pathlib import Path

import pytest
from training_runs import config, kill_after_steps, run, same, saved_step, train, weights

from knockgraph.run import train as in_process
from knockgraph.train import checkpoints
from knockgraph.train.metrics_file import curves
from knockgraph.train.task import Task

pytestmark = pytest.mark.usefixtures("no_page")

OPTIONS = [
    "model.options.messages.dropout=0.2",  # uses the random state
    "trainer.max_epochs=3",
    "trainer.checkpoint_every_n_steps=3",
    "loss=composite",
    "loss.options.buffer_size=40",  # a ring buffer that is full in the middle of an epoch
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("resume") / "whole"
    train(directory, *OPTIONS)
    return directory


@pytest.mark.parametrize(
    "steps",
    [
        9,
        pytest.param(25, marks=pytest.mark.full),
        pytest.param(40, marks=pytest.mark.full),
        pytest.param(51, marks=pytest.mark.full),
    ],
)
def test_killed_in_the_middle_of_an_epoch(uninterrupted: Path, tmp_path: Path, steps: int) -> None:
    directory = tmp_path / "killed"
    kill_after_steps(directory, steps, *OPTIONS)
    at = saved_step(directory)
    assert steps <= at < 75
    said = train(directory, "resume=true").stdout
    assert "resuming from" in said
    assert same(weights(uninterrupted), weights(directory))
    assert same(weights(uninterrupted, "best-error"), weights(directory, "best-error"))
    # The curves are whole, too; the kill may have come between a checkpoint and the row of its last step.
    for name, least in (("train/loss", 74), ("val/mse", 2)):
        expected, found = (curves(d / "metrics.csv")[name] for d in (uninterrupted, directory))
        assert set(found) <= set(expected)
        assert least <= len(found) == len(set(found))


@pytest.mark.gpu
def test_killed_on_a_gpu(tmp_path: Path) -> None:
    """Where steps are replayed: those of the run that goes on are recorded anew."""
    options = [*OPTIONS, "trainer.accelerator=gpu", "trainer.precision=32-true", "model.options.channels=16"]
    train(tmp_path / "whole", *options)
    kill_after_steps(tmp_path / "killed", 9, *options)
    train(tmp_path / "killed", *options, "resume=true")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_killed_at_any_moment(uninterrupted: Path, tmp_path: Path, seed: int) -> None:
    directory = tmp_path / "killed"
    kill_after_steps(directory, 3 + 3 * seed, *OPTIONS, extra_seconds=0.013 * seed)
    train(directory, "resume=true")
    assert same(weights(uninterrupted), weights(directory))


class StoppedError(Exception):
    """The end of a run, at any place in it."""


CACHED = ["model=hetero-small", "model.options.channels=4", "model.options.messages.layers=2", "trainer.max_epochs=3"]
CACHED += ["model.options.readout.wild_type=cached-epoch", "trainer.checkpoint_every_n_steps=1"]


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return in_process(config(f"run_dir={tmp_path_factory.mktemp('cached')}/whole", *CACHED), say=lambda _: None)


@pytest.mark.parametrize("stop", [(0, 3), (1, 0), (1, 2), (2, 3)])
def test_a_cached_wild_type_goes_on_as_it_was(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: tuple[int, int]
) -> None:
    """In the middle of an epoch the wild type is the one of its start, although the weights have changed since."""
    stopped = tmp_path / "stopped"

    def end(task: Task, batch: object, batch_idx: int) -> None:
        if (task.current_epoch, batch_idx) == stop:
            raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(Task, "on_train_batch_start", end)
        with pytest.raises(StoppedError):
            in_process(config(f"run_dir={stopped}", *CACHED), say=lambda _: None)
    assert saved_step(stopped) == 4 * stop[0] + stop[1]
    in_process(config(f"run_dir={stopped}", "resume=true"), say=lambda _: None)
    assert any("z_wild_type" in name for name in weights(cached))
    assert same(weights(cached), weights(stopped))


def test_a_damaged_last_checkpoint_costs_only_the_work_since_the_previous(uninterrupted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "damaged"
    kill_after_steps(directory, 12, *OPTIONS)
    last = directory / "checkpoints" / checkpoints.LAST
    if not last.exists():  # killed between the two renames
        shutil.copy(last.with_name(checkpoints.PREVIOUS), last)
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    said = train(directory, "resume=true").stdout
    assert "skipped:" in said
    assert "damaged" in said
    assert same(weights(uninterrupted), weights(directory))


def test_refusals(uninterrupted: Path, tmp_path: Path) -> None:
    assert "already holds a run" in train(uninterrupted, code=1).stderr
    nothing = tmp_path / "nothing"
    assert f"is {nothing} a run directory?" in train(nothing, "resume=true", code=1).stderr
    assert "needs run_dir" in run("train", "resume=true", code=1).stderr
