"""``knockgraph train``, ``evaluate``, ``predict``: from a config to a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from knockgraph.cli.options import complete_overrides
from knockgraph.cli.terminal import Html, Json, check_device, err, out, writable, write_text
from knockgraph.files import write_json


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Hydra overrides: key=value …", show_default=False, autocompletion=complete_overrides),
    ] = None,
    json_: Json = None,
) -> None:
    """Train a model; without arguments on the demo cell, in under a minute on two cores.

    Every key of the config can be changed: [bold]knockgraph train model=dango trainer.max_epochs=20 run_dir=runs/my[/].
    Continue an interrupted run with [bold]run_dir=runs/my resume=true[/]. [bold]knockgraph models[/] and
    [bold]knockgraph options[/] say what there is; [bold]knockgraph train --cfg[/] shows the composed config and stops.
    """
    words = list(overrides or [])
    if "-m" in words or "--multirun" in words:
        from knockgraph.cli.multirun import multirun

        multirun(words)
        return
    from knockgraph.train.config import compose, dump

    show = "--cfg" in words
    config = compose([word for word in words if word != "--cfg"])
    if show:
        out.print(dump(config))
        return
    from knockgraph.run import train as run
    from knockgraph.train.interrupt import InterruptedRun
    from knockgraph.train.trainer import is_main_process

    try:
        directory = run(config, out.print, overrides=words)
    except InterruptedRun as stopped:
        if is_main_process():
            err.print(str(stopped))
        raise typer.Exit(stopped.code) from None
    if is_main_process():
        write_json(json_, {"run_dir": str(directory), **json.loads((directory / "result.json").read_text())})


Run = Annotated[Path, typer.Argument(help="A run directory made by 'knockgraph train'.")]
Which = Annotated[str, typer.Option("--checkpoint", help="best-error, best-score or last.")]


def evaluate(
    run: Run,
    part: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    checkpoint: Which = "best-error",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    html: Html = None,
    json_: Json = None,
) -> None:
    """Metrics of a run on one part of its split, compared with the baselines."""
    from knockgraph.evaluate import evaluate as measure
    from knockgraph.report.training import evaluation_html
    from knockgraph.train.config import load
    from knockgraph.train.trainer import quiet

    check_device(device)
    quiet()
    found = measure(run, part, checkpoint, out.print, device)
    write_text(html, lambda result: evaluation_html(run.resolve().name, load(run / "config.yaml"), result), found)
    write_json(json_, found)


def baselines(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Hydra overrides that name the data: data=… data.split.kind=…", autocompletion=complete_overrides
        ),
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this one; may be repeated. Default: all.")] = None,
    part: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    json_: Json = None,
) -> None:
    """Fit only the baselines on the training part and measure them on another part.

    Example: knockgraph baselines data=collins2007 data.split.kind=unseen-genes data.split.unseen=any
    """
    from knockgraph.evaluate import compare_baselines
    from knockgraph.models.baselines import available
    from knockgraph.train.config import compose
    from knockgraph.train.trainer import quiet

    quiet()
    config = compose(list(overrides or []))
    found = compare_baselines(config, only or available(), part, out.print)
    write_json(json_, found)


def predict(
    run: Run,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", callback=writable, help="A .parquet, .csv or .tsv file to write."),
    ] = None,
    genes: Annotated[
        list[str] | None,
        typer.Option(help="One genotype: genes joined by + or commas, GENE=0.3 if not deleted; repeatable."),
    ] = None,
    screen: Annotated[
        Path | None, typer.Option(help="A screen file, or a table (CSV, TSV, Parquet) with genotypes.")
    ] = None,
    all_pairs: Annotated[
        Path | None, typer.Option(help="All pairs of the genes in this file (one name per line).")
    ] = None,
    all_triples: Annotated[Path | None, typer.Option(help="All triples of the genes in this file.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per batch; default: as many as fit the memory.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="Predict with a different strategy from that of training.")] = "",
    checkpoint: Which = "best-error",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    json_: Json = None,
) -> None:
    """Predict the phenotypes of genotypes given by gene names, in original units.

    Example: knockgraph predict runs/my --genes TFC3,YBR002W --genes YAL001C -o out.parquet
    """
    from knockgraph.predict import predict as run_predict

    check_device(device)
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
        say=out.verbatim,  # rich would turn the tabs into spaces
    )
    write_json(json_, summary)
