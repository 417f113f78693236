"""What all commands share: consoles, common options, writing results."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from knockgraph.errors import KnockgraphError

if TYPE_CHECKING:
    from collections.abc import Callable

HELP: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": "rich", "pretty_exceptions_enable": False}
out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)
if not out.is_terminal:
    out.width = 160  # a pipe or a file has no width; rich would cut tables at 80 columns


class Scale(StrEnum):
    """Which built-in cell."""

    demo = "demo"
    yeast = "yeast"


Json = Annotated[Path | None, typer.Option("--json", help="Also write the result to this file as JSON.")]
Output = Annotated[Path, typer.Option("-o", "--output", help="The file to write.")]
From = Annotated[Path | None, typer.Option("--from", help="File or folder to read.")]
Seed = Annotated[int, typer.Option(help="Same seed, same result.")]


def required(path: Path | None, what: str, which: str) -> Path:
    """The path given by --from, or an error that says which file or folder is meant."""
    if path is None:
        raise KnockgraphError(f"{what} needs --from: {which}")
    return path


def not_wanted(path: Path | None, what: str) -> None:
    """Refuse --from where nothing is read."""
    if path is not None:
        raise KnockgraphError(f"{what} is built in and reads no files; leave --from out")


def check_device(device: str) -> None:
    """Refuse a device that is not there before any work is done."""
    import torch

    if device not in ("cpu", "cuda"):
        raise KnockgraphError(f"--device {device!r} is not known: use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise KnockgraphError("--device cuda: torch sees no GPU here; use --device cpu or run 'knockgraph doctor'")


def write_text(path: Path | None, make: Callable[[dict[str, Any]], str], report: dict[str, Any]) -> None:
    """Write ``make(report)``, whole or not at all; nothing if no path was given."""
    if path is None:
        return
    from knockgraph.container import atomic_write

    with atomic_write(path) as part:
        part.write_text(make(report), encoding="utf-8")
    out.print(f"[green]wrote[/] {path}")


def write_json(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result as JSON, whole or not at all; nothing if no path was given."""
    if path is None:
        return
    from knockgraph.container import atomic_write

    with atomic_write(path) as part:
        part.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
