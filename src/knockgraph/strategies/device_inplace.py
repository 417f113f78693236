"""Strategy ``device-inplace``: one persistent mask buffer; bits are flipped before the step and back after it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.device_tables import IncidenceStrategy
from knockgraph.strategies.device_vectorized import RemovedCounter, RemovedEdges
from knockgraph.strategies.edge_masks import EdgeMaskedGraphs, removed_by_gene, removed_edges
from knockgraph.strategies.strategy import Direction


class DeviceInplace(IncidenceStrategy):
    """All-True masks that persist with the strategy; a view borrows them and restores them on exit.

    ``with strategy(batch) as view:`` is required, with the backward pass inside it. The buffer is restored also when
    the forward or backward pass raises. Only one view can be alive at a time.
    """

    name = "device-inplace"

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        for r, num_edges in enumerate(self.num_edges):
            self.register_buffer(f"mask_{r}", torch.ones(num_edges, 0, dtype=torch.bool), persistent=False)
        pointers = [removed_by_gene(relation, direction)[0] for relation in graph.relations.values()]
        self.counter = RemovedCounter(pointers)
        self.columns = 0
        self.borrowed = False

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """Attaches the number of flipped bits, which avoids reading it from the device."""
        return self.counter.collate

    def buffer(self, r: int, columns: int) -> Tensor:
        """bool ``[num_edges, columns]`` of relation ``r``, all True unless a view has borrowed it."""
        if columns != self.columns:
            # A new batch size: made anew, all True. The last, shorter batch of an epoch comes here too.
            for k, num_edges in enumerate(self.num_edges):
                setattr(self, f"mask_{k}", torch.ones(num_edges, columns, dtype=torch.bool, device=self.device))
            self.columns = columns
        mask: Tensor = getattr(self, f"mask_{r}")
        return mask

    def _view(self, batch: PerturbationBatch) -> EdgeMaskedGraphs:
        if self.borrowed:
            raise StrategyError(
                "device-inplace has one mask buffer and another view of it is still alive; leave its 'with' block first"
            )
        return InplaceGraphs(self, batch)


class InplaceGraphs(EdgeMaskedGraphs):
    """A view that flips the strategy's buffer on entry and restores it on exit."""

    strategy: DeviceInplace

    def __init__(self, strategy: DeviceInplace, batch: PerturbationBatch) -> None:
        super().__init__(strategy, batch, [])
        self.flipped: list[Tensor] | None = None

    def mask(self, r: int) -> Tensor:
        """The borrowed buffer of relation ``r``, bool ``[edges, batch]``."""
        if self.flipped is None:
            raise StrategyError(
                "device-inplace needs 'with strategy(batch) as view:' around the forward and backward pass"
            )
        return self.strategy.buffer(r, self.batch.num_columns)

    def __enter__(self) -> Self:
        strategy, batch = self.strategy, self.deletions
        if strategy.borrowed:
            raise StrategyError(
                "device-inplace has one mask buffer and another view of it is still alive; leave its 'with' block first"
            )
        known = batch.payload if isinstance(batch.payload, RemovedEdges) else None
        places = []
        for r in range(len(strategy.num_edges)):
            ptr, edge = strategy.incidence(r)
            removed, sample = removed_edges(ptr, edge, batch, None if known is None else known.removed[r])
            places.append(removed * batch.num_columns + sample)
            strategy.buffer(r, batch.num_columns)  # before it is borrowed: a new size may not fit the memory
        strategy.borrowed = True
        self.flipped = places
        self._fill(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.flipped is not None:
            self._fill(True)
            self.flipped = None
            self.strategy.borrowed = False

    def _fill(self, value: bool) -> None:
        assert self.flipped is not None
        for r, place in enumerate(self.flipped):
            self.strategy.buffer(r, self.batch.num_columns).view(-1).index_fill_(0, place, value)
