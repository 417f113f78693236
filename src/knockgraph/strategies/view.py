"""What a model sees of a batch of perturbed graphs, whatever the strategy behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops import DistinctRows, Reduce

if TYPE_CHECKING:
    from knockgraph.screen import PerturbationBatch
    from knockgraph.strategies.strategy import Strategy

Origin = Literal["device", "worker", "in place"]


class PerturbedGraphs(ABC):
    r"""Each sample's own copy of the cell graph, with its deleted genes' edges gone.

    A deleted gene keeps its row and its self term; its edges are gone in both directions (``direction="in"``: only the
    incoming ones), so its row of every aggregation is zero. With keep-vector :math:`m` and the shared adjacency
    :math:`A`,

    .. math:: \mathrm{aggregate}(x) = m \odot A (m \odot x).

    Attributes:
        keep: bool ``[num_genes, batch]``, False where the sample deletes the gene.
        origin: Where the perturbed graphs were made: on the ``device``, by the loader's ``worker`` processes, or
            ``in place`` because a worker strategy was given a bare batch.
    """

    def __init__(self, strategy: Strategy, batch: PerturbationBatch, origin: Origin = "device") -> None:
        self.strategy = strategy
        self.batch = batch
        self.origin: Origin = origin
        self.keep = batch.keep()
        self._alive: Tensor | None = None
        self._strength: dict[tuple[str, torch.dtype], Tensor] = {}

    def aggregate(self, relation: str, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """Neighbours' features, reduced over each sample's remaining incoming edges of ``relation``.

        Args:
            relation: Name of the relation.
            x: ``[num_genes, batch, channels]``, or ``[num_genes, channels]`` if all samples share it.
            reduce: ``sum``, ``mean``, ``max`` or ``min``; without a remaining neighbour the result is 0.

        Returns:
            ``[num_genes, batch, channels]``, differentiable in ``x``.
        """
        return self._aggregate(self.strategy.relation_number(relation), self._expanded(x), reduce)

    def aggregate_all(self, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """All relations at once: ``[relations, num_genes, batch, channels]``, in the order of ``graph.relations``."""
        x = self._expanded(x)
        if not self.strategy.relation_names:
            return x.new_zeros(0, *x.shape)
        return torch.stack([self._aggregate(r, x, reduce) for r in range(len(self.strategy.relation_names))])

    def aggregate_rows(self, x: Tensor, reduce: Reduce, rows: DistinctRows) -> Tensor:
        """The rows of :meth:`aggregate_all` that differ, ``[relations, rows, channels]``."""
        return rows.take(self.aggregate_all(x, reduce).flatten(1, 2))

    def attend(self, relation: str, source: Tensor, target: Tensor, attention: Tensor, slope: float = 0.2) -> Tensor:
        r"""Attention over each sample's remaining incoming edges (GATv2), the mask inside the softmax.

        .. math:: y_i = \sum_{j \to i} \operatorname{softmax}_j\bigl(a^\top
            \mathrm{LeakyReLU}(s_j + t_i)\bigr)\, s_j

        Args:
            relation: Name of the relation.
            source: :math:`s`, ``[num_genes, batch, heads, channels]``.
            target: :math:`t`, the same shape.
            attention: :math:`a`, ``[heads, channels]``.
            slope: Of the LeakyReLU for negative inputs.

        Returns:
            ``[num_genes, batch, heads, channels]``; 0 without a remaining neighbour.
        """
        return self._attend(self.strategy.relation_number(relation), source, target, attention, slope)

    def distinct_rows(self) -> DistinctRows | None:
        """Where all samples share their features: the rows whose aggregation differs; None where that is not known."""
        return None

    def check_model(self, hops: int | None) -> None:
        """Refuse a model for which the strategy promises more than it keeps; ``hops`` as in
        :meth:`Strategy.exact_for`. Models call it before they look at the graphs.
        """
        del hops

    def edge_mask(self, relation: str) -> Tensor:
        """Which edges remain, bool ``[num_edges, batch]`` in the order of ``edge_index``; for checks, not training."""
        return self._edge_mask(self.strategy.relation_number(relation))

    def degree(self, relation: str) -> Tensor:
        """Remaining incoming edges, float32 ``[num_genes, batch]``."""
        return self._degree(self.strategy.relation_number(relation))

    def strength(self, relation: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Sum of the remaining incoming edges' weights, ``[num_genes, batch]``; without weights the degree.

        Args:
            relation: Name of the relation.
            dtype: Of the result. A sum of weights is rounded, so a float64 model asks for float64.
        """
        if not self.strategy.has_weights[self.strategy.relation_number(relation)]:
            return self.degree(relation).to(dtype)
        key = (relation, dtype)
        if key not in self._strength:
            ones = torch.ones(*self.keep.shape, 1, dtype=dtype, device=self.keep.device)
            with torch.autocast(self.keep.device.type, enabled=False):
                self._strength[key] = self.aggregate(relation, ones).squeeze(-1)
        return self._strength[key]

    @property
    def reactions_alive(self) -> Tensor:
        """bool ``[num_reactions, batch]``: reaction nodes with a complete gene complex left."""
        if self._alive is None:
            metabolism = self.strategy.metabolism
            if metabolism is None:
                raise StrategyError("this cell graph has no metabolism, so there are no reactions to ask for")
            self._alive = metabolism.reactions_alive(self.keep)
        return self._alive

    @abstractmethod
    def _aggregate(self, r: int, x: Tensor, reduce: Reduce) -> Tensor: ...

    @abstractmethod
    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor: ...

    @abstractmethod
    def _edge_mask(self, r: int) -> Tensor: ...

    @abstractmethod
    def _degree(self, r: int) -> Tensor: ...

    def _expanded(self, x: Tensor) -> Tensor:
        """Features with their batch axis, checked."""
        n, b = self.keep.shape
        if x.dim() == 2 and x.shape[0] == n:
            return x.unsqueeze(1).expand(n, b, x.shape[1])
        if x.dim() != 3 or x.shape[:2] != (n, b):
            raise StrategyError(
                f"x has shape {list(x.shape)}, but this batch needs [{n}, {b}, channels] (genes, batch, channels), "
                f"or [{n}, channels] where all samples share it"
            )
        return x

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def __repr__(self) -> str:
        n, b = self.keep.shape
        return f"{type(self).__name__}({self.strategy.name}, {n} genes, batch {b}, made {self.origin})"
