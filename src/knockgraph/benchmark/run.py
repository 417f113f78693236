"""A whole benchmark: build the files, run the cells, write the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from knockgraph.benchmark.cells import run_all
from knockgraph.benchmark.files import as_screen_file, build
from knockgraph.benchmark.plan import Cell, cells, check_names, known_screens, own_screen
from knockgraph.benchmark.summary import SAMPLES, summary
from knockgraph.errors import ConfigError, KnockgraphError
from knockgraph.files import atomic_write, write_json
from knockgraph.graph import CellGraph
from knockgraph.options import did_you_mean
from knockgraph.report.benchmark import html, markdown
from knockgraph.train.config import compose
from knockgraph.train.data import TrainingData
from knockgraph.train.predictor import Say
from knockgraph.words import counted, listed

_MOST_UNKNOWN = 0.1  # share of the experiments of a screen of one's own that may be left out without asking


def run(
    folder: Path,
    *,
    raw: Path | None = None,
    screens: Sequence[str] | None = None,
    own: Mapping[str, Path] | None = None,
    cell: Path | None = None,
    models: Sequence[str] = (),
    splits: Sequence[str] = (),
    seeds: int = 3,
    jobs: int = 1,
    permute: str = "none",
    more: Sequence[str] = (),
    samples: int = SAMPLES,
    say: Say = print,
) -> list[str]:
    """Run what is not finished, and write ``benchmark.json``, ``.md`` and ``.html``; what went wrong.

    Args:
        folder: For cells, data and tables.
        raw: The folder with the public files, for public screens that were not built before.
        screens: Names of public screens, or ``demo``.
        own: Name → screen of pairs, a file or a table.
        cell: The cell graph of ``own``, by default the one that is built of the public files.
        models: Rows, see :func:`knockgraph.benchmark.plan.cells`.
        splits: Names; empty: all.
        seeds: How many, from 0 on.
        jobs: Cells at a time.
        permute: ``none``, ``networks`` or ``labels``; permuted cells are kept apart from the others.
        more: Overrides for all cells.
        samples: Of the bootstrap.
        say: Told what happens.
    """
    public_cell = folder / "data" / "yeast-clean.cellgraph"
    if own and cell is None:
        if raw is None and not public_cell.exists():
            raise ConfigError(
                "--own needs --cell FILE, the cell graph of your screen, or --from DIR, the public yeast files to "
                "build it from"
            )
        cell = public_cell
    check_names(own or {})
    public = [_known(name) for name in screens or () if name != "demo"]
    if public and raw is None and not public_cell.exists():
        raise ConfigError("public screens need --from DIR, the folder with their files; or measure --screen demo")
    words = [*more, *([] if permute == "none" else [f"data.permute={permute}"])]
    chosen = [known_screens(folder / "data")[name] for name in screens or ()]
    cells(chosen, models, splits, range(seeds), words)  # refuses what is wrong before anything is built
    if raw is not None and (public or cell == public_cell):
        build(public, raw, folder / "data", say)
    if own and cell is not None:
        genes = CellGraph.load(cell).genes
        for name, path in own.items():
            chosen.append(own_screen(name, cell, as_screen_file(name, path, folder / "data", genes, say), more))
    wanted = cells(chosen, models, splits, range(seeds), words)
    for name in own or {}:
        _tell_or_refuse(name, next(cell for cell in wanted if cell.screen == name), more, say)
    name = "benchmark" if permute == "none" else f"benchmark-{permute}"
    kept = folder / ("cells" if permute == "none" else f"cells-{permute}")
    problems = run_all(kept, wanted, jobs, say)
    result = summary(kept, wanted, permute, samples)
    result["problems"] = problems
    text = markdown(result)
    write_json(folder / f"{name}.json", result)
    for suffix, content in ((".md", text), (".html", html(result))):
        with atomic_write(folder / f"{name}{suffix}") as part:
            part.write_text(content, encoding="utf-8")
    say(text)
    say(f"wrote {folder / name}.json, .md and .html")
    if problems:
        say(f"{counted(len(problems), 'cell')} failed; run the command again to try them again")
    return problems


def _tell_or_refuse(name: str, cell: Cell, more: Sequence[str], say: Say) -> None:
    """Read the data of a screen of one's own once, so that not every cell fails for the same reason."""
    config = compose(cell.candidates[0])
    try:
        data = TrainingData.from_config(config)
    except KnockgraphError as error:
        raise ConfigError(f"--own {name}: {error}; settings of a benchmark: --set KEY=VALUE") from error
    found = data.bound.report
    unsaid = not any(word.startswith("data.unknown=") for word in more)
    if unsaid and found.with_unknown_genes > _MOST_UNKNOWN * found.experiments:
        unknown = data.graph.genes.unknown({gene: data.graph.genes.find(gene) for gene in found.unknown_genes})
        raise ConfigError(
            f"--own {name}: {found.with_unknown_genes:,} of {found.experiments:,} experiments have unknown genes: "
            f"{unknown}; or leave them out with --set data.unknown=drop"
        )
    classes = ", the classes 0 and 1" if data.classes else ""
    what = listed(config.data.phenotypes)
    say(f"{name}: {what} is predicted{classes}, of {counted(found.bound, 'experiment')}")
    for note in found.left_out():
        say(f"{name}: {note}")


def _known(name: str) -> str:
    known = known_screens(Path())
    if name not in known:
        raise ConfigError(
            f"--screen {name!r}: there is no such screen{did_you_mean(name, known)}; use {', '.join(known)}, or "
            "--own NAME=FILE"
        )
    return name
