"""What all commands share: consoles, common options, writing results."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from knockgraph.errors import KnockgraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_QUIET_SECONDS = 2.0
HELP: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": "rich", "pretty_exceptions_enable": False}


class Terminal(Console):
    """A console without markup: names of genes, files and packages may contain square brackets, which markup would
    remove. Coloured text is a ``rich.text.Text``.
    """

    def __init__(self, stderr: bool) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """The reader has gone (``| head -1``): continue silently, since there may be files to write."""
        self.quiet = True
        with contextlib.suppress(OSError, ValueError):  # or the interpreter would complain on exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def verbatim(self, text: str) -> None:
        """A line byte for byte, with its tabs."""
        if self.quiet:
            return
        try:
            self.file.write(f"{text}\n")
            self.file.flush()
        except BrokenPipeError:
            self.on_broken_pipe()


out = Terminal(stderr=False)
err = Terminal(stderr=True)
if not out.is_terminal:
    out.width = 160  # a pipe or a file has no width; rich would cut tables at 80 columns


class Scale(StrEnum):
    """Which built-in cell."""

    demo = "demo"
    yeast = "yeast"


def writable(ctx: typer.Context, path: Path | None) -> Path | None:
    """Callback of an option that names an output file: refuse an unwritable one before the work begins."""
    if path is not None and not ctx.resilient_parsing:
        from knockgraph.files import check_writable

        check_writable(path)
    return path


def writable_folder(ctx: typer.Context, path: Path | None) -> Path | None:
    """The same for a folder, which need not exist yet."""
    if path is not None and not ctx.resilient_parsing:
        from knockgraph.files import check_folder

        check_folder(path)
    return path


Json = Annotated[
    Path | None, typer.Option("--json", callback=writable, help="Also write the result to this file as JSON.")
]
Html = Annotated[Path | None, typer.Option(callback=writable, help="Also write a self-contained page.")]
Markdown = Annotated[Path | None, typer.Option(callback=writable, help="Also write the tables as Markdown.")]
Output = Annotated[Path, typer.Option("-o", "--output", callback=writable, help="The file to write.")]
From = Annotated[Path | None, typer.Option("--from", help="File or folder to read.")]
Seed = Annotated[int, typer.Option(help="Same seed, same result.")]


def ready_streams() -> None:
    """Make the standard streams accept any text: replace closed ones, and escape what an encoding cannot represent."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the end)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def source_names(incomplete: str) -> list[str]:
    """Names of sources, for completion."""
    from knockgraph import registry

    return [name for name in registry.available("source") if name.startswith(incomplete)]


def known_source(ctx: typer.Context, name: str) -> str:
    """Callback of an argument that names a source: refuse an unknown one like an unknown choice."""
    from knockgraph import registry

    if not ctx.resilient_parsing:
        try:
            registry.check("source", name)
        except KnockgraphError as error:
            raise typer.BadParameter(str(error)) from error
    return name


def check_device(device: str) -> None:
    """Refuse a device that is not there before any work is done."""
    import torch

    if device not in ("cpu", "cuda"):
        raise KnockgraphError(f"--device {device!r} is not known: use cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise KnockgraphError("--device cuda: torch sees no GPU here; use --device cpu or run 'knockgraph doctor'")


@contextlib.contextmanager
def busy(text: str) -> Iterator[Callable[[str], None]]:
    """Show what is being done on a terminal; yields a function that changes the text."""
    with err.status(Text(text)) as status:  # a string would be taken for markup
        yield lambda now: status.update(Text(now))


@contextlib.contextmanager
def counting(doing: str, things: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how far a long piece of work is; yields a function that is told how many of how many are done.

    Nothing is shown in the first seconds, so that short work stays quiet.
    """
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        status: Any = None

        def told(done: int, total: int) -> None:
            nonlocal status
            passed = time.monotonic() - start
            if not err.is_terminal or passed < _QUIET_SECONDS:
                return
            left = passed * (total - done) / max(done, 1)
            text = Text(f"{doing}: {done:,} of {total:,} {things}, {left // 60:.0f} min {left % 60:.0f} s left")
            if status is None:
                status = stack.enter_context(err.status(text))
            status.update(text)

        yield told


def write_text(path: Path | None, make: Callable[[dict[str, Any]], str], report: dict[str, Any]) -> None:
    """Write ``make(report)`` atomically; do nothing without a path."""
    if path is None:
        return
    from knockgraph.files import atomic_write

    with atomic_write(path) as part:
        part.write_text(make(report), encoding="utf-8")
    wrote(path)


def wrote(path: Path | str, more: str = "") -> None:
    """Say that a file was written."""
    out.print(Text("wrote", "green"), f"{path}{more}")
