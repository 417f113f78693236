"""Strategy ``device-vectorized``: edge masks made on the device in a few operations, ragged or padded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.device_tables import IncidenceStrategy
from knockgraph.strategies.edge_masks import EdgeMaskedGraphs, count_removed, removed_by_gene, removed_edges
from knockgraph.strategies.strategy import Direction, as_batch

Layout = Literal["ragged", "padded"]


class RemovedEdges(NamedTuple):
    """What the loader attaches: how many edges a batch removes, per relation."""

    removed: list[int]


class RemovedCounter:
    """Counts on the host how many edges a batch removes, which avoids reading it from the device. Sent to workers."""

    def __init__(self, pointers: list[Tensor]) -> None:
        self.pointers = pointers

    def collate(self, samples: Any) -> PerturbationBatch:
        """The batch with its :class:`RemovedEdges` attached."""
        batch = as_batch(samples)
        if batch.device.type != "cpu":
            return batch
        deletions = batch.deletions()
        return replace(batch, payload=RemovedEdges([count_removed(ptr, deletions) for ptr in self.pointers]))


class DeviceVectorized(IncidenceStrategy):
    """The reference design: masks by one scatter per relation, no loop over samples.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        layout: ``ragged`` expands the incidence map by ``repeat_interleave``. ``padded`` keeps a rectangular map
            ``[num_genes, most edges of a gene]``, which needs no sizes but several times the memory.
    """

    name = "device-vectorized"

    def __init__(self, graph: CellGraph, direction: Direction = "both", layout: Layout = "ragged") -> None:
        super().__init__(graph, direction)
        if layout not in ("ragged", "padded"):
            raise StrategyError(f"layout={layout!r} is not known: use 'ragged' or 'padded'")
        self.layout: Layout = layout
        pointers = []
        for r, relation in enumerate(graph.relations.values()):
            ptr, edge = removed_by_gene(relation, direction)
            pointers.append(ptr)
            if layout == "padded":
                self.register_buffer(f"padded_{r}", _pad(ptr, edge, relation.num_edges), persistent=False)
                delattr(self, f"incidence_ptr_{r}")
                delattr(self, f"incidence_edge_{r}")
        self.counter = RemovedCounter(pointers)

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """Attaches the sizes that the ragged layout needs on the host; without them it reads them from the device."""
        return self.counter.collate if self.layout == "ragged" else as_batch

    def _view(self, batch: PerturbationBatch) -> EdgeMaskedGraphs:
        make = self._ragged if self.layout == "ragged" else self._padded
        return EdgeMaskedGraphs(self, batch, [make(r, batch) for r in range(len(self.num_edges))])

    def _ragged(self, r: int, batch: PerturbationBatch) -> Tensor:
        known = batch.payload.removed[r] if isinstance(batch.payload, RemovedEdges) else None
        ptr, edge = self.incidence(r)
        removed, sample = removed_edges(ptr, edge, batch, known)
        mask = torch.ones(self.num_edges[r], batch.num_columns, dtype=torch.bool, device=self.device)
        return mask.view(-1).index_fill_(0, removed * batch.num_columns + sample, False).view_as(mask)

    def _padded(self, r: int, batch: PerturbationBatch) -> Tensor:
        padded: Tensor = getattr(self, f"padded_{r}")
        removed = padded[batch.perturbation_indices].long()
        place = removed * batch.num_columns + batch.perturbation_indices_batch.unsqueeze(1)
        # The padding points to one more edge, which is cut off.
        mask = torch.ones(self.num_edges[r] + 1, batch.num_columns, dtype=torch.bool, device=self.device)
        return mask.view(-1).index_fill_(0, place.view(-1), False).view_as(mask)[:-1]


def _pad(ptr: Tensor, edge: Tensor, num_edges: int) -> Tensor:
    """int32 ``[num_genes, most edges of a gene]``, filled up with ``num_edges``."""
    count = (ptr[1:] - ptr[:-1]).long()
    gene = torch.repeat_interleave(torch.arange(len(count)), count)
    place = torch.arange(len(edge)) - ptr[gene].long()
    padded = torch.full((len(count), int(count.max()) if len(count) else 0), num_edges, dtype=torch.int32)
    padded[gene, place] = edge
    return padded
