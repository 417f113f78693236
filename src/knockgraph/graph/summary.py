"""Figures of a cell graph, as shown by ``knockgraph graph info`` and ``graph check``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.graph.cell_graph import CellGraph
from knockgraph.graph.relation import Relation


def summarise(graph: CellGraph) -> dict[str, Any]:
    """Sizes and degrees; JSON-safe."""
    summary: dict[str, Any] = {
        "genes": graph.num_genes,
        "other_names": sum(1 for others in graph.genes.aliases.values() for name in others if name),
        "gene_list_hash": graph.gene_list_hash,
        "edges": graph.num_edges,
        "relations": {name: _relation(relation) for name, relation in graph.relations.items()},
        "overlap": overlap(graph),
        "components": components(
            torch.cat([torch.empty(2, 0, dtype=torch.long), *_all_edges(graph)], 1), graph.num_genes
        ),
        "features": {name: int(x.shape[1]) for name, x in graph.features.items()},
        "metabolism": None,
    }
    m = graph.metabolism
    if m is not None:
        summary["metabolism"] = {
            "reactions": m.num_reactions,
            "reactions_with_genes": m.num_reactions_with_genes,
            "metabolites": m.num_metabolites,
            "gpr": m.num_gpr,
            "rmr": m.num_rmr,
            "growth_reactions": int((m.w_growth > 0).sum()),
        }
    return summary


def overlap(graph: CellGraph) -> dict[str, dict[str, dict[str, float]]]:
    """Relation → other relation → pairs of genes in both, and their fraction of the pairs in either (Jaccard).

    Pairs are counted without direction.
    """
    keys = {name: _pairs(relation) for name, relation in graph.relations.items()}
    names = list(keys)
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    for i, a in enumerate(names):
        for b in names[i:]:
            both = len(keys[a]) if a == b else len(np.intersect1d(keys[a], keys[b], assume_unique=True))
            either = len(keys[a]) + len(keys[b]) - both
            found[a][b] = found[b][a] = {"pairs": both, "jaccard": both / either if either else 0.0}
    return {name: {other: found[name][other] for other in names} for name in names}


def components(edge_index: torch.Tensor, num_genes: int) -> dict[str, int]:
    """Connected components (without direction) of the genes that have an edge: their number and the largest.

    Args:
        edge_index: ``[2, edges]`` on the host.
        num_genes: Length of the gene list.
    """
    label = np.arange(num_genes)
    source, target = edge_index.numpy()
    # Every round gives both ends of an edge the smaller label, then follows labels to their end.
    while len(source):
        low = np.minimum(label[source], label[target])
        before = label.copy()
        np.minimum.at(label, source, low)
        np.minimum.at(label, target, low)
        np.minimum.at(label, before[source], low)
        np.minimum.at(label, before[target], low)
        while not np.array_equal(label, label[label]):
            label = label[label]
        if np.array_equal(label, before):
            break
    touched = np.unique(np.concatenate([source, target]))
    _, size = np.unique(label[touched], return_counts=True)
    return {"count": len(size), "largest": int(size.max(initial=0))}


def degree_counts(relation: Relation) -> list[tuple[int, int]]:
    """(neighbours, genes with so many), ascending, without direction and self loops; genes without any are left out."""
    key = _pairs(relation)
    a, b = key // relation.num_genes, key % relation.num_genes
    count = np.bincount(np.concatenate([a[a != b], b[a != b]]), minlength=1)
    degree, genes = np.unique(count[count > 0], return_counts=True)
    return list(zip(degree.tolist(), genes.tolist(), strict=True))


def remarks(graph: CellGraph) -> list[str]:
    """Notes on unusual properties of a valid graph: isolated genes, empty relations, duplicates."""
    found = []
    touched = torch.zeros(graph.num_genes, dtype=torch.bool)
    for name, relation in graph.relations.items():
        touched[relation.edge_index.flatten()] = True
        if relation.num_edges == 0:
            found.append(f"relation {name!r} has no edges")
        if relation.num_duplicates:
            found.append(f"relation {name!r} was given {relation.num_duplicates} duplicate edges; they were removed")
    isolated = int((~touched).sum())
    if isolated:
        found.append(f"{isolated} of {graph.num_genes} genes have no edge in any relation")
    if not graph.relations:
        found.append("the graph has no relation")
    return found


def _relation(relation: Relation) -> dict[str, Any]:
    incoming, outgoing = relation.by_destination.degree, relation.by_source.degree
    total = (incoming + outgoing)[(incoming + outgoing) > 0].float()
    return {
        "genes_touched": relation.num_genes_touched,
        "edges": relation.num_edges,
        "symmetric": relation.symmetric,
        "self_loops": relation.num_self_loops,
        "duplicates_removed": relation.num_duplicates,
        "weighted": relation.weight is not None,
        "in_degree_max": int(incoming.max()) if relation.num_edges else 0,
        "out_degree_max": int(outgoing.max()) if relation.num_edges else 0,
        "degree_median": float(total.median()) if relation.num_edges else 0.0,
        "components": components(relation.edge_index, relation.num_genes),
    }


def _pairs(relation: Relation) -> npt.NDArray[np.int64]:
    """One ascending number per pair of genes, without direction."""
    source, target = relation.edge_index.numpy()
    keys: npt.NDArray[np.int64] = np.unique(
        np.minimum(source, target) * relation.num_genes + np.maximum(source, target)
    )
    return keys


def _all_edges(graph: CellGraph) -> list[torch.Tensor]:
    return [relation.edge_index for relation in graph.relations.values()]
