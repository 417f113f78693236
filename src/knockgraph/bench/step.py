"""Step benchmark: whole training steps of the hetero model and of DANGO, on the same graph, in one run."""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch import distributed as dist

from knockgraph import losses, models, strategies
from knockgraph.bench.ceilings import ceilings, floor
from knockgraph.bench.published_dango import PublishedDango
from knockgraph.errors import GraphError, KnockgraphError, ModelError
from knockgraph.graph import CellGraph
from knockgraph.machine import describe_machine
from knockgraph.models.graphed import GraphedModel, can_be_graphed
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.presets import merged
from knockgraph.screen import BoundScreen, PerturbationBatch
from knockgraph.strategies import Strategy
from knockgraph.train.exchange import GradientExchange
from knockgraph.train.memory import is_out_of_memory, predict_peak

PARTS = ("forward", "loss", "backward", "clipping", "optimizer")


@dataclass(frozen=True)
class Variant:
    """One line of the table.

    Args:
        model: Name of the model, or ``published-dango``.
        options: Of the model, beside the reference settings.
        strategy: Name of the strategy.
        half: Whether matrix products are in bfloat16.
        replay: Whether the message passing is replayed as a CUDA graph where that is possible.
        merge: Relations of the graph to merge: new name → patterns.
        about: What it shows.
    """

    model: str = "hetero"
    options: dict[str, Any] = field(default_factory=dict)
    strategy: str = "node-mask"
    half: bool = True
    replay: bool = True
    merge: dict[str, list[str]] | None = None
    about: str = ""


def _hetero(about: str, **messages: Any) -> Variant:
    return Variant(options={"messages": messages}, about=about)


PLAIN = {"kernels": "torch"}
VARIANTS: dict[str, Variant] = {
    "hetero": _hetero("reference settings, node-mask"),
    "hetero, edge masks": Variant(
        options=PLAIN, strategy="device-vectorized", replay=False, about="the reference design: gather and scatter"
    ),
    "hetero, edge masks, our kernels": Variant(
        strategy="device-vectorized", replay=False, about="the same with our node-wise kernels"
    ),
    "hetero, eager": Variant(options=PLAIN, replay=False, about="node-mask, nothing fused, nothing replayed"),
    "dango, published": Variant("published-dango", half=False, replay=False, about="float32, eager, dense matrices"),
    "dango": Variant("dango", about="optimised like our model"),
    "one relation": _hetero("the physical one alone", relations=1),
    "typed": _hetero("all relations in one typed edge list", merge="typed"),
    "STRING merged": Variant(merge={"string": ["string*"]}, about="its channels as one relation"),
    "metabolism": Variant(options={"metabolism": {"enabled": True}}, about="with reactions and metabolites"),
    "cached wild type": Variant(
        options={"readout": {"wild_type": "cached-epoch"}},
        replay=False,
        about="from the start of the epoch: an approximation",
    ),
    "sum": _hetero("relations summed", aggregation="sum"),
    "mean": _hetero("relations averaged", aggregation="mean"),
    "attention": _hetero("self-attention over relations", aggregation="attention"),
    "SAGE": _hetero("instead of GIN", conv="sage"),
    "GCN": _hetero("instead of GIN", conv="gcn"),
    "GATv2": _hetero("instead of GIN", conv="gatv2"),
    **{
        f"{label}, edge masks": Variant(
            options={"messages": {"conv": conv}, **PLAIN}, strategy="device-vectorized", replay=False
        )
        for label, conv in (("SAGE", "sage"), ("GCN", "gcn"), ("GATv2", "gatv2"))
    },
}


def bench_step(
    graph: CellGraph,
    screen: BoundScreen,
    device: str = "cpu",
    batch_sizes: Sequence[int] = (28, 64, 128, 256),
    only: Sequence[str] | None = None,
    repeats: int = 10,
    channels: int = 64,
    layers: int = 3,
    ddp: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Time whole training steps: forward, loss, backward, clipping and optimizer.

    Variants that do not fit into memory, or that the graph has no data for, are listed with the reason. The first batch
    size is measured for every variant, the others for the reference settings and DANGO. Batches are on the device. The
    time of a step is the mean wall-clock time of ``repeats`` steps after a warm-up; the times of its phases are
    medians.
    On a CPU only the size of the demo is practical.

    Args:
        graph: The cell graph.
        screen: Experiments on it.
        device: ``cpu`` or ``cuda``.
        batch_sizes: Samples per batch; the wild type is one more column.
        only: Names of :data:`VARIANTS`; all by default.
        repeats: Timed steps.
        channels: Of all states.
        layers: Of the hetero model.
        ddp: Measure each variant a second time with what several GPUs add to a step: the exchange of the gradients, in
            a process group of one.
        progress: Called with what is being measured.
    """
    names = list(only or VARIANTS)
    for name in names:
        if name not in VARIANTS:
            raise KnockgraphError(f"there is no variant {name!r} to measure; use {', '.join(VARIANTS)}")
    progress("ceilings of the device")
    limits = ceilings(torch.device(device))
    results = []
    for name in names:
        for batch in batch_sizes if name in ("hetero", "dango", "dango, published") else batch_sizes[:1]:
            progress(f"{name}, batch {batch}")
            settings = {"channels": channels, "layers": layers}
            for label, found in _measure(name, graph, screen, device, batch, repeats, settings, ddp).items():
                results.append({"name": label, "batch": batch, **found})
            gc.collect()
            if device == "cuda":
                torch._C._cuda_clearCublasWorkspaces()  # one for each stream that a graph was recorded on
                torch.cuda.empty_cache()
    reference = next((o for o in results if o["name"] == "hetero, edge masks" and "step_ms" in o), None)
    for r in results:
        if reference is not None and "step_ms" in r and r["batch"] == reference["batch"]:
            r["speed_relative_to_edge_masks"] = reference["step_ms"] / r["step_ms"]
    return {
        "benchmark": "step",
        "machine": describe_machine(),
        "conditions": {
            "device": device,
            "genes": graph.num_genes,
            "relations": len(graph.relations),
            "edges": graph.num_edges,
            "channels": channels,
            "layers": layers,
            "repeats": repeats,
        },
        "ceilings": limits,
        "floor": floor(graph, batch_sizes[0] + 1, channels, layers, limits),
        "results": results,
    }


def _measure(
    name: str,
    graph: CellGraph,
    screen: BoundScreen,
    device: str,
    size: int,
    repeats: int,
    settings: dict[str, int],
    ddp: bool,
) -> dict[str, dict[str, Any]]:
    """Label → what was found; the step with the exchange has a label of its own."""
    variant = VARIANTS[name]
    try:
        step = _Step(variant, graph, screen, device, size, settings)
        measured = {name: {"about": variant.about, "strategy": variant.strategy, **step.warm_and_timed(repeats)}}
        if ddp:
            measured |= _exchanged(name, step, measured[name], repeats)
        if device == "cuda" and name == "hetero" and size > 8:
            measured[name]["predicted_bytes"] = step.predicted(screen, size)
        return measured
    except (GraphError, ModelError) as error:  # an option that this graph cannot have
        return {name: {"about": variant.about, "skipped": str(error)}}
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return {name: {"about": variant.about, "skipped": "out of memory on the device"}}


def _exchanged(name: str, step: _Step, alone: dict[str, Any], repeats: int) -> dict[str, dict[str, Any]]:
    """The same step with the exchange of gradients, in a process group of one; then without it once more, because the
    clock of a device may drift.
    """
    backend = "nccl" if step.device.type == "cuda" else "gloo"
    store: Any = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        step.exchange = GradientExchange(step.model.parameters())
        found = step.warm_and_timed(repeats)
        sent, step.exchange = step.exchange.nbytes, None
    finally:
        dist.destroy_process_group()
    again = step.warm_and_timed(repeats)
    ratio = 2 * found["step_ms"] / (alone["step_ms"] + again["step_ms"])
    about = {"about": "with the exchange of gradients, in a process group of one", "strategy": alone["strategy"]}
    return {f"{name}, DDP": {**about, **found, "exchanged_bytes": sent, "step_relative_to_no_exchange": ratio}}


class _Step:
    """One variant's training step, repeated over a few batches."""

    def __init__(
        self,
        variant: Variant,
        graph: CellGraph,
        screen: BoundScreen,
        device: str,
        size: int,
        settings: dict[str, int],
    ) -> None:
        self.device = torch.device(device)
        self.half = variant.half and device == "cuda"
        torch.manual_seed(0)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        if variant.merge is not None:
            graph = graph.merged(variant.merge)
        self.model = _model(variant, graph, settings).to(device)
        self.strategy: Strategy = strategies.create(variant.strategy, graph).to(device)
        self.loss = losses.create("dango" if "dango" in variant.model else "mse").to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4, fused=device == "cuda")
        count = max(len(screen) // size, 1)
        rows = [np.arange(i * size, (i + 1) * size) % len(screen) for i in range(min(count, 8))]
        self.batches = [screen.batch(r).to(device) for r in rows]
        self.number = 0
        self.marks: list[Any] = []
        if not self.model.exact:
            wild_type = self.batches[0].only_wild_type()
            with self._autocast(), self.strategy(wild_type) as view:
                self.model.refresh_wild_type(view)
        self.exchange: GradientExchange | None = None
        self.graphed: GraphedModel | None = None
        if variant.replay and can_be_graphed(self.model, self.strategy, self.device):
            most = max(len(b.perturbation_indices) for b in self.batches)
            with self._autocast():
                self.graphed = GraphedModel(self.model, self.strategy, size, most)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def _mark(self) -> None:
        if self.device.type == "cuda":
            event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def __call__(self) -> Tensor:
        """One step; its value stays on the device."""
        batch = self.batches[self.number % len(self.batches)]
        self.number += 1
        self._mark()
        with contextlib.ExitStack() as stack, self._autocast():
            prediction = self._predict(batch, stack)
            self._mark()
            assert batch.phenotype_values is not None
            target = batch.phenotype_values[:, :1].float()
            parts = self.loss(prediction, target, step_size=batch.step_size)
            self._mark()
            total: Tensor = parts.total
            total.backward()  # type: ignore[no-untyped-call]
        if self.exchange is not None:
            self.exchange()
        self._mark()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self._mark()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._mark()
        return total.detach()

    def _predict(self, batch: PerturbationBatch, stack: contextlib.ExitStack) -> Prediction:
        if self.graphed is not None and self.graphed.takes(batch):
            return self.graphed(batch)
        view = stack.enter_context(self.strategy(self.model.columns(batch)))
        prediction: Prediction = self.model(view, batch)
        return prediction

    def host_syncs(self) -> int | None:
        """How often a step waits for the device; None on a CPU."""
        if self.device.type != "cuda":
            return None
        import warnings

        torch.cuda.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self()
            finally:  # also when the step runs out of memory: the next variant is measured without
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(w.message) and "debug mode" not in str(w.message) for w in caught)

    def warm_and_timed(self, repeats: int) -> dict[str, Any]:
        """As :meth:`timed`, after three steps of warm-up; and how often a step waits for the device."""
        for _ in range(3):
            self()
        syncs = self.host_syncs()
        return {**self.timed(repeats), "host_syncs": syncs}

    def timed(self, repeats: int) -> dict[str, Any]:
        """Milliseconds per step and phase (medians), peak memory, rates."""
        self._wait()
        self.marks.clear()
        start = time.perf_counter()
        for _ in range(repeats):
            self()
        host = time.perf_counter() - start
        self._wait()
        seconds = time.perf_counter() - start
        per_step = len(PARTS) + 1
        steps = [self.marks[i : i + per_step] for i in range(0, len(self.marks), per_step)]
        spans = [[self._between(a, b) for a, b in itertools.pairwise(s)] for s in steps]
        peak = torch.cuda.max_memory_allocated() if self.device.type == "cuda" else None
        step = 1e3 * seconds / repeats
        size = self.batches[0].num_samples
        return {
            "step_ms": step,
            "host_ms": 1e3 * host / repeats,
            "parts_ms": {part: statistics.median(s[i] for s in spans) for i, part in enumerate(PARTS)},
            "it_per_s": 1e3 / step,
            "samples_per_s": 1e3 * size / step,
            "peak_bytes": peak,
            "replayed": self.graphed is not None,
            "parameters": sum(p.numel() for p in self.model.parameters()),
        }

    def predicted(self, screen: BoundScreen, size: int) -> int:
        """Peak bytes as ``knockgraph train`` predicts them before it starts."""
        self.graphed = None
        gc.collect()
        held = torch.cuda.memory_allocated()

        def small(n: int) -> None:
            batch = screen.batch(np.arange(n)).to(self.device)
            with contextlib.ExitStack() as stack, self._autocast():
                self._predict(batch, stack).values.sum().backward()  # type: ignore[no-untyped-call]
            self.optimizer.zero_grad(set_to_none=True)

        return held + predict_peak(small, size, (4, 8), self.device)

    def _between(self, a: Any, b: Any) -> float:
        return float(a.elapsed_time(b)) if self.device.type == "cuda" else 1e3 * (b - a)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def _model(variant: Variant, graph: CellGraph, settings: dict[str, int]) -> CellModel:
    if variant.model == "published-dango":
        return PublishedDango(graph, channels=settings["channels"])
    if variant.model == "dango":
        return models.create("dango", graph, channels=settings["channels"])
    options = merged({"channels": settings["channels"], "messages": {"layers": settings["layers"]}}, variant.options)
    if isinstance(options["messages"].get("relations"), int):
        wanted = "physical" if "physical" in graph.relations else next(iter(graph.relations))
        options["messages"]["relations"] = [wanted]
    return models.create("hetero", graph, preset="reference", **options)
