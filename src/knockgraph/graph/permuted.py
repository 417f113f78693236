"""A graph whose networks belong to other genes: what a model gains from it cannot come from biology."""

from __future__ import annotations

import torch

from knockgraph.graph.cell_graph import CellGraph
from knockgraph.graph.relation import Relation


def permuted(graph: CellGraph, seed: int = 0) -> CellGraph:
    r"""Gene :math:`\pi(g)` gets the edges and features of gene g, for one random permutation; without metabolism.

    Args:
        graph: The cell graph; names, degrees and agreement between networks stay.
        seed: Of the permutation.
    """
    place = torch.randperm(graph.num_genes, generator=torch.Generator().manual_seed(seed))
    relations = {
        name: Relation(place[relation.edge_index], graph.num_genes, relation.weight, name)
        for name, relation in graph.relations.items()
    }
    features = {name: x[place.argsort()] for name, x in graph.features.items()}
    return CellGraph(graph.genes, relations, features=features)
