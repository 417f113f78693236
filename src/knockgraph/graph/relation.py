"""One relation of the cell graph: a directed edge list over genes and the index tables derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from knockgraph.errors import GraphError


@dataclass(frozen=True)
class Csr:
    """Compressed rows: the entries of row ``r`` are ``index[ptr[r]:ptr[r + 1]]``, ascending.

    Attributes:
        ptr: int32 ``[rows + 1]``.
        index: int32 ``[entries]``, the other end of each edge.
        edge: int32 ``[entries]``, the edge's position in ``edge_index``.
    """

    ptr: Tensor
    index: Tensor
    edge: Tensor

    @property
    def degree(self) -> Tensor:
        """Entries per row, int32 ``[rows]``."""
        return self.ptr[1:] - self.ptr[:-1]


class Relation:
    r"""Edges :math:`e = (s_e \to d_e)` of one kind between genes, e.g. physical interactions.

    The order of the edges is the one given; duplicates after the first are removed (the first one's weight stays) and
    counted; self loops are ordinary edges. The tables are built on first use, without a Python loop over edges.

    Args:
        edge_index: Integer ``[2, num_edges]``, row 0 sources, row 1 destinations.
        num_genes: Number of genes; every index is below it.
        weight: Optional float ``[num_edges]``.
        name: Shown in error messages.
    """

    edge_index: Tensor
    weight: Tensor | None

    def __init__(self, edge_index: Tensor, num_genes: int, weight: Tensor | None = None, name: str = "") -> None:
        where = f"relation {name!r}: " if name else ""
        edge_index = _tensor(edge_index, f"{where}edge_index")
        if edge_index.dim() != 2 or edge_index.shape[0] != 2:
            raise GraphError(
                f"{where}edge_index has shape {list(edge_index.shape)}, but it needs [2, num_edges]: "
                "row 0 the sources, row 1 the destinations"
            )
        if edge_index.dtype.is_floating_point or edge_index.dtype.is_complex or edge_index.dtype == torch.bool:
            if edge_index.numel():
                raise GraphError(f"{where}edge_index has dtype {edge_index.dtype}, but gene indices are integers")
            edge_index = torch.empty(2, 0, dtype=torch.long)
        # A copy: the caller may change its tensor later, but the graph must not change.
        edge_index = edge_index.detach().to("cpu", torch.long, copy=True).contiguous()
        if edge_index.numel() and not (int(edge_index.min()) >= 0 and int(edge_index.max()) < num_genes):
            bad = ((edge_index < 0) | (edge_index >= num_genes)).any(0).nonzero()[0]
            source, target = edge_index[:, bad].flatten().tolist()
            raise GraphError(
                f"{where}edge {int(bad)} is ({source} → {target}), but gene indices run from 0 to {num_genes - 1}"
            )
        if weight is not None:
            weight = _tensor(weight, f"{where}weight")
            if weight.shape != (edge_index.shape[1],):
                raise GraphError(
                    f"{where}weight has shape {list(weight.shape)}, but there are {edge_index.shape[1]} edges"
                )
            if weight.dtype.is_complex:
                raise GraphError(f"{where}weight has dtype {weight.dtype}, but weights are real numbers")
            weight = weight.detach().to("cpu", copy=True)
            if not weight.dtype.is_floating_point:
                weight = weight.float()
            if not bool(weight.isfinite().all()):
                at = int((~weight.isfinite()).nonzero()[0])
                raise GraphError(
                    f"{where}weight {at} is {weight[at].item()}; remove the edge or give it a finite weight"
                )
        self.num_genes = num_genes
        self.num_duplicates = 0
        order = _order(edge_index[1], edge_index[0], num_genes)
        key = edge_index[1] * num_genes + edge_index[0]
        repeated = key[order][1:] == key[order][:-1]
        if bool(repeated.any()):
            first = torch.ones(edge_index.shape[1], dtype=torch.bool)
            first[order[1:][repeated]] = False  # the sort is stable: later ones of equal edges
            self.num_duplicates = int((~first).sum())
            edge_index = edge_index[:, first]
            weight = None if weight is None else weight[first]
        self.edge_index = edge_index
        self.weight = weight

    @property
    def num_edges(self) -> int:
        """Columns of ``edge_index``."""
        return int(self.edge_index.shape[1])

    @cached_property
    def by_destination(self) -> Csr:
        """Incoming edges: row = destination, index = source. The forward pass."""
        return _compress(self.edge_index[1], self.edge_index[0], self.num_genes)

    @cached_property
    def by_source(self) -> Csr:
        """Outgoing edges: row = source, index = destination. The backward pass."""
        return _compress(self.edge_index[0], self.edge_index[1], self.num_genes)

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge has its reverse with the same weight, so that one table serves both directions."""
        incoming, outgoing = self.by_destination, self.by_source
        if not (torch.equal(incoming.ptr, outgoing.ptr) and torch.equal(incoming.index, outgoing.index)):
            return False
        return self.weight is None or torch.equal(self.weight[incoming.edge], self.weight[outgoing.edge])

    @cached_property
    def incidence(self) -> tuple[Tensor, Tensor]:
        """Gene → positions of all edges that touch it, incoming first: int32 ``ptr [num_genes + 1]``, ``edge``.

        A self loop is listed once. Deleting gene ``g`` removes exactly ``edge[ptr[g]:ptr[g + 1]]``.
        """
        incoming, outgoing = self.by_destination, self.by_source
        source = torch.repeat_interleave(torch.arange(self.num_genes), outgoing.degree.long())
        other = outgoing.index != source  # a self loop is already among the incoming edges
        source, out_edge = source[other], outgoing.edge[other]
        out_degree = torch.bincount(source, minlength=self.num_genes)
        in_degree = incoming.degree.long()
        ptr = _pointer(in_degree + out_degree)
        edge = torch.empty(int(ptr[-1]), dtype=torch.int32)
        place = torch.arange(self.num_edges) + torch.repeat_interleave(ptr[:-1] - incoming.ptr[:-1].long(), in_degree)
        edge[place] = incoming.edge
        shift = ptr[:-1] + in_degree - _pointer(out_degree)[:-1]
        edge[torch.arange(len(source)) + torch.repeat_interleave(shift, out_degree)] = out_edge
        return ptr.int(), edge

    @property
    def num_genes_touched(self) -> int:
        """Genes with at least one edge."""
        return int(torch.unique(self.edge_index).numel())

    @property
    def num_self_loops(self) -> int:
        """Edges from a gene to itself."""
        return int((self.edge_index[0] == self.edge_index[1]).sum())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Relation) or self.num_genes != other.num_genes:
            return False
        if (self.weight is None) != (other.weight is None):
            return False
        return torch.equal(self.edge_index, other.edge_index) and (
            self.weight is None or other.weight is None or torch.equal(self.weight, other.weight)
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        weighted = ", weighted" if self.weight is not None else ""
        return f"Relation({self.num_genes} genes, {self.num_edges} edges{weighted})"


def _tensor(values: Any, what: str) -> Tensor:
    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise GraphError(f"{what} is not a tensor or a rectangular list of numbers: {error}") from error


def _order(row: Tensor, index: Tensor, num_genes: int) -> Tensor:
    """Stable order by (row, index); one integer key sorts several times faster than two passes."""
    if num_genes**2 >= 2**63:
        raise GraphError(f"{num_genes} genes are more than one sort key can hold; the limit is 3,037,000,499")
    key = row * num_genes + index
    return torch.sort(key if num_genes**2 >= 2**31 else key.int(), stable=True).indices


def _pointer(count: Tensor) -> Tensor:
    """Exclusive prefix sum with the total at the end, int64 ``[rows + 1]``."""
    ptr = torch.zeros(len(count) + 1, dtype=torch.long)
    torch.cumsum(count, 0, out=ptr[1:])
    return ptr


def _compress(row: Tensor, index: Tensor, num_genes: int) -> Csr:
    order = _order(row, index, num_genes)
    ptr = _pointer(torch.bincount(row, minlength=num_genes))
    return Csr(ptr.int(), index[order].int(), order.int())
