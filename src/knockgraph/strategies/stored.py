"""What the stored strategies share: edge masks that the loader's workers read from a :class:`MaskStore`."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from knockgraph.graph import CellGraph
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_masks import EdgeMaskedGraphs, EdgeStrategy
from knockgraph.strategies.lazy_mask import view_of_payload
from knockgraph.strategies.mask_store import MaskStore
from knockgraph.strategies.strategy import Direction, GenotypesLike


class Reader(Protocol):
    """Reads masks on the host; travels to worker processes."""

    def collate(self, samples: Any) -> PerturbationBatch:
        """The batch with its masks attached."""
        ...


class StoredStrategy(EdgeStrategy):
    """Masks from records on disk, one for each distinct set of deleted genes.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        kind: Of the records, see :class:`MaskStore`.
    """

    placement = "stored"
    reader: Reader

    def __init__(self, graph: CellGraph, direction: Direction, kind: str) -> None:
        super().__init__(graph, direction)
        self.store = MaskStore(graph, kind, direction)

    @property
    @abstractmethod
    def record_bytes(self) -> int:
        """Typical bytes of one experiment on disk."""

    @abstractmethod
    def _record(self, genes: npt.NDArray[np.int32]) -> bytes:
        """What is stored for a set of deleted genes."""

    def prepare(self, genotypes: GenotypesLike, directory: str | os.PathLike[str]) -> None:
        """Write the record of every distinct set of deleted genes to ``directory``."""
        self.store.write(genotypes, directory, self._record, self.record_bytes)

    def open(self, directory: str | os.PathLike[str]) -> None:
        """See :class:`Strategy`."""
        self.store.use(directory)

    def close(self) -> None:
        """See :class:`Strategy`."""
        self.store.close()

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """See :class:`Strategy`."""
        return self.reader.collate

    def memory(self) -> dict[str, int]:
        """See :class:`Strategy`."""
        return {**super().memory(), "disk": self.store.nbytes}

    def _view(self, batch: PerturbationBatch) -> EdgeMaskedGraphs:
        return view_of_payload(self, batch, self.reader.collate)
