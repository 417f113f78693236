"""``knockgraph models`` and ``knockgraph options``: what there is to choose, and what it means."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from knockgraph.cli.terminal import Json, out
from knockgraph.files import write_json


def models(json_: Json = None) -> None:
    """List all models, one line each: how to choose one, and what it is. Baselines come last."""
    from knockgraph.train.explained import members

    found = {kind: members(kind) for kind in ("model", "baseline")}
    both = [name for name, what in found["model"].items() if found["baseline"].get(name) == what]
    _list({f"model={name}": what for name, what in found["model"].items() if name not in both})
    out.print(
        "\nfitted at once; also baselines of every run (trainer.baselines=[NAME,…]) or alone (knockgraph baselines):"
    )
    _list({f"model={name}" if name in both else name: what for name, what in found["baseline"].items()})
    out.print("\noptions of one: knockgraph options model=hetero; your own model: docs/extend.md")
    write_json(json_, {"models": found["model"], "baselines": found["baseline"]})


def complete_options(incomplete: str) -> list[str]:
    """Completion of the argument of ``knockgraph options``."""
    from knockgraph.train.explained import groups, members

    group, equals, _ = incomplete.partition("=")
    if not equals:
        return [name for name in groups() if name.startswith(incomplete)]
    return [word for word in (f"{group}={name}" for name in members(group)) if word.startswith(incomplete)]


def options(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP | GROUP=NAME]",
            autocompletion=complete_options,
            help="model, strategy, loss, data, trainer, …, or one of a group: model=hetero.",
            show_default=False,
        ),
    ] = None,
    json_: Json = None,
) -> None:
    """List what can be set: the groups, the members of a group, or the options of one of them.

    Examples: knockgraph options, knockgraph options trainer, knockgraph options model=hetero
    """
    from knockgraph.train.explained import explained, groups, members, written_value

    if what is None:
        _list(groups())
        out.print("\nmore: knockgraph options trainer, knockgraph options model=hetero")
        write_json(json_, {"groups": groups()})
        return
    group = what.partition("=")[0]
    found = explained(what)
    inside = members(group) if what == group else {}
    out.print(Text(what, "bold"), f"– {found.what}")
    if inside:
        _list({f"{group}={name}": about for name, about in inside.items()})
    if found.options:
        table = Table(box=None, pad_edge=False, title=None)
        for heading, fixed in (("option", True), ("default", False), ("needs", False), ("meaning", False)):
            table.add_column(heading, no_wrap=fixed, overflow="fold")
        for option in found.options:
            table.add_row(option.name, written_value(option.default), option.needed, option.meaning)
        out.print(*([""] if inside else []), table)
        first = found.options[0]
        out.print(
            f"\nset one with {found.prefix}NAME=VALUE, e.g. {found.prefix}{first.name}={written_value(first.default)}"
        )
    elif inside:
        out.print(f"\nmore: knockgraph options {group}={next(iter(inside))}")
    write_json(
        json_, {"what": what, "about": found.what, "members": inside, "options": list(map(_as_dict, found.options))}
    )


def complete_overrides(ctx: typer.Context, incomplete: str) -> list[str]:
    """Completion of ``key=value``. Bash hands over what stands behind ``=`` as a word of its own."""
    from knockgraph.train.explained import completions

    words = [*(ctx.params.get("overrides") or ()), *ctx.args]
    key = ""
    if incomplete == "=" and words:
        key, incomplete = words[-1], ""
    elif len(words) > 1 and words[-1] == "=":
        key = words[-2]
    model = next((word.partition("=")[2] for word in reversed(words) if word.startswith("model=")), "hetero")
    try:
        found = list(completions(f"{key}={incomplete}" if key else incomplete, model))
    except Exception:  # a half-written name; completion says nothing
        return []
    return [word.partition("=")[2] for word in found] if key else found


def _list(lines: dict[str, str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, what in lines.items():
        table.add_row(name, what)
    out.print(table)


def _as_dict(option: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(option), "choices": list(option.choices)}
