"""By which networks and features of the graph genes are similar, from an option."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph
from knockgraph.models.kernels.similarity import Similarities


def similarities(graph: CellGraph, similar: str | Sequence[str]) -> str | Tensor:
    """The feature of that name, or the similarities by networks and features, ``[tables, num_genes, num_genes]``."""
    relations: list[str] | None = None
    features: list[str] | None = None
    if isinstance(similar, str) and (similar in graph.features or similar not in ("all", *graph.relations)):
        return similar
    if similar != "all":
        names = [similar] if isinstance(similar, str) else similar
        known = [*graph.relations, *graph.features]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ModelError(
                f"input.similar names {unknown[0]!r}, but the graph has no such network or feature; use some of "
                f"{', '.join(known) or 'none'}"
            )
        relations = [name for name in graph.relations if name in names]
        features = [name for name in graph.features if name in names]
    every = Similarities.of(graph, torch.arange(graph.num_genes), relations, features)
    if not every.tables:
        raise ModelError(
            f"input.similar is {similar!r}, but that is no network with edges and no feature; give the graph some, or "
            "set input.similar=null"
        )
    return every.to(every)
