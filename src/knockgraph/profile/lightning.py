"""The phases of Lightning's training loop.

Lightning reports what it does to its profiler: fetching a batch, moving it, every hook of the task and of every
callback, backward, the optimizer. :class:`PhaseProfiler` turns these reports into phases. What Lightning does not
report (writing the metrics, the stop signal of several ranks) is added while a run is watched.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.profilers import Profiler

from knockgraph import phases
from knockgraph.phases import Key, PhaseClock

_RULES: tuple[tuple[str, str, str], ...] = (  # what Lightning calls it, phase, part
    (r"\.train_dataloader_next$", phases.WAIT, ""),
    (r"\.(batch_to_device|transfer_batch_to_device|on_(before|after)_batch_transfer)$", phases.TRANSFER, ""),
    (r"^\[Strategy\]\w+\.training_step$", phases.REMAINDER, "training step"),
    (r"^\[Strategy\]\w+\.backward$", phases.BACKWARD, ""),
    (r"^\[LightningModule\]\w+\.configure_gradient_clipping$", phases.CLIPPING, ""),
    (r"^\[LightningModule\]\w+\.optimizer_step$", phases.OPTIMIZER, "step"),
    (r"^\[LightningModule\]\w+\.optimizer_zero_grad$", phases.OPTIMIZER, "zero_grad"),
    (r"^\[LightningModule\]\w+\.lr_scheduler_step$", phases.OPTIMIZER, "scheduler"),
    (r"^\[Callback\]Stopwatch", phases.REMAINDER, "the device catching up"),  # at the ends of the window
    (r"^\[Callback\](?P<part>[A-Za-z_]\w*)", phases.LOGGING, ""),
    (r"^\[LightningModule\]\w+\.(?P<part>on_\w+)$", phases.LOGGING, ""),
    (r"^save_checkpoint$", phases.LOGGING, "checkpoint"),
)


def key_of(action: str) -> Key:
    """The phase of what Lightning reports.

    >>> key_of("[Strategy]SingleDeviceStrategy.backward")
    ('backward', '')
    >>> key_of("[Callback]TQDMProgressBar.on_train_batch_end")
    ('logging and callbacks', 'TQDMProgressBar')
    """
    for pattern, name, part in _RULES:
        found = re.search(pattern, action)
        if found:
            return name, found.groupdict().get("part") or part
    return phases.REMAINDER, ""


class PhaseProfiler(Profiler):
    """Assigns what Lightning does to the phases of a clock.

    A step lasts from one request for a batch to the next, or to the end of the epoch, or to the start of a validation.

    Args:
        clock: The clock.
    """

    def __init__(self, clock: PhaseClock) -> None:
        super().__init__()
        self.clock = clock
        self._actions: dict[str, _Action] = {}
        self.trained = False

    def watch(self, trainer: pl.Trainer) -> None:
        """Time this trainer's next ``fit``."""
        trainer.profiler = self  # type: ignore[attr-defined]
        trainer.callbacks.append(_Watch(self.clock))  # type: ignore[attr-defined]

    def profile(self, action_name: str) -> Any:
        """What Lightning does in the block; the same context for the same action."""
        action = self._actions.get(action_name)
        if action is None:
            action = self._actions[action_name] = _action(self, action_name)
        return action

    def start(self, action_name: str) -> None:
        """Lightning begins something."""
        self.profile(action_name).__enter__()

    def stop(self, action_name: str) -> None:
        """Lightning has done it."""
        self.profile(action_name).__exit__()

    def end_step(self) -> None:
        """The running step ends; it is discarded if nothing was trained in it."""
        if self.trained or not self.clock.in_step:
            self.clock.end_step()
        else:
            self.clock.drop_step()


class _Action:
    """One of Lightning's actions. Created once per action, because there are dozens in every step."""

    def __init__(self, profiler: PhaseProfiler, key: Key) -> None:
        self.profiler = profiler
        self.key = key
        self.push, self.pop = profiler.clock.push, profiler.clock.pop

    def __enter__(self) -> None:
        self.push(self.key)

    def __exit__(self, *error: object) -> None:
        self.pop()


class _Fetch(_Action):
    def __enter__(self) -> None:
        self.profiler.clock.begin_step()
        self.profiler.trained = False
        self.push(self.key)


class _Batch(_Action):
    def __enter__(self) -> None:
        self.profiler.trained = True
        self.push(self.key)


class _Epoch(_Action):
    def __exit__(self, *error: object) -> None:
        self.pop()
        self.profiler.end_step()


class _Validation(_Action):
    def __enter__(self) -> None:
        self.profiler.end_step()
        self.push(self.key)


def _action(profiler: PhaseProfiler, name: str) -> _Action:
    kind = _Action
    if name.endswith(".train_dataloader_next"):
        kind = _Fetch
    elif name == "run_training_batch":
        kind = _Batch
    elif name == "run_training_epoch":
        kind = _Epoch
    elif ".on_validation_" in name:
        kind = _Validation
    return kind(profiler, key_of(name))


class _Watch(pl.Callback):
    """Times what Lightning does not report, and sets the clock of :func:`phases.phase`, during one training."""

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock
        self._undo = contextlib.ExitStack()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin."""
        self.clock.device = trainer.strategy.root_device
        self._undo.enter_context(phases.running(self.clock))
        self._charge(trainer._logger_connector, "on_batch_end", (phases.LOGGING, "metrics"))
        self._charge(trainer._logger_connector, "update_train_step_metrics", (phases.LOGGING, "metrics"))
        for logger in trainer.loggers:
            for method in ("log_metrics", "save"):
                self._charge(logger, method, (phases.LOGGING, type(logger).__name__))
        loop = trainer.fit_loop.epoch_loop
        self._charge(loop, "_broadcast_sigterm_tensor", (phases.REMAINDER, "stop signal of the ranks"))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The end."""
        self._undo.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """The end, too."""
        self._undo.close()

    def _charge(self, owner: Any, method: str, key: Key) -> None:
        """Assign an object's method to a phase until the end of the training."""
        original: Callable[..., Any] | None = getattr(owner, method, None)
        if original is None:  # another version of Lightning: its time is then in the remainder
            return
        clock = self.clock

        def charged(*args: Any, **kwargs: Any) -> Any:
            clock.push(key)
            try:
                return original(*args, **kwargs)
            finally:
                clock.pop()

        setattr(owner, method, charged)
        self._undo.callback(delattr, owner, method)
