"""The strategy benchmark, as a function and as a person would call it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from strategy_cases import CASES
from training_runs import run

import knockgraph as kg
from knockgraph.bench.strategies import FULL_SCREEN, VARIANTS, bench_sizes, bench_strategies
from knockgraph.report import strategies as report_strategies
from knockgraph.strategies.device_vectorized import DeviceVectorized

CASE = CASES["random"]


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    batch = CASE.batch.with_wild_type()
    told: list[str] = []
    made = bench_strategies(CASE.graph, batch, channels=4, repeats=1, progress=told.append)
    assert told == list(VARIANTS)
    return made


def test_every_strategy_is_measured(report: dict[str, Any]) -> None:
    assert {name for name, _ in VARIANTS.values()} == set(kg.strategies.available())
    assert [r["name"] for r in report["results"]] == list(VARIANTS)
    assert not [r for r in report["results"] if "skipped" in r]


def test_fields(report: dict[str, Any]) -> None:
    times = ("collate_s", "transfer_s", "masks_s", "forward_s", "backward_s")
    batch = CASE.batch.with_wild_type()
    for r in report["results"]:
        assert all(r[key] >= 0 for key in times), r["name"]
        assert r["step_s"] == pytest.approx(sum(r[key] for key in times[1:]))
        assert r["samples_per_s"] > 0
        assert r["placement"] in ("worker", "stored", "device")
        assert r["exact"] == (r["name"] != "neighborhood")
        assert r["peak_bytes"] >= 0
        assert r["host_syncs"] is None  # there is no device to wait for
        assert r["memory"]["device tables"] == sum(r["tables"].values())
        assert r["speed_relative_to_lazy_mask"] > 0
        assert ("disk_bytes_full_screen_extrapolated" in r) == (r["placement"] == "stored")
    by_name = {r["name"]: r for r in report["results"]}
    assert by_name["lazy-mask"]["layer_relative_to_lazy_mask"] == 1.0
    assert by_name["lazy-mask"]["bytes_moved"] == batch.nbytes + CASE.graph.num_edges * len(batch)
    assert by_name["node-mask"]["bytes_moved"] == batch.nbytes
    stored = by_name["stored-masks"]["disk_bytes_full_screen_extrapolated"]
    assert stored >= FULL_SCREEN * CASE.graph.num_edges
    conditions = report["conditions"]
    assert (conditions["genes"], conditions["edges"]) == (CASE.graph.num_genes, CASE.graph.num_edges)
    assert (conditions["batch"], conditions["wild_type_included"], conditions["dtype"]) == (len(batch), True, "float32")
    assert json.loads(json.dumps(report)) == report


def test_only_and_unknown() -> None:
    made = bench_strategies(CASE.graph, CASE.batch, channels=2, repeats=1, only=["node-mask"], dtype=torch.float64)
    assert [r["name"] for r in made["results"]] == ["node-mask"]
    assert "layer_relative_to_lazy_mask" not in made["results"][0]  # nothing to relate it to
    with pytest.raises(kg.KnockgraphError, match=r"no strategy 'nodemask' .did you mean 'node-mask'"):
        bench_strategies(CASE.graph, CASE.batch, only=["nodemask"])


def test_what_cannot_run_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from knockgraph.strategies import mask_store

    def missing() -> None:
        raise kg.StrategyError("the stored strategies need LMDB: pip install 'knockgraph[stored]'")

    monkeypatch.setattr(mask_store, "_lmdb", missing)
    made = bench_strategies(CASE.graph, CASE.batch, channels=2, repeats=1, only=["stored-masks", "node-mask"])
    assert "need LMDB" in made["results"][0]["skipped"]
    assert "samples_per_s" in made["results"][1]
    assert "need LMDB" in report_strategies.html(made)
    assert report_strategies.rows(made)[0] == ["stored-masks", f"skipped: {made['results'][0]['skipped']}"]


def assert_self_contained(page: str) -> None:
    """Nothing is fetched: no script, no link, no address but the names of XML vocabularies."""
    assert not re.search(r"<script|<link|<iframe|@import", page)
    for attribute in re.findall(r"""(?:src|href|action|data)\s*=\s*["']([^"']*)""", page):
        assert attribute.startswith("#"), attribute
    assert not re.search(r"url\(\s*['\"]?(?!#)", page)


def test_page(report: dict[str, Any]) -> None:
    page = report_strategies.html(report)
    assert_self_contained(page)
    for name in VARIANTS:
        assert name in page
    assert "332,313 experiments (extrapolated)" in page
    assert "<svg" in page


def test_command_line(tmp_path: Path) -> None:
    arguments = ["bench", "strategies", "--only", "node-mask", "--only", "lazy-mask", "--repeats", "1"]
    arguments += ["--batch-size", "4", "--channels", "4"]
    arguments += ["--json", "out.json", "--html", "out.html", "--plot", "out.svg"]
    done = run(*arguments, cwd=tmp_path)
    written = json.loads((tmp_path / "out.json").read_text())
    assert [r["name"] for r in written["results"]] == ["node-mask", "lazy-mask"]
    assert written["conditions"]["batch"] == 5
    assert written["conditions"]["genes"] == 360
    assert "node-mask" in done.stdout
    assert "lazy-mask" in done.stdout
    page = (tmp_path / "out.html").read_text()
    assert_self_contained(page)
    assert "node-mask" in page
    assert (tmp_path / "out.svg").read_text().lstrip().startswith(("<?xml", "<svg"))
    assert_self_contained((tmp_path / "out.svg").read_text())


def test_command_line_errors(tmp_path: Path) -> None:
    done = run("bench", "strategies", "--only", "nodemask", "--repeats", "1", cwd=tmp_path, code=1)
    assert "no strategy 'nodemask'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 74240000000 bytes"),
        MemoryError(),
    ],
)
def test_what_does_not_fit_is_listed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def full(*ignored: object, **also: object) -> None:
        raise error

    monkeypatch.setattr(DeviceVectorized, "__call__", full)
    made = bench_strategies(CASE.graph, CASE.batch, channels=2, repeats=1, only=["device-vectorized", "node-mask"])
    assert made["results"][0] == {"name": "device-vectorized", "skipped": "out of memory"}
    assert "samples_per_s" in made["results"][1]


def test_other_errors_are_not_taken_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*ignored: object, **also: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(DeviceVectorized, "__call__", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        bench_strategies(CASE.graph, CASE.batch, channels=2, repeats=1, only=["device-vectorized"])


def test_several_batch_sizes_and_numbers_of_deletions() -> None:
    told: list[str] = []
    genotypes = [[0, 1, 2], [2, 1, 3], [4, 0, 1], [3, 4, 0]]
    only = ["lazy-mask", "device-inplace", "node-mask"]
    made = bench_sizes(CASE.graph, genotypes, [2, 4], [1, 2, 3], told.append, channels=2, repeats=1, only=only)
    found = [(r["name"], r["samples"], r["deletions"]) for r in made["results"]]
    assert found == [(name, size, count) for size in (2, 4) for count in (1, 2, 3) for name in only]
    by_place = dict(zip(found, made["results"], strict=True))
    for size in (2, 4):
        moved = [by_place["node-mask", size, count]["bytes_moved"] for count in (1, 2, 3)]
        assert moved[1] - moved[0] == moved[2] - moved[1] == 2 * 8 * size  # a gene and its sample, int64, each
        assert by_place["lazy-mask", size, 1]["layer_relative_to_lazy_mask"] == 1.0
        assert by_place["device-inplace", size, 1]["tables"]["base masks"] == CASE.graph.num_edges * (size + 1)
    assert told[0] == "lazy-mask, 2 samples with 1 deletions"
    assert "batch 3 and 5 (the wild type included)" in report_strategies.conditions(made)
    assert report_strategies.rows(made)[-1][0] == "node-mask 4×3"
    assert [line.split(",")[0] for line in report_strategies.tables(made)] == ["lazy-mask", "device-inplace"]
    assert "node-mask 2×1" in report_strategies.html(made)
    with pytest.raises(kg.StrategyError, match="4 genotypes to take batches of 5 from; choose a smaller batch size"):
        bench_sizes(CASE.graph, genotypes, [5], [1])
