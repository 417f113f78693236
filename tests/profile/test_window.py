"""Traces from a run: one file per rank, refused before training if the run is too short."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from training_runs import config

from knockgraph import phases
from knockgraph.profile.measure import Workbench
from knockgraph.profile.window import Window, WindowError, steps_per_epoch
from knockgraph.run import train

# 64 training samples, 4 steps per epoch.
ENOUGH = Window(2, 1, 3)


@pytest.mark.parametrize(
    ("overrides", "window", "text"),
    [
        (
            ["trainer.max_epochs=5"],
            Window(),
            r"the trace would be complete after step 626 \(wait 600 \+ warm-up 1 \+ active 25\), but this run ends "
            r"after 20 \(5 epochs × ceil\(64 training samples / \(batch 16 × 1 processes\)\) = 5 × 4\); train for "
            r"longer \(trainer.max_epochs=157\) or wait for fewer steps \(at most 0\)",
        ),
        (["trainer.max_epochs=2"], Window(5, 1, 3), r"after step 9 .* ends after 8 .* = 2 × 4\).* \(at most 4\)"),
        (["trainer.max_epochs=-1", "trainer.max_steps=5"], Window(2, 1, 3), r"ends after 5 \(trainer.max_steps=5\)"),
        (["trainer.max_epochs=9", "trainer.max_steps=5"], Window(2, 1, 3), r"ends after 5 \(trainer.max_steps=5\)"),
        (["trainer.devices=2", "run_dir=x"], Window(2, 1, 3), r"batch 16 × 2 processes\)\) = 1 × 2"),
    ],
)
def test_a_window_that_is_never_reached(overrides: list[str], window: Window, text: str) -> None:
    with pytest.raises(WindowError, match=text):
        window.check(config(*overrides), 64)


@pytest.mark.parametrize(
    ("overrides", "last"),
    [
        (["trainer.max_epochs=2"], 8),
        (["trainer.max_epochs=-1", "trainer.max_steps=7"], 7),
        # Three batches make a step, and the last step of an epoch one: 4 batches, 2 steps.
        (["trainer.max_epochs=-1", "trainer.max_steps=3", "trainer.accumulate={0:3}"], 4 + 3),
        (["trainer.max_epochs=-1", "trainer.max_steps=5", "trainer.accumulate={0:1,1:4}"], 8),
    ],
)
def test_the_last_step_is_enough(overrides: list[str], last: int) -> None:
    Window(last - 3, 1, 2).check(config(*overrides), 64)
    with pytest.raises(WindowError):
        Window(last - 2, 1, 2).check(config(*overrides), 64)


def test_steps_per_epoch() -> None:
    assert steps_per_epoch(config(), 64) == 4
    assert steps_per_epoch(config(), 65) == 5
    assert steps_per_epoch(config("trainer.devices=2", "trainer.num_nodes=2", "run_dir=x"), 65) == 2


def events(path: str | Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        found: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return found


def test_a_trace_and_what_it_costs(tmp_path: Path) -> None:
    with Workbench(config("trainer.max_epochs=2")) as bench:
        found = bench.trace(ENOUGH, tmp_path / "traces")
    (file,) = found["files"]
    assert file == str(tmp_path / "traces" / "additive-node-mask-rank0.trace.json.gz")
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [Path(file).name]  # nothing half-written
    recorded = events(file)
    names = [event.get("name", "") for event in recorded]
    assert sum(name.startswith("ProfilerStep#") for name in names) == 3
    for name in (phases.WAIT, phases.MASKS, phases.FORWARD, phases.LOSS, phases.BACKWARD, phases.CLIPPING):
        assert names.count(f"knockgraph::{name}") == 3, name
    assert any("Input Dims" in event.get("args", {}) for event in recorded)  # shapes
    assert "[memory]" in names
    ratio = found["seconds_per_step_with"] / found["seconds_per_step_without"]
    assert found["overhead"] == pytest.approx(ratio - 1)


def test_a_run_that_is_too_short_is_not_started(tmp_path: Path) -> None:
    options = ["trainer.profile=trace", f"run_dir={tmp_path}/run"]
    with pytest.raises(WindowError, match=r"after step 626 .* ends after 4 "):
        train(config(*options), say=lambda _: None)
    assert not (tmp_path / "run").exists()


def test_a_trace_of_a_training_run(tmp_path: Path) -> None:
    """Checkpoints are off until it is written, and the run still ends in a result."""
    directory = tmp_path / "run"
    options = [
        "trainer.profile=trace",
        "trainer.profile_window=[4,1,2]",
        "trainer.max_epochs=2",
        "trainer.checkpoint_every_n_steps=1",
    ]
    train(config(f"run_dir={directory}", *options), say=lambda _: None)
    (trace,) = (directory / "traces").iterdir()
    names = {event.get("name") for event in events(trace)}
    assert "knockgraph::forward" in names
    assert "save_checkpoint" not in " ".join(filter(None, names))
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["last.ckpt"]
    about = json.loads((directory / "profile.json").read_text())["trace"]
    assert (about["file"], about["window"]) == (str(trace), [4, 1, 2])
    assert about["overhead"] is not None
    assert (directory / "report.html").is_file()


def test_the_phases_of_a_training_run(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(
        config(f"run_dir={directory}", "trainer.profile=phases", "trainer.max_epochs=2"),
        say=lambda _: None,
    )
    found = json.loads((directory / "profile.json").read_text())
    assert found["steps"] == 7  # all but the first
    assert sum(found["phases"].values()) == pytest.approx(found["wall_seconds"])
    assert {"Checkpoints", "MetricsFile"} <= set(found["parts"][phases.LOGGING])
    assert sum(found["outside_steps"].values()) > 0  # validation
