"""One trace: figures that were worked out by hand, a real trace of torch, and sums that must hold for any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from trace_cases import AUTOGRAD, MAIN, header, memory, metadata, span, training, write

from knockgraph.traces.categories import Categories
from knockgraph.traces.summary import summarise_file

STEPS = 3


def figures(values: dict[str, int]) -> dict[str, int]:
    """Without zeros."""
    return {name: value for name, value in values.items() if value}


def per_step(values: dict[str, int], steps: int = STEPS) -> dict[str, float]:
    """Microseconds."""
    return {name: value / 1000 / steps for name, value in figures(values).items()}


def check_sums(report: dict[str, Any]) -> None:
    """What must hold for every trace, to the nanosecond."""
    span_ns = report["span_ns"]
    assert sum(report["wall_ns"].values()) == span_ns
    assert sum(report["phases"].values()) == pytest.approx(report["wall_seconds"])
    for track in report["tracks"]:
        assert sum(track["categories"].values()) == track["covered_ns"]
        assert track["covered_ns"] + track["idle_ns"] == span_ns
        assert 0 <= track["longest_gap_ns"] <= track["idle_ns"]
    for kind in ("host", "device"):
        total = sum(t["covered_ns"] for t in report["tracks"] if t["kind"] == kind)
        assert sum(report[kind].values()) == total
        assert sum(row["self_ns"] for row in report[f"{kind}_operators"]) == total
        for row in report[f"{kind}_operators"]:
            assert sum(row["categories"].values()) == row["self_ns"]
    unmatched = report["host"]["unmatched"] + report["device"]["unmatched"]
    assert sum(row["self_ns"] for row in report["unmatched"]) == unmatched
    if report["gpu"] is not None:
        gpu = report["gpu"]
        assert sum(gpu["by_host_category"].values()) == gpu["self_ns"] == sum(report["device"].values())
        for device in gpu["devices"]:
            assert device["busy_ns"] + device["idle_ns"] == span_ns
            assert sum(device["idle_while_host"].values()) == device["idle_ns"]
    json.dumps(report)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = write(tmp_path_factory.mktemp("t") / "t.json", training(STEPS), header())
    made = summarise_file(path, Categories())
    check_sums(made)
    return made


def test_two_threads_by_hand(tmp_path: Path) -> None:
    """The example of the issue: nested events on two threads, self times exact, their sum the span."""
    events = [
        span("knockgraph::forward", 0, 100),  # 100 − 30 − 20 = 50
        span("aten::linear", 10, 30),  # 30 − 25 = 5
        span("aten::addmm", 12, 25),  # 25
        span("aten::relu", 50, 20),  # 20
        span("my code", 150, 50, cat="user_annotation"),  # 50, no rule
        span("autograd::engine::evaluate_function: X", 100, 60, tid=AUTOGRAD),  # 60 − 40 = 20
        span("XBackward0", 110, 40, tid=AUTOGRAD),  # 40 − 10 = 30
        span("aten::mm", 120, 10, tid=AUTOGRAD),  # 10
    ]
    report = summarise_file(write(tmp_path / "t.json", events), Categories())
    check_sums(report)
    self_us = {row["name"]: row["self_ns"] / 1000 for row in report["host_operators"]}
    assert self_us == {
        "knockgraph::forward": 50,
        "aten::linear": 5,
        "aten::addmm": 25,
        "aten::relu": 20,
        "my code": 50,
        "autograd::engine::evaluate_function: X": 20,
        "XBackward0": 30,
        "aten::mm": 10,
    }
    main, autograd = report["tracks"]
    assert report["span_ns"] == 200_000
    assert figures(main["categories"]) == {"forward": 100_000, "unmatched": 50_000}
    assert (main["idle_ns"], main["longest_gap_ns"]) == (50_000, 50_000)
    assert figures(autograd["categories"]) == {"backward": 60_000}
    assert (autograd["idle_ns"], autograd["longest_gap_ns"]) == (140_000, 100_000)
    # The wall clock: the main thread's gap from 100 to 150 is the autograd thread's, what it does later is beside it.
    assert figures(report["wall_ns"]) == {"forward": 100_000, "backward": 50_000, "unmatched": 50_000}
    assert report["unmatched"] == [{"name": "my code", "cat": "user_annotation", "count": 1, "self_ns": 50_000}]


def test_wall_clock(report: dict[str, Any]) -> None:
    assert per_step(report["wall_ns"]) == {
        "data loading": 100,
        "copies": 60,
        "masks/graph": 40,
        "forward": 150,
        "loss": 30,
        "backward": 280,
        "DDP communication": 20,
        "optimizer": 100,
        "device waits": 80,
        "python": 140,
    }
    assert report["wall_seconds"] == 0.003


def test_tracks(report: dict[str, Any]) -> None:
    assert [t["name"] for t in report["tracks"]] == [
        "thread 100 (python), main",
        "thread 200 (pt_autograd_0)",
        "GPU 0 stream 7",
        "GPU 0 stream 20",
    ]
    main, autograd, stream, other = report["tracks"]
    assert per_step(main["categories"])["python"] == 440
    assert per_step(autograd["categories"]) == {"backward": 280, "DDP communication": 20}
    assert autograd["longest_gap_ns"] == 700_000
    assert per_step(stream["categories"]) == {"copies": 20, "kernels": 480}
    assert per_step(other["categories"]) == {"DDP communication": 100}


def test_device(report: dict[str, Any]) -> None:
    gpu = report["gpu"]
    assert per_step(gpu["by_host_category"]) == {
        "copies": 20,
        "masks/graph": 60,
        "forward": 200,
        "loss": 30,
        "backward": 150,
        "DDP communication": 100,
        "optimizer": 40,
    }
    [device] = gpu["devices"]
    assert device["streams"] == 2
    assert device["busy_ns"] == STEPS * 550_000  # the communication runs 50 µs beside a kernel
    assert gpu["busy_share"] == 0.55
    assert gpu["kernels"] == {"count": STEPS * 6, "self_ns": STEPS * 580_000}
    assert per_step(device["idle_while_host"])["device waits"] == 80
    assert per_step(report["device"]) == {"copies": 20, "DDP communication": 100, "kernels": 480}


def test_operators_know_what_they_launched(report: dict[str, Any]) -> None:
    by_name = {row["name"]: row for row in report["host_operators"]}
    assert by_name["aten::mm"]["device_ns"] == STEPS * 200_000
    assert by_name["cudaLaunchKernel"]["count"] == STEPS * 6
    assert set(by_name["cudaLaunchKernel"]["categories"]) == {
        *("masks/graph", "forward", "loss", "backward", "DDP communication", "optimizer")
    }
    gemm = report["device_operators"][0]
    assert (gemm["name"], gemm["count"], gemm["self_ns"]) == ("gemm", STEPS * 2, STEPS * 350_000)


def test_syncs_copies_memory_steps(report: dict[str, Any]) -> None:
    syncs = report["syncs"]
    assert (syncs["count"], syncs["in_steps"], syncs["wait_ns"]) == (STEPS, STEPS, STEPS * 60_000)
    assert syncs["values_read"] == STEPS
    [copies] = report["copies"]
    assert (copies["count"], copies["bytes"], copies["ns"]) == (STEPS, STEPS * 4_000, STEPS * 20_000)
    assert copies["gb_per_s"] == pytest.approx(0.2)
    held = report["memory"]["GPU 0"]
    assert (held["first_bytes"], held["peak_bytes"], held["last_bytes"]) == (5_000, 5_002, 5_002)
    assert held["peak_reserved_bytes"] == 9_000
    assert held["series"] == [[230_000, 5_000], [1_230_000, 5_001], [2_230_000, 5_002]]
    steps = report["steps"]
    assert (steps["count"], steps["first"], steps["last"]) == (STEPS, 0, 2)
    assert (steps["mean_ns"], steps["min_ns"], steps["outside_ns"]) == (1_000_000, 1_000_000, 0)


def test_conditions_and_findings(report: dict[str, Any]) -> None:
    assert report["conditions"] == {
        "devices": ["NVIDIA H200"],
        "device_events": True,
        "steps": STEPS,
        "rank": None,
        "world_size": None,
        "shapes_recorded": True,
        "memory_recorded": True,
        "stacks_recorded": False,
        "host": None,
    }
    assert report["notes"] == []
    first, second, third = report["findings"]
    assert first.startswith(
        "The trace spans 3.000 ms with 3 steps of 1.000 ms on average; the main thread's wall clock is "
    )
    assert "backward 28%, forward 15%, python 14%" in first
    assert second.startswith("The GPU is busy only 55% of the time, so the host is the bottleneck; while GPU 0 is idle")
    assert third == "The host waits for the device 1.0 times a step, 0.180 ms in all (6.0% of the span)."


def test_timelines(report: dict[str, Any]) -> None:
    whole, step = report["timelines"]
    assert (whole["start_ns"], whole["length_ns"]) == (0, 3_000_000)
    assert step["title"] == "step 1, the one of median length"
    names = report["category_names"]
    wall = {row["name"]: row["categories"] for row in step["rows"]}["wall clock"]
    assert len(wall) == 360
    assert [names[c] for c in (wall[0], wall[80], wall[200])] == ["data loading", "forward", "backward"]
    stream = {row["name"]: row["categories"] for row in whole["rows"]}["GPU 0 stream 20"]
    assert set(stream) == {-1, names.index("DDP communication")}


def test_busy_device(tmp_path: Path) -> None:
    events = [
        span("cudaLaunchKernel", 0, 10, cat="cuda_runtime", correlation=1),
        span("big_kernel", 5, 95, tid=7, pid=0, cat="kernel", correlation=1),
        span("Memcpy HtoD (Pageable -> Device)", 100, 2, tid=7, pid=0, cat="gpu_memcpy", bytes=2_000_000),
    ]
    report = summarise_file(write(tmp_path / "t.json", events), Categories())
    check_sums(report)
    assert (
        "so its kernels are the bottleneck; the largest is big_kernel with 98% of the GPU time" in report["findings"][1]
    )
    assert report["findings"][2].startswith("2.000 MB went to the device from pageable memory: pin it")
    assert figures(report["gpu"]["by_host_category"]) == {
        "tensor operations": 95_000,
        "launch not in the trace": 2_000,
    }
    assert report["notes"][0].startswith("0.002 ms of device time were launched by calls that are not in the trace")


def test_a_device_alone(tmp_path: Path) -> None:
    report = summarise_file(write(tmp_path / "t.json", [span("k", 0, 9, tid=7, pid=0, cat="kernel")]), Categories())
    check_sums(report)
    assert figures(report["wall_ns"]) == {"idle": 9_000}


def test_kernels_linked_by_external_id(tmp_path: Path) -> None:
    events = [
        span("knockgraph::loss", 0, 20),
        span("aten::sub", 5, 10, **{"External id": 8}),
        span("sub_kernel", 12, 30, tid=7, pid=0, cat="kernel", **{"External id": 8}),
    ]
    report = summarise_file(write(tmp_path / "t.json", events), Categories())
    assert figures(report["gpu"]["by_host_category"]) == {"loss": 30_000}


def test_without_gpu_events(tmp_path: Path) -> None:
    report = summarise_file(write(tmp_path / "t.json", [span("aten::mm", 0, 5)]), Categories())
    assert report["gpu"] is None
    assert report["notes"][0] == (
        "This trace holds no GPU events, so only the host is shown: to see the device, run on it and record with "
        "ProfilerActivity.CUDA."
    )
    assert report["notes"][1].startswith("This trace has no ProfilerStep#n, so nothing is given per step")


def test_odd_things_are_said(tmp_path: Path) -> None:
    path = tmp_path / "rank3.json"
    events = [
        span("p", 0, 10),
        span("q", 5, 10),
        {"ph": "X", "name": "no time"},
        {"ph": "B", "name": "open", "pid": 5, "tid": 5, "ts": 3},
        span("flush", 0, 7, pid=-1, tid=0, cat="overhead"),
    ]
    path.write_text(json.dumps(events)[:-1])
    report = summarise_file(path, Categories())
    check_sums(report)
    notes = " ".join(report["notes"])
    assert "1 events outlast the event they began in" in notes
    assert "1 events have no usable time and were left out" in notes
    assert "1 events never end" in notes
    assert "0.007 ms of its own overhead" in notes
    assert "The list of events is not closed" in notes
    assert "0.012 ms (44.4% of all self time) match no rule and are shown as unmatched" in notes
    assert report["conditions"]["rank"] == 3


def test_the_main_thread_is_the_one_with_the_steps(tmp_path: Path) -> None:
    events = [span("busy", 0, 100, tid=9), span("ProfilerStep#4", 0, 50, tid=MAIN), *metadata()]
    report = summarise_file(write(tmp_path / "t.json", events), Categories())
    assert report["tracks"][0]["thread"] == MAIN
    assert report["steps"]["outside_ns"] == 50_000


def test_another_thread_is_no_wait_unless_it_works_for_the_step(tmp_path: Path) -> None:
    """A thread that pins memory works beside the main thread; its time must not be taken for the step's."""
    events = [span("ProfilerStep#0", 0, 100), span("aten::pin_memory", 10, 80, tid=9)]
    report = summarise_file(write(tmp_path / "t.json", events), Categories())
    assert figures(report["wall_ns"]) == {"python": 100_000}


def test_long_memory_series_keeps_its_peak(tmp_path: Path) -> None:
    sizes = [(i * 7919) % 5000 for i in range(3000)]
    sizes[1234] = 99_999
    events = [span("a", 0, 1), *(memory(i, size) for i, size in enumerate(sizes))]
    held = summarise_file(write(tmp_path / "t.json", events), Categories())["memory"]["GPU 0"]
    assert len(held["series"]) == 200
    assert max(size for _, size in held["series"]) == held["peak_bytes"] == 99_999
    assert held["peak_ns"] == 1_234_000


names = st.sampled_from(
    [
        "aten::mm",
        "knockgraph::forward",
        "knockgraph::loss",
        "mine",
        "ProfilerStep#1",
        "nccl:x",
        "MmBackward0",
        "cudaMemcpy",
    ]
)
random_event = st.builds(
    lambda name, start, length, tid, cat, link: span(
        name, start / 1000, length / 1000, tid, cat, pid=0, correlation=link, bytes=link
    ),
    names,
    st.integers(0, 500),
    st.integers(0, 200),
    st.integers(0, 2),
    st.sampled_from(["cpu_op", "user_annotation", "kernel", "gpu_memcpy", "cuda_runtime", ""]),
    st.integers(0, 5),
)


@settings(max_examples=80, deadline=None)
@given(events=st.lists(random_event, min_size=1, max_size=25))
def test_sums_hold_for_any_events(tmp_path_factory: pytest.TempPathFactory, events: list) -> None:
    check_sums(summarise_file(write(tmp_path_factory.mktemp("t") / "t.json", events), Categories()))


# ----------------------------------------------------------------------------------------------- a real trace of torch


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "real.json.gz"
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
        record_shapes=True,
        profile_memory=True,
        acc_events=True,
    ) as recorder:
        for _ in range(6):
            with record_function("knockgraph::wait for data"):
                x = torch.randn(16, 32)
            with record_function("knockgraph::forward"):
                y = model(x)
            with record_function("knockgraph::loss"):
                loss = y.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recorder.step()
    return path


def test_real_trace(real: Path) -> None:
    report = summarise_file(real, Categories())
    check_sums(report)
    assert report["steps"]["count"] == 3
    assert report["steps"]["mean_ns"] > 0
    assert report["gpu"] is None
    assert report["conditions"]["shapes_recorded"]
    assert report["memory"]["CPU"]["peak_bytes"] > 0
    for category in ("data loading", "forward", "loss", "backward", "optimizer", "python"):
        assert report["host"][category] > 0, category
    assert report["host"]["unmatched"] == 0
    names = {row["name"]: row for row in report["host_operators"]}
    assert set(names["aten::addmm"]["categories"]) == {"forward"}
    assert set(names["aten::mm"]["categories"]) == {"backward"}
    assert names["Optimizer.step#AdamW.step"]["count"] == 3


def test_real_trace_against_torch_itself(tmp_path: Path) -> None:
    """torch's own self times of a trace, which it keeps in floating microseconds."""
    path = tmp_path / "t.json"
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as recorder:
        x = torch.randn(64, 64, requires_grad=True)
        (x @ x).relu().sum().backward()
    recorder.export_chrome_trace(str(path))
    ours = {row["name"]: row for row in summarise_file(path, Categories())["host_operators"]}
    theirs = {event.key: event for event in recorder.key_averages() if event.key != "[memory]"}
    assert "aten::mm" in theirs
    for name, event in theirs.items():
        assert ours[name]["count"] >= event.count, name  # torch drops an event whose only child has its name
        assert ours[name]["self_ns"] == pytest.approx(event.self_cpu_time_total * 1000, abs=2 * event.count), name
