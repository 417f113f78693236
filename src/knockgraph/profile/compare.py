"""Comparison of two settings: first unequal conditions, then the ratio as more steps × slower steps × unexplained."""

from __future__ import annotations

import copy
from typing import Any

from knockgraph import phases
from knockgraph.train.schema import Config

_FOLLOWS = ("placement",)  # from another condition


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    """Conditions in which two profiles differ, machine and software included."""
    left, right = ({**x["conditions"], **x["machine"]} for x in (a, b))
    return [
        {"condition": key, "a": left.get(key), "b": right.get(key)}
        for key in dict.fromkeys([*left, *right])
        if key not in _FOLLOWS and left.get(key) != right.get(key)
    ]


def decomposed(a: dict[str, Any], b: dict[str, Any]) -> dict[str, float | None]:
    r"""How many times longer an epoch of ``b`` takes than one of ``a``, and why.

    .. math::
        \frac{T_b}{T_a} = \underbrace{\frac{n_b}{n_a}}_{\text{more steps}} \cdot
        \underbrace{\frac{t_b}{t_a}}_{\text{slower steps}} \cdot
        \underbrace{\frac{T_b / (n_b t_b)}{T_a / (n_a t_a)}}_{\text{unexplained}}

    with the measured epochs T, the steps per epoch n and the measured time per step t. If an epoch was too long to be
    run, ``measured`` and ``unexplained`` are ``None`` and the ratio is the predicted one.
    """
    more = b["epoch"]["steps"] / a["epoch"]["steps"]
    slower = b["runs"]["full"]["seconds_per_step"] / a["runs"]["full"]["seconds_per_step"]
    predicted = more * slower
    seconds = [x["epoch"]["measured_seconds"] for x in (a, b)]
    measured = None if None in seconds else seconds[1] / seconds[0]
    return {
        "more_steps": more,
        "slower_steps": slower,
        "predicted": predicted,
        "measured": measured,
        "unexplained": None if measured is None else measured / predicted,
        "ratio": predicted if measured is None else measured,
        "slower_samples": predicted * a["epoch"]["training_samples"] / b["epoch"]["training_samples"],
    }


def phase_differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, float]:
    """Phase → additional seconds per step of ``b`` over ``a``, largest first; they add up to the total difference."""
    left, right = (per_step(x["runs"]["full"]) for x in (a, b))
    found = {name: right.get(name, 0.0) - left.get(name, 0.0) for name in dict.fromkeys([*left, *right])}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def per_step(run: dict[str, Any]) -> dict[str, float]:
    """Phases of a run in seconds per step."""
    return {name: seconds / run["steps"] for name, seconds in times(run).items() if name != "between epochs"}


def halfway(a: Config, b: Config) -> Config | None:
    """``b`` with the strategy of ``a``, which separates the cost of the model from that of the strategy.

    ``None`` if only one of the two differs.
    """
    if a.strategy == b.strategy or a.model == b.model:
        return None
    config = copy.deepcopy(b)
    config.strategy = copy.deepcopy(a.strategy)
    config.loader = copy.deepcopy(a.loader)
    config.loader.batch_size = b.loader.batch_size
    return config


def compared(a: dict[str, Any], b: dict[str, Any], middle: dict[str, Any] | None = None) -> dict[str, Any]:
    """The comparison of two profiles; JSON-safe.

    Args:
        a: A profile.
        b: The other.
        middle: The profile of :func:`halfway`.
    """
    result: dict[str, Any] = {
        "profile": "comparison",
        "a": a,
        "b": b,
        "differences": differences(a, b),
        "decomposition": decomposed(a, b),
        "phase_differences": phase_differences(a, b),
    }
    if middle is not None:
        t = [x["runs"]["full"]["seconds_per_step"] for x in (a, middle, b)]
        result["middle"] = middle
        result["slower_steps_by"] = {"model": t[1] / t[0], "strategy": t[2] / t[1]}
    return result


def localised(runs: dict[str, Any]) -> dict[str, float] | None:
    """Full = empty + model + unexplained, in seconds per step; ``None`` without all three runs.

    The empty run already does masks, clipping and the optimizer; the model adds its forward, loss and backward pass.
    If the full run was repeated after the others, the mean of the two is used, which cancels a steady drift.
    """
    if not {"full", "empty", "model-only"} <= set(runs):
        return None
    added = (phases.FORWARD, phases.LOSS, phases.COMPILED, phases.BACKWARD)
    per_step = {name: {k: v / runs[name]["steps"] for k, v in times(runs[name]).items()} for name in runs}
    model = sum(per_step["model-only"].get(k, 0.0) - per_step["empty"].get(k, 0.0) for k in added)
    full, empty = runs["full"]["seconds_per_step"], runs["empty"]["seconds_per_step"]
    if "full again" in runs:
        full = (full + runs["full again"]["seconds_per_step"]) / 2
    return {"full": full, "empty": empty, "model": model, "unexplained": full - empty - model}


def uncertain(runs: dict[str, Any]) -> bool:
    """Whether so much is unexplained that the speed of the machine may have changed."""
    parts = localised(runs)
    return parts is not None and abs(parts["unexplained"]) > 0.05 * parts["full"]


def times(run: dict[str, Any]) -> dict[str, float]:
    """The phases of a run on the device clock where there is one, else on the host clock."""
    if "device_phases" not in run:
        return dict(run["phases"])
    scale = run["steps"] / run["device_steps"]
    return {name: scale * seconds for name, seconds in run["device_phases"].items()}
