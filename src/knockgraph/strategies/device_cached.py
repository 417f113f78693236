"""Strategy ``device-cached``: the masks of all single deletions, bit-packed; several deletions are AND-ed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph, Relation
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.edge_masks import EdgeMaskedGraphs, EdgeStrategy, removed_by_gene
from knockgraph.strategies.strategy import Direction, as_batch


class MostDeletions(NamedTuple):
    """What the loader attaches: the largest number of deletions of a sample."""

    most: int


def collate_with_most(samples: Any) -> PerturbationBatch:
    """The batch with its :class:`MostDeletions` attached."""
    batch = as_batch(samples)
    if batch.device.type != "cpu":
        return batch
    count = batch.deletions().perturbation_indices_ptr.diff()
    return replace(batch, payload=MostDeletions(int(count.max()) if len(count) else 0))


class DeviceCached(EdgeStrategy):
    """``mask_b = AND over deleted genes g of cache[g]``, with ``cache`` one bit per gene and edge.

    Args:
        graph: The cell graph.
        direction: See :class:`Strategy`.
        max_bytes: Refuse to build a larger cache; the size is reported before allocation.
    """

    name = "device-cached"
    placement = "device"
    _bit: Tensor

    def __init__(self, graph: CellGraph, direction: Direction = "both", max_bytes: int = 8 * 2**30) -> None:
        super().__init__(graph, direction)
        needed = cache_bytes(graph)
        if needed > max_bytes:
            raise StrategyError(
                f"device-cached needs {needed / 1e9:,.1f} GB ({graph.num_genes:,} genes × {graph.num_edges:,} edges), "
                f"more than max_bytes={max_bytes / 1e9:,.1f} GB; raise max_bytes, or use node-mask: it needs no cache"
            )
        for r, relation in enumerate(graph.relations.values()):
            self.register_buffer(f"cache_{r}", _cache(relation, direction), persistent=False)
        # One byte with a single bit each, to unpack.
        self.register_buffer("_bit", 2 ** torch.arange(8, dtype=torch.uint8), persistent=False)

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """Attaches the largest number of deletions, which avoids reading it from the device."""
        return collate_with_most

    def _view(self, batch: PerturbationBatch) -> EdgeMaskedGraphs:
        count = batch.perturbation_indices_ptr.diff()
        known = batch.payload if isinstance(batch.payload, MostDeletions) else None
        most = known.most if known else (int(count.max()) if len(count) else 0)
        return EdgeMaskedGraphs(self, batch, [self._mask(r, batch, count, most) for r in range(len(self.num_edges))])

    def _mask(self, r: int, batch: PerturbationBatch, count: Tensor, most: int) -> Tensor:
        cache: Tensor = getattr(self, f"cache_{r}")
        packed = torch.full((batch.num_columns, cache.shape[1]), 255, dtype=torch.uint8, device=self.device)
        if batch.perturbation_indices.numel() == 0:
            most = 0
        for k in range(most):
            # Samples with fewer deletions repeat their last one; those without any are left as they are.
            place = batch.perturbation_indices_ptr[:-1] + torch.clamp(count - 1, max=k).clamp(min=0)
            gene = batch.perturbation_indices[place.clamp(max=batch.perturbation_indices.numel() - 1)]
            packed = torch.where((count > 0).unsqueeze(1), packed & cache[gene], packed)
        bits = (packed.unsqueeze(-1) & self._bit).bool().flatten(1)[:, : self.num_edges[r]]
        return bits.T.contiguous()


def cache_bytes(graph: CellGraph) -> int:
    """Bytes that the cache of a graph takes."""
    return graph.num_genes * sum((relation.num_edges + 7) // 8 for relation in graph.relations.values())


def _cache(relation: Relation, direction: Direction) -> Tensor:
    """uint8 ``[num_genes, ceil(num_edges / 8)]``: bit e of row g tells whether edge e survives the deletion of g."""
    ptr, edge = removed_by_gene(relation, direction)
    width = (relation.num_edges + 7) // 8
    gene = torch.repeat_interleave(torch.arange(relation.num_genes), (ptr[1:] - ptr[:-1]).long())
    removed = torch.zeros(relation.num_genes * width, dtype=torch.uint8)
    # Every (gene, edge) occurs once, so adding the bits is the same as OR-ing them.
    removed.index_add_(0, gene * width + edge.long() // 8, (2 ** (edge % 8)).to(torch.uint8))
    return removed.bitwise_not_().view(relation.num_genes, width)
