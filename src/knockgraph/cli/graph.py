"""``knockgraph graph``: cell graphs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from knockgraph.cli.terminal import HELP, From, Json, Output, Seed, not_wanted, out, required, write_json

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph

graph_app = typer.Typer(help="Build, look at and check cell graphs.", **HELP)


class GraphPreset(StrEnum):
    """Where a cell graph comes from."""

    demo = "demo"
    yeast_scale = "yeast-scale"
    tables = "tables"


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
    write_json(json_, {"file": str(output), "content_hash": content_hash, **summarise(graph)})


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
    write_json(json_, summary)


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
    write_json(json_, {"file": str(file), "sound": True, "notes": notes})


def _build(preset: GraphPreset, from_: Path | None, seed: int) -> CellGraph:
    if preset is GraphPreset.tables:
        from knockgraph.sources.tables import read_graph

        return read_graph(required(from_, "the preset tables", "the folder with genes.csv and relations/"))
    not_wanted(from_, f"the preset {preset}")
    from knockgraph import demo_cell, yeast_scale_cell

    return demo_cell(seed) if preset is GraphPreset.demo else yeast_scale_cell(seed)
