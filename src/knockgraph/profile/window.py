"""Traces of ``torch.profiler`` from a run: which steps, and a file per rank."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch.profiler import ProfilerActivity, profile, schedule

from knockgraph.errors import WindowError
from knockgraph.train.schema import Config


@dataclass(frozen=True)
class Window:
    """Which steps a trace records.

    Attributes:
        wait: Steps before anything happens.
        warmup: Steps in which the profiler runs but its records are discarded.
        active: Steps that are recorded.
    """

    wait: int = 600
    warmup: int = 1
    active: int = 25

    @property
    def steps(self) -> int:
        """The step at whose end the trace is written."""
        return self.wait + self.warmup + self.active

    def check(self, config: Config, samples: int) -> None:
        """Refuse a run that ends before the window does.

        Args:
            config: The run.
            samples: Its training samples.
        """
        t = config.trainer
        per_epoch = steps_per_epoch(config, samples)
        limits = []
        assert t.max_epochs is not None  # set_epochs
        if t.max_epochs != -1:
            devices = t.devices * t.num_nodes
            limits.append(
                (
                    t.max_epochs * per_epoch,
                    f"{t.max_epochs} epochs × ceil({samples:,} training samples / (batch {config.loader.batch_size} × "
                    f"{devices} processes)) = {t.max_epochs} × {per_epoch:,}",
                )
            )
        if t.max_steps != -1:
            limits.append((_batches(config, per_epoch), f"trainer.max_steps={t.max_steps:,}"))
        reached, why = min(limits)
        if reached < self.steps:
            raise WindowError(
                f"the trace would be complete after step {self.steps:,} (wait {self.wait:,} + warm-up {self.warmup:,} "
                f"+ active {self.active:,}), but this run ends after {reached:,} ({why}); train for longer "
                f"(trainer.max_epochs={-(-self.steps // per_epoch)}) or wait for fewer steps "
                f"(at most {max(reached - self.warmup - self.active, 0):,})"
            )


def steps_per_epoch(config: Config, samples: int) -> int:
    """``ceil(samples / (batch · processes))``: the loader never drops the last batch."""
    return -(-samples // (config.loader.batch_size * config.trainer.devices * config.trainer.num_nodes))


def _batches(config: Config, per_epoch: int) -> int:
    """Training batches until ``max_steps`` optimizer steps are done."""
    done = batches = epoch = 0
    schedule_of = config.trainer.accumulate
    while done < config.trainer.max_steps:
        every = schedule_of.get(max((e for e in schedule_of if e <= epoch), default=-1), 1)
        steps = -(-per_epoch // every)
        if done + steps >= config.trainer.max_steps:
            return batches + min((config.trainer.max_steps - done) * every, per_epoch)
        done, batches, epoch = done + steps, batches + per_epoch, epoch + 1
    return batches


class Stopwatch(pl.Callback):
    """When each training step ended, by the wall clock.

    Args:
        edges: Steps at whose end it waits for the device, so that a window between them contains all its work.

    Attributes:
        ends: Nanoseconds, one per step.
        worked: The same in the CPU time of the training thread, which other programs disturb less.
    """

    def __init__(self, edges: tuple[int, ...] = ()) -> None:
        self.edges = edges
        self.ends: list[int] = []
        self.worked: list[int] = []

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Read the clocks."""
        if len(self.ends) in self.edges and pl_module.device.type == "cuda":
            torch.cuda.synchronize(pl_module.device)
        self.worked.append(time.thread_time_ns())
        self.ends.append(time.perf_counter_ns())

    def seconds(self, first: int, last: int) -> float:
        """From the end of step ``first`` - 1 to the end of step ``last``."""
        return (self.ends[last] - self.ends[first - 1]) / 1e9


class TraceRecorder(pl.Callback):
    """Records a window of the training and writes a trace per rank when it closes.

    Args:
        window: Which steps.
        directory: Where the traces go.
        name: Prefix of their names.

    Attributes:
        path: This rank's trace, once it is written.
    """

    def __init__(self, window: Window, directory: Path, name: str) -> None:
        self.window = window
        self.directory = directory
        self.name = name
        self.path: Path | None = None
        self._rank = 0
        self._profiler: profile | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the profiler's schedule."""
        self._rank = trainer.global_rank
        activities = [ProfilerActivity.CPU]
        if pl_module.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        w = self.window
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=w.wait, warmup=w.warmup, active=w.active, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
            profile_memory=True,
            acc_events=True,
        )
        self._profiler.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Advance the profiler by one step."""
        if self._profiler is not None:
            self._profiler.step()
            if self.path is not None:
                self._stop()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the profiler."""
        self._stop()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Stop the profiler after an error, too."""
        self._stop()

    def _stop(self) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            profiler.on_trace_ready = None
            profiler.stop()

    def _write(self, profiler: profile) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.name}-rank{self._rank}.trace.json.gz"
        part = path.with_name(f".{path.name.removesuffix('.json.gz')}.part.json.gz")
        profiler.export_chrome_trace(str(part))
        os.replace(part, path)
        self.path = path
