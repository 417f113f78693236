"""The step benchmark on the demo cell, through the command; and DANGO as published against ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from training_runs import run
from typer.testing import CliRunner

import knockgraph as kg
from knockgraph import models
from knockgraph.bench.ceilings import floor
from knockgraph.bench.published_dango import PublishedDango
from knockgraph.bench.step import VARIANTS, bench_step
from knockgraph.cli import app
from knockgraph.errors import KnockgraphError
from knockgraph.report import step as report_step
from knockgraph.sources.scaled import Sizes, scaled_cell, scaled_screen
from knockgraph.strategies.device_vectorized import DeviceVectorized


def small_cell() -> tuple[kg.CellGraph, kg.Screen]:
    generator = torch.Generator().manual_seed(0)
    names = ("physical", "string_fusion", "string_coexpression")
    relations = {name: torch.randint(0, 20, (2, 60), generator=generator).unique(dim=1) for name in names}
    genes = [f"g{i}" for i in range(20)]
    index = {name: i for i, name in enumerate(genes)}
    metabolism = kg.Metabolism.from_reactions([kg.Reaction("r", {"a": -1, "b": 1}, gene_rule="g0 and g1")], index)
    screen = kg.Screen([["g1", "g2"], ["g3"], ["g4", "g5", "g6"]] * 4, {"score": [0.1, 0.2, 0.3] * 4})
    return kg.CellGraph(genes, relations, metabolism), screen


def test_published_dango_is_dango() -> None:
    graph, screen = small_cell()
    batch = screen.bind(graph).batch(torch.arange(4).numpy())
    torch.manual_seed(0)
    ours = models.create("dango", graph, channels=8, heads=2).double()
    theirs = PublishedDango(graph, channels=8, heads=2).double()
    theirs.load_state_dict(ours.state_dict())
    view = kg.strategies.create("node-mask", graph)(batch.only_wild_type())
    results = []
    for model in (ours, theirs):
        prediction = model(view, batch)
        (prediction.values.sum() + prediction.auxiliary["reconstruction"]).backward()
        gradients = [p.grad for p in model.parameters()]
        results.append([prediction.values, prediction.auxiliary["reconstruction"], *gradients])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_every_variant_runs() -> None:
    graph, screen = small_cell()
    bound, sizes = screen.bind(graph), {"repeats": 1, "channels": 8, "layers": 2}
    report = bench_step(graph, bound, batch_sizes=(4,), **sizes)
    assert {r["name"] for r in report["results"]} == set(VARIANTS)
    both = bench_step(graph, bound, batch_sizes=(4, 6), only=["hetero"], **sizes)
    assert [r["batch"] for r in both["results"]] == [4, 6]
    for r in report["results"] + both["results"]:
        assert r["step_ms"] > 0
        assert sum(r["parts_ms"].values()) <= 1.5 * r["step_ms"]
        assert r["samples_per_s"] == pytest.approx(r["batch"] * r["it_per_s"])
    shown = report_step.rows(report)
    assert all(len(row) == len(report_step.HEADINGS) for row in shown)
    assert "times that" in report_step.limits(report)
    assert "<svg" in report_step.html(report)
    json.dumps(report)


def test_floor_counts() -> None:
    graph, _ = small_cell()
    found = floor(graph, 5, 8, 3, {"matmul_flops_per_s": 1e9, "copy_bytes_per_s": 1e9}, hidden=4)
    rows, relations, pairs = 100, 3, 6
    forward = 2 * rows * (relations * 4 * 8 * 8 + pairs * (16 * 4 + 4 * 8) + (pairs + 1) * 8 * 4)
    assert found["flops"] == 2 * 3 * forward
    assert found["floor_ms"] == max(found["flops_ms"], found["bytes_ms"])


def test_an_unknown_variant_is_named() -> None:
    graph, screen = small_cell()
    with pytest.raises(KnockgraphError, match="there is no variant 'fastest' to measure; use hetero, "):
        bench_step(graph, screen.bind(graph), only=["fastest"])


def test_command(tmp_path: Path) -> None:
    words = ["--channels", "16", "--layers", "1", "--repeats", "1", "--batch-size", "4"]
    words += ["--json", str(tmp_path / "step.json"), "--html", str(tmp_path / "step.html")]
    done = run("bench", "step", "--only", "dango", "--only", "hetero", "--ddp", *words)
    assert "ceilings:" in done.stdout
    report = json.loads((tmp_path / "step.json").read_text())
    assert [r["name"] for r in report["results"]] == ["dango", "dango, DDP", "hetero", "hetero, DDP"]
    exchanged = report["results"][3]
    assert exchanged["exchanged_bytes"] >= 4 * exchanged["parameters"]
    assert exchanged["step_relative_to_no_exchange"] > 0
    assert "times the step without the exchange of 0." in done.stdout
    assert "Training steps" in (tmp_path / "step.html").read_text()


@pytest.mark.parametrize("option", ["--batch-size", "--repeats", "--channels", "--layers"])
def test_nothing_to_measure_is_refused(option: str) -> None:
    """They ended in a division by zero."""
    shown = CliRunner().invoke(app, ["bench", "step", option, "0"])
    assert shown.exit_code == 2
    assert f"Invalid value for '{option}'" in shown.output
    assert "equal to 1" in shown.output


def test_what_the_graph_cannot_have_or_hold_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*ignored: object, **also: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 74.00 GiB")

    sizes = Sizes(120, 900, 2)
    graph = scaled_cell(sizes)
    graph = kg.CellGraph(graph.genes, {f"r{i}": r.edge_index for i, r in enumerate(graph.relations.values())})
    screen = scaled_screen(sizes).bind(graph)
    monkeypatch.setattr(DeviceVectorized, "__call__", full)
    only = ["hetero", "hetero, edge masks", "metabolism", "STRING merged"]
    report = bench_step(graph, screen, batch_sizes=(4,), only=only, repeats=1, channels=8, layers=1)
    measured, masks, metabolism, merged = report["results"]
    assert measured["step_ms"] > 0
    assert masks["skipped"] == "out of memory on the device"
    assert "has no metabolism" in metabolism["skipped"]
    assert "no relation matches 'string*'" in merged["skipped"]  # the demo cell has none either
    assert "skipped: out of memory on the device" in report_step.html(report)


@pytest.mark.parametrize("benchmark", ["step", "strategies"])
def test_sizes_of_a_synthetic_cell(benchmark: str, tmp_path: Path) -> None:
    """As on a GPU, where Hydra and LMDB need not be installed."""
    path = tmp_path / "out.json"
    words = [
        "knockgraph",
        "bench",
        benchmark,
        "--genes",
        "300",
        "--edges",
        "5000",
        "--relations",
        "2",
        "--json",
        str(path),
    ]
    words += ["--only", "hetero" if benchmark == "step" else "node-mask", "--repeats", "1", "--batch-size", "4"]
    program = (
        "import sys; sys.modules.update(hydra=None, omegaconf=None, lmdb=None, lightning=None)\n"
        f"from knockgraph.cli import main; sys.argv = {words}; main()"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "300 genes, 2 relations, 5,000 edges" in done.stdout
    report = json.loads(path.read_text())
    assert [r["name"] for r in report["results"]] == [words[words.index("--only") + 1]]
    assert "skipped" not in report["results"][0]


def test_sizes_and_a_scale_that_has_its_own() -> None:
    shown = CliRunner().invoke(app, ["bench", "step", "--scale", "yeast", "--genes", "300", "--edges", "9"])
    assert isinstance(shown.exception, KnockgraphError)
    assert str(shown.exception) == "--scale yeast has its own sizes; leave out --genes, --edges, or leave out --scale"
