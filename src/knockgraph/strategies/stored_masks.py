"""Strategy ``stored-masks``: whole edge masks in LMDB."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_masks import EdgeMasks
from knockgraph.strategies.lazy_mask import MaskBuilder
from knockgraph.strategies.mask_store import MaskStore
from knockgraph.strategies.stored import StoredStrategy
from knockgraph.strategies.strategy import Direction, as_batch


class MaskReader:
    """Reads whole masks on the host. Sent to worker processes.

    A record is one byte per edge, relation after relation: 1 = the edge remains; or, packed, one bit per edge.
    """

    def __init__(self, store: MaskStore, num_edges: list[int], packed: bool) -> None:
        self.store = store
        self.num_edges = num_edges
        self.packed = packed

    def collate(self, samples: Any) -> PerturbationBatch:
        """The batch with its masks attached."""
        batch = as_batch(samples)
        total = sum(self.num_edges)
        whole = np.empty((batch.num_columns, total), dtype=np.uint8)
        for b, record in enumerate(self.store.read(batch.deletions())):
            values = np.frombuffer(record, dtype=np.uint8)
            whole[b] = np.unpackbits(values, count=total) if self.packed else values
        masks = torch.from_numpy(whole).bool().T.split(self.num_edges)  # type: ignore[no-untyped-call]
        return replace(batch, payload=EdgeMasks([mask.contiguous() for mask in masks]))


class StoredMasks(StoredStrategy):
    """Masks read from disk as they are.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        directory: A folder that :meth:`prepare` completed earlier.
        packed: Store one bit per edge instead of one byte.
    """

    name = "stored-masks"

    def __init__(
        self,
        graph: CellGraph,
        direction: Direction = "both",
        directory: str | os.PathLike[str] | None = None,
        packed: bool = False,
    ) -> None:
        super().__init__(graph, direction, f"{self.name}{'-packed' * packed}")
        self.packed = packed
        self.builder = MaskBuilder(graph, direction)
        self.reader = MaskReader(self.store, self.num_edges, packed)
        if directory is not None:
            self.open(directory)

    @property
    def record_bytes(self) -> int:
        """Bytes of one experiment on disk: what makes this strategy large."""
        total = sum(self.num_edges)
        return (total + 7) // 8 if self.packed else total

    def _record(self, genes: npt.NDArray[np.int32]) -> bytes:
        masks = self.builder.masks(PerturbationBatch.from_lists([genes.tolist()], self.num_genes))
        whole = np.concatenate([np.empty(0, dtype=np.uint8), *(mask[:, 0].to(torch.uint8).numpy() for mask in masks)])
        return (np.packbits(whole) if self.packed else whole).tobytes()
