"""Network features of genotypes: one row of numbers per genotype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.graph import CellGraph, Relation
from knockgraph.graph.structural_features import degree, diffusion, spectral
from knockgraph.models.baselines.baseline import Floats, GenotypeRows, packed, sums, unpacked

Matrix = npt.NDArray[np.float32]
_KEPT = ("degree", "diffusion", "total", "count", "several", "hidden", "seed")
SHRINK = 20.0  # as if every gene had this many more experiments without an effect


class GenotypeFeatures:
    r"""Features of genotypes from the relations of a graph and from the mean effects of single genes in training.

    For every pair of deleted genes and every relation: the normalised weight of the edge
    :math:`W = D^{-1/2} A D^{-1/2}` and of the paths of two steps :math:`(W W^\top)`, product and cosine of the spectral
    coordinates, averaged over the pairs; for pairs also product, sum and distance of every diffusion coordinate, for
    screens with larger genotypes the largest edge weights and the number of edges. For the deleted genes: degrees and
    mean effects in training, and the mean effects of a gene's neighbours in every relation; their sum, minimum and
    maximum.

    A gene that was not in training has no effect (NaN). So that this is met in training too, the effect of one gene is
    hidden in a share of the training rows; a row's own label never counts in the effect of its genes.

    Args:
        graph: The cell graph; features ``spectral`` and ``diffusion`` are taken from it if it has them.
        hidden: Share of training rows in which the effect of a gene is hidden.
        seed: Of the choice of these rows.
    """

    def __init__(self, graph: CellGraph, hidden: float = 0.3, seed: int = 0) -> None:
        self.graph = graph
        self.hidden = hidden
        self.seed = seed
        # Directed relations count both ways here: an edge between two deleted genes is one edge.
        self.degree = degree(graph).numpy()
        own = graph.features
        self.diffusion = (own["diffusion"] if "diffusion" in own else diffusion(graph)).float().numpy()
        self.spectral = [spectral(_only(graph, name)).numpy() for name in graph.relations]
        self.total = np.zeros(graph.num_genes)
        self.count = np.zeros(graph.num_genes)

    def state(self) -> dict[str, Any]:
        """What a fit has found, and the coordinates, whose signs another machine may choose differently."""
        return {name: packed(getattr(self, name)) for name in _KEPT} | {"spectral": [packed(x) for x in self.spectral]}

    @staticmethod
    def from_state(graph: CellGraph, state: dict[str, Any]) -> GenotypeFeatures:
        """The inverse of :meth:`state`."""
        made = GenotypeFeatures.__new__(GenotypeFeatures)
        vars(made).update({name: unpacked(state[name]) for name in _KEPT})
        made.graph, made.spectral = graph, [unpacked(x) for x in state["spectral"]]
        return made

    def fit(self, genotypes: GenotypeRows, y: Floats) -> Matrix:
        """Learn the effects of single genes; the features of the training rows, ``[rows, features]``."""
        self.center = float(y.mean())
        residual = y - self.center
        size = np.maximum(np.diff(genotypes.ptr), 1)
        # The deviation of a genotype is divided among its genes.
        share = (residual / size)[genotypes.row]
        self.total = sums(genotypes.genes, share, genotypes.num_genes)
        self.count = np.bincount(genotypes.genes, minlength=genotypes.num_genes).astype(np.float64)
        self.several = bool((size > 2).any())
        return self._table(genotypes, share)

    def __call__(self, genotypes: GenotypeRows) -> Matrix:
        """The features of other rows, ``[rows, features]``."""
        return self._table(genotypes, None)

    def _table(self, genotypes: GenotypeRows, own: Floats | None) -> Matrix:
        columns: list[npt.NDArray[np.floating]] = [np.diff(genotypes.ptr).astype(np.float32)]
        columns += self._effects(genotypes, own)
        for k in range(self.degree.shape[1]):
            columns += _over_genes(genotypes, self.degree[:, k].astype(np.float64))
        row, code = genotypes.pairs()
        a, b = code // genotypes.num_genes, code % genotypes.num_genes
        pairs = np.bincount(row, minlength=len(genotypes))
        for relation, coordinates in zip(self.graph.relations.values(), self.spectral, strict=True):
            direct, two_step = _weights(relation, a, b)
            dot, cosine = _similarity(coordinates, a, b)
            for value in (direct, two_step, dot, cosine):
                columns.append(_mean(row, value, pairs))
            if self.several:
                columns += [_largest(row, value, len(genotypes)) for value in (direct, two_step)]
                columns.append(sums(row, (direct > 0).astype(np.float64), len(genotypes)))
        if self.several:  # means over several pairs hide which genes they are of
            return np.stack([c.astype(np.float32) for c in columns], 1)
        left, right = self.diffusion[a], self.diffusion[b]
        for k in range(self.diffusion.shape[1]):
            for value in (left[:, k] * right[:, k], left[:, k] + right[:, k], np.abs(left[:, k] - right[:, k])):
                columns.append(_mean(row, value, pairs))
        return np.stack([c.astype(np.float32) for c in columns], 1)

    def _effects(self, genotypes: GenotypeRows, own: Floats | None) -> Sequence[Floats]:
        """Mean effects of the deleted genes, then of their neighbours in every relation."""
        total, count = self.total[genotypes.genes], self.count[genotypes.genes]
        if own is not None:
            total, count = total - own, count - 1
        with np.errstate(invalid="ignore", divide="ignore"):
            effect = np.where(count > 0, total / (count + SHRINK), np.nan)
        if own is not None:
            effect = effect.copy()
            random = np.random.default_rng(self.seed)
            size = np.diff(genotypes.ptr)
            chosen = np.flatnonzero((random.random(len(size)) < self.hidden) & (size > 0))
            effect[genotypes.ptr[chosen] + random.integers(0, size[chosen])] = np.nan
        columns = _over_entries(genotypes, effect)
        mean = self.total / (self.count + SHRINK)
        seen = self.count > 0
        for relation in self.graph.relations.values():
            source, target = both_ways(relation)
            near = np.bincount(source, (mean * seen)[target], genotypes.num_genes)
            number = np.bincount(source, seen[target].astype(np.float64), genotypes.num_genes)
            around = np.where(number > 0, near / np.maximum(number, 1), np.nan)
            columns += _over_genes(genotypes, around)
        return columns


def _only(graph: CellGraph, name: str) -> CellGraph:
    return CellGraph(graph.genes, {name: graph.relations[name]})


def both_ways(relation: Relation) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Source and target of every edge; one of a directed relation counts in both directions."""
    index = relation.edge_index
    both = index if relation.symmetric else torch.unique(torch.cat([index, index.flip(0)], 1), dim=1)
    source, target = both.numpy()
    return source, target


def _weights(relation: Relation, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> tuple[Matrix, Matrix]:
    """:math:`W_{ab}` and :math:`(W W^\\top)_{ab}` of pairs; only rows of genes in some pair are computed."""
    genes = np.unique(np.concatenate([a, b]))
    place = np.full(relation.num_genes, -1)
    place[genes] = np.arange(len(genes))
    source, target = both_ways(relation)
    root = np.sqrt(np.maximum(np.bincount(source, minlength=relation.num_genes), 1))
    here = place[source] >= 0
    rows = np.zeros((len(genes), relation.num_genes), np.float32)
    rows[place[source[here]], target[here]] = (1 / (root[source[here]] * root[target[here]])).astype(np.float32)
    two_step = rows @ rows.T
    return rows[place[a], b], two_step[place[a], place[b]]


def _similarity(x: Matrix, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> tuple[Matrix, Matrix]:
    dot = np.einsum("ij,ij->i", x[a], x[b])
    norm = np.linalg.norm(x, axis=1)
    cosine = dot / np.maximum(norm[a] * norm[b], 1e-9)
    return dot, cosine


def _mean(row: npt.NDArray[np.int64], value: npt.NDArray[np.floating], pairs: npt.NDArray[np.int64]) -> Floats:
    """The mean over the pairs of each genotype; NaN without a pair."""
    total = sums(row, value.astype(np.float64), len(pairs))
    return np.where(pairs > 0, total / np.maximum(pairs, 1), np.nan)


def _largest(row: npt.NDArray[np.int64], value: npt.NDArray[np.floating], rows: int) -> Floats:
    found = np.full(rows, -np.inf)
    np.maximum.at(found, row, value)
    return np.where(np.isinf(found), np.nan, found)


def _over_genes(genotypes: GenotypeRows, value: Floats) -> list[Floats]:
    return _over_entries(genotypes, value[genotypes.genes])


def _over_entries(genotypes: GenotypeRows, value: Floats) -> list[Floats]:
    """Sum, minimum and maximum over the genes of each genotype whose value is known; NaN if none is."""
    known = ~np.isnan(value)
    row, value = genotypes.row[known], value[known]
    n = len(genotypes)
    number = np.bincount(row, minlength=n)
    least, largest = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(least, row, value)
    np.maximum.at(largest, row, value)
    found = [sums(row, value, n), least, largest]
    return [np.where(number > 0, column, np.nan) for column in found]
