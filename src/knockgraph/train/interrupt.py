"""Ctrl-C: heard at once, obeyed between two steps."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import lightning.pytorch as pl


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
    """Raises ``KeyboardInterrupt`` before the next batch.

    In the middle of a step it could hit a library that holds a lock (TensorBoard's queue does, at every logged step),
    and the shutdown would then wait for that lock for ever. A second Ctrl-C is obeyed at once.

    Attributes:
        asked: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.asked = False

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

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Between two steps."""
        self._obey()

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Between two batches."""
        self._obey()
