"""Per-block partial sums over rows, packed for one reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Shape = tuple[int, ...]


def partial_sums(like: Tensor, shares: int, *shapes: Shape) -> tuple[Tensor, list[Tensor]]:
    """Memory [shares, numbers] in float32 and, within, one view [shares, *shape] for each shape."""
    whole = torch.empty(shares, sum(map(math.prod, shapes)), dtype=torch.float32, device=like.device)
    return whole, parts_of(whole, *shapes)


def parts_of(whole: Tensor, *shapes: Shape) -> list[Tensor]:
    """The last axis cut into parts of the given shapes.

    >>> [list(part.shape) for part in parts_of(torch.zeros(5, 8), (2, 3), (2,))]
    [[5, 2, 3], [5, 2]]
    """
    pieces = torch.split(whole, [math.prod(shape) for shape in shapes], -1)
    return [piece.view(*piece.shape[:-1], *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def apart(parts: Sequence[Tensor]) -> list[Tensor]:
    """Parts of one memory as tensors of their own (operators must not give two views of one), copied in one go."""
    copies = [torch.empty_like(part) for part in parts]
    torch._foreach_copy_(copies, list(parts))
    return copies
