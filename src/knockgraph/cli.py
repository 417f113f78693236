"""The command line: one thin function per command."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from knockgraph.errors import KnockgraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen

_HELP = {"no_args_is_help": True, "rich_markup_mode": "rich", "pretty_exceptions_enable": False}
app = typer.Typer(help="Graph neural networks on each gene deletion's own copy of one shared cell graph.", **_HELP)  # type: ignore[arg-type]
graph_app = typer.Typer(help="Build, look at and check cell graphs.", **_HELP)  # type: ignore[arg-type]
screen_app = typer.Typer(help="Import, look at and split screens (tables of experiments).", **_HELP)  # type: ignore[arg-type]
bench_app = typer.Typer(help="Measure, side by side in one run.", **_HELP)  # type: ignore[arg-type]
app.add_typer(graph_app, name="graph")
app.add_typer(screen_app, name="screen")
app.add_typer(bench_app, name="bench")

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
if not out.is_terminal:
    out.width = 160  # a pipe or a file has no width; rich would cut tables at 80 columns


class GraphPreset(StrEnum):
    """Where a cell graph comes from."""

    demo = "demo"
    yeast_scale = "yeast-scale"
    tables = "tables"


class ScreenSource(StrEnum):
    """Where a screen comes from."""

    demo = "demo"
    yeast_scale = "yeast-scale"
    table = "table"


class SplitKind(StrEnum):
    """How experiments are shared out over train, val and test."""

    random = "random"
    genotype = "genotype"
    unseen_genes = "unseen-genes"
    k_fold = "k-fold"


class Unseen(StrEnum):
    """How many genes of a test genotype are unseen in training."""

    one = "one"
    any = "any"
    all = "all"


class Scale(StrEnum):
    """Which built-in cell."""

    demo = "demo"
    yeast = "yeast"


Json = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file as JSON.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The file to write.")]
From = Annotated[Path | None, typer.Option("--from", help="File or folder to read.")]
Seed = Annotated[int, typer.Option(help="Same seed, same result.")]


@graph_app.command("build")
def graph_build(
    output: Output,
    preset: Annotated[GraphPreset, typer.Option(help="demo and yeast-scale are built in; tables reads --from.")],
    from_: From = None,
    seed: Seed = 0,
    json_: Json = None,
) -> None:
    """Build a cell graph and save it.

    [bold]demo[/]: some hundred genes, trains in a minute. [bold]yeast-scale[/]: synthetic, the size of yeast's real
    networks. [bold]tables[/]: your own genes.csv and relations/*.csv in the folder given by --from.

    Example: knockgraph graph build --preset demo -o demo.cellgraph
    """
    from knockgraph.graph.summary import summarise

    graph = _build(preset, from_, seed)
    content_hash = graph.save(output)
    out.print(f"[green]wrote[/] {output}: {graph} (content hash {content_hash[:12]})")
    _write_json(json_, {"file": str(output), "content_hash": content_hash, **summarise(graph)})


@graph_app.command("info")
def graph_info(file: Annotated[Path, typer.Argument(help="A .cellgraph file.")], json_: Json = None) -> None:
    """Show genes, relations and metabolism of a cell graph."""
    from knockgraph.graph import CellGraph
    from knockgraph.graph.summary import summarise

    summary = summarise(CellGraph.load(file))
    out.print(f"[bold]{file}[/]: {summary['genes']:,} genes, {summary['other_names']:,} other names")
    table = Table("relation", box=None, pad_edge=False)
    for heading in ("genes touched", "edges", "symmetric", "self loops", "median degree", "max in", "max out"):
        table.add_column(heading, justify="right")
    for name, r in summary["relations"].items():
        table.add_row(
            name,
            f"{r['genes_touched']:,}",
            f"{r['edges']:,}",
            "yes" if r["symmetric"] else "no",
            f"{r['self_loops']:,}",
            f"{r['degree_median']:g}",
            f"{r['in_degree_max']:,}",
            f"{r['out_degree_max']:,}",
        )
    table.add_row("[bold]sum[/]", "", f"[bold]{summary['edges']:,}[/]")
    out.print(table)
    if summary["features"]:
        out.print("features: " + ", ".join(f"{name} ({d})" for name, d in summary["features"].items()))
    m = summary["metabolism"]
    if m:
        out.print(
            f"metabolism: {m['reactions']:,} reaction nodes ({m['reactions_with_genes']:,} with genes, "
            f"{m['growth_reactions']} growth), {m['metabolites']:,} metabolites, "
            f"{m['gpr']:,} gpr and {m['rmr']:,} rmr entries"
        )
    out.print(f"gene-list hash {summary['gene_list_hash'][:12]}")
    _write_json(json_, summary)


@graph_app.command("check")
def graph_check(file: Annotated[Path, typer.Argument(help="A .cellgraph file.")], json_: Json = None) -> None:
    """Verify a cell graph file (format, hashes, ranges) and point out what may surprise."""
    from knockgraph.graph import CellGraph
    from knockgraph.graph.summary import remarks

    graph = CellGraph.load(file)
    notes = remarks(graph)
    out.print(f"[green]sound[/] {file}: {graph}")
    for note in notes:
        out.print(f"  note: {note}")
    _write_json(json_, {"file": str(file), "sound": True, "notes": notes})


@screen_app.command("import")
def screen_import(
    name: Annotated[ScreenSource, typer.Argument(help="demo and yeast-scale are built in; table reads --from.")],
    output: Output,
    from_: From = None,
    merge: Annotated[
        str, typer.Option(help="Merge repeated genotypes by: mean, median or first; 'no' keeps all.")
    ] = "no",
    experiments: Annotated[int | None, typer.Option(help="How many, for the built-in screens.")] = None,
    seed: Seed = 0,
    json_: Json = None,
) -> None:
    """Turn a table of experiments into a screen file (Parquet).

    [bold]table[/] reads CSV, TSV or Parquet with a column [bold]genotype[/] (genes joined by +, WT for the wild type)
    and one numeric column per phenotype.

    Example: knockgraph screen import table --from my.csv -o my.parquet
    """
    from knockgraph.screen.summary import summarise

    screen = _import(name, from_, experiments, seed)
    before = screen.duplicates()
    if merge != "no":
        screen = screen.merge_duplicates(merge)  # type: ignore[arg-type]
    screen.save(output)
    out.print(f"[green]wrote[/] {output}: {screen}")
    if before.genotypes:
        what = f"merged by {merge}" if merge != "no" else "kept; merge them with --merge mean"
        out.print(f"  note: {before.genotypes:,} genotypes were measured more than once ({what})")
    _write_json(json_, {"file": str(output), "merge": merge, **summarise(screen)})


@screen_app.command("info")
def screen_info(
    file: Annotated[Path, typer.Argument(help="A screen file (Parquet).")],
    graph: Annotated[Path | None, typer.Option(help="Also check the gene names against this cell graph.")] = None,
    json_: Json = None,
) -> None:
    """Show genotypes, phenotypes and repeated measurements of a screen."""
    from knockgraph.screen import Screen
    from knockgraph.screen.summary import summarise

    screen = Screen.load(file)
    summary = summarise(screen)
    deletions = ", ".join(f"{count:,} with {size}" for size, count in summary["deletions"].items())
    out.print(
        f"[bold]{file}[/]: {summary['experiments']:,} experiments on {summary['genes']:,} genes; deletions: {deletions}"
    )
    table = Table("phenotype", box=None, pad_edge=False)
    for heading in ("measured", "missing", "mean", "std", "min", "max"):
        table.add_column(heading, justify="right")
    table.add_column("statistics")
    for name, f in summary["phenotypes"].items():
        figures = [f"{f[key]:.4g}" if key in f else "–" for key in ("mean", "std", "min", "max")]
        table.add_row(name, f"{f['measured']:,}", f"{f['missing']:,}", *figures, ", ".join(f["statistics"]))
    out.print(table)
    repeated = summary["duplicates"]
    if repeated["genotypes"]:
        out.print(
            f"{repeated['genotypes']:,} genotypes were measured more than once (at most {repeated['most']} times)"
        )
    if graph is not None:
        summary["binding"] = _binding(screen, graph)
    _write_json(json_, summary)


@screen_app.command("split")
def screen_split(
    file: Annotated[Path, typer.Argument(help="A screen file (Parquet).")],
    output: Output,
    kind: Annotated[SplitKind, typer.Option(help="How to split.")] = SplitKind.genotype,
    fractions: Annotated[str, typer.Option(help="Shares of train, val and test.")] = "0.8,0.1,0.1",
    unseen: Annotated[
        Unseen, typer.Option(help="unseen-genes: how many genes of a test genotype are unseen.")
    ] = Unseen.one,
    held_out: Annotated[float, typer.Option(help="unseen-genes: share of genes held out for val and for test.")] = 0.1,
    folds: Annotated[int, typer.Option(help="k-fold: number of folds.")] = 5,
    fold: Annotated[int, typer.Option(help="k-fold: which fold tests.")] = 0,
    subset: Annotated[int | None, typer.Option(help="Use only this many experiments, drawn at random.")] = None,
    seed: Seed = 0,
    json_: Json = None,
) -> None:
    """Share the experiments out over train, val and test, checked for emptiness and leakage.

    Example: knockgraph screen split demo.parquet --kind unseen-genes -o demo.split
    """
    from knockgraph.screen import Screen, splits

    screen = Screen.load(file)
    if kind is SplitKind.unseen_genes:
        split = splits.unseen_genes(screen, unseen.value, held_out, seed, subset)
    elif kind is SplitKind.k_fold:
        split = splits.k_fold(screen, folds, fold, seed, subset)
    else:
        make = splits.random if kind is SplitKind.random else splits.by_genotype
        split = make(screen, _fractions(fractions), seed, subset)
    split.save(output)
    sizes = {part: len(rows) for part, rows in split.parts.items()}
    left = f", {split.about['left_out']:,} left out" if split.about["left_out"] else ""
    out.print(f"[green]wrote[/] {output}: " + ", ".join(f"{part} {n:,}" for part, n in sizes.items()) + left)
    _write_json(json_, {"file": str(output), "sizes": sizes, **split.about})


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Hydra overrides: key=value …", show_default=False)
    ] = None,
    json_: Json = None,
) -> None:
    """Train a model; without arguments the demo cell, in under a minute on two cores.

    Every key of the config can be changed: [bold]knockgraph train model=dango trainer.max_epochs=20 run_dir=runs/my[/].
    Continue an interrupted run with [bold]run_dir=runs/my resume=true[/]. The keys are explained in the YAML files of
    knockgraph/conf; [bold]knockgraph train --cfg[/] shows the composed config and stops.
    """
    words = list(overrides or [])
    if "-m" in words or "--multirun" in words:
        from knockgraph.train.multirun import multirun

        multirun(words)
        return
    from knockgraph.train.config import compose, dump

    show = "--cfg" in words
    config = compose([word for word in words if word != "--cfg"])
    if show:
        out.print(dump(config), markup=False)
        return
    from knockgraph.train.interrupt import InterruptedRun
    from knockgraph.train.run import is_main_process
    from knockgraph.train.run import train as run

    try:
        given = any(word.startswith("trainer.max_epochs=") for word in words)
        directory = run(config, lambda text: out.print(escape(text)), config.trainer.max_epochs if given else None)
    except InterruptedRun as stopped:
        todo = f"continue with: knockgraph train run_dir={stopped.directory} resume=true"
        err.print(escape(f"interrupted; {todo if stopped.resumable else 'there is no checkpoint yet, start anew'}"))
        raise typer.Exit(130) from None
    if is_main_process():
        _write_json(json_, {"run_dir": str(directory), **json.loads((directory / "result.json").read_text())})


Run = Annotated[Path, typer.Argument(help="A run directory made by 'knockgraph train'.")]
Which = Annotated[str, typer.Option("--checkpoint", help="best-mse, best-pearson or last.")]


@app.command()
def evaluate(
    run: Run,
    part: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    checkpoint: Which = "best-mse",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_: Json = None,
) -> None:
    """Metrics of a run on one part of its split, against the baselines."""
    from knockgraph.train.evaluate import evaluate as measure
    from knockgraph.train.run import finite, quiet

    _check_device(device)
    quiet()
    _write_json(json_, finite(measure(run, part, checkpoint, lambda text: out.print(escape(text)), device)))


@app.command()
def predict(
    run: Run,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Parquet file to write.")] = None,
    genes: Annotated[
        list[str] | None, typer.Option(help="One genotype: gene names joined by commas; repeatable.")
    ] = None,
    screen: Annotated[
        Path | None, typer.Option(help="A screen file, or a table (CSV, TSV, Parquet) with genotypes.")
    ] = None,
    all_pairs: Annotated[
        Path | None, typer.Option(help="All pairs of the genes in this file (one name per line).")
    ] = None,
    all_triples: Annotated[Path | None, typer.Option(help="All triples of the genes in this file.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples at once; default: what fits the memory.")] = None,
    strategy: Annotated[str, typer.Option(help="Predict with another strategy than trained with.")] = "",
    checkpoint: Which = "best-mse",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_: Json = None,
) -> None:
    """Predict phenotypes of genotypes, with gene names and in original units.

    Example: knockgraph predict runs/my --genes TFC3,YBR002W --genes YAL001C -o out.parquet
    """
    from knockgraph.train.predict import predict as run_predict

    _check_device(device)
    summary = run_predict(
        run,
        output,
        genes=genes,
        screen=screen,
        all_pairs=all_pairs,
        all_triples=all_triples,
        batch_size=batch_size,
        strategy=strategy or None,
        which=checkpoint,
        device=device,
        say=typer.echo,  # rich would turn the tabs into blanks
    )
    _write_json(json_, summary)


@bench_app.command("loader")
def bench_loader(
    scale: Annotated[Scale, typer.Option(help="Which built-in cell.")] = Scale.yeast,
    experiments: Annotated[
        list[int] | None, typer.Option(help="Screen sizes; default: the demo's, or 332,313 and 20,000,000 for yeast.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples per batch.")] = 28,
    workers: Annotated[int, typer.Option(help="Worker processes of the variants with workers.")] = 2,
    device: Annotated[str, typer.Option(help="cpu or cuda: where the resident variant keeps the screen.")] = "cpu",
    pyg_samples: Annotated[int, typer.Option(help="Experiments that PyG's loader is timed on.")] = 20_000,
    json_: Json = None,
) -> None:
    """Samples per second of the flat loader and of PyG's, on the same screen."""
    from knockgraph import demo_cell, demo_screen, yeast_scale_cell, yeast_scale_screen
    from knockgraph.bench.loader import bench_loader as run

    _check_device(device)
    graph = demo_cell() if scale is Scale.demo else yeast_scale_cell()
    make = demo_screen if scale is Scale.demo else yeast_scale_screen
    runs: list[dict[str, Any]] = []
    for count in experiments or ([8_000] if scale is Scale.demo else [332_313, 20_000_000]):
        with err.status("making the screen") as status:
            screen = make(count)
            report = run(
                graph, screen, batch_size, workers, device, pyg_samples, lambda t: status.update(f"timing {t}")
            )
        runs.append(report)
        del screen
        out.print(
            f"[bold]{report['experiments']:,} experiments[/], batch {batch_size}: the screen takes "
            f"{report['screen_bytes'] / 1e6:,.1f} MB, the process at most {report['peak_process_bytes'] / 1e9:.2f} GB"
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
    _write_json(json_, {"benchmark": "loader", "runs": runs})


@bench_app.command("strategies")
def bench_strategies(
    scale: Annotated[Scale, typer.Option(help="Which built-in cell.")] = Scale.demo,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch_size: Annotated[int, typer.Option(help="Samples; the wild type is added as one more column.")] = 28,
    channels: Annotated[int, typer.Option(help="Channels of the features.")] = 64,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float64; default bfloat16 on cuda.")] = "",
    only: Annotated[list[str] | None, typer.Option(help="Measure only this one; may be repeated.")] = None,
    repeats: Annotated[int, typer.Option(help="Timed rounds, after the warm-up.")] = 5,
    workers: Annotated[int, typer.Option(help="Workers that the collation of worker strategies is spread over.")] = 2,
    plot: Annotated[Path | None, typer.Option(help="Also draw the times to this SVG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained page.")] = None,
    json_: Json = None,
) -> None:
    """Time, memory, bytes moved and host syncs of all eleven strategies on the same layer, in one run.

    Example: knockgraph bench strategies --scale demo --json strategies.json
    """
    from knockgraph import PerturbationBatch, demo_cell, demo_screen, yeast_scale_cell, yeast_scale_screen
    from knockgraph.bench.strategies import bench_strategies as run
    from knockgraph.report import strategies as report_strategies

    _check_device(device)
    kind = _dtype(dtype or ("bfloat16" if device == "cuda" else "float32"))
    with err.status("making the cell") as status:
        graph = demo_cell() if scale is Scale.demo else yeast_scale_cell()
        screen = demo_screen() if scale is Scale.demo else yeast_scale_screen(20_000)
        triples = (screen.genotypes.size == 3).nonzero()[0][:batch_size]
        batch: PerturbationBatch = screen.bind(graph).batch(triples).with_wild_type()
        report = run(
            graph, batch, device, channels, kind, repeats, workers, only, lambda text: status.update(f"timing {text}")
        )
    out.print(report_strategies.conditions(report))
    table = Table(report_strategies.HEADINGS[0], box=None, pad_edge=False)
    for heading in report_strategies.HEADINGS[1:]:
        table.add_column(heading, justify="right")
    skipped = []
    for row in report_strategies.rows(report):
        if len(row) == len(report_strategies.HEADINGS):
            table.add_row(*row)
        else:
            skipped.append(f"{row[0]}: {row[1]}")
    out.print(table)
    for line in [*skipped, *report_strategies.disk(report), *report_strategies.errors(report)]:
        out.print(line)
    _write_text(plot, report_strategies.picture, report)
    _write_text(html, report_strategies.html, report)
    _write_json(json_, report)


@app.command()
def doctor(json_: Json = None) -> None:
    """Show versions and devices, find the usual troubles, and run a one-second self test."""
    from dataclasses import asdict

    from knockgraph.doctor import examine

    findings = examine()
    mark = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[red]problem[/]"}
    table = Table(box=None, pad_edge=False, show_header=False)
    for f in findings:
        table.add_row(mark[f.status], f.name, f.detail + (f" → {f.fix}" if f.fix else ""))
    out.print(table)
    _write_json(json_, {"findings": [asdict(f) for f in findings]})
    if any(f.status == "problem" for f in findings):
        raise typer.Exit(1)


def _version(wanted: bool) -> None:
    if wanted:
        from knockgraph import __version__

        out.print(f"knockgraph {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors (may stand anywhere).")] = False,
) -> None:
    del version, debug  # --version acts in its callback, --debug is read by main() before anything can fail


def _build(preset: GraphPreset, from_: Path | None, seed: int) -> CellGraph:
    if preset is GraphPreset.tables:
        from knockgraph.sources.tables import read_graph

        return read_graph(_required(from_, "the preset tables", "the folder with genes.csv and relations/"))
    _not_wanted(from_, f"the preset {preset}")
    from knockgraph import demo_cell, yeast_scale_cell

    return demo_cell(seed) if preset is GraphPreset.demo else yeast_scale_cell(seed)


def _import(name: ScreenSource, from_: Path | None, experiments: int | None, seed: int) -> Screen:
    if name is ScreenSource.table:
        from knockgraph.sources.tables import read_screen

        return read_screen(_required(from_, "table", "the file"))
    _not_wanted(from_, f"the screen {name}")
    from knockgraph import demo_screen, yeast_scale_screen

    make = demo_screen if name is ScreenSource.demo else yeast_scale_screen
    return make(seed=seed) if experiments is None else make(experiments, seed)


def _binding(screen: Screen, file: Path) -> dict[str, Any]:
    """How the names of a screen fit a graph, reported, never an error."""
    from dataclasses import asdict

    from knockgraph.graph import CellGraph

    report = screen.bind(CellGraph.load(file), unknown="drop", missing="drop").report
    out.print(f"{report.bound:,} of {report.experiments:,} experiments bind to {file}")
    if report.unknown_genes:
        shown = ", ".join(report.unknown_genes[:20]) + (" …" if len(report.unknown_genes) > 20 else "")
        out.print(
            f"  {len(report.unknown_genes)} names do not resolve ({report.with_unknown_genes:,} experiments): {shown}"
        )
    return asdict(report)


def _required(path: Path | None, what: str, which: str) -> Path:
    if path is None:
        raise KnockgraphError(f"{what} needs --from: {which}")
    return path


def _not_wanted(path: Path | None, what: str) -> None:
    if path is not None:
        raise KnockgraphError(f"{what} is built in and reads no files; leave --from out")


def _fractions(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise KnockgraphError(f"--fractions {text!r} must be three numbers such as 0.8,0.1,0.1") from error


def _check_device(device: str) -> None:
    import torch

    if device not in ("cpu", "cuda"):
        raise KnockgraphError(f"--device {device!r} is not known: use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise KnockgraphError("--device cuda: torch sees no GPU here; use --device cpu or run 'knockgraph doctor'")


def _dtype(name: str) -> torch.dtype:
    import torch

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}
    if name not in known:
        raise KnockgraphError(f"--dtype {name!r} is not known: use {', '.join(known)}")
    return known[name]


def _write_text(path: Path | None, make: Callable[[dict[str, Any]], str], report: dict[str, Any]) -> None:
    if path is None:
        return
    from knockgraph.container import atomic_write

    with atomic_write(path) as part:
        part.write_text(make(report), encoding="utf-8")
    out.print(f"[green]wrote[/] {path}")


def _write_json(path: Path | None, result: dict[str, Any]) -> None:
    if path is None:
        return
    from knockgraph.container import atomic_write

    with atomic_write(path) as part:
        part.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Entry point: errors become one sentence and a non-zero exit code."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    try:
        app()
    except KnockgraphError as error:
        if debug:
            raise
        err.print(f"[red]error:[/] {escape(str(error))}")
        sys.exit(1)
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        what = escape(f"{type(error).__name__}: {error}")
        err.print(f"[red]internal error:[/] {what}; run the command again with --debug and report what it shows")
        sys.exit(70)
