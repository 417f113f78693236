"""Graph neural networks on gene-deletion experiments: one shared cell graph, many masked copies of it.

What ``__all__`` names is public and stays; so does what its modules name in theirs (docs/stability.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knockgraph.errors import (
    BaselineError,
    BatchTooLargeError,
    ConfigError,
    DownloadError,
    FileFormatError,
    GeneListMismatchError,
    GraphError,
    KnockgraphError,
    LabelError,
    LossError,
    MissingPackageError,
    MissingPointerError,
    ModelError,
    NoDosesError,
    NotFiniteError,
    NotPreparedError,
    PerturbationError,
    RegistryError,
    ScreenError,
    SourceError,
    SplitError,
    StrategyError,
    TrainingStoppedError,
    UnknownGeneError,
    WindowError,
)
from knockgraph.registry import register

if TYPE_CHECKING:
    from knockgraph import losses, models, nn, ops, strategies
    from knockgraph.fitted import Fitted, fit, load
    from knockgraph.graph import CellGraph, GeneNames, Metabolism, Reaction, Relation
    from knockgraph.screen import (
        BoundScreen,
        LabelTransform,
        PerturbationBatch,
        Screen,
        ScreenLoader,
        Split,
        splits,
    )
    from knockgraph.screen.pyg import PerturbationDataset
    from knockgraph.sources.demo import demo_cell, demo_screen
    from knockgraph.sources.yeast_scale import yeast_scale_cell, yeast_scale_screen
    from knockgraph.strategies import PerturbedGraphs

__version__ = "0.1.0"

# Imported when first used: torch takes a second or two, and help, completion and --version do without it.
_MODULES = ("losses", "models", "nn", "ops", "strategies")
_LATE = {
    **dict.fromkeys(("CellGraph", "GeneNames", "Metabolism", "Reaction", "Relation"), "graph"),
    **dict.fromkeys(("BoundScreen", "LabelTransform", "PerturbationBatch"), "screen"),
    **dict.fromkeys(("Screen", "ScreenLoader", "Split", "splits"), "screen"),
    "PerturbationDataset": "screen.pyg",
    "PerturbedGraphs": "strategies",
    **dict.fromkeys(("demo_cell", "demo_screen"), "sources.demo"),
    **dict.fromkeys(("Fitted", "fit", "load"), "fitted"),
    **dict.fromkeys(("yeast_scale_cell", "yeast_scale_screen"), "sources.yeast_scale"),
}

__all__ = [
    "BaselineError",
    "BatchTooLargeError",
    "BoundScreen",
    "CellGraph",
    "ConfigError",
    "DownloadError",
    "FileFormatError",
    "Fitted",
    "GeneListMismatchError",
    "GeneNames",
    "GraphError",
    "KnockgraphError",
    "LabelError",
    "LabelTransform",
    "LossError",
    "Metabolism",
    "MissingPackageError",
    "MissingPointerError",
    "ModelError",
    "NoDosesError",
    "NotFiniteError",
    "NotPreparedError",
    "PerturbationBatch",
    "PerturbationDataset",
    "PerturbationError",
    "PerturbedGraphs",
    "Reaction",
    "RegistryError",
    "Relation",
    "Screen",
    "ScreenError",
    "ScreenLoader",
    "SourceError",
    "Split",
    "SplitError",
    "StrategyError",
    "TrainingStoppedError",
    "UnknownGeneError",
    "WindowError",
    "demo_cell",
    "demo_screen",
    "fit",
    "load",
    "losses",
    "models",
    "nn",
    "ops",
    "register",
    "splits",
    "strategies",
    "yeast_scale_cell",
    "yeast_scale_screen",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"knockgraph.{name}")
    if name not in _LATE:
        raise AttributeError(f"module 'knockgraph' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"knockgraph.{_LATE[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
