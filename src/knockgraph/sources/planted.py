"""The mechanism that the built-in data plants: parallel pathways buffer each other.

A *process* is a pair of parallel pathways, a *pathway* a connected group of genes. Inside a pathway the edges are
``physical``, between the two pathways of a process they are co-expression edges. With the strength :math:`s_g` of gene
g, deleting the set P hits pathway q by

.. math:: h_q = 1 - \\prod_{g \\in P \\cap q} (1 - s_g)

and the cell grows with

.. math:: \\log f(P) = -\\sum_{g \\in P} b_g - c \\sum_q h_q - d \\sum_{(q, q')} h_q h_{q'}

where (q, q') runs over the processes and :math:`b_g` is the private cost of a gene. The interaction is what the single
deletions do not explain, :math:`\\log f(P) - \\sum_{g \\in P} \\log f(\\{g\\})`:

* two genes of one pathway: :math:`+c\\,s_1 s_2`, the second deletion finds little left to break (masking);
* two genes of parallel pathways: :math:`-d\\,s_1 s_2`, neither pathway can stand in for the other (synthetic sickness);
* two unrelated genes: 0; one gene: 0.

The strength can be read from the graph: :math:`s_g = 1/4 + 3/4 \\cdot k_g / \\max_q k`, with :math:`k_g` the number of
``physical`` edges of g inside its pathway q. Genotypes are drawn so that the positive and the negative interactions of
a gene cancel on average: an additive per-gene model has next to nothing to learn.

Measured phenotypes carry one Gaussian error ε of known size on the log scale, ``fitness`` = f·exp(ε) and
``gene_interaction`` = interaction + ε (the single mutants are taken as known exactly; the wild type, being the
unit of fitness, has no error). No model can correlate with the measurements better than
:math:`\\sqrt{\\mathrm{var}(interaction) / (\\mathrm{var}(interaction) + σ^2)}`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from knockgraph.errors import GraphError, ScreenError
from knockgraph.screen.genotypes import Genotypes
from knockgraph.screen.screen import Screen

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]
Bools: TypeAlias = NDArray[np.bool_]

_MOST_DELETED = 3
_CHUNK = 1 << 20  # rows per step: keeps the memory for a screen of millions to that of its result


@dataclass(frozen=True)
class Pathways:
    """Genes grouped into pathways; pathways 2k and 2k + 1 are parallel and form process k.

    Args:
        members: Genes, pathway by pathway, ``[M]``; genes outside all pathways are not listed.
        ptr: Where each pathway starts in ``members``, ``[number of pathways + 1]``.
        num_genes: Number of genes of the cell.
    """

    members: Ints
    ptr: Ints
    num_genes: int

    @classmethod
    def draw(cls, rng: Generator, sizes: Ints, num_genes: int) -> Pathways:
        """Pathways of the given sizes, filled with genes drawn without replacement."""
        ptr = np.concatenate([[0], np.cumsum(sizes)])
        return cls(rng.permutation(num_genes)[: ptr[-1]], ptr, num_genes)

    @cached_property
    def sizes(self) -> Ints:
        """Genes per pathway."""
        return np.diff(self.ptr)

    @cached_property
    def of_gene(self) -> Ints:
        """Pathway of every gene, ``[num_genes]``; −1 outside all pathways."""
        pathway = np.full(self.num_genes, -1, dtype=np.int64)
        pathway[self.members] = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return pathway

    def inner_edges(self, rng: Generator, density: float) -> Ints:
        """Undirected edges ``[2, E]`` inside pathways: a connected core plus about ``density`` of all pairs.

        The first genes of a pathway are its core: they get more of the edges, so that strengths differ.
        """
        pathway = self.of_gene[self.members]
        rank = np.arange(len(self.members)) - self.ptr[pathway]
        later = np.flatnonzero(rank > 0)
        parent = np.floor(rank[later] * rng.random(len(later)) ** 2).astype(np.int64)
        tree = np.stack([later, self.ptr[pathway[later]] + parent])

        second = np.repeat(np.arange(len(rank)), rank)
        first = self.ptr[pathway[second]] + ranges(rank)
        core = 1 - 0.7 * rank / np.maximum(self.sizes[pathway] - 1, 1)
        chosen = rng.random(len(first)) < density * core[first] * core[second] / 0.42  # 0.42: mean of core · core
        pairs = np.concatenate([tree, np.stack([second[chosen], first[chosen]])], axis=1)
        return np.unique(np.sort(self.members[pairs], axis=0), axis=1)

    def parallel_edges(self, rng: Generator, density: float) -> Ints:
        """Undirected edges ``[2, E]`` between the two pathways of each process, ``density`` of all pairs."""
        left = np.flatnonzero(self.of_gene[self.members] % 2 == 0)
        partner = self.of_gene[self.members[left]] + 1
        first = np.repeat(left, self.sizes[partner])
        second = np.repeat(self.ptr[partner], self.sizes[partner]) + ranges(self.sizes[partner])
        chosen = rng.random(len(first)) < density
        return np.sort(self.members[np.stack([first[chosen], second[chosen]])], axis=0)


def ranges(counts: Ints) -> Ints:
    """``0 … counts[0]−1, 0 … counts[1]−1, …`` in one array."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True)
class Buffering:
    """The planted mechanism of one cell; the formula is at the top of this module.

    Args:
        pathway: Pathway of every gene ``[N]``, −1 for none; pathways 2k and 2k + 1 are parallel.
        strength: How much of its pathway a deletion breaks, s in (0, 1], ``[N]``; unused outside pathways.
        cost: Private cost b ≥ 0 of every gene, ``[N]``.
        masking: c, the log-fitness lost with a whole pathway.
        buffering: d, the further loss when its parallel pathway fails too.
    """

    pathway: Ints
    strength: Floats
    cost: Floats
    masking: float = 0.4
    buffering: float = 0.6

    @classmethod
    def from_physical(cls, rng: Generator, pathways: Pathways, edge_index: Ints) -> Buffering:
        """Strengths read from the ``physical`` relation, private costs drawn (exponential, mean 0.05)."""
        source, destination = edge_index
        pathway = pathways.of_gene
        inner = (pathway[source] == pathway[destination]) & (pathway[source] >= 0) & (source != destination)
        degree = np.bincount(source[inner], minlength=pathways.num_genes)
        most = np.ones(len(pathways.sizes), dtype=np.int64)
        np.maximum.at(most, pathway[pathways.members], degree[pathways.members])
        strength = np.where(pathway >= 0, 0.25 + 0.75 * degree / most[pathway], 0.0)
        return cls(pathway, strength.astype(np.float32), rng.exponential(0.05, len(pathway)).astype(np.float32))

    def single(self) -> Floats:
        """Log fitness of every single deletion, ``[N]``."""
        hit = np.where(self.pathway >= 0, self.strength, 0)
        return (-self.cost - self.masking * hit).astype(np.float32)

    def additive(self, genes: Ints) -> Floats:
        """Log fitness that the single deletions alone would give, ``[n]``; ``genes`` as in :meth:`interaction`."""
        total: Floats = np.append(self.single(), np.float32(0))[genes].sum(axis=1)
        return total

    def interaction(self, genes: Ints) -> Floats:
        """Interaction of every genotype, ``[n]``.

        Args:
            genes: ``[n, k]``, one genotype per row, its genes distinct; rows are filled up with N (no gene).
        """
        pathway = np.append(self.pathway, -1)[genes]
        unbroken = np.append(np.where(self.pathway >= 0, 1 - self.strength, 1), 1).astype(np.float32)[genes]
        total = np.zeros(len(genes), dtype=np.float32)
        for i in range(genes.shape[1]):
            own = np.ones_like(total)
            other = np.ones_like(total)
            mates = np.zeros_like(total)
            for j in range(genes.shape[1]):
                same = pathway[:, j] == pathway[:, i]
                own *= np.where(same, unbroken[:, j], 1)
                other *= np.where(pathway[:, j] == pathway[:, i] ^ 1, unbroken[:, j], 1)
                mates += same
            # Each pathway is met once per deleted member, each process once per side: hence the divisions.
            loss = (1 - own) * (self.masking + self.buffering / 2 * (1 - other)) / mates
            total += self.masking * (1 - unbroken[:, i]) - loss
        return total


@dataclass(frozen=True)
class Mix:
    """How the genotypes of a screen are drawn.

    The second and the third gene are taken from the pathway of the first with probability ``same``, from the parallel
    pathway with ``parallel``, otherwise from all genes. The defaults balance positive and negative interactions.
    """

    singles: float
    doubles: float
    same: float = 0.36
    parallel: float = 0.24


def draw_genotypes(rng: Generator, pathways: Pathways, mix: Mix, num_experiments: int) -> Ints:
    """Different genotypes, the wild type first, the others in random order, ``[num_experiments, 3]``.

    Rows are sorted and filled up with ``num_genes``. Related genes are enriched, because random triples
    would hardly ever contain them.
    """
    n = none = pathways.num_genes
    most = n * (n - 1) * (n - 2) // 12  # half of all triples: distinct ones are still found quickly
    if not 1 <= num_experiments <= most:
        raise ScreenError(f"num_experiments is {num_experiments}; this cell of {n} genes allows 1 to {most}")
    singles = min(n, round(mix.singles * num_experiments), num_experiments - 1)
    doubles = min(n * (n - 1) // 4, round(mix.doubles * num_experiments), num_experiments - 1 - singles)
    keys = [_key(np.stack([rng.permutation(n)[:singles], *[np.full(singles, none)] * 2], axis=1), n)]
    for size, count in ((2, doubles), (3, num_experiments - 1 - singles - doubles)):
        keys.append(_distinct(rng, count, partial(_draw, rng, pathways, mix, size)))
    key = rng.permutation(np.concatenate(keys))
    wild_type = _key(np.full((1, _MOST_DELETED), none), n)
    key = np.concatenate([wild_type, key])
    return np.stack([key // (n + 1) ** 2, key // (n + 1) % (n + 1), key % (n + 1)], axis=1)


def _key(genes: Ints, num_genes: int) -> Ints:
    """One integer per sorted genotype."""
    first, second, third = np.sort(genes, axis=1).T
    key: Ints = (first * (num_genes + 1) + second) * (num_genes + 1) + third
    return key


def _draw(rng: Generator, pathways: Pathways, mix: Mix, size: int, count: int, related: bool) -> Ints:
    """Keys of up to ``count`` genotypes of ``size`` genes; draws that repeat a gene are left out."""
    n = pathways.num_genes
    first = pathways.members if related else np.arange(n)
    parts = [np.empty(0, dtype=np.int64)]
    for start in range(0, count, _CHUNK):
        rows = min(_CHUNK, count - start)
        genes = np.full((rows, _MOST_DELETED), n)
        genes[:, 0] = first[rng.integers(len(first), size=rows)]
        for column in range(1, size):
            genes[:, column] = rng.integers(n, size=rows)
            if related:
                kind = rng.random(rows)
                pathway = pathways.of_gene[genes[:, 0]] ^ (kind >= mix.same)
                partner = pathways.ptr[pathway] + (rng.random(rows) * pathways.sizes[pathway]).astype(np.int64)
                chosen = kind < mix.same + mix.parallel
                genes[chosen, column] = pathways.members[partner[chosen]]
        genes.sort(axis=1)
        repeated = (genes[:, 1:size] == genes[:, : size - 1]).any(axis=1)
        parts.append(_key(genes[~repeated], n))
    return np.concatenate(parts)


def _distinct(rng: Generator, count: int, draw: Callable[[int, bool], Ints]) -> Ints:
    """``count`` different keys: related genotypes first, topped up with unrelated ones where those run out."""
    keys = _unique(draw(count + count // 8, True))
    while len(keys) < count:
        missing = count - len(keys)
        keys = _unique(np.concatenate([keys, draw(missing + missing // 8 + 64, False)]))
    return rng.permutation(keys)[:count]


def _unique(keys: Ints) -> Ints:
    """The different keys, ascending. ``np.unique`` hashes, which for millions of keys takes ten times as long."""
    keys = np.sort(keys)
    return keys[np.diff(keys, prepend=-1) > 0]


def measure(
    rng: Generator, names: Sequence[str], mechanism: Buffering, genes: Ints, noise: float, source: str
) -> Screen:
    """The screen of the given genotypes: phenotypes ``fitness`` and ``gene_interaction`` with their statistics.

    ``std`` is the error as four replicates would estimate it, ``p_value`` that of a two-sided normal test against 0.

    Args:
        rng: Source of the measurement errors.
        names: Systematic names of the N genes.
        mechanism: The mechanism of the cell.
        genes: ``[n, k]`` as :func:`draw_genotypes` makes it.
        noise: Standard deviation σ of the error of log fitness.
        source: Text for the source column.
    """
    fitness, interaction, std, p_value = np.empty((4, len(genes)), dtype=np.float32)
    for start in range(0, len(genes), _CHUNK):
        rows = slice(start, start + _CHUNK)
        true = mechanism.interaction(genes[rows])
        error = noise * rng.standard_normal(len(true), dtype=np.float32)
        error[(genes[rows] == len(names)).all(axis=1)] = 0
        interaction[rows] = true + error
        fitness[rows] = np.exp(mechanism.additive(genes[rows]) + true + error)
        std[rows] = noise * np.sqrt(rng.standard_gamma(1.5, len(true), dtype=np.float32) / 1.5)  # χ² of 3, over 3
        p_value[rows] = torch.erfc(torch.from_numpy(np.abs(interaction[rows]) / (noise * np.sqrt(2)))).numpy()
    present = genes < len(names)
    ptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return Screen(
        Genotypes(names, genes[present].astype(np.int32), ptr),
        {"fitness": fitness, "gene_interaction": interaction},
        {"fitness": {"std": fitness * std}, "gene_interaction": {"std": std, "p_value": p_value}},
        source,
    )


def heavy_tailed_edges(
    rng: Generator,
    nodes: Ints,
    num_edges: int,
    *,
    planted: Ints | None = None,
    num_sources: int | None = None,
    exponent: float = 0.7,
    offset: float = 4.0,
) -> Ints:
    """Exactly ``num_edges`` different edges that touch exactly ``nodes``: the planted ones and a heavy-tailed rest.

    The rest joins nodes with probability proportional to ``(rank + offset) ** −exponent`` of either end, so that
    ``nodes[0]`` is the largest hub. Returns ``edge_index [2, num_edges]``, sorted by source and destination.

    Args:
        rng: Source of randomness.
        nodes: Genes to touch, hubs first.
        num_edges: Columns of the result.
        planted: Undirected edges to include, ``[2, m]`` with first < second, both in ``nodes``.
        num_sources: Directed if given: only the first so many nodes have outgoing edges. Otherwise both directions of
            every edge are listed, and where ``num_edges`` is odd the largest hub gets a self loop, the one edge that
            is its own reverse.
        exponent: Fall of the weight with the rank.
        offset: Flattens the head, so that the largest hubs do not saturate.
    """
    base = int(nodes.max()) + 1
    directed = num_sources is not None
    wanted = num_edges if directed else num_edges // 2
    cumulative = np.cumsum((np.arange(len(nodes)) + offset) ** -exponent)
    targets = rng.permutation(nodes) if directed else nodes

    def pick(among: Ints, count: int) -> Ints:
        rank = np.searchsorted(cumulative[: len(among)], rng.random(count) * cumulative[len(among) - 1], side="right")
        picked: Ints = among[np.minimum(rank, len(among) - 1)]
        return picked

    def key(first: Ints, second: Ints) -> Ints:
        if not directed:
            first, second = np.minimum(first, second), np.maximum(first, second)
        keys: Ints = (first * base + second)[first != second]
        return keys

    keys = np.empty(0, dtype=np.int64) if planted is None else _unique(key(*planted))
    # A gene without planted edges first gets one edge, so that the number of touched nodes is exact.
    while len(lonely := np.setdiff1d(nodes, np.concatenate([keys // base, keys % base]))):
        keys = _unique(np.concatenate([keys, key(pick(nodes[:num_sources], len(lonely)), lonely)]))
    if len(keys) > wanted:
        raise GraphError(f"{num_edges} edges are too few to plant {len(keys)} and touch {len(nodes)} genes")
    while missing := wanted - len(keys):
        count = missing + missing // 3 + 16
        fresh = _unique(key(pick(nodes[:num_sources], count), pick(targets, count)))
        fresh = np.setdiff1d(fresh, keys, assume_unique=True)
        keys = np.concatenate([keys, rng.permutation(fresh)[:missing]])
    first, second = keys // base, keys % base
    if not directed:
        loop = nodes[: num_edges % 2]
        first, second = np.concatenate([first, second, loop]), np.concatenate([second, first, loop])
    order = np.argsort(first * base + second)
    return np.stack([first[order], second[order]])


def gene_names(num_genes: int) -> list[str]:
    """Systematic names that read like yeast's but belong to no yeast: its chromosomes have arms L and R, not A and B.

    >>> gene_names(64)[::21]
    ['YAA001W', 'YFA002C', 'YKB001C', 'YPB002W']
    """
    per_arm = -(-num_genes // 32)
    places = (divmod(i, per_arm) for i in range(num_genes))
    return [f"Y{'ABCDEFGHIJKLMNOP'[arm // 2]}{'AB'[arm % 2]}{i + 1:03d}{'WC'[(arm + i) % 2]}" for arm, i in places]
