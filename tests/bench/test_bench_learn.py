"""The learning benchmark on the demo cell: the same training as ``knockgraph train``, timed and compared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from knockgraph.bench.learn import MATRIX, VARIANTS, Variant, bench_learn, chosen, own_variant, settings
from knockgraph.cli import app
from knockgraph.errors import KnockgraphError
from knockgraph.models.toy import AdditiveModel
from knockgraph.report import learn as report_learn
from knockgraph.run import train
from knockgraph.train import checkpoints
from knockgraph.train.config import compose
from knockgraph.train.plain_config import compose_plain
from knockgraph.train.task import Task

ADDITIVE = {"learner": Variant(("model=additive",))}
TINY = ("data.experiments=200", "loader.batch_size=16")


def learn(*given: str, variants: dict[str, Variant] = ADDITIVE, epochs: int = 1, **options: Any) -> dict[str, Any]:
    words = settings(device="cpu", epochs=epochs, given=[*TINY, *given])
    return bench_learn(words, variants, **{"baseline_names": ["additive"], **options})


def test_the_command(tmp_path: Path) -> None:
    words = ["bench", "learn", "--scale", "demo", "--experiments", "200", "--batch-size", "16", "--epochs", "2"]
    words += ["--variant", "own [1]: model=additive optimizer.lr=0.1", "--variant", "zero: model=constant"]
    words += ["--variant", "bad: model=hetero-pairs model.options.input.similar=diffusion", "--baseline", "additive"]
    words += ["--baseline", "mean", "--goal", "-1", "--validate-every", "4"]
    words += ["--json", str(tmp_path / "l.json"), "--html", str(tmp_path / "l.html"), "--keep", str(tmp_path / "runs")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    report = json.loads((tmp_path / "l.json").read_text(), parse_constant=pytest.fail)
    found = {r["name"]: r for r in report["results"]}
    assert list(found) == ["additive", "mean", "own [1]", "zero", "bad"]
    own = found["own [1]"]
    assert own["steps"] == 20
    assert [p["step"] for p in own["curve"]] == [4, 8, 12, 16, 20]
    assert own["to_goal"] == own["curve"][0]
    assert 0 < own["curve"][0]["seconds"] < own["seconds"]
    assert own["parameters"] == 361
    assert found["mean"]["test"]["pearson"] is None
    assert found["zero"]["to_goal"] is None  # a constant has no correlation
    assert "diffusion" in found["bad"]["skipped"]
    assert report["conditions"]["experiments"] == {"train": 160, "val": 20, "test": 20, "validated": 20}
    lines = shown.output.splitlines()
    assert any(line.startswith("own [1] ") for line in lines)
    assert any(line.startswith("bad: skipped: ") and "diffusion" in line for line in lines)
    assert "own [1] is first to a validation Pearson of -1.000: 4 steps" in shown.output
    assert "on the test part: Pearson" in shown.output
    page = (tmp_path / "l.html").read_text()
    assert page.count("<svg") == 2
    # What is kept is a run like any other.
    kept = tmp_path / "runs" / "00-own--1-"
    assert CliRunner().invoke(app, ["evaluate", str(kept)]).exit_code == 0


def test_it_is_the_training_of_train(tmp_path: Path) -> None:
    model = ["model=hetero-small", "model.options.channels=8"]
    report = learn(variants={"small": Variant(tuple(model))}, directory=tmp_path / "bench", validate_every=3)
    options = ["trainer.accelerator=cpu", "trainer.max_epochs=1", "trainer.progress_bar=false", "trainer.baselines=[]"]
    run = train(compose([*TINY, *model, *options, f"run_dir={tmp_path / 'train'}"]), say=lambda _: None)
    mine, theirs = (
        checkpoints.load(folder / "checkpoints" / "last.ckpt")["state_dict"]
        for folder in (tmp_path / "bench" / "00-small", run)
    )
    assert all(torch.equal(theirs[name], value) for name, value in mine.items())
    assert report["results"][1]["curve"][-1]["step"] == 10  # also where it does not divide


def test_validation_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Task.validation_step

    def slow(self: Task, *arguments: Any) -> None:
        time.sleep(0.3)
        step(self, *arguments)

    monkeypatch.setattr(Task, "validation_step", slow)
    assert learn(validate_every=5)["results"][1]["seconds"] < 0.6  # of 1.2 that it slept


def test_twenty_validations_and_some_of_the_experiments() -> None:
    report = learn(epochs=4, validate_on=10)
    assert [p["step"] for p in report["results"][1]["curve"]] == list(range(2, 41, 2))
    assert report["conditions"]["experiments"]["validated"] == 10
    assert report["conditions"]["goal"] == report["results"][0]["validation"]["pearson"]


def test_what_does_not_fit_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*ignored: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 74.00 GiB")

    monkeypatch.setattr(AdditiveModel, "decode", full)
    seen: list[int] = []
    both = {**ADDITIVE, "zero": Variant(("model=constant",))}
    report = learn(variants=both, so_far=lambda report: seen.append(len(report["results"])))
    assert "out of memory on cpu with batch size 16" in report["results"][1]["skipped"]
    assert report["results"][2]["steps"] == 10
    assert seen == [2, 3]
    assert "learner, skipped: out of memory" in report_learn.html(report)


def test_classes() -> None:
    report = learn("task=classification", "loss=bce", "data.threshold=0")
    assert report["conditions"]["score"] == "auroc"
    assert report_learn.headings(report)[1:3] == ["test AUROC", "test average precision"]
    assert "on the test part: AUROC" in report_learn.outcome(report)[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--variant", "model=hetero"], "needs a name and what it changes"),
        (["--variant", "open: 'model=hetero"], "cannot be read: No closing quotation"),
        (["--variant", "a: model=hetero", "--variant", "a: model=dango"], "two variants named 'a'"),
        (["--only", "magic"], "there is no variant 'magic' to train; use hetero, hetero-fast"),
        (["--baseline", "magic"], "there is no baseline 'magic'; use one of mean, additive"),
        (["--variant", "a: model=additive data.split.seed=1"], "the variant 'a' changes data.split, but"),
        (["--variant", "a: model=additive optimizer.rate=1"], "the variant 'a': "),
        (["--variant", "a: model=hetero model.options.messages.conv=foo"], "the variant 'a': there is no convolution"),
        (["--variant", "a: model=additive trainer.devices=2"], "on one device"),
        (["--scale", "demo", "data=yeast-scale"], "--scale and data=… both name the data"),
    ],
)
def test_refused_before_anything_is_done(words: list[str], message: str) -> None:
    shown = CliRunner().invoke(app, ["bench", "learn", *words])
    assert isinstance(shown.exception, KnockgraphError)
    assert message in str(shown.exception)


def test_nothing_could_be_trained() -> None:
    words = ["bench", "learn", "--experiments", "50", "--baseline", "mean"]
    shown = CliRunner().invoke(
        app, [*words, "--variant", "bad: model=hetero-pairs model.options.input.similar=diffusion"]
    )
    assert str(shown.exception).startswith("no variant could be trained; bad: ")


def test_every_variant_is_one() -> None:
    """Their overrides compose; the matrix has every combination once."""
    for variant in (VARIANTS | MATRIX).values():
        compose_plain(variant.overrides)  # Hydra takes seconds for so many
    assert len({variant.overrides for variant in MATRIX.values()}) == len(MATRIX) == 4 * 4 * 3
    assert list(chosen(None, None, False, demo=True)) == ["hetero-small", "dango"]
    assert list(chosen(["hetero"], None, True, demo=False))[:2] == ["hetero", "gin, sum, hyper-sagnn"]
    assert own_variant("a b: x='1 2'")[1].overrides == ("x=1 2",)


def test_without_hydra(tmp_path: Path) -> None:
    """As on a machine that has torch and Lightning and little else."""
    words = ["knockgraph", "bench", "learn", *TINY, "--epochs", "1", "--baseline", "additive", "--json", "l.json"]
    words += ["--only", "dango", "--variant", "own: model=hetero-small model.options.channels=8 optimizer.lr=1e-3"]
    absent = ("hydra", "omegaconf", "lmdb", "tensorboard", "sklearn")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
        f"from knockgraph.cli import main; sys.argv = {words}; main()"
    )
    call = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "l.json").read_text())
    assert [r.get("steps") for r in report["results"]] == [None, 10, 10]


@pytest.mark.full
@pytest.mark.parametrize("name", MATRIX)
def test_every_entry_of_the_matrix_learns(name: str) -> None:
    """Far above what adding up single effects can do, which is next to nothing here."""
    words = settings(device="cpu", matrix=True)
    report = bench_learn(words, {name: MATRIX[name]}, baseline_names=["additive"], validate_every=100)
    additive, found = report["results"]
    assert "skipped" not in found, found["skipped"]
    assert found["test"]["pearson"] > additive["test"]["pearson"] + 0.3
