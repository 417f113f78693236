"""Any convolution by name, over several relations."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph import registry
from knockgraph.nn.conv.relation_conv import Names, RelationConv, gelu_fuses
from knockgraph.nn.conv.typed import TypedConv
from knockgraph.ops import DistinctRows
from knockgraph.strategies import PerturbedGraphs


class EachRelation(RelationConv):
    r"""A layer of one relation, made once for each:
    :math:`y_r = \mathrm{convs}_r(\mathrm{view}, r, x)`.

    Args:
        convs: The layers, in the order of the relations. They say whether they are ``local`` and whether ``degrees``
            count, see :class:`RelationConv`.
        backend: Of norm and activation, see :func:`~knockgraph.ops.norm_gelu`.
    """

    def __init__(self, convs: Sequence[nn.Module], backend: str = "auto") -> None:
        super().__init__(len(convs))
        self.convs = nn.ModuleList(convs)
        self.backend = backend
        self.degrees = getattr(convs[0], "degrees", None)
        self.local = getattr(convs[0], "local", False)

    def forward(self, view: PerturbedGraphs, relation: Names, x: Tensor, rows: DistinctRows | None = None) -> Tensor:
        convs = zip(relation, self.convs, strict=True)
        y = torch.stack([conv(view, name, x).flatten(0, 1) for name, conv in convs])
        return y if rows is None else rows.take(y)

    def fuses(self, x: Tensor, activation: nn.Module) -> bool:
        """Only GELU, and only what comes after the layers; see :func:`~knockgraph.ops.norm_gelu`."""
        return gelu_fuses(self.backend, x, activation)


def relation_conv(name: str, relations: int, channels: int, typed: bool = False, **offered: Any) -> RelationConv:
    """A convolution over several relations by name.

    Args:
        name: One of the registry's convolutions, or ``package.module:Class``. The class is made as
            ``Class(in_channels, out_channels)``, or by its ``of_channels(channels)`` if it has that, and works on one
            relation; a :class:`RelationConv` takes ``relations``, too, and works on all of them at once.
        relations: How many relations.
        channels: Channels of x and y.
        typed: Whether they are merged into one list of typed edges, see :class:`~knockgraph.nn.conv.typed.TypedConv`.
        offered: Options of which the class is given those that its signature names.
    """
    kind = registry.find("convolution", name)
    make = kind.of_channels if hasattr(kind, "of_channels") else partial(kind, channels)
    takes = inspect.signature(make).parameters
    make = partial(make, channels, **{key: value for key, value in offered.items() if key in takes})
    if typed:
        return TypedConv(make(), relations, channels)
    if issubclass(kind, RelationConv):
        conv: RelationConv = make(relations=relations)
        return conv
    return EachRelation([make() for _ in range(relations)], offered.get("backend", "auto"))
