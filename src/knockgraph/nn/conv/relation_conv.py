"""A convolution over any number of relations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from knockgraph.nn.grouped_layer_norm import GroupedLayerNorm
from knockgraph.nn.grouped_linear import GroupedLinear
from knockgraph.ops import DistinctRows, Reduce, fused, norm_gelu
from knockgraph.strategies import PerturbedGraphs

Names = str | Sequence[str]
"""The name of a relation, or those of several."""


class RelationConv(nn.Module, ABC):
    r"""A convolution with parameters of its own for each relation, :math:`y_r = \mathrm{conv}_r(A_r, x)`.

    Args:
        relations: How many relations it works on at once; ``None``: on one at a time.

    Attributes:
        local: Whether the result at a gene depends only on the gene and its remaining neighbours' features. Where all
            samples share x, such a layer has few rows that differ, see :class:`~knockgraph.ops.DistinctRows`.
        degrees: Whether the neighbours' degrees count, too, so that a deletion reaches one hop further; ``None``: not
            stated, it may reach any distance.
        backend: Of what is fused: ``auto``, ``triton`` or ``torch``.

    Shapes:
        x ``[num_genes, batch, in_channels]`` (or ``[num_genes, in_channels]``, shared by all samples) ->
        ``[num_genes, batch, out_channels]``; of several relations ``[relations, num_genes · batch, out_channels]``,
        with distinct rows only their places, and x may be ``[relations, num_genes, batch, in_channels]``.
    """

    local: bool = False
    degrees: bool | None = None
    backend: str = "auto"

    def __init__(self, relations: int | None = None) -> None:
        super().__init__()
        self.relations = relations

    @abstractmethod
    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        """Send messages along the remaining edges.

        Args:
            view: The perturbed graphs.
            relation: The name of a relation, or those of all that the layer was made for.
            x: The genes' states.
            rows: Of several relations, the rows to compute; all by default.
        """

    def fuses(self, x: Tensor, activation: nn.Module) -> bool:
        """Whether there is one operation for the convolution, the norm and this activation, :meth:`fused`, which skips
        the padding of ``rows``.
        """
        return False

    def fused(
        self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None, norm: nn.Module
    ) -> Tensor:
        """The activated and normed convolution, where :meth:`fuses` says so; here only norm and activation are one."""
        y = self(view, relation, x, rows)
        scaled = affine(norm)
        if scaled is None:
            return nn.functional.gelu(y)
        return norm_gelu(y, *scaled, None if rows is None else rows.count, self.backend)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.relations is None else f'{self.relations} relations'})"


def linear(relations: int | None, in_channels: int, out_channels: int, bias: bool = True) -> nn.Linear | GroupedLinear:
    """A linear map, or one for each of several relations."""
    if relations is None:
        return nn.Linear(in_channels, out_channels, bias)
    return GroupedLinear(relations, in_channels, out_channels, bias, activated=True)


def gelu_fuses(backend: str, x: Tensor, activation: nn.Module, channels: int | None = None) -> bool:
    """Whether fused kernels take what ends in this activation: only GELU, on this device, with as many channels."""
    width = x.shape[-1] if channels is None else channels
    return isinstance(activation, nn.GELU) and fused(backend, x, width)


def one_map_fuses(backend: str, x: Tensor, activation: nn.Module, conv: nn.Module) -> bool:
    """Whether :func:`~knockgraph.ops.relation_mlp` takes a convolution with one map for each of several relations: as
    many channels as before, then GELU.
    """
    if not isinstance(conv, GroupedLinear):
        return False
    _, in_channels, out_channels = conv.weight.shape
    return in_channels == out_channels and gelu_fuses(backend, x, activation, in_channels)


def affine(norm: nn.Module) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of a layer's norm, ``[relations, channels]``, if it has one."""
    return (norm.weight.squeeze(1), norm.bias.squeeze(1)) if isinstance(norm, GroupedLayerNorm) else None


def gather(
    view: PerturbedGraphs, relation: Names, x: Tensor, reduce: Reduce, rows: DistinctRows | None
) -> tuple[Tensor, Tensor]:
    """The genes' own states and what their neighbours send.

    The first has no axis for relations where they share x, the second is shaped as the result of a
    :class:`RelationConv`. Both take part in gradients in the order in which they are made here.
    """
    if isinstance(relation, str):
        sent = view.aggregate(relation, x, reduce)
        return (x.unsqueeze(1) if x.dim() == 2 else x), sent
    own = own_states(view, x, rows)
    return own, _sent(view, relation, x, reduce, rows)


def gather_unmasked(
    view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """:func:`gather` of sums, and, where they are not masked yet, which genes receive anything: bool, by row."""
    if rows is not None or x.dim() != 3 or isinstance(relation, str) or tuple(relation) != view.strategy.relation_names:
        return *gather(view, relation, x, "sum", rows), None
    own = own_states(view, x)
    sent, keep = view.aggregate_unmasked(x, "sum")
    return own, sent.flatten(1, 2), None if keep is None else keep.flatten()


def own_states(view: PerturbedGraphs, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
    """The genes' own states, ``[num_genes · batch, channels]``; with distinct rows only their places."""
    if x.dim() == 4:
        return x.flatten(1, 2)
    if x.dim() == 2:
        columns = view.keep.shape[1]
        if rows is not None and rows.count is None:
            return x.index_select(0, rows.rows // columns)
        x = x.unsqueeze(1).expand(-1, columns, -1)
    x = x.flatten(0, 1)
    return x if rows is None else rows.take(x.unsqueeze(0)).squeeze(0)


def _sent(
    view: PerturbedGraphs, relations: Sequence[str], x: Tensor, reduce: Reduce, rows: DistinctRows | None
) -> Tensor:
    if x.dim() == 4:
        h = torch.stack([view.aggregate(name, state, reduce) for name, state in zip(relations, x, strict=True)])
    elif tuple(relations) != view.strategy.relation_names:
        h = torch.stack([view.aggregate(name, x, reduce) for name in relations])
    elif rows is not None:
        return view.aggregate_rows(x, reduce, rows)
    else:
        h = view.aggregate_all(x, reduce)  # one product
    h = h.flatten(1, 2)
    return h if rows is None else rows.take(h)
