"""Graphs whose edges are cut little by little, for explanations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops import Reduce, attend, spmm
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.node_mask import NodeMask
from knockgraph.strategies.view import PerturbedGraphs


@dataclass(frozen=True)
class CutEdges:
    """The edges of one relation that a deletion removes.

    Attributes:
        source: int64 ``[edges]``.
        target: int64 ``[edges]``.
        weight: float64 ``[edges]``, or ``None`` without weights.
        rows: int64 ``[rows]``: the genes that lose an edge.
        into: int64 ``[3, all edges into rows]``: source, position in ``rows``, position among the cut edges or −1.
        degree: float64 ``[num_genes]``: incoming edges of every gene.
    """

    source: Tensor
    target: Tensor
    weight: Tensor | None
    rows: Tensor
    into: Tensor
    degree: Tensor

    @staticmethod
    def of(edge_index: Tensor, weight: Tensor | None, genes: Tensor, num_genes: int, incoming_only: bool) -> CutEdges:
        """Those that touch ``genes``.

        Args:
            edge_index: int64 ``[2, edges]``.
            weight: ``[edges]`` or ``None``.
            genes: int64, the deleted genes.
            num_genes: Genes of the graph.
            incoming_only: Whether a deleted gene keeps its outgoing edges.
        """
        source, target = edge_index
        cut = torch.isin(target, genes)
        if not incoming_only:
            cut |= torch.isin(source, genes)
        place = torch.where(cut, cut.long().cumsum(0) - 1, -1)
        rows = torch.unique(target[cut])
        near = torch.isin(target, rows)
        into = torch.stack([source[near], torch.searchsorted(rows, target[near]), place[near]])
        degree = torch.zeros(num_genes, dtype=torch.float64).index_add(0, target, torch.ones_like(target).double())
        return CutEdges(source[cut], target[cut], None if weight is None else weight[cut].double(), rows, into, degree)

    def vanishing(self) -> set[float]:
        """Of the genes that lose all of their k > 1 edges, 1 / k: where the factors of a gene's edges add up to 1."""
        row, cut = self.into[1], (self.into[2] >= 0).long()
        lost = torch.zeros(len(self.rows), dtype=torch.long).index_add(0, row, cut)
        every = torch.bincount(row, minlength=len(self.rows))
        return {1 / k for k in torch.unique(every[lost == every]).tolist() if k > 1}

    def __len__(self) -> int:
        return len(self.source)


class PartlyCutGraphs(PerturbedGraphs):
    r"""A path of graphs from the wild type to a deletion: every edge e that the deletion removes has a factor
    :math:`s_e` of its own, 1 where it is whole and 0 where it is gone,

    .. math:: \mathrm{aggregate}(x)_i = \sum_{e = (j \to i)} s_e w_e x_j, \qquad
        \mathrm{mean}(x)_i = \frac{\sum_e s_e w_e x_j}{\max(\sum_e s_e, 1)},

    attention has weights proportional to :math:`s_e \exp(\mathrm{logit}_e)`, times :math:`\min(\sum_e s_e, 1)`. At
    s = 1 this is the wild type, at s = 0 the deletion, and in between it is continuous: no mean jumps when the last
    neighbour goes. The product with all edges is computed once, and the removed ones are corrected.

    Args:
        strategy: The shared graph.
        batch: A column for each point of the path; the last is the wild type.
        edges: Of each relation.
        scale: Of each relation :math:`s`, ``[edges, columns - 1]``.
        keep: What pooling sees: bool, or float where genes leave it little by little; ``[num_genes, columns]``.
        dose: What reactions see, ``[num_genes, columns]``.

    Attributes:
        clamped: The relations in which a mean or attention was asked for, see :meth:`CutEdges.vanishing`.
    """

    strategy: NodeMask

    def __init__(
        self,
        strategy: NodeMask,
        batch: PerturbationBatch,
        edges: list[CutEdges],
        scale: list[Tensor],
        keep: Tensor,
        dose: Tensor,
    ) -> None:
        super().__init__(strategy, batch)
        self.edges = edges
        self.scale = scale
        self.keep = keep
        self._dose = dose
        self.clamped: set[int] = set()

    @property
    def graded(self) -> bool:
        """Always: rows of different columns differ."""
        return True

    @property
    def reactions_alive(self) -> Tensor:
        """Those of the wild type: a reaction whose genes are on their way out is still there."""
        if self._alive is None:
            self._alive = self._metabolism().reactions_alive(torch.ones_like(self.keep, dtype=torch.bool))
        return self._alive

    def attend(self, relation: str, source: Tensor, target: Tensor, attention: Tensor, slope: float = 0.2) -> Tensor:
        """See :class:`PerturbedGraphs`; the rows that lose an edge are computed edge by edge."""
        r = self.strategy.relation_number(relation)
        edges = self.edges[r]
        self.clamped.add(r)
        source, target = self._with_batch(source), self._with_batch(target)
        whole = attend(self.strategy.operator(r), source, target, attention, slope=slope)
        if not len(edges):
            return whole
        sender, row, place = edges.into
        s = torch.cat([self._missing(r, source.dtype) + 1, source.new_ones(1, source.shape[1])])[place]
        sent = source[sender]
        logit = torch.nn.functional.leaky_relu(sent + target[edges.rows][row], slope).mul(attention).sum(-1)
        shape = (len(edges.rows), *logit.shape[1:])
        index = row.view(-1, 1, 1).expand_as(logit)
        most = logit.detach().new_full(shape, -torch.inf).scatter_reduce(0, index, logit.detach(), "amax")
        strength = s.unsqueeze(-1) * (logit - most[row]).exp()
        total = strength.new_zeros(shape).index_add(0, row, strength)
        share = strength / torch.where(total > 0, total, total.new_ones(()))[row]
        left = s.new_zeros(len(edges.rows), s.shape[1]).index_add(0, row, s).clamp(max=1)
        y = sent.new_zeros(len(edges.rows), *sent.shape[1:]).index_add(0, row, share.unsqueeze(-1) * sent)
        return whole.index_copy(0, edges.rows, y * left[..., None, None])

    def degree(self, relation: str) -> Tensor:
        """The sum of the factors of the incoming edges, ``[num_genes, columns]``."""
        r = self.strategy.relation_number(relation)
        return self._degree(r)

    def _reduced(self, r: int, x: Tensor, reduce: Reduce) -> Tensor:
        if reduce not in ("sum", "mean"):
            raise StrategyError(f"a model that takes the {reduce} over neighbours cannot be explained edge by edge")
        edges = self.edges[r]
        y = spmm(self.strategy.operator(r), x)
        if len(edges):
            factor = self._missing(r, x.dtype).unsqueeze(-1)
            if edges.weight is not None:
                factor = factor * edges.weight.to(x.dtype)[:, None, None]
            y = y.index_add(0, edges.target, factor * x[edges.source])
        if reduce == "sum":
            return y
        self.clamped.add(r)
        return y / self._degree(r).to(x.dtype).clamp(min=1).unsqueeze(-1)

    def _missing(self, r: int, dtype: torch.dtype) -> Tensor:
        """``s − 1`` of the cut edges, ``[edges, columns]``; 0 for the wild type."""
        return torch.nn.functional.pad(self.scale[r].to(dtype) - 1, (0, 1))

    def _degree(self, r: int) -> Tensor:
        edges = self.edges[r]
        whole = edges.degree.unsqueeze(1).expand(-1, self.keep.shape[1])
        return whole.index_add(0, edges.target, self._missing(r, torch.float64)) if len(edges) else whole

    def _aggregate(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        raise NotImplementedError  # see _reduced

    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        raise NotImplementedError  # see attend

    def _edge_mask(self, r: int) -> Tensor:
        raise StrategyError("edges that are cut in part have no mask")
