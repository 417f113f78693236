"""``knockgraph screen``: tables of experiments."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from knockgraph.cli.terminal import (
    HELP,
    From,
    Json,
    Output,
    Seed,
    known_source,
    out,
    source_names,
    writable,
    wrote,
)
from knockgraph.errors import KnockgraphError
from knockgraph.files import write_json
from knockgraph.words import counted

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen

_MOST_SHOWN = 20  # phenotypes
screen_app = typer.Typer(help="Import, inspect, join and split screens (tables of experiments).", **HELP)


class Unknown(StrEnum):
    """What to do with unknown gene names."""

    error = "error"
    drop = "drop"


class Linked(StrEnum):
    """What to do with crosses of linked genes."""

    drop = "drop"
    mark = "mark"


class KuzminTable(StrEnum):
    """Which table of Kuzmin 2018."""

    auto = "auto"
    scores = "scores"
    trigenic_calls = "trigenic-calls"
    digenic_calls = "digenic-calls"


class Missing(StrEnum):
    """What to do with experiments in which nothing was measured."""

    drop = "drop"
    keep = "keep"
    error = "error"


class DecimalSign(StrEnum):
    """The sign in front of the decimals."""

    point = "point"
    comma = "comma"


class SplitKind(StrEnum):
    """How experiments are assigned to train, val and test."""

    random = "random"
    genotype = "genotype"
    source = "source"
    unseen_genes = "unseen-genes"
    k_fold = "k-fold"


class Unseen(StrEnum):
    """How many genes of a test genotype are unseen in training."""

    one = "one"
    any = "any"
    all = "all"


@screen_app.command("import")
def screen_import(
    name: Annotated[
        str,
        typer.Argument(
            callback=known_source,
            autocompletion=source_names,
            help="table, pyg, torchcell, demo, yeast-scale, collins2007, costanzo2016, kuzmin2018, or a source of "
            "another package.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", callback=writable, help="The screen file to write (Parquet).")
    ] = None,
    from_: From = None,
    phenotype: Annotated[
        list[str] | None,
        typer.Option(
            help="table: a column of labels; repeatable, or divided by commas.", show_default="all columns of numbers"
        ),
    ] = None,
    gene_columns: Annotated[
        str | None,
        typer.Option(
            help="table: the column of genotypes, or the columns of one gene each.",
            metavar="COLUMN[,COLUMN]",
            show_default="by their names",
        ),
    ] = None,
    missing: Annotated[Missing, typer.Option(help="table: experiments in which nothing was measured.")] = Missing.drop,
    delimiter: Annotated[
        str | None,
        typer.Option(help="table: tab, comma, semicolon, pipe, space or one character.", show_default="found"),
    ] = None,
    decimal: Annotated[DecimalSign | None, typer.Option(help="table: decimal sign.", show_default="found")] = None,
    join: Annotated[
        str | None,
        typer.Option(help="table: what divides the genes of a cell: + (also , | ;), space or /.", show_default="found"),
    ] = None,
    sheet: Annotated[
        str | None, typer.Option(help="table: sheet of an Excel workbook.", show_default="the one")
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="table: a gene per row and a gene per column.", show_default="found")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how the table is understood and write nothing.")
    ] = False,
    unknown: Annotated[
        Unknown | None,
        typer.Option(
            help="Experiments with a name outside the gene list: drop or error.",
            show_default="drop for studies, error for tables",
        ),
    ] = None,
    linked: Annotated[
        Linked, typer.Option(help="studies: crosses of linked genes are dropped, or kept and marked.")
    ] = Linked.drop,
    table: Annotated[KuzminTable, typer.Option(help="kuzmin2018: which of its tables.")] = KuzminTable.auto,
    genes: Annotated[
        Path | None,
        typer.Option(
            help="A cell graph or a folder with SGD_features.tab: names become systematic names.",
            show_default="studies: --from; table: names as written",
        ),
    ] = None,
    merge: Annotated[
        str, typer.Option(help="Merge repeated genotypes by: mean, median or first; 'no' keeps all.")
    ] = "no",
    experiments: Annotated[int | None, typer.Option(help="Number of experiments, for the built-in screens.")] = None,
    seed: Seed = 0,
    json_: Json = None,
) -> None:
    """Turn a table of experiments into a screen file (Parquet).

    [bold]table[/] reads text (any delimiter), Parquet or Excel with a column [bold]genotype[/] (genes joined by +, WT
    for the wild type) or a column for each gene (gene_a,gene_b or query,array), and columns of numbers; or a matrix
    with a gene per row and a gene per column. It says how it understood the table before it writes; --dry-run writes
    nothing. With --genes its names become systematic names, so that two names of one gene are one. [bold]pyg[/] reads
    the files of a PyG dataset, [bold]torchcell[/] the experiment store of a torchcell dataset. [bold]collins2007[/],
    [bold]costanzo2016[/] and [bold]kuzmin2018[/] read the files of the study in the folder (or the file) given by
    --from; names resolve by SGD_features.tab in that folder.

    Example: knockgraph screen import table --from my.csv --phenotype fitness -o my.parquet
    """
    from knockgraph.screen.summary import summarise
    from knockgraph.sources.presets import import_screen
    from knockgraph.sources.source import ScreenOptions
    from knockgraph.sources.table_layout import TableOptions

    if output is None and not dry_run:
        raise KnockgraphError("there is no file to write; name it with -o FILE, or only look with --dry-run")
    reading = TableOptions(
        phenotype or (),
        () if gene_columns is None else (gene_columns,),
        join,
        None if decimal is None else decimal.value,
        delimiter,
        sheet,
        missing.value,
        matrix,
    )
    if name != "table" and reading != TableOptions():
        raise KnockgraphError(f"the options that start with 'table:' in --help are not for {name}; leave them out")
    dropped: Any = None if unknown is None else unknown.value
    options = ScreenOptions(dropped, linked.value, table.value, genes, experiments, seed, reading)
    screen, report = import_screen(name, from_, options)
    for line in report.lines():
        out.print(line)
    before = screen.duplicates()
    if merge != "no":
        if genes is None:
            _one_name_per_gene(screen, "merge by gene with --genes, a cell graph or a folder with SGD_features.tab")
        screen = screen.merge_duplicates(merge)  # type: ignore[arg-type]
    if output is None or dry_run:
        out.print(f"nothing is written: {screen}")
    else:
        screen.save(output)
        wrote(output, f": {screen}")
    if before.genotypes:
        what = f"merged by {merge}" if merge != "no" else "kept; merge them with --merge mean"
        some = "1 genotype was" if before.genotypes == 1 else f"{before.genotypes:,} genotypes were"
        out.print(f"  note: {some} measured more than once ({what})")
    write_json(
        json_, {"file": None if dry_run else str(output), "merge": merge, **report.as_dict(), **summarise(screen)}
    )


@screen_app.command("info")
def screen_info(
    file: Annotated[Path, typer.Argument(help="A screen file (Parquet).")],
    graph: Annotated[Path | None, typer.Option(help="Also check the gene names against this cell graph.")] = None,
    json_: Json = None,
) -> None:
    """Show genotypes, phenotypes and repeated measurements of a screen."""
    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen
    from knockgraph.screen.summary import summarise

    screen = Screen.load(file)
    cell = None if graph is None else CellGraph.load(graph)
    summary = summarise(screen if cell is None else screen.resolved(cell))
    summary["names"] = len(screen.genotypes.names)
    genes = f"{summary['names']:,} gene names" if cell is None else f"{summary['genes']:,} genes"
    deletions = ", ".join(f"{count:,} with {size}" for size, count in summary["deletions"].items())
    doses = summary["doses"]
    out.print(
        Text(f"{file}:", "bold"),
        f"{counted(summary['experiments'], 'experiment')} on {genes}; "
        f"{'deletions' if doses is None else 'perturbations'}: {deletions}",
    )
    if doses is not None:
        out.print(f"{doses['entries']:,} of them with a value, {doses['min']:g} to {doses['max']:g}, not deleted")
    table = Table("phenotype", box=None, pad_edge=False)
    for heading in ("measured", "missing", "mean", "std", "min", "max"):
        table.add_column(heading, justify="right")
    table.add_column("statistics")
    for name, f in list(summary["phenotypes"].items())[:_MOST_SHOWN]:
        figures = [f"{f[key]:.4g}" if key in f else "–" for key in ("mean", "std", "min", "max")]
        table.add_row(name, f"{f['measured']:,}", f"{f['missing']:,}", *figures, ", ".join(f["statistics"]))
    out.print(table)
    if len(summary["phenotypes"]) > _MOST_SHOWN:
        out.print(f"and {len(summary['phenotypes']) - _MOST_SHOWN:,} more phenotypes (all of them: --json FILE)")
    repeated = summary["duplicates"]
    if repeated["genotypes"]:
        some = "1 genotype was" if repeated["genotypes"] == 1 else f"{repeated['genotypes']:,} genotypes were"
        out.print(f"{some} measured more than once (at most {repeated['most']} times)")
    if cell is not None:
        summary["binding"] = _binding(screen, cell, str(graph))
    write_json(json_, summary)


@screen_app.command("split")
def screen_split(
    file: Annotated[Path, typer.Argument(help="A screen file (Parquet).")],
    output: Output,
    kind: Annotated[SplitKind, typer.Option(help="How to split.")] = SplitKind.genotype,
    fractions: Annotated[str, typer.Option(help="Fractions of train, val and test.")] = "0.8,0.1,0.1",
    unseen: Annotated[
        Unseen, typer.Option(help="unseen-genes: how many genes of a test genotype are unseen.")
    ] = Unseen.one,
    held_out: Annotated[
        float, typer.Option(help="unseen-genes: fraction of genes held out for val and for test.")
    ] = 0.1,
    graph: Annotated[
        Path | None, typer.Option(help="A cell graph: split by gene, whatever names the screen uses.")
    ] = None,
    folds: Annotated[int, typer.Option(help="k-fold: number of folds.")] = 5,
    fold: Annotated[int, typer.Option(help="k-fold: which fold is the test part.")] = 0,
    subset: Annotated[int | None, typer.Option(help="Use only this many experiments, drawn at random.")] = None,
    seed: Seed = 0,
    json_: Json = None,
) -> None:
    """Assign the experiments to train, val and test, and check the split for empty parts and leakage.

    Without --graph, names are compared as they are written; training checks the split again by gene.

    Example: knockgraph screen split demo.parquet --kind unseen-genes -o demo.split
    """
    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen, splits

    screen = Screen.load(file)
    if graph is not None:
        screen = screen.resolved(CellGraph.load(graph))
    else:
        _one_name_per_gene(screen, "split by gene with --graph, the cell graph that knows their names")
    shares = _fractions(fractions)
    split = splits.by_kind(screen, kind.value, shares, unseen.value, held_out, folds, fold, seed, subset)
    split.save(output)
    sizes = {part: len(rows) for part, rows in split.parts.items()}
    left = f", {split.about['left_out']:,} left out" if split.about["left_out"] else ""
    wrote(output, ": " + ", ".join(f"{part} {n:,}" for part, n in sizes.items()) + left)
    write_json(json_, {"file": str(output), "sizes": sizes, **split.about})


@screen_app.command("join")
def screen_join(
    screens: Annotated[
        list[str], typer.Argument(help="NAME=FILE, a screen file (Parquet), two or more.", metavar="NAME=FILE…")
    ],
    output: Output,
    graph: Annotated[
        Path | None, typer.Option(help="A cell graph: names become systematic names, so that screens agree on them.")
    ] = None,
    json_: Json = None,
) -> None:
    """Join several screens into one, to train them together; each keeps its phenotypes as columns of its own.

    Without --graph, names are kept as they are written; training compares genes by the cell graph.

    Example: knockgraph screen join first=a.parquet second=b.parquet -o both.parquet
    """
    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen
    from knockgraph.screen.summary import summarise

    files: dict[str, Path] = {}
    for text in screens:
        name, equals, path = text.partition("=")
        if not equals or not path:
            raise KnockgraphError(f"{text!r} is not NAME=FILE; give each screen a name, such as first=a.parquet")
        if name in files:
            raise KnockgraphError(f"two screens are called {name!r}; give each a name of its own")
        files[name] = Path(path)
    read = {name: Screen.load(path) for name, path in files.items()}
    if graph is not None:
        cell = CellGraph.load(graph)
        read = {name: screen.resolved(cell) for name, screen in read.items()}
    joined = Screen.join(read)
    joined.save(output)
    wrote(output, f": {joined}")
    write_json(
        json_, {"file": str(output), "screens": {name: len(one) for name, one in read.items()}} | summarise(joined)
    )


def _one_name_per_gene(screen: Screen, fix: str) -> None:
    """Refuse names that differ only in case where nothing says which genes they mean."""
    alike = screen.genotypes.alike()
    if alike:
        shown = "; ".join(" and ".join(names) for names in alike[:5]) + (" …" if len(alike) > 5 else "")
        some = "a gene seems" if len(alike) == 1 else f"{len(alike)} genes seem"
        raise KnockgraphError(f"{some} to go by several names ({shown}); {fix}")


def _binding(screen: Screen, cell: CellGraph, file: str) -> dict[str, Any]:
    """How the names of a screen fit a graph, reported, never an error."""
    from dataclasses import asdict

    report = screen.bind(cell, unknown="drop", missing="drop").report
    out.print(f"{report.bound:,} of {counted(report.experiments, 'experiment')} bind to {file}")
    if report.unknown_genes:
        shown = ", ".join(report.unknown_genes[:20]) + (" …" if len(report.unknown_genes) > 20 else "")
        some = "1 name does" if len(report.unknown_genes) == 1 else f"{len(report.unknown_genes)} names do"
        out.print(f"  {some} not resolve ({counted(report.with_unknown_genes, 'experiment')}): {shown}")
    return asdict(report)


def _fractions(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise KnockgraphError(f"--fractions {text!r} must be three numbers such as 0.8,0.1,0.1") from error
