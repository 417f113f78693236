"""Comparisons multiply out, settings have names, and the words follow from the numbers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_runs import config

from knockgraph import phases
from knockgraph.errors import ConfigError, FileFormatError, KnockgraphError
from knockgraph.profile import explain
from knockgraph.profile.compare import compared, decomposed, differences, halfway, localised, phase_differences, times
from knockgraph.profile.settings import setting, words
from knockgraph.report import profile as report
from knockgraph.train.config import compose, dump


def profile(
    name: str = "dango",
    spent: dict[str, float] | None = None,
    steps: int = 10,
    epoch_steps: int = 100,
    measured: float | None = None,
    **conditions: Any,
) -> dict[str, Any]:
    """A made-up result."""
    spent = spent or {phases.FORWARD: 0.6, phases.BACKWARD: 0.4}
    wall = sum(spent.values())
    known = {
        "model": name,
        "strategy": "node-mask",
        "placement": "device",
        "batch per process": 8,
        "processes": 1,
        "device": "cpu",
        "precision": "32-true",
        "compiled": False,
        "graphs per step": 1,
        "edges": 1000,
        "parameters": 50,
        "workers": 0,
        "log every n steps": 10,
    }
    return {
        "profile": 1,
        "setting": name,
        "conditions": {**known, **conditions},
        "machine": {"torch": "2"},
        "runs": {
            "full": {
                "steps": steps,
                "wall_seconds": wall,
                "phases": spent,
                "parts": {},
                "accounted": 1.0,
                "seconds_per_step": wall / steps,
            }
        },
        "epoch": {
            "training_samples": 8 * epoch_steps,
            "batch": 8,
            "processes": 1,
            "steps": epoch_steps,
            "predicted_seconds": epoch_steps * wall / steps,
            "measured_seconds": measured,
        },
    }


positive = st.floats(1e-4, 1e4)


@given(positive, positive, st.integers(1, 10**6), st.integers(1, 10**6), positive, positive)
def test_the_factors_multiply_out(ta: float, tb: float, na: int, nb: int, ma: float, mb: float) -> None:
    a = profile(spent={phases.FORWARD: ta}, epoch_steps=na, measured=ma)
    b = profile(spent={phases.FORWARD: tb}, epoch_steps=nb, measured=mb)
    d = decomposed(a, b)
    assert None not in d.values()
    assert d["more_steps"] * d["slower_steps"] * d["unexplained"] == pytest.approx(mb / ma, rel=1e-12)  # type: ignore[operator]
    assert d["ratio"] == mb / ma
    assert d["predicted"] == pytest.approx(nb * tb / (na * ta), rel=1e-12)


def test_an_epoch_that_was_not_run() -> None:
    d = decomposed(profile(), profile("hetero", {phases.FORWARD: 4.0}, measured=7.0))
    assert (d["measured"], d["unexplained"], d["ratio"]) == (None, None, d["predicted"])
    assert d["ratio"] == pytest.approx(4)
    text = explain.comparison(compared(profile(), profile("hetero", {phases.FORWARD: 4.0})))
    assert "predicted, because an epoch is too long to run here" in text


def test_conditions_first() -> None:
    a = profile()
    b = profile(
        "hetero", {phases.FORWARD: 2.0}, **{"batch per process": 4, "precision": "bf16-mixed", "graphs per step": 5}
    )
    assert [d["condition"] for d in differences(a, b)] == ["model", "batch per process", "precision", "graphs per step"]
    text = explain.comparison(compared(a, b))
    assert text.startswith("Unequal conditions: model (dango / hetero); batch per process (8 / 4); precision (32-true")
    assert "dango passes messages once per step, on the wild type; hetero does so on 5 graphs" in text
    assert explain.comparison(compared(a, a)).startswith("All conditions are equal.")


def test_the_headline_has_the_batches_of_both() -> None:
    """It had those of the first alone."""
    sides = [profile(**{"batch per process": size, "genes": 1200, "relations": ["a", "b"]}) for size in (8, 16, 8)]
    for side in sides:
        side |= {"steps": 5, "warmup": 1, "machine": {"torch": "2", "cores": 4, "torch_threads": 1}}
    text = "1,200 genes, 2 relations, 1,000 edges; {}; 5 steps after 1; 4 CPU cores, 1 thread, torch 2"
    one = "batch 8 × 1 process, 32-true"
    for b, said in ((1, f"{one} and batch 16 × 1 process, 32-true"), (2, one)):
        assert report.conditions({"profile": "comparison", "a": sides[0], "b": sides[b]}) == text.format(said)


def test_the_difference_of_the_phases_is_the_whole_difference() -> None:
    a = profile(spent={phases.FORWARD: 0.6, phases.LOSS: 0.1})
    b = profile(spent={phases.FORWARD: 0.9, phases.WAIT: 2.0}, steps=20)
    found = phase_differences(a, b)
    assert next(iter(found)) == phases.WAIT
    assert sum(found.values()) == pytest.approx(2.9 / 20 - 0.7 / 10)


def test_the_model_and_the_strategy_told_apart() -> None:
    a = profile(spent={phases.FORWARD: 1.0})
    middle = profile("hetero", {phases.FORWARD: 5.0})
    b = profile("hetero", {phases.FORWARD: 30.0}, strategy="lazy-mask", placement="worker", **{"graphs per step": 9})
    result = compared(a, b, middle)
    assert result["slower_steps_by"] == {"model": pytest.approx(5), "strategy": pytest.approx(6)}
    text = explain.comparison(result)
    assert "of the factor 30, 5× is the model hetero and 6× the strategy lazy-mask" in text
    assert "use strategy=node-mask" in text
    equal = compared(a, b, profile("hetero", {phases.FORWARD: 29.9}))
    assert "use strategy=node-mask" not in explain.comparison(equal)  # it was measured not to be the reason


def test_a_comparison_localises_both_sides() -> None:
    def made(full: float, empty: float, alone: float) -> dict[str, Any]:
        found = profile(spent={phases.FORWARD: full})
        for name, seconds in (("empty", empty), ("model-only", alone)):
            found["runs"][name] = profile(spent={phases.FORWARD: seconds})["runs"]["full"]
        return found

    a, b = made(1.0, 0.2, 0.9), made(4.0, 0.3, 4.1)
    text = explain.comparison(compared(a, b))
    assert "Everything but the model takes 20 ms and 30 ms (empty task), the model adds 70 ms and 380 ms" in text
    assert "+10 ms and -10 ms are unexplained" in text
    (shown,) = (rows for title, _, rows in report.tables(compared(a, b)) if title.startswith("Full = empty"))
    assert shown[1] == ["what the model adds (stored batch)", "70 ms", "380 ms", "+310 ms"]
    assert "Everything but" not in explain.comparison(compared(a, profile()))  # an earlier result without them


def test_the_device_clock_explains_where_there_is_one() -> None:
    run = profile()["runs"]["full"]
    assert times(run) == run["phases"]
    run = {**run, "device_phases": {phases.LOSS: 0.5}, "device_steps": 5}
    assert times(run) == {phases.LOSS: 1.0}  # ten steps


def test_full_is_empty_and_model_and_the_rest() -> None:
    result = profile(spent={phases.FORWARD: 0.5, phases.BACKWARD: 0.4, phases.OPTIMIZER: 0.1, phases.WAIT: 0.2})
    assert localised(result["runs"]) is None
    empty = profile(spent={phases.LOSS: 0.01, phases.OPTIMIZER: 0.1, phases.WAIT: 0.2})
    alone = profile(spent={phases.FORWARD: 0.45, phases.BACKWARD: 0.36, phases.OPTIMIZER: 0.1})
    result["runs"] |= {"empty": empty["runs"]["full"], "model-only": alone["runs"]["full"]}
    found = localised(result["runs"])
    assert found is not None
    assert found == pytest.approx({"full": 0.12, "empty": 0.031, "model": 0.080, "unexplained": 0.009})
    result["runs"]["full again"] = {**result["runs"]["full"], "seconds_per_step": 0.10}
    assert localised(result["runs"])["full"] == pytest.approx(0.11)  # type: ignore[index]
    assert "took 100 ms a step (-17%)" in explain.summary(result)


@pytest.mark.parametrize(
    ("slow", "conditions", "text"),
    [
        (phases.WAIT, {}, "waits for data: keep the screen on the device"),
        (phases.WAIT, {"workers": 2}, r"waits for data: use loader.num_workers=0"),
        (phases.WAIT, {"placement": "worker", "strategy": "lazy-mask"}, "waits for data .*use strategy=node-mask"),
        (phases.TRANSFER, {}, "moves batches to the device"),
        (phases.TRANSFER, {"placement": "worker"}, "moves masks to the device: use strategy=node-mask"),
        (phases.MASKS, {"strategy": "device-loop"}, "perturbs graphs with device-loop: use strategy=node-mask"),
        (phases.FORWARD, {"strategy": "lazy-mask", "graphs per step": 9}, "along each of 1,000 edges for every sample"),
        (phases.FORWARD, {"device": "H200"}, "float32: use trainer.precision=bf16-mixed"),
        (phases.SYNC, {}, "waits for the other ranks' gradients"),
        (phases.OPTIMIZER, {}, "is the optimizer on 50 parameters"),
        (phases.LOGGING, {}, "a larger trainer.log_every_n_steps than 10"),
        (phases.REMAINDER, {}, "Lightning's own work per step: use a larger loader.batch_size"),
    ],
)
def test_advice_names_what_dominates(slow: str, conditions: dict[str, Any], text: str) -> None:
    result = profile(spent={phases.FORWARD: 0.01, slow: 1.0}, **conditions)
    (found,) = explain.advice(result)
    assert pytest.approx(99, abs=1) == int(found.split("%")[0])
    assert re.search(text, found), found
    assert found in explain.summary(result)


def test_no_advice_where_the_model_works() -> None:
    text = explain.summary(profile())
    assert "A step of dango takes 100 ms (10 steps/s, 80 samples/s, batch 8 × 1, cpu): forward 60% (60 ms)" in text
    assert "An epoch is ceil(800 / (8 × 1)) = 100 steps, 10 s" in text
    assert "nothing around the model; 100% is its forward and backward pass" in text


def test_settings(tmp_path: Path) -> None:
    found = setting("hetero-small+lazy-mask loader.batch_size=8", ["data=demo", "loader.batch_size=4"])
    assert found.config is not None
    assert found.config == compose(["model=hetero-small", "strategy=lazy-mask", "loader.batch_size=8"])
    assert words("edge-masks") == ["preset=edge-masks"]
    assert words("dango+mse") == ["model=dango", "loss=mse"]
    (tmp_path / "config.yaml").write_text(dump(config()))
    assert setting(str(tmp_path)).config == setting(str(tmp_path / "config.yaml")).config == config()
    (tmp_path / "old.json").write_text(json.dumps(profile()))
    assert setting(str(tmp_path / "old.json")).result == profile()


def test_settings_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(
        KnockgraphError, match=r"there is no setting 'banana'; use key=value, or a name of model .*dango"
    ):
        setting("hetero+banana")
    with pytest.raises(ConfigError, match="banana"):
        setting("hetero banana=1")
    with pytest.raises(KnockgraphError, match=r"there is no profile at .*no\.json; write one with knockgraph profile"):
        setting(str(tmp_path / "no.json"))
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"bad\.json cannot be read as JSON"):
        setting(str(tmp_path / "bad.json"))
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(FileFormatError, match=r"other\.json is not a profile of one setting"):
        setting(str(tmp_path / "other.json"))
    (tmp_path / "config.yaml").write_text(dump(config()))
    with pytest.raises(KnockgraphError, match=r"the overrides seed=1 do not apply to .*config\.yaml"):
        setting(str(tmp_path), ["seed=1"])


def test_halfway() -> None:
    a, b = compose(["model=dango", "loss=dango"]), compose(["strategy=lazy-mask", "loader.num_workers=2"])
    middle = halfway(a, b)
    assert middle is not None
    assert (middle.model, middle.loss, middle.strategy) == (b.model, b.loss, a.strategy)
    assert middle.loader.num_workers == 0
    assert halfway(b, b) is None
    assert halfway(a, compose(["model=hetero-small"])) is None
