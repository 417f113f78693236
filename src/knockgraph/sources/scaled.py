"""A synthetic cell of any size, for timing only: the relations of the yeast-scale cell, larger or smaller.

The fractions of genes and edges, the directions and the decay of the degrees are those of
:mod:`knockgraph.sources.yeast_scale`. There is no planted mechanism and no metabolism, and the phenotype is pure noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import default_rng

from knockgraph.errors import GraphError
from knockgraph.graph.cell_graph import CellGraph
from knockgraph.screen.genotypes import Genotypes
from knockgraph.screen.screen import Screen
from knockgraph.sources.planted import Mix, Pathways, draw_genotypes, gene_names, heavy_tailed_edges
from knockgraph.sources.yeast_scale import NUM_GENES as YEAST_GENES
from knockgraph.sources.yeast_scale import RELATIONS, RelationSize


class Sizes(NamedTuple):
    """Sizes of a scaled cell; the defaults are those of a human cell graph."""

    genes: int = 20_000
    edges: int = 10_000_000  #: of all relations together, both directions of undirected ones counted
    relations: int = 9


_LEAST_GENES = 100  # fewer have no pathways to draw related genotypes from
_LEAST_EDGES = 40  # of one relation: fewer cannot spread over enough genes
_MOST_DENSE = 0.25  # largest density of a relation: beyond it, hubs saturate and degrees are not skewed
_PATHWAY = 12
_BY_SIZE = sorted(RELATIONS, key=lambda name: -RELATIONS[name].edges)


def scaled_cell(sizes: Sizes | None = None, seed: int = 0) -> CellGraph:
    """The relations of the yeast-scale cell at other sizes: the largest ones first, repeated if there are more than
    nine.

    >>> scaled_cell(Sizes(genes=200, edges=3_000, relations=2))
    CellGraph(200 genes, 2 relations, 3000 edges)
    """
    sizes = sizes or Sizes()
    relations = {}
    for place, (name, size) in enumerate(_relation_sizes(sizes).items()):
        rng = default_rng([seed, place])
        edge_index = heavy_tailed_edges(
            rng,
            rng.permutation(sizes.genes)[: size.nodes],
            size.edges,
            num_sources=size.sources,
            exponent=size.exponent,
            offset=size.offset,
        )
        relations[name] = torch.from_numpy(edge_index)
    return CellGraph(gene_names(sizes.genes), relations)


def scaled_screen(sizes: Sizes | None = None, num_experiments: int = 20_000, seed: int = 0) -> Screen:
    """Experiments on ``scaled_cell(sizes)``: genotypes as of the yeast-scale screen, ``gene_interaction`` pure noise.

    Args:
        sizes: Of the cell.
        num_experiments: At most; small cells have fewer different genotypes.
        seed: Same seed, same screen.
    """
    n = (sizes or Sizes()).genes
    rng = default_rng([seed, len(RELATIONS)])
    pathways = Pathways.draw(rng, np.full(2 * (n // (3 * _PATHWAY)), _PATHWAY), n)
    genes = draw_genotypes(rng, pathways, Mix(singles=0.02, doubles=0.1), min(num_experiments, n * n))
    present = genes < n
    ptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    names = Genotypes(gene_names(n), genes[present].astype(np.int32), ptr)
    return Screen(names, {"gene_interaction": rng.standard_normal(len(genes), dtype=np.float32)}, {}, "scaled")


def _relation_sizes(sizes: Sizes) -> dict[str, RelationSize]:
    """Genes, edges and sources of each relation; impossible sizes are refused, with the nearest possible ones."""
    if sizes.genes < _LEAST_GENES:
        raise GraphError(f"{sizes.genes:,} genes are too few for a synthetic cell; give at least {_LEAST_GENES}")
    if sizes.relations < 1:
        raise GraphError(f"{sizes.relations} relations are too few for a synthetic cell; give at least 1")
    like = [RELATIONS[_BY_SIZE[i % len(_BY_SIZE)]] for i in range(sizes.relations)]
    rounds = [i // len(_BY_SIZE) for i in range(sizes.relations)]
    names = [_BY_SIZE[i % len(_BY_SIZE)] + (f"_{r + 1}" if r else "") for i, r in enumerate(rounds)]
    whole = sum(size.edges for size in like)
    touched = [math.ceil(sizes.genes * size.nodes / YEAST_GENES) for size in like]
    what = f"{sizes.edges:,} edges in {sizes.relations} relations of {sizes.genes:,} genes"
    least = _LEAST_EDGES * sizes.relations
    spare = sizes.edges - least
    if spare < 0:
        raise GraphError(f"{what} are too few; give at least {least:,} edges or fewer relations")
    room = [int(_MOST_DENSE * n**2) - _LEAST_EDGES for n in touched]
    most = least + min(n * whole // size.edges for n, size in zip(room, like, strict=True))
    if sizes.edges > most:
        raise GraphError(f"{what} are too dense to have skewed degrees; give at most {most:,} edges or more genes")
    edges = [_LEAST_EDGES + spare * size.edges // whole for size in like]
    edges[0] += sizes.edges - sum(edges)
    made = {}
    for name, size, count, nodes in zip(names, like, edges, touched, strict=True):
        n = min(nodes, count // (3 if size.sources is None else 2))  # a sparse relation touches fewer genes
        sources = None
        if size.sources is not None:
            scaled = round(n * size.sources / size.nodes)
            sources = min(max(scaled, math.ceil(count / (_MOST_DENSE * n))), n)
        made[name] = size._replace(nodes=n, edges=count, sources=sources, inner=0.0, parallel=0.0)
    return made
