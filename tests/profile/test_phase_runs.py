"""The phases of the real training loop: injected delays are named and sized, and all adds up."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from delays import DELAY, Sleep, put
from training_runs import config, start_ranks

from test_ddp import OPTIONS, TWO  # isort: skip

from knockgraph import phases
from knockgraph.errors import KnockgraphError
from knockgraph.profile.compare import localised
from knockgraph.profile.measure import Workbench
from knockgraph.profile.runs import describe, profile_run
from knockgraph.train.schema import Config

STEPS, WARMUP = 6, 2
SMALL = ["data.experiments=300", "loader.batch_size=16", "trainer.log_every_n_steps=1"]


def adds_up(run: dict[str, Any], steps: int) -> None:
    assert run["steps"] == steps
    assert sum(run["phases"].values()) == pytest.approx(run["wall_seconds"], rel=0.05)
    # The stopwatch's window is shifted by part of a step, which matters where a step is short.
    assert sum(run["phases"].values()) == pytest.approx(run["stopwatch_seconds"], rel=0.05, abs=0.02)
    for name, parts in run["parts"].items():
        assert sum(parts.values()) == pytest.approx(run["phases"][name])


@pytest.mark.parametrize(
    ("where", "name", "part"),
    [
        ("loader", phases.WAIT, "collate"),
        ("transfer", phases.TRANSFER, None),
        ("strategy", phases.MASKS, None),
        ("model", phases.FORWARD, None),
        ("loss", phases.LOSS, None),
        ("gradient", phases.BACKWARD, None),
        ("clipping", phases.CLIPPING, None),
        ("optimizer", phases.OPTIMIZER, "step"),
        ("callback", phases.LOGGING, "SlowCallback"),
        ("logger", phases.LOGGING, "MetricsFile"),
    ],
)
def test_a_delay_is_named_and_sized(where: str, name: str, part: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = Sleep(WARMUP, STEPS)
    with Workbench(config(*SMALL)) as bench:
        put(where, bench, sleep, monkeypatch)
        run = bench.measure(None, STEPS, WARMUP)
    adds_up(run, STEPS)
    assert len(sleep.naps) >= WARMUP + STEPS + 1  # a logger also hears of the end of the epoch
    assert max(run["phases"], key=run["phases"].__getitem__) == name
    found = run["phases"][name] if part is None else run["parts"][name][part]
    assert found == pytest.approx(sleep.seconds, rel=0.05)


def test_the_parts_of_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from knockgraph.losses import composite

    sleep = Sleep(WARMUP, STEPS)
    monkeypatch.setattr(composite, "wasserstein", sleep.before(composite.wasserstein))
    options = ["loss=composite", "loss.options.buffer_size=16"]
    with Workbench(config(*SMALL, *options)) as bench:
        run = bench.measure(None, STEPS, WARMUP)
    adds_up(run, STEPS)
    assert run["parts"][phases.LOSS]["wasserstein"] == pytest.approx(sleep.seconds, rel=0.05)
    assert {"mse", "pool", "wasserstein"} <= set(run["parts"][phases.LOSS])


def test_steps_of_several_epochs_accumulated() -> None:
    """The window crosses epochs, and an optimizer step is made of several batches."""
    with Workbench(config(*SMALL, "data.experiments=80", "trainer.accumulate={0:3}")) as bench:
        assert bench.samples == 64
        run = bench.measure(None, 9, 2)
    adds_up(run, 9)
    assert run["phases"][phases.BETWEEN] > 0
    assert set(run["parts"][phases.OPTIMIZER]) == {"step", "zero_grad", "scheduler"}


def test_with_workers() -> None:
    with Workbench(config(*SMALL, "loader.num_workers=1", "strategy=lazy-mask", "model=hetero-small")) as bench:
        run = bench.measure(None, STEPS, WARMUP)
    adds_up(run, STEPS)
    assert phases.WAIT in run["phases"]


def test_the_three_runs() -> None:
    result = profile_run(
        config(*SMALL, "model=hetero-small", "model.options.channels=8"), steps=STEPS, warmup=WARMUP, epoch_limit=60
    )
    assert set(result["runs"]) >= {"full", "empty", "model-only"}
    for run in result["runs"].values():
        adds_up(run, STEPS)
    found = localised(result["runs"])
    assert found is not None
    assert found["empty"] + found["model"] + found["unexplained"] == pytest.approx(found["full"])
    assert 0 < found["empty"] < found["full"]
    e = result["epoch"]
    assert (e["training_samples"], e["steps"], e["measured_steps"]) == (240, 15, 15)
    assert e["predicted_seconds"] == pytest.approx(15 * result["runs"]["full"]["seconds_per_step"])
    assert e["measured_seconds"] > 0
    assert len(result["runs"]["full"]["timeline"]) == 6
    assert json.loads(json.dumps(result)) == result
    modules = {m["module"]: m for m in result["runs"]["model-only"]["modules"]}
    assert modules["layers.0.conv"]["forward_seconds"] > 0
    assert modules["layers.0.conv"]["backward_seconds"] > 0
    assert "A step of hetero+node-mask takes" in result["summary"]


def test_the_empty_run_leaves_the_model_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow model is in the full run and in the model-only run, but not in the empty one."""
    from knockgraph.models.toy import AdditiveModel

    sleep = Sleep(WARMUP, STEPS)
    monkeypatch.setattr(AdditiveModel, "forward", sleep.before(AdditiveModel.forward))
    result = profile_run(config(*SMALL), steps=STEPS, warmup=WARMUP, epoch_limit=0)
    runs = result["runs"]
    assert runs["empty"]["seconds_per_step"] < 0.5 * DELAY
    trained = WARMUP + STEPS + 1
    for name, naps in (("full", sleep.naps[:trained]), ("model-only", sleep.naps[trained : 2 * trained])):
        assert runs[name]["phases"][phases.FORWARD] == pytest.approx(sum(naps[WARMUP : WARMUP + STEPS]), rel=0.05)
    found = localised(result["runs"])
    assert found is not None
    assert found["model"] == pytest.approx(DELAY, rel=0.25)
    assert abs(found["unexplained"]) < 0.2 * found["full"]
    assert result["epoch"]["measured_seconds"] is None


def test_a_run_of_the_empty_task_without_backward() -> None:
    with Workbench(config(*SMALL)) as bench:
        run = bench.measure("empty-no-backward", STEPS, WARMUP)
    adds_up(run, STEPS)


def test_what_the_timers_cost() -> None:
    with Workbench(config(*SMALL)) as bench:
        found = bench.overhead(4, 1, rounds=2)
    assert {name: len(times) for name, times in found["rounds"].items()} == {"off": 2, "on": 2}
    on_over_off = found["seconds_per_step_on"] / found["seconds_per_step_off"]
    assert found["overhead"] == pytest.approx(on_over_off - 1)


def test_afterwards_nothing_is_left() -> None:
    """Loggers and loop are as they were, and no clock runs."""
    import lightning.pytorch as pl

    seen: list[pl.Trainer] = []

    class Keep(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            seen.append(trainer)

    with Workbench(config(*SMALL)) as bench:
        bench.fit(bench.task(), 3, [Keep()], phases.PhaseClock())
    (trainer,) = seen
    for owner in (trainer._logger_connector, trainer.fit_loop.epoch_loop, *trainer.loggers):
        assert not [name for name, value in vars(owner).items() if "charged" in getattr(value, "__qualname__", "")]
    assert phases._clock is None


def test_a_failing_step_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with Workbench(config(*SMALL)) as bench:

        def fail(*arguments: Any) -> None:
            raise RuntimeError("as planned")

        bench.task().model.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="as planned"):
            bench.measure(None, STEPS, WARMUP)
    assert phases._clock is None


@pytest.mark.parametrize(("steps", "warmup"), [(0, 2), (4, 0)])
def test_refusals(steps: int, warmup: int) -> None:
    text = f"{steps} steps after {warmup} steps of warm-up cannot be measured; both must be at least 1"
    with Workbench(config(*SMALL)) as bench, pytest.raises(KnockgraphError, match=text):
        bench.measure(None, steps, warmup)


def slow_gradient_on_rank_1() -> None:
    from knockgraph.models.hetero import HeteroCellModel

    if os.environ["RANK"] == "1":
        sleep = Sleep()
        original: Callable[..., Any] = HeteroCellModel.forward

        def forward(self: Any, *arguments: Any) -> Any:
            output = original(self, *arguments)
            if output.values.requires_grad:
                output.values.register_hook(lambda g: sleep())
            return output

        HeteroCellModel.forward = forward  # type: ignore[method-assign]


def test_two_ranks(tmp_path: Path) -> None:
    """Rank 1 has a slow backward pass, so rank 0 waits for its gradients; both add up."""
    words = ["profile", *OPTIONS, *TWO, "--steps", "6", "--warmup", "2", "--json", str(tmp_path / "two.json")]
    words += ["--epoch-limit", "60"]
    said = [rank.wait() for rank in start_ranks(*words, before=slow_gradient_on_rank_1)]
    assert "Ranks of the full run" in said[0].stdout
    assert said[1].stdout == ""
    result = json.loads((tmp_path / "two.json").read_text())
    full = result["runs"]["full"]
    assert len(full["ranks"]) == 2
    for rank in full["ranks"]:
        adds_up(rank, 6)
    fast, slow = (rank["phases"] for rank in full["ranks"])
    assert slow[phases.BACKWARD] / 6 == pytest.approx(DELAY, rel=0.25)
    assert fast[phases.SYNC] / 6 == pytest.approx(DELAY, rel=0.25)
    assert fast[phases.BACKWARD] / 6 < 0.5 * DELAY
    assert slow[phases.SYNC] / 6 < 0.5 * DELAY
    e = result["epoch"]
    assert (e["processes"], e["batch"], e["steps"], e["measured_steps"]) == (2, 8, 5, 5)


@pytest.mark.gpu
def test_the_device_clock_sees_what_the_host_does_not() -> None:
    """Work that the host only asks for is charged to its phase on the device's clock; a sync moves it to the host's.

    The work takes ten milliseconds of a step of one or two. That is an order, which holds whatever else the machine
    does; how well the two clocks agree is told by ``knockgraph profile``, not by a test.
    """
    cycles = 20_000_000

    def run(in_loss: Callable[..., Any] | None) -> dict[str, Any]:
        gpu: Config = config(*SMALL, "data.experiments=2000", "trainer.accelerator=gpu", "trainer.log_every_n_steps=50")
        with Workbench(gpu) as bench:
            if in_loss is not None:
                bench.task().loss.register_forward_pre_hook(in_loss)
            return bench.measure(None, 20, 5)

    def wait(*arguments: Any) -> None:
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()

    asked, waited = run(lambda *_: torch.cuda._sleep(cycles)), run(wait)
    for result in (asked, waited):
        assert 0 < result["device_steps"] <= result["steps"] == 20
        assert sum(result["device_phases"].values()) == pytest.approx(result["device_wall_seconds"])
        assert sum(result["phases"].values()) == pytest.approx(result["wall_seconds"], rel=0.05)
        assert max(result["device_phases"], key=result["device_phases"].__getitem__) == phases.LOSS
    on_device = asked["device_phases"][phases.LOSS] / asked["device_steps"]
    assert asked["phases"][phases.LOSS] / asked["steps"] < on_device
    assert asked["device_behind_share"] > 0
    assert max(waited["phases"], key=waited["phases"].__getitem__) == phases.LOSS


@pytest.mark.parametrize("metabolism", [False, True])
def test_conditions_are_those_of_the_model(metabolism: bool) -> None:
    """Not those of the graph: a model may leave the metabolism and relations out."""
    options = ["model=hetero-small", "model.options.channels=4", "model.options.messages.relations=[physical]"]
    with Workbench(config(*SMALL, *options, f"model.options.metabolism.enabled={metabolism}")) as bench:
        bench.fit(bench.task(), 1, [])
        conditions = describe(bench)
        assert conditions["metabolism"] is metabolism
        assert conditions["relations"] == ["physical"]
        assert conditions["edges"] == bench.data.graph.relations["physical"].num_edges
