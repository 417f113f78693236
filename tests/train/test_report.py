"""What a finished run leaves: report, result, JSON, and what an interrupted one leaves."""

import itertools
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from training_runs import (
    KNOCKGRAPH,
    LEAST,
    TINY,
    Started,
    config,
    environment,
    same,
    saved_step,
    wait_for_steps,
    weights,
)

from knockgraph import evaluate
from knockgraph.report.training import html
from knockgraph.run import train
from knockgraph.train.config import load
from knockgraph.train.interrupt import InterruptedRun
from knockgraph.train.metrics_file import curves
from knockgraph.train.task import Task

Command = Callable[..., tuple[str, str]]


class Page(HTMLParser):
    """Tags, attributes and texts of a page; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br", "wbr", "img"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_fetches_nothing(finished: Path) -> None:
    text = (finished / "report.html").read_text()
    page = Page(text)
    fetched = [
        (name, value) for name, value in page.attributes if name.split(":")[-1] in ("src", "href", "srcset", "data")
    ]
    assert all(value.startswith(("#", "data:")) for _, value in fetched), fetched
    assert "@import" not in text
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert not re.search(r"url\((?!#|data:|[\"']?#)", text)
    assert len(text) < 2_000_000


def test_the_page_shows_what_matters(finished: Path) -> None:
    page = Page((finished / "report.html").read_text())
    result = json.loads((finished / "result.json").read_text())
    whole = " ".join(page.texts)
    assert page.tags.count("table") == 5  # against baselines, all metrics, groups, largest errors, this run
    assert page.attributes.count(("class", "marked")) == 1
    assert "How well does hetero predict gene_interaction in experiments that it has not seen?" in whole
    for text in ("train 128, val 16, test 16", "genotype (", result["about"]["version"], " UTC", "Largest errors"):
        assert text in whole, text
    assert "+".join(result["worst"][0]["genotype"]) in "".join(page.texts)  # a line may break between genes
    assert f"{result['confidence']['samples']} bootstrap samples of the 16 experiments" in whole
    for name, metrics in result["metrics"].items():
        assert name in whole
        assert metrics["pearson"] is None or f"{metrics['pearson']:.4f}" in whole
    assert page.tags.count("svg") == 4  # loss, Pearson, likeness of the genes' states, predicted against measured
    assert page.tags.count("details") == 4  # all metrics, the numbers of both, and the config
    assert "nan" not in whole.replace("finance", "")
    numbers = next(text for text in page.texts if '"train/loss"' in text)
    assert json.loads(numbers)["val/mse"] == [list(point) for point in curves(finished / "metrics.csv")["val/mse"]]
    assert f"Pearson {result['metrics']['hetero']['pearson']:.3f} (the best baseline, " in whole
    assert '"max_epochs": 2' in whole


def test_a_page_without_a_correlation(tmp_path: Path) -> None:
    """The mean has no correlation; it must not hide what the other baselines reach."""
    directory = train(config(f"run_dir={tmp_path}/run", "model=constant"), say=lambda _: None)
    result = json.loads((directory / "result.json").read_text())
    reached = result["metrics"]["additive"]["pearson"]
    assert (
        f"on the test part: Pearson – (the best baseline, additive: {reached:.3f}), RMSE"
        in (directory / "report.html").read_text()
    )
    nan = {key: float("nan") if value is None else value for key, value in result["metrics"]["constant"].items()}
    alone = {**result, "metrics": {"constant": nan}}
    assert "the best baseline" not in html(directory, load(directory / "config.yaml"), alone)


def test_names_are_escaped(tmp_path: Path) -> None:
    made = config(f"run_dir={tmp_path}/run")
    directory = train(made, say=lambda _: None)
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    result["phenotypes"] = ["<script>alert(1)</script>"]
    result["metrics"] = {name: {k: v or 0.0 for k, v in m.items()} for name, m in result["metrics"].items()}
    assert "<script>" not in html(directory, made, result)


def test_result(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["part"] == "test"
    assert result["experiments"] == len(result["measured"]) == len(result["predicted"]) == 16
    assert set(result["metrics"]) == {"hetero", "mean", "additive"}
    for metrics in result["metrics"].values():
        assert {"mse", "rmse", "pearson", "spearman", "mse_original", "rmse_original"} <= set(metrics)
    assert result["metrics"]["mean"]["pearson"] is None
    assert 0 < result["ceiling"] <= 1
    assert result["training_seconds"] > 0
    assert result["parameters"] > 1000


def test_evaluate_says_what_the_run_said(finished: Path, command: Command, tmp_path: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    out, _ = command("evaluate", str(finished), "--json", str(tmp_path / "e.json"))
    again = json.loads((tmp_path / "e.json").read_text(), parse_constant=pytest.fail)
    for name, metrics in result["metrics"].items():
        assert f"{name:<8}" in out
        for key, value in metrics.items():
            if key != "seconds":
                assert again["metrics"][name][key] == (value if value is None else pytest.approx(value, rel=1e-9)), key
    assert again["measured"] == result["measured"]
    assert again["predicted"] == pytest.approx(result["predicted"], rel=1e-9)


def test_evaluate_other_parts_and_checkpoints(finished: Path, command: Command) -> None:
    found = {part: evaluate.evaluate(finished, part, "last", lambda _: None) for part in ("train", "val", "test")}
    assert [found[part]["experiments"] for part in found] == [128, 16, 16]
    logged = curves(finished / "metrics.csv")
    last = found["val"]["metrics"]["hetero"]
    for name in ("mse", "pearson", "rmse_original"):
        assert last[name] == pytest.approx(logged[f"val/{name}"][-1][1], rel=1e-5)
    _, err = command("evaluate", str(finished), "--part", "all", code=1)
    assert "there is no part 'all'; use train, val, test" in err
    assert "has no checkpoint 'first'" in command("evaluate", str(finished), "--checkpoint", "first", code=1)[1]


def test_train_writes_json(tmp_path: Path, command: Command) -> None:
    out, _ = command("train", f"run_dir={tmp_path}/run", *LEAST, "model=constant", "--json", str(tmp_path / "t.json"))
    found = json.loads((tmp_path / "t.json").read_text(), parse_constant=pytest.fail)
    assert found["run_dir"] == str(tmp_path / "run")
    assert {k: v for k, v in found.items() if k != "run_dir"} == json.loads(
        (tmp_path / "run" / "result.json").read_text()
    )
    assert f"report {tmp_path}/run/report.html" in out
    assert "80 experiments (train 64, val 8, test 8)" in out
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "cell.cellgraph",
        "checkpoints",
        "config.yaml",
        "data.split",
        "intervals.json",
        "metrics.csv",
        "predictions.parquet",
        "report.html",
        "result.json",
        "tensorboard",
    }


def test_a_failure_is_no_interruption(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("knockgraph.models.toy.AdditiveModel.forward", fail)
    _, err = command("train", f"run_dir={tmp_path}/run", *LEAST, code=70)
    assert "internal error: RuntimeError: shapes do not fit" in err


LONG = ["trainer.max_epochs=1000", "trainer.checkpoint_every_n_steps=5"]


def test_control_c(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    started = Started("train", f"run_dir={directory}", *TINY, *LONG)
    wait_for_steps(started, directory, 20)
    assert started.process.pid is not None
    os.kill(started.process.pid, signal.SIGINT)
    told = started.wait(code=130)
    assert told.stderr.strip().splitlines()[-1] == (
        f"interrupted; continue with: knockgraph train run_dir={directory} resume=true"
    )
    assert "Traceback" not in told.stderr
    step = saved_step(directory)
    assert step >= 20
    epochs = step // 25 + 2
    said: list[str] = []
    train(config(f"run_dir={directory}", "resume=true"), said.append, max_epochs=epochs)
    assert said[0] == f"resuming from {directory}/checkpoints/last.ckpt"
    assert saved_step(directory) == 25 * epochs
    assert (directory / "report.html").is_file()


@pytest.mark.full
def test_control_c_of_the_program_itself(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    words = [*KNOCKGRAPH, "train", f"run_dir={directory}", *TINY, *LONG]
    program = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    while saved_step(directory) < 5:
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=60)
    assert program.returncode == 130
    assert err.strip().splitlines()[-1].startswith("interrupted; continue with: knockgraph train run_dir=")


def test_control_c_before_the_first_checkpoint(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("knockgraph.models.toy.AdditiveModel.forward", interrupt)
    before = signal.getsignal(signal.SIGINT)  # a job in the background ignores it
    _, err = command("train", f"run_dir={tmp_path}/run", *LEAST, code=130)
    assert "interrupted; there is no checkpoint yet; start the run again" in err
    assert signal.getsignal(signal.SIGINT) is before  # the next Ctrl-C is heard, too


@pytest.mark.parametrize("accumulate", [1, 3])
def test_control_c_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulate: int) -> None:
    """The step under way is finished and saved, long before a checkpoint is due.

    A run that was resumed in the middle of an epoch forgot to accumulate until the next one.
    """
    options = [f"trainer.accumulate={{0: {accumulate}}}", "data.experiments=320", "trainer.max_epochs=2"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    train(config(f"run_dir={whole}", *options), say=lambda _: None)
    with monkeypatch.context() as patch:
        calls, step = itertools.count(1), Task.training_step

        def pressed(self: Task, *arguments: Any) -> Any:
            if next(calls) == 7:
                os.kill(os.getpid(), signal.SIGINT)
            return step(self, *arguments)

        patch.setattr(Task, "training_step", pressed)
        with pytest.raises(InterruptedRun) as stopped:
            train(config(f"run_dir={broken}", *options), say=lambda _: None)
    assert stopped.value.resumable
    assert saved_step(broken) == -(-7 // accumulate)
    train(config(f"run_dir={broken}", "resume=true"), say=lambda _: None)
    assert same(weights(whole), weights(broken))


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_control_c_at_any_moment(tmp_path: Path, workers: int) -> None:
    """In the middle of a step it could leave TensorBoard's queue locked, and the run waited for it for ever."""
    for number in range(4 if workers else 20):
        directory = tmp_path / str(number)
        started = Started("train", f"run_dir={directory}", *TINY, *LONG, f"loader.num_workers={workers}")
        wait_for_steps(started, directory, 5)
        time.sleep(0.01 * number)
        assert started.process.pid is not None
        os.kill(started.process.pid, signal.SIGINT)
        started.process.join(15)
        assert "interrupted; continue with" in started.wait(code=130).stderr
