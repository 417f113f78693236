"""Two settings compared: unequal conditions first, then the ratio as more steps × slower steps × unexplained."""

from __future__ import annotations

import copy
from typing import Any

from knockgraph.profile.runs import times
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
    """Phase → seconds per step that ``b`` takes more than ``a``, the largest first; they add up to the whole."""
    left, right = (per_step(x["runs"]["full"]) for x in (a, b))
    found = {name: right.get(name, 0.0) - left.get(name, 0.0) for name in dict.fromkeys([*left, *right])}
    return dict(sorted(found.items(), key=lambda item: -abs(item[1])))


def per_step(run: dict[str, Any]) -> dict[str, float]:
    """Phases of a run in seconds per step."""
    return {name: seconds / run["steps"] for name, seconds in times(run).items() if name != "between epochs"}


def halfway(a: Config, b: Config) -> Config | None:
    """``b`` with the strategy of ``a``: tells apart what the model and what the strategy costs.

    ``None`` if only one of the two differs, so that there is nothing to tell apart.
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
