"""Collecting edges block by block into a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph.arrow import encoded
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport

if TYPE_CHECKING:
    import pyarrow as pa

Rows = npt.NDArray[np.int64]


class EdgeCollector:
    """Collects edges between rows of a gene list; only distinct ones are kept between blocks.

    Args:
        num_genes: Length of the gene list.
        directed: False adds the other direction of every edge.
    """

    def __init__(self, num_genes: int, directed: bool) -> None:
        self.num_genes = num_genes
        self.directed = directed
        self._key = np.empty(0, np.int64)
        self._weight = np.empty(0, np.float32)
        self._blocks: list[tuple[Rows, npt.NDArray[np.float32]]] = []
        self._waiting = 0
        self.given = 0

    def add(self, source: Rows, target: Rows, weight: npt.NDArray[Any] | None = None) -> None:
        """Add edges; a repeated edge keeps its largest weight."""
        if not self.directed:
            source, target = np.minimum(source, target), np.maximum(source, target)
        w = np.ones(len(source), np.float32) if weight is None else weight.astype(np.float32)
        self._blocks.append((source * self.num_genes + target, w))
        self._waiting += len(source)
        self.given += len(source)
        if self._waiting > 4_000_000:
            self._settle()

    def _settle(self) -> None:
        key = np.concatenate([self._key, *(k for k, _ in self._blocks)])
        weight = np.concatenate([self._weight, *(w for _, w in self._blocks)])
        order = np.lexsort((-weight, key))
        key, weight = key[order], weight[order]
        first = np.ones(len(key), bool)
        first[1:] = key[1:] != key[:-1]
        self._key, self._weight = key[first], weight[first]
        self._blocks, self._waiting = [], 0

    def tell(self, report: FileReport) -> None:
        """Record the counts in a report."""
        report.drop("the same edge again", self.given - self.pairs)
        report.kept["edges" if self.directed else "pairs"] = self.pairs

    @property
    def pairs(self) -> int:
        """Distinct edges; an undirected one counts once."""
        self._settle()
        return len(self._key)

    def result(self, weighted: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """``edge_index [2, edges]`` ordered by source and target, with the weights if asked for."""
        self._settle()
        source, target = self._key // self.num_genes, self._key % self.num_genes
        weight = self._weight
        if not self.directed:
            loop = source == target
            source, target = np.concatenate([source, target[~loop]]), np.concatenate([target, source[~loop]])
            weight = np.concatenate([weight, weight[~loop]])
            order = np.lexsort((target, source))
            source, target, weight = source[order], target[order], weight[order]
        edge_index = torch.from_numpy(np.stack([source, target]))
        return (edge_index, torch.from_numpy(weight.copy())) if weighted else edge_index


def resolved_pairs(
    batch: pa.RecordBatch, columns: tuple[str, str], resolve: NameResolver, report: FileReport, prefix: str = ""
) -> tuple[Rows, Rows, npt.NDArray[np.bool_]]:
    """Gene rows of two columns of names; ``known`` says where both resolve, the others are counted as dropped."""
    first, second = (_rows(batch.column(name), resolve, prefix) for name in columns)
    known = (first >= 0) & (second >= 0)
    report.read += len(batch)
    report.drop("a name does not resolve", int((~known).sum()))
    return first, second, known


def _rows(column: pa.Array, resolve: NameResolver, prefix: str) -> Rows:
    names, codes = distinct(column)
    return resolve.many([name.removeprefix(prefix) for name in names], codes)


def distinct(column: pa.Array | pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """The distinct strings of a column and one code per row."""
    names, codes = encoded(column)
    return names, codes.astype(np.int64)
