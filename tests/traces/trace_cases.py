"""Traces made by hand, whose figures are known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]
PROCESS, MAIN, AUTOGRAD = 100, 100, 200
STEP = 1_000  # microseconds


def span(
    name: str, start: float, duration: float, tid: Any = MAIN, cat: str = "cpu_op", pid: Any = PROCESS, **args: Any
) -> Event:
    """An event with a duration, in microseconds."""
    event: Event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration}
    return {**event, "args": args} if args else event


def training_step(number: int, start: int) -> list[Event]:
    """One step of 1,000 µs as torch records it on a GPU: two threads, two streams.

    main thread:          data loading 100, copies 60, masks 40, forward 150, loss 30, optimizer 100, waits 80, rest 440
    autograd thread:      backward 280 + DDP communication 20, from 450 to 750, while the main thread waits
    wall clock:           the same with 300 of the rest given to the autograd thread
    stream 7:             copy 20, kernels 60 (masks), 200 (forward), 30 (loss), 150 (backward), 40 (optimizer)
    stream 20:            communication 100, 50 of them beside the backward kernel
    """

    def at(name: str, begin: int, duration: int, **more: Any) -> Event:
        return span(name, start + begin, duration, **more)

    base = number * 100

    def launch(begin: int, which: int, tid: int = MAIN, name: str = "cudaLaunchKernel") -> Event:
        return at(name, begin, 10, tid=tid, cat="cuda_runtime", correlation=base + which)

    def work(
        name: str, begin: int, duration: int, which: int, stream: int = 7, cat: str = "kernel", **args: Any
    ) -> Event:
        return at(name, begin, duration, tid=stream, pid=0, cat=cat, correlation=base + which, **args)

    return [
        at(f"ProfilerStep#{number}", 0, 1000, cat="user_annotation"),
        at("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 100, cat="user_annotation"),
        at("knockgraph::host to device", 100, 60, cat="user_annotation"),
        at("aten::copy_", 110, 40),
        launch(120, 1, name="cudaMemcpyAsync"),
        at("knockgraph::masks", 160, 40, cat="user_annotation"),
        launch(180, 2),
        at("knockgraph::forward", 200, 150, cat="user_annotation"),
        at("aten::mm", 220, 60, **{"External id": base + 3}),
        launch(240, 3),
        at("knockgraph::loss", 350, 30, cat="user_annotation"),
        launch(360, 4),
        at("autograd::engine::evaluate_function: MmBackward0", 450, 300, tid=AUTOGRAD),
        at("MmBackward0", 460, 200, tid=AUTOGRAD),
        launch(500, 5, AUTOGRAD),
        at("nccl:all_reduce", 700, 20, tid=AUTOGRAD),
        launch(705, 6, AUTOGRAD),
        at("Optimizer.step#AdamW.step", 780, 100, cat="user_annotation"),
        launch(800, 7),
        at("aten::item", 900, 80),
        at("aten::_local_scalar_dense", 905, 70),
        at("cudaStreamSynchronize", 910, 60, cat="cuda_runtime"),
        work("Memcpy HtoD (Pinned -> Device)", 130, 20, 1, cat="gpu_memcpy", bytes=4_000),
        work("masks_kernel", 190, 60, 2),
        work("gemm", 250, 200, 3, **{"External id": base + 3}),
        work("loss_kernel", 450, 30, 4),
        work("gemm", 510, 150, 5),
        work("ncclDevKernel_AllReduce_Sum_f32", 610, 100, 6, stream=20),
        work("adamw", 810, 40, 7),
        at("ProfilerStep#" + str(number), 130, 720, tid=7, pid=0, cat="gpu_user_annotation"),
        memory(start + 230, 5_000 + number),
    ]


def memory(time: int, allocated: int) -> Event:
    """What torch records when memory of GPU 0 is allocated."""
    args = {"Total Reserved": 9_000, "Total Allocated": allocated, "Bytes": 10, "Device Id": 0, "Device Type": 1}
    event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": PROCESS, "tid": MAIN}
    return {**event, "ts": time, "args": args}


def metadata() -> list[Event]:
    """Names of threads and processes."""
    names = {MAIN: f"thread {MAIN} (python)", AUTOGRAD: f"thread {AUTOGRAD} (pt_autograd_0)"}
    return [
        {"ph": "M", "name": "thread_name", "pid": PROCESS, "tid": tid, "ts": 0, "args": {"name": name}}
        for tid, name in names.items()
    ]


def training(steps: int = 3, factor: int = 1) -> list[Event]:
    """Steps one after the other; ``factor`` makes them that many times as long."""
    events = [event for n in range(steps) for event in training_step(n, 5_000 + n * STEP)]
    if factor != 1:
        for event in events:
            event["ts"] *= factor
            if "dur" in event:
                event["dur"] *= factor
    return [*events, *metadata()]


def header(**more: Any) -> dict[str, Any]:
    """The fields that torch writes beside the events."""
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "record_shapes": 1, **more}


def write(path: Path, events: list[Event], fields: dict[str, Any] | None = None, last: bool = True) -> Path:
    """Write a trace in the object form; ``.gz`` is packed; the fields stand before or after the events."""
    fields = fields or {}
    document = {**fields, "traceEvents": events} if last else {"traceEvents": events, **fields}
    text = json.dumps(document, indent=1)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path
