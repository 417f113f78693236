"""Two real processes against one with twice the batch; no experiment lost or seen twice; only one of them speaks."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import (
    QUIET,
    Started,
    close,
    config,
    environment,
    same,
    saved_step,
    start_ranks,
    wait_for_steps,
    weights,
)

import knockgraph as kg
from knockgraph.errors import ConfigError
from knockgraph.run import train
from knockgraph.train import run as run_module
from knockgraph.train.checkpoints import LAST, load
from knockgraph.train.data import TrainingData
from knockgraph.train.metrics_file import curves
from knockgraph.train.task import Task

pytestmark = pytest.mark.usefixtures("no_page")

# 65 training experiments: four steps of 16 and one of 1, in which a rank has no experiment at all.
OPTIONS = [
    "data.experiments=81",
    "model=hetero-small",
    "model.options.channels=4",
    "model.options.messages.layers=1",
    "trainer.max_epochs=2",
    "trainer.precision=64-true",
    *QUIET,
]
TWO = ["trainer.devices=2", "loader.batch_size=8"]
ONE = ["loader.batch_size=16"]


def start(
    directory: Path,
    *overrides: str,
    before: Callable[[], Any] | None = None,
    options: Sequence[str] = OPTIONS,
    ranks: int = 2,
) -> list[Started]:
    """A training in two ranks."""
    words = ["train", f"run_dir={directory}", *options, *(TWO if ranks > 1 else ONE), *overrides]
    return start_ranks(*words, ranks=ranks, variables={"RECORD": str(directory)}, before=before)


def two(directory: Path, *overrides: str, code: int = 0) -> list[subprocess.CompletedProcess[str]]:
    return [rank.wait(code) for rank in start(directory, *overrides, before=record)]


def one(directory: Path, *overrides: str) -> Path:
    return train(config(f"run_dir={directory}", *OPTIONS, *ONE, *overrides), say=lambda _: None)


class Recorded(Task):
    """Writes down which experiments this rank trains on."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        with open(f"{os.environ['RECORD']}-rank{self.global_rank}.txt", "a") as file:
            file.write(json.dumps([self.current_epoch, batch.step_size, batch.experiment.tolist()]) + "\n")


def record() -> None:
    run_module.Task = Recorded  # type: ignore[misc]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[subprocess.CompletedProcess[str]]]:
    folder = tmp_path_factory.mktemp("ranks")
    said = two(folder / "two", "--json", str(folder / "two.json"))
    return one(folder / "one"), folder / "two", said


Runs = tuple[Path, Path, list[subprocess.CompletedProcess[str]]]


def test_two_processes_equal_one_with_twice_the_batch(runs: Runs) -> None:
    single, double, _ = runs
    assert (
        load(double / "checkpoints" / LAST)["global_step"] == load(single / "checkpoints" / LAST)["global_step"] == 10
    )
    assert close(weights(single), weights(double), 1e-10)
    assert close(weights(single, "best-error"), weights(double, "best-error"), 1e-10)


def test_metrics_are_those_of_one_process(runs: Runs) -> None:
    single, double, _ = runs
    expected, found = (curves(directory / "metrics.csv") for directory in (single, double))
    assert set(found) == set(expected)
    for name in expected:
        if not name.endswith("_per_s"):
            assert [step for step, _ in found[name]] == [step for step, _ in expected[name]]
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=name)
    results = [json.loads((directory / "result.json").read_text()) for directory in (single, double)]
    np.testing.assert_allclose(results[0]["predicted"], results[1]["predicted"], rtol=1e-8)


def test_every_experiment_once_per_epoch(runs: Runs) -> None:
    _, double, _ = runs
    steps = [
        [json.loads(line) for line in Path(f"{double}-rank{rank}.txt").read_text().splitlines()] for rank in range(2)
    ]
    assert [step[:2] for step in steps[0]] == [step[:2] for step in steps[1]]
    assert [[len(step[2]) for step in rank[:5]] for rank in steps] == [[8, 8, 8, 8, 0], [8, 8, 8, 8, 1]]
    data = TrainingData.from_config(config(*OPTIONS))
    for epoch in range(2):
        seen = Counter(e for rank in steps for at, _, experiments in rank if at == epoch for e in experiments)
        assert seen == Counter(data.split["train"].tolist())


def test_one_process_writes_and_speaks(runs: Runs) -> None:
    single, double, said = runs
    assert "report " in said[0].stdout
    assert said[0].stdout.count("run directory") == 1
    assert said[1].stdout == said[1].stderr == ""
    assert {p.name for p in double.iterdir()} == {p.name for p in single.iterdir()}
    assert len(list((double / "tensorboard").glob("events.*"))) == 1
    assert json.loads((double.parent / "two.json").read_text())["run_dir"] == str(double)


def test_one_process_of_torchrun(runs: Runs, tmp_path: Path) -> None:
    """The machinery of several processes, with nobody to talk to: the same run, bit for bit."""
    single, _, _ = runs
    (rank,) = start(tmp_path / "alone", before=in_a_group, ranks=1)
    rank.wait()
    assert same(weights(single), weights(tmp_path / "alone"))
    assert Path(f"{tmp_path}/alone-group.txt").read_text() == "1 Ranks"


@pytest.mark.gpu
def test_one_process_of_torchrun_on_a_gpu(tmp_path: Path) -> None:
    """NCCL's group of one: the step is replayed there, too, and learns the same."""
    gpu = ["trainer.accelerator=gpu", "trainer.precision=32-true", "model.options.channels=16"]
    (rank,) = start(tmp_path / "alone", *gpu, before=in_a_group, ranks=1)
    rank.wait()
    assert Path(f"{tmp_path}/alone-group.txt").read_text() == "1 Ranks, replayed"
    one(tmp_path / "one", *gpu)
    found, expected = (curves(tmp_path / name / "metrics.csv")["train/loss"] for name in ("alone", "one"))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def in_a_group() -> None:
    class Told(Task):
        def on_train_end(self) -> None:
            group = f"{torch.distributed.get_world_size()} {type(self.trainer.strategy).__name__}"
            replayed = "" if self._recorded is None else ", replayed"
            Path(f"{os.environ['RECORD']}-group.txt").write_text(group + replayed)

    run_module.Task = Told  # type: ignore[misc]


def test_missing_labels_of_two_phenotypes(tmp_path: Path) -> None:
    """Other rows are missing for each; the ranks have unequal shares of the labels, and one has none at all."""
    demo = kg.demo_screen(81)
    fitness, interaction = (demo.phenotypes[name].copy() for name in ("fitness", "gene_interaction"))
    fitness[1::3] = interaction[::4] = np.nan
    screen = kg.Screen(demo.genotypes, {"fitness": fitness, "gene_interaction": interaction})
    screen.save(tmp_path / "s.parquet")
    words = [f"data.screen={tmp_path}/s.parquet", "data.phenotypes=[fitness,gene_interaction]", "data.missing=drop"]
    two(tmp_path / "two", *words)
    one(tmp_path / "one", *words)
    found, expected = (curves(tmp_path / name / "metrics.csv") for name in ("two", "one"))
    for name in ("train/loss", "val/mse", "val/pearson", "val/pearson/fitness", "val/pearson/gene_interaction"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, err_msg=name)
    assert close(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-10)


def test_the_gathered_loss(tmp_path: Path) -> None:
    """The pool of both ranks, this step and the one before, is the pool of one process."""
    loss = ["loss=composite", "loss.options.contrastive_weight=0.1", "trainer.max_steps=4"]
    two(tmp_path / "two", *loss, "loss.options.gather=differentiable", "loss.options.buffer_size=16")
    one(tmp_path / "one", *loss, "loss.options.buffer_size=32")
    found, expected = (curves(tmp_path / name / "metrics.csv") for name in ("two", "one"))
    assert [value > 0 for _, value in found["train/wasserstein"]] == [False, True, True, True]
    for name in ("train/loss", "train/mse", "train/wasserstein", "train/contrastive"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6, atol=1e-9, err_msg=name)
    assert close(weights(tmp_path / "one"), weights(tmp_path / "two"), 1e-7)


def test_the_gathered_loss_with_an_empty_share(tmp_path: Path) -> None:
    options = ["loss=composite", "loss.options.gather=differentiable", "loss.options.buffer_size=12"]
    two(tmp_path / "two", *options, "strategy=stored-indices")  # written by one rank, read by both
    assert load(tmp_path / "two" / "checkpoints" / LAST)["global_step"] == 10
    ranks = load(tmp_path / "two" / "checkpoints" / LAST)["knockgraph"]["ranks"]
    assert len(ranks) == 2
    rings = [{k: v for k, v in rank["loss"].items() if "ring" in k and hasattr(v, "shape")} for rank in ranks]
    assert rings[0]
    assert not same(*rings)  # each rank has its own samples


def test_torchrun_itself(tmp_path: Path) -> None:
    launcher = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = ["-m", "knockgraph", "train", f"run_dir={tmp_path}/run", *OPTIONS, *TWO, "trainer.max_epochs=1"]
    done = subprocess.run([*launcher, *words], env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run directory") == 1
    assert done.stdout.count("report ") == 1
    one(tmp_path / "one", "trainer.max_epochs=1")
    assert close(weights(tmp_path / "one"), weights(tmp_path / "run"), 1e-10)


@pytest.mark.full
@pytest.mark.parametrize("steps", [3, 7, 12])
def test_resume_after_a_kill(tmp_path: Path, steps: int) -> None:
    options = [
        "model.options.messages.dropout=0.2",
        "loss=composite",
        "loss.options.buffer_size=12",
        "trainer.max_epochs=4",
    ]
    options += ["loss.options.gather=differentiable", "trainer.checkpoint_every_n_steps=1"]
    two(tmp_path / "whole", *options)
    ranks = start(tmp_path / "killed", *options)
    wait_for_steps(ranks[0], tmp_path / "killed", steps)
    for rank in ranks:
        rank.process.kill()
        rank.wait(code=None)
    assert steps <= saved_step(tmp_path / "killed") < 20
    said = two(tmp_path / "killed", *options, "resume=true")
    assert said[0].stdout.count("resuming from") == 1
    assert said[1].stdout == ""
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"config key 'run_dir': 2 processes need run_dir=DIRECTORY"):
        train(config(*TWO), say=lambda _: None)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"config key 'trainer\.devices': torchrun started 2 processes, but .* is 1"):
        train(config(f"run_dir={tmp_path}/run"), say=lambda _: None)
    assert not (tmp_path / "run").exists()
