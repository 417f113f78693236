"""The incidence map gene → removed edges as device tables: common to the strategies that make masks on the device."""

from __future__ import annotations

from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.strategies.edge_masks import EdgeStrategy, removed_by_gene
from knockgraph.strategies.strategy import Direction


class IncidenceStrategy(EdgeStrategy):
    """An edge strategy with the ragged incidence map of every relation on the device."""

    placement = "device"

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        for r, relation in enumerate(graph.relations.values()):
            ptr, edge = removed_by_gene(relation, direction)
            self.register_buffer(f"incidence_ptr_{r}", ptr.clone(), persistent=False)
            self.register_buffer(f"incidence_edge_{r}", edge.clone(), persistent=False)

    def incidence(self, r: int) -> tuple[Tensor, Tensor]:
        """``ptr [num_genes + 1]`` and ``edge`` of relation ``r``, int32."""
        return getattr(self, f"incidence_ptr_{r}"), getattr(self, f"incidence_edge_{r}")
