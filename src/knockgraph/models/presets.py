"""Named sets of model options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from knockgraph.errors import ModelError
from knockgraph.models.hetero_options import MOVED, ReadoutOptions, normalised

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "hetero": {
        # The demo: under a minute on two cores. Genes have a dozen neighbours there, so their states survive a layer
        # without a residual path, and without one they have to be learned from the graph, which keeps them from
        # fitting the noise. A norm after it would hide how many neighbours a gene has.
        "small": {
            "channels": 64,
            "messages": {
                "layers": 1,
                "conv": "gin",
                "mlp_layers": 2,
                "aggregation": "mean",
                "norm": False,
                "residual": False,
            },
            "readout": {"local": "pairs", "combine": "sum", "local_first": 0.7},
        },
        # One layer, in which most rows of a batch are the same in all samples and made once: yeast in half a minute.
        "fast": {
            "channels": 64,
            "messages": {"layers": 1, "conv": "gin", "mlp_layers": 2, "aggregation": "pairwise", "residual": True},
            "readout": {"local": "pairs", "combine": "sum", "local_first": 0.67},
        },
        # Screens of pairs, also with genes that were never deleted before (docs/results.md).
        "pairs": {
            "channels": 64,
            "input": {"similar": "all", "profiles": True, "embedding_dropout": 0.2},
            # The local predictor sees the states before the only layer.
            "messages": {"layers": 1, "conv": "gin", "mlp_layers": 2, "aggregation": "mean", "residual": False},
            "readout": {"local": "pairs", "local_states": "first", "dropout": 0.1, "combine": "sum"},
        },
        # The reference project's sizes; its gated Hyper-SAGNN learns more slowly than a predictor of all pairs
        # (docs/learn.md): readout.local=hyper-sagnn, readout.combine=gating.
        "reference": {
            "channels": 64,
            "messages": {
                "layers": 3,
                "conv": "gin",
                "mlp_layers": 4,
                "aggregation": "pairwise",
                "activation": "gelu",
                "norm": True,
                "dropout": 0.0,
                "residual": True,
            },
            "readout": {"local": "pairs", "combine": "sum", "local_first": 0.75},
        },
    },
    "dango": {
        "small": {"channels": 32},
        "reference": {"channels": 64, "heads": 4},
    },
}

# What the presets of the hetero model were before it had a residual path; runs of that time name them.
_BEFORE_RESIDUAL: dict[str, dict[str, Any]] = {
    "small": {"channels": 32, "layers": 1, "conv": "sage", "aggregation": "sum", "activation": "relu", "local": False},
    "pairs": {
        "channels": 64,
        "layers": 1,
        "conv": "gin",
        "mlp_layers": 2,
        "aggregation": "mean",
        "similar": "diffusion",
        "embedding_dropout": 0.2,
        "local": "pairs",
        "local_states": "first",
        "head_dropout": 0.1,
        "combine": "sum",
    },
    "reference": {
        "channels": 64,
        "layers": 3,
        "conv": "gin",
        "mlp_layers": 4,
        "aggregation": "pairwise",
        "activation": "gelu",
        "norm": True,
        "dropout": 0.0,
        "local": True,
        "combine": "gating",
    },
}


SMALL_CELL = 2000
"""Genes below which the hetero model has the preset ``small`` in Python, else ``fast``."""


def too_small(name: str, options: Mapping[str, Any], num_genes: int) -> str | None:
    """In one sentence, that the preset ``small`` is used for a large cell, as the command line does where no model is
    chosen; ``None`` if it is not.
    """
    if num_genes < SMALL_CELL or name != "hetero" or options.get("messages") != PRESETS[name]["small"]["messages"]:
        return None
    return f"model=hetero-small is made for cells of a few hundred genes; for {num_genes:,} genes try model=hetero-fast"


def spelled_out(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model with its preset's in place of the preset's name; those that are given win.

    A run keeps them like this, so that it means the same when a preset has changed.

    >>> spelled_out("dango", {"preset": "reference", "channels": 32})
    {'channels': 32, 'heads': 4}
    """
    given = {key: vars(value) if is_dataclass(value) else value for key, value in options.items()}
    preset = given.pop("preset", None)
    presets = PRESETS.get(name, {})
    if preset is not None and preset not in presets:
        raise ModelError(f"the model {name} has no preset {preset!r}; it has {', '.join(presets) or 'none'}")
    if name == "hetero":
        _refuse_moved(given)
    chosen = merged({} if preset is None else presets[preset], given)
    if name == "hetero":  # their absence marks a run of an earlier version
        chosen = merged({"messages": {"residual": True}}, chosen)
        messages, readout = chosen["messages"], chosen.get("readout", {})
        if isinstance(messages, Mapping) and isinstance(readout, Mapping):
            norm = normalised(messages["residual"], readout.get("local", ReadoutOptions.local))
            chosen = merged({"input": {"norm": norm}}, chosen)
    return chosen


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The options of both, those of the second win, also within a group.

    >>> merged({"channels": 64, "messages": {"conv": "gin", "layers": 3}}, {"messages": {"layers": 1}})
    {'channels': 64, 'messages': {'conv': 'gin', 'layers': 1}}
    """
    both = {**first, **second}
    for key, value in first.items():
        if isinstance(value, Mapping) and isinstance(both[key], Mapping):
            both[key] = {**value, **both[key]}
    return both


def of_a_run(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a run directory keeps; one of an earlier version means what it meant then."""
    given = dict(options)
    if name != "hetero" or "messages" in given:
        return given
    if "residual" in given:
        return grouped({"input_norm": True, **given})  # the input was always normalised before it was an option
    return grouped({"residual": False, **_BEFORE_RESIDUAL.get(given.pop("preset", None) or "", {}), **given})


def grouped(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the hetero model as earlier versions spelled them, in their groups.

    >>> grouped({"channels": 64, "conv": "gin", "head_dropout": 0.1})
    {'channels': 64, 'messages': {'conv': 'gin'}, 'readout': {'dropout': 0.1}}
    """
    found: dict[str, Any] = {}
    for key, value in options.items():
        group, _, option = _moved(key, value).partition(".")
        if option:
            found.setdefault(group, {})[option] = value
        else:
            found[key] = value
    return found


def _refuse_moved(options: Mapping[str, Any]) -> None:
    for key, value in options.items():
        place = _moved(key, value)
        if place != key:
            group, option = place.split(".")
            text = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
            raise ModelError(
                f"the hetero model's option {key} is now {place}: write model.options.{place}={text} on the command "
                f"line, {group}={{{option!r}: {value!r}}} in Python"
            )


def _moved(key: str, value: Any) -> str:
    """Where an option is now; the name of a group with a group in it is where it belongs."""
    return key if isinstance(value, Mapping) else MOVED.get(key, key)
