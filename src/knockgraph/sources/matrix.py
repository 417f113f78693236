"""Wide tables, with a gene per row and a gene per column, as long ones with a row per pair of genes."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.graph.genes import GeneNames, unmarked
from knockgraph.sources.table_blocks import ArrowBlocks, TableBlocks
from knockgraph.sources.table_layout import Sample, TableOptions, decimal_sign, is_missing, is_number
from knockgraph.words import counted

GENES = ("gene of the row", "gene of the column")
"""The columns of genes of the long table."""

_FEWEST_COLUMNS = 4
_FEWEST_GENES = 2
_MOST_HEADERS = 3
Floats = npt.NDArray[np.float64]


def genes_of_rows(columns: Sequence[str], sample: Sample, options: TableOptions) -> str | None:
    """The column that names the genes of the rows, or ``None`` if the table is not a matrix.

    A table is a matrix if the user says so, if at least half of the names in a column of texts are names of columns, or
    if most columns are known genes. It is none if the user names a column of it as a phenotype.

    Args:
        columns: All names.
        sample: Column → the first values.
        options: What the user says.
    """
    wanted = {options.phenotypes} if isinstance(options.phenotypes, str) else set(options.phenotypes)
    if not options.matrix and wanted & set(columns):
        return None
    said = options.matrix or _are_genes(columns, options.known)
    heads = set(map(_folded, columns))
    shares = {}
    for name in columns:
        texts = [_folded(str(cell)) for cell in sample[name] if not is_missing(cell)]
        if texts and not all(map(is_number, texts)) and name.upper() != "GID":
            shares[name] = sum(text in heads for text in texts) / len(texts)
    found = max(shares, key=lambda name: shares[name], default=None)
    if found is None or not (said or (shares[found] >= 0.5 and len(columns) >= _FEWEST_COLUMNS)):
        return None
    return found


def _are_genes(columns: Sequence[str], known: GeneNames | None) -> bool:
    found = 0 if known is None else sum(len(known.find(name)) == 1 for name in columns)
    return found >= _FEWEST_GENES and 2 * found > len(columns)


def below_headers(blocks: TableBlocks) -> tuple[TableBlocks, int]:
    """A matrix without the further lines of names or weights below its header, and how many there were.

    Files of clusters (.cdt) have the lines AID and EWEIGHT, E-MAPs a second name for each gene.
    """
    sample = blocks.sample()
    rows = len(sample[blocks.columns[0]])
    values = [name for name in blocks.columns if 2 * sum(map(_is_value, sample[name])) > rows]
    count = 0
    while count < min(_MOST_HEADERS, rows - 1):
        first = str(sample[blocks.columns[0]][count]).strip().upper()
        texts = sum(not _is_value(sample[name][count]) for name in values)
        if first not in ("AID", "EWEIGHT") and not texts > len(values) / 2:
            break
        count += 1
    return blocks.from_row(count) if count else blocks, count


def as_pairs(blocks: TableBlocks, rows: str, options: TableOptions) -> tuple[TableBlocks, list[str]]:
    """The long table of a matrix, and remarks about it.

    Args:
        blocks: The matrix.
        rows: The column that names the genes of the rows.
        options: What the user says; the first of the phenotypes names the values, ``score`` by default.
    """
    sample = blocks.sample()
    columns = [name for name in blocks.columns if not _is_text(sample[name]) and name.upper() != "GWEIGHT"]
    if not columns:
        fix = "leave out --matrix" if options.matrix else f"fill it with numbers, or say --gene-columns {quote(rows)}"
        raise ScreenError(f"{blocks.name} is no matrix: no column but {rows!r} holds numbers; {fix}")
    decimal = options.decimal or decimal_sign(blocks.name, {name: sample[name] for name in columns})
    names: list[str] = []
    parts: list[Floats] = []
    for block in blocks.blocks([rows], columns, decimal):
        names += [str(name or "").strip() for name in block.column(rows).cast("string").to_pylist()]
        cells = [block.column(name).to_numpy(zero_copy_only=False).astype(np.float64) for name in columns]
        parts.append(np.stack(cells, axis=1))
    values = np.concatenate(parts) if parts else np.empty((0, len(columns)))
    measured = ~np.isnan(values)
    size = f"{counted(len(names), 'gene')} in rows (named by {rows}) × {counted(len(columns), 'gene')} in columns"
    notes = [f"a matrix: {size}"]
    own, mirrored = _same_and_mirrored(names, columns, values)
    for which, what in ((own, "of a gene with itself"), (mirrored, "that repeat the one across the diagonal")):
        if bool((which & measured).any()):
            notes.append(f"cells {what} are left out: {int((which & measured).sum()):,}")
            measured &= ~which
    return _long(blocks, names, columns, values, measured, _phenotype(options)), notes


def _is_value(cell: Any) -> bool:
    return is_missing(cell) or is_number(str(cell))


def _phenotype(options: TableOptions) -> str:
    return options.phenotypes if isinstance(options.phenotypes, str) else next(iter(options.phenotypes), "score")


def _long(
    blocks: TableBlocks, names: list[str], columns: list[str], values: Floats, keep: npt.NDArray[Any], phenotype: str
) -> TableBlocks:
    import pyarrow as pa

    row, column = np.nonzero(keep)
    table = {
        GENES[0]: pa.DictionaryArray.from_arrays(row.astype(np.int32), pa.array(names, pa.string())),
        GENES[1]: pa.DictionaryArray.from_arrays(column.astype(np.int32), pa.array(columns, pa.string())),
        phenotype: values[row, column],
    }
    return ArrowBlocks(blocks.name, pa.table(table), blocks.form())


def _same_and_mirrored(
    names: list[str], columns: list[str], values: Floats
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """The cells of a gene with itself, and those that repeat the cell on the other side of the diagonal.

    Only where all cells on both sides are equal are they one measurement; otherwise each was measured on its own.
    """
    at_row = {_folded(name): i for i, name in enumerate(names)}
    at_column = {_folded(name): j for j, name in enumerate(columns)}
    both = sorted(at_row.keys() & at_column.keys(), key=lambda name: at_row[name])
    own, mirrored = np.zeros(values.shape, dtype=bool), np.zeros(values.shape, dtype=bool)
    if not both:
        return own, mirrored
    grid = np.ix_([at_row[name] for name in both], [at_column[name] for name in both])
    square = values[grid]
    own[grid] = np.eye(len(both), dtype=bool)
    twice = ~np.isnan(square) & ~np.isnan(square.T)
    if bool((square[twice] == square.T[twice]).all()):
        mirrored[grid] = np.tril(twice, -1)
    return own, mirrored


def _folded(name: str) -> str:
    return unmarked(name.strip()).casefold()


def _is_text(cells: Sequence[Any]) -> bool:
    texts = [str(cell) for cell in cells if not is_missing(cell)]
    return bool(texts) and not all(map(is_number, texts))
