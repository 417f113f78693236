"""Called interactions of pairs as relations of the cell graph, an input for the prediction of larger genotypes."""

from __future__ import annotations

import numpy as np
import torch

from knockgraph.errors import ScreenError
from knockgraph.graph import CellGraph, Relation
from knockgraph.screen.bound import BoundScreen
from knockgraph.screen.screen import Screen

NEGATIVE, POSITIVE = "calls_negative", "calls_positive"
"""The relations of :func:`with_calls`."""


def calls_of(graph: CellGraph) -> list[str]:
    """The relations of a graph that :func:`with_calls` made."""
    return [name for name in (NEGATIVE, POSITIVE) if name in graph.relations]


def with_calls(graph: CellGraph, screen: Screen, positive: bool = False) -> CellGraph:
    """The graph with the called pairs of a screen as relations: the negative ones, and the positive ones if wanted.

    Trigenic scores of the same study subtract the digenic ones, so that an error of a digenic score that makes it a
    positive call makes the trigenic score more negative: positive calls predict partly by that shared error, and are
    left out by default.

    Args:
        graph: The cell graph.
        screen: Pairs; the sign of their first phenotype counts, 0 or missing is no call. Other genotypes, and pairs of
            genes that the graph does not have, are left out.
        positive: Whether positive calls become a relation, too.
    """
    bound = screen.resolved(graph).bind(graph, next(iter(screen.phenotypes)), "drop", "drop")
    pairs = np.flatnonzero(np.diff(bound.host_ptr) == 2)
    if len(pairs) == 0:
        raise ScreenError("the screen of calls has no pair of genes of this graph; give one with pairs and their sign")
    ends = bound.indices.cpu().numpy()[bound.host_ptr[pairs][:, None] + np.arange(2)].T.astype(np.int64)
    sign = bound.values[pairs, 0].numpy()
    signs = {NEGATIVE: sign < 0, **({POSITIVE: sign > 0} if positive else {})}
    taken = [name for name in signs if name in graph.relations]
    if taken:
        raise ScreenError(f"the graph already has a relation {taken[0]!r}; leave the screen of calls out")
    relations = dict(graph.relations)
    for name, chosen in signs.items():
        one = torch.from_numpy(ends[:, chosen])
        relations[name] = Relation(torch.cat([one, one.flip(0)], 1), graph.num_genes, name=name)
    return CellGraph(graph.genes, relations, graph.metabolism, graph.features)


def check_calls(graph: CellGraph, screen: BoundScreen) -> None:
    """Refuse a screen whose own pairs are among the calls: the graph would show the labels that are to be predicted.

    Args:
        graph: Of :func:`with_calls`.
        screen: The experiments to learn from.
    """
    start = screen.host_ptr[:-1][np.diff(screen.host_ptr) == 2]
    a, b = screen.indices.cpu().numpy()[start[:, None] + np.arange(2)].T.astype(np.int64)
    edges = [graph.relations[name].edge_index for name in (NEGATIVE, POSITIVE) if name in graph.relations]
    called = np.concatenate([(e[0] * graph.num_genes + e[1]).numpy() for e in edges] or [np.empty(0, dtype=np.int64)])
    shown = int(np.isin(a * graph.num_genes + b, called).sum())
    if shown:
        raise ScreenError(
            f"{shown:,} of {len(screen):,} experiments delete a pair that is among the calls, so the graph would show "
            "what is to be predicted; leave the calls out (data.calls=null), or these pairs out of one of the two files"
        )
