"""A cell graph in figures: what ``knockgraph graph info`` and ``graph check`` show."""

from __future__ import annotations

from typing import Any

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


def remarks(graph: CellGraph) -> list[str]:
    """What a careful reader would want to know about a valid graph: isolated genes, empty relations, duplicates."""
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
    }
