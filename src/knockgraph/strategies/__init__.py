"""Strategies: different ways to compute each sample's own perturbed graph, with the same interface.

====================  =========  =========================================================================
name                  placement  what it does
====================  =========  =========================================================================
``subgraph``          worker     PyG's ``subgraph()`` per sample, a new edge list each
``lazy-mask``         worker     edge masks from the incidence map, shared ``edge_index``
``stored-indices``    stored     positions of removed edges in LMDB
``stored-masks``      stored     whole edge masks in LMDB
``device-loop``       device     edge masks in a Python loop, a host synchronisation for each gene
``device-vectorized`` device     edge masks by one scatter per relation (ragged or padded)
``device-inplace``    device     one persistent mask buffer, flipped and restored
``device-cached``     device     bit-packed masks of all single deletions, AND-ed
``device-filter``     device     ``edge_index`` filtered with ``isin``
``neighborhood``      device     only genes within k hops recomputed; exact if k ≥ ``model.hops``
``node-mask``         device     no edge masks: one shared sparse product (the default)
====================  =========  =========================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from knockgraph import registry
from knockgraph.strategies.strategy import Placement, Strategy
from knockgraph.strategies.view import PerturbedGraphs

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph

__all__ = ["DEFAULT", "PerturbedGraphs", "Strategy", "available", "create", "placement"]

DEFAULT = "node-mask"


def available() -> list[str]:
    """The names of all strategies."""
    return registry.available("strategy")


def placement(name: str) -> Placement:
    """Where the strategy of this name does its work, see :class:`Strategy`."""
    found: Placement = registry.find("strategy", name).placement
    return found


def create(name: str, graph: CellGraph, **options: Any) -> Strategy:
    """A strategy by name.

    Args:
        name: One of :func:`available`, or ``package.module:Class``.
        graph: The cell graph.
        options: ``direction`` for all of them; the others are in the strategy's own docstring.
    """
    made: Strategy = registry.create("strategy", name, graph, **options)
    return made
