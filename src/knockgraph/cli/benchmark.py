"""``knockgraph benchmark``: how well models predict, on all screens and splits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from knockgraph.cli.terminal import From, out, writable_folder


def benchmark(
    output: Annotated[
        Path, typer.Option("-o", "--output", callback=writable_folder, help="Folder for cells, data and tables.")
    ],
    raw: From = None,
    screen: Annotated[
        list[str] | None,
        typer.Option(help="collins2007, costanzo2016, kuzmin2018 or demo; repeatable. Default: the first three."),
    ] = None,
    own: Annotated[
        list[str] | None,
        typer.Option(
            help="A screen of pairs of your own, NAME=FILE, a screen or a table; repeatable. Its cell graph is --cell, "
            "or yeast-clean, built of the files in --from."
        ),
    ] = None,
    cell: Annotated[Path | None, typer.Option(help="The cell graph of your own screens.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A row: a model and overrides, 'hetero-pairs optimizer.lr=1e-3,3e-3'; values with commas are "
            "candidates for the validation part; repeatable. Default: the models of each screen."
        ),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="'random', 'query pairs' or 'unseen genes'; repeatable. Default: all.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0 on.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Cells that are run at a time.")] = 1,
    permute: Annotated[str, typer.Option(help="A control: none, networks or labels.")] = "none",
    override: Annotated[
        list[str] | None, typer.Option("--set", help="An override key=value for all cells; repeatable.")
    ] = None,
) -> None:
    """Measure models on real screens: screens × splits × models × seeds, with intervals and paired differences.

    Cells that are finished are kept in the folder and not run again; an interrupted benchmark goes on where it was.
    Everything that is chosen is chosen on validation parts. Example:

    knockgraph benchmark --from RAW -o benchmark --jobs 4
    """
    from knockgraph.benchmark.run import run
    from knockgraph.errors import ConfigError
    from knockgraph.train.trainer import quiet

    quiet()
    owned: dict[str, Path] = {}
    for text in own or ():
        name, equals, path = text.partition("=")
        if not equals:
            raise ConfigError(f"--own {text!r} is not NAME=FILE; give your screen a name for the tables")
        if name in owned:
            raise ConfigError(f"--own {name} is given twice, as {owned[name]} and {path}; give each its own name")
        owned[name] = Path(path)
    problems = run(
        output,
        raw=raw,
        screens=screen if screen is not None or owned else ["collins2007", "costanzo2016", "kuzmin2018"],
        own=owned,
        cell=cell,
        models=model or [],
        splits=split or [],
        seeds=seeds,
        jobs=jobs,
        permute=permute,
        more=override or [],
        say=out.print,
    )
    if problems:
        raise typer.Exit(1)
