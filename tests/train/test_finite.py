"""A training that diverges stops in one sentence, and the last good checkpoint stays."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_ddp import start
from training_runs import LEAST, config, weights

from knockgraph.run import train
from knockgraph.train import checkpoints
from knockgraph.train.finite import NotFiniteError
from knockgraph.train.task import Task

Command = Callable[..., tuple[str, str]]


def diverge(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """From this step on the loss is NaN."""
    original = Task.training_step

    def training_step(self: Task, *arguments: Any) -> torch.Tensor:
        return original(self, *arguments) * (float("nan") if self.trainer.global_step >= step else 1.0)

    monkeypatch.setattr(Task, "training_step", training_step)


def all_finite(directory: Path, name: str) -> bool:
    return all(bool(t.isfinite().all()) for t in weights(directory, name).values() if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("log_every", [1, 3, 50])
def test_the_last_good_checkpoint_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_every: int) -> None:
    diverge(monkeypatch, 6)
    options = [f"trainer.log_every_n_steps={log_every}", "trainer.max_epochs=3", "trainer.checkpoint_every_n_steps=1"]
    with pytest.raises(NotFiniteError, match=r"infinite after step [789].*resume=true optimizer\.lr=0\.0003$"):
        train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)
    folder = tmp_path / "run" / "checkpoints"
    assert checkpoints.load(folder / checkpoints.LAST)["global_step"] == 6
    assert all(all_finite(tmp_path / "run", path.stem) for path in folder.glob("*.ckpt"))


def test_a_weight_is_seen_where_the_loss_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the last step of a run no later loss would tell."""
    step = torch.optim.AdamW.step

    def ruin(self: Any, closure: Any = None) -> Any:
        loss = step(self, closure)
        with torch.no_grad():
            self.param_groups[0]["params"][0].fill_(float("inf"))
        return loss

    monkeypatch.setattr(torch.optim.AdamW, "step", ruin)
    with pytest.raises(NotFiniteError, match=r"the weight model\..* is NaN or infinite after step 1,"):
        train(config(f"run_dir={tmp_path}/run", "trainer.max_steps=1"), say=lambda _: None)
    assert not checkpoints.any_saved(tmp_path / "run" / "checkpoints")


@pytest.mark.parametrize("lr", ["1e38", "1e30", "1e300"])
def test_an_absurd_learning_rate(tmp_path: Path, command: Command, lr: str) -> None:
    _, err = command("train", f"run_dir={tmp_path}/run", *LEAST, f"optimizer.lr={lr}", code=1)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "optimizer.lr" in err


def test_mixed_precision_has_another_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diverge(monkeypatch, 0)
    with pytest.raises(NotFiniteError, match=r"start again with optimizer\.lr=0\.0003 or trainer\.precision=32-true$"):
        train(config(f"run_dir={tmp_path}/run", "trainer.precision=bf16-mixed"), say=lambda _: None)


def only_one_rank() -> None:
    """In a process of its own: the second rank's loss is NaN."""
    original = Task.training_step
    nan = float("nan") if os.environ["RANK"] == "1" else 1.0
    Task.training_step = lambda self, *arguments: original(self, *arguments) * nan  # type: ignore[method-assign]


@pytest.mark.full
def test_ranks_stop_together(tmp_path: Path) -> None:
    said = [rank.wait(1) for rank in start(tmp_path / "run", before=only_one_rank)]
    assert said[0].stderr.startswith("error: the loss is NaN or infinite after step 1, ")
    assert said[1].stderr == ""
