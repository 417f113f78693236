"""What the processes of a run tell each other: gradients, once per optimizer step; values, where they are logged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import torch
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch import distributed as dist

from knockgraph.errors import TrainingStoppedError
from knockgraph.phases import SYNC, phase

_ALIGNED = 64  # elements: every gradient starts where vector loads of an optimizer can


class GradientExchange:
    r"""The mean of every gradient over the :math:`w` ranks, :math:`g \leftarrow \frac1w \sum_r g_r`.

    All gradients are copied into one flat buffer (one for each data type), which is reduced in a single call, and the
    parameters' ``grad`` are views of it afterwards. It does not matter who wrote the gradients: autograd, or a replayed
    CUDA graph, which the hooks of ``DistributedDataParallel`` would not see. Nothing is waited for on the host where
    the backend works on the device's stream (NCCL).

    A parameter without a gradient counts as zeros, as another rank may have one. If none has a gradient, there was no
    backward pass, and nothing is exchanged.

    Args:
        parameters: In the same order on every rank.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        by_type = groupby(sorted(parameters, key=lambda p: str(p.dtype)), key=lambda p: p.dtype)
        self._flat: list[Tensor] = []
        self._places: list[tuple[Tensor, Tensor]] = []
        for dtype, group in by_type:
            members = list(group)
            lengths = [-(-p.numel() // _ALIGNED) * _ALIGNED for p in members]
            flat = torch.zeros(sum(lengths), dtype=dtype, device=members[0].device)
            self._flat.append(flat)
            for parameter, part in zip(members, flat.split(lengths), strict=True):
                # Laid out as autograd lays out a gradient; a fused optimizer accepts nothing else.
                place = torch.as_strided(
                    part, parameter.shape, torch.empty_like(parameter).stride(), part.storage_offset()
                )
                self._places.append((parameter, place))

    @property
    def bytes(self) -> int:
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
            parameter.grad = place


class Ranks(DDPStrategy):
    """Lightning's processes for DDP, with a :class:`GradientExchange` in place of torch's wrapper of the module.

    The exchange comes between the backward pass of the last accumulated batch and the clipping. So a step replayed as a
    CUDA graph runs on several GPUs as on one.
    """

    def _setup_model(self, model: nn.Module) -> Any:
        """Not wrapped. All ranks start from the parameters and buffers of the first, but for a strategy's tables."""
        check_alike(model)
        _sync_module_states(model)
        self._exchange = GradientExchange(p for p in model.parameters() if p.requires_grad)
        return model

    def _register_ddp_hooks(self) -> None:
        """None: there is nothing to hook into."""

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: nn.Module | None = None, **kwargs: Any
    ) -> Any:
        """Lightning's, with the exchange after ``closure``, which runs the last backward pass of the step."""

        def exchanged() -> Any:
            result = closure()
            with phase(SYNC):
                self._exchange()
            return result

        return super().optimizer_step(optimizer, exchanged, model, **kwargs)


def check_alike(model: nn.Module) -> None:
    """Whether all ranks train the same parameters.

    Raises:
        TrainingStoppedError: If they do not.
    """
    mine = [(name, list(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    for rank, others in enumerate(ranks):
        if others != ranks[0]:
            first = next((a for a, b in zip(others, ranks[0], strict=False) if a != b), None)
            what = f"there are {len(others)} instead of {len(ranks[0])}" if first is None else f"see {first[0]}"
            raise TrainingStoppedError(
                f"process {rank} has other parameters than process 0 ({what}); start all processes with the same "
                "config and the same versions"
            )


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
