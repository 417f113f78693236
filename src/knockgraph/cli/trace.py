"""``knockgraph profile trace``: read chrome traces and say where the time went."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from knockgraph.cli.terminal import Html, Json, Markdown, busy, out, write_text
from knockgraph.files import write_json

if TYPE_CHECKING:
    from knockgraph.traces.tables import Section


def trace(
    files: Annotated[list[Path], typer.Argument(help="Chrome traces, .json or .json.gz; two are compared.")],
    categories: Annotated[
        Path | None, typer.Option(help="Your own rules (TOML) that assign events to categories.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many operators are listed.")] = 20,
    markdown: Markdown = None,
    html: Html = None,
    json_: Json = None,
) -> None:
    """Self time per category, operator, thread and stream; busy fraction of the GPU, syncs, copies and memory.

    Two files are compared side by side; more, or the ranks of one run, are shown with the spread between them.

    Example: knockgraph profile trace a.json b.json.gz --html compared.html
    """
    from knockgraph.traces import page, tables
    from knockgraph.traces.categories import Categories
    from knockgraph.traces.compare import are_ranks, compare, spread
    from knockgraph.traces.summary import summarise_file

    rules = Categories(categories)
    traces = []
    with busy("reading") as say:
        for file in files:

            def tell(events: int, characters: int, file: Path = file) -> None:
                say(f"reading {file.name}: {events:,} events, {characters / 1e6:,.0f} MB")

            traces.append(summarise_file(file, rules, tell))
    of_one_run = are_ranks(traces)
    result: dict[str, Any] = {
        "profile": "trace",
        "categories": str(rules.path.name),
        "traces": traces,
        "comparison": compare(*traces) if len(traces) == 2 and not of_one_run else None,
        "ranks": spread(traces) if of_one_run else None,
    }
    for section in tables.sections(result, top):
        _show(section)
    write_text(markdown, partial(tables.markdown, top=top), result)
    write_text(html, partial(page.html, top=top), result)
    write_json(json_, result)


def _show(section: Section) -> None:
    out.print(Text(f"\n{section.title}", "bold"))
    for sentence in section.sentences:
        out.print(sentence)
    if section.headings:
        table = Table(section.headings[0], box=None, pad_edge=False)
        for heading in section.headings[1:]:
            table.add_column(heading, justify="right")
        for row in section.rows:
            table.add_row(*row)
        out.print(table)
    for sentence in section.below:
        out.print(sentence)
