"""``knockgraph download``: public files from their owners."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from knockgraph.cli.terminal import Json, err, out
from knockgraph.errors import KnockgraphError
from knockgraph.files import write_json


def download(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files or sets (yeast, yeast-lite, yeast-clean, dango-lambda); without any: list all files."
        ),
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder for the files.")] = Path("raw"),
    lock: Annotated[
        Path | None, typer.Option(help="The downloads.json of another folder: accept only identical files.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds without a byte that count as a stall.")] = 30.0,
    json_: Json = None,
) -> None:
    """Download public files from their owners, resumed and verified, with licence and citation.

    Files already in the folder are checked and not fetched again.

    Example: knockgraph download yeast --to raw
    """
    from knockgraph.sources.catalogue import FILES, SETS, chosen
    from knockgraph.sources.presets import check_names

    if not names:
        table = Table("name", "what", "licence", "address", box=None, pad_edge=False)
        for f in FILES:
            table.add_row(f.name, f.title, f.licence, f.url or f"by hand: {f.page}")
        out.print(table)
        for name, members in SETS.items():
            out.print("set", Text(f"{name}:", "bold"), ", ".join(members))
        write_json(json_, {"files": [vars(f) for f in FILES], "sets": {k: list(v) for k, v in SETS.items()}})
        return
    check_names(names)
    result = fetch_all(chosen(names), to, lock, timeout)
    write_json(json_, {"folder": str(to), "files": result})


def fetch_all(wanted: list[Any], folder: Path, lock: Path | None = None, timeout: float = 30.0) -> list[dict[str, Any]]:
    """Fetch what is missing, showing licence and citation of each; one failure does not stop the others."""
    from dataclasses import asdict

    from knockgraph.errors import DownloadError
    from knockgraph.sources.download import fetch, read_manifest

    locked = read_manifest(lock) if lock else None
    done: list[dict[str, Any]] = []
    failed: list[str] = []
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        for f in wanted:
            out.print(Text(f.title, "bold"))
            out.print(f"  licence: {f.licence}\n  cite: {f.citation}")
            task = bar.add_task(f.file, total=None)
            try:
                fetched, new = fetch(f, folder, locked, _shown_on(bar, task), timeout)
            except DownloadError as error:
                failed.append(str(error))
                out.print(Text("  failed:", "red"), str(error))
                continue
            finally:
                bar.remove_task(task)
            how = "fetched" if new else "already there"
            out.print(f"  {how}: {folder / f.file}, {fetched.bytes:,} bytes, SHA-256 {fetched.sha256[:12]}…")
            if new and f.open_to_change and f.name not in (locked or {}):
                out.print(
                    Text("  note:", "yellow"),
                    "it came over plain http and its checksum is not known, so it could have been altered in transit; "
                    f"compare its SHA-256 {fetched.sha256} with that of another copy",
                )
            done.append({**asdict(fetched), "fetched_now": new, "licence": f.licence, "citation": f.citation})
    if failed:
        raise KnockgraphError(failed[0] if len(failed) == 1 else f"{len(failed)} files failed, first: {failed[0]}")
    return done


def _shown_on(bar: Progress, task: TaskID) -> Callable[[int, int | None], None]:
    return lambda have, total: bar.update(task, completed=have, total=total)
