"""Strategy ``stored-indices``: positions of removed edges in LMDB, masks rebuilt when they are loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_masks import EdgeMasks, removed_by_gene
from knockgraph.strategies.mask_store import MaskStore
from knockgraph.strategies.stored import StoredStrategy
from knockgraph.strategies.strategy import Direction, as_batch


class IndexReader:
    """Reads removed positions and rebuilds masks on the host. Sent to worker processes.

    A record is int32: the number of removed edges per relation, then their positions, relation after relation.
    """

    def __init__(self, store: MaskStore, num_edges: list[int]) -> None:
        self.store = store
        self.num_edges = num_edges

    def collate(self, samples: Any) -> PerturbationBatch:
        """The batch with its masks attached."""
        batch = as_batch(samples)
        masks = [torch.ones(e, batch.num_columns, dtype=torch.bool) for e in self.num_edges]
        relations = len(self.num_edges)
        for b, record in enumerate(self.store.read(batch.deletions())):
            numbers = np.frombuffer(record, dtype=np.int32)
            ends = np.cumsum(numbers[:relations]) + relations
            start = relations
            for mask, end in zip(masks, ends, strict=True):
                mask[torch.from_numpy(numbers[start:end].astype(np.int64)), b] = False
                start = end
        return replace(batch, payload=EdgeMasks(masks))


class StoredIndices(StoredStrategy):
    """Masks rebuilt from stored positions of removed edges.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        directory: A folder that :meth:`prepare` completed earlier.
    """

    name = "stored-indices"

    def __init__(
        self, graph: CellGraph, direction: Direction = "both", directory: str | os.PathLike[str] | None = None
    ) -> None:
        super().__init__(graph, direction, self.name)
        self.incidence = [removed_by_gene(relation, direction) for relation in graph.relations.values()]
        self.reader = IndexReader(self.store, self.num_edges)
        if directory is not None:
            self.open(directory)

    @property
    def record_bytes(self) -> int:
        """Of a triple deletion with average genes."""
        return 3 * 4 * sum(edge.numel() for _, edge in self.incidence) // max(self.num_genes, 1)

    def _record(self, genes: npt.NDArray[np.int32]) -> bytes:
        removed = []
        for ptr, edge in self.incidence:
            parts = [edge[ptr[g] : ptr[g + 1]].numpy() for g in genes.tolist()]
            removed.append(np.unique(np.concatenate([np.empty(0, dtype=np.int32), *parts])))
        counts = np.array([len(positions) for positions in removed], dtype=np.int32)
        return np.concatenate([counts, *removed]).astype(np.int32).tobytes()
