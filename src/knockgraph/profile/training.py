"""Profiling a training run: ``trainer.profile=phases`` or ``trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from knockgraph.phases import PhaseClock, by_part, by_phase
from knockgraph.profile.lightning import PhaseProfiler
from knockgraph.profile.window import Stopwatch, TraceRecorder, Window
from knockgraph.train.saving import Checkpoints
from knockgraph.train.schema import Config


def watch(config: Config, trainer: pl.Trainer, samples: int, directory: Path) -> None:
    """Add the timers, or a trace, to a trainer before it fits.

    Args:
        config: The run; ``trainer.profile`` selects timers or a trace.
        trainer: Its trainer.
        samples: Its training samples.
        directory: The run directory: ``profile.json`` and ``traces/`` go there.
    """
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    clock = PhaseClock(first=1, annotate=config.trainer.profile == "trace")
    stopwatch = Stopwatch()
    recorder = None
    if config.trainer.profile == "trace":
        window = Window(*config.trainer.profile_window)
        window.check(config, samples)
        for callback in callbacks:
            if isinstance(callback, Checkpoints):  # only the final one, which is after the window
                callback.between_batches = callback.on_train_epoch_start = _nothing  # type: ignore[method-assign]
                callback.on_validation_start = callback.on_validation_end = _nothing  # type: ignore[method-assign]
        recorder = TraceRecorder(window, directory / "traces", f"{config.model.name}-{config.strategy.name}")
        callbacks.append(recorder)
    PhaseProfiler(clock).watch(trainer)
    callbacks += [stopwatch, _Write(clock, stopwatch, recorder, directory)]


def _nothing(*arguments: Any, **options: Any) -> None:
    del arguments, options


class _Write(pl.Callback):
    """Writes ``profile.json`` when the training ends."""

    def __init__(
        self, clock: PhaseClock, stopwatch: Stopwatch, recorder: TraceRecorder | None, directory: Path
    ) -> None:
        self.clock, self.stopwatch, self.recorder, self.directory = clock, stopwatch, recorder, directory

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Only the first rank writes; every rank has its own trace file."""
        from knockgraph.files import write_json

        self.clock.read_device()
        if not trainer.is_global_zero or not self.clock.count:
            return
        result: dict[str, Any] = {
            "steps": self.clock.count,
            "wall_seconds": sum(self.clock.totals.values()) / 1e9,
            "phases": by_phase(self.clock.totals),
            "parts": by_part(self.clock.totals),
            "outside_steps": by_phase(self.clock.outside),
        }
        if self.clock.device_totals:
            result["device_phases"] = self.clock.device_totals
            result["device_steps"] = self.clock.device_count
        if self.recorder is not None and self.recorder.path is not None:
            result["trace"] = {"file": str(self.recorder.path), **_overhead(self.recorder.window, self.stopwatch)}
        write_json(self.directory / "profile.json", result)


def _overhead(window: Window, stopwatch: Stopwatch) -> dict[str, Any]:
    """Recorded steps compared with as many waiting steps of the same run."""
    first = window.wait + window.warmup
    recorded = stopwatch.seconds(first, window.steps - 2) / max(window.active - 1, 1) if window.active > 1 else None
    before = min(window.active, window.wait - 1)
    waiting = stopwatch.seconds(window.wait - before, window.wait - 1) / before if before > 0 else None
    known = recorded is not None and waiting is not None
    return {
        "window": [window.wait, window.warmup, window.active],
        "seconds_per_step_recorded": recorded,
        "seconds_per_step_before": waiting,
        "overhead": recorded / waiting - 1 if known else None,  # type: ignore[operator]
    }
