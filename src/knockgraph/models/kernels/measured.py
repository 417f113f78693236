"""Genotypes as sums over their pairs of genes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
        n, entry = self.num_genes, value[self.row]
        index = torch.stack([torch.cat([self.first, self.second]), torch.cat([self.second, self.first])])
        spread = torch.sparse_coo_tensor(index, entry.repeat(2), (n, n), check_invariants=False)
        product: Tensor = torch.sparse.mm(spread, right)
        return product

    def per_row(self, entry: Tensor) -> Tensor:
        """The sum over the entries of each row, ``[rows]``."""
        return entry.new_zeros(self.num_rows).index_add(0, self.row, entry)
