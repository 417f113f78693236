"""The yeast-scale cell: synthetic, nothing to download, with exactly the sizes of a published yeast cell graph.

6,607 genes and nine relations whose numbers of genes touched and of edges are those of :data:`RELATIONS`; a metabolism
of 7,122 reaction nodes; 332,313 experiments, or 20 million. Degrees are heavy-tailed everywhere: hubs among the genes,
currency metabolites among the metabolites.

About 4,500 genes form pathways of 6 to 40 genes, in parallel pairs. The pathways are edges of ``physical``, of
``string12_0_experimental`` and, more completely, of ``string12_0_database``; edges between parallel pathways are in
``string12_0_coexpression``. All other edges are noise, in ``physical`` about three in four. ``regulatory`` and
``tflink`` are directed. In the other relations every edge has its reverse; where the published count is odd the largest
hub completes it with a self loop.

The phenotype follows :mod:`knockgraph.sources.planted`. The error of log fitness has standard deviation 0.11, the
planted interaction one of about 0.235: the best possible Pearson correlation with ``gene_interaction`` is about 0.905.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng

from knockgraph.graph.cell_graph import CellGraph
from knockgraph.graph.metabolism import Metabolism
from knockgraph.graph.reaction import Reaction
from knockgraph.screen.screen import Screen
from knockgraph.sources.planted import (
    Bools,
    Buffering,
    Ints,
    Mix,
    Pathways,
    draw_genotypes,
    gene_names,
    heavy_tailed_edges,
    measure,
    ranges,
)
from knockgraph.sources.report import ImportReport
from knockgraph.sources.source import GraphOptions, ScreenOptions, Source

NUM_GENES = 6_607
NUM_EXPERIMENTS = 332_313
NOISE = 0.11
"""Standard deviation of the error of log fitness and of ``gene_interaction``."""


class RelationSize(NamedTuple):
    """Sizes of one relation, and what is planted in it."""

    nodes: int  #: genes touched
    edges: int  #: columns of ``edge_index``
    sources: int | None = None  #: regulators of a directed relation
    inner: float = 0.0  #: share of all pairs of genes inside a pathway that are edges
    parallel: float = 0.0  #: the same between parallel pathways
    exponent: float = 0.6  #: decay of the degree with its rank
    offset: float = 8.0  #: flattens the head, see :func:`~knockgraph.sources.planted.heavy_tailed_edges`


RELATIONS = {
    "regulatory": RelationSize(3_632, 9_753, sources=170, exponent=0.8, offset=2),
    "physical": RelationSize(5_721, 139_463, inner=0.35, exponent=0.7, offset=4),
    "tflink": RelationSize(5_092, 201_898, sources=180, exponent=0.5, offset=6),
    "string12_0_neighborhood": RelationSize(2_204, 147_874),
    "string12_0_fusion": RelationSize(3_095, 11_810, exponent=0.8, offset=2),
    "string12_0_cooccurence": RelationSize(2_615, 11_115, exponent=0.8, offset=2),
    "string12_0_coexpression": RelationSize(6_503, 1_002_538, parallel=0.6),
    "string12_0_experimental": RelationSize(6_036, 825_101, inner=0.6),
    "string12_0_database": RelationSize(4_044, 73_818, inner=0.8, exponent=0.8, offset=2),
}

NUM_REACTIONS, NUM_REACTIONS_WITH_GENES, NUM_METABOLITES, NUM_GPR, NUM_RMR = 7_122, 4_881, 2_806, 5_450, 26_325
NUM_GROWTH_REACTIONS = 4

_IN_PATHWAYS = 4_500  # at most; few enough to fit the genes of every relation they are planted in
_METABOLIC_GENES = 1_150
_MIX = Mix(singles=0.02, doubles=0.1)
# One stream of random numbers per component (relations: 10, 11, …), so that none depends on the others.
_PATHWAYS, _COSTS, _METABOLISM, _SCREEN, _FIRST_RELATION = 0, 1, 2, 3, 10


def yeast_scale_cell(seed: int = 0) -> CellGraph:
    """The yeast-scale cell, the same for the same ``seed``: nine relations with 2,423,370 edges, and the metabolism."""
    pathways = _pathways(seed)
    names = gene_names(NUM_GENES)
    return CellGraph(
        genes=names,
        relations={name: torch.from_numpy(_relation(seed, pathways, name)) for name in RELATIONS},
        metabolism=Metabolism.from_reactions(
            _reactions(default_rng([seed, _METABOLISM]), names, pathways), {name: i for i, name in enumerate(names)}
        ),
    )


def yeast_scale_screen(num_experiments: int = NUM_EXPERIMENTS, seed: int = 0) -> Screen:
    """Experiments on ``yeast_scale_cell(seed)``, all of different genotypes, seven in eight of them triple deletions.

    Phenotypes ``fitness`` and ``gene_interaction`` (in log fitness), each with its ``std``, the latter with a
    ``p_value``. 20 million take less than a minute and 3 GB. At that size there are not enough closely related triples,
    so more genotypes have no interaction, and the best possible Pearson correlation is about 0.85.
    """
    rng = default_rng([seed, _SCREEN])
    genotypes = draw_genotypes(rng, _pathways(seed), _MIX, num_experiments)
    return measure(rng, gene_names(NUM_GENES), yeast_scale_mechanism(seed), genotypes, NOISE, "yeast-scale")


class YeastScale(Source):
    """The source ``yeast-scale``."""

    reads = None

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """See :func:`yeast_scale_cell`."""
        return yeast_scale_cell(options.seed)

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :func:`yeast_scale_screen`."""
        number = NUM_EXPERIMENTS if options.experiments is None else options.experiments
        return yeast_scale_screen(number, options.seed)


def yeast_scale_mechanism(seed: int = 0) -> Buffering:
    """The mechanism of ``yeast_scale_cell(seed)``, without measurement error: the truth to compare a model with."""
    pathways = _pathways(seed)
    return Buffering.from_physical(default_rng([seed, _COSTS]), pathways, _relation(seed, pathways, "physical"))


def _pathways(seed: int) -> Pathways:
    rng = default_rng([seed, _PATHWAYS])
    sizes = np.clip(rng.lognormal(2.6, 0.5, _IN_PATHWAYS // 12), 6, 40).astype(np.int64)
    sizes = np.repeat(sizes, 2)  # parallel pathways are equally long
    return Pathways.draw(rng, sizes[: 2 * (np.searchsorted(np.cumsum(sizes), _IN_PATHWAYS) // 2)], NUM_GENES)


def _relation(seed: int, pathways: Pathways, name: str) -> Ints:
    size = RELATIONS[name]
    rng = default_rng([seed, _FIRST_RELATION + list(RELATIONS).index(name)])
    planted = np.empty((2, 0), dtype=np.int64)
    if size.inner:
        planted = pathways.inner_edges(rng, size.inner)
    elif size.parallel:
        planted = pathways.parallel_edges(rng, size.parallel)
    # If not all pathways fit, the first ones are used; they then form four fifths of the touched genes.
    members = pathways.members[: size.nodes * 4 // 5] if planted.size else pathways.members[:0]
    others = rng.permutation(np.setdiff1d(np.arange(NUM_GENES), members))
    nodes = rng.permutation(np.concatenate([members, others[: size.nodes - len(members)]]))
    return heavy_tailed_edges(
        rng,
        nodes,
        size.edges,
        planted=planted[:, np.isin(planted, nodes).all(axis=0)],
        num_sources=size.sources,
        exponent=size.exponent,
        offset=size.offset,
    )


def _reactions(rng: Generator, names: list[str], pathways: Pathways) -> Iterator[Reaction]:
    """Reactions that split into exactly the stated numbers of nodes and entries.

    Each number is reached by drawing from a skewed distribution up to the limit, and then adding reactions that become
    a single node, because these change a count by one.
    """
    isozymes = rng.choice([1, 2, 3, 5, 12], NUM_REACTIONS_WITH_GENES, p=[0.74, 0.15, 0.06, 0.04, 0.01])
    isozymes, directions = _up_to(rng, NUM_REACTIONS_WITH_GENES, isozymes)
    num_free = NUM_REACTIONS - NUM_REACTIONS_WITH_GENES - NUM_GROWTH_REACTIONS
    _, free = _up_to(rng, num_free, np.ones(num_free, dtype=np.int64))
    rules = _gene_rules(rng, isozymes, directions, [names[gene] for gene in pathways.members[:_METABOLIC_GENES]])
    rules += [""] * (NUM_GROWTH_REACTIONS + len(free))
    nodes = np.concatenate([isozymes * directions, np.ones(NUM_GROWTH_REACTIONS, dtype=np.int64), free])
    both_ways = np.concatenate([directions, np.ones(NUM_GROWTH_REACTIONS, dtype=np.int64), free]) == 2
    beyond = np.arange(len(rules)) - len(isozymes)  # those without genes: first the growth reactions, then the rest
    is_growth = (beyond >= 0) & (beyond < NUM_GROWTH_REACTIONS)
    can_exchange = beyond >= NUM_GROWTH_REACTIONS
    for i, stoichiometry in enumerate(_stoichiometry(rng, nodes, is_growth, can_exchange)):
        yield Reaction(
            f"r_{i + 1:04d}",
            stoichiometry,
            lower_bound=-1000.0 if both_ways[i] else 0.0,
            gene_rule=rules[i],
            growth=bool(is_growth[i]),
        )


def _up_to(rng: Generator, num_nodes: int, isozymes: Ints) -> tuple[Ints, Ints]:
    """Isozymes and directions (1 or 2) of reactions with ``num_nodes`` nodes in all; two in five are reversible."""
    directions = rng.choice([1, 2], len(isozymes), p=[0.6, 0.4])
    total = np.cumsum(isozymes * directions)
    cut = int(np.searchsorted(total, num_nodes, side="right"))
    rest = np.ones(num_nodes - total[cut - 1], dtype=np.int64)
    return np.concatenate([isozymes[:cut], rest]), np.concatenate([directions[:cut], rest])


def _gene_rules(rng: Generator, isozymes: Ints, directions: Ints, genes: list[str]) -> list[str]:
    """One rule per reaction; neighbours in ``genes``, mostly of one pathway, share a reaction."""
    nodes = np.repeat(directions, isozymes)  # of each complex
    spare = NUM_GPR - nodes.sum()
    order = rng.permutation(len(nodes))
    more = rng.choice([1, 2, 4, 9, 15], len(nodes), p=[0.6, 0.2, 0.1, 0.07, 0.03])
    cost = np.cumsum(nodes[order] * more)
    cut = int(np.searchsorted(cost, spare, side="right"))
    size = np.ones(len(nodes), dtype=np.int64)
    size[order[:cut]] += more[:cut]
    single = order[cut:][nodes[order[cut:]] == 1]
    size[single[: spare - cost[cut - 1]]] += 1

    first_complex = np.cumsum(isozymes) - isozymes
    needed = np.add.reduceat(size, first_complex)
    start = rng.integers(len(genes) - needed)
    position = np.repeat(start, needed) + ranges(needed)
    complexes = [" and ".join(genes[i] for i in part) for part in np.split(position, np.cumsum(size)[:-1])]
    ends = first_complex + isozymes
    return [" or ".join(f"({c})" for c in complexes[a:b]) for a, b in zip(first_complex, ends, strict=True)]


def _stoichiometry(rng: Generator, nodes: Ints, is_growth: Bools, can_exchange: Bools) -> Iterator[dict[str, float]]:
    """Metabolites and coefficients of each reaction, given how many nodes it becomes."""
    count = 2 + rng.poisson(1.6, len(nodes))
    count[can_exchange & (rng.random(len(nodes)) < 0.25)] = 1
    count[is_growth] = 40
    adjustable = (nodes == 1) & (count > 1) & ~is_growth
    while missing := NUM_RMR - int((nodes * count).sum()):
        rows = rng.permutation(np.flatnonzero(adjustable & ((missing > 0) | (count > 2))))
        count[rows[: abs(missing)]] += np.sign(missing)

    reaction = np.repeat(np.arange(len(nodes)), count)
    place = ranges(count)
    popularity = np.cumsum((np.arange(NUM_METABOLITES) + 1.0) ** -0.9)  # the first ones are currency metabolites

    def pick(entries: int) -> Ints:
        # Below 1 by a margin that rounding cannot cross: the result is an index.
        at: Ints = np.searchsorted(popularity, rng.random(entries) * popularity[-1] * (1 - 1e-12), side="right")
        return at

    metabolite = pick(len(reaction))
    # There are more reactions than metabolites: cycling through them as first entries touches all.
    metabolite[place == 0] = np.resize(rng.permutation(NUM_METABOLITES), len(nodes))
    while True:
        _, kept = np.unique(reaction * NUM_METABOLITES + metabolite, return_index=True)  # keeps first entries
        repeated = np.setdiff1d(np.arange(len(reaction)), kept)
        if not len(repeated):
            break
        metabolite[repeated] = pick(len(repeated))

    size = rng.choice([1.0, 2.0, 4.0], len(reaction), p=[0.85, 0.12, 0.03])
    size[is_growth[reaction]] *= 0.05
    turned = rng.choice([-1.0, 1.0], len(nodes))[reaction]
    coefficient = turned * np.where(2 * place < count[reaction], -size, size)
    end = np.cumsum(count)
    for start, stop in zip(end - count, end, strict=True):
        named = (f"m_{i + 1:04d}" for i in metabolite[start:stop])
        yield dict(zip(named, coefficient[start:stop].tolist(), strict=True))
