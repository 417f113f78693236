"""Strategy benchmark: all strategies on the same graph, batch and layer, in one run."""

from __future__ import annotations

import gc
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knockgraph import registry, strategies
from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph
from knockgraph.machine import describe_machine
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs, Strategy
from knockgraph.strategies.mask_store import MARGIN
from knockgraph.train.memory import is_out_of_memory

#: What is measured: name in the table → (strategy, options).
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name.partition(",")[0], {"layout": "padded"} if name.endswith(", padded") else {})
    for known in strategies.available()
    for name in ([known, f"{known}, padded"] if known == "device-vectorized" else [known])
}
FULL_SCREEN = 332_313  # experiments that stored sizes are extrapolated to
_RELATIVE_TO = "lazy-mask"


def bench_sizes(
    graph: CellGraph,
    genotypes: Sequence[Sequence[int]],
    sizes: Sequence[int],
    deletions: Sequence[int],
    progress: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> dict[str, Any]:
    """:func:`bench_strategies` for several batch sizes and numbers of deletions; each result says which are its own.

    Args:
        graph: The cell graph.
        genotypes: Deleted genes, at least as many genotypes as the largest batch, and in each as many as are deleted.
        sizes: Samples of a batch; the wild type is one more column.
        deletions: How many genes each sample deletes, the first of its genotype.
        progress: Called with what is being measured.
        options: See :func:`bench_strategies`.
    """
    if len(genotypes) < max(sizes) or min(map(len, genotypes)) < max(deletions):
        raise StrategyError(
            f"there are {len(genotypes)} genotypes to take batches of {max(sizes)} from; choose a smaller batch size"
        )
    reports = []
    for size in sizes:
        for count in deletions:
            batch = PerturbationBatch.from_lists([g[:count] for g in genotypes[:size]], graph.num_genes)
            what = f", {size} samples with {count} deletions" if len(sizes) * len(deletions) > 1 else ""
            reports.append(bench_strategies(graph, batch.with_wild_type(), progress=_told(progress, what), **options))
            for result in reports[-1]["results"]:
                result.update(samples=size, deletions=count)
    whole = reports[0]
    whole["conditions"] |= {"samples": list(sizes), "deletions": list(deletions)}
    whole["results"] = [result for report in reports for result in report["results"]]
    return whole


def _told(progress: Callable[[str], None], what: str) -> Callable[[str], None]:
    return lambda name: progress(name + what)


def bench_strategies(
    graph: CellGraph,
    batch: PerturbationBatch,
    device: str = "cpu",
    channels: int = 64,
    dtype: torch.dtype = torch.float32,
    repeats: int = 5,
    workers: int = 2,
    only: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Time one layer's aggregations over all relations, forward and backward, for every strategy.

    A step is: the batch goes to the device, the strategy makes its view, every relation is aggregated (``sum``), the
    gradient flows back. On a CPU the relations are taken one at a time, forward and backward, so that the strategies
    with edge masks fit into memory. Times are medians over ``repeats`` after one or two uncounted rounds.

    Args:
        graph: The cell graph.
        batch: The batch on the host, wild type included if wanted.
        device: ``cpu`` or ``cuda``.
        channels: Channels of the features.
        dtype: Of the features.
        repeats: Timed rounds.
        workers: Loader workers that the collation of worker strategies is spread over.
        only: Names of :data:`VARIANTS`, or of any other strategy; all by default.
        progress: Called with what is being measured.
    """
    torch.manual_seed(0)
    # The same values in every column, stored separately: with features other than those of the wild type,
    # 'neighborhood' could not reuse anything.
    x = torch.randn(graph.num_genes, 1, channels).to(device, dtype).repeat(1, batch.num_columns, 1)
    shape = (len(graph.relations),) * (device == "cuda") + tuple(x.shape)
    upstream = torch.randn(shape).to(device, dtype)
    results = []
    for name in only or VARIANTS:
        if name not in VARIANTS:
            registry.check("strategy", name)
        progress(name)
        with tempfile.TemporaryDirectory() as folder:
            results.append({"name": name, **_measure(name, graph, batch, x, upstream, repeats, workers, Path(folder))})
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    reference = next((r for r in results if r["name"] == _RELATIVE_TO and "samples_per_s" in r), None)
    for r in results:
        if reference is not None and "samples_per_s" in r:
            r["speed_relative_to_lazy_mask"] = r["samples_per_s"] / reference["samples_per_s"]
            r["layer_relative_to_lazy_mask"] = _layer(reference) / _layer(r)
    return {
        "benchmark": "strategies",
        "machine": describe_machine(),
        "conditions": {
            "device": device,
            "genes": graph.num_genes,
            "relations": len(graph.relations),
            "edges": graph.num_edges,
            "batch": batch.num_columns,
            "wild_type_included": batch.wild_type,
            "channels": channels,
            "dtype": str(dtype).removeprefix("torch."),
            "workers": workers,
            "repeats": repeats,
            "one_relation_at_a_time": device == "cpu",
        },
        "results": results,
    }


def _layer(result: dict[str, Any]) -> float:
    seconds: float = result["masks_s"] + result["forward_s"] + result["backward_s"]
    return seconds


def _measure(
    name: str,
    graph: CellGraph,
    batch: PerturbationBatch,
    x: Tensor,
    upstream: Tensor,
    repeats: int,
    workers: int,
    folder: Path,
) -> dict[str, Any]:
    kind, options = VARIANTS.get(name, (name, {}))
    device = x.device
    try:
        strategy = strategies.create(kind, graph, **options)
        strategy.prepare(batch, folder / "store")
        strategy = strategy.to(device)
        own_collate = strategy.collate
        collated = own_collate(batch)  # the first reads an opened store and warms the cache
        collate_s = _median(lambda: own_collate(batch), 3, torch.device("cpu"))
        timed, peak = _timed(strategy, collated, x, upstream, repeats)
        syncs = _count_syncs(strategy, collated, x) if device.type == "cuda" else None
    except StrategyError as error:
        return {"skipped": str(error)}
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {"skipped": "out of memory"}
    memory = strategy.memory()
    step = sum(timed.values())
    worker_bound = collate_s / workers if strategy.placement != "device" else 0.0
    result: dict[str, Any] = {
        "placement": strategy.placement,
        "exact": strategy.exact,
        "collate_s": collate_s,
        **timed,
        "step_s": step,
        "samples_per_s": batch.num_samples / max(step, worker_bound),
        "bytes_moved": strategy.bytes_moved(collated),
        "memory": memory,
        "tables": strategy.tables(),
        "peak_bytes": peak,
        "host_syncs": syncs,
    }
    if not strategy.exact:
        result["relative_error"] = _relative_error(strategy, graph, batch, x)
    if "disk" in memory:
        records = len({tuple(sorted(genes)) for genes in batch.tolist()} | {()})
        result["disk_bytes_full_screen_extrapolated"] = (memory["disk"] - MARGIN) * FULL_SCREEN // records
    return result


@torch.no_grad()
def _relative_error(strategy: Strategy, graph: CellGraph, batch: PerturbationBatch, x: Tensor) -> dict[str, float]:
    """How far an approximate strategy is from the exact result after one, two and three layers of mean aggregation.

    Relative to the effect of the deletions, ``‖approximate − exact‖ / ‖exact − wild type‖``, which is what a model of
    perturbations learns from; 1 means that the effect is lost completely.
    """
    here = batch.to(x.device)
    exact = strategies.create(strategies.DEFAULT, graph).to(x.device)
    with strategy(here) as guess, exact(here) as truth:
        start = x[:, :1].float().expand_as(x)
        states, errors = (start, start), {}
        for layer in (1, 2, 3):
            mine, right = (_mean_over_relations(v, s) for v, s in zip((guess, truth), states, strict=True))
            states = (mine, right)
            effect = (right - right[:, -1:]).norm()
            errors[f"{layer} layers"] = float((mine - right).norm() / effect) if effect > 0 else 0.0
    return errors


def _mean_over_relations(view: PerturbedGraphs, x: Tensor) -> Tensor:
    names = view.strategy.relation_names
    total = torch.zeros_like(x)
    for name in names:  # one at a time: strategies with messages per edge need the memory
        total += view.aggregate(name, x, "mean")
    return total / len(names)


def _timed(
    strategy: Strategy, batch: PerturbationBatch, x: Tensor, upstream: Tensor, repeats: int
) -> tuple[dict[str, float], int]:
    """Median seconds by phase, and the peak of additional memory."""
    device = x.device
    if device.type == "cuda":
        batch = batch.pin_memory()
    rounds: list[dict[str, float]] = []
    warm_up = 2 if device.type == "cuda" else 1
    with _PeakMemory(device) as peak:
        for _ in range(warm_up + repeats):
            clock = _Clock(device)
            here = batch.to(device, non_blocking=True)
            clock.lap("transfer_s")
            with strategy(here) as view:
                clock.lap("masks_s")
                _forward_backward(view, x, upstream, clock)
            rounds.append(clock.seconds)
    counted = rounds[warm_up:]
    phases = ("transfer_s", "masks_s", "forward_s", "backward_s")
    return {phase: sorted(r[phase] for r in counted)[len(counted) // 2] for phase in phases}, peak.bytes


def _forward_backward(view: PerturbedGraphs, x: Tensor, upstream: Tensor, clock: _Clock) -> None:
    """All relations on a GPU, one at a time on a CPU; ``upstream`` is the gradient of every relation's result."""
    x = x.detach().requires_grad_()
    if x.device.type == "cuda":
        outputs = _aggregate(view, x)
        clock.lap("forward_s")
        torch.autograd.backward(outputs, list(upstream) if len(outputs) > 1 else [upstream])
        clock.lap("backward_s")
        return
    for name in view.strategy.relation_names:
        output = view.aggregate(name, x)
        clock.lap("forward_s")
        output.backward(upstream)  # type: ignore[no-untyped-call]
        clock.lap("backward_s")
        del output


def _aggregate(view: PerturbedGraphs, x: Tensor) -> list[Tensor]:
    """Stacked where the strategy has one product for all relations; for the others stacking would only copy."""
    if type(view).aggregate_all is not PerturbedGraphs.aggregate_all:
        return [view.aggregate_all(x)]
    return [view.aggregate(name, x) for name in view.strategy.relation_names]


def _count_syncs(strategy: Strategy, batch: PerturbationBatch, x: Tensor) -> int:
    """How often the host waits for the device in one strategy call with its aggregations and gradient."""
    here = batch.to(x.device)
    x = x.detach().requires_grad_()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with strategy(here) as view:
                outputs = _aggregate(view, x)
                torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(w.message) for w in caught)


class _Clock:
    """Lap times; on CUDA by events that are read after the round, so that timing adds no waits."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self._laps: list[tuple[str, float, Any]] = []
        self._mark("start")

    def _mark(self, phase: str) -> None:
        event: Any = None
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
        self._laps.append((phase, time.perf_counter(), event))

    def lap(self, phase: str) -> None:
        """Everything since the last lap belongs to ``phase``."""
        self._mark(phase)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase."""
        if self.cuda:
            torch.cuda.synchronize()
        total: dict[str, float] = {}
        for (_, t0, e0), (phase, t1, e1) in zip(self._laps, self._laps[1:], strict=False):
            total[phase] = total.get(phase, 0.0) + (e0.elapsed_time(e1) / 1e3 if self.cuda else t1 - t0)
        return total


class _PeakMemory:
    """The peak of additional memory inside the block: the allocator's count, or sampled RSS."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.bytes = 0

    def __enter__(self) -> _PeakMemory:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self._base = torch.cuda.memory_allocated()
            return self
        self._base = _resident()
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.bytes = max(self.bytes, _resident() - self._base)

    def __exit__(self, *ignored: object) -> None:
        if self.cuda:
            self.bytes = torch.cuda.max_memory_allocated() - self._base
            return
        self._stop.set()
        self._watcher.join()
        self.bytes = max(self.bytes, _resident() - self._base)


def _resident() -> int:
    """Resident bytes of this process; 0 if the system does not report them."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


def _median(call: Callable[[], Any], repeats: int, device: torch.device) -> float:
    seconds = []
    for _ in range(repeats):
        clock = _Clock(device)
        call()
        clock.lap("call")
        seconds.append(clock.seconds["call"])
    return sorted(seconds)[repeats // 2]
