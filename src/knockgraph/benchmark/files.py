"""The files of screens: the public ones, built once from the folder with the public data, and tables of one's own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from knockgraph.errors import ConfigError, ScreenError
from knockgraph.graph import GeneNames
from knockgraph.sources.presets import build_graph, import_screen
from knockgraph.sources.source import GraphOptions, ScreenOptions, Table
from knockgraph.sources.table_blocks import blocks_of
from knockgraph.sources.table_layout import JOINS, TableOptions, understand
from knockgraph.sources.tables import read_table
from knockgraph.train.predictor import Say

_TABLES: dict[str, dict[str, Table]] = {
    "collins2007": {"collins2007": "auto"},
    "costanzo2016": {"costanzo2016": "auto"},
    "kuzmin2018": {"kuzmin2018": "trigenic-calls", "kuzmin2018-digenic": "digenic-calls"},
}
_MANY_COLUMNS = 20


def build(screens: Sequence[str], raw: Path, folder: Path, say: Say) -> None:
    """Make the cell graph and the screens that are not in ``folder`` yet.

    Args:
        screens: Names of public screens.
        raw: The folder with the public files.
        folder: Where the files go.
        say: Told about each file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    cell = folder / "yeast-clean.cellgraph"
    if not cell.exists():
        say(f"building {cell}")
        graph, _ = build_graph("yeast-clean", raw, GraphOptions(features=("degree", "spectral", "diffusion")))
        graph.save(cell)
    for screen in screens:
        for name, table in _TABLES[screen].items():
            path = folder / f"{name}.parquet"
            if not path.exists():
                say(f"importing {path}")
                found, _ = import_screen(screen, raw, ScreenOptions(table=table))
                found.save(path)


def as_screen_file(name: str, path: Path, folder: Path, genes: GeneNames, say: Say) -> Path:
    """A screen file of one's own, or one that is made of a table.

    Args:
        name: Of the screen.
        path: A screen file (Parquet), or a table as people have them (text or Excel): a row per pair, or a matrix.
        folder: Where a file that is made goes.
        genes: Those of the cell, by which a matrix is known.
        say: Told how a table was understood.
    """
    if path.suffix == ".parquet":
        return path
    if path.is_dir():
        raise ConfigError(f"--own {name}: {path} is a folder; give a file")
    try:
        screen, reading = read_table(path, TableOptions(matrix=_is_wide(path), known=genes))
    except ScreenError as error:
        raise ConfigError(
            f"--own {name}: {error} (options of a table: 'knockgraph screen import table --from "
            f"{shlex.quote(str(path))} -o {name}.parquet' takes them; then --own {name}={name}.parquet)"
        ) from error
    say(f"{name}: {reading}")
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"own-{name}.parquet"
    screen.save(made)
    return made


def _is_wide(path: Path) -> bool:
    """Whether one column names a gene and many others hold numbers, which of interactions must be genes, too."""
    blocks = blocks_of(path, TableOptions())
    if len(blocks.columns) < _MANY_COLUMNS:
        return False
    sample = blocks.sample()
    try:
        layout = understand(blocks.name, blocks.columns, sample, TableOptions())
    except ScreenError:  # the column of genes has no name
        return True
    written = [str(cell) for cell in sample[layout.genes[0]] if cell is not None]
    several = len(layout.genes) > 1 or any(re.search(JOINS[layout.join], cell) for cell in written)
    return not several and len(layout.phenotypes) > _MANY_COLUMNS // 2
