"""Rows of all ranks, with gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from knockgraph.errors import LossError


def rank_of(world_size: int) -> int:
    """This process among ``world_size``.

    Raises:
        LossError: If the process group does not have that size.
    """
    running = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if running != world_size:
        raise LossError(
            f"gather='differentiable' over {world_size} ranks needs a process group of that size, "
            f"but it has {running}; start the ranks with torchrun, or use gather='none'"
        )
    return dist.get_rank() if running > 1 else 0


def gather_with_gradient(rows: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
    r"""The rows of rank 0, of rank 1, …, the same on every rank: ``[sum(sizes), channels]``.

    Every rank must compute the same function :math:`L` of the result, as part of a loss whose gradients DDP averages.
    The gradient for this rank's rows :math:`x_r` is the sum of all ranks' gradients, :math:`w\, \partial L / \partial
    x_r`, and needs no communication: the other ranks' summands equal the one at hand. The mean over ranks is then
    exactly the gradient of :math:`L` in one process.

    Args:
        rows: ``[sizes[rank], channels]``.
        sizes: Rows of each rank, which every rank knows without asking; any of them may be 0.
        rank: This process.
    """
    return cast(Tensor, _GatherRows.apply(rows, tuple(sizes), rank))  # type: ignore[no-untyped-call]


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: tuple[int, ...], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        # Collectives want equal shapes, so all ranks pad to the longest.
        padded = F.pad(rows, (0, 0, 0, max(sizes) - len(rows))).contiguous()
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        start = sum(ctx.sizes[: ctx.rank])
        return gradients[0][start : start + ctx.sizes[ctx.rank]] * len(ctx.sizes), None, None
