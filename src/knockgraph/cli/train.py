"""``knockgraph train``, ``evaluate``, ``predict``: from a config to a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from knockgraph.cli.options import complete_overrides
from knockgraph.cli.terminal import Html, Json, check_device, counting, err, out, writable, write_text, wrote
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
    unknown: Annotated[
        str, typer.Option(help="With --screen: genotypes with a name that the graph does not have: error or drop.")
    ] = "error",
    all_pairs: Annotated[
        str | None,
        typer.Option(help="All pairs of the genes in this file (one name per line); without a file, of all genes."),
    ] = None,
    all_triples: Annotated[str | None, typer.Option(help="The same for triples.")] = None,
    top: Annotated[int | None, typer.Option(help="Only this many, the most extreme first.")] = None,
    order: Annotated[
        str, typer.Option(help="With --top: extreme (farthest from the wild type), lowest or highest first.")
    ] = "extreme",
    new: Annotated[bool, typer.Option("--new", help="Leave out genotypes that the screen of the run has.")] = False,
    phenotype: Annotated[str | None, typer.Option(help="With --top: the phenotype to sort by.")] = None,
    coverage: Annotated[float, typer.Option(help="Of the intervals: 0.5, 0.6, 0.7, 0.8, 0.9, 0.95 or 0.99.")] = 0.9,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per batch; default: as many as fit the memory.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="Predict with a different strategy from that of training.")] = "",
    checkpoint: Which = "best-error",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[
        str,
        typer.Option(
            help="full, or bf16 for the perturbed graphs; auto: bf16 on a GPU if the model was trained in it."
        ),
    ] = "auto",
    json_: Json = None,
) -> None:
    """Predict the phenotypes of genotypes given by gene names, in original units.

    Examples: knockgraph predict runs/my --genes TFC3,YBR002W --genes YAL001C -o out.parquet

    knockgraph predict runs/my --all-pairs --top 100 --new
    """
    from knockgraph.predict import predict as run_predict

    check_device(device)
    with counting("predicting", "genotypes") as progress:
        summary = run_predict(
            run,
            output,
            genes=genes,
            screen=screen,
            unknown=unknown,
            all_pairs=whole_or_file(all_pairs),
            all_triples=whole_or_file(all_triples),
            top=top,
            order=order,  # type: ignore[arg-type]  # checked there
            new=new,
            phenotype=phenotype,
            coverage=coverage,
            batch_size=batch_size,
            strategy=strategy or None,
            which=checkpoint,
            device=device,
            precision=precision,
            say=out.verbatim,  # rich would turn the tabs into spaces
            note=_note,
            progress=progress,
            keep=json_ is not None,
        )
    write_json(json_, summary)


def explain(
    run: Run,
    genes: Annotated[str, typer.Option(help="The deleted genes, joined by + or commas.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", callback=writable, help="A .html, .png, .csv, .tsv or .parquet file to write."),
    ] = None,
    phenotype: Annotated[str | None, typer.Option(help="Which one, where the run predicts several.")] = None,
    top: Annotated[int, typer.Option(help="How many edges to print.")] = 20,
    checkpoint: Which = "best-error",
    json_: Json = None,
) -> None:
    """Show which deleted genes, relations and neighbours carry a prediction; the parts add up to it.

    Example: knockgraph explain runs/my --genes TFC3,YBR002W -o why.html
    """
    from knockgraph.fitted import load

    found = load(run, checkpoint=checkpoint, note=_note).explain(genes, phenotype)
    for line in found.lines(top):
        out.verbatim(line)
    if output is not None:
        wrote(found.save(output))
    write_json(json_, found.as_dict())


def explore(
    run: Run,
    output: Annotated[Path, typer.Option("-o", "--output", callback=writable, help="The .html file to write.")],
    genes: Annotated[
        str | None,
        typer.Option(
            help="The genes whose pairs are predicted, joined by + or commas; by default all, if not too many."
        ),
    ] = None,
    phenotype: Annotated[str | None, typer.Option(help="Which one, where the run predicts several.")] = None,
    pairs: Annotated[int, typer.Option(help="At most so many pairs are predicted.")] = 100_000,
    partners: Annotated[int, typer.Option(help="Measured and new partners that are listed for each gene.")] = 40,
    explained: Annotated[int, typer.Option(help="So many of the most extreme new pairs are explained.")] = 20,
    checkpoint: Which = "best-error",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
) -> None:
    """Write a page to look up genes: partners, measured and predicted, neighbours, explanations.

    One self-contained HTML file of at most about 10 MB that works without a network.
    Example: knockgraph explore runs/my -o explorer.html
    """
    from knockgraph.fitted import load

    check_device(device)
    with counting("predicting", "pairs") as progress:
        fitted = load(run, device, checkpoint, note=_note)
        wrote(fitted.explorer(output, genes, phenotype, pairs, partners, explained, progress))


def _note(text: str) -> None:
    """What goes with predictions is not one of them: it does not end up in a file that they are piped to."""
    err.print(f"note: {text}")


def whole_or_file(given: str | None) -> Path | Literal["graph"] | None:
    """The value of an option that may stand without one, which means the whole graph."""
    if given == WithoutValue.MARK:
        return "graph"
    return None if given is None else Path(given)


class WithoutValue(TyperCommand):
    """A command some of whose options may stand without their value."""

    MARK = "\0"
    OPTIONS = ("--all-pairs", "--all-triples")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the mark in the place of a value that is not there."""
        given: list[str] = []
        for word, after in zip(args, [*args[1:], "-"], strict=False):  # the last has nothing after it, or there is none
            given += [word, self.MARK] if word in self.OPTIONS and after.startswith("-") else [word]
        return super().parse_args(ctx, given)
