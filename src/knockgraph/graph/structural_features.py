"""Gene features computed from the graph: degrees, spectral coordinates, random walks.

A learned embedding carries no information about a gene that no training experiment deletes; these features describe its
position in the networks. They depend only on the graph: the start of every iteration is fixed, and so are the signs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from knockgraph.errors import GraphError
from knockgraph.graph.cell_graph import CellGraph
from knockgraph.graph.relation import Relation

SPECTRAL_RANK = 24
DIFFUSION_RANK = 64
RESTART = 0.5
_OVERSAMPLE = 16
_ITERATIONS = 6


def degree(graph: CellGraph) -> Tensor:
    """``log(1 + degree)`` in every relation, ``[num_genes, columns]``; in- and out-degree where they differ."""
    columns = []
    for relation in graph.relations.values():
        columns.append(relation.by_destination.degree)
        if not relation.symmetric:
            columns.append(relation.by_source.degree)
    if not columns:
        return torch.zeros(graph.num_genes, 0)
    return torch.stack(columns, 1).double().log1p().float()


def spectral(graph: CellGraph, rank: int = SPECTRAL_RANK) -> Tensor:
    r"""Coordinates of the genes in every relation, ``[num_genes, columns]``.

    The leading singular vectors of :math:`S = (D_{out} + \tau)^{-1/2} A (D_{in} + \tau)^{-1/2} \approx U \Sigma V^\top`
    with the mean degree :math:`\tau`, which keeps small components from filling the spectrum. The features are
    :math:`U \Sigma^{1/2}`, and :math:`V \Sigma^{1/2}` too where the relation is directed.

    Args:
        graph: The cell graph.
        rank: Vectors per relation, fewer if the relation touches fewer genes.
    """
    blocks = []
    for relation in graph.relations.values():
        if relation.num_edges == 0:
            continue
        u, s, v = _leading(_normalised(relation), min(rank, relation.num_genes_touched))
        root = s.sqrt()
        blocks += [u * root] if relation.symmetric else [u * root, v * root]
    return torch.cat(blocks, 1).float() if blocks else torch.zeros(graph.num_genes, 0)


def diffusion(graph: CellGraph, rank: int = DIFFUSION_RANK, restart: float = RESTART) -> Tensor:
    r"""Coordinates of the random walks from each gene over all relations, ``[num_genes, rank]``.

    A walk starts at gene i, takes any of its relations and any of that relation's edges (in both directions) with equal
    chance, and returns to i with probability :math:`\alpha` at every step, so that it is found at the other genes with
    :math:`Q = \alpha (I - (1 - \alpha) W)^{-1}`.
    The features are the leading left singular vectors of :math:`\log(Q + 1/N) - \log(1/N)`, times the square root of
    the singular values.

    Args:
        graph: The cell graph.
        rank: Number of features.
        restart: :math:`\alpha`.
    """
    if not 0 < restart < 1:
        raise GraphError(f"restart is {restart}, but it must be between 0 and 1")
    n = graph.num_genes
    walk = _walk(graph)
    start = torch.eye(n)
    visited = start
    # The error after k steps is below (1 − α)^k; float32 is enough for a logarithm above 1/N.
    for _ in range(max(1, round(float(torch.log(torch.tensor(1e-4)) / torch.log(torch.tensor(1 - restart)))))):
        visited = restart * start + (1 - restart) * (walk @ visited)
    visited += 1 / n
    visited.log_().sub_(float(torch.log(torch.tensor(1 / n))))
    u, s, _ = _leading(visited.double(), min(rank, n))
    return (u * s.sqrt()).float()


FEATURES: Mapping[str, Callable[[CellGraph], Tensor]] = {
    "degree": degree,
    "spectral": spectral,
    "diffusion": diffusion,
}
"""Name → the function that computes it."""


def with_structural_features(graph: CellGraph, names: Sequence[str]) -> CellGraph:
    """The graph with these features of :data:`FEATURES` added to its own.

    >>> graph = CellGraph(["A", "B", "C"], {"physical": torch.tensor([[0, 1], [1, 0]])})
    >>> with_structural_features(graph, ["degree"]).features["degree"].flatten().tolist()
    [0.6931471824645996, 0.6931471824645996, 0.0]
    """
    unknown = [name for name in names if name not in FEATURES]
    if unknown:
        raise GraphError(f"there is no structural feature {unknown[0]!r}; use {', '.join(FEATURES)}")
    made = {name: FEATURES[name](graph) for name in names}
    return CellGraph(graph.genes, graph.relations, graph.metabolism, {**graph.features, **made})


def _normalised(relation: Relation) -> Tensor:
    """:math:`S`, sparse, row = source."""
    outgoing, incoming = relation.by_source.degree.double(), relation.by_destination.degree.double()
    mean = relation.num_edges / max(1, relation.num_genes_touched)
    source, target = relation.edge_index
    value = ((outgoing + mean).rsqrt()[source]) * ((incoming + mean).rsqrt()[target])
    return _sparse(relation.edge_index, value, relation.num_genes)


def _walk(graph: CellGraph) -> Tensor:
    """One step of the walk, row = from; a gene without edges stays where it is."""
    n = graph.num_genes
    index, value = [], []
    relations = torch.zeros(n)
    steps = []
    for relation in graph.relations.values():
        both = torch.cat([relation.edge_index, relation.edge_index.flip(0)], 1)
        both = torch.unique(both, dim=1)
        count = torch.bincount(both[0], minlength=n).float()
        relations += (count > 0).float()
        steps.append((both, count))
    for both, count in steps:
        index.append(both)
        value.append(1 / (count[both[0]] * relations[both[0]]))
    alone = (relations == 0).nonzero()[:, 0]
    index.append(torch.stack([alone, alone]))
    value.append(torch.ones(len(alone)))
    return _sparse(torch.cat(index, 1), torch.cat(value), n)


def _sparse(index: Tensor, value: Tensor, n: int) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR tensors a prototype
        return torch.sparse_coo_tensor(index, value, (n, n), check_invariants=False).coalesce().to_sparse_csr()


def _leading(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Leading singular triplets by subspace iteration from a fixed start, ``[n, rank]``, ``[rank]``, ``[n, rank]``."""
    n = matrix.shape[0]
    width = min(n, rank + _OVERSAMPLE)
    transposed = matrix.t().to_sparse_csr() if matrix.layout == torch.sparse_csr else matrix.t()
    v = torch.randn(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(_ITERATIONS):
        v = torch.linalg.qr(transposed @ torch.linalg.qr(matrix @ v).Q).Q
    u, s, right = torch.linalg.svd(matrix @ v, full_matrices=False)
    u, s, v = u[:, :rank], s[:rank], (v @ right.T)[:, :rank]
    sign = torch.sign(u.gather(0, u.abs().argmax(0, keepdim=True)))
    sign = torch.where(sign == 0, torch.ones_like(sign), sign)
    return u * sign, s, v * sign
