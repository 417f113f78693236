"""Strategies with a filtered edge list per sample: their common view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.ops import Reduce
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_reduce import attend_edges, count_edges, reduce_edges
from knockgraph.strategies.strategy import Direction, Strategy
from knockgraph.strategies.view import Origin, PerturbedGraphs


@dataclass(frozen=True)
class SampleEdges:
    """The remaining edges of all samples of one relation, as one block-diagonal list.

    Attributes:
        edge_index: int64 ``[2, remaining edges of all samples]`` over the rows of the batch.
        weight: ``[remaining edges]`` or ``None``.
    """

    edge_index: Tensor
    weight: Tensor | None


class EdgeListStrategy(Strategy):
    """A strategy that gives every sample its own edge list."""

    abilities = frozenset({"doses"})

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        # Only for edge_mask(), which is for checks: (destination, source) of every edge as one sorted key.
        self._keys = [
            torch.sort(relation.edge_index[1] * graph.num_genes + relation.edge_index[0])
            for relation in graph.relations.values()
        ]


class EdgeListedGraphs(PerturbedGraphs):
    """Messages of the remaining edges only: ``[remaining edges, channels]`` in memory.

    Args:
        strategy: The strategy.
        batch: The batch.
        lists: One per relation.
        row: int64 ``[nodes]``: for each node of the lists, ``gene · batch + sample``; ``None`` if the nodes are these
            rows themselves.
        origin: Where the lists were made.
    """

    strategy: EdgeListStrategy

    def __init__(
        self,
        strategy: EdgeListStrategy,
        batch: PerturbationBatch,
        lists: Sequence[SampleEdges],
        row: Tensor | None = None,
        origin: Origin = "device",
    ) -> None:
        super().__init__(strategy, batch, origin)
        self.lists = lists
        self.row = row

    def _nodes(self, x: Tensor) -> Tensor:
        """``[num_genes, batch, …]`` → ``[nodes, …]``."""
        flat = x.flatten(0, 1)
        return flat if self.row is None else flat[self.row]

    def _back(self, y: Tensor) -> Tensor:
        """``[nodes, …]`` → ``[num_genes, batch, …]``, zero where a sample has no such node."""
        n, b = self.keep.shape
        if self.row is not None:
            y = y.new_zeros(n * b, *y.shape[1:]).index_copy(0, self.row, y)
        return y.view(n, b, *y.shape[1:])

    def _num_nodes(self) -> int:
        return self.keep.numel() if self.row is None else len(self.row)

    def _gene(self, node: Tensor) -> Tensor:
        return (node if self.row is None else self.row[node]) // max(self.keep.shape[1], 1)

    def _aggregate(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        source, target = self.lists[r].edge_index
        weight = self.lists[r].weight if weighted else None
        messages = self._nodes(x)[source]
        if weight is not None:
            messages = messages * weight.to(messages.dtype).unsqueeze(-1)
        return self._back(reduce_edges(messages, target, self._num_nodes(), reduce, None, source))

    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        start, end = self.lists[r].edge_index
        s, t = self._nodes(source)[start], self._nodes(target)[end]
        return self._back(attend_edges(s, t, end, self._num_nodes(), attention, slope, None))

    def _edge_mask(self, r: int) -> Tensor:
        source, target = self.lists[r].edge_index
        n, b = self.keep.shape
        sample = (target if self.row is None else self.row[target]) % max(b, 1)
        key = self._gene(target) * n + self._gene(source)
        known, position = (t.to(key.device) for t in self.strategy._keys[r])
        mask = torch.zeros(len(known), b, dtype=torch.bool, device=key.device)
        mask[position[torch.searchsorted(known, key)], sample] = True
        return mask

    def _degree(self, r: int) -> Tensor:
        like = torch.empty(0, 0, device=self.keep.device)
        return self._back(count_edges(self.lists[r].edge_index[1], self._num_nodes(), like, None)).squeeze(-1)
