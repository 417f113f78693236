"""Strategy ``lazy-mask``: boolean edge masks built in the loader's workers, one shared ``edge_index``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_masks import (
    EdgeMaskedGraphs,
    EdgeMasks,
    EdgeStrategy,
    removed_by_gene,
    removed_edges,
    with_wild_type_column,
)
from knockgraph.strategies.strategy import Direction, as_batch


class MaskBuilder:
    """Makes masks on the host from the incidence map gene → edge positions. Sent to worker processes.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
    """

    def __init__(self, graph: CellGraph, direction: Direction) -> None:
        self.incidence = [removed_by_gene(relation, direction) for relation in graph.relations.values()]
        self.num_edges = [relation.num_edges for relation in graph.relations.values()]

    def masks(self, batch: PerturbationBatch) -> list[Tensor]:
        """Per relation bool ``[num_edges, batch]`` for a batch on the host."""
        masks = []
        for (ptr, edge), num_edges in zip(self.incidence, self.num_edges, strict=True):
            mask = torch.ones(num_edges, batch.num_columns, dtype=torch.bool)
            removed, sample = removed_edges(ptr, edge, batch)
            mask[removed, sample] = False
            masks.append(mask)
        return masks

    def collate(self, samples: Any) -> PerturbationBatch:
        """The batch with its masks attached."""
        batch = as_batch(samples)
        return replace(batch, payload=EdgeMasks(self.masks(batch.deletions())))

    @property
    def nbytes(self) -> int:
        """Bytes of the incidence map."""
        return sum(ptr.nbytes + edge.nbytes for ptr, edge in self.incidence)


class LazyMask(EdgeStrategy):
    """``mask[e, b] = m_b[src(e)] · m_b[dst(e)]``, looked up edge by edge in the workers and sent to the device."""

    name = "lazy-mask"
    placement = "worker"

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        self.builder = MaskBuilder(graph, direction)

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """See :class:`Strategy`."""
        return self.builder.collate

    def memory(self) -> dict[str, int]:
        """See :class:`Strategy`."""
        return {**super().memory(), "host incidence map": self.builder.nbytes}

    def _view(self, batch: PerturbationBatch) -> EdgeMaskedGraphs:
        return view_of_payload(self, batch, self.builder.collate)


def view_of_payload(
    strategy: EdgeStrategy, batch: PerturbationBatch, collate: Callable[[Any], PerturbationBatch]
) -> EdgeMaskedGraphs:
    """The view of masks that a worker attached, or, for a bare batch, of masks made here and now."""
    made_in_worker = isinstance(batch.payload, EdgeMasks)
    payload: EdgeMasks = batch.payload if made_in_worker else collate(batch.to("cpu")).payload
    masks = [with_wild_type_column(mask.to(strategy.device), batch) for mask in payload.masks]
    return EdgeMaskedGraphs(strategy, batch, masks, "worker" if made_in_worker else "in place")
