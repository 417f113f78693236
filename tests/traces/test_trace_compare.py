"""Traces side by side: differences, ratios, unequal conditions, ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_cases import header, span, training, write

from knockgraph.traces.categories import Categories
from knockgraph.traces.compare import are_ranks, compare, rank_names, spread
from knockgraph.traces.summary import summarise_file


def summary(folder: Path, name: str, steps: int = 3, factor: int = 1, **fields: Any) -> dict[str, Any]:
    return summarise_file(write(folder / name, training(steps, factor), header(**fields)), Categories())


def by_name(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


def test_per_step(tmp_path: Path) -> None:
    result = compare(summary(tmp_path, "a.json"), summary(tmp_path, "b.json", steps=2, factor=2))
    assert result["per"] == "step"
    assert result["unequal_conditions"] == ["number of steps: 3 against 2"]
    assert (result["step"]["a_ns"], result["step"]["b_ns"], result["step"]["ratio"]) == (1e6, 2e6, 2.0)
    wall = by_name(result["wall"])
    assert wall["forward"] == {
        "name": "forward",
        "a_ns": 150_000,
        "b_ns": 300_000,
        "difference_ns": 150_000,
        "ratio": 2.0,
    }
    assert sum(row["difference_ns"] for row in result["wall"]) == result["span"]["difference_ns"] == 1e6
    gemm = by_name(result["device_operators"])["gemm"]
    assert (gemm["a_ns"], gemm["b_ns"], gemm["a_count"], gemm["b_count"]) == (350_000, 700_000, 6, 4)
    others = by_name(result["other"])
    assert (others["syncs"]["a"], others["kernels"]["a"], others["bytes host to device"]["b"]) == (1, 6, 4_000)
    assert others["GPU busy share"]["difference"] == pytest.approx(0)
    assert result["answer"] == (
        "In b.json, a step takes 2.000 ms against 1.000 ms in a.json: 2.00 times as long; the largest part of the "
        "difference is backward, +0.280 ms of the wall clock."
    )


def test_a_trace_with_itself(tmp_path: Path) -> None:
    one = summary(tmp_path, "a.json")
    result = compare(one, one)
    assert result["labels"] == ["a.json (1)", "a.json (2)"]
    assert result["unequal_conditions"] == []
    assert all(row["difference_ns"] == 0 and row["ratio"] == 1 for row in result["wall"] + result["host_operators"])
    assert result["answer"].endswith("1.00 times as long.")


def test_without_steps_the_whole_traces_are_compared(tmp_path: Path) -> None:
    plain = summarise_file(write(tmp_path / "plain.json", [span("aten::mm", 0, 500)]), Categories())
    result = compare(summary(tmp_path, "a.json"), plain)
    assert result["per"] == "trace"
    assert "step" not in result
    assert result["unequal_conditions"] == [
        "device: NVIDIA H200 against none",
        "GPU events in the trace: yes against no",
        "number of steps: 3 against 0",
        "shapes recorded: yes against no",
        "memory recorded: yes against no",
    ]
    gone = by_name(result["host_operators"])["aten::copy_"]
    assert (gone["b_ns"], gone["ratio"], gone["b_count"]) == (0, 0, 0)
    new = by_name(compare(plain, summary(tmp_path, "a.json"))["wall"])["backward"]
    assert (new["a_ns"], new["ratio"]) == (0, None)
    assert by_name(result["other"])["GPU busy share"]["b"] is None


def test_no_duration(tmp_path: Path) -> None:
    nothing = summarise_file(write(tmp_path / "n.json", [span("aten::mm", 0, 0)]), Categories())
    assert compare(nothing, nothing)["answer"] == "n.json (1) has no duration, so there is nothing to compare."


def test_ranks(tmp_path: Path) -> None:
    traces = [
        summary(tmp_path, f"r{rank}.json", factor=factor, distributedInfo={"rank": rank, "world_size": 3})
        for rank, factor in enumerate((1, 3, 2))
    ]
    assert are_ranks(traces)
    assert are_ranks(traces[:2])
    assert rank_names(traces) == ["rank 0", "rank 1", "rank 2"]
    result = spread(traces)
    assert (result["per"], result["unequal_conditions"]) == ("step", [])
    rows = by_name(result["rows"])
    assert rows["span"] == {
        "name": "span",
        "values_ns": [1e6, 3e6, 2e6],
        "fastest": "rank 0",
        "slowest": "rank 1",
        "spread_ns": 2e6,
        "ratio": 3.0,
    }
    assert rows["GPU busy"]["values_ns"] == [550_000, 1_650_000, 1_100_000]
    assert "idle" not in rows


def test_two_runs_are_not_ranks(tmp_path: Path) -> None:
    a, b = summary(tmp_path, "a.json"), summary(tmp_path, "b.json")
    assert not are_ranks([a, b])
    assert not are_ranks([a])
    assert are_ranks([a, b, a])
    one_process = {"rank": 0, "world_size": 1}
    assert not are_ranks([summary(tmp_path, f"{i}.json", distributedInfo=one_process) for i in range(2)])
    assert rank_names([a, b]) == ["a.json", "b.json"]


def test_ranks_without_gpu_and_unequal(tmp_path: Path) -> None:
    plain = summarise_file(write(tmp_path / "rank2.json", [span("aten::mm", 0, 500)]), Categories())
    result = spread([summary(tmp_path, "rank0.json"), summary(tmp_path, "rank1.json"), plain])
    assert result["per"] == "trace"
    assert result["ranks"] == ["rank 0", "rank 1", "rank 2"]
    assert "device: NVIDIA H200 against none" in result["unequal_conditions"]
    assert by_name(result["rows"])["GPU busy"]["ratio"] is None
