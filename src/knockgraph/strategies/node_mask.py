"""Strategy ``node-mask``, the default: no edge masks at all, one shared sparse product for the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.ops import (
    DistinctRows,
    Reduce,
    SparseOperator,
    attend,
    masked_degree,
    spmm,
    spmm_shared,
    spmm_shared_rows,
    touched_rows,
)
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.strategy import Direction, Strategy
from knockgraph.strategies.view import PerturbedGraphs


class NodeMask(Strategy):
    r"""Deleting genes removes every edge that touches them, so with the keep-vector :math:`m` of a sample

    .. math:: \mathrm{aggregate}(x) = m \odot A (m \odot x)

    exactly, with one shared :math:`A`: a batch is one sparse product with ``batch · channels`` columns. Doses take the
    place of :math:`m`.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        backend: Which kernel, see :func:`knockgraph.ops.spmm`.
    """

    name = "node-mask"
    placement = "device"
    abilities = frozenset({"doses", "gradients at 0", "static shapes"})

    def __init__(self, graph: CellGraph, direction: Direction = "both", backend: str = "auto") -> None:
        super().__init__(graph, direction)
        self.backend = backend
        relations = list(graph.relations.values())
        edges, weights = [r.edge_index for r in relations], [r.weight for r in relations]
        self.single = torch.nn.ModuleList(
            SparseOperator.from_edge_index(e, graph.num_genes, weight=w) for e, w in zip(edges, weights, strict=True)
        )
        self.stacked = SparseOperator.stack(edges, graph.num_genes, weights=weights) if relations else None
        # Only for edge_mask(), which is for checks; kept on the host.
        self._edge_index = edges

    def operator(self, r: int) -> SparseOperator:
        """The adjacency of relation ``r``."""
        operator = self.single[r]
        assert isinstance(operator, SparseOperator)
        return operator

    def memory(self) -> dict[str, int]:
        """See :class:`Strategy`; relations that are multiplied as dense matrices count once they were."""
        parts = super().memory()
        operators = [module for module in self.modules() if isinstance(module, SparseOperator)]
        if dense := sum(operator.split_nbytes for operator in operators):
            parts["dense relations"] = dense
        return parts

    def _view(self, batch: PerturbationBatch) -> NodeMaskedGraphs:
        return NodeMaskedGraphs(self, batch)


class NodeMaskedGraphs(PerturbedGraphs):
    """Keep-vectors only; every aggregation is a masked product with the shared adjacency."""

    strategy: NodeMask
    _attends_shared = True

    def __init__(self, strategy: NodeMask, batch: PerturbationBatch) -> None:
        super().__init__(strategy, batch)
        # With direction="in" a deleted gene still sends to its neighbours.
        self.keep_source = self.keep if strategy.direction == "both" else None
        self._degrees: dict[int, Tensor] = {}
        self._rows: DistinctRows | None = None

    def aggregate_all(self, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """See :class:`PerturbedGraphs`; one product for all relations."""
        operator = self.strategy.stacked
        if operator is None or self.graded:
            return super().aggregate_all(x, reduce)
        degree = self._degrees_of_all() if reduce == "mean" else None
        if x.dim() == 2 and reduce in ("sum", "mean"):
            return self._shared(operator, x, degree)
        return self._product(operator, self._expanded(x), reduce, degree)

    def aggregate_unmasked(self, x: Tensor, reduce: Reduce = "sum") -> tuple[Tensor, Tensor | None]:
        """See :class:`PerturbedGraphs`; spares the sum, and above all its gradient, a pass over all relations."""
        operator = self.strategy.stacked
        if operator is None or self.graded or x.dim() == 2 or reduce != "sum":
            return super().aggregate_unmasked(x, reduce)
        x = self._expanded(x)
        return spmm(operator, x, scale_in=self.keep_source, backend=self.strategy.backend), self.keep

    def aggregate_rows(self, x: Tensor, reduce: Reduce, rows: DistinctRows) -> Tensor:
        """See :class:`PerturbedGraphs`; the other rows are not made."""
        operator = self.strategy.stacked
        able = x.dtype in (torch.float32, torch.float64) if rows.count is None else rows.backend == "triton"
        if self.graded or operator is None or x.dim() == 3 or reduce not in ("sum", "mean") or not able:
            return super().aggregate_rows(x, reduce, rows)
        return spmm_shared_rows(
            operator,
            x,
            self.deletions.perturbation_indices,
            self.deletions.perturbation_indices_batch,
            rows,
            scale_out=self._scale(self._degrees_of_all() if reduce == "mean" else None, x.dtype),
            mask_in=self.strategy.direction == "both",
        )

    def aggregate(self, relation: str, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """See :class:`PerturbedGraphs`."""
        if x.dim() == 2 and reduce in ("sum", "mean") and not self.graded:
            r = self.strategy.relation_number(relation)
            return self._shared(self.strategy.operator(r), x, self._degree(r) if reduce == "mean" else None)
        return super().aggregate(relation, x, reduce)

    def aggregate_scaled(self, relations: Sequence[str], x: Tensor, factors: Tensor) -> Tensor:
        """See :class:`PerturbedGraphs`; the factors take the place of the keep-vectors, so they cost nothing."""
        if self.graded:
            return super().aggregate_scaled(relations, x, factors)
        x, kept = self._expanded(x).contiguous(), factors * self.keep
        sent = factors if self.keep_source is None else kept
        operators = [self.strategy.operator(self.strategy.relation_number(name)) for name in relations]
        sums = (
            spmm(operator, x, scale_in=scale_in, scale_out=scale_out, backend=self.strategy.backend)
            for operator, scale_in, scale_out in zip(operators, sent, kept, strict=True)
        )
        return torch.stack(list(sums))

    def distinct_rows(self) -> DistinctRows | None:
        """See :class:`PerturbedGraphs`."""
        if self.graded:
            return None  # a row that stands for others would take the gradient of their doses
        if self._rows is None and self.strategy.stacked is not None:
            touched = touched_rows(
                self.strategy.stacked,
                self.keep,
                self.deletions.perturbation_indices,
                self.deletions.perturbation_indices_batch,
                send=self.strategy.direction == "both",
                backend=self.strategy.backend,
            )
            self._rows = DistinctRows(touched, self.strategy.backend)
        return self._rows

    def _shared(self, operator: SparseOperator, x: Tensor, degree: Tensor | None) -> Tensor:
        """The samples share x: the wild type once, then a correction at the neighbours of the deleted genes."""
        self._expanded(x)  # only to check its shape
        return spmm_shared(
            operator,
            x,
            self.deletions.perturbation_indices,
            self.deletions.perturbation_indices_batch,
            self.batch.num_columns,
            scale_out=self._scale(degree, x.dtype),
            mask_in=self.strategy.direction == "both",
            backend=self.strategy.backend,
        )

    def _scale(self, degree: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What a sum is multiplied with: the keep-vector, for a mean over the degree."""
        precision = torch.float64 if dtype == torch.float64 else torch.float32  # 1 / degree is rounded
        return self.keep if degree is None else self.keep / degree.to(precision).clamp(min=1)

    def _degrees_of_all(self) -> Tensor:
        return torch.stack([self._degree(r) for r in range(len(self.strategy.relation_names))])

    def _product(self, operator: SparseOperator, x: Tensor, reduce: Reduce, degree: Tensor | None) -> Tensor:
        return spmm(
            operator,
            x,
            scale_in=self.keep_source,
            scale_out=self.keep,
            reduce=reduce,
            degree=degree,
            backend=self.strategy.backend,
        )

    def _aggregate(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        degree = self._degree(r) if reduce == "mean" else None
        return self._product(self.strategy.operator(r), x, reduce, degree)

    def _unscaled(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        """See :class:`PerturbedGraphs`; where a gradient is asked for, the edges of deleted genes are there for it."""
        operator, backend = self.strategy.operator(r), self.strategy.backend
        kept = self.keep_source if reduce in ("max", "min") or not self.dose.requires_grad else None
        return spmm(operator, x, scale_in=kept, reduce=reduce, weighted=weighted, backend=backend)

    def _unscaled_attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        """The same for attention."""
        if not self.dose.requires_grad:
            return self._attend(r, source, target, attention, slope)
        operator, backend = self.strategy.operator(r), self.strategy.backend
        y = attend(operator, source, target, attention, slope=slope, backend=backend)
        if self.strategy.direction == "in":
            return y
        there = (self._received_dose(r, y.dtype) > 0).unsqueeze(-1)
        return torch.where(there, y, y.new_zeros(()))

    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        return attend(
            self.strategy.operator(r),
            source,
            target,
            attention,
            slope=slope,
            keep_in=self.keep_source,
            keep_out=self.keep,
            backend=self.strategy.backend,
        )

    def _edge_mask(self, r: int) -> Tensor:
        source, target = self.strategy._edge_index[r].to(self.keep.device)
        mask = self.keep[target]
        return mask if self.strategy.direction == "in" else mask & self.keep[source]

    def _degree(self, r: int) -> Tensor:
        """Computed once per batch, shared by all layers."""
        if r in self._degrees:
            return self._degrees[r]
        every = torch.ones_like(self.keep) if self.keep_source is None else self.keep_source
        operator, backend = self.strategy.stacked, self.strategy.backend
        if operator is None or self.keep.device.type == "cpu":
            self._degrees[r] = masked_degree(self.strategy.operator(r), every, self.keep, backend=backend)
        else:  # a device waits for the longest rows, and all relations together take little more than one
            self._degrees.update(enumerate(masked_degree(operator, every, self.keep, backend=backend)))
        return self._degrees[r]
