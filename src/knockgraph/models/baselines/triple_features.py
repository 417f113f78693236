"""Features of genotypes of three and more genes, where digenic calls are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.graph import CellGraph
from knockgraph.graph.structural_features import diffusion
from knockgraph.models.baselines.baseline import Floats, GenotypeRows, packed, sums, unpacked
from knockgraph.models.baselines.pair_features import SHRINK, Matrix, both_ways
from knockgraph.screen.calls import calls_of

_KEPT = ("diffusion", "gene_total", "gene_count", "pair", "pair_total", "pair_count", "hidden", "seed")
_DEGREE = 0.3  # weight of the number of calls in the choice of the lone gene
_Genes = npt.NDArray[np.int64]


class TripleFeatures:
    r"""Features of genotypes in which one gene, the *lone* one, is told from the others.

    A screen of query pairs against arrays deletes the same pair of genes in many rows, with another third gene in each.
    The third gene is the lone one: it is recognised by

    .. math:: \log(1 + n_{-g}) + \log(1 + c_g) - 0.3 \log(1 + d_g) + \log(1 + s_{-g}),

    largest for the lone gene. :math:`n_{-g}` is how often training deletes the other genes together (the most frequent
    pair of them), :math:`c_g` how often it deletes g without any of the others, :math:`d_g` the number of g's digenic
    calls and :math:`s_{-g}` the number of genes with which both others have calls (the largest of a pair of them).

    The columns: effect of the lone gene, least and largest effect of the others; effect of the others' pair; for
    digenic calls (:func:`~knockgraph.screen.calls.with_calls`) the degrees of the genes in the same way, and whether
    pairs are called and the number of their common partners, least and largest over the pairs with the lone gene,
    largest over the other pairs; the cosines of the diffusion coordinates in the same way; for every other relation the
    number of edges between the genes.

    The effect of a gene is the mean deviation of the training rows that delete it without any other gene of the
    genotype, the effect of a pair that of all rows that delete both. A training row must look like a held-out one. In
    a share of the rows one gene is hidden, as if no training row deleted it; in the others all rows that share a pair
    of genes with the row, as if its pairs were new. Numbers of rows are exact for genotypes of up to three genes.

    Args:
        graph: The cell graph.
        hidden: Share of training rows in which a gene is hidden.
        seed: Of the choice of these rows.
    """

    def __init__(self, graph: CellGraph, hidden: float = 0.3, seed: int = 0) -> None:
        self.graph = graph
        self.hidden = hidden
        self.seed = seed
        own = graph.features
        coordinates = (own["diffusion"] if "diffusion" in own else diffusion(graph)).float().numpy()
        self.diffusion = coordinates / np.maximum(np.linalg.norm(coordinates, axis=1, keepdims=True), 1e-9)

    def state(self) -> dict[str, Any]:
        """What a fit has found, and the coordinates."""
        return {name: packed(getattr(self, name)) for name in _KEPT}

    @staticmethod
    def from_state(graph: CellGraph, state: dict[str, Any]) -> TripleFeatures:
        """The inverse of :meth:`state`."""
        made = TripleFeatures.__new__(TripleFeatures)
        vars(made).update({name: unpacked(state[name]) for name in _KEPT})
        made.graph = graph
        return made

    def fit(self, genotypes: GenotypeRows, y: Floats) -> Matrix:
        """Learn the effects of genes and pairs; the features of the training rows, ``[rows, features]``."""
        residual = y - y.mean()
        self.gene_total = sums(genotypes.genes, residual[genotypes.row], genotypes.num_genes)
        self.gene_count = np.bincount(genotypes.genes, minlength=genotypes.num_genes).astype(np.float64)
        row, code = genotypes.pairs()
        self.pair, place, count = np.unique(code, return_inverse=True, return_counts=True)
        self.pair_total, self.pair_count = sums(place, residual[row], len(self.pair)), count.astype(np.float64)
        return self._table(genotypes, residual)

    def __call__(self, genotypes: GenotypeRows) -> Matrix:
        """The features of other rows, ``[rows, features]``."""
        return self._table(genotypes, None)

    def _table(self, genotypes: GenotypeRows, own: Floats | None) -> Matrix:
        near = _Near(self.graph, genotypes.genes)
        size, random = np.diff(genotypes.ptr), np.random.default_rng(self.seed)
        hidden = np.where(random.random(len(size)) < self.hidden, random.integers(0, np.maximum(size, 1)), -1)
        table = None
        for s in np.unique(size[size > 0]).tolist():
            rows = np.flatnonzero(size == s)
            genes = genotypes.genes[genotypes.ptr[rows][:, None] + np.arange(s)]
            block = self._block(genes, near, None if own is None else (own[rows], hidden[rows]))
            if table is None:
                table = np.full((len(size), block.shape[1]), np.nan, np.float32)
            table[rows] = block
        return np.full((len(size), 1), np.nan, np.float32) if table is None else table

    def _block(self, genes: _Genes, near: _Near, training: tuple[Floats, npt.NDArray[np.int64]] | None) -> Matrix:
        """Of genotypes of one size, ``genes`` ``[rows, size]``."""
        n, s = genes.shape
        first, second = np.triu_indices(s, 1)
        left, right = genes[:, first], genes[:, second]
        within = (np.arange(s)[:, None] == first) | (np.arange(s)[:, None] == second)  # [size, pairs]
        pair_count, pair_total = self._pairs(left, right)
        count, total = self.gene_count[genes], self.gene_total[genes]
        if training is not None:
            pair_count, pair_total = pair_count - 1, pair_total - training[0][:, None]
            count, total = count - 1, total - training[0][:, None]
        count, total = count - pair_count @ within.T, total - pair_total @ within.T
        if training is not None:
            new = (training[1][:, None] == np.arange(s)) & (training[1] >= 0)[:, None]  # [rows, size]
            unknown = (training[1] < 0)[:, None] | (new @ within)
            pair_count, pair_total = np.where(unknown, 0, pair_count), np.where(unknown, 0, pair_total)
            count = np.where(new, 0, count)
        count = np.maximum(count, 0)
        degree, common = near.degree(genes), near.common(left, right)
        together, shared = (_of_others(value, within) for value in (pair_count, sum(common, np.zeros(left.shape))))
        calls = sum(degree, np.zeros(genes.shape))
        key = np.log1p(together) + np.log1p(count) - _DEGREE * np.log1p(calls) + np.log1p(shared)
        lone = key.argmax(1)
        columns = _lone_and_others(_effect(total, count), lone)
        columns.append(_largest(np.where(within[lone], np.nan, _effect(pair_total, pair_count))))
        for value in degree:
            columns += _lone_and_others(value, lone)
        cosine = np.einsum("rpk,rpk->rp", self.diffusion[left], self.diffusion[right])
        for value in (*near.called(left, right), *common, cosine):
            columns += _with_lone_and_others(value, within[lone])
        columns += [value.sum(1) for value in near.edges(left, right)]
        return np.stack([np.broadcast_to(column, (n,)) for column in columns], 1).astype(np.float32)

    def _pairs(self, left: _Genes, right: _Genes) -> tuple[Floats, Floats]:
        """How many training rows delete both genes, and the sum of their deviations."""
        if len(self.pair) == 0:
            return np.zeros(left.shape), np.zeros(left.shape)
        code = left * self.graph.num_genes + right
        place = np.minimum(np.searchsorted(self.pair, code), len(self.pair) - 1)
        known = self.pair[place] == code
        return np.where(known, self.pair_count[place], 0), np.where(known, self.pair_total[place], 0)


class _Near:
    """Calls and edges of some genes: what :class:`TripleFeatures` asks the graph for."""

    def __init__(self, graph: CellGraph, genes: _Genes) -> None:
        self.num_genes = graph.num_genes
        self.calls = calls_of(graph)
        self.ends = {name: both_ways(relation) for name, relation in graph.relations.items()}
        self.code = {name: np.unique(a * self.num_genes + b) for name, (a, b) in self.ends.items()}
        self.place = np.full(self.num_genes, -1)
        there = np.unique(genes)
        self.place[there] = np.arange(len(there))
        self.partners = []
        for name in self.calls:
            source, target = self.ends[name]
            here = self.place[source] >= 0
            rows = np.zeros((len(there), self.num_genes), np.float32)
            rows[self.place[source[here]], target[here]] = 1
            self.partners.append(rows @ rows.T)

    def degree(self, genes: _Genes) -> list[Floats]:
        """The number of each gene's calls, one array for each sign."""
        return [np.bincount(self.ends[name][0], minlength=self.num_genes)[genes].astype(float) for name in self.calls]

    def common(self, left: _Genes, right: _Genes) -> list[Floats]:
        """How many genes both of a pair have calls with."""
        return [found[self.place[left], self.place[right]].astype(float) for found in self.partners]

    def called(self, left: _Genes, right: _Genes) -> list[Floats]:
        """Whether pairs are called, 0 or 1."""
        return [self._joined(name, left, right) for name in self.calls]

    def edges(self, left: _Genes, right: _Genes) -> list[Floats]:
        """Whether pairs have an edge, 0 or 1, one array for each other relation."""
        return [self._joined(name, left, right) for name in self.ends if name not in self.calls]

    def _joined(self, name: str, left: _Genes, right: _Genes) -> Floats:
        return np.isin(left * self.num_genes + right, self.code[name]).astype(float)


def _effect(total: Floats, count: Floats) -> Floats:
    return np.where(count > 0, total / (count + SHRINK), np.nan)


def _of_others(value: Floats, within: npt.NDArray[np.bool_]) -> Floats:
    """For every gene the largest value of a pair without it, ``[rows, size]``; 0 if there is none."""
    found = [value[:, ~of_gene].max(1, initial=0.0) for of_gene in within]
    return np.stack(found, 1)


def _lone_and_others(value: Floats, lone: npt.NDArray[np.int64]) -> list[Floats]:
    """Of numbers of the genes, ``[rows, size]``: the lone one's, least and largest of the others."""
    others = np.where(np.arange(value.shape[1]) == lone[:, None], np.nan, value)
    return [value[np.arange(len(value)), lone], -_largest(-others), _largest(others)]


def _with_lone_and_others(value: Floats, with_lone: npt.NDArray[np.bool_]) -> list[Floats]:
    """Of numbers of the pairs, ``[rows, pairs]``: least and largest with the lone gene, largest of the others."""
    near, others = np.where(with_lone, value, np.nan), np.where(with_lone, np.nan, value)
    return [-_largest(-near), _largest(near), _largest(others)]


def _largest(value: Floats) -> Floats:
    """Over the columns, of what is known; NaN if nothing is."""
    found: Floats = np.fmax.reduce(value, axis=1, initial=np.nan)
    return found
