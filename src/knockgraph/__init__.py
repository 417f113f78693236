"""Graph neural networks on gene-deletion experiments: one shared cell graph, many masked copies of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knockgraph import ops, strategies
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
from knockgraph.strategies import PerturbedGraphs

if TYPE_CHECKING:
    from knockgraph.screen.pyg import PerturbationDataset
    from knockgraph.sources.demo import demo_cell, demo_screen
    from knockgraph.sources.yeast_scale import yeast_scale_cell, yeast_scale_screen

__version__ = "0.1.0"

# Imported when first used: they need PyG, or are generators that most programs never call.
_LATE = {
    "PerturbationDataset": "knockgraph.screen.pyg",
    "demo_cell": "knockgraph.sources.demo",
    "demo_screen": "knockgraph.sources.demo",
    "yeast_scale_cell": "knockgraph.sources.yeast_scale",
    "yeast_scale_screen": "knockgraph.sources.yeast_scale",
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
    module = _LATE.get(name)
    if module is None:
        raise AttributeError(f"module 'knockgraph' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(module), name)
