"""A loss or a weight that is NaN or infinite ends the training, before such a state takes the place of a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from knockgraph.errors import NotFiniteError
from knockgraph.train import checkpoints
from knockgraph.train.exchange import any_rank
from knockgraph.train.schema import Config


class Finite(Callback):
    """Checks the loss whenever a step is logged, and the weights whenever they are saved.

    At those moments the host waits for the device anyway; the steps between them stay free of it. A loss that is not
    finite makes every weight that has a gradient NaN, and with the weights every later loss, so none is missed.

    Args:
        config: The config.
        directory: The run directory.
    """

    def __init__(self, config: Config, directory: Path) -> None:
        self.config = config
        self.directory = directory
        self._loss: Tensor | None = None
        self._step = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss on its device."""
        self._loss = outputs.get("loss") if isinstance(outputs, dict) else None

    def between_batches(self, trainer: Trainer) -> None:
        """Called by the loader. What was logged is the mean over all ranks: none has to be asked."""
        step, self._step = self._step, trainer.global_step
        if self._step != step and self._step % self.config.trainer.log_every_n_steps == 0:
            self._check(trainer, trainer.callback_metrics.get("train/loss"))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """An epoch may be shorter than the interval."""
        if not trainer.sanity_checking:
            self._check(trainer, self._loss, everywhere=False)

    def _check(self, trainer: Trainer, loss: Tensor | None, everywhere: bool = True) -> None:
        bad = loss is not None and not bool(loss.isfinite().all())
        self._loss = None
        if bad if everywhere else any_rank(bad, trainer.strategy.root_device):
            raise self._diverged("the loss", trainer)

    def check_weights(self, trainer: Trainer) -> None:
        """Called before a state is saved; ranks have the same weights."""
        weights = {n: w for n, w in trainer.lightning_module.named_parameters() if w.is_floating_point()}
        if not weights or bool(torch.stack([w.detach().isfinite().all() for w in weights.values()]).all()):
            return
        name = next(name for name, weight in weights.items() if not bool(weight.isfinite().all()))
        raise self._diverged(f"the weight {name}", trainer)

    def _diverged(self, what: str, trainer: Trainer) -> NotFiniteError:
        resumable = checkpoints.any_saved(self.directory / "checkpoints")
        kept = f"the last good state is kept: continue with {checkpoints.resume_command(self.directory)}"
        return NotFiniteError(
            f"{what} is NaN or infinite after step {trainer.global_step:,}, so the training has stopped; "
            f"{kept if resumable else 'start again with'} optimizer.lr={self.config.optimizer.lr / 10:.3g}"
            f"{' or trainer.precision=32-true' if self.config.trainer.precision == 'bf16-mixed' else ''}"
        )
