"""What the processes of a run tell each other: gradients, once per optimizer step; values, where they are logged."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from knockgraph.errors import TrainingStoppedError

_ALIGNED = 64  # elements: every gradient starts where an optimizer can load whole vectors


class GradientExchange:
    r"""The mean of every gradient over the :math:`w` ranks, :math:`g \leftarrow \frac1w \sum_r g_r`.

    All gradients are copied into one flat buffer (one for each data type), which is reduced in a single call, and the
    parameters' ``grad`` are views of it afterwards. It does not matter who wrote the gradients: autograd, or a replayed
    CUDA graph, which the hooks of ``DistributedDataParallel`` would not see. With NCCL, which works on the device's
    streams, the host waits for nothing.

    A parameter without a gradient counts as zeros, as another rank may have one, unless it is not trained now
    (``requires_grad`` is off). If none has a gradient, there was no backward pass, and nothing is exchanged.

    Args:
        parameters: In the same order on every rank.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._flat: list[Tensor] = []
        self._places: list[tuple[Tensor, Tensor]] = []
        for dtype, group in groupby(sorted(parameters, key=lambda p: str(p.dtype)), key=lambda p: p.dtype):
            members = list(group)
            starts = [0]
            for parameter in members:
                starts.append(starts[-1] + -(-parameter.numel() // _ALIGNED) * _ALIGNED)
            flat = torch.zeros(starts[-1], dtype=dtype, device=members[0].device)
            self._flat.append(flat)
            for parameter, (start, _) in zip(members, pairwise(starts), strict=True):
                # Laid out as autograd lays out a gradient; a fused optimizer accepts nothing else.
                strides = torch.empty_like(parameter).stride()
                self._places.append((parameter, flat.as_strided(parameter.shape, strides, start)))

    @property
    def nbytes(self) -> int:
        """What is sent in each optimizer step."""
        return sum(flat.nbytes for flat in self._flat)

    def __call__(self) -> None:
        """Replace the gradients by their means; every rank must call it."""
        given = [(place, p.grad) for p, place in self._places if p.grad is not None]
        if not given:
            return
        torch._foreach_copy_([place for place, _ in given], [gradient for _, gradient in given])
        missing = [place for p, place in self._places if p.grad is None]
        if missing:
            torch._foreach_zero_(missing)
        for flat in self._flat:
            dist.all_reduce(flat)
            flat.div_(dist.get_world_size())
        for parameter, place in self._places:
            if parameter.requires_grad:
                parameter.grad = place


def check_alike(model: nn.Module) -> None:
    """Check that all ranks train the same parameters.

    Raises:
        TrainingStoppedError: If they do not.
    """
    mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    for rank, others in enumerate(ranks):
        if others != ranks[0]:
            raise TrainingStoppedError(
                f"process {rank} has other parameters than process 0 ({_difference(others, ranks[0])}); start all "
                "processes with the same config and the same versions"
            )


def _difference(mine: list[Any], first: list[Any]) -> str:
    if len(mine) != len(first):
        return f"{len(mine)} of them instead of {len(first)}"
    a, b = next((a, b) for a, b in zip(mine, first, strict=True) if a != b)
    return f"{a[0]} {list(a[1])} {a[2]} instead of {b[0]} {list(b[1])} {b[2]}"


def several() -> bool:
    """Whether this process has others to talk to."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def mean_over_ranks(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each scalar's mean over all ranks, in one all-reduce; in one process as they are."""
    if not several():
        return values
    packed = torch.stack([value.detach() for value in values.values()])
    dist.all_reduce(packed)
    return dict(zip(values, (packed / dist.get_world_size()).unbind(), strict=True))


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether it is so in any of the processes; all of them must ask."""
    if not several():
        return flag
    mine = torch.tensor(float(flag), device=device)
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    return bool(mine)
