"""The cell graph as PyG ``HeteroData`` and back.

=====================================================  =================================================================
name                                                   content
=====================================================  =================================================================
``["gene"].node_ids``, ``num_nodes``                   gene names, their number
``["gene"].x``                                         all features side by side, ``[num_genes, sum of d]``
``["gene", NAME, "gene"].edge_index``, ``num_edges``   one relation; ``edge_weight`` if it has weights
``["gene", "gpr", "reaction"].hyperedge_index``        gene and reaction node of each entry; ``complex_index``;
                                                       ``num_edges``: reaction nodes that have genes
``["reaction", "rmr", "metabolite"].hyperedge_index``  reaction node and metabolite of each entry; ``stoichiometry``
``… .reaction_to_genes``, ``reaction_to_genes_indices``  reaction node with genes → these, by name and by index
``["reaction"].w_growth``                              1 for growth reactions
=====================================================  =================================================================
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

from knockgraph.errors import GraphError
from knockgraph.graph.cell_graph import CellGraph, EdgesLike
from knockgraph.graph.genes import GeneNames
from knockgraph.graph.metabolism import Metabolism

GPR = ("gene", "gpr", "reaction")
RMR = ("reaction", "rmr", "metabolite")


def to_hetero_data(graph: CellGraph) -> HeteroData:
    """See :meth:`CellGraph.to_hetero_data`."""
    data = HeteroData()
    gene = data["gene"]
    gene.node_ids = list(graph.genes.names)
    gene.num_nodes = graph.num_genes
    gene.aliases = {name: list(others) for name, others in graph.genes.aliases.items()}
    if graph.features:
        gene.x = torch.cat([x.to(torch.promote_types(x.dtype, torch.float32)) for x in graph.features.values()], 1)
        gene.feature_sizes = {name: int(x.shape[1]) for name, x in graph.features.items()}
    for name, relation in graph.relations.items():
        store = data["gene", name, "gene"]
        store.edge_index = relation.edge_index.clone()
        store.num_edges = relation.num_edges
        if relation.weight is not None:
            store.edge_weight = relation.weight.clone()
    if graph.metabolism is not None:
        _add_metabolism(data, graph.metabolism, graph.genes.names)
    return data


def _add_metabolism(data: HeteroData, metabolism: Metabolism, names: tuple[str, ...]) -> None:
    data["reaction"].node_ids = list(metabolism.reactions)
    data["reaction"].num_nodes = metabolism.num_reactions
    data["reaction"].w_growth = metabolism.w_growth.clone()
    data["metabolite"].node_ids = list(metabolism.metabolites)
    data["metabolite"].num_nodes = metabolism.num_metabolites
    gpr, rmr = data[GPR], data[RMR]
    gpr.hyperedge_index = metabolism.gpr_index.clone()
    gpr.complex_index = metabolism.gpr_complex.clone()
    rmr.hyperedge_index = metabolism.rmr_index.clone()
    rmr.stoichiometry = metabolism.stoichiometry.clone()
    rmr.num_edges = metabolism.num_rmr
    genes_of: dict[int, list[int]] = {}
    for g, r in metabolism.gpr_index.T.tolist():
        genes_of.setdefault(r, []).append(g)
    gpr.num_edges = len(genes_of)  # hyperedges, as torchcell counts them: one for each reaction node with genes
    rmr.reaction_to_genes_indices = genes_of
    rmr.reaction_to_genes = {r: [names[g] for g in genes] for r, genes in genes_of.items()}


def from_hetero_data(data: HeteroData) -> CellGraph:
    """See :meth:`CellGraph.from_hetero_data`."""
    if "gene" not in data.node_types or "node_ids" not in data["gene"]:
        raise GraphError('this HeteroData has no gene names; set data["gene"].node_ids to the list of gene names')
    gene = data["gene"]
    genes = GeneNames(gene.node_ids, getattr(gene, "aliases", None))
    relations: dict[str, EdgesLike] = {}
    for source, name, target in data.edge_types:
        store = data[source, name, target]
        if (source, target) == ("gene", "gene"):
            if "edge_index" not in store:
                raise GraphError(f'data["gene", {name!r}, "gene"] has no edge_index')
            weight: Tensor | None = getattr(store, "edge_weight", None)
            relations[name] = store.edge_index if weight is None else (store.edge_index, weight)
    metabolism = _metabolism(data) if RMR in data.edge_types or GPR in data.edge_types else None
    return CellGraph(genes, relations, metabolism, _features(gene))


def _features(gene: Any) -> dict[str, Tensor]:
    x: Any = getattr(gene, "x", None)
    if x is None or (x.dim() == 2 and x.shape[1] == 0):
        return {}
    sizes: dict[str, int] = getattr(gene, "feature_sizes", None) or {}
    if not sizes or x.dim() != 2:
        return {"x": x}
    if sum(sizes.values()) != x.shape[1]:
        raise GraphError(
            f'data["gene"].x has {x.shape[1]} columns, but feature_sizes adds up to {sum(sizes.values())}; '
            "correct or delete feature_sizes"
        )
    return dict(zip(sizes, x.split(list(sizes.values()), 1), strict=True))


def _metabolism(data: HeteroData) -> Metabolism:
    missing = [f"data{list(kind)}" for kind in (GPR, RMR) if kind not in data.edge_types]
    if missing:
        raise GraphError(f"a metabolism needs both gpr and rmr entries, but {missing[0]} is missing")
    gpr, rmr = data[GPR], data[RMR]
    for kind, name in ((GPR, "hyperedge_index"), (RMR, "hyperedge_index"), (RMR, "stoichiometry")):
        if name not in data[kind]:
            raise GraphError(f"data{list(kind)} has no {name}; set it, see CellGraph.to_hetero_data for the names")
    index: Tensor = gpr.hyperedge_index.long()
    reactions, metabolites = _ids(data, "reaction"), _ids(data, "metabolite")
    complex_index: Tensor | None = getattr(gpr, "complex_index", None)
    if complex_index is None:
        # Data from other programs: one complex per reaction node.
        used, complex_index = torch.unique(index[1], return_inverse=True)
        complex_reaction = used
    else:
        complex_reaction = torch.zeros(int(complex_index.max()) + 1 if len(complex_index) else 0, dtype=torch.long)
        complex_reaction[complex_index] = index[1]
    w_growth: Tensor = getattr(data["reaction"], "w_growth", torch.zeros(len(reactions)))
    return Metabolism(
        reactions=reactions,
        metabolites=metabolites,
        complex_reaction=complex_reaction,
        gpr_index=index,
        gpr_complex=complex_index,
        rmr_index=rmr.hyperedge_index.long(),
        stoichiometry=rmr.stoichiometry.float(),
        w_growth=w_growth.float(),
    )


def _ids(data: HeteroData, kind: str) -> tuple[str, ...]:
    """Names of the nodes; numbers where the data only says how many there are."""
    store = data[kind] if kind in data.node_types else {}
    if "node_ids" in store:
        return tuple(store["node_ids"])
    if "num_nodes" in store:
        return tuple(f"{kind}_{i}" for i in range(int(store["num_nodes"])))
    raise GraphError(f'the {kind} nodes have neither names nor a number; set data["{kind}"].node_ids or num_nodes')
