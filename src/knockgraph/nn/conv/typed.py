"""All relations merged into one list of typed edges: one convolution instead of one per relation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.nn.conv.relation_conv import Names, RelationConv
from knockgraph.ops import DistinctRows, Reduce
from knockgraph.strategies import PerturbedGraphs

MERGED = "merged"
"""The name of the one relation that is left."""


class TypedConv(RelationConv):
    r"""A convolution on the union of all relations, in which each edge keeps its type r,

    .. math:: \mathrm{aggregate}(x) = \sum_r s_r \odot \bigl(m \odot A_r (m \odot x)\bigr),

    with a learned scale :math:`s_r` per type and channel that starts at 1. A pair of genes that is joined by several
    relations has as many edges. A mean divides by the number of remaining edges of all types; degrees, as in GCN, are
    sums over the types, in which the scales have no part.

    Args:
        conv: A layer of one relation, ``conv(view, relation, x)``, that aggregates sums or means.
        types: How many relations there are, the types of the edges.
        channels: Channels of what it aggregates.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[1, num_genes · batch, channels]``.
    """

    def __init__(self, conv: nn.Module, types: int, channels: int) -> None:
        super().__init__(1)
        self.scale = nn.Parameter(torch.ones(types, channels))
        self.conv = conv
        self.degrees = getattr(conv, "degrees", None)

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        y: Tensor = self.conv(TypedGraphs(view, relation, self.scale), MERGED, x).flatten(0, 1).unsqueeze(0)
        return y if rows is None else rows.take(y)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # Earlier versions had the layer's parameters beside the scale.
        for key in [k for k in state_dict if k.startswith(prefix)]:
            name = key.removeprefix(prefix)
            if name != "scale" and not name.startswith("conv."):
                state_dict[f"{prefix}conv.{name}"] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.scale)} types, {self.conv})"


class TypedGraphs:
    """A view in which several relations are one, see :class:`TypedConv`; for the rest it is the view that it is given.

    Args:
        view: The perturbed graphs.
        types: Names of the relations.
        scale: ``[types, channels]``.
    """

    def __init__(self, view: PerturbedGraphs, types: Sequence[str], scale: Tensor) -> None:
        self.view = view
        self.types = tuple(types)
        self.scale = scale

    def __getattr__(self, name: str) -> Any:
        return getattr(self.view, name)

    def aggregate(self, relation: str, x: Tensor, reduce: Reduce = "sum") -> Tensor:
        """See :class:`TypedConv`."""
        if reduce not in ("sum", "mean"):
            raise ModelError(f"messages.merge=typed adds messages up, it has no {reduce}; do not merge")
        if self.types == self.view.strategy.relation_names:
            of_type = self.view.aggregate_all(x)
        else:
            of_type = torch.stack([self.view.aggregate(name, x) for name in self.types])
        total = (of_type * self.scale.to(of_type.dtype)[:, None, None]).sum(0)
        if reduce == "sum":
            return total
        edges = self.degree(relation)
        return total / torch.where(edges > 0, edges, edges.new_ones(())).to(x.dtype).unsqueeze(-1)

    def attend(self, relation: str, *rest: Any) -> Tensor:
        """Attention is no sum of messages with given weights."""
        raise ModelError("messages.merge=typed adds messages up, it has no attention; do not merge")

    def degree(self, relation: str) -> Tensor:
        """Remaining incoming edges of all types."""
        return torch.stack([self.view.degree(name) for name in self.types]).sum(0)

    def strength(self, relation: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """Sum of the weights of the remaining incoming edges of all types."""
        return torch.stack([self.view.strength(name, dtype) for name in self.types]).sum(0)
