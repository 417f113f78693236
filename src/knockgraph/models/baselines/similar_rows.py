"""What training rows with similar genes in the same roles say about a genotype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.models.baselines.baseline import Floats, packed, sums, unpacked
from knockgraph.models.baselines.call_profiles import AskedProfiles

_KEPT = ("code", "unit", "lone", "deviation", "hash")
_MOST = 1000  # sets of other genes that are kept, those with most rows
_BLOCK = 16_384  # rows at once
_Genes = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float32]


class SimilarRows:
    r"""Deviations of training rows, weighted by the similarity of their genes' call profiles.

    With :math:`x_o` the mean profile of the genes besides the lone gene a, length 1, and :math:`R_{oa}` the deviation
    from the mean label of the rows with the others o and the lone gene a,

    .. math:: s_{oa} = \sum_{o'} (x_o^\top x_{o'})^2 R_{o'a}, \qquad
        t_{oa} = \sum_{o'} (x_o^\top x_{o'})^2 \sum_{a' \ne a} (x_a^\top x_{a'}) R_{o'a'} .

    Sets o' that are part of the genotype itself never count, so that a training row sees no more than a held-out row
    whose others are new together.

    Args:
        num_genes: Of the graph.
    """

    def __init__(self, num_genes: int) -> None:
        # The sum of the genes' random numbers stands for a set of genes.
        self.hash = np.random.default_rng(0).integers(0, 2**62, num_genes)

    def state(self) -> dict[str, Any]:
        """What a fit has found."""
        return {name: packed(getattr(self, name)) for name in _KEPT}

    @staticmethod
    def from_state(state: dict[str, Any]) -> SimilarRows:
        """The inverse of :meth:`state`."""
        made = SimilarRows.__new__(SimilarRows)
        vars(made).update({name: unpacked(state[name]) for name in _KEPT})
        return made

    def fit(self, blocks: Sequence[tuple[_Genes, _Genes, Floats]], profiles: AskedProfiles) -> None:
        """Learn from training rows.

        Args:
            blocks: For each size of genotypes the genes ``[rows, size]``, the column of the lone gene ``[rows]``
                and the deviation from the mean label ``[rows]``.
            profiles: Of all these genes.
        """
        alone = np.concatenate([_lone(genes, column) for genes, column, _ in blocks])
        code = np.concatenate([self._sets(genes, column) for genes, column, _ in blocks])
        deviation = np.concatenate([found for _, _, found in blocks])
        code, first, place, count = np.unique(code, return_index=True, return_inverse=True, return_counts=True)
        kept = np.sort(np.argsort(-count, kind="stable")[:_MOST])
        self.code, first = code[kept], first[kept]
        self.unit = np.zeros((len(kept), profiles.unit.shape[1]), np.float32)
        start = 0
        for genes, column, _ in blocks:
            here = (first >= start) & (first < start + len(genes))
            self.unit[here] = _others(genes[first[here] - start], column[first[here] - start], profiles)
            start += len(genes)
        self.lone, column = np.unique(alone, return_inverse=True)
        row = np.searchsorted(kept, place)
        known = kept[np.minimum(row, len(kept) - 1)] == place
        shape = len(kept), len(self.lone)
        cell = row[known] * shape[1] + column[known]
        self.deviation = sums(cell, deviation[known], shape[0] * shape[1]).reshape(shape)

    def __call__(self, genes: _Genes, column: _Genes, profiles: AskedProfiles) -> tuple[Floats, Floats]:
        """s and t of rows; s is NaN if no training row has the lone gene.

        Args:
            genes: Genotypes of one size, ``[rows, size]``.
            column: That of the lone gene, ``[rows]``.
            profiles: Of these genes and of those of the training rows.
        """
        asked, place = np.unique(_lone(genes, column), return_inverse=True)
        at = np.minimum(np.searchsorted(self.lone, asked), len(self.lone) - 1)
        same = np.where(self.lone[at] == asked, self.deviation[:, at], np.nan).T  # [asked, sets]
        likeness = profiles.unit[profiles.place[asked]] @ profiles.unit[profiles.place[self.lone]].T
        likeness[asked[:, None] == self.lone] = 0
        near = likeness @ self.deviation.T
        found = np.empty((2, len(genes)))
        for start in range(0, len(genes), _BLOCK):
            part = slice(start, start + _BLOCK)
            weight = self._weights(genes[part], column[part], profiles)
            for k, table in enumerate((same, near)):
                found[k, part] = np.einsum("rs,rs->r", weight, table[place[part]])
        return found[0], found[1]

    def _weights(self, genes: _Genes, column: _Genes, profiles: AskedProfiles) -> Floats:
        """Of the training sets for each row, ``[rows, sets]``."""
        _, first, place = np.unique(self._sets(genes, column), return_index=True, return_inverse=True)
        cosine = _others(genes[first], column[first], profiles).astype(np.float64) @ self.unit.T
        weight: Floats = (np.maximum(cosine, 0) ** 2)[place]
        inside = self.hash[genes].sum(1)[:, None] - self.hash[genes]  # all but one gene of the genotype
        at = np.minimum(np.searchsorted(self.code, inside), len(self.code) - 1)
        row, of_row = np.nonzero(self.code[at] == inside)
        weight[row, at[row, of_row]] = 0
        return weight

    def _sets(self, genes: _Genes, column: _Genes) -> _Genes:
        found: _Genes = self.hash[genes].sum(1) - self.hash[_lone(genes, column)]
        return found


def _lone(genes: _Genes, column: _Genes) -> _Genes:
    found: _Genes = genes[np.arange(len(genes)), column]
    return found


def _others(genes: _Genes, column: _Genes, profiles: AskedProfiles) -> _Numbers:
    """The mean profile of the genes besides the lone one, length 1, ``[rows, profile]``."""
    total = profiles.unit[profiles.place[genes]].sum(1) - profiles.unit[profiles.place[_lone(genes, column)]]
    found: _Numbers = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-9)
    return found
