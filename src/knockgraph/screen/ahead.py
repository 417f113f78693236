"""Copying batches to a device while the ones before are worked on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from knockgraph.phases import WAIT, phase
from knockgraph.screen.batch import PerturbationBatch


def copied_ahead(batches: Iterable[PerturbationBatch], device: torch.device) -> Iterator[PerturbationBatch]:
    """The same batches on ``device``; each is copied, on a stream of its own, when the one before is handed over.

    Copy and computation overlap if the batches are in page-locked memory.

    Args:
        batches: On the host.
        device: A CUDA device; on any other the batches are only moved one ahead.
    """
    side = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
    source = iter(batches)
    ready = _copied(source, device, side)
    while ready is not None:
        if side is not None:
            ready = _handed_over(ready, side)
        following = _copied(source, device, side)
        yield ready
        ready = following


def _copied(
    source: Iterator[PerturbationBatch], device: torch.device, side: torch.cuda.Stream | None
) -> PerturbationBatch | None:
    batch = next(source, None)
    if batch is None:
        return None
    with phase(WAIT, "copy ahead"), torch.cuda.stream(side):  # a stream of None changes nothing
        return batch.to(device, non_blocking=True)


def _handed_over(batch: PerturbationBatch, side: torch.cuda.Stream) -> PerturbationBatch:
    """Let the current stream wait for the copy, and keep its memory until that stream is done with it."""
    current = torch.cuda.current_stream(side.device)
    current.wait_stream(side)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensor.record_stream(current)
        return tensor

    return batch.mapped(keep)
