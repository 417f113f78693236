"""``knockgraph graph``: cell graphs."""

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
    Html,
    Json,
    Output,
    Seed,
    known_source,
    out,
    source_names,
    write_text,
    wrote,
)
from knockgraph.errors import KnockgraphError
from knockgraph.files import write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from knockgraph.graph import CellGraph
    from knockgraph.sources.source import GraphOptions

graph_app = typer.Typer(help="Build, inspect and check cell graphs.", **HELP)


class Unknown(StrEnum):
    """What to do with unknown gene names."""

    error = "error"
    drop = "drop"


@graph_app.command("build")
def graph_build(
    output: Output,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            callback=known_source,
            autocompletion=source_names,
            help="demo, yeast-scale, tables, yeast, yeast-lite, or a source of another package.",
        ),
    ],
    from_: From = None,
    seed: Seed = 0,
    unknown: Annotated[
        Unknown | None,
        typer.Option(
            help="Edges with a name outside the gene list: drop or error.",
            show_default="drop for yeast, error for tables",
        ),
    ] = None,
    cutoff: Annotated[
        list[str] | None,
        typer.Option(help="yeast: minimum STRING score 1–1000, for all channels (700) or one (database=900)."),
    ] = None,
    merge_channels: Annotated[bool, typer.Option(help="yeast: one relation of all STRING channels.")] = False,
    weights: Annotated[bool, typer.Option(help="yeast: STRING scores as edge weights.")] = False,
    metabolism: Annotated[bool, typer.Option(help="yeast: read yeast-GEM (needs cobra).")] = True,
    phenotypes: Annotated[bool, typer.Option(help="yeast-clean: phenotypes as gene features, if present.")] = True,
    plasmid: Annotated[bool, typer.Option(help="yeast: include the four genes of the 2-micron plasmid.")] = False,
    features: Annotated[
        str,
        typer.Option(help="Gene features to compute from the graph, separated by commas: degree, spectral, diffusion."),
    ] = "",
    json_: Json = None,
) -> None:
    """Build a cell graph and save it.

    [bold]demo[/]: a few hundred genes, trains in a minute. [bold]yeast-scale[/]: synthetic, the size of yeast's real
    networks. [bold]tables[/]: your own genes.csv and relations/*.csv in the folder given by --from. [bold]yeast[/],
    [bold]yeast-lite[/] and [bold]yeast-clean[/] (nothing that contains genetic interactions): public files in the
    folder given by --from; without it they are fetched from their owners.

    Example: knockgraph graph build --preset demo -o demo.cellgraph
    """
    from knockgraph.graph.summary import summarise
    from knockgraph.sources.source import GraphOptions

    options = GraphOptions(
        None if unknown is None else unknown.value,
        _cutoffs(cutoff or []),
        merge_channels,
        weights,
        metabolism,
        plasmid,
        [name.strip() for name in features.split(",") if name.strip()],
        seed,
        phenotypes,
    )
    graph, report = _build(preset, from_, options)
    content_hash = graph.save(output)
    wrote(output, f": {graph} (content hash {content_hash[:12]})")
    write_json(json_, {"file": str(output), "content_hash": content_hash, **report, **summarise(graph)})


@graph_app.command("info")
def graph_info(
    file: Annotated[Path, typer.Argument(help="A .cellgraph file.")],
    html: Html = None,
    json_: Json = None,
) -> None:
    """Show genes, relations, their degrees, components and overlap, features and metabolism of a cell graph."""
    from knockgraph.graph import CellGraph
    from knockgraph.graph.summary import summarise
    from knockgraph.report import graph as report

    graph = CellGraph.load(file)
    summary = summarise(graph)
    out.print(Text(f"{file}:", "bold"), f"{summary['genes']:,} genes, {summary['other_names']:,} other names")
    table = Table(report.HEADINGS[0], box=None, pad_edge=False)
    for heading in report.HEADINGS[1:]:
        table.add_column(heading, justify="right")
    for row in report.rows(summary):
        table.add_row(*row)
    table.add_row("sum", "", f"{summary['edges']:,}", style="bold")
    out.print(table)
    if len(summary["relations"]) > 1:
        out.print("\nfraction of the row's gene pairs that are also in the column's relation:")
        shared = Table("", box=None, pad_edge=False)
        for number, _ in enumerate(summary["overlap"], 1):
            shared.add_column(str(number), justify="right")
        for number, row in enumerate(report.overlap_rows(summary), 1):
            shared.add_row(f"{number} {row[0]}", *row[1:])
        out.print(shared)
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
    write_text(html, lambda found: report.html(graph, found, file.name), summary)
    write_json(json_, summary)


@graph_app.command("lambda")
def graph_lambda(
    old: Annotated[Path, typer.Argument(help="protein.links.detailed of the earlier STRING release.")],
    new: Annotated[Path, typer.Argument(help="The same of the later release.")],
    genes: Annotated[
        Path, typer.Option(help="A cell graph, or a folder with SGD_features.tab: the genes to count over.")
    ],
    json_: Json = None,
) -> None:
    """DANGO's weight λ of absent edges per relation, from two STRING releases.

    λ is 0.1 where more than 1 % of the pairs without an edge in the old release have one in the new, else 1. Train with
    it: knockgraph train model=dango 'model.options.zero_weight={string11_5_database: 0.1}'
    """
    from knockgraph.sources.dango_lambda import zero_weights
    from knockgraph.sources.presets import resolver_of

    found = zero_weights(old, new, resolver_of(genes))
    table = Table("channel", box=None, pad_edge=False)
    for heading in (f"pairs in {found.old}", f"pairs in {found.new}", "filled zeros", "of zeros", "changed", "λ"):
        table.add_column(heading, justify="right")
    for c in found.channels:
        table.add_row(
            c.channel,
            f"{c.old_pairs:,}",
            f"{c.new_pairs:,}",
            f"{c.filled:,}",
            f"{c.zeros:,}",
            f"{c.changed:.2%}",
            f"{c.zero_weight:g}",
        )
    out.print(table)
    if found.caution:
        out.print(Text("caution:", "yellow"), found.caution)
    write_json(json_, found.as_dict())


@graph_app.command("check")
def graph_check(
    file: Annotated[Path, typer.Argument(help="A .cellgraph file.")],
    against: Annotated[
        Path | None, typer.Option(help="A screen: does a relation contain what it measures?", show_default=False)
    ] = None,
    phenotype: Annotated[str, typer.Option(help="Of the screen, with --against.")] = "gene_interaction",
    json_: Json = None,
) -> None:
    """Verify a cell graph file (format, hashes, ranges) and point out anything unusual.

    With --against SCREEN: how far labels of the pairs that each relation connects are from those of the others, and a
    warning where that looks as if the relation contained the labels.

    Example: knockgraph graph check yeast.cellgraph --against collins2007.parquet
    """
    from knockgraph.graph import CellGraph
    from knockgraph.graph.summary import remarks

    graph = CellGraph.load(file)
    notes = remarks(graph)
    out.print(Text("sound", "green"), f"{file}: {graph}")
    for note in notes:
        out.print(f"  note: {note}")
    found: dict[str, Any] = {"file": str(file), "sound": True, "notes": notes}
    if against is not None:
        found["against"] = {
            "screen": str(against),
            "phenotype": phenotype,
            "relations": _leaks(graph, against, phenotype),
        }
    write_json(json_, found)


def _leaks(graph: CellGraph, against: Path, phenotype: str) -> list[dict[str, Any]]:
    """Measure and show; see :func:`knockgraph.models.baselines.leak.label_shifts`."""
    from knockgraph.models.baselines.leak import label_shifts
    from knockgraph.screen import Screen

    screen = Screen.load(against).resolved(graph).bind(graph, phenotype, unknown="drop", missing="drop")
    shifts = label_shifts(graph, screen)
    table = Table("relation", box=None, pad_edge=False)
    for heading in ("pairs", "mean label", "others", "shift", "largest shift", "z"):
        table.add_column(heading, justify="right")
    table.add_column("of its edges")
    for s in shifts:
        numbers = ["–" if v != v else f"{v:.2f}" for v in (s.connected, s.others, s.shift, s.beyond_shift, s.z)]
        part = f"{s.beyond_pairs:,} beyond {s.beyond}" if s.beyond else "all"
        table.add_row(s.relation, f"{s.pairs:,}", *numbers, part)
    out.print(f"labels of {against} between the pairs that a relation connects, shifts in standard deviations:")
    out.print(table)
    for s in (s for s in shifts if s.leaks):
        out.print(
            Text("warning:", "yellow"),
            f"labels of pairs in the relation {s.relation!r} are {s.beyond_shift:.2f} standard deviations closer to "
            "the strong ones: it may contain what the screen measures; train without it (data.relations=[…]), or build "
            "the graph with --preset yeast-clean",
        )
    return [s.as_dict() for s in shifts]


def _build(preset: str, from_: Path | None, options: GraphOptions) -> tuple[CellGraph, dict[str, Any]]:
    from knockgraph.sources.presets import build_graph
    from knockgraph.sources.source import source_of

    files = source_of(preset, "graph").files
    graph, report = build_graph(preset, _fetched(files) if files and from_ is None else from_, options)
    for line in report.lines():
        out.print(line)
    return graph, report.as_dict()


def _fetched(files: Sequence[str]) -> Path:
    """The folder of files fetched for a source."""
    from knockgraph.cli.download import fetch_all
    from knockgraph.files import cache_folder
    from knockgraph.sources.catalogue import chosen

    folder = cache_folder() / "downloads"
    out.print(f"no --from: using {folder}")
    fetch_all(chosen(files), folder)
    return folder


def _cutoffs(given: list[str]) -> int | dict[str, int]:
    """``["700"]`` for all channels, ``["database=900", …]`` for some."""
    per_channel: dict[str, int] = {}
    for text in given:
        name, _, number = text.rpartition("=")
        if not number.strip().isdecimal() or (not name and len(given) > 1):
            raise KnockgraphError(f"--cutoff {text!r} must be a score such as 700, or a channel with one: database=900")
        if not name:
            return int(number)
        per_channel[name.strip()] = int(number)
    return per_channel or 1
