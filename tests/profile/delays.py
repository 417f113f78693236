"""Delays of known size in known places of a training step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import pytest

from knockgraph.profile import measure
from knockgraph.profile.measure import Workbench

DELAY = 0.04


class Sleep:
    """Sleeps, and knows how long it really slept."""

    def __init__(self, warmup: int = 0, steps: int = 0) -> None:
        self.naps: list[float] = []
        self.warmup, self.steps = warmup, steps

    def __call__(self, *arguments: Any) -> None:
        start = time.perf_counter()
        time.sleep(DELAY)
        self.naps.append(time.perf_counter() - start)

    @property
    def seconds(self) -> float:
        """In the measured steps."""
        return sum(self.naps[self.warmup : self.warmup + self.steps])

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **options: Any) -> Any:
            self()
            return function(*arguments, **options)

        return slow


class SlowCallback(pl.Callback):
    def __init__(self, sleep: Sleep) -> None:
        self.sleep = sleep

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.sleep()


def put(where: str, bench: Workbench, sleep: Sleep, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a delay into every step."""
    task: Any = bench.task()
    if where == "loader":
        monkeypatch.setattr(type(task.strategy), "collate", staticmethod(sleep.before(lambda batch: batch)))
    elif where == "transfer":
        monkeypatch.setattr(bench.data, "transfer_batch_to_device", sleep.before(bench.data.transfer_batch_to_device))
    elif where == "strategy":
        task.strategy.forward = sleep.before(task.strategy.forward)
    elif where == "model":
        task.model.register_forward_pre_hook(sleep)
    elif where == "loss":
        task.loss.register_forward_pre_hook(sleep)
    elif where == "gradient":
        task.model.register_forward_hook(lambda m, i, output: output.values.register_hook(lambda g: sleep()) and None)
    elif where == "clipping":
        task.configure_gradient_clipping = sleep.before(task.configure_gradient_clipping)
    elif where == "optimizer":
        original = task.configure_optimizers

        def configure() -> Any:
            found = original()
            found["optimizer"].register_step_pre_hook(sleep)
            return found

        task.configure_optimizers = configure
    elif where == "callback":
        make = measure.make_trainer

        def with_callback(*arguments: Any) -> Any:
            trainer: Any = make(*arguments)
            trainer.callbacks.append(SlowCallback(sleep))
            return trainer

        monkeypatch.setattr(measure, "make_trainer", with_callback)
    elif where == "logger":
        from knockgraph.train.metrics_file import MetricsFile

        monkeypatch.setattr(MetricsFile, "log_metrics", sleep.before(MetricsFile.log_metrics))
    else:
        raise AssertionError(where)
