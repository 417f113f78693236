"""Strategies with one boolean per edge and sample: their common view and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph, Relation
from knockgraph.ops import Reduce
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_reduce import attend_edges, count_edges, reduce_edges
from knockgraph.strategies.strategy import Direction, Strategy
from knockgraph.strategies.view import Origin, PerturbedGraphs


class EdgeMasks(NamedTuple):
    """What the loader's workers attach: bool ``[num_edges, samples]`` per relation."""

    masks: list[Tensor]


class EdgeStrategy(Strategy):
    """A strategy that computes with explicit edges: ``edge_index`` of every relation on the device, shared."""

    abilities = frozenset({"doses"})

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__(graph, direction)
        self.num_edges = [relation.num_edges for relation in graph.relations.values()]
        for r, relation in enumerate(graph.relations.values()):
            self.register_buffer(f"edge_index_{r}", relation.edge_index.clone(), persistent=False)
            self.register_buffer(f"weight_{r}", relation.weight, persistent=False)

    def edge_index(self, r: int) -> Tensor:
        """int64 ``[2, num_edges]`` of relation ``r``."""
        edge_index: Tensor = getattr(self, f"edge_index_{r}")
        return edge_index

    def weighted(self, r: int, messages: Tensor, edge: Tensor | None = None) -> Tensor:
        """Messages ``[edges, …]`` times the weights of their edges, where the relation has weights."""
        weight: Tensor | None = getattr(self, f"weight_{r}")
        if weight is None:
            return messages
        chosen = weight if edge is None else weight[edge]
        return messages * chosen.to(messages.dtype).view(-1, *[1] * (messages.dim() - 1))


class EdgeMaskedGraphs(PerturbedGraphs):
    """Messages of all edges of all samples, masked: ``[num_edges, batch, channels]`` in memory.

    Args:
        strategy: The strategy.
        batch: The batch.
        masks: Per relation bool ``[num_edges, batch]``.
        origin: Where the masks were made.
    """

    strategy: EdgeStrategy

    def __init__(
        self, strategy: EdgeStrategy, batch: PerturbationBatch, masks: Sequence[Tensor], origin: Origin = "device"
    ) -> None:
        super().__init__(strategy, batch, origin)
        self.masks = masks

    def mask(self, r: int) -> Tensor:
        """bool ``[num_edges, batch]`` of relation ``r``."""
        return self.masks[r]

    def _aggregate(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        source, target = self.strategy.edge_index(r)
        messages = x.index_select(0, source)
        if weighted:
            messages = self.strategy.weighted(r, messages)
        return reduce_edges(messages, target, self.strategy.num_genes, reduce, self.mask(r), source)

    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        start, end = self.strategy.edge_index(r)
        n = self.strategy.num_genes
        return attend_edges(source[start], target[end], end, n, attention, slope, self.mask(r))

    def _edge_mask(self, r: int) -> Tensor:
        return self.mask(r).clone()

    def _degree(self, r: int) -> Tensor:
        like = torch.empty(0, 0, 0, device=self.keep.device)
        target = self.strategy.edge_index(r)[1]
        return count_edges(target, self.strategy.num_genes, like, self.mask(r).unsqueeze(-1)).squeeze(-1)


def removed_by_gene(relation: Relation, direction: Direction) -> tuple[Tensor, Tensor]:
    """Gene → positions of the edges that its deletion removes: int32 ``ptr [num_genes + 1]`` and ``edge``."""
    if direction == "both":
        return relation.incidence
    return relation.by_destination.ptr, relation.by_destination.edge


def removed_edges(
    ptr: Tensor, edge: Tensor, batch: PerturbationBatch, total: int | None = None
) -> tuple[Tensor, Tensor]:
    """Edges that a batch removes and the sample of each (an edge between two deleted genes appears twice).

    Args:
        ptr: ``[num_genes + 1]`` from :func:`removed_by_gene`.
        edge: ``[entries]`` from :func:`removed_by_gene`.
        batch: The batch, on the same device.
        total: How many there are, if the host knows it; without it a CUDA device has to be asked.

    Returns:
        Edge and sample, int64 ``[total]`` each.
    """
    gene = batch.perturbation_indices
    start = ptr[gene].long()
    count = ptr[gene + 1].long() - start
    total = int(count.sum()) if total is None else total
    shift = torch.repeat_interleave(start - (count.cumsum(0) - count), count, output_size=total)
    position = torch.arange(total, device=gene.device) + shift
    sample = torch.repeat_interleave(batch.perturbation_indices_batch, count, output_size=total)
    return edge[position].long(), sample


def count_removed(ptr: Tensor, batch: PerturbationBatch) -> int:
    """The ``total`` of :func:`removed_edges`, for host tensors."""
    gene = batch.perturbation_indices
    return int((ptr[gene + 1].long() - ptr[gene].long()).sum())


def check_columns(batch: PerturbationBatch, columns: int) -> None:
    """A payload made before ``with_wild_type()`` has one column less; anything else is a mistake."""
    if columns not in (batch.num_columns, batch.num_columns - batch.wild_type):
        raise StrategyError(
            f"the payload of this batch has {columns} columns for {batch.num_columns} samples; collate the batch again"
        )


def with_wild_type_column(mask: Tensor, batch: PerturbationBatch) -> Tensor:
    """Masks ``[num_edges, samples]`` with a column of True for the wild type, where the batch has one more column."""
    check_columns(batch, mask.shape[1])
    if mask.shape[1] == batch.num_columns:
        return mask
    return torch.cat([mask, mask.new_ones(mask.shape[0], 1)], 1)
