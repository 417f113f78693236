"""Graph neural networks on gene-deletion experiments: one shared cell graph, many masked copies of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knockgraph.errors import (
    FileFormatError,
    GeneListMismatchError,
    GraphError,
    KnockgraphError,
    LabelError,
    MissingPointerError,
    ModelError,
    NotPreparedError,
    PerturbationError,
    ScreenError,
    SplitError,
    StrategyError,
    UnknownGeneError,
)

if TYPE_CHECKING:
    from knockgraph import ops, strategies
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
_MODULES = ("ops", "strategies")
_LATE = {
    **dict.fromkeys(("CellGraph", "GeneNames", "Metabolism", "Reaction", "Relation"), "graph"),
    **dict.fromkeys(("BoundScreen", "LabelTransform", "PerturbationBatch"), "screen"),
    **dict.fromkeys(("Screen", "ScreenLoader", "Split", "splits"), "screen"),
    "PerturbationDataset": "screen.pyg",
    "PerturbedGraphs": "strategies",
    **dict.fromkeys(("demo_cell", "demo_screen"), "sources.demo"),
    **dict.fromkeys(("yeast_scale_cell", "yeast_scale_screen"), "sources.yeast_scale"),
}

__all__ = [
    "BoundScreen",
    "CellGraph",
    "FileFormatError",
    "GeneListMismatchError",
    "GeneNames",
    "GraphError",
    "KnockgraphError",
    "LabelError",
    "LabelTransform",
    "Metabolism",
    "MissingPointerError",
    "ModelError",
    "NotPreparedError",
    "PerturbationBatch",
    "PerturbationDataset",
    "PerturbationError",
    "PerturbedGraphs",
    "Reaction",
    "Relation",
    "Screen",
    "ScreenError",
    "ScreenLoader",
    "Split",
    "SplitError",
    "StrategyError",
    "UnknownGeneError",
    "demo_cell",
    "demo_screen",
    "ops",
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
    return sorted({*globals(), *__all__})
