"""Progress of a run: one bar for all epochs on a terminal, a line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

_REFRESH = 0.2  # seconds
_SCORES = {"val/pearson": "pearson", "val/auroc": "auroc", "val/mse": "mse", "val/bce": "bce"}


class RunProgress(pl.Callback):
    """Shows how far a run is, the loss, the last validation score and the time left.

    On a terminal it is one bar for the whole run; without one, a line per epoch.

    Args:
        every: The loss is read every so many steps, when it is logged anyway: reading it waits for the device.
        say: Told the lines.
        terminal: Whether standard error is a terminal; by default it is asked.
    """

    def __init__(self, every: int, say: Callable[[str], None], terminal: bool | None = None) -> None:
        self.every = every
        self.say = say
        self.terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._loss: float | None = None
        self._scores: list[str] = []
        self._shown = 0.0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock; a resumed run goes on where it was."""
        self._start = self._epoch_start = time.perf_counter()
        self._before = _done(trainer)
        if self.terminal and trainer.is_global_zero:
            columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.fields[said]}"))
            console = Console(stderr=True, markup=False, highlight=False)
            self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
            self._task = self._bar.add_task("", total=_total(trainer), completed=self._before, said="")
            self._bar.start()

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the epoch."""
        self._epoch_start = time.perf_counter()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar."""
        if (batch_idx + 1) % self.every == 0:
            self._read_loss(trainer)
        if self._bar is not None and time.perf_counter() - self._shown > _REFRESH:
            self._show(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show the score."""
        if trainer.sanity_checking:
            return
        found = {name: trainer.callback_metrics.get(key) for key, name in _SCORES.items()}
        self._scores = [f"{name} {float(value):.3g}" for name, value in found.items() if value is not None]
        if self._bar is not None:
            self._show(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say a line where there is no bar."""
        if self.terminal or not trainer.is_global_zero:
            return
        self._read_loss(trainer)
        seconds = time.perf_counter() - self._epoch_start
        said = [*self._figures(), f"{_clock(seconds)} for the epoch", *self._left(trainer)]
        self.say(f"{_epoch(trainer)}: {', '.join(said)}")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The same."""
        self.on_train_end(trainer, pl_module)

    def _show(self, trainer: pl.Trainer) -> None:
        assert self._bar is not None
        self._shown = time.perf_counter()
        said = ", ".join([*self._figures(), *self._left(trainer)])
        self._bar.update(self._task, completed=_done(trainer), description=_epoch(trainer), said=said)
        self._bar.refresh()

    def _read_loss(self, trainer: pl.Trainer) -> None:
        loss = trainer.callback_metrics.get("train/loss")
        self._loss = None if loss is None else float(loss)

    def _figures(self) -> list[str]:
        """Loss and validation scores."""
        loss = [] if self._loss is None else [f"loss {self._loss:.4g}"]
        return [*loss, *([f"validation {' '.join(self._scores)}"] if self._scores else [])]

    def _left(self, trainer: pl.Trainer) -> list[str]:
        """The time left, by the pace of this process, validation included."""
        done, total = _done(trainer), _total(trainer)
        if total is None or done <= self._before or done >= total:
            return []
        pace = (time.perf_counter() - self._start) / (done - self._before)
        return [f"{_clock(pace * (total - done))} left"]


def _done(trainer: pl.Trainer) -> int:
    """Batches of all epochs so far."""
    return int(trainer.fit_loop.total_batch_idx) + 1


def _total(trainer: pl.Trainer) -> int | None:
    """Batches of the whole run; ``None`` if it has no end."""
    ends = []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        ends.append(trainer.max_epochs * int(trainer.num_training_batches))
    if trainer.max_steps >= 0:
        ends.append(trainer.max_steps * trainer.accumulate_grad_batches)
    return min(ends, default=None)


def _epoch(trainer: pl.Trainer) -> str:
    last = trainer.max_epochs if trainer.max_epochs is not None and trainer.max_epochs > 0 else None
    return f"epoch {trainer.current_epoch + 1}" + (f"/{last}" if last else "")


def _clock(seconds: float) -> str:
    """Seconds in words.

    >>> _clock(3.14159), _clock(75), _clock(7325)
    ('3.1 s', '1:15 min', '2:02 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"
