"""Named sets of model options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knockgraph.errors import ModelError

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "hetero": {
        # The demo: under a minute on two cores. Genes have a dozen neighbours there, so their states survive a layer
        # without a residual path, and without one they have to be learned from the graph, which keeps them from
        # fitting the noise. Norms would hide how many neighbours a gene has.
        "small": {
            "channels": 64,
            "layers": 1,
            "conv": "gin",
            "mlp_layers": 2,
            "aggregation": "mean",
            "norm": False,
            "residual": False,
            "input_norm": False,
            "local": "pairs",
            "combine": "sum",
        },
        # One layer, in which most rows of a batch are the same in all samples and computed once: a minute for yeast.
        "fast": {
            "channels": 64,
            "layers": 1,
            "conv": "gin",
            "mlp_layers": 2,
            "aggregation": "pairwise",
            "residual": True,
            "local": "pairs",
            "combine": "sum",
        },
        # Screens of pairs, also with genes that were never deleted before (docs/results.md); needs a feature:
        # knockgraph graph build --features diffusion
        "pairs": {
            "channels": 64,
            "layers": 1,
            "conv": "gin",
            "mlp_layers": 2,
            "aggregation": "mean",
            "residual": False,  # the local predictor sees the states before the only layer
            "similar": "diffusion",
            "embedding_dropout": 0.2,
            "local": "pairs",
            "local_states": "first",
            "head_dropout": 0.1,
            "combine": "sum",
        },
        # The reference project's sizes; its gated Hyper-SAGNN learns more slowly than a predictor of all pairs
        # (docs/learn.md): local=hyper-sagnn, combine=gating.
        "reference": {
            "channels": 64,
            "layers": 3,
            "conv": "gin",
            "mlp_layers": 4,
            "aggregation": "pairwise",
            "activation": "gelu",
            "norm": True,
            "dropout": 0.0,
            "residual": True,
            "local": "pairs",
            "combine": "sum",
        },
    },
    "dango": {
        "small": {"channels": 32},
        "reference": {"channels": 64, "heads": 4},
    },
}

# What the presets of the hetero model were before it had a residual path; runs of that time name them.
_BEFORE_RESIDUAL: dict[str, dict[str, Any]] = {
    "small": {
        "channels": 32,
        "layers": 1,
        "conv": "sage",
        "aggregation": "sum",
        "activation": "relu",
        "local": False,
    },
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


def spelled_out(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a model with its preset's in place of the preset's name; those that are given win.

    A run keeps them like this, so that it means the same when a preset has changed.

    >>> spelled_out("dango", {"preset": "reference", "channels": 32})
    {'channels': 32, 'heads': 4}
    """
    given = dict(options)
    preset = given.pop("preset", None)
    presets = PRESETS.get(name, {})
    if preset is not None and preset not in presets:
        raise ModelError(f"the model {name} has no preset {preset!r}; it has {', '.join(presets) or 'none'}")
    chosen = {**({} if preset is None else presets[preset]), **given}
    if name == "hetero":  # their absence marks a run of an earlier version
        chosen.setdefault("residual", True)
        chosen.setdefault("input_norm", not chosen["residual"])
    return chosen


def of_a_run(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a run directory keeps; one from before the residual path means what it meant then."""
    if name != "hetero":
        return dict(options)
    if "residual" in options:
        return {"input_norm": True, **options}  # the input was always normalised before it was an option
    given = dict(options)
    return {"residual": False, **_BEFORE_RESIDUAL.get(given.pop("preset", None) or "", {}), **given}
