"""How similar genes are by each network and each table of features: numbers from 0 (or −1) to 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph, Relation
from knockgraph.graph.structural_features import FEATURES

RESTART = 0.5
_STEPS = 20  # the rest of the walk after them is below (1 − RESTART)^20 ≈ 1e-6
_BLOCK = 256  # genes whose walks are followed at once: they stay in the cache
DIRECTIONS = 50
"""Leading singular directions that a wide feature is also compared by."""


@dataclass(frozen=True, eq=False)
class Similarities:
    r"""Unit vectors of every gene, one table per network and feature, whose inner products are the similarities

    .. math:: c_r(i, k) = \cos(s_{r,i}, s_{r,k}) .

    Of a network, :math:`s_i = \log(1 + N q_i)`, where :math:`q_i` is the distribution of a random walk from i with
    restart. Of a
    feature, :math:`s_i` is gene i's row; a feature with more than :data:`DIRECTIONS` columns also gives a second table,
    of its leading singular directions. A gene without any edge or value has the vector 0.

    Attributes:
        names: Of the tables.
        sharpness: T of each table, see :func:`kernel`.
        tables: Float32 ``[genes, width]`` each.
    """

    names: tuple[str, ...]
    sharpness: Tensor
    tables: tuple[Tensor, ...]

    @staticmethod
    def of(
        graph: CellGraph,
        genes: Tensor,
        relations: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        device: torch.device | str = "cpu",
        more: Mapping[str, Tensor] = {},
    ) -> Similarities:
        """Those of some genes of a graph.

        Args:
            graph: The cell graph; walks go over all of its genes.
            genes: int64 ``[genes]``, rows of the graph.
            relations: Names of the networks; by default all that have edges.
            features: Names of the features; by default all but those that repeat the networks
                (``degree``, ``spectral``, ``diffusion``).
            device: Where the work is done and the tables lie.
            more: Features beside those of the graph, name → ``[num_genes, columns]``.
        """
        names: list[str] = []
        sharpness: list[float] = []
        tables: list[Tensor] = []
        for name in _chosen("relation", relations, list(graph.relations), list(graph.relations)):
            if graph.relations[name].num_edges:
                names.append(name)
                sharpness.append(5.0)
                tables.append(_unit(walks(graph.relations[name], genes, device)))
        given = [name for name in graph.features if name not in FEATURES]
        chosen = _chosen("feature", features, list(graph.features), given)
        for name, feature in ({name: graph.features[name] for name in chosen} | dict(more)).items():
            x = feature.to(device, torch.float32)
            names.append(name)
            sharpness.append(2.0)
            tables.append(_unit(x[genes]))
            if x.shape[1] > DIRECTIONS:
                names.append(f"{name}, {DIRECTIONS} directions")
                sharpness.append(4.0)
                tables.append(_unit(_directions(x)[genes]))
        return Similarities(tuple(names), torch.tensor(sharpness, device=device), tuple(tables))

    def to(self, other: Similarities) -> Tensor:
        """Of these genes to those of another, ``[tables, genes, others]``."""
        if not self.tables:
            return torch.zeros(0, 0, 0, device=self.sharpness.device)
        return torch.stack([own @ others.T for own, others in zip(self.tables, other.tables, strict=True)])


def kernel(similarity: Tensor, sharpness: Tensor, weight: Tensor | None = None) -> Tensor:
    r""":math:`\sum_r w_r e^{T_r (c_r - 1)}`; by default the mean, 1 for a gene and itself.

    Args:
        similarity: c, ``[tables, first, second]``.
        sharpness: T, ``[tables]``. Larger values trust only the most similar genes.
        weight: w, ``[tables]``.
    """
    if len(similarity) == 0:
        return similarity.new_zeros(similarity.shape[1:])
    weight = torch.full_like(sharpness, 1 / len(sharpness)) if weight is None else weight
    total = similarity.new_zeros(similarity.shape[1:])
    for c, t, w in zip(similarity, sharpness, weight, strict=True):  # one table at a time: they are large
        total = total + w * torch.exp(t * (c - 1))
    return total


def walks(relation: Relation, genes: Tensor, device: torch.device | str = "cpu") -> Tensor:
    r""":math:`\log(1 + N q_i)` of random walks that start at each of ``genes``, float32 ``[genes, num_genes]``.

    A walk takes any edge of the gene it is at (in both directions, in proportion to the weights) and returns to its
    start with probability :math:`\alpha = 1/2` at every step: :math:`q = \alpha e + (1 - \alpha) W^\top q`. A gene
    without edges ends a walk.
    """
    step = _step(relation).to(device)
    blocks = []
    for part in torch.split(genes, _BLOCK):
        start = torch.zeros(relation.num_genes, len(part), device=device)
        start[part, torch.arange(len(part))] = 1.0
        found = start
        for _ in range(_STEPS):
            found = RESTART * start + (1 - RESTART) * (step @ found)
        blocks.append((found * relation.num_genes).log1p_().T)
    return torch.cat(blocks) if blocks else torch.zeros(0, relation.num_genes, device=device)


def _step(relation: Relation) -> Tensor:
    """:math:`W^T`, sparse: column = from, row = to; columns sum to 1 where a gene has an edge to another."""
    import warnings

    n = relation.num_genes
    source, target = relation.edge_index
    weight = torch.ones(len(source)) if relation.weight is None else relation.weight.float().clamp(min=0)
    other = source != target
    key = torch.cat([source[other] * n + target[other], target[other] * n + source[other]])
    edge, place = torch.unique(key, return_inverse=True)
    both = torch.zeros(len(edge)).scatter_reduce(0, place, weight[other].repeat(2), "amax")
    start, end = edge // n, edge % n
    total = torch.zeros(n).index_add(0, start, both)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its CSR tensors a prototype
        index, value = torch.stack([end, start]), both / total[start].clamp(min=1e-12)
        step: Tensor = torch.sparse_coo_tensor(index, value, (n, n), check_invariants=False).coalesce().to_sparse_csr()
        return step


def _directions(x: Tensor) -> Tensor:
    r"""The first rows of :math:`U \Sigma^{1/2}`, ``[genes, DIRECTIONS]``; by the smaller of the two Gram matrices."""
    value, vector = torch.linalg.eigh((x.T @ x if x.shape[0] >= x.shape[1] else x @ x.T).double())
    value, vector = value.flip(0)[:DIRECTIONS].clamp(min=0), vector.flip(1)[:, :DIRECTIONS]
    root = value.sqrt()
    if x.shape[0] >= x.shape[1]:
        vector = x.double() @ vector / root.clamp(min=1e-9)
    directions: Tensor = (vector * root.sqrt()).float()
    return directions


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=1)


def _chosen(what: str, asked: Sequence[str] | None, there: Sequence[str], default: Sequence[str]) -> Sequence[str]:
    unknown = [name for name in asked or () if name not in there]
    if unknown:
        raise ModelError(f"the graph has no {what} {unknown[0]!r}; it has {', '.join(there) or 'none'}")
    return default if asked is None else asked
