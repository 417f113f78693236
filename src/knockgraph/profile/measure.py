"""Measuring steps of a run: its phases, a stored batch, an epoch, a trace, and the overhead of the timers.

All use the trainer, the task and the loader of ``knockgraph train``, without checkpoints and validation.
"""

from __future__ import annotations

import copy
import gc
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from knockgraph import phases
from knockgraph.errors import KnockgraphError
from knockgraph.phases import PhaseClock, by_part, by_phase
from knockgraph.profile.lightning import PhaseProfiler
from knockgraph.profile.modules import module_times
from knockgraph.profile.window import Stopwatch, TraceRecorder, Window, steps_per_epoch
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import placement
from knockgraph.train import memory
from knockgraph.train.data import TrainingData
from knockgraph.train.run import make_task
from knockgraph.train.saving import Checkpoints
from knockgraph.train.schema import Config
from knockgraph.train.task import Task, all_ranks
from knockgraph.train.trainer import Throughput, is_main_process, make_trainer, quiet, set_epochs

Say = Callable[[str], None]


class Workbench:
    """Runs a config for some steps, again and again, on the same data.

    Args:
        config: The run. Checkpoints, validation, early stopping and the progress bar are left out.
        directory: For loggers and stored strategies; a temporary one by default.
        say: Called with what is being done.
    """

    def __init__(self, config: Config, directory: Path | None = None, say: Say = lambda text: None) -> None:
        quiet()
        warnings.filterwarnings("ignore", ".*have no `val_dataloader`.*")
        self.say = say
        self._folder = tempfile.TemporaryDirectory(prefix="knockgraph-profile-")
        self.directory = directory or Path(self._folder.name)
        self.config = copy.deepcopy(config)
        t = self.config.trainer
        if t.devices * t.num_nodes > 1 and placement(config.strategy.name) == "stored" and directory is None:
            raise KnockgraphError(f"{t.devices * t.num_nodes} processes need run_dir=DIRECTORY to share what is stored")
        t.progress_bar, t.early_stopping, t.profile = False, None, "off"
        if self.config.scheduler.name == "plateau":
            self.config.scheduler.name = "none"  # there is no validation to watch
        say("reading the data")
        self.data = TrainingData.from_config(self.config)
        self._tasks: dict[str, Task] = {}

    def close(self) -> None:
        """Remove the temporary directory."""
        self._folder.cleanup()

    def __enter__(self) -> Workbench:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def samples(self) -> int:
        """Training samples."""
        return len(self.data.rows["train"])

    def task(self, kind: str | None = None) -> Task:
        """The task of the config, or one of the empty ones, made once."""
        kind = kind or self.config.task
        if kind not in self._tasks:
            config = copy.deepcopy(self.config)
            config.task = kind
            self._tasks.clear()  # two models need not fit the device's memory
            gc.collect()
            task = make_task(config, self.data.graph, self.data.transform)
            if is_main_process():
                task.strategy.prepare(self.data.bound, self.directory / "store")
            self._tasks[kind] = task
        return self._tasks[kind]

    def fit(
        self,
        task: Task,
        steps: int,
        watch: list[pl.Callback],
        clock: PhaseClock | None = None,
        batch: PerturbationBatch | None = None,
        whole_epoch: bool = False,
    ) -> None:
        """Train for a number of steps, or for one epoch, with these callbacks, timed by the clock."""
        config = copy.deepcopy(task.config)
        t = config.trainer
        t.max_epochs, t.max_steps = (1, -1) if whole_epoch else (-1, steps)
        task.config = config
        trainer: Any = make_trainer(config, self.directory, self.directory / "checkpoints")
        trainer.limit_val_batches = trainer.num_sanity_val_steps = 0
        left_out: tuple[type[pl.Callback], ...] = (Checkpoints,) if batch is None else (Checkpoints, Throughput)
        trainer.callbacks = [c for c in trainer.callbacks if not isinstance(c, left_out)]
        if not whole_epoch and t.accumulate != {0: 1}:
            trainer.callbacks.append(_StopAfter(steps))
        trainer.callbacks += watch
        if clock is not None:
            PhaseProfiler(clock).watch(trainer)
        try:
            with memory.explained(config.loader.batch_size, config.strategy.name, trainer.strategy.root_device):
                if batch is None:
                    trainer.fit(task, datamodule=self.data)
                else:
                    trainer.loggers = []
                    stored = _Stored(batch, steps)
                    trainer.callbacks.append(_OnDevice(stored))
                    trainer.fit(task, train_dataloaders=stored)
        finally:
            self.data.close()

    def measure(
        self, kind: str | None, steps: int, warmup: int, batch: PerturbationBatch | None = None
    ) -> dict[str, Any]:
        """Phases of ``steps`` steps after ``warmup`` others.

        Args:
            kind: The task, e.g. ``empty``; the config's own by default.
            steps: Steps that are measured.
            warmup: Steps before them, at least 1.
            batch: Repeat this batch, already on the device, instead of loading; without loggers.
        """
        check_window(steps, warmup)
        stopwatch = Stopwatch((warmup - 1, warmup + steps - 1))
        clock = PhaseClock(first=warmup, last=warmup + steps - 1)
        ranks = _Ranks(clock, stopwatch, steps, warmup)
        # One more step, so that the last measured one is not the one in which everything is closed.
        self.fit(self.task(kind), warmup + steps + 1, [stopwatch, ranks], clock, batch)
        result = dict(ranks.results[0])
        if len(ranks.results) > 1:
            result["ranks"] = ranks.results
        result["timeline"] = _timeline(clock)
        return result

    def model_only(self, steps: int, warmup: int) -> dict[str, Any]:
        """The model on one stored batch: its phases, and time per module."""
        task = self.task()
        loader = self.data.loader("train", True, task.strategy)
        batch = next(iter(loader))
        loader.close()
        result = self.measure(None, steps, warmup, batch)
        if task.config.trainer.compile:
            result["modules_note"] = "a compiled model runs as a whole: its modules cannot be timed separately"
        else:
            result["modules"] = self._modules(task, batch)
        return result

    def _modules(self, task: Task, batch: PerturbationBatch) -> list[dict[str, Any]]:
        device = task.trainer.strategy.root_device
        task = task.to(device).train()
        batch = batch.to(device)
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=task.config.trainer.precision == "bf16-mixed")

        def step() -> torch.Tensor:
            view = task.perturbed(batch)
            with autocast:
                prediction = task.model(view, batch)
            total: torch.Tensor = prediction.values.float().square().sum() + sum(prediction.auxiliary.values())
            return total

        return module_times(task.model, step, device)

    def epoch(self, limit: float, seconds_per_step: float) -> dict[str, Any]:
        """Steps per epoch, their expected time, and the measured time of an epoch without any timer.

        Args:
            limit: Seconds; an epoch that is expected to take longer is not run.
            seconds_per_step: As measured.
        """
        count = steps_per_epoch(self.config, self.samples)
        found: dict[str, Any] = {
            "training_samples": self.samples,
            "batch": self.config.loader.batch_size,
            "processes": self.config.trainer.devices * self.config.trainer.num_nodes,
            "steps": count,
            "predicted_seconds": count * seconds_per_step,
            "measured_seconds": None,
        }
        if found["predicted_seconds"] <= limit:
            self.say("timing an epoch")
            watch = _Epoch()
            self.fit(self.task(), 0, [watch], whole_epoch=True)
            found["measured_seconds"] = watch.seconds
            found["measured_steps"] = watch.steps
        return found

    def overhead(self, steps: int, warmup: int, rounds: int = 4) -> dict[str, Any]:
        """The step with the timers off and on, alternating."""
        check_window(steps, warmup)
        walls: dict[str, list[float]] = {"off": [], "on": []}
        worked: dict[str, list[float]] = {"off": [], "on": []}
        for number in range(2 * rounds):
            name = "off" if number % 4 in (0, 3) else "on"  # off on on off …: a drift of the machine cancels
            self.say(f"timers {name}, round {number // 2 + 1} of {rounds}")
            stopwatch = Stopwatch((warmup - 1, warmup + steps - 1))
            clock = PhaseClock(first=warmup) if name == "on" else None
            self.fit(self.task(), warmup + steps, [stopwatch], clock)
            for found, ends in ((walls, stopwatch.ends), (worked, stopwatch.worked)):
                between = [b - a for a, b in pairwise(ends[warmup - 1 : warmup + steps])]
                # The host runs ahead of the device and waits for it at the ends of the window: single steps are not
                # meaningful.
                on_host = self.config.trainer.accelerator == "cpu" or not torch.cuda.is_available()
                found[name].append((statistics.median if on_host else statistics.mean)(between) / 1e9)
        result: dict[str, Any] = {"rounds": walls, "rounds_of_cpu_time": worked}
        for suffix, found in (("", walls), ("_of_cpu_time", worked)):
            # The fastest run of each kind: other work on the machine can only add time.
            off, on = (min(found[name]) for name in ("off", "on"))
            result[f"seconds_per_step_off{suffix}"], result[f"seconds_per_step_on{suffix}"] = off, on
            result[f"overhead{suffix}"] = on / off - 1
        return result

    def trace(self, window: Window, directory: Path) -> dict[str, Any]:
        """Record a trace per rank, and run the same steps without it."""
        config = self.config
        set_epochs(config, self.samples)
        window.check(config, self.samples)
        first, last = window.wait + window.warmup, window.steps - 1
        check_window(window.active, first)
        found: dict[str, Any] = {"window": [window.wait, window.warmup, window.active]}
        for name in ("without", "with"):
            self.say(f"{window.steps:,} steps {name} a trace")
            stopwatch = Stopwatch((first - 1, last - 1, last))
            # The trace is written at the end of the last step, which is therefore not compared.
            watch: list[pl.Callback] = [stopwatch]
            recorder = None
            if name == "with":
                recorder = TraceRecorder(window, directory, f"{config.model.name}-{config.strategy.name}")
                watch = [recorder, stopwatch]
            # Both runs have the phase timers, so that the difference is the trace alone.
            self.fit(self.task(), window.steps, watch, PhaseClock(first=first, annotate=recorder is not None))
            compared = max(window.active - 1, 1)
            found[f"seconds_per_step_{name}"] = stopwatch.seconds(first, first + compared - 1) / compared
            if recorder is not None:
                found["files"] = all_ranks(str(recorder.path))
        found["overhead"] = found["seconds_per_step_with"] / found["seconds_per_step_without"] - 1
        return found


def check_window(steps: int, warmup: int) -> None:
    """Refuse windows without a step to measure or a step before it."""
    if steps < 1 or warmup < 1:
        raise KnockgraphError(
            f"{steps} steps after {warmup} steps of warm-up cannot be measured; both must be at least 1, because the "
            "clock starts at the end of a step"
        )


def _summary(clock: PhaseClock, stopwatch: Stopwatch, steps: int, warmup: int) -> dict[str, Any]:
    """What a rank measured.

    The wall clock is read where the first measured step begins and where the last one ends. The stopwatch is
    independent
    of the phases: it times the same number of steps, from the end of one to the end of another.
    """
    walls = [step.wall / 1e9 for step in clock.steps]
    last = clock.steps[-1]
    wall = (last.start + last.wall - clock.steps[0].start) / 1e9
    spent = by_phase(clock.totals)
    if wall - sum(walls) > 1e-6:
        spent[phases.BETWEEN] = wall - sum(walls)
    stopwatch_seconds = stopwatch.seconds(warmup, warmup + steps - 1)
    result: dict[str, Any] = {
        "steps": clock.count,
        "wall_seconds": wall,
        "phases": spent,
        "parts": by_part(clock.totals),
        "stopwatch_seconds": stopwatch_seconds,
        "accounted": sum(spent.values()) / stopwatch_seconds,
        "seconds_per_step": sum(walls) / clock.count,
        "median_seconds_per_step": statistics.median(walls),
        "slowest_seconds_per_step": max(walls),
    }
    if clock.device_totals:
        result["device_phases"] = clock.device_totals
        result["device_wall_seconds"] = sum(clock.device_totals.values())
        result["device_steps"] = clock.device_count
        result["device_behind_share"] = clock.behind / clock.device_count
    return result


def _timeline(clock: PhaseClock) -> list[dict[str, Any]]:
    """The first measured steps, piece by piece: milliseconds from the start of each."""
    shown = []
    for step in clock.steps[: clock.drawn]:
        pieces = [s for s in clock.segments if step.start <= s.start and s.end <= step.start + step.wall]
        shown.append(
            {
                "milliseconds": step.wall / 1e6,
                "pieces": [[s.key[0], (s.start - step.start) / 1e6, (s.end - step.start) / 1e6] for s in pieces],
            }
        )
    return shown


class _Ranks(pl.Callback):
    """What each rank measured, known to all."""

    def __init__(self, clock: PhaseClock, stopwatch: Stopwatch, steps: int, warmup: int) -> None:
        self.clock, self.stopwatch, self.steps, self.warmup = clock, stopwatch, steps, warmup
        self.results: list[dict[str, Any]] = []

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Exchange."""
        self.clock.read_device()
        self.results = all_ranks(_summary(self.clock, self.stopwatch, self.steps, self.warmup))


class _StopAfter(pl.Callback):
    """Ends the training after a number of batches, however many make an optimizer step."""

    def __init__(self, batches: int) -> None:
        self.left = batches

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count down."""
        self.left -= 1
        trainer.should_stop = self.left <= 0


class _Epoch(pl.Callback):
    """The wall-clock time of an epoch."""

    seconds = float("nan")
    steps = 0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start."""
        self._start = time.perf_counter()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """End, when the device is done, too."""
        if pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        self.seconds = time.perf_counter() - self._start
        self.steps = trainer.fit_loop.epoch_loop.batch_progress.current.completed


class _Stored:
    """A loader that repeats one batch."""

    def __init__(self, batch: PerturbationBatch, steps: int) -> None:
        self.batch, self.steps = batch, steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[PerturbationBatch]:
        for _ in range(self.steps):
            yield self.batch


class _OnDevice(pl.Callback):
    """Moves the stored batch to the model's device, once."""

    def __init__(self, stored: _Stored) -> None:
        self.stored = stored

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Before the first step."""
        self.stored.batch = self.stored.batch.to(pl_module.device)
