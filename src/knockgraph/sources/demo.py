"""The demo cell: trains in under a minute on two CPU cores, with nothing to download.

360 genes, most of them in 32 pathways (16 processes), three relations:

* ``physical``: edges within the pathways, and as many noise edges;
* ``coexpression``: edges between parallel pathways, and half as many noise edges;
* ``regulatory``: directed, 30 regulators and their targets; plays no part in the phenotype.

Degrees are heavy-tailed: the hubs are housekeeping genes outside all pathways, joined to everything. The metabolism
shows six of the processes as two parallel routes from a substrate to a building block that growth needs.

The phenotype follows :mod:`knockgraph.sources.planted`. The error of log fitness has standard deviation 0.11, the
planted interaction one of about 0.23: the best possible Pearson correlation with ``gene_interaction`` is about 0.90.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.random import default_rng
from torch import Tensor

from knockgraph.graph.cell_graph import CellGraph
from knockgraph.graph.metabolism import Metabolism
from knockgraph.graph.reaction import Reaction
from knockgraph.screen.screen import Screen
from knockgraph.sources.planted import (
    Buffering,
    Ints,
    Mix,
    Pathways,
    draw_genotypes,
    gene_names,
    heavy_tailed_edges,
    measure,
)
from knockgraph.sources.report import ImportReport
from knockgraph.sources.source import GraphOptions, ScreenOptions, Source

NUM_GENES = 360
NUM_EXPERIMENTS = 8_000
NUM_PROCESSES = 16
NOISE = 0.11
"""Standard deviation of the error of log fitness and of ``gene_interaction``."""

_SIZES = np.resize([8, 9, 10, 11, 12], NUM_PROCESSES)  # genes per pathway
_METABOLIC = 6  # processes that the metabolism shows
_MIX = Mix(singles=0.05, doubles=0.4)
# One stream of random numbers per component, so that a change in one does not affect the others.
_PATHWAYS, _PHYSICAL, _COEXPRESSION, _REGULATORY, _COSTS, _SCREEN = range(6)


def demo_cell(seed: int = 0) -> CellGraph:
    """The demo cell, the same for the same ``seed``: 360 genes, three relations, a small metabolism.

    >>> demo_cell().num_genes
    360
    """
    pathways = _pathways(seed)
    names = gene_names(NUM_GENES)
    relations = {
        "physical": _physical(seed, pathways),
        "coexpression": _coexpression(seed, pathways),
        "regulatory": _regulatory(seed),
    }
    return CellGraph(
        genes=names,
        relations={name: torch.from_numpy(edges) for name, edges in relations.items()},
        metabolism=Metabolism.from_reactions(_reactions(names, pathways), {n: i for i, n in enumerate(names)}),
        features={"degree": _degree(relations.values())},
        aliases=_aliases(names, pathways),
    )


def demo_screen(num_experiments: int = NUM_EXPERIMENTS, seed: int = 0) -> Screen:
    """Experiments on ``demo_cell(seed)``, all of different genotypes: the wild type, single, double, triple deletions.

    Phenotypes ``fitness`` and ``gene_interaction`` (in log fitness), each with its ``std``, the latter with a
    ``p_value``.

    >>> len(demo_screen(1_000))
    1000
    """
    rng = default_rng([seed, _SCREEN])
    genotypes = draw_genotypes(rng, _pathways(seed), _MIX, num_experiments)
    return measure(rng, gene_names(NUM_GENES), demo_mechanism(seed), genotypes, NOISE, "demo")


class Demo(Source):
    """The source ``demo``."""

    reads = None

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """See :func:`demo_cell`."""
        return demo_cell(options.seed)

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :func:`demo_screen`."""
        return demo_screen(NUM_EXPERIMENTS if options.experiments is None else options.experiments, options.seed)


def demo_mechanism(seed: int = 0) -> Buffering:
    """The mechanism of ``demo_cell(seed)``, without measurement error: the truth to compare a model with."""
    pathways = _pathways(seed)
    return Buffering.from_physical(default_rng([seed, _COSTS]), pathways, _physical(seed, pathways))


def _pathways(seed: int) -> Pathways:
    rng = default_rng([seed, _PATHWAYS])
    return Pathways.draw(rng, np.repeat(rng.permutation(_SIZES), 2), NUM_GENES)


def _hubs_first(rng: np.random.Generator, pathways: Pathways) -> Ints:
    outside = np.setdiff1d(np.arange(NUM_GENES), pathways.members)
    return np.concatenate([rng.permutation(outside), rng.permutation(pathways.members)])


def _physical(seed: int, pathways: Pathways) -> Ints:
    rng = default_rng([seed, _PHYSICAL])
    planted = pathways.inner_edges(rng, density=0.4)
    nodes = _hubs_first(rng, pathways)
    return heavy_tailed_edges(rng, nodes, 4 * planted.shape[1], planted=planted, exponent=1.0, offset=1.0)


def _coexpression(seed: int, pathways: Pathways) -> Ints:
    rng = default_rng([seed, _COEXPRESSION])
    planted = pathways.parallel_edges(rng, density=0.6)
    nodes = _hubs_first(rng, pathways)
    return heavy_tailed_edges(rng, nodes, 2 * (3 * planted.shape[1] // 2), planted=planted, exponent=1.0, offset=1.0)


def _regulatory(seed: int) -> Ints:
    rng = default_rng([seed, _REGULATORY])
    return heavy_tailed_edges(rng, rng.permutation(NUM_GENES), 900, num_sources=30)


def _degree(relations: Iterable[Ints]) -> Tensor:
    """log(1 + edges that touch the gene), per relation: ``[num_genes, relations]``."""
    degree = [np.bincount(edges.ravel(), minlength=NUM_GENES) for edges in relations]
    return torch.from_numpy(np.log1p(np.stack(degree, axis=1)).astype(np.float32))


def _aliases(names: list[str], pathways: Pathways) -> dict[str, list[str]]:
    """Standard names by pathway (QAB1, QAB2, …), old names for every fifth gene; no yeast gene has these names."""
    aliases = {}
    for gene, name in enumerate(names):
        pathway = int(pathways.of_gene[gene])
        standard = ""
        if pathway >= 0:
            rank = int(np.flatnonzero(pathways.members == gene)[0] - pathways.ptr[pathway])
            standard = f"Q{'AEIO'[pathway % 4]}{'BCDFGKLM'[pathway // 4]}{rank + 1}"
        other = [f"DMO{gene + 1}"] if gene % 5 == 0 else []
        if standard or other:
            aliases[name] = [standard, *other]
    return aliases


def _reactions(names: list[str], pathways: Pathways) -> Iterator[Reaction]:
    """Two routes per process, of three steps each: a complex, a pair of isozymes, a reversible single enzyme."""
    products = {}
    for process in range(_METABOLIC):
        substrate, product = f"substrate_{process}", f"block_{process}"
        products[product] = -0.5
        yield Reaction(f"uptake_{process}", {substrate: 1})
        for route in (0, 1):
            start = pathways.ptr[2 * process + route]
            g = [names[gene] for gene in pathways.members[start : start + 5]]
            way = f"{process}{'ab'[route]}"
            first, second = f"x_{way}", f"y_{way}"
            yield Reaction(f"r_{way}1", {substrate: -1, "atp": -1, first: 1, "adp": 1}, gene_rule=f"{g[0]} and {g[1]}")
            yield Reaction(f"r_{way}2", {first: -1, second: 1}, lower_bound=-1000, gene_rule=f"{g[2]} or {g[3]}")
            yield Reaction(f"r_{way}3", {second: -1, product: 1}, lower_bound=-1000, gene_rule=g[4])
    yield Reaction("atp_synthase", {"adp": -1, "atp": 1})
    yield Reaction("growth", {**products, "atp": -20, "adp": 20, "biomass": 1}, growth=True)
    yield Reaction("biomass_exchange", {"biomass": -1}, growth=True)
