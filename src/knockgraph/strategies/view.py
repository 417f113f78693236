"""The view of a batch of perturbed graphs that a model uses, whatever the strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops import DistinctRows, Reduce, accumulator, dosed_logits

if TYPE_CHECKING:
    from knockgraph.graph import Metabolism
    from knockgraph.screen import PerturbationBatch
    from knockgraph.strategies.strategy import Strategy

Origin = Literal["device", "worker", "in place"]


class PerturbedGraphs(ABC):
    r"""Each sample's own copy of the cell graph, without the edges of its deleted genes.

    A deleted gene keeps its row and its self term; its edges are gone in both directions (``direction="in"``: only the
    incoming ones), so its row of every aggregation is zero. With keep-vector :math:`m` and the shared adjacency
    :math:`A`,

    .. math:: \mathrm{aggregate}(x) = m \odot A (m \odot x).

    Where genes have other values than 0 (``batch.perturbation_values``), the dose vector :math:`d` takes the place of
    :math:`m`; each method says how. Everything is then differentiable in ``dose``, too.

    Attributes:
        keep: bool ``[num_genes, batch]``, False where the sample deletes the gene; ``dose != 0``.
        batch: The samples.
        deletions: The same without the genes whose value is not 0: what edge masks are made from.
        origin: Where the perturbed graphs were made: on the ``device``, by the loader's ``worker`` processes, or
            ``in place`` because a worker strategy was given a bare batch.
    """

    _attends_shared = False
    """Whether ``_attend`` takes states without a batch axis."""

    def __init__(self, strategy: Strategy, batch: PerturbationBatch, origin: Origin = "device") -> None:
        self.strategy = strategy
        self.batch = batch
        self.deletions = batch
        self.origin: Origin = origin
        self.keep = batch.keep()
        self._dose: Tensor | None = None
        self._alive: Tensor | None = None
        self._strength: dict[tuple[str, torch.dtype], Tensor] = {}

    @property
    def dose(self) -> Tensor:
        """float ``[num_genes, batch]``: the value of each perturbed gene, 1 elsewhere.

        ``view.dose.requires_grad_()`` before anything is aggregated gives the gradient for every gene and sample.
        """
        if self._dose is None:
            self._dose = self.batch.dose()
        return self._dose

    @property
    def graded(self) -> bool:
        """Whether there may be values other than 0 and 1, or a gradient with respect to them is asked for."""
        return self.batch.graded or (self._dose is not None and self._dose.requires_grad)

    def aggregate(self, relation: str, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        r"""Neighbours' features, reduced over each sample's remaining incoming edges of ``relation``.

        Args:
            relation: Name of the relation.
            x: ``[num_genes, batch, channels]``, or ``[num_genes, channels]`` if all samples share it.
            reduce: ``sum``, ``mean``, ``max`` or ``min``; without a remaining neighbour the result is 0. With doses
                the sum is :math:`d \odot A(d \odot x)`, the mean that over :math:`d \odot A d`, and the extreme is
                taken over :math:`d_j x_j` of sources with :math:`d_j > 0`, times :math:`d_i`.

        Returns:
            ``[num_genes, batch, channels]``, differentiable in ``x``.
        """
        return self._reduced(self.strategy.relation_number(relation), self._expanded(x), reduce)

    def aggregate_all(self, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """All relations at once: ``[relations, num_genes, batch, channels]``, in the order of ``graph.relations``."""
        x = self._expanded(x)
        if not self.strategy.relation_names:
            return x.new_zeros(0, *x.shape)
        return torch.stack([self._reduced(r, x, reduce) for r in range(len(self.strategy.relation_names))])

    def aggregate_unmasked(self, x: Tensor, reduce: Reduce = "sum") -> tuple[Tensor, Tensor | None]:
        """:meth:`aggregate_all` for callers that leave out what deleted genes receive: the result, and the bool
        keep-vector ``[num_genes, batch]`` that is still to be applied to it, ``None`` if there is none.
        """
        return self.aggregate_all(x, reduce), None

    def aggregate_rows(self, x: Tensor, reduce: Reduce, rows: DistinctRows) -> Tensor:
        """The rows of :meth:`aggregate_all` that differ, ``[relations, rows, channels]``."""
        return rows.take(self.aggregate_all(x, reduce).flatten(1, 2))

    def aggregate_scaled(self, relations: Sequence[str], x: Tensor, factors: Tensor) -> Tensor:
        r""":math:`f_r \odot \mathrm{aggregate}_r(f_r \odot x)` of each relation, ``[relations, num_genes, batch,
        channels]``: a sum whose edges have weights that are products of a factor of each end, as in GCN.

        Args:
            relations: Their names.
            x: ``[num_genes, batch, channels]``, or ``[num_genes, channels]`` if all samples share it.
            factors: f, ``[relations, num_genes, batch]``.
        """
        x = self._expanded(x)
        f = factors.to(x.dtype).unsqueeze(-1)
        return torch.stack([a * self.aggregate(name, a * x) for name, a in zip(relations, f, strict=True)])

    def attend(self, relation: str, source: Tensor, target: Tensor, attention: Tensor, slope: float = 0.2) -> Tensor:
        r"""Attention over each sample's remaining incoming edges (GATv2), the mask inside the softmax.

        .. math:: y_i = \sum_{j \to i} \operatorname{softmax}_j\bigl(a^\top
            \mathrm{LeakyReLU}(s_j + t_i)\bigr)\, s_j

        With doses the weights of the softmax are proportional to :math:`d_j \exp(\mathrm{logit})` and the row is
        multiplied by :math:`d_i`.

        Args:
            relation: Name of the relation.
            source: :math:`s`, ``[num_genes, batch, heads, channels]``, or ``[num_genes, heads, channels]`` where all
                samples share it.
            target: :math:`t`, the same shape.
            attention: :math:`a`, ``[heads, channels]``.
            slope: Of the LeakyReLU for negative inputs.

        Returns:
            ``[num_genes, batch, heads, channels]``; 0 without a remaining neighbour.
        """
        r = self.strategy.relation_number(relation)
        if self.graded or not self._attends_shared:
            source, target = self._with_batch(source), self._with_batch(target)
        if not self.graded:
            return self._attend(r, source, target, attention, slope)
        return self._dosed_attend(r, source, target, attention, slope)

    def distinct_rows(self) -> DistinctRows | None:
        """Where all samples share their features: the rows whose aggregation differs; None where that is not known."""
        return None

    def check_model(self, hops: int | None) -> None:
        """Refuse a model for which the strategy is not as exact as stated; ``hops`` as in
        :meth:`Strategy.exact_for`. Models call it before they look at the graphs.
        """
        del hops

    def edge_mask(self, relation: str) -> Tensor:
        """Which edges remain, bool ``[num_edges, batch]`` in the order of ``edge_index``; for checks, not training."""
        return self._edge_mask(self.strategy.relation_number(relation))

    def degree(self, relation: str) -> Tensor:
        r"""Remaining incoming edges, float32 ``[num_genes, batch]``; with doses :math:`d \odot A d`, in their type."""
        r = self.strategy.relation_number(relation)
        if not self.graded:
            return self._degree(r)
        return self.dose * self._received_dose(r, self.dose.dtype).squeeze(-1)

    def strength(self, relation: str, dtype: torch.dtype = torch.float32) -> Tensor:
        r"""Sum of the remaining incoming edges' weights, ``[num_genes, batch]``; without weights the degree. With doses
        :math:`d \odot A d`.

        Args:
            relation: Name of the relation.
            dtype: Of the result. A sum of weights is rounded, so a float64 model asks for float64.
        """
        if not self.graded and not self.strategy.has_weights[self.strategy.relation_number(relation)]:
            return self.degree(relation).to(dtype)
        key = (relation, dtype)
        if key in self._strength:
            return self._strength[key]
        ones = torch.ones(*self.keep.shape, 1, dtype=dtype, device=self.keep.device)
        with torch.autocast(self.keep.device.type, enabled=False):
            strength = self.aggregate(relation, ones).squeeze(-1)
        if not strength.requires_grad:  # a second backward pass could not use it again
            self._strength[key] = strength
        return strength

    @property
    def reactions_alive(self) -> Tensor:
        """bool ``[num_reactions, batch]``: reaction nodes with a complete gene complex left."""
        if self._alive is None:
            self._alive = self._metabolism().reactions_alive(self.keep)
        return self._alive

    def reaction_activity(self, cap: float | None = 1.0) -> Tensor:
        """float ``[num_reactions, batch]``: a complex works at the minimum of its genes' values, isozymes add up, see
        :meth:`Metabolism.activity <knockgraph.graph.Metabolism.activity>`; above 0 where ``reactions_alive``.
        """
        return self._metabolism().activity(self.dose, cap)

    def _metabolism(self) -> Metabolism:
        if self.strategy.metabolism is None:
            raise StrategyError("this cell graph has no metabolism, so there are no reactions")
        return self.strategy.metabolism

    def _reduced(self, r: int, x: Tensor, reduce: Reduce) -> Tensor:
        """:meth:`aggregate` of relation ``r`` for features with a batch axis."""
        return self._dosed_aggregate(r, x, reduce) if self.graded else self._aggregate(r, x, reduce)

    def _dosed_aggregate(self, r: int, x: Tensor, reduce: Reduce) -> Tensor:
        d = self._dose_of_rows()
        sent = x if self.strategy.direction == "in" else x * d.to(accumulator(x.dtype))
        y = self._unscaled(r, sent, "sum" if reduce == "mean" else reduce)
        if reduce != "mean":
            return (y * d.to(accumulator(y.dtype))).to(y.dtype)
        total = self._received_dose(r, accumulator(y.dtype))
        there = (total > 0) & self.keep.unsqueeze(-1)  # d_i stands above and below the line
        mean = y / torch.where(there, total, total.new_ones(()))
        return torch.where(there, mean, mean.new_zeros(())).to(y.dtype)

    def _dosed_attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        d = self._dose_of_rows().unsqueeze(-1)
        with torch.autocast(d.device.type, enabled=False):
            if self.strategy.direction == "both":
                source, target, attention = dosed_logits(source, target, attention, d)
            y = self._unscaled_attend(r, source, target, attention, slope)
        if self.strategy.direction == "both":
            y = y[..., :-2]
        return y * d.to(accumulator(y.dtype))

    def _received_dose(self, r: int, dtype: torch.dtype) -> Tensor:
        """``A d`` of relation ``r`` without its weights, ``[num_genes, batch, 1]``."""
        d = self._dose_of_rows().to(dtype)
        sent = torch.ones_like(d) if self.strategy.direction == "in" else d
        with torch.autocast(d.device.type, enabled=False):
            return self._unscaled(r, sent, "sum", weighted=False)

    def _dose_of_rows(self) -> Tensor:
        """The doses ``[num_genes, batch, 1]``."""
        if self.dose.requires_grad and not self.strategy.supports("gradients at 0") and not bool(self.keep.all()):
            raise StrategyError(
                f"the strategy {self.strategy.name} has no gradient with respect to a value of 0, because the edges of "
                "deleted genes are gone; use node-mask, or values above 0"
            )
        return self.dose.unsqueeze(-1)

    def _unscaled(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor:
        """The product before it is multiplied by the dose of the receiving gene.

        The edges of deleted genes may be left out: all that is sent along them is multiplied by 0.
        """
        options = {} if weighted or not self.strategy.has_weights[r] else {"weighted": False}
        return self._aggregate(r, x, reduce, **options)

    def _unscaled_attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor:
        """The same for attention."""
        return self._attend(r, source, target, attention, slope)

    @abstractmethod
    def _aggregate(self, r: int, x: Tensor, reduce: Reduce, weighted: bool = True) -> Tensor: ...

    @abstractmethod
    def _attend(self, r: int, source: Tensor, target: Tensor, attention: Tensor, slope: float) -> Tensor: ...

    @abstractmethod
    def _edge_mask(self, r: int) -> Tensor: ...

    @abstractmethod
    def _degree(self, r: int) -> Tensor: ...

    def _with_batch(self, state: Tensor) -> Tensor:
        """What is attended to, with its batch axis."""
        return state.unsqueeze(1).expand(-1, self.keep.shape[1], -1, -1) if state.dim() == 3 else state

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
