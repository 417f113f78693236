"""Named sets of model options."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "hetero": {
        # The demo: under a minute on two cores.
        "small": {
            "channels": 32,
            "layers": 1,
            "conv": "sage",
            "aggregation": "sum",
            "activation": "relu",
            "local": False,
        },
        # Screens of pairs, also with genes that were never deleted before (docs/results.md); needs a feature:
        # knockgraph graph build --features diffusion
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
            "local": True,
            "combine": "gating",
        },
    },
    "dango": {
        "small": {"channels": 32},
        "reference": {"channels": 64, "heads": 4},
    },
}
