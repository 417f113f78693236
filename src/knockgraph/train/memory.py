"""The memory of a batch, predicted from two small ones and reported before allocation."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from knockgraph.errors import BatchTooLargeError

HOST_MARGIN = 1.2
"""A process takes 11 to 20 % more than its tensors, measured: what kernels need and what the allocator keeps."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the device or on the host: on a CPU torch raises a plain error of its allocator.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 74 GB"))
    True
    >>> is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    False
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of living tensors made inside the block, on any device.

    Attributes:
        peak: The most that was alive at one time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._seen: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while it counts; torch would import its compiler to tell it to look away."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage(), made=False)  # a view of it is nothing new
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._count(leaf.untyped_storage(), made=True)
        return result

    def _count(self, storage: torch.UntypedStorage, made: bool) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        size = storage.nbytes() if made else 0
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def predict_peak(
    step: Callable[[int], Any],
    batch_size: int,
    probes: tuple[int, int] = (2, 4),
    device: torch.device | None = None,
) -> int:
    """Peak bytes of ``step(batch_size)`` on top of what is taken already, extrapolated from two small batches: the peak
    is linear in the batch.

    Args:
        step: Runs a step of the given batch size.
        batch_size: The one to predict.
        probes: Two small batch sizes to run.
        device: On a CUDA device its allocator is asked, which also knows what kernels need inside; on the host tensors
            are counted, and :data:`HOST_MARGIN` is added. Without a device: tensors alone.
    """
    small, large = (_peak(step, n, device) for n in probes)
    per_sample = max(large - small, 0) / (probes[1] - probes[0])
    return int(small + per_sample * (batch_size - probes[0]))


def largest_batch(
    step: Callable[[int], Any],
    available: int,
    most: int = 4096,
    probes: tuple[int, int] = (2, 4),
    device: torch.device | None = None,
) -> int:
    """The largest batch whose predicted peak stays below ``available`` bytes, at most ``most``, at least 1.

    Where ``most`` is no larger than the probes, nothing is tried: they would take as much.
    """
    if most <= probes[1]:
        return max(most, 1)
    small, large = (_peak(step, n, device) for n in probes)
    per_sample = max((large - small) / (probes[1] - probes[0]), 1.0)
    fixed = small - per_sample * probes[0]
    return int(min(max((available - fixed) // per_sample, 1), most))


def available_bytes(device: torch.device) -> int:
    """Memory that can still be taken on ``device``."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return 4 * 2**30


def explain(
    error: BaseException, batch_size: int, strategy: str, predicted: int | None, device: torch.device
) -> BatchTooLargeError:
    """The message for a batch that did not fit."""
    guess = "" if predicted is None else f", predicted {predicted / 1e9:,.1f} GB"
    return BatchTooLargeError(
        f"out of memory on {device} with batch size {batch_size} and strategy {strategy}{guess}, available "
        f"{available_bytes(device) / 1e9:,.1f} GB; use a smaller batch size"
        f"{'' if strategy == 'node-mask' else ' or the strategy node-mask, which keeps no edge messages'} "
        f"({type(error).__name__})"
    )


@contextlib.contextmanager
def explained(
    batch_size: int, strategy: str, device: torch.device, predict: Callable[[], int] | None = None
) -> Iterator[None]:
    """Turn an out-of-memory error inside the block into :class:`BatchTooLargeError`.

    Args:
        batch_size: What was tried.
        strategy: Name of the strategy.
        device: Where.
        predict: The peak bytes that were to be expected, asked for only if something goes wrong.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        predicted = None
        with contextlib.suppress(RuntimeError, MemoryError):
            predicted = None if predict is None else predict()
        raise explain(error, batch_size, strategy, predicted, device) from error


def check_training(
    step: Callable[[int], Any], batch_size: int, strategy: str, device: torch.device, say: Callable[[str], None]
) -> None:
    """Report the memory of a training step on a CUDA device, and refuse a batch that cannot fit."""
    if device.type != "cuda" or batch_size <= 8:
        return
    with explained(batch_size, strategy, device):
        needed = predict_peak(step, batch_size, (4, 8), device)
    free = available_bytes(device) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if needed > free:
        fits = largest_batch(step, free, batch_size, (4, 8), device)
        raise BatchTooLargeError(
            f"a step with batch size {batch_size} and strategy {strategy} would take about {needed / 1e9:,.1f} GB on "
            f"{device}, but {free / 1e9:,.1f} GB are free; use loader.batch_size={fits} or less"
            f"{'' if strategy == 'node-mask' else ', or the strategy node-mask'}"
        )
    say(f"memory: a step takes about {needed / 1e9:,.1f} GB of the {free / 1e9:,.1f} GB that are free on {device}")


def _peak(step: Callable[[int], Any], batch_size: int, device: torch.device | None = None) -> int:
    if device is not None and device.type == "cuda":
        step(batch_size)  # what is made once, such as workspaces, is there from now on
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step(batch_size)
        return torch.cuda.max_memory_allocated(device) - before
    counter = PeakBytes()
    with counter:
        step(batch_size)
    return counter.peak if device is None else int(HOST_MARGIN * counter.peak)
