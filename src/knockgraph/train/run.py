"""A training run: its directory, what it is started or resumed from, what it leaves.

A run directory holds::

    config.yaml           the resolved config
    cell.cellgraph        the cell graph, so that prediction needs no other file
    screen.parquet        the screen, where the run was made in Python (kg.fit) or copied (Fitted.save)
    data.split            the training, validation and test parts
    metrics.csv           one row per logged step and epoch (TensorBoard events beside it)
    checkpoints/          last, previous, best-error, best-score; of a model that is fitted at once only last
    predictions.parquet   the test part: genes, measured, predicted
    intervals.json        half widths of the intervals around predictions, from the validation part
    result.json           the figures of the report
    report.html           curves, predicted against measured, the table against baselines
    plots/                pictures during the run, with trainer.plot_every_n_epochs
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import lightning.pytorch as pl
import torch

from knockgraph import models
from knockgraph.errors import (
    ConfigError,
    FileFormatError,
    KnockgraphError,
    NotFiniteError,
    TrainingStoppedError,
)
from knockgraph.files import atomic_write, check_folder
from knockgraph.graph import CellGraph
from knockgraph.models.fitted import FittedModel
from knockgraph.models.model import parameter_counts
from knockgraph.models.presets import too_small
from knockgraph.phases import LOGGING, phase
from knockgraph.screen import LabelTransform, PerturbationBatch
from knockgraph.train import checkpoints, foreseen, intervals, memory, slurm, wandb_run
from knockgraph.train.config import dump, load
from knockgraph.train.data import SCREEN, TrainingData
from knockgraph.train.empty import EmptyTask
from knockgraph.train.finite import Finite
from knockgraph.train.groups import BEST_OF_LARGER_CLASSES
from knockgraph.train.interrupt import Interrupt, InterruptedRun
from knockgraph.train.lock import RunLock
from knockgraph.train.metrics_file import cut
from knockgraph.train.overrides import changed, check_unedited, trained_with
from knockgraph.train.predictor import MOST_NAMED, Say, load_run
from knockgraph.train.saving import Checkpoints
from knockgraph.train.schema import EMPTY, Config, check_baselines, with_options_spelled_out
from knockgraph.train.task import Task
from knockgraph.train.trainer import callback, is_main_process, make_trainer, quiet, set_epochs
from knockgraph.words import counted, listed

Watch = Callable[[Config, pl.Trainer, int, Path], None]
"""Adds timers to a trainer that is about to fit, given the number of training samples and the run directory."""
Finish = Callable[[Config, TrainingData, Task, Path, float, Say], None]
"""Tests and reports a trained task, given the run directory and the seconds that the training took."""
_ENOUGH_PAIRS = 1000  # for models that are fitted to pairs


def fit(
    config: Config,
    watch: Watch,
    finish: Finish,
    say: Say = print,
    max_epochs: int | None = None,
    overrides: Sequence[str] = (),
    given: TrainingData | None = None,
) -> Path:
    """Run or resume what the config says; returns the run directory.

    A resumed run keeps the config it was started with, but for ``max_epochs`` and ``overrides``.

    Args:
        config: The config.
        watch: Called with the trainer before it fits, where ``trainer.profile`` asks for it.
        finish: Called in the first process after the training.
        say: Told what a person should know.
        max_epochs: Lets a resumed run train for longer (or shorter) than it was started for.
        overrides: ``key=value``, of those in ``config`` the ones that are meant to change a resumed run.
        given: What to learn from, instead of what the config names; the run directory gets a copy of the screen.
    """
    _check_processes(config)
    directory = _directory(config)
    config = with_options_spelled_out(config)
    if max_epochs is not None:
        config.trainer.max_epochs, overrides = max_epochs, [*overrides, f"trainer.max_epochs={max_epochs}"]
    interrupt, lock = Interrupt(), RunLock(directory)
    try:
        with interrupt.listening():
            said = say if is_main_process() else _silent
            _fit(config, watch, finish, overrides, directory, interrupt, lock, said, given)
    except NotFiniteError:
        if is_main_process():
            raise
        raise SystemExit(1) from None  # all processes stop together, and the first one says why
    except KeyboardInterrupt as stopped:
        saved = checkpoints.any_saved(directory / "checkpoints")
        raise InterruptedRun(directory, saved, interrupt.asked or signal.SIGINT) from stopped
    finally:
        lock.release()
    return directory


def _fit(
    config: Config,
    watch: Watch,
    finish: Finish,
    overrides: Sequence[str],
    directory: Path,
    interrupt: Interrupt,
    lock: RunLock,
    say: Say,
    given: TrainingData | None,
) -> None:
    if models.is_fitted(config.model.name):
        fit_at_once(config, finish, overrides, directory, lock, say, given)
        return
    folder = directory / "checkpoints"
    main = is_main_process()
    resume_from: Path | None = None
    if main and directory.is_dir():
        lock.acquire()
    if config.requeue and checkpoints.any_saved(folder):
        _check_same(config, load(directory / "config.yaml"), directory)
        config.resume = True
    if config.resume:
        config = _kept(directory, config, overrides)
        check_baselines(config)
        resume_from = _newest(folder, main, say)
        _check_resumable(config, resume_from)
    else:
        _check_new(directory)
        check_folder(directory)
    quiet()
    if config.resume:
        data = TrainingData.from_directory(config, directory)
    else:
        data = TrainingData.from_config(config) if given is None else given
    set_epochs(config, len(data.rows["train"]))
    task = make_task(config, data.graph, data.transform)
    task.trained_genes, task.trained_sizes = data.deleted("train"), data.sizes("train")
    task.model.set_known(task.trained_genes)
    if resume_from is None:
        parts = [(data.rows[part], data.targets(part)) for part in ("train", "val")]
        task.model.prepare(data.bound, *parts[0], parts[1], data.classes)
    trainer = make_trainer(config, directory, folder, say)
    if config.trainer.profile != "off":
        watch(config, trainer, len(data.rows["train"]), directory)
    if main:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        if resume_from is None:
            _check_new(directory)  # again: another process may have had the lock before
            cut(directory / "metrics.csv", 0)
        else:
            saved = checkpoints.load(resume_from)
            cut(directory / "metrics.csv", checkpoints.rows_of(saved), int(saved["global_step"]))
        _write_directory(config, data, directory, given is not None)
        task.strategy.prepare(data.bound, directory / "store")
        _announce(config, data, task, directory, say)
    if main:
        _check_memory(config, trainer, task, say)
    start = time.perf_counter()
    _train(config, trainer, task, data, directory, resume_from, interrupt)
    seconds = time.perf_counter() - start
    if main:
        # Lightning has moved the task back to the host; the test part is predicted where it was trained.
        with foreseen.explained(config, directory):
            finish(config, data, task.to(trainer.strategy.root_device), directory, seconds, say)


def fit_at_once(
    config: Config,
    finish: Finish,
    overrides: Sequence[str],
    directory: Path,
    lock: RunLock,
    say: Say,
    given: TrainingData | None,
) -> None:
    """Fit a baseline, save it and finish as after a training; a run that was fitted before is only finished."""
    if config.trainer.devices * config.trainer.num_nodes > 1:
        raise ConfigError(
            f"config key 'trainer.devices': {config.model.name} is fitted by one process; set trainer.devices and "
            "trainer.num_nodes to 1"
        )
    folder = directory / "checkpoints"
    if directory.is_dir():
        lock.acquire()
    done = (config.resume or config.requeue) and checkpoints.any_saved(folder)
    if done:
        config = _kept(directory, config, overrides)
    else:
        _check_new(directory)
        check_folder(directory)
    quiet()
    if done:
        data = TrainingData.from_directory(config, directory)
    else:
        data = TrainingData.from_config(config) if given is None else given
    task = load_task(directory)[1] if done else make_task(config, data.graph, data.transform)
    start = time.perf_counter()
    if not done:
        directory.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        _check_new(directory)
        _write_directory(config, data, directory, given is not None)
        _announce(config, data, task, directory, say)
        parts = [(data.rows[part], data.targets(part)) for part in ("train", "val")]
        task.model.prepare(data.bound, *parts[0], parts[1], data.classes)
        seen = ["train"]
        if refits(config, data):
            say("fitting again, on the training and the validation part, with the settings that the latter has chosen")
            assert isinstance(task.model, FittedModel)
            task.model.fit_again(data.bound, parts)
            seen.append("val")
        about: dict[str, object] = {"graph": task.graph_hash, "transform": task.transform.state_dict()}
        about |= {"trained_genes": data.deleted(*seen), "trained_sizes": data.sizes(*seen)}
        about["config"] = trained_with(config)
        folder.mkdir(exist_ok=True)
        checkpoints.save(folder / checkpoints.LAST, {"state_dict": dict(task.state_dict()), "knockgraph": about})
    model = task.model
    assert isinstance(model, FittedModel)
    with foreseen.explained(config, directory):  # the test part is predicted where it was fitted
        finish(config, data, task.to(model.baseline.device), directory, time.perf_counter() - start, say)


def refits(config: Config, data: TrainingData) -> bool:
    """Whether what is fitted at once is fitted again, on the validation part, too."""
    return config.trainer.refit and not config.trainer.overfit_batches and len(data.rows["val"]) > 0


def _kept(directory: Path, given: Config, overrides: Sequence[str]) -> Config:
    """The config that a run was started with, to go on with."""
    kept = load(directory / "config.yaml")
    _check_processes(kept)
    kept.resume, kept.run_dir = True, str(directory)
    return changed(kept, given, overrides)


def _check_resumable(config: Config, resume_from: Path) -> None:
    saved = checkpoints.load(resume_from)
    if not {"epoch", "global_step", "loops", "callbacks", "optimizer_states", "knockgraph"} <= saved.keys():
        raise FileFormatError(f"{resume_from} is a checkpoint, but not one that a run can be resumed from")
    check_unedited(config, saved["knockgraph"].get("config"), resume_from.parent.parent / "config.yaml")
    done, wanted = int(saved["epoch"]), config.trainer.max_epochs
    if wanted is not None and -1 < wanted < done:
        raise ConfigError(
            f"config key 'trainer.max_epochs': this run has trained for {done} epochs already, more than {wanted}; "
            "give it more"
        )


def _newest(folder: Path, main: bool, say: Say) -> Path:
    """The checkpoint to go on from."""
    found, problems = checkpoints.newest_valid(folder)
    for problem in problems:
        say(f"skipped: {problem}")
    say(f"resuming from {found}")
    last = folder / checkpoints.LAST
    if main and found != last and last.is_file():  # it must not take the place of the good one at the next save
        say(f"kept as {checkpoints.set_aside(last)}")
    return found


def _check_new(directory: Path) -> None:
    if checkpoints.any_saved(directory / "checkpoints"):
        raise KnockgraphError(
            f"{directory} already holds a run; continue it with resume=true or choose another run_dir"
        )


def _silent(text: str) -> None:
    del text


def _check_memory(config: Config, trainer: pl.Trainer, task: Task, say: Say) -> None:
    """On a GPU, before anything is trained; no random number is used up."""
    device = trainer.strategy.root_device
    if device.type != "cuda":
        return
    task.to(device)

    def step(n: int) -> None:
        genes = task.num_genes
        batch = PerturbationBatch.from_lists([[k % genes, (7 * k + 1) % genes] for k in range(n)], genes).to(device)
        columns = batch.with_wild_type() if task.model.perturbs else batch.only_wild_type()
        with trainer.precision_plugin.forward_context(), task.strategy(columns) as view:
            task.model(view, batch).values.sum().backward()
        task.zero_grad(set_to_none=True)

    with torch.random.fork_rng(devices=[device]):
        memory.check_training(step, config.loader.batch_size, config.strategy.name, device, say)


def _train(
    config: Config,
    trainer: pl.Trainer,
    task: Task,
    data: TrainingData,
    directory: Path,
    resume_from: Path | None,
    interrupt: Interrupt,
) -> None:
    finite, saver = callback(trainer, Finite), callback(trainer, Checkpoints)
    interrupt.save = saver.save_last
    trainer.callbacks.append(interrupt)  # type: ignore[attr-defined]

    def between_batches() -> None:
        with phase(LOGGING, "Checkpoints"):
            finite.between_batches(trainer)
            saver.between_batches(trainer)
            interrupt.between_batches(trainer)

    data.between_batches = between_batches
    memory_of = memory.explained(config.loader.batch_size, config.strategy.name, trainer.strategy.root_device)
    interrupt.training = True
    try:
        with foreseen.explained(config, directory), memory_of:
            trainer.fit(task, datamodule=data, ckpt_path=None if resume_from is None else str(resume_from))
    except SystemExit as ended:  # Lightning's answer to a KeyboardInterrupt
        if not isinstance(ended.__context__, KeyboardInterrupt):
            raise  # somebody else's: submitit has put the job back into the queue
        raise KeyboardInterrupt from ended
    except TrainingStoppedError as error:  # a process that heard the signal, too, is missed
        if interrupt.asked is None:
            raise
        raise KeyboardInterrupt from error
    finally:
        interrupt.training = False
        data.close()
        wandb_run.finish(trainer)


def _check_processes(config: Config) -> None:
    wanted = config.trainer.devices * config.trainer.num_nodes
    if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        running = int(os.environ["WORLD_SIZE"])
        if running != wanted:
            raise ConfigError(
                f"config key 'trainer.devices': torchrun started {running} processes, but trainer.devices × "
                f"trainer.num_nodes is {wanted}; make them equal"
            )
    elif slurm.used():
        slurm.check_tasks(config.trainer)
    if wanted > 1 and config.run_dir is None:
        raise ConfigError(
            f"config key 'run_dir': {wanted} processes need run_dir=DIRECTORY, so that all of them mean the same one"
        )


def _check_same(config: Config, kept: Config, directory: Path) -> None:
    """A job that is started again is the same job; where a run lies and how it goes on may differ."""
    if config.trainer.max_epochs is None:
        config.trainer.max_epochs = kept.trainer.max_epochs  # what the size of the screen made of it
    for part in fields(Config):
        given, found = getattr(config, part.name), getattr(kept, part.name)
        if part.name not in ("run_dir", "resume", "requeue") and given != found:
            raise KnockgraphError(
                f"{directory} holds a run with another config (its {part.name!r} differs); choose another run_dir, or "
                "continue that run with resume=true"
            )


def _directory(config: Config) -> Path:
    if config.run_dir is not None:
        return Path(config.run_dir)
    for key in ("resume", "requeue"):
        if getattr(config, key):
            raise KnockgraphError(f"{key}=true needs run_dir=DIRECTORY, the run to continue")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = re.sub(r"[^\w.-]+", "-", f"{config.model.name}-{config.strategy.name}")  # package.module:Class has a colon
    return Path("runs") / f"{name}-seed{config.seed}-{stamp}"


def make_task(config: Config, graph: CellGraph, transform: LabelTransform) -> Task:
    """The task that the config names, with the weights of its seed: the same on every rank and for every strategy."""
    torch.manual_seed(config.seed)
    with foreseen.model_that_fits(config):
        return (EmptyTask if config.task in EMPTY else Task)(config, graph, transform)


def _write_directory(config: Config, data: TrainingData, directory: Path, with_screen: bool) -> None:
    with atomic_write(directory / "config.yaml") as part:
        # What the run is, not how it was started or continued.
        part.write_text(dump(replace(config, resume=False, requeue=False)), encoding="utf-8")
    (directory / intervals.FILE).unlink(missing_ok=True)  # of another checkpoint than the one to come
    if config.resume:
        return  # the others are what the run was started with
    data.graph.save(directory / "cell.cellgraph")
    if with_screen:
        data.screen.save(directory / SCREEN)
    replace(data.split, labels_hash=data.bound.labels_hash).save(directory / "data.split")


def _better_here(config: Config, data: TrainingData) -> str | None:
    """That another model was better on such a screen, if it is not compared anyway."""
    larger = 2 * int((data.bound.num_perturbed > 2).sum()) > len(data.bound)
    known = {config.model.name, *config.trainer.baselines}
    if larger and data.classes and BEST_OF_LARGER_CLASSES not in known:
        return (
            "most genotypes of this screen have three genes or more; on classes of such genotypes "
            f"model={BEST_OF_LARGER_CLASSES} was ahead"
        )
    told = models.is_fitted(config.model.name) or "profile-propagation" in config.trainer.baselines
    pairs = int((data.bound.num_perturbed == 2).sum())
    if told or config.task != "regression" or pairs < max(_ENOUGH_PAIRS, 0.9 * len(data.bound)):
        return None
    return (
        "nearly all genotypes of this screen have two genes; on real screens of pairs model=profile-propagation, which "
        "data=interactions chooses, was ahead"
    )


def _announce(config: Config, data: TrainingData, task: Task, directory: Path, say: Say) -> None:
    sizes = ", ".join(f"{part} {len(rows):,}" for part, rows in data.rows.items())
    of_part = parameter_counts(task.model)
    parts = ", ".join(f"{name} {count:,}" for name, count in of_part.items()) if len(of_part) > 1 else ""
    parameters = f"{sum(of_part.values()):,} parameters{f' ({parts})' if parts else ''}"
    memory = ", ".join(f"{part} {n / 1e6:,.1f} MB" for part, n in task.strategy.memory().items())
    tables = task.strategy.tables()
    if len(tables) > 1:
        memory += f"; tables: {', '.join(f'{part} {n / 1e6:,.1f} MB' for part, n in tables.items())}"
    say(f"{data.graph}")
    what = task.phenotypes
    labels = f"phenotype {what[0]}" if len(what) == 1 else f"{counted(len(what), 'phenotype')} ({listed(what)})"
    say(f"{counted(len(data.bound), 'experiment')} ({sizes}); {labels}, task {config.task}")
    if models.is_fitted(config.model.name):
        say(f"model {config.model.name}, fitted at once")
    else:
        say(f"model {config.model.name}: {parameters}; strategy {config.strategy.name}: {memory}")
    small = too_small(config.model.name, config.model.options, data.graph.num_genes)
    for note in filter(None, (small, _better_here(config, data), task.approximation)):
        say(f"note: {note}")
    for term in task.unused_terms:
        say(f"note: the loss {config.loss.name} leaves out the {term} term of {config.model.name}")
    if not task.model.exact:
        say(
            "note: the cached wild type is an approximation: training compares with the wild type of the start of the "
            "epoch, without a gradient; validation and prediction compute it anew"
        )
    for note in data.bound.report.left_out():
        say(f"note: {note}")
    known = (~data.bound.values.isnan()).sum(0)
    if int(known.min()) < len(data.bound):
        counts = [f"{n:,} of {name}" for name, n in zip(what, known.tolist(), strict=True)]
        shown = f" ({listed(counts, most=MOST_NAMED)})" if len(what) <= MOST_NAMED else ""
        share = f"{int(known.sum()):,} of {data.bound.values.numel():,} labels are known{shown}"
        say(f"note: {share}; the loss and the metrics leave the others out")
    say(f"run directory {directory}")


def load_task(directory: Path, which: str = "best-error") -> tuple[Config, Task]:
    """The task of a finished run, with the weights of a checkpoint, and its config."""
    return load_run(directory, which, make_task)
