"""Named sets of model options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from knockgraph.errors import ModelError

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "hetero": {
        # The demo: under a minute on two cores. Genes have a dozen neighbours there, so their states survive a layer
        # without a residual path, and without one they have to be learned from the graph, which keeps them from
        # fitting the noise. A norm would hide how many neighbours a gene has.
        "small": {
            "channels": 64,
            "layers": 1,
            "conv": "gin",
            "mlp_layers": 2,
            "aggregation": "mean",
            "norm": False,
            "residual": False,
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
        # The reference project's settings.
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
            "local": True,
            "combine": "gating",
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
    always = {"residual": True} if name == "hetero" else {}  # its absence marks a run of an earlier version
    return {**always, **({} if preset is None else presets[preset]), **given}


def of_a_run(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a run directory keeps; one from before the residual path means what it meant then."""
    if name != "hetero" or "residual" in options:
        return dict(options)
    given = dict(options)
    return {"residual": False, **_BEFORE_RESIDUAL.get(given.pop("preset", None) or "", {}), **given}
