"""Which relations a model uses."""

from __future__ import annotations

from collections.abc import Sequence

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph


def relation_choice(graph: CellGraph, names: Sequence[str] | None) -> tuple[str, ...]:
    """The relations that a model uses, checked; ``None`` means all of the graph."""
    chosen = tuple(graph.relations if names is None else names)
    if not chosen:
        raise ModelError("the model needs at least one relation; the graph, or the option relations, has none")
    unknown = [name for name in chosen if name not in graph.relations]
    if unknown:
        raise ModelError(f"the graph has no relation {unknown[0]!r}; it has {', '.join(graph.relations)}")
    if len(set(chosen)) < len(chosen):
        raise ModelError(f"relations lists a name twice: {', '.join(chosen)}")
    return chosen
