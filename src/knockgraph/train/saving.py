"""When a run is saved: Lightning's way to write a checkpoint, and the callback that keeps the last and the best."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer

from knockgraph.errors import KnockgraphError
from knockgraph.train import checkpoints, moments


class SafeCheckpointIO(CheckpointIO):
    """Lightning's interface to :mod:`knockgraph.train.checkpoints`."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint."""
        del storage_options
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise KnockgraphError(f"cannot write {path}: {reason}; make the folder writable or move it away") from error
        checkpoints.save(path, checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, on the CPU; Lightning moves what it restores. Never executes anything."""
        del map_location, weights_only
        return checkpoints.load(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(Callback):
    """``last`` every n steps and after each epoch; ``best-error`` (lowest validation MSE, of classes cross-entropy) and
    ``best-score`` (highest Pearson, of classes AUROC) when they improve. Of a model that starts as good as a fitted
    one, the state before the first step is the first best.

    The checkpoint before the last is kept as ``previous``, so that a damaged file never costs the whole run. A run is
    saved at the moments of :mod:`~knockgraph.train.moments` only.

    Args:
        folder: Where they go.
        every_n_steps: Optimizer steps between two ``last``.
        best: Monitored metric → (file name, whether larger is better).
        rows: How many rows ``metrics.csv`` has.
        check: Raises if the state must not be saved.
    """

    def __init__(
        self,
        folder: Path,
        every_n_steps: int,
        best: dict[str, tuple[str, bool]],
        rows: Callable[[], int],
        check: Callable[[Trainer], None],
    ) -> None:
        self.folder = folder
        self.every_n_steps = every_n_steps
        self.best = best
        self.rows = rows
        self.check = check
        self.values: dict[str, float] = {}
        self._saved = (0, moments.EPOCH)  # what 'last' holds; nothing has to be saved before the first step
        self._moment = moments.EPOCH
        self._restored = False
        self._start = False  # whether what is validated is the start
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """Best values so far, the moment, and what of ``metrics.csv`` belongs to it."""
        return {"values": dict(self.values), "moment": self._moment, "rows": self.rows()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue to compare with them."""
        self.values = dict(state_dict["values"])

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Learn where the run was."""
        self._moment = checkpoints.moment_of(checkpoint)
        self._saved = (int(checkpoint["global_step"]), self._moment)
        self._restored = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remove the counters of an epoch that has not started yet."""
        if self._moment == moments.EPOCH:
            moments.between_epochs(checkpoint["loops"])

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Where the start counts, Lightning's check before the training is a whole validation."""
        self._start = bool(pl_module.model.starts_fitted) and not self._restored  # type: ignore[union-attr]
        if self._start:
            trainer.num_sanity_val_steps = math.inf

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from where the run was."""
        if self._restored:
            moments.go_on(trainer, self._moment)
            self._restored = False
        self._step = trainer.global_step

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The epoch before is complete."""
        self._step = trainer.global_step
        self.save_last(trainer, moments.EPOCH)

    def between_batches(self, trainer: Trainer) -> None:
        """Called by the loader. Gradients that are being accumulated are not part of a checkpoint."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if self._step % self.every_n_steps == 0:
            self.save_last(trainer, moments.STEP)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last step of an epoch may be one of every n."""
        if not trainer.sanity_checking and trainer.global_step % self.every_n_steps == 0:
            self.save_last(trainer, moments.VALIDATION)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep what is best; the state itself is saved when the epoch is complete."""
        if trainer.sanity_checking and not self._start:
            return
        self._moment = moments.EPOCH if trainer.sanity_checking else moments.VALIDATION
        for metric, (name, larger) in self.best.items():
            value = trainer.callback_metrics.get(metric)
            if value is None or not bool(torch.isfinite(value)):
                continue
            known = self.values.get(metric)
            if known is None or (float(value) > known if larger else float(value) < known):
                self.values[metric] = float(value)
                trainer.save_checkpoint(self.folder / name, weights_only=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The final state."""
        self.save_last(trainer, moments.EPOCH)

    def save_last(self, trainer: Trainer, moment: str) -> None:
        """Save the state as ``last`` and keep the one before as ``previous``; not the same state twice."""
        if self._saved == (trainer.global_step, moment):
            return
        self.check(trainer)
        self._saved, self._moment = (trainer.global_step, moment), moment
        trainer.save_checkpoint(self.folder / checkpoints.NEXT, weights_only=False)
        if trainer.is_global_zero:
            checkpoints.make_last(self.folder)
