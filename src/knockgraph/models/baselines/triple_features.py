"""Features of genotypes of three and more genes, where digenic calls are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import BaselineError
from knockgraph.graph import CellGraph
from knockgraph.graph.structural_features import FEATURES, diffusion
from knockgraph.models.baselines.baseline import Floats, GenotypeRows, packed, sums, unpacked
from knockgraph.models.baselines.call_profiles import AskedProfiles, CallProfiles
from knockgraph.models.baselines.lone_gene import LoneGenes
from knockgraph.models.baselines.pair_features import SHRINK, Matrix, both_ways
from knockgraph.models.baselines.similar_rows import SimilarRows
from knockgraph.screen.calls import calls_of

_KEPT = ("diffusion", "strength", "gene_total", "gene_count", "pair", "pair_total", "pair_count")
_Genes = npt.NDArray[np.int64]


class TripleFeatures:
    r"""Features of genotypes in which one gene, the *lone* one (:class:`LoneGenes`), is told from the others.

    The columns: effect of the lone gene, least and largest effect of the others; for digenic calls
    (:func:`~knockgraph.screen.calls.with_calls`) the degrees of the genes in the same way, and whether pairs are
    called, the number of their common partners and its cosine, least and largest over the pairs with the lone gene,
    largest over the other pairs; in the same way the calls that similar genes predict for these pairs
    (:class:`CallProfiles`) and the cosines of the diffusion coordinates; the strength of every gene feature (its root
    mean square) like the degrees; for every other relation the number of edges between the genes; what training rows
    with similar genes in the same roles say (:class:`SimilarRows`).

    The effect of a gene is the mean deviation of the training rows that delete it without any other gene of the
    genotype. Rows that share two genes with the genotype never count, not even where they are known, so that every row
    looks like one of a new query pair; otherwise trees learn the pairs of the training part by heart. Numbers of rows
    are exact for genotypes of up to three genes.

    Args:
        graph: The cell graph with calls.
    """

    def __init__(self, graph: CellGraph) -> None:
        self.graph = graph
        own = graph.features
        coordinates = (own["diffusion"] if "diffusion" in own else diffusion(graph)).float().numpy()
        self.diffusion = coordinates / np.maximum(np.linalg.norm(coordinates, axis=1, keepdims=True), 1e-9)
        given = [own[name].double().square().mean(1).sqrt().numpy() for name in own if name not in FEATURES]
        self.strength = np.stack(given, 1) if given else np.zeros((graph.num_genes, 0))
        self.strength[self.strength == 0] = np.nan  # a gene without values

    def state(self) -> dict[str, Any]:
        """What a fit has found, and the coordinates."""
        return {name: packed(getattr(self, name)) for name in _KEPT} | {
            "profiles": self.profiles.state(),
            "lone": self.lone.state(),
            "similar": None if self.similar is None else self.similar.state(),
        }

    @staticmethod
    def from_state(graph: CellGraph, state: dict[str, Any]) -> TripleFeatures:
        """The inverse of :meth:`state`."""
        if "similar" not in state:
            raise BaselineError(
                "the run was made by an earlier version with other features of digenic calls; train it again"
            )
        made = TripleFeatures.__new__(TripleFeatures)
        vars(made).update({name: unpacked(state[name]) for name in _KEPT})
        made.graph = graph
        made.profiles = CallProfiles.from_state(graph, state["profiles"])
        made.lone = LoneGenes.from_state(state["lone"])
        made.similar = None if state["similar"] is None else SimilarRows.from_state(state["similar"])
        return made

    def fit(self, genotypes: GenotypeRows, y: Floats) -> Matrix:
        """Learn the effects of genes; the features of the training rows, ``[rows, features]``."""
        residual = y - y.mean()
        self.gene_total = sums(genotypes.genes, residual[genotypes.row], genotypes.num_genes)
        self.gene_count = np.bincount(genotypes.genes, minlength=genotypes.num_genes).astype(np.float64)
        row, code = genotypes.pairs()
        self.pair, place, count = np.unique(code, return_inverse=True, return_counts=True)
        self.pair_total, self.pair_count = sums(place, residual[row], len(self.pair)), count.astype(np.float64)
        self.profiles = CallProfiles(self.graph, np.unique(genotypes.genes))
        blocks = [
            (genes, self._known_lone(genes), residual[rows])
            for rows, genes in _by_size(genotypes)
            if genes.shape[1] > 2
        ]
        alone = np.zeros(genotypes.num_genes)
        for genes, lone, _ in blocks:
            alone += np.bincount(genes[np.arange(len(genes)), lone], minlength=genotypes.num_genes)
        self.lone = LoneGenes(self.graph, alone, self.gene_count)
        self.similar = SimilarRows(genotypes.num_genes) if blocks else None
        if self.similar is not None:
            self.similar.fit(blocks, self.profiles.of(np.unique(genotypes.genes)))
        return self._table(genotypes, residual)

    def __call__(self, genotypes: GenotypeRows) -> Matrix:
        """The features of other rows, ``[rows, features]``."""
        return self._table(genotypes, None)

    def _known_lone(self, genes: _Genes) -> _Genes:
        """Column of the lone gene of training rows: all others are deleted together most often."""
        pairs = _Pairs.of(genes)
        count, _ = self._pairs(pairs.left, pairs.right)
        found: _Genes = _of_others(count, pairs.within).argmax(1)
        return found

    def _table(self, genotypes: GenotypeRows, own: Floats | None) -> Matrix:
        near = _Near(self.graph, self.profiles.of(np.unique(genotypes.genes)))
        table = None
        for rows, genes in _by_size(genotypes):
            block = self._block(genes, near, None if own is None else own[rows])
            if table is None:
                table = np.full((len(genotypes), block.shape[1]), np.nan, np.float32)
            table[rows] = block
        return np.full((len(genotypes), 1), np.nan, np.float32) if table is None else table

    def _block(self, genes: _Genes, near: _Near, own: Floats | None) -> Matrix:
        """Of genotypes of one size, ``genes`` ``[rows, size]``; ``own`` are the deviations of training rows."""
        n, s = genes.shape
        pairs = _Pairs.of(genes)
        left, right, within = pairs.left, pairs.right, pairs.within
        pair_count, pair_total = self._pairs(left, right)
        count, total = self.gene_count[genes], self.gene_total[genes]
        if own is not None:
            pair_count, pair_total = pair_count - 1, pair_total - own[:, None]
            count, total = count - 1, total - own[:, None]
        count, total = np.maximum(count - pair_count @ within.T, 0), total - pair_total @ within.T
        if own is not None:
            pair_count = np.zeros_like(pair_count)
        lone = self.lone(genes, _of_others(pair_count, within), count)
        with_lone, at_left = within[lone], pairs.first == lone[:, None]
        columns = _lone_and_others(_effect(total, count), lone)
        for value in (*near.degree(genes), *self.strength.T[:, genes]):
            columns += _lone_and_others(value, lone)
        cosine = np.einsum("rpk,rpk->rp", self.diffusion[left], self.diffusion[right])
        for value in (*near.called(left, right), *near.shared(left, right), cosine):
            columns += _with_lone_and_others(value, with_lone)
        for forth, back in near.borrowed(left, right):
            columns += _with_lone(np.where(at_left, back, forth), with_lone)
            columns += _with_lone(np.where(at_left, forth, back), with_lone)
            columns.append(_largest(np.where(with_lone, np.nan, forth + back)))
        for value in near.between(left, right):
            columns += _with_lone(value, with_lone)
        columns += [value.sum(1) for value in near.edges(left, right)]
        if self.similar is None or s < 3:
            columns += [np.full(n, np.nan)] * 2
        else:
            columns += self.similar(genes, lone, near.profiles)
        return np.stack([np.broadcast_to(column, (n,)) for column in columns], 1).astype(np.float32)

    def _pairs(self, left: _Genes, right: _Genes) -> tuple[Floats, Floats]:
        """How many training rows delete both genes, and the sum of their deviations."""
        if len(self.pair) == 0:
            return np.zeros(left.shape), np.zeros(left.shape)
        code = left * self.graph.num_genes + right
        place = np.minimum(np.searchsorted(self.pair, code), len(self.pair) - 1)
        known = self.pair[place] == code
        return np.where(known, self.pair_count[place], 0), np.where(known, self.pair_total[place], 0)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The pairs of genotypes of one size: columns of their genes, the genes, and which column is in which pair."""

    first: _Genes
    left: _Genes
    right: _Genes
    within: npt.NDArray[np.bool_]

    @staticmethod
    def of(genes: _Genes) -> _Pairs:
        size = np.arange(genes.shape[1])[:, None]
        first, second = np.triu_indices(genes.shape[1], 1)
        return _Pairs(first, genes[:, first], genes[:, second], (size == first) | (size == second))


class _Near:
    """Calls and edges of some genes: what :class:`TripleFeatures` asks the graph for."""

    def __init__(self, graph: CellGraph, profiles: AskedProfiles) -> None:
        self.num_genes = graph.num_genes
        self.calls = calls_of(graph)
        self.ends = {name: both_ways(relation) for name, relation in graph.relations.items()}
        self.code = {name: np.unique(a * self.num_genes + b) for name, (a, b) in self.ends.items()}
        self.profiles = profiles

    def degree(self, genes: _Genes) -> list[Floats]:
        """The number of each gene's calls, one array for each sign."""
        return [np.bincount(self.ends[name][0], minlength=self.num_genes)[genes].astype(float) for name in self.calls]

    def shared(self, left: _Genes, right: _Genes) -> list[Floats]:
        """How many genes both of a pair have calls with, and the cosine of their calls."""
        return [self._of(table, left, right) for table in (*self.profiles.common, *self.profiles.cosine)]

    def borrowed(self, left: _Genes, right: _Genes) -> list[tuple[Floats, Floats]]:
        """Whether genes similar to the left one have calls with the right one, and the other way round."""
        return [(self._of(table, left, right), self._of(table, right, left)) for table in self.profiles.borrowed]

    def between(self, left: _Genes, right: _Genes) -> list[Floats]:
        """Whether genes similar to the left one have calls with genes similar to the right one."""
        return [self._of(table, left, right) for table in self.profiles.between]

    def _of(self, table: npt.NDArray[np.float32], left: _Genes, right: _Genes) -> Floats:
        place = self.profiles.place
        return table[place[left], place[right]].astype(np.float64)

    def called(self, left: _Genes, right: _Genes) -> list[Floats]:
        """Whether pairs are called, 0 or 1."""
        return [self._joined(name, left, right) for name in self.calls]

    def edges(self, left: _Genes, right: _Genes) -> list[Floats]:
        """Whether pairs have an edge, 0 or 1, one array for each other relation."""
        return [self._joined(name, left, right) for name in self.ends if name not in self.calls]

    def _joined(self, name: str, left: _Genes, right: _Genes) -> Floats:
        return np.isin(left * self.num_genes + right, self.code[name]).astype(float)


def _by_size(genotypes: GenotypeRows) -> Iterator[tuple[_Genes, _Genes]]:
    """Rows of each size of at least 1, and their genes, ``[rows, size]``."""
    size = np.diff(genotypes.ptr)
    for s in np.unique(size[size > 0]).tolist():
        rows = np.flatnonzero(size == s)
        yield rows, genotypes.genes[genotypes.ptr[rows][:, None] + np.arange(s)]


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


def _with_lone(value: Floats, with_lone: npt.NDArray[np.bool_]) -> list[Floats]:
    """Of numbers of the pairs, ``[rows, pairs]``: least and largest with the lone gene."""
    near = np.where(with_lone, value, np.nan)
    return [-_largest(-near), _largest(near)]


def _with_lone_and_others(value: Floats, with_lone: npt.NDArray[np.bool_]) -> list[Floats]:
    """Of numbers of the pairs, ``[rows, pairs]``: least and largest with the lone gene, largest of the others."""
    return [*_with_lone(value, with_lone), _largest(np.where(with_lone, np.nan, value))]


def _largest(value: Floats) -> Floats:
    """Over the columns, of what is known; NaN if nothing is."""
    found: Floats = np.fmax.reduce(value, axis=1, initial=np.nan)
    return found
