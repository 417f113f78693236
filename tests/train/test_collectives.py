"""What two processes say to each other in a step, counted in traces of real runs."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import QUIET

from test_ddp import start  # isort: skip

from knockgraph.train import run as run_module
from knockgraph.train.task import Task

FIRST, LAST = 2, 6  # batches that are traced, from the start of one to the start of the other
UNLOGGED = "trainer.log_every_n_steps=100"
HETERO = ["model=hetero-small", "model.options.channels=4", "model.options.messages.layers=1"]
GATHERED = [*HETERO, "loss=composite", "loss.options.gather=differentiable", "loss.options.buffer_size=8"]


class Traced(Task):
    """Counts the collectives between the starts of two batches, everything between batches included."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.current_epoch == 0 and batch_idx == FIRST:
            self._trace = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self._trace.start()
        elif self.current_epoch == 0 and batch_idx == LAST:
            self._trace.stop()
            names = (event.name for event in self._trace.events())
            found = Counter(name.removeprefix("c10d::").strip("_") for name in names if name.startswith("c10d::"))
            Path(f"{os.environ['RECORD']}-rank{self.global_rank}.json").write_text(json.dumps(found))


def trace() -> None:
    run_module.Task = Traced  # type: ignore[misc]


def collectives(directory: Path, *overrides: str) -> dict[str, int]:
    """Kind → how many in four batches, the same on both ranks."""
    for rank in start(
        directory, *overrides, before=trace, options=["data.experiments=161", "trainer.max_epochs=1", *QUIET]
    ):
        rank.wait()
    first, second = (json.loads(Path(f"{directory}-rank{rank}.json").read_text()) for rank in range(2))
    assert first == second
    return dict(first)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param([*HETERO, UNLOGGED], {"allreduce": 4}, id="mse", marks=pytest.mark.full),
        pytest.param(
            [*HETERO, UNLOGGED, "trainer.accumulate={0:2}"],
            {"allreduce": 2},
            id="mse, accumulated",
            marks=pytest.mark.full,
        ),
        pytest.param([*HETERO, "trainer.log_every_n_steps=1"], {"allreduce": 12}, id="mse, every step logged"),
        pytest.param([*GATHERED, UNLOGGED], {"allreduce": 4, "allgather": 4}, id="composite", marks=pytest.mark.full),
        pytest.param(
            [*GATHERED, UNLOGGED, "trainer.accumulate={0:2}"],
            {"allreduce": 2, "allgather": 4},
            id="composite, accumulated",
        ),
        pytest.param(["model=dango", "loss=dango", UNLOGGED], {"allreduce": 4}, id="dango", marks=pytest.mark.full),
    ],
)
def test_collectives_of_four_batches(options: list[str], expected: dict[str, int], tmp_path: Path) -> None:
    """The gradients' one per optimizer step, and what the loss asks for; no barrier."""
    assert collectives(tmp_path / "two", *options) == expected
