"""The cells and screens that need no files, by name."""

from __future__ import annotations

from knockgraph.graph import CellGraph
from knockgraph.screen import Screen
from knockgraph.sources.demo import demo_cell, demo_screen
from knockgraph.sources.yeast_scale import yeast_scale_cell, yeast_scale_screen

_BUILT_IN = {"demo": (demo_cell, demo_screen), "yeast-scale": (yeast_scale_cell, yeast_scale_screen)}
NAMES = tuple(_BUILT_IN)


def built_in_cell(name: str, seed: int = 0) -> CellGraph:
    """The cell of this name."""
    return _BUILT_IN[name][0](seed)


def built_in_screen(name: str, experiments: int | None = None, seed: int = 0) -> Screen:
    """The screen of this name; without a number of experiments as many as it has by default."""
    make = _BUILT_IN[name][1]
    return make(seed=seed) if experiments is None else make(experiments, seed)
