"""Genotypes as sums over their pairs of genes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

_COLUMNS = 256  # of a product by few pairs, at once: the rows that they ask for stay in the cache


class _Pattern(NamedTuple):
    """Places of a sparse ``[genes, genes]`` matrix by rows, and a number for each entry that points to them."""

    start: Tensor
    column: Tensor
    pair: Tensor

    def total(self, entry: Tensor) -> Tensor:
        """The sum of the entries of each pair."""
        return entry.new_zeros(len(self.column)).index_add(0, self.pair, entry)


@dataclass(frozen=True, eq=False)
class PairRows:
    r"""The matrix H of a linear model of pairs, :math:`y_P = \sum_{g < h \in P} f_{gh}`, by its ones.

    Entry e says that row ``row[e]`` deletes the genes ``first[e]`` and ``second[e]``. Rows without a pair have none.

    Attributes:
        row: int64 ``[entries]``, ascending.
        first: int64 ``[entries]``.
        second: int64 ``[entries]``.
        num_rows: Number of genotypes.
        num_genes: Number of genes.
    """

    row: Tensor
    first: Tensor
    second: Tensor
    num_rows: int
    num_genes: int

    def collect(self, f: Tensor) -> Tensor:
        r""":math:`H f`, ``[rows]``, of a symmetric ``[genes, genes]``."""
        return self.per_row(f[self.first, self.second])

    def spread(self, value: Tensor) -> Tensor:
        r""":math:`H^\top \alpha`, ``[genes, genes]``: every pair gets the sum of its rows' values, in both places."""
        n = self.num_genes
        entry = value[self.row]
        place = torch.cat([self.first * n + self.second, self.second * n + self.first])
        return value.new_zeros(n * n).index_add(0, place, entry.repeat(2)).view(n, n)

    def pairs(self, like: Tensor) -> Tensor:
        """How many pairs each row has, at least 1."""
        return self.per_row(torch.ones_like(self.row, dtype=like.dtype)).clamp(min=1)

    def mean(self, per_pair: Tensor) -> Tensor:
        """Of numbers of the entries, over the pairs of each row; 0 without a pair."""
        return self.per_row(per_pair) / self.pairs(per_pair)

    def of_genes(self, per_row: Tensor) -> Tensor:
        """The sum over the rows that delete each gene with another, ``[genes]``, each row once for each partner."""
        both, entry = torch.cat([self.first, self.second]), per_row[self.row].repeat(2)
        return per_row.new_zeros(self.num_genes).index_add(0, both, entry)

    def spread_times(self, value: Tensor, right: Tensor) -> Tensor:
        """:meth:`spread` times a ``[genes, columns]`` matrix, by a sparse product."""
        pairs, (start, column, pair) = self._pairs, self._both_ways
        spread = sparse_rows(start, column, pairs.total(value[self.row])[pair], (self.num_genes, self.num_genes))
        product = torch.empty_like(right)
        for part in _parts(right.shape[1], right.device):
            product[:, part] = spread @ right[:, part].contiguous()
        return product

    def collect_product(self, left: Tensor, right: Tensor) -> Tensor:
        """:meth:`collect` of a symmetric product, ``[genes, k]`` times ``[k, genes]``, only at the pairs of H."""
        start, column, pair = self._pairs
        found = left.new_zeros(len(column))
        asked = sparse_rows(start, column, found, (self.num_genes, self.num_genes))
        for part in _parts(left.shape[1], left.device):
            inner = torch.sparse.sampled_addmm(asked, left[:, part].contiguous(), right[part], beta=0.0)
            found = found + inner.values()
        return self.per_row(found[pair])

    @cached_property
    def _pairs(self) -> _Pattern:
        """The distinct pairs, and which of them each entry is."""
        n = self.num_genes
        code, pair = torch.unique(self.first * n + self.second, return_inverse=True)
        return _Pattern(starts(code // n, n), code % n, pair)

    @cached_property
    def _both_ways(self) -> _Pattern:
        """The distinct pairs in both directions, and which pair each of them is."""
        n, count = self.num_genes, self._pairs.start.diff()
        first = torch.repeat_interleave(torch.arange(n, device=count.device), count)
        code, order = torch.cat([first * n + self._pairs.column, self._pairs.column * n + first]).sort()
        return _Pattern(starts(code // n, n), code % n, order % max(len(first), 1))

    def per_row(self, entry: Tensor) -> Tensor:
        """The sum over the entries of each row, ``[rows]``."""
        return entry.new_zeros(self.num_rows).index_add(0, self.row, entry)


def starts(ascending: Tensor, n: int) -> Tensor:
    """Where each number 0 … n begins in an ascending list."""
    return torch.searchsorted(ascending, torch.arange(n + 1, device=ascending.device))


def sparse_rows(start: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    """The sparse matrix with ``value[e]`` in column ``column[e]`` of the row r with start[r] ≤ e < start[r + 1]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR tensors a prototype
        return torch.sparse_csr_tensor(start, column, value, shape, check_invariants=False)


def _parts(columns: int, device: torch.device) -> Iterator[slice]:
    width = _COLUMNS if device.type == "cpu" else columns
    return (slice(start, start + width) for start in range(0, columns, max(width, 1)))
