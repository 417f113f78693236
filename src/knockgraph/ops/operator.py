"""The shared adjacency in the form that the kernels read: CSR by destination and, for gradients, by source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from knockgraph.errors import GraphError

_INT32_MAX = 2**31 - 1
# A relation is multiplied as a dense matrix if it has at least this share of all possible edges, and so many that it
# pays: on an H200 (bf16, batch 29 × 64 channels) an edge takes 0.26 ps per column of x, an entry of a matrix 2.3 fs.
_CROWDED_SHARE = 0.0125
_CROWDED_EDGES = 100_000
_ALIGNED = 8  # elements of a row of 16 bytes, in half precision


class CsrTable(NamedTuple):
    """One sparse matrix by rows: row ``i`` holds ``indices[ptr[i]:ptr[i + 1]]``, ascending.

    Args:
        ptr: int32 [panels * rows + 1].
        indices: int32 [num_entries], column of each entry, counted within its panel.
        weight: floating [num_entries], or None for ones.
        order: int32 [rows], the rows by descending length, so that long rows start first on a GPU.
        panels: The matrix may be cut into panels of consecutive columns, stored one after the other and summed by the
            product. Panels keep the gathered block of the dense operand in the cache of a CPU; 1 means not cut.
    """

    ptr: Tensor
    indices: Tensor
    weight: Tensor | None
    order: Tensor
    panels: int = 1


class SplitOperator(NamedTuple):
    """Stacked relations in two parts.

    Args:
        sparse: All relations, but without the edges of the crowded ones, whose rows its ``order`` leaves out.
        sparse_transposed: Its transpose.
        matrices: Crowded relations, neighbours in the stack as one [k * num_destinations, num_sources rounded up].
        first: The row of the stack where each matrix begins.
    """

    sparse: CsrTable
    sparse_transposed: CsrTable
    matrices: list[Tensor]
    first: list[int]


class SparseOperator(nn.Module):
    r"""``A`` with :math:`(A x)_i = \sum_{j \to i} w_{ji} x_j`, one relation or several stacked into one operator.

    It holds tables only: no parameters, and all tensors are non-persistent buffers, so they move with ``.to()`` and
    stay out of checkpoints. Build it with :meth:`from_edge_index` or :meth:`stack`; treat it as immutable.

    Stacked relations give one matrix of shape [num_relations * num_destinations, num_sources]. Its transpose
    [num_sources, num_relations * num_destinations] is a matrix of its own, so the gradient is one product as well.
    On the CPU the transpose is kept a second time, cut into one panel per relation, because a block of all relations
    does not fit the cache; that copy is dropped when the operator moves to another device.

    Args:
        edge_indices: One int64 [2, E_r] (row 0 source, row 1 destination) per relation, without repeated edges.
        num_sources: Number of rows of ``x``.
        num_destinations: Number of rows of the result.
        weights: One [E_r] tensor or None per relation; None counts as ones beside weighted relations.
        stacked: Whether results carry a leading relation axis.

    Example:
        >>> operator = SparseOperator.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 2]]), num_sources=3)
        >>> operator
        SparseOperator(relations=1, destinations=3, sources=3, entries=3, weighted=False)
    """

    destination_ptr: Tensor
    destination_index: Tensor
    destination_weight: Tensor | None
    destination_order: Tensor
    source_ptr: Tensor | None
    source_index: Tensor | None
    source_weight: Tensor | None
    source_order: Tensor
    panel_ptr: Tensor | None
    panel_index: Tensor | None
    panel_weight: Tensor | None

    def __init__(
        self,
        edge_indices: Sequence[Tensor],
        num_sources: int,
        num_destinations: int,
        weights: Sequence[Tensor | None],
        stacked: bool,
    ) -> None:
        super().__init__()
        self.num_relations = len(edge_indices)
        self.num_sources = num_sources
        self.num_destinations = num_destinations
        self.stacked = stacked
        self._split: dict[torch.dtype, SplitOperator] = {}
        self._crowded = _crowded(edge_indices, num_sources * num_destinations)
        relation, source, destination, weight = _concatenate(edge_indices, weights, num_sources, num_destinations)
        num_rows = self.num_relations * num_destinations
        if max(source.numel(), num_rows, num_sources) > _INT32_MAX:
            raise GraphError("A sparse operator holds at most 2**31 - 1 edges and rows; split the relations.")
        row = relation * num_destinations + destination

        forward = _compress(row, source, weight, num_rows, num_sources)
        if forward.repeated:
            raise GraphError(f"{forward.repeated} edges are repeated; remove duplicates before building an operator.")
        transposed = _compress(source, row, weight, num_sources, num_rows)
        # A symmetric relation is its own transpose: keep one copy.
        shared = forward.same_as(transposed)
        self._set("destination_ptr", forward.ptr)
        self._set("destination_index", forward.indices)
        self._set("destination_weight", forward.weight)
        self._set("destination_order", _longest_first(forward.ptr))
        self._set("source_ptr", None if shared else transposed.ptr)
        self._set("source_index", None if shared else transposed.indices)
        self._set("source_weight", None if shared else transposed.weight)
        self._set("source_order", _longest_first(transposed.ptr))
        panel = None
        if self.num_relations > 1 and source.device.type == "cpu":
            panel = _compress(
                relation * num_sources + source, destination, weight, self.num_relations * num_sources, num_destinations
            )
            if panel.same_as(forward):
                panel = forward
        self._set("panel_ptr", panel.ptr if panel else None)
        self._set("panel_index", panel.indices if panel else None)
        self._set("panel_weight", panel.weight if panel else None)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor,
        num_sources: int,
        num_destinations: int | None = None,
        weight: Tensor | None = None,
    ) -> SparseOperator:
        """One relation: x [num_sources, batch, channels] -> [num_destinations, batch, channels].

        Args:
            edge_index: int64 [2, E], row 0 source, row 1 destination.
            num_sources: Number of source nodes.
            num_destinations: Number of destination nodes; the same as ``num_sources`` unless given.
            weight: [E] in the order of ``edge_index``, or None. It gets no gradient.
        """
        destinations = num_sources if num_destinations is None else num_destinations
        return cls([edge_index], num_sources, destinations, [weight], stacked=False)

    @classmethod
    def stack(
        cls,
        edge_indices: Sequence[Tensor],
        num_sources: int,
        num_destinations: int | None = None,
        weights: Sequence[Tensor | None] | None = None,
    ) -> SparseOperator:
        """Several relations: x [num_sources, batch, channels] -> [relations, num_destinations, batch, channels].

        Args:
            edge_indices: One int64 [2, E_r] per relation, in the order of the result.
            num_sources: Number of source nodes.
            num_destinations: Number of destination nodes; the same as ``num_sources`` unless given.
            weights: One [E_r] or None per relation, or None for no weights at all.
        """
        destinations = num_sources if num_destinations is None else num_destinations
        return cls(edge_indices, num_sources, destinations, weights or [None] * len(edge_indices), stacked=True)

    @property
    def by_destination(self) -> CsrTable:
        """``A`` itself, [num_relations * num_destinations, num_sources]."""
        return CsrTable(
            self.destination_ptr, self.destination_index, self.destination_weight, self.destination_order, 1
        )

    @property
    def by_source(self) -> CsrTable:
        """The transpose, [num_sources, num_relations * num_destinations], in one piece."""
        if self.source_ptr is None or self.source_index is None:  # symmetric
            return self.by_destination
        return CsrTable(self.source_ptr, self.source_index, self.source_weight, self.source_order, 1)

    @property
    def by_source_in_panels(self) -> CsrTable:
        """The transpose with one panel per relation where it is kept so, else :attr:`by_source`."""
        if self.panel_ptr is None or self.panel_index is None:
            return self.by_source
        return CsrTable(self.panel_ptr, self.panel_index, self.panel_weight, self.source_order, self.num_relations)

    def split_for(self, x: Tensor) -> SplitOperator | None:
        """The form in which crowded relations are dense, where that is faster for such an ``x``, else ``None``.

        Made when it is first needed, but neither inside a compiler nor while a CUDA graph is being recorded.
        """
        if not self._crowded or self.destination_weight is not None or x.dtype not in (torch.bfloat16, torch.float16):
            return None
        if x.dtype not in self._split:
            if torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
                return None
            self._split[x.dtype] = self.split(self._crowded, x.dtype)
        return self._split[x.dtype]

    def split(self, dense: Sequence[int], dtype: torch.dtype) -> SplitOperator:
        """The relations numbered ``dense``, ascending and without weights, as dense matrices."""
        rows, device = self.num_destinations, self.destination_index.device
        chosen = torch.zeros(self.num_relations, dtype=torch.bool, device=device)
        chosen[list(dense)] = True
        length = (self.destination_ptr[1:] - self.destination_ptr[:-1]).long()
        row = torch.repeat_interleave(length)
        matrices, first = [], []
        for number, relation in enumerate(dense):
            if number and dense[number - 1] == relation - 1:
                continue  # part of the matrix before
            last = relation
            while last + 1 in dense:
                last += 1
            start, stop = self.destination_ptr[relation * rows], self.destination_ptr[(last + 1) * rows]
            matrix = torch.zeros(
                (last + 1 - relation) * rows, -(-self.num_sources // _ALIGNED) * _ALIGNED, dtype=dtype, device=device
            )
            matrix[row[start:stop] - relation * rows, self.destination_index[start:stop].long()] = 1
            matrices.append(matrix)
            first.append(relation * rows)
        sparse, transposed = _without(self.by_destination, chosen[row // rows]), self.by_source
        return SplitOperator(
            sparse._replace(order=sparse.order[~chosen[sparse.order.long() // rows]]),
            _without(transposed, chosen[transposed.indices.long() // rows]),
            matrices,
            first,
        )

    @property
    def num_entries(self) -> int:
        """Number of edges of all relations."""
        return self.destination_index.numel()

    @property
    def nbytes(self) -> int:
        """Bytes held on the device; tables that share memory count once."""
        return sum({buffer.data_ptr(): buffer.nbytes for buffer in self.buffers()}.values()) + self.split_nbytes

    @property
    def split_nbytes(self) -> int:
        """Bytes of what :meth:`split_for` has made so far."""
        parts = [part for s in self._split.values() for part in (*s.sparse, *s.sparse_transposed, *s.matrices)]
        return sum(part.nbytes for part in parts if isinstance(part, Tensor))

    def extra_repr(self) -> str:
        """The sizes, for ``repr``."""
        return (
            f"relations={self.num_relations}, destinations={self.num_destinations}, sources={self.num_sources}, "
            f"entries={self.num_entries}, weighted={self.destination_weight is not None}"
        )

    def _set(self, name: str, value: Tensor | None) -> None:
        self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> SparseOperator:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._split.clear()
        if self.destination_ptr.device.type != "cpu":
            self.panel_ptr = self.panel_index = self.panel_weight = None
        return self


def _crowded(edge_indices: Sequence[Tensor], possible: int) -> tuple[int, ...]:
    """Relations that are worth a dense matrix."""
    enough = max(_CROWDED_EDGES, _CROWDED_SHARE * possible)
    return tuple(number for number, edges in enumerate(edge_indices) if edges.shape[-1] >= enough)


def _without(table: CsrTable, dropped: Tensor) -> CsrTable:
    """A table without some of its entries."""
    kept = torch.nn.functional.pad((~dropped).cumsum(0), (1, 0))
    ptr = kept[table.ptr.long()].int()
    return CsrTable(ptr, table.indices[~dropped], None, _longest_first(ptr), 1)


class _Compressed(NamedTuple):
    ptr: Tensor
    indices: Tensor
    weight: Tensor | None
    repeated: int

    def same_as(self, other: _Compressed) -> bool:
        if (self.weight is None) != (other.weight is None):
            return False
        weights = True if self.weight is None or other.weight is None else torch.equal(self.weight, other.weight)
        return weights and torch.equal(self.ptr, other.ptr) and torch.equal(self.indices, other.indices)


def _compress(row: Tensor, column: Tensor, weight: Tensor | None, num_rows: int, num_columns: int) -> _Compressed:
    """Sort entries by (row, column) and count rows."""
    key, position = (row * max(num_columns, 1) + column).sort()
    ptr = torch.zeros(num_rows + 1, dtype=torch.int32, device=row.device)
    ptr[1:] = torch.bincount(row, minlength=num_rows).cumsum(0)
    repeated = int((key[1:] == key[:-1]).sum())
    sorted_weight = None if weight is None else weight[position].contiguous()
    return _Compressed(ptr, column[position].int(), sorted_weight, repeated)


def _longest_first(ptr: Tensor) -> Tensor:
    return (ptr[1:] - ptr[:-1]).sort(descending=True, stable=True).indices.int()


def _concatenate(
    edge_indices: Sequence[Tensor], weights: Sequence[Tensor | None], num_sources: int, num_destinations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Relation number, source, destination and weight of all edges, checked."""
    if not edge_indices:
        raise GraphError("A sparse operator needs at least one relation; an empty [2, 0] edge_index is one.")
    if len(weights) != len(edge_indices):
        raise GraphError(f"{len(edge_indices)} relations but {len(weights)} weights; give None for one without.")
    for number, (edges, weight) in enumerate(zip(edge_indices, weights, strict=True)):
        if edges.dim() != 2 or edges.shape[0] != 2 or edges.dtype != torch.int64:
            raise GraphError(
                f"edge_index of relation {number} must be int64 of shape [2, E], not {edges.dtype} {list(edges.shape)}."
            )
        if weight is not None and weight.shape != edges.shape[1:]:
            raise GraphError(f"Relation {number} has {edges.shape[1]} edges but weights of shape {list(weight.shape)}.")
        for side, limit, end in (("source", num_sources, edges[0]), ("destination", num_destinations, edges[1])):
            if end.numel() and not 0 <= int(end.min()) <= int(end.max()) < limit:
                raise GraphError(
                    f"Relation {number} has a {side} outside 0..{limit - 1} (it spans {int(end.min())} to "
                    f"{int(end.max())})."
                )
    edges = torch.cat(list(edge_indices), dim=1)
    relation = torch.cat([e.new_full((e.shape[1],), number) for number, e in enumerate(edge_indices)])
    weight = None
    given = [w for w in weights if w is not None]
    if given:
        ones = [
            given[0].new_ones(e.shape[1]) if w is None else w.detach()
            for e, w in zip(edge_indices, weights, strict=True)
        ]
        weight = torch.cat(ones)
    return relation, edges[0], edges[1], weight
