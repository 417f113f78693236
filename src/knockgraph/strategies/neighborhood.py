"""Strategy ``neighborhood``: only genes near a deletion are recomputed, all others keep their wild-type values."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph
from knockgraph.ops import Reduce, SparseOperator, spmm
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_masks import EdgeStrategy
from knockgraph.strategies.edge_reduce import attend_edges, count_edges, reduce_edges
from knockgraph.strategies.strategy import Direction
from knockgraph.strategies.view import PerturbedGraphs


class Neighborhood(EdgeStrategy):
    """Genes within ``hops`` of a sample's deletions are recomputed; the rest take the wild-type column's values.

    After :math:`l` layers only genes within :math:`l` hops of a deletion can differ from the wild type, so the result
    is exact for ``hops ≥ layers`` and an approximation below. A GCN divides by the degrees of its neighbours, which a
    deletion changes too, so it reaches one hop further. How far a model reaches is known to the model:
    ``strategy.exact_for(model.hops)``; training, evaluation and prediction ask that. The wild type must be a column of
    the batch (``batch.with_wild_type()``); without it there is nothing to borrow from and every gene is recomputed. So
    it is for samples whose features differ from the wild type's for another reason than their deletions: per-sample
    input, or dropout.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        hops: Radius of what is recomputed, over all relations.
        layers: How many hops the model reaches, for code that asks ``strategy.exact`` and has no model. A model of
            knockgraph that reaches further refuses the strategy.

    Attributes:
        exact: Whether ``hops ≥ layers``; False if ``layers`` is not given, since it depends on the model.
    """

    name = "neighborhood"
    placement = "device"
    abilities = frozenset()

    def __init__(
        self, graph: CellGraph, direction: Direction = "both", hops: int = 2, layers: int | None = None
    ) -> None:
        super().__init__(graph, direction)
        if hops < 0:
            raise StrategyError(f"hops={hops}, but it must be at least 0")
        self.hops = hops
        self.layers = layers
        for r, relation in enumerate(graph.relations.values()):
            incoming = relation.by_destination
            self.register_buffer(f"incoming_ptr_{r}", incoming.ptr.clone(), persistent=False)
            self.register_buffer(f"incoming_edge_{r}", incoming.edge.clone(), persistent=False)
        # One step along an edge of any relation.
        union = (
            torch.cat([relation.edge_index for relation in graph.relations.values()], 1) if graph.relations else None
        )
        merged = torch.empty(2, 0, dtype=torch.long) if union is None else torch.unique(union, dim=1)
        self.step = SparseOperator.from_edge_index(merged, graph.num_genes)

    @property
    def exact(self) -> bool:
        """See above."""
        return self.exact_for(self.layers)

    @property
    def receptive_field(self) -> int:
        """The radius."""
        return self.hops

    def incoming(self, r: int) -> tuple[Tensor, Tensor]:
        """``ptr [num_genes + 1]`` and positions of incoming edges of relation ``r``, int32."""
        return getattr(self, f"incoming_ptr_{r}"), getattr(self, f"incoming_edge_{r}")

    def near(self, keep: Tensor, hops: int) -> Tensor:
        """bool ``[num_genes, batch]``: genes within ``hops`` of a deletion, the deleted genes included."""
        reached = ~keep
        for _ in range(hops):
            reached = reached | (spmm(self.step, reached.float().unsqueeze(-1)).squeeze(-1) > 0)
        return reached

    def _view(self, batch: PerturbationBatch) -> NeighborhoodGraphs:
        return NeighborhoodGraphs(self, batch)


class NeighborhoodGraphs(PerturbedGraphs):
    """Explicit edges into the recomputed genes only.

    Attributes:
        recomputed: bool ``[num_genes, batch]``: genes near a deletion, and all genes of samples with features of their
            own.
    """

    strategy: Neighborhood

    def __init__(self, strategy: Neighborhood, batch: PerturbationBatch) -> None:
        super().__init__(strategy, batch)
        self.recomputed = strategy.near(self.keep, strategy.hops) if batch.wild_type else torch.ones_like(self.keep)
        if batch.wild_type:
            self.recomputed[:, -1] = True
        self._differed = torch.zeros_like(self.keep[0])
        self._edges: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    @property
    def share_recomputed(self) -> float:
        """Fraction of the perturbed samples' genes that are recomputed; waits for the device."""
        columns = self.recomputed[:, :-1] if self.batch.wild_type else self.recomputed
        return float(columns.float().mean()) if columns.numel() else 0.0

    def _list(self, r: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Remaining edges into recomputed genes: source row, target row, source gene, edge position.

        A row is ``gene · batch + sample``.
        """
        if r not in self._edges:
            strategy, b = self.strategy, self.keep.shape[1]
            gene, sample = (self.recomputed & self.keep).nonzero(as_tuple=True)
            ptr, edge = strategy.incoming(r)
            start = ptr[gene].long()
            count = ptr[gene + 1].long() - start
            shift = torch.repeat_interleave(start - (count.cumsum(0) - count), count)
            position = edge[torch.arange(len(shift), device=shift.device) + shift].long()
            target = torch.repeat_interleave(gene * b + sample, count)
            sample = torch.repeat_interleave(sample, count)
            source = strategy.edge_index(r)[0][position]
            if strategy.direction == "both":
                left = self.keep[source, sample].nonzero().squeeze(1)
                source, sample, target, position = source[left], sample[left], target[left], position[left]
            self._edges[r] = (source * b + sample, target, source, position)
        return self._edges[r]

    def check_model(self, hops: int | None) -> None:
        """Refuse a model that reaches further than ``layers`` says."""
        strategy = self.strategy
        if hops is None or not strategy.exact or strategy.exact_for(hops):
            return
        if bool((self.recomputed | ~strategy.near(self.keep, hops)).all()):
            return  # no gene of these samples lies between the two radii
        raise StrategyError(
            f"the strategy neighborhood was given layers={strategy.layers}, but this model reaches {hops} hops, "
            f"for which hops={strategy.hops} is approximate; set hops={hops}, or leave layers out to accept that"
        )

    @torch.no_grad()
    def _look_at(self, x: Tensor) -> None:
        """Recompute all genes of samples whose features differ from the wild type's not only because of deletions.

        When the features of a sample differ for the first time, it is by one layer (or a GCN's degrees): within one hop
        of a deletion. Elsewhere they are the sample's own, and what its neighbours receive cannot be borrowed.

        Args:
            x: ``[num_genes, batch, …]``.
        """
        if not self.batch.wild_type or x.stride(1) == 0:
            return
        wild_type = x[:, -1:]
        rounding = min(128 * torch.finfo(x.dtype).eps, 0.03) * wild_type.abs().amax()
        differs = ((x - wild_type).abs() > rounding).flatten(2).any(2)
        first = differs.any(0) & ~self._differed
        self._differed |= first
        own = first & (differs & ~self.strategy.near(self.keep, 1)).any(0)
        if bool(own.any()):
            self.recomputed[:, own] = True
            self._edges.clear()

    def _borrow(self, y: Tensor) -> Tensor:
        """Rows ``[num_genes · batch, …]`` with the wild-type column's value wherever nothing was recomputed."""
        n, b = self.keep.shape
        y = y.view(n, b, *y.shape[1:])
        if not self.batch.wild_type:
            return y
        chosen = self.recomputed.view(n, b, *[1] * (y.dim() - 2))
        return torch.where(chosen, y, y[:, -1:])

    def _aggregate(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        self._look_at(x)
        source, target, gene, edge = self._list(r)
        messages = self.strategy.weighted(r, x.flatten(0, 1)[source], edge)
        return self._borrow(reduce_edges(messages, target, self.keep.numel(), reduce, None, gene))

    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        self._look_at(source)
        self._look_at(target)
        start, end, _, _ = self._list(r)
        s, t = source.flatten(0, 1)[start], target.flatten(0, 1)[end]
        return self._borrow(attend_edges(s, t, end, self.keep.numel(), attention, slope, None))

    def _edge_mask(self, r: int) -> Tensor:
        # The graph itself is perturbed exactly; only values far from a deletion are borrowed.
        source, target = self.strategy.edge_index(r)
        mask = self.keep[target]
        return mask if self.strategy.direction == "in" else mask & self.keep[source]

    def _degree(self, r: int) -> Tensor:
        like = torch.empty(0, 0, device=self.keep.device)
        rows = count_edges(self._list(r)[1], self.keep.numel(), like, None)
        return self._borrow(rows).squeeze(-1)
