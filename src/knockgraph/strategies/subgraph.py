"""Strategy ``subgraph``: PyG's ``subgraph()`` per sample in the loader's workers, a new ``edge_index`` for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_lists import EdgeListedGraphs, EdgeListStrategy, SampleEdges
from knockgraph.strategies.edge_masks import check_columns
from knockgraph.strategies.strategy import Direction, as_batch


class SampleGraphs(NamedTuple):
    """What the loader's workers attach.

    Attributes:
        gene: int64 ``[nodes]``, the gene of each node that a sample has left, one sample after another.
        sample: int64 ``[nodes]``.
        edges: Per relation int64 ``[2, edges]`` between nodes.
        weights: Per relation ``[edges]`` or ``None``.
        columns: Samples that it was made for.
    """

    gene: Tensor
    sample: Tensor
    edges: list[Tensor]
    weights: list[Tensor | None]
    columns: int


class SubgraphBuilder:
    """Extracts every sample's subgraph on the host. Sent to worker processes.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
    """

    def __init__(self, graph: CellGraph, direction: Direction) -> None:
        self.relations = list(graph.relations.values())
        self.direction = direction

    def collate(self, samples: Any) -> PerturbationBatch:
        """The batch with one block-diagonal edge list per relation, over the nodes that each sample has left."""
        from torch_geometric.utils import subgraph

        batch = as_batch(samples)
        keep = batch.keep()
        # With direction="in" a deleted gene still sends, so it stays a node; only its incoming edges go.
        node_kept = keep if self.direction == "both" else torch.ones_like(keep)
        nodes = [node_kept[:, b].nonzero().squeeze(1) for b in range(batch.num_columns)]
        sizes = torch.tensor([0, *map(len, nodes)])
        offset = sizes.cumsum(0)
        edges: list[list[Tensor]] = [[] for _ in self.relations]
        weights: list[list[Tensor]] = [[] for _ in self.relations]
        for r, relation in enumerate(self.relations):
            for b, kept in enumerate(nodes):
                edge_index, weight = subgraph(
                    kept, relation.edge_index, relation.weight, relabel_nodes=True, num_nodes=relation.num_genes
                )
                if self.direction == "in":
                    alive = keep[kept[edge_index[1]], b]
                    edge_index, weight = edge_index[:, alive], None if weight is None else weight[alive]
                edges[r].append(edge_index + offset[b])
                if weight is not None:
                    weights[r].append(weight)
        payload = SampleGraphs(
            torch.cat(nodes) if nodes else torch.empty(0, dtype=torch.long),
            torch.repeat_interleave(torch.arange(batch.num_columns), sizes[1:]),
            [torch.cat(parts, 1) if parts else torch.empty(2, 0, dtype=torch.long) for parts in edges],
            [torch.cat(parts) if parts else None for parts in weights],
            batch.num_columns,
        )
        return replace(batch, payload=payload)


class Subgraph(EdgeListStrategy):
    """Deleted genes are actually removed; results are scattered back to their rows."""

    name = "subgraph"
    placement = "worker"

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        self.builder = SubgraphBuilder(graph, direction)

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """See :class:`Strategy`."""
        return self.builder.collate

    def _view(self, batch: PerturbationBatch) -> EdgeListedGraphs:
        payload = batch.payload
        made_in_worker = isinstance(payload, SampleGraphs)
        if made_in_worker:
            check_columns(batch, payload.columns)
            made_in_worker = payload.columns == batch.num_columns
        if not made_in_worker:
            # Bare, or the wild type was added after collation: its graph has to be cut out too.
            payload = self.builder.collate(batch.to("cpu")).payload
        place = self.device
        lists = [
            SampleEdges(edges.to(place), None if weight is None else weight.to(place))
            for edges, weight in zip(payload.edges, payload.weights, strict=True)
        ]
        row = payload.gene.to(place) * batch.num_columns + payload.sample.to(place)
        return EdgeListedGraphs(self, batch, lists, row, "worker" if made_in_worker else "in place")
