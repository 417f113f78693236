"""Ctrl-C: heard at once, obeyed after the step, whose state is saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl

from knockgraph.train import moments


class InterruptedRun(KeyboardInterrupt):
    """A run that was ended by Ctrl-C.

    Args:
        directory: The run directory.
        resumable: Whether it holds a checkpoint.
    """

    def __init__(self, directory: Path, resumable: bool) -> None:
        super().__init__()
        self.directory = directory
        self.resumable = resumable


class Interrupt(pl.Callback):
    """Saves and raises ``KeyboardInterrupt`` after the optimizer step that is under way.

    In the middle of a step it could hit a library that holds a lock (TensorBoard's queue does, at every logged step),
    and the shutdown would then wait for that lock for ever. Several processes hear it at different steps: they do not
    save, which takes all of them, and end before their next batch. A second Ctrl-C is obeyed at once.

    Args:
        save: Saves the state of the run.

    Attributes:
        asked: Whether Ctrl-C was pressed.
    """

    def __init__(self, save: Callable[[pl.Trainer, str], None]) -> None:
        self.save = save
        self.asked = False
        self._step = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block SIGINT is ours; a thread cannot have it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def _obey(self) -> None:
        if self.asked:
            raise KeyboardInterrupt

    def between_batches(self, trainer: pl.Trainer) -> None:
        """Called by the loader. Gradients that are being accumulated are not part of a checkpoint."""
        if trainer.world_size > 1:
            self._obey()
        elif self.asked and trainer.global_step != self._step:
            self.save(trainer, moments.STEP)
            self._obey()
        self._step = trainer.global_step

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Between two epochs; the state is saved then in any case."""
        self._step = trainer.global_step
        self._obey()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """After the last step of an epoch."""
        if self.asked and trainer.world_size == 1 and not trainer.sanity_checking:
            self.save(trainer, moments.VALIDATION)
        self._obey()

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Between two batches; the whole validation is made again."""
        self.on_validation_start(trainer, pl_module)
