"""A kill at every hook of a run: the resumed run is the uninterrupted one, file by file."""

import itertools
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.trainer import call
from same_run import differences
from test_ddp import start
from training_runs import QUIET, Started, config

from knockgraph.run import train
from knockgraph.train import checkpoints, moments

pytestmark = pytest.mark.usefixtures("no_page")

HOOKS = ("_call_callback_hooks", "_call_lightning_module_hook", "_call_strategy_hook")
# Four steps an epoch, three epochs. AdamW's rate is so large that the plateau and the early stop come.
COMMON = ["trainer.max_epochs=3"]
HETERO = ["model=hetero-small", "model.options.messages.dropout=0.2"]
HETERO += ["model.options.channels=4", "model.options.messages.layers=1"]
EVERY_STEP = ["trainer.checkpoint_every_n_steps=1"]
CONFIGS = {
    "cosine": ["trainer.checkpoint_every_n_steps=4"],
    "plateau": [
        "scheduler.name=plateau",
        "scheduler.patience=0",
        "optimizer.lr=0.3",
        "trainer.checkpoint_every_n_steps=2",
    ],
    "early stopping": ["trainer.early_stopping=1", "optimizer.lr=0.3", "trainer.checkpoint_every_n_steps=3"],
    "local first": ["model.options.readout.local_first=0.7", "trainer.checkpoint_every_n_steps=4"],
    "accumulation": [
        "trainer.accumulate={0: 2, 1: 3}",
        "loss=composite",
        "loss.options.buffer_size=20",
        "trainer.checkpoint_every_n_steps=3",
    ],
    "fitted start": [
        "model=residual",
        "model.options.base=low-rank",
        "model.options.options={preset: small, channels: 4, messages: {layers: 1, dropout: 0.2}}",
        "optimizer.lr=1",
        "trainer.checkpoint_every_n_steps=3",
    ],
}


class KilledError(BaseException):
    """The end of a process, as far as one can have it without one."""


class Hooks:
    """Counts the calls of hooks and ends the run at one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, end: int | None = None) -> None:
        self.called: list[str] = []
        self.end = end
        for name in HOOKS:
            patch.setattr(call, name, self._counting(getattr(call, name)))

    def _counting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def counting(trainer: Any, hook: str, *arguments: Any, **options: Any) -> Any:
            if hook not in ("on_exception", "teardown"):
                self.called.append(hook)
                if len(self.called) == self.end:
                    raise KilledError(hook)
            return original(trainer, hook, *arguments, **options)

        return counting


def run(directory: Path, *options: str) -> Path:
    model = [] if "model=residual" in options else HETERO
    return train(config(f"run_dir={directory}", *COMMON, *model, *options), say=lambda _: None)


Whole = Callable[[str], tuple[Path, list[str]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The uninterrupted run of a config, and the hooks that it called."""
    folder = tmp_path_factory.mktemp("whole")
    made: dict[str, tuple[Path, list[str]]] = {}

    def get(name: str) -> tuple[Path, list[str]]:
        if name not in made:
            with pytest.MonkeyPatch.context() as patch:
                hooks = Hooks(patch)
                made[name] = (run(folder / name, *CONFIGS.get(name, EVERY_STEP)), hooks.called)
        return made[name]

    return get


def start_or_resume(directory: Path, options: list[str]) -> None:
    run(directory, *options, *(["resume=true"] if checkpoints.any_saved(directory / "checkpoints") else []))


def kill(whole: Path, directory: Path, options: list[str], *ends: int) -> None:
    """Start, and end at each of these hooks in turn, counted from where the run was started or resumed."""
    for end in ends:
        with pytest.MonkeyPatch.context() as patch:
            hooks = Hooks(patch, end)
            try:
                start_or_resume(directory, options)
            except KilledError as killed:
                at = f"killed at hook {end}, {killed}"
            else:
                at = f"not killed: {len(hooks.called)} hooks"
    start_or_resume(directory, options)
    assert not (found := differences(whole, directory)), f"{at}: {found}"


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("hook", ["validation_step", "on_train_epoch_end"])
def test_killed_at_the_end_of_an_epoch(name: str, hook: str, whole: Whole, tmp_path: Path) -> None:
    """A skipped epoch, a skipped step of the plateau scheduler, a run that could not be continued at all."""
    expected, hooks = whole(name)
    second = [n for n, called in enumerate(hooks, 1) if called == hook][3]  # two kinds of hooks, or the sanity check
    kill(expected, tmp_path / "run", CONFIGS[name], second)


@pytest.mark.full
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("part", range(8))
def test_killed_at_every_hook(name: str, part: int, whole: Whole, tmp_path: Path) -> None:
    expected, hooks = whole(name)
    for end in range(1 + part, len(hooks) + 1, 8):
        kill(expected, tmp_path / str(end), CONFIGS[name], end)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_killed_again_and_again(seed: int, whole: Whole, tmp_path: Path) -> None:
    choose = random.Random(seed)
    name = choose.choice(list(CONFIGS))
    expected, hooks = whole(name)
    kill(expected, tmp_path / "run", CONFIGS[name], *(choose.randrange(1, len(hooks)) for _ in range(4)))


@pytest.mark.parametrize("target", [checkpoints.NEXT, checkpoints.PREVIOUS, checkpoints.LAST])
@pytest.mark.parametrize("save", [1, 2, pytest.param(9, marks=pytest.mark.full), 15])  # 15: the end of the run
def test_killed_while_a_checkpoint_takes_its_place(target: str, save: int, whole: Whole, tmp_path: Path) -> None:
    """Before it has a name, before the last becomes the previous, and when there is no last."""
    expected, _ = whole("every step")
    directory, rename, seen = tmp_path / "run", Path.replace, 0

    def killed(path: Path, to: Path) -> Path:
        nonlocal seen
        seen += Path(to).name == target
        if seen == save:
            raise KilledError(target)
        return rename(path, to)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        try:
            run(directory, *EVERY_STEP)
        except KilledError:
            pass
        else:
            assert (target, save, seen) == (checkpoints.PREVIOUS, 15, 14)  # the first save has none
    folder = directory / "checkpoints"
    if save > 1:
        checkpoints.newest_valid(folder)
        checkpoints.find(folder, "last")
    start_or_resume(directory, EVERY_STEP)
    assert not (found := differences(expected, directory)), found
    assert not (folder / checkpoints.NEXT).exists()


@pytest.mark.parametrize("at", ["the last batch", "a batch", "the end of the validation"])
def test_a_checkpoint_of_an_earlier_version(at: str, whole: Whole, tmp_path: Path) -> None:
    """They were saved where Lightning's counters are half way, and did not say where."""
    hook, n = {"the last batch": ("validation_step", 2), "a batch": ("on_train_batch_start", 16)}.get(
        at, ("on_validation_end", 3)
    )
    expected, hooks = whole("every step")
    with pytest.MonkeyPatch.context() as patch:
        Hooks(patch, [k for k, called in enumerate(hooks, 1) if called == hook][n])
        with pytest.raises(KilledError, match=hook):
            run(tmp_path / "run", *EVERY_STEP)
    last = tmp_path / "run" / "checkpoints" / checkpoints.LAST
    state = checkpoints.load(last)
    about = state["callbacks"]["Checkpoints"]
    assert about.pop("moment") == (moments.STEP if at == "a batch" else moments.VALIDATION)
    del about["rows"]
    loop = state["loops"]["fit_loop"]
    if "batch" in at:
        for counts in (loop["epoch_loop.batch_progress"][part] for part in ("total", "current")):
            counts["completed"] -= 1
    if at == "a batch":
        loop["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
    checkpoints.save(last, state)
    run(tmp_path / "run", "resume=true")
    found = differences(expected, tmp_path / "run")  # of the rows only those of the validation stand twice
    assert not [place for place in found if "metrics.csv" not in place and "/rows" not in place]


# ── kill −9, any config, one process or two ──────────────────────────────────────────────────────────────────────────


def die_at(end: int | None, counted: Path) -> None:
    """In a process of its own: count the hooks, and be killed at one of them."""
    calls = itertools.count(1)

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*arguments: Any, **options: Any) -> Any:
            number = next(calls)
            counted.write_text(str(number))
            if number == end:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return hook

    for name in HOOKS:
        setattr(call, name, counting(getattr(call, name)))


def any_config(choose: random.Random) -> list[str]:
    composite = ["loss=composite", f"loss.options.buffer_size={choose.randrange(8, 40)}"]
    return [
        *[
            "trainer.max_epochs=3",
            "model.options.messages.dropout=0.2",
            "data.experiments=81",
            "trainer.precision=32-true",
        ],
        *["model=hetero-small", "model.options.channels=4", "model.options.messages.layers=1"],
        f"scheduler.name={choose.choice(['cosine', 'plateau', 'none'])}",
        "scheduler.patience=0",
        f"optimizer.lr={choose.choice([0.003, 0.3])}",
        f"trainer.early_stopping={choose.choice(['null', '1', '2'])}",
        f"trainer.accumulate={choose.choice(['{0: 1}', '{0: 2, 1: 4}', '{0: 3}'])}",
        f"trainer.checkpoint_every_n_steps={choose.randrange(1, 12)}",
        f"trainer.log_every_n_steps={choose.randrange(1, 5)}",
        *choose.choice([["loss=mse"], ["loss=log-cosh"], composite]),
        f"model.options.readout.local_first={choose.choice([0, 0.4, 0.7])}",
        f"strategy={choose.choice(['node-mask', 'lazy-mask', 'stored-indices', 'device-vectorized'])}",
        f"loader.num_workers={choose.choice([0, 0, 1])}",
    ]


def processes(directory: Path, number: int, options: list[str], end: int | None = None) -> int:
    """Start or resume a run in one process or two, killed at a hook if it comes so far; how many hooks it called."""
    resume = ["resume=true"] if checkpoints.any_saved(directory / "checkpoints") else []
    counted = directory.with_suffix(".hooks")
    before = partial(die_at, end, counted)
    if number == 1:
        started = [Started("train", f"run_dir={directory}", *QUIET, *options, *resume, before=before)]
    else:
        started = start(directory, *options, *resume, before=before)
    for process in started:
        process.wait(0 if end is None else None)
    return int(counted.read_text())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 20))])
def test_any_config_killed_anywhere(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    number = 1 + seed % 2
    options = [*any_config(choose), f"loader.batch_size={16 // number}"]
    hooks = processes(tmp_path / "whole", number, options)
    end = choose.randrange(1, hooks)
    processes(tmp_path / "run", number, options, end)
    processes(tmp_path / "run", number, options)
    found = differences(tmp_path / "whole", tmp_path / "run")
    assert not found, f"{options}, killed at hook {end} of {hooks}: {found}"
