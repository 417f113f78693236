"""Ctrl-C and the signals by which a machine ends a job: the run stops after the current step and is saved."""

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
from knockgraph.train.checkpoints import resume_command
from knockgraph.train.exchange import any_rank

STOPPED = 75  #: exit code of a run that a signal other than Ctrl-C has stopped (EX_TEMPFAIL: try again)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class InterruptedRun(KeyboardInterrupt):
    """A run that was ended by Ctrl-C or another signal.

    Args:
        directory: The run directory.
        resumable: Whether it holds a checkpoint.
        by: The signal.
    """

    def __init__(self, directory: Path, resumable: bool, by: signal.Signals = signal.SIGINT) -> None:
        super().__init__()
        self.directory = directory
        self.resumable = resumable
        self.by = by

    @property
    def code(self) -> int:
        """The exit code."""
        return 130 if self.by == signal.SIGINT else STOPPED

    def __str__(self) -> str:
        what = "interrupted" if self.by == signal.SIGINT else f"stopped by {self.by.name}"
        todo = f"continue with: {resume_command(self.directory)}"
        return f"{what}; {todo if self.resumable else 'there is no checkpoint yet; start the run again'}"


class Interrupt(pl.Callback):
    """Saves and raises ``KeyboardInterrupt`` after the current optimizer step.

    In the middle of a step it could hit a library that holds a lock (TensorBoard's queue does, at every logged step),
    and the shutdown would then wait for that lock for ever. Several processes hear a signal at different steps, so they
    agree on it whenever a step is logged. A second Ctrl-C ends a single process at once.

    Attributes:
        asked: The signal that was heard.
        training: Whether the signal has to wait for the step under way.
        save: Saves the state of the run at a moment.
    """

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self.training = False
        self.save: Callable[[pl.Trainer, str], None] = lambda trainer, moment: None
        self._several = False
        self._step = 0
        self._taken: list[signal.Signals] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside the block, unless they are already handled or ignored (``nohup``)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in SIGNALS}
        self._taken = [number for number in SIGNALS if number == signal.SIGINT or before[number] == signal.SIG_DFL]
        self._take()
        try:
            yield
        finally:
            for number in self._taken:
                signal.signal(number, before[number])

    def _take(self) -> None:
        for number in self._taken:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        again, self.asked = self.asked is not None, self.asked or signal.Signals(number)
        # torchrun forwards Ctrl-C, so each of its processes receives it twice; schedulers repeat the others.
        at_once = again and number == signal.SIGINT and not self._several
        if not self.training or at_once:
            raise KeyboardInterrupt

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Replace Lightning's handler, which communicates with the other processes in the middle of a step."""
        self._take()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The same where there is no sanity check."""
        self._take()
        self._several = trainer.world_size > 1
        if self._several and signal.SIGTERM in self._taken:
            # Its processes would tell each other at every step, and wait for the device each time.
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
        self._step = trainer.global_step

    def between_batches(self, trainer: pl.Trainer) -> None:
        """Called by the loader. Gradients that are being accumulated are not part of a checkpoint."""
        step, self._step = self._step, trainer.global_step
        if self._step != step and (not self._several or self._step % trainer.log_every_n_steps == 0):  # type: ignore[attr-defined]
            self._obey(trainer, moments.STEP)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """After the last step of an epoch."""
        if not trainer.sanity_checking:
            self._obey(trainer, moments.VALIDATION)

    def on_validation_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """The whole validation is repeated on resume."""
        if not self._several and not trainer.sanity_checking:
            self._obey(trainer, moments.VALIDATION)

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Between two epochs."""
        self._step = trainer.global_step
        self._obey(trainer, moments.EPOCH)

    def _obey(self, trainer: pl.Trainer, moment: str) -> None:
        if any_rank(self.asked is not None, trainer.strategy.root_device):
            self.asked = self.asked or signal.SIGTERM  # another process received it
            self.save(trainer, moment)
            raise KeyboardInterrupt
