"""The command line: one thin function per command, one file per group."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from knockgraph import progress
from knockgraph.cli.bench import bench_app
from knockgraph.cli.benchmark import benchmark
from knockgraph.cli.download import download
from knockgraph.cli.graph import graph_app
from knockgraph.cli.options import models, options
from knockgraph.cli.profile import profile_app
from knockgraph.cli.screen import screen_app
from knockgraph.cli.terminal import HELP, Json, err, out, ready_streams
from knockgraph.cli.train import WithoutValue, baselines, evaluate, explain, explore, predict, train
from knockgraph.errors import KnockgraphError
from knockgraph.files import write_json

_NO_ROOM = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)  # a full disk, or a quota
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.EIO)

ERROR = Text("error:", "red")

app = typer.Typer(help="Graph neural networks on each gene deletion's own copy of one shared cell graph.", **HELP)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(train)
app.command()(evaluate)
app.command()(baselines)
app.command()(benchmark)
app.command(cls=WithoutValue)(predict)
app.command()(explain)
app.command()(explore)
app.command()(models)
app.command()(options)
app.command()(download)
app.add_typer(bench_app, name="bench")
app.add_typer(graph_app, name="graph")
app.add_typer(profile_app, name="profile")
app.add_typer(screen_app, name="screen")


@app.command()
def doctor(json_: Json = None) -> None:
    """Show versions and devices, look for common problems, and run a one-second self test."""
    from dataclasses import asdict

    from knockgraph.doctor import examine

    findings = examine()
    colour = {"ok": "green", "note": "yellow", "problem": "red"}
    table = Table(box=None, pad_edge=False, show_header=False)
    for f in findings:
        table.add_row(Text(f.status, colour[f.status]), f.name, f.detail + (f" → {f.fix}" if f.fix else ""))
    out.print(table)
    write_json(json_, {"findings": [asdict(f) for f in findings]})
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
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors (anywhere on the line).")] = False,
) -> None:
    del version, debug  # --version acts in its callback, --debug is read by main() before anything can fail


def _was_interrupted(ended: SystemExit) -> bool:
    """Whether Ctrl-C was the cause: typer exits silently with 130, Lightning with 1."""
    cause = ended.__context__
    return isinstance(cause, KeyboardInterrupt) or isinstance(getattr(cause, "__cause__", None), KeyboardInterrupt)


def main() -> None:
    """Entry point: errors become one sentence and a non-zero exit code."""
    ready_streams()
    with progress.shown():
        _run()


def _run() -> None:
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    if not debug:
        threading.excepthook = _quiet_when_full
    try:
        _check_text(sys.argv[1:])
        app()
    except KnockgraphError as error:
        if debug:
            raise
        err.print(ERROR, str(error))
        sys.exit(1)
    except SystemExit as ended:
        if _was_interrupted(ended):
            err.print("interrupted; run the command again")
            sys.exit(130)
        raise
    except OSError as error:
        if debug or error.errno not in (*_NO_ROOM, *_REFUSED):
            _unexpected(error, debug)
        where = str(error.filename) if error.filename else "the output, or a file of the run"
        full = error.errno in _NO_ROOM
        what, todo = ("write", "free some space and run it again") if full else ("use", "choose another place")
        err.print(ERROR, f"cannot {what} {where}: {str(error.strerror).lower()}; {todo}")
        sys.exit(1)
    except Exception as error:
        if debug or not _out_of_memory(error):
            _unexpected(error, debug)
        what = " ".join(str(error).split())[:200] or type(error).__name__
        err.print(ERROR, f"out of memory ({what}); use a smaller model, batch or data set")
        sys.exit(1)


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse file names that are not text: Arrow and safetensors could neither read nor write them."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise KnockgraphError(
                f"{argument!r} is not UTF-8 text; rename the file or folder, or set LC_ALL=C.UTF-8 if its name is"
            ) from None


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out anywhere: Python's, torch's on the host (a plain error) or on a device, Arrow's."""
    names = {kind.__name__ for kind in type(error).__mro__}
    words = ("DefaultCPUAllocator", "bad_alloc", "overflow when computing", "Storage size calculation overflowed")
    return bool(names & {"MemoryError", "OutOfMemoryError", "ArrowMemoryError"}) or any(w in str(error) for w in words)


def _unexpected(error: Exception, debug: bool) -> NoReturn:
    if debug:
        raise error
    what = f"{type(error).__name__}: {error}"
    err.print(Text("internal error:", "red"), f"{what}; run the command again with --debug and report what it shows")
    sys.exit(70)


def _quiet_when_full(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard's writer thread passes on a full disk to the main thread; its own traceback would be noise."""
    if getattr(failed.exc_value, "errno", None) not in _NO_ROOM:
        threading.__excepthook__(failed)
