"""Checkpoints without pickle: tensors and JSON in the verified container, atomic, reopened after writing."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from knockgraph.container import read_container, write_container
from knockgraph.errors import FileFormatError, KnockgraphError
from knockgraph.train import moments

FORMAT = "knockgraph.checkpoint"
VERSION = 1
LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
_EARLIER = {"best-error": "best-mse", "best-score": "best-pearson"}  # what earlier versions called them


def save(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write nested dicts, lists, numbers, texts and tensors; read them back to be sure."""
    tensors: dict[str, Tensor] = {}
    document = {"state": _encode(state, tensors, "")}
    # Tensors that share memory are written once each; a checkpoint is about values.
    written = write_container(path, FORMAT, VERSION, document, {k: t.clone() for k, t in tensors.items()})
    if read_container(path, FORMAT, range(1, VERSION + 1)).content_hash != written:
        raise KnockgraphError(f"the checkpoint {path} does not read back as it was written; check the disk")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The inverse of :func:`save`. Nothing in the file is executed."""
    contents = read_container(path, FORMAT, range(1, VERSION + 1))
    try:
        state = _decode(contents.document["state"], contents.tensors)
        if not isinstance(state, dict):
            raise TypeError(f"it holds {type(state).__name__} instead of names and values")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"{path} does not describe a valid checkpoint: {error}") from error
    return state


def _encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.dtype == torch.complex128:
            raise KnockgraphError(f"a checkpoint cannot hold a {value.dtype}, {value.layout} tensor (at {path})")
        name = path
        while name in tensors or name in ("", "__metadata__"):  # 1 and "1" are two keys; the second name is reserved
            name += "'"
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [[_plain(k, path), _encode(v, tensors, f"{path}/{k}" if path else str(k))] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]}
    return _plain(value, path)


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, also for inf and nan
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise KnockgraphError(f"a checkpoint cannot hold {type(value).__name__} (at {path or 'its top'})")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "float":
            return float.fromhex(content)
        if kind == "dict":
            return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
        if kind in ("list", "tuple"):
            items = [_decode(v, tensors) for v in content]
            return items if kind == "list" else tuple(items)
        raise ValueError(f"unknown entry {kind!r}")
    return value


class SafeCheckpointIO(CheckpointIO):
    """Lightning's interface to the functions above."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Write a checkpoint."""
        del storage_options
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise KnockgraphError(f"cannot write {path}: {reason}; make the folder writable or move it away") from error
        save(path, checkpoint)

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a checkpoint, on the CPU; Lightning moves what it restores. Never executes anything."""
        del map_location, weights_only
        return load(path)

    def remove_checkpoint(self, path: Any) -> None:
        """Delete a checkpoint."""
        Path(path).unlink(missing_ok=True)


class Checkpoints(Callback):
    """``last`` every n steps and after each epoch; ``best-error`` (lowest validation MSE, of classes cross-entropy) and
    ``best-score`` (highest Pearson, of classes AUROC) when they improve.

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
        self._step = 0

    def state_dict(self) -> dict[str, Any]:
        """Best values so far, the moment, and what of ``metrics.csv`` belongs to it."""
        return {"values": dict(self.values), "moment": self._moment, "rows": self.rows()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue to compare with them."""
        self.values = dict(state_dict["values"])

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Learn where the run was."""
        self._moment = moment_of(checkpoint)
        self._saved = (int(checkpoint["global_step"]), self._moment)
        self._restored = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Remove the counters of an epoch that has not started yet."""
        if self._moment == moments.EPOCH:
            moments.between_epochs(checkpoint["loops"])

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
        if trainer.sanity_checking:
            return
        self._moment = moments.VALIDATION
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
        last = self.folder / LAST
        if trainer.is_global_zero and last.is_file():
            last.replace(self.folder / PREVIOUS)
        trainer.save_checkpoint(last, weights_only=False)


def moment_of(checkpoint: dict[str, Any]) -> str:
    """Where the run was that this is the checkpoint of; one of an earlier version is brought into today's form."""
    found = _about(checkpoint).get("moment")
    return moments.of_earlier_version(checkpoint["loops"]) if found is None else str(found)


def rows_of(checkpoint: dict[str, Any]) -> int | None:
    """How many rows ``metrics.csv`` had; ``None`` in a checkpoint of an earlier version."""
    return _about(checkpoint).get("rows")


def _about(checkpoint: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint["callbacks"][Checkpoints.__qualname__]
    return found


def find(folder: Path, which: str) -> Path:
    """The file of ``last``, ``previous``, ``best-error`` or ``best-score``, whatever version wrote it.

    Raises:
        KnockgraphError: If there is none.
    """
    for path in _places(folder, which):
        if path.is_file():
            return path
    now = next((f"its name is {new} now" for new, old in _EARLIER.items() if which == old), None)
    why = now or "has the run validated at least once?"
    raise KnockgraphError(f"{folder.parent} has no checkpoint {which!r}; {why}")


def any_best(folder: Path) -> bool:
    """Whether the run has validated and kept the state with the lowest error."""
    return any(path.is_file() for path in _places(folder, "best-error"))


def _places(folder: Path, which: str) -> list[Path]:
    return [folder / f"{name}.ckpt" for name in dict.fromkeys([which, _EARLIER.get(which, which)])]


def any_saved(folder: Path) -> bool:
    """Whether a run has saved its state here; the last may just have been being replaced."""
    return any((folder / name).is_file() for name in (LAST, PREVIOUS))


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be read here: it is not deleted, and does not take the place of a good one."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.stem}-unread-{number}{path.suffix}")
        if not aside.exists():
            return path.rename(aside)
    raise AssertionError


def newest_valid(folder: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that reads back whole, and what was wrong with newer ones."""
    problems = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.is_file():
            continue
        try:
            load(path)
        except FileFormatError as error:
            problems.append(str(error))
            continue
        return path, problems
    found = "; ".join(problems) or f"{folder} holds none"
    raise KnockgraphError(f"there is no checkpoint to resume from: {found}; start the run again without resume")
