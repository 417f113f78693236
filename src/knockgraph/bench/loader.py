"""Loader benchmark: the flat loader and PyG's loader on the same screen, in one run."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from knockgraph.graph import CellGraph
from knockgraph.machine import describe_machine
from knockgraph.screen import BoundScreen, PerturbationBatch, Screen, ScreenLoader

Progress = Callable[[str], None]


def bench_loader(
    graph: CellGraph,
    screen: Screen,
    batch_size: int = 28,
    num_workers: int = 2,
    device: str = "cpu",
    pyg_samples: int = 20_000,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Samples per second of every way to load ``screen``, each after one uncounted pass or batch.

    The flat loader delivers whole epochs. PyG's loader is timed on ``pyg_samples`` experiments, the flat loader with
    workers on five times as many, because whole epochs would take minutes to hours; the rates do not depend on where in
    the epoch they are measured.

    Args:
        graph: The cell graph.
        screen: The experiments.
        batch_size: Samples per batch.
        num_workers: Workers of the variants with workers.
        device: Where the resident variant keeps the screen.
        pyg_samples: Experiments that PyG's loader is timed on.
        progress: Called with what is being measured.
    """
    bound = screen.bind(graph)
    results = []
    variants: list[tuple[str, BoundScreen, int]] = [
        ("flat", bound, 0),
        (f"flat, {num_workers} workers", bound, num_workers),
    ]
    if device != "cpu":
        variants.insert(1, (f"flat, resident on {device}", bound.to(device), 0))
    for name, source, workers in variants:
        progress(name)
        loader = ScreenLoader(source, batch_size=batch_size, num_workers=workers, persistent_workers=workers > 0)
        results.append({"name": name, **_time(loader, most=None if workers == 0 else 5 * pyg_samples)})
    for workers in (0, num_workers):
        name = "PyG" if workers == 0 else f"PyG, {workers} workers"
        progress(name)
        results.append({"name": name, **_time_pyg(graph, bound, batch_size, workers, pyg_samples)})
    return {
        "benchmark": "loader",
        "experiments": len(bound),
        "batch_size": batch_size,
        "screen_bytes": bound.nbytes,
        "peak_process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "machine": describe_machine(),
        "results": results,
    }


def _time(loader: ScreenLoader, most: int | None) -> dict[str, Any]:
    """Two whole epochs, or about ``most`` samples."""
    for _ in zip(range(3), loader, strict=False):
        pass  # starts the workers and fills caches
    loader.set_epoch(1)
    samples, batches = 0, 0
    start = time.perf_counter()
    for _ in range(2):
        for batch in loader:
            samples += batch.num_samples
            batches += 1
            if most is not None and samples >= most:
                break
        if most is not None:
            break
    if loader.screen.device.type == "cuda":
        torch.cuda.synchronize()
    return _result(samples, batches, time.perf_counter() - start)


def _time_pyg(graph: CellGraph, bound: BoundScreen, batch_size: int, workers: int, most: int) -> dict[str, Any]:
    from torch_geometric.loader import DataLoader

    from knockgraph.screen.pyg import PerturbationDataset

    def batches() -> Iterator[PerturbationBatch]:
        chosen = PerturbationDataset(bound, graph)[: min(most, len(bound))]
        loader: Iterable[Any] = DataLoader(
            chosen, batch_size, shuffle=True, num_workers=workers, follow_batch=["perturbation_indices"]
        )
        return (PerturbationBatch.from_hetero_batch(batch) for batch in loader)

    stream = batches()
    warm = next(stream)  # starts the workers
    samples, count = 0, 0
    start = time.perf_counter()
    for batch in stream:
        samples += batch.num_samples
        count += 1
    seconds = time.perf_counter() - start
    if count == 0:  # a screen of one batch
        samples, count = warm.num_samples, 1
    return _result(samples, count, seconds)


def _result(samples: int, batches: int, seconds: float) -> dict[str, Any]:
    return {
        "samples": samples,
        "seconds": seconds,
        "samples_per_s": samples / seconds,
        "batches_per_s": batches / seconds,
    }
