"""A run is resumed as what it is; how it is run may change, and everything else is refused by name."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from training_runs import LEAST, config

from knockgraph.errors import ConfigError
from knockgraph.run import train
from knockgraph.train import checkpoints
from knockgraph.train.overrides import CHANGEABLE, changed
from knockgraph.train.plain_config import compose_plain as compose  # the same as with Hydra, in a tenth of the time
from knockgraph.train.schema import Config

Command = Callable[..., tuple[str, str]]


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("seed=3", "seed"),
        ("loss=log-cosh", "loss.name"),
        ("model=dango", "model.name"),
        ("model.options.channels=3", "model.options.channels"),
        ("model.options.messages.layers=3", "model.options.messages.layers"),
        ("loader.batch_size=3", "loader.batch_size"),
        ("optimizer.weight_decay=3", "optimizer.weight_decay"),
        ("trainer.devices=2", "trainer.devices"),
        ("trainer.max_steps=9", "trainer.max_steps"),
        ("trainer.precision=64-true", "trainer.precision"),
        ("trainer.accumulate={0: 4}", "trainer.accumulate"),
        ("data.split.seed=4", "data.split.seed"),
        ("strategy=subgraph", "strategy.name"),
        ("preset=empty", "data.cell"),
    ],
)
def test_what_a_run_is_cannot_change(word: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config key '{key}': it is .* cannot become .*; leave it out, or start"):
        changed(compose(), compose([word]), [word])


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["trainer.max_epochs=9"], "max_epochs", 9),
        (["trainer.progress_bar=false", "seed=0"], "progress_bar", False),
        (["trainer.checkpoint_every_n_steps=5"], "checkpoint_every_n_steps", 5),
        (["trainer.precision=bf16-mixed"], "precision", "bf16-mixed"),
        (["trainer.early_stopping=3"], "early_stopping", 3),
        (["trainer=default"], "max_epochs", None),
    ],
)
def test_how_it_is_run_can(words: list[str], key: str, value: Any) -> None:
    assert getattr(changed(compose(), compose(words), words).trainer, key) == value


def test_what_was_given_at_the_start_may_be_given_again() -> None:
    words = ["model.options.channels=7", "loss=composite", "trainer.max_epochs=9", "seed=4", "run_dir=x"]
    kept = compose(words)
    assert changed(kept, compose(["loss=composite", "seed=4"]), ["loss=composite", "seed=4"]) == kept
    # A group does not bring its own number of epochs.
    assert changed(kept, compose(["trainer=default"]), ["trainer=default"]).trainer.max_epochs == 9


def test_every_changeable_key_is_there() -> None:
    def keys(kind: Any, path: str = "") -> Iterator[str]:
        for field in dataclasses.fields(kind):
            value = getattr(kind, field.name)
            yield from keys(value, f"{path}{field.name}.") if dataclasses.is_dataclass(value) else [path + field.name]

    assert set(CHANGEABLE) <= set(keys(Config()))


@pytest.mark.usefixtures("no_page")
def test_resume(tmp_path: Path, command: Command) -> None:
    directory = tmp_path / "run"
    command("train", f"run_dir={directory}", *LEAST)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    _, err = command("train", f"run_dir={directory}", "resume=true", "seed=5", code=1)
    assert err.startswith("error: config key 'seed': it is 0 in this run and cannot become 5 when the run is resumed")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    command("train", f"run_dir={directory}", "resume=true", "trainer.max_epochs=2")
    assert yaml.safe_load((directory / "config.yaml").read_text())["trainer"]["max_epochs"] == 2
    _, err = command("train", f"run_dir={directory}", "resume=true", "trainer.max_epochs=1", code=1)
    assert "config key 'trainer.max_epochs': this run has trained for 2 epochs already, more than 1" in err


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("scheduler", ["cosine", "plateau", "none"])
def test_another_learning_rate(tmp_path: Path, scheduler: str) -> None:
    """Also if the run that was given it is killed before its first checkpoint."""
    options = [f"scheduler.name={scheduler}", "scheduler.warmup_steps=0", "scheduler.min_factor=1"]
    train(config(f"run_dir={tmp_path}", *options), say=lambda _: None)
    lr = ["optimizer.lr=1e-5"]
    train(config(f"run_dir={tmp_path}", "resume=true", *lr), say=lambda _: None, overrides=lr)
    train(config(f"run_dir={tmp_path}", "resume=true"), say=lambda _: None, max_epochs=2)
    group = checkpoints.load(tmp_path / "checkpoints" / checkpoints.LAST)["optimizer_states"][0]["param_groups"][0]
    assert group["lr"] == pytest.approx(1e-5)
