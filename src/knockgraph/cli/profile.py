"""``knockgraph profile``: where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from knockgraph.cli.terminal import (
    HELP,
    Html,
    Json,
    Markdown,
    Scale,
    busy,
    check_device,
    out,
    writable_folder,
    write_text,
    wrote,
)
from knockgraph.cli.trace import trace
from knockgraph.errors import KnockgraphError
from knockgraph.files import write_json

if TYPE_CHECKING:
    from collections.abc import Callable


class _RunByDefault(TyperGroup):
    """``knockgraph profile …`` is a run unless the first word names another command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command's name in front."""
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


profile_app = typer.Typer(help="Where the time goes.", cls=_RunByDefault, **{**HELP, "no_args_is_help": False})
profile_app.command("trace")(trace)


@profile_app.command("run")
def profile(
    setting: Annotated[
        list[str] | None,
        typer.Argument(help="What to profile: names (hetero+lazy-mask), overrides (key=value) …", show_default=False),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="Two settings, e.g. dango hetero+lazy-mask, or JSON of earlier runs.")
    ] = None,
    scale: Annotated[Scale | None, typer.Option(help="Which built-in cell; default: what the config says.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; default: what the config says.")] = "",
    steps: Annotated[int, typer.Option(help="Number of measured steps in each run.")] = 50,
    warmup: Annotated[int, typer.Option(help="Warm-up steps before them.")] = 10,
    rounds: Annotated[
        int, typer.Option(min=1, help="Compare: runs of each setting, alternating; the fastest counts.")
    ] = 2,
    only: Annotated[
        list[str] | None, typer.Option(help="full, empty, empty-no-backward or model-only; may be repeated.")
    ] = None,
    epoch_limit: Annotated[
        float, typer.Option(help="Run a whole epoch if it is expected to take at most this many seconds.")
    ] = 60,
    overhead: Annotated[bool, typer.Option("--overhead", help="Measure what the timers themselves cost.")] = False,
    trace_to: Annotated[
        Path | None,
        typer.Option(
            "--trace", callback=writable_folder, help="Record torch.profiler traces, one per rank, into this folder."
        ),
    ] = None,
    wait: Annotated[int, typer.Option(help="Trace: steps before the recording.")] = 600,
    active: Annotated[int, typer.Option(help="Trace: recorded steps, after one warm-up step.")] = 25,
    markdown: Markdown = None,
    html: Html = None,
    json_: Json = None,
) -> None:
    """Phase timers that add up to the wall-clock time, in the training loop of 'knockgraph train'.

    Runs the full task, the empty task (everything but the model) and the model alone on a stored batch, and says where
    the time goes and what to change; with --compare for both settings. [bold]knockgraph profile trace FILE…[/] reads
    traces.

    Example: knockgraph profile --compare dango hetero+lazy-mask --html compared.html
    """
    from knockgraph.profile.settings import words

    if device:
        check_device(device)
    given: list[str] = []
    for word in setting or []:
        given += [word] if "=" in word else words(word)
    common = [*_place(scale, device), *given]
    with busy("starting") as say:
        if compare is not None:
            result = _compare(compare, common, steps, warmup, rounds, _runs(only), epoch_limit, say)
        else:
            result = _single(common, steps, warmup, _runs(only), epoch_limit, overhead, trace_to, (wait, active), say)
    from knockgraph.files import finite
    from knockgraph.train.trainer import is_main_process

    if not is_main_process():
        return
    result = finite(result)
    _show(result)
    write_json(json_, result)
    if result["profile"] in (1, "comparison"):
        from knockgraph.report import profile as report

        write_text(markdown, report.markdown, result)
        write_text(html, report.html, result)


def _place(scale: Scale | None, device: str) -> list[str]:
    words = []
    if scale is not None:
        words.append("data=demo" if scale is Scale.demo else "data=yeast-scale")
    if scale is Scale.yeast:
        words.append("loader.batch_size=28")
    if device:
        words += ["trainer=gpu"] if device == "cuda" else ["trainer.accelerator=cpu"]
    return words


def _runs(only: list[str] | None) -> tuple[str, ...]:
    """The runs that are made; the full one always is."""
    runs = ("full", "empty", "model-only")
    known = (*runs, "empty-no-backward")
    unknown = [name for name in only or () if name not in known]
    if unknown:
        raise KnockgraphError(f"--only {unknown[0]!r} is not known: use {', '.join(known)}")
    return tuple(dict.fromkeys(["full", *only])) if only else runs


def _single(
    common: list[str],
    steps: int,
    warmup: int,
    runs: tuple[str, ...],
    epoch_limit: float,
    overhead: bool,
    trace_to: Path | None,
    window: tuple[int, int],
    say: Callable[[str], None],
) -> dict[str, Any]:
    from knockgraph.profile.measure import Workbench
    from knockgraph.profile.runs import profile_run
    from knockgraph.profile.window import Window
    from knockgraph.train.config import compose

    config = compose(common)
    if trace_to is not None or overhead:
        with Workbench(config, Path(config.run_dir) if config.run_dir else None, say) as bench:
            if trace_to is not None:
                return {"profile": "traces", **bench.trace(Window(window[0], 1, window[1]), trace_to)}
            return {"profile": "overhead", **bench.overhead(steps, warmup)}
    return profile_run(config, steps=steps, warmup=warmup, runs=runs, epoch_limit=epoch_limit, say=say)


def _compare(
    names: tuple[str, str],
    common: list[str],
    steps: int,
    warmup: int,
    rounds: int,
    runs: tuple[str, ...],
    epoch_limit: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    from knockgraph.profile.compare import compared, halfway
    from knockgraph.profile.explain import comparison
    from knockgraph.profile.runs import profile_together
    from knockgraph.profile.settings import setting

    a, b = (setting(name, () if name.endswith(".json") else common) for name in names)
    wanted = {}
    for key, found in (("a", a), ("b", b)):
        if found.config is not None:
            wanted[key] = (found.label, found.config, epoch_limit)
    if a.config is not None and b.config is not None:
        between = halfway(a.config, b.config)
        if between is not None:
            wanted["middle"] = (f"{between.model.name}+{between.strategy.name}", between, 0.0)
    measured = profile_together(
        [(label, config) for label, config, _ in wanted.values()],
        steps=steps,
        warmup=warmup,
        rounds=rounds,
        epoch_limits=[limit for _, _, limit in wanted.values()],
        others=[() if key == "middle" else runs[1:] for key in wanted],
        say=say,
    )
    results = dict(zip(wanted, measured, strict=True))
    result = compared(a.result or results["a"], b.result or results["b"], results.get("middle"))
    result["summary"] = comparison(result)
    return result


def _show(result: dict[str, Any]) -> None:
    from knockgraph.profile.explain import milliseconds
    from knockgraph.report import profile as report

    if result["profile"] == "traces":
        for file in result["files"]:
            wrote(file)
        out.print(
            f"recording cost {result['overhead']:+.0%}: {milliseconds(result['seconds_per_step_with'])} a step with "
            f"the trace, {milliseconds(result['seconds_per_step_without'])} for the same steps without; read it with "
            f"knockgraph profile trace {result['files'][0]}"
        )
        return
    if result["profile"] == "overhead":
        on, off = (milliseconds(result[f"seconds_per_step_{name}"]) for name in ("on", "off"))
        out.print(
            f"the timers cost {result['overhead']:+.2%}: {on} a step with them, {off} without (the best of "
            f"{len(result['rounds']['on'])} runs each); in the CPU time of the training thread, which other programs "
            f"disturb less, {result['overhead_of_cpu_time']:+.2%}"
        )
        return
    out.print(report.conditions(result))
    for title, headings, rows in report.tables(result):
        out.print(Text(f"\n{title}", "bold"))
        table = Table(headings[0], box=None, pad_edge=False)
        for heading in headings[1:]:
            table.add_column(heading, justify="right")
        for row in rows:
            table.add_row(*row)
        out.print(table)
    out.print(f"\n{report.paragraph(result)}")
