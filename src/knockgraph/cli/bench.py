"""``knockgraph bench``: compare speed and learning in one run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from knockgraph.cli.terminal import (
    HELP,
    Html,
    Json,
    Scale,
    busy,
    check_device,
    out,
    writable,
    writable_folder,
    write_text,
)
from knockgraph.errors import KnockgraphError
from knockgraph.files import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from knockgraph import CellGraph, Screen

bench_app = typer.Typer(help="Compare speed and learning in one run.", **HELP)


class BenchScale(StrEnum):
    """Which cell; the human-size one is synthetic and meant only for timing."""

    demo = "demo"
    yeast = "yeast"
    human = "human"


_BUILT_IN = {"demo": "demo", "yeast": "yeast-scale"}  # scale → cell and screen


CellScale = Annotated[
    BenchScale | None, typer.Option("--scale", help="Which cell; human: 20,000 genes, 10 M edges. Default: demo.")
]
Genes = Annotated[int | None, typer.Option(help="Number of genes of a synthetic cell; default: as human.")]
Edges = Annotated[int | None, typer.Option(help="Its number of edges over all relations; default: as human.")]
Relations = Annotated[int | None, typer.Option(help="Its number of relations; default: nine.")]


@bench_app.command("loader")
def bench_loader(
    scale: Annotated[Scale, typer.Option(help="Which built-in cell.")] = Scale.yeast,
    experiments: Annotated[
        list[int] | None, typer.Option(help="Screen sizes; default: the demo's, or 332,313 and 20,000,000 for yeast.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per batch.")] = 28,
    workers: Annotated[int, typer.Option(help="Worker processes of the variants with workers.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda: where the resident variant keeps the screen.")] = "cpu",
    pyg_samples: Annotated[int, typer.Option(min=1, help="Number of experiments for timing PyG's loader.")] = 20_000,
    json_: Json = None,
) -> None:
    """Samples per second of the flat loader and of PyG's, on the same screen."""
    from knockgraph.bench.loader import bench_loader as run
    from knockgraph.sources.presets import build_graph, import_screen
    from knockgraph.sources.source import ScreenOptions

    check_device(device)
    graph, _ = build_graph(_BUILT_IN[scale], None)
    runs: list[dict[str, Any]] = []
    for count in experiments or ([8_000] if scale is Scale.demo else [332_313, 20_000_000]):
        with busy("generating the screen") as say:
            screen, _ = import_screen(_BUILT_IN[scale], None, ScreenOptions(experiments=count))
            report = run(graph, screen, batch_size, workers, device, pyg_samples, lambda name: say(f"timing {name}"))
        runs.append(report)
        del screen
        out.print(
            Text(f"{report['experiments']:,} experiments,", "bold"),
            f"batch {batch_size}: the screen takes "
            f"{report['screen_bytes'] / 1e6:,.1f} MB, the process at most {report['peak_process_bytes'] / 1e9:.2f} GB",
        )
        slowest = min(r["samples_per_s"] for r in report["results"])
        table = Table("loader", box=None, pad_edge=False)
        for heading in ("samples/s", "batches/s", "timed on", "relative"):
            table.add_column(heading, justify="right")
        for r in report["results"]:
            table.add_row(
                r["name"],
                f"{r['samples_per_s']:,.0f}",
                f"{r['batches_per_s']:,.0f}",
                f"{r['samples']:,}",
                f"{r['samples_per_s'] / slowest:,.1f}×",
            )
        out.print(table)
    write_json(json_, {"benchmark": "loader", "runs": runs})


@bench_app.command("strategies")
def bench_strategies(
    scale: CellScale = None,
    genes: Genes = None,
    edges: Edges = None,
    relations: Relations = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch_size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Samples; may be repeated. The wild type is added as one more column. Default: 28."),
    ] = None,
    deletions: Annotated[
        list[int] | None,
        typer.Option(min=1, max=3, help="Deleted genes per sample, 1 to 3; may be repeated. Default: 3."),
    ] = None,
    channels: Annotated[int, typer.Option(min=1, help="Channels of the features.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float64; default bfloat16 on cuda.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="Measure only this one; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed rounds, after the warm-up.")] = 5,
    workers: Annotated[int, typer.Option(help="Workers that share the collation of worker strategies.")] = 2,
    plot: Annotated[Path | None, typer.Option(callback=writable, help="Also plot the times to this SVG file.")] = None,
    html: Html = None,
    json_: Json = None,
) -> None:
    """Time, memory, bytes moved and host syncs of all strategies on the same layer, in one run.

    Example: knockgraph bench strategies --scale demo --json strategies.json
    """
    from knockgraph.bench.strategies import bench_sizes
    from knockgraph.report import strategies as report_strategies

    check_device(device)
    kind = _dtype(dtype or ("bfloat16" if device == "cuda" else "float32"))
    with busy("generating the cell") as say:
        graph, screen = _cell(scale, genes, edges, relations)
        sizes, counts = batch_size or [28], deletions or [3]
        triples = (screen.genotypes.size == 3).nonzero()[0][: max(sizes)]
        report = bench_sizes(
            graph,
            screen.bind(graph).batch(triples).tolist(),
            sizes,
            counts,
            lambda name: say(f"timing {name}"),
            device=device,
            channels=channels,
            dtype=kind,
            repeats=repeats,
            workers=workers,
            only=only,
        )
    out.print(report_strategies.conditions(report))
    _print_table(report_strategies.HEADINGS, report_strategies.rows(report))
    for line in report_strategies.tables(report):
        out.print(line)
    for line in [*report_strategies.disk(report), *report_strategies.errors(report)]:
        out.print(line)
    write_text(plot, report_strategies.picture, report)
    write_text(html, report_strategies.html, report)
    write_json(json_, report)


@bench_app.command("step")
def bench_step(
    scale: CellScale = None,
    genes: Genes = None,
    edges: Edges = None,
    relations: Relations = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch_size: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Samples; may be repeated. Default: 28, on cuda also 64, 128 and 256."),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Measure only this one; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps, after the warm-up.")] = 10,
    channels: Annotated[int, typer.Option(min=1, help="Channels of all states.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the hetero model.")] = 3,
    ddp: Annotated[
        bool, typer.Option("--ddp", help="Also with the gradient exchange of several GPUs, in a process group of one.")
    ] = False,
    html: Html = None,
    json_: Json = None,
) -> None:
    """Whole training steps: the hetero model with and without edge masks, its options, and DANGO, in one run.

    Example: knockgraph bench step --scale yeast --device cuda --json step.json
    """
    from knockgraph.bench.step import bench_step as run
    from knockgraph.report import step as report_step

    check_device(device)
    sizes = batch_size or ([28, 64, 128, 256] if device == "cuda" else [28])
    with busy("generating the cell") as say:
        graph, screen = _cell(scale, genes, edges, relations)
        report = run(graph, screen.bind(graph), device, sizes, only, repeats, channels, layers, ddp, say)
    out.print(report_step.conditions(report))
    _print_table(report_step.HEADINGS, report_step.rows(report))
    for line in [report_step.limits(report), *report_step.predictions(report), *report_step.exchanges(report)]:
        out.print(line)
    write_text(html, report_step.html, report)
    write_json(json_, report)


@bench_app.command("tune")
def bench_tune(
    repeats: Annotated[int, typer.Option(min=1, help="Timed calls for each candidate.")] = 10,
    keep: Annotated[bool, typer.Option(help="Keep the result in the cache folder, to be used from now on.")] = True,
    json_: Json = None,
) -> None:
    """Time the fused kernels with other tiles than the default ones on this GPU, and keep the fastest.

    Example: knockgraph bench tune --json tune.json
    """
    from knockgraph.bench import tune

    check_device("cuda")
    with busy("making the operands") as say:
        report = tune.bench_tune(repeats=repeats, progress=say)
    _print_table(("kernel", "default", "tuned"), tune.rows(report))
    for r in report["results"]:
        before, after = (f"{r[key]:,.2f}" if r[key] is not None else "–" for key in ("default_ms", "tuned_ms"))
        out.print(f"{r['family']}, forward and backward: {before} ms with the default tiles, {after} ms tuned")
    if keep:
        out.print(f"kept in {tune.keep(report)}")
    write_json(json_, report)


@bench_app.command("learn")
def bench_learn(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides of the config for all variants: data=… data.split.kind=… …", show_default=False),
    ] = None,
    scale: Annotated[Scale | None, typer.Option(help="Which built-in data; other data: data=…. Default: demo.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Train this variant; may be repeated.")] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Train your own: 'name: model=hetero model.options.messages.conv=sage'; may be repeated."),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Every convolution × aggregation × local predictor, as small models.")
    ] = False,
    baseline: Annotated[
        list[str] | None, typer.Option(help="Fit this baseline; may be repeated. Default: all.")
    ] = None,
    goal: Annotated[
        float | None, typer.Option(help="Validation Pearson (AUROC) to reach. Default: that of the best baseline.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of each variant. Default: as in the config.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="At most this many optimizer steps for each variant.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per batch.")] = None,
    experiments: Annotated[int | None, typer.Option(min=10, help="Use only this many experiments.")] = None,
    validate_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between validations; default: 20 per run.")
    ] = None,
    validate_on: Annotated[int, typer.Option(min=2, help="At most this many validation experiments.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of the weights and of the order.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda; on cuda in bf16 unless trainer.precision=32-true.")] = "cpu",
    keep: Annotated[
        Path | None, typer.Option(callback=writable_folder, help="Keep the run directories in this folder.")
    ] = None,
    html: Html = None,
    json_: Json = None,
) -> None:
    """Time to quality: train several models on the same data and compare them with the baselines.

    Example: knockgraph bench learn --scale demo --only hetero-small --only dango --epochs 10 --html learn.html
    """
    from knockgraph.bench import learn
    from knockgraph.report import learn as report_learn

    check_device(device)
    given = list(overrides or [])
    if scale is not None and any(word.startswith("data=") for word in given):
        raise KnockgraphError("--scale and data=… both name the data; leave one out")
    variants = learn.chosen(only, variant, matrix, demo=scale is not Scale.yeast and not given)
    words = learn.settings(
        device=device,
        matrix=matrix,
        data=None if scale is None else _BUILT_IN[scale],
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        experiments=experiments,
        given=given,
    )
    with busy("reading the data") as say:
        report = learn.bench_learn(
            words,
            variants,
            goal=goal,
            baseline_names=baseline,
            validate_every=validate_every,
            validate_on=validate_on,
            directory=keep,
            progress=say,
            so_far=lambda report: write_json(json_, report),
        )
    out.print(report_learn.conditions(report))
    _print_table(report_learn.headings(report), report_learn.rows(report))
    for line in report_learn.outcome(report):
        out.print(line)
    write_text(html, report_learn.html, report)
    write_json(json_, report)
    learn.check_any(report)


def _cell(
    scale: BenchScale | None, genes: int | None, edges: int | None, relations: int | None
) -> tuple[CellGraph, Screen]:
    """The cell to measure on and 20,000 experiments (8,000 for the demo); with sizes, a synthetic cell."""
    from knockgraph.sources.presets import build_graph, import_screen
    from knockgraph.sources.scaled import Sizes, scaled_cell, scaled_screen
    from knockgraph.sources.source import ScreenOptions

    sizes = {"genes": genes, "edges": edges, "relations": relations}
    given = {name: value for name, value in sizes.items() if value is not None}
    if given and scale in (BenchScale.demo, BenchScale.yeast):
        named = ", ".join(f"--{name}" for name in given)
        raise KnockgraphError(f"--scale {scale} has its own sizes; leave out {named}, or leave out --scale")
    if given or scale is BenchScale.human:
        return scaled_cell(Sizes(**given)), scaled_screen(Sizes(**given))
    name = _BUILT_IN[scale or BenchScale.demo]
    options = ScreenOptions(experiments=20_000 if scale is BenchScale.yeast else None)
    return build_graph(name, None)[0], import_screen(name, None, options)[0]


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; rows shorter than the headings were skipped and follow below it, with the reason last."""
    table = Table(headings[0], box=None, pad_edge=False)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        if len(row) == len(headings):
            table.add_row(*row)
    out.print(table)
    for row in rows:
        if len(row) < len(headings):
            out.print(f"{', '.join(row[:-1])}: {row[-1]}")


def _dtype(name: str) -> torch.dtype:
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if name not in known:
        raise KnockgraphError(f"--dtype {name!r} is not known: use {', '.join(known)}")
    return known[name]
