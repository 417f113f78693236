"""Strategy ``device-filter``: ``edge_index`` itself filtered on the device, no masks kept."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_lists import EdgeListedGraphs, EdgeListStrategy, SampleEdges
from knockgraph.strategies.strategy import Direction


class DeviceFilter(EdgeListStrategy):
    """Every sample's remaining edges as a list of their own, found with ``isin``.

    The number of remaining edges is known to the device only, so each relation makes the host wait once.
    """

    name = "device-filter"
    placement = "device"

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        for r, relation in enumerate(graph.relations.values()):
            self.register_buffer(f"edge_index_{r}", relation.edge_index.clone(), persistent=False)
            self.register_buffer(f"weight_{r}", relation.weight, persistent=False)

    def _view(self, batch: PerturbationBatch) -> EdgeListedGraphs:
        lists = [self._filter(r, batch) for r in range(len(self.relation_names))]
        return EdgeListedGraphs(self, batch, lists)

    def _filter(self, r: int, batch: PerturbationBatch) -> SampleEdges:
        edge_index: Tensor = getattr(self, f"edge_index_{r}")
        weight: Tensor | None = getattr(self, f"weight_{r}")
        b = batch.num_columns
        # Rows of the block-diagonal graph, gene · batch + sample; a deleted gene of a sample is such a row too.
        deleted = batch.perturbation_indices * b + batch.perturbation_indices_batch
        rows = edge_index.unsqueeze(-1) * b + torch.arange(b, device=self.device)
        gone = torch.isin(rows[1], deleted)
        if self.direction == "both":
            gone |= torch.isin(rows[0], deleted)
        edge, sample = (~gone).nonzero(as_tuple=True)
        return SampleEdges(rows[:, edge, sample], None if weight is None else weight[edge])
