"""Your own cell graph: genes and edges as plain tables (CSV, TSV or Parquet, ``.gz`` and ``.xz`` too).

A folder::

    genes.csv              gene,standard,aliases        (the last two are optional; aliases separated by |)
    relations/NAME.csv     source,target[,weight]       directed edges
                           gene_a,gene_b[,weight]       undirected: both directions are added

Columns may have other usual names (``systematic_name``, ``regulator``, ``Interactor A``); the report says which were
used, and which were not.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from knockgraph.errors import FileFormatError, GraphError, ScreenError
from knockgraph.graph import CellGraph, GeneNames
from knockgraph.sources.edges import distinct
from knockgraph.sources.folder import SUFFIXES, table_in
from knockgraph.sources.names import NameResolver, Policy
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.source import GraphOptions, Source
from knockgraph.sources.table_blocks import refuse_repeated
from knockgraph.sources.table_layout import decimal_sign, fold, gene_columns
from knockgraph.sources.text_table import TextTable
from knockgraph.words import listed

if TYPE_CHECKING:
    import pyarrow as pa

# What a column holds → its usual names, best first: a table with systematic_name and gene has standard names in gene.
_GENES = {
    "gene": ("systematic name", "orf", "ordered locus name", "locus tag", "gene", "gene id"),
    "standard": ("standard name", "standard", "common name", "gene symbol", "symbol", "gene name", "name", "gene"),
    "aliases": ("aliases", "alias", "synonyms", "synonym", "other names"),
}
_DIRECTED = (("source", "target"), ("regulator", "target"), ("tf", "target"), ("transcription factor", "target"))


def read_graph(directory: Path, unknown: Policy = "error", report: ImportReport | None = None) -> CellGraph:
    """The cell graph of a folder laid out as above.

    Args:
        directory: The folder.
        unknown: Edges with a name that is not in genes.csv: an error, or dropped and reported.
        report: Records what was read and dropped.
    """
    report = ImportReport("tables") if report is None else report
    genes_file = table_in(directory, "genes")
    genes = _genes(genes_file, report)
    folder = directory / "relations"
    files = sorted(f for f in folder.iterdir() if f.name.endswith(SUFFIXES)) if folder.is_dir() else []
    if not files:
        raise FileFormatError(
            f"{folder} holds no relation; put one table per relation there, e.g. relations/physical.csv"
        )
    named: dict[str, Path] = {}
    for file in files:
        other = named.setdefault(_stem(file), file)
        if other != file:
            raise FileFormatError(f"{other} and {file} both describe relation {_stem(file)!r}; remove or rename one")
    resolve = NameResolver(genes, unknown=unknown)
    return CellGraph(genes, {name: _edges(file, resolve, report.file(name, file)) for name, file in named.items()})


class Tables(Source):
    """The source ``tables``: a folder laid out as above."""

    reads = "the folder with genes.csv and relations/"

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """See :func:`read_graph`."""
        report.brief = True
        return read_graph(path, options.unknown or "error", report)


def read_arrow(file: Path) -> pa.Table:
    """Any of the accepted kinds of table, with errors that name the file."""
    import pyarrow as pa
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    try:
        if not file.is_file():
            raise FileFormatError(f"cannot read {file}: there is no such file")
        if file.name.endswith(".parquet"):
            table = pq.read_table(file)
            table.validate(full=True)  # strings that are not UTF-8 are found here, not where they are used
        else:
            text = TextTable(file)
            # Empty cells stay empty strings; only numeric columns turn them into missing values. Names stay as they
            # are written: a gene called 007 is not the number 7, one called NA is not missing.
            columns = text.columns
            weights = {name: [row[at] for _, row in text.seen] for at, name in enumerate(columns) if _is_weight(name)}
            convert = csv.ConvertOptions(
                strings_can_be_null=False,
                column_types={name: pa.string() for name in columns if not _is_weight(name)},
                decimal_point="," if decimal_sign(str(file), weights) == "comma" else ".",
            )
            parse = csv.ParseOptions(delimiter=text.delimiter, quote_char='"' if text.quoted else False)
            # The header is the one that was read: spaces around a name are not part of it.
            read = csv.ReadOptions(column_names=columns, skip_rows=text.first_line - 1)
            with text.open() as stream:
                try:
                    table = csv.read_csv(stream, read, parse, convert)
                except pa.ArrowInvalid as error:
                    if "Empty CSV" not in str(error):
                        text.refuse({})  # says in which line
                        raise
                    table = pa.table({name: pa.nulls(0) for name in columns})  # a header and nothing else
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    refuse_repeated(str(file), names)
    return table


def _is_weight(column: str) -> bool:
    return fold(column) == "weight"


def _genes(file: Path, report: ImportReport) -> GeneNames:
    table = read_arrow(file)
    column: dict[str, str] = {}
    for role, known in _GENES.items():
        free = {fold(name): name for name in reversed(table.column_names) if name not in column.values()}
        found = next((free[name] for name in known if name in free), None)
        if found is not None:
            column[role] = found
    if "gene" not in column:
        raise GraphError(
            f"{file} has no column 'gene' (or systematic_name, orf, …); it has {', '.join(table.column_names)}; rename "
            "the one with the systematic names"
        )
    names, standard, aliases = (
        _texts(table, column[role]) if role in column else [""] * len(table) for role in ("gene", "standard", "aliases")
    )
    between = next((sign for sign in "|;" if any(sign in cell for cell in aliases)), ",")
    other = {
        name: [first, *(a.strip() for a in rest.split(between) if a.strip())]
        for name, first, rest in zip(names, standard, aliases, strict=True)
        if first or rest
    }
    entry = report.file("genes", file)
    entry.read, entry.kept = len(names), {"genes": len(names), "with other names": len(other)}
    _say(entry, column, table.column_names)
    try:
        return GeneNames(names, other)
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from error


def _say(entry: FileReport, column: dict[str, str], columns: list[str]) -> None:
    """Note the columns that were used by another name than the documented one, and those that were not used."""
    said = [f"{role} from {name}" for role, name in column.items() if role != name]
    if said:
        entry.notes.append(f"columns: {', '.join(said)}")
    left = [name for name in columns if name not in column.values()]
    if left:
        entry.notes.append(f"not used: {listed(left, most=8)}")


def _ends(file: Path, columns: list[str]) -> dict[str, str]:
    """The columns of the two ends of an edge: ``source`` and ``target`` (directed), or ``gene_a`` and ``gene_b``."""
    folded = {fold(name).removesuffix(" gene"): name for name in reversed(columns)}
    directed = next((pair for pair in _DIRECTED if folded.keys() >= set(pair)), None)
    if directed is not None:
        return {role: folded[name] for role, name in zip(("source", "target"), directed, strict=True)}
    pairs = [names for names in gene_columns(columns) if len(names) == 2]
    if len(pairs) != 1:
        raise GraphError(
            f"{file} needs the columns source,target (directed) or gene_a,gene_b (undirected); it has "
            f"{listed(columns, most=12)}; rename two of them"
        )
    return dict(zip(("gene_a", "gene_b"), pairs[0], strict=True))


def _edges(file: Path, resolve: NameResolver, report: FileReport) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    table = read_arrow(file)
    ends = _ends(file, table.column_names)
    weights = next((name for name in table.column_names if _is_weight(name)), None)
    _say(report, ends | ({} if weights is None else {"weight": weights}), table.column_names)
    (first, first_codes), (second, second_codes) = (
        distinct(table.column(name).cast("string").fill_null("")) for name in ends.values()
    )
    edge_index = torch.from_numpy(np.stack([resolve.many(first, first_codes), resolve.many(second, second_codes)]))
    report.read = edge_index.shape[1]
    report.unresolved = resolve.finish(str(file))
    known = (edge_index >= 0).all(0)
    report.drop("a name that is not in the gene list", int((~known).sum()))
    report.kept = {"edges": int(known.sum())}
    weight = None if weights is None else torch.tensor(_numbers(table, weights, file)).float()
    if weight is not None and not bool(weight.isfinite().all()):
        row = int((~weight.isfinite()).nonzero()[0])
        raise GraphError(f"{file}, data row {row + 1}: the weight is {weight[row]:g}; give it a finite number")
    edge_index, weight = edge_index[:, known], None if weight is None else weight[known]
    if "gene_a" in ends:
        loop = edge_index[0] == edge_index[1]
        edge_index = torch.cat([edge_index, edge_index[:, ~loop].flip(0)], 1)
        weight = None if weight is None else torch.cat([weight, weight[~loop]])
    return edge_index if weight is None else (edge_index, weight)


def _numbers(table: pa.Table, name: str, file: Path) -> np.ndarray[Any, Any]:
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        values = column.to_pylist()
        bad = next((v for v in values if isinstance(v, bool) or not _is_number(v)), next(iter(values), ""))
        where = _line_of(file, name, bad)
        raise ScreenError(
            f"{file}{where}: column {name!r} is not numeric, it holds {bad!r}; correct it or remove the column"
        )
    return np.asarray(column.cast("float64").to_numpy())


def _line_of(file: Path, column: str, value: Any) -> str:
    """``, line N`` of the first row with this value in a column; empty for Parquet, which has no lines."""
    if file.name.endswith(".parquet"):
        return ""
    text = TextTable(file)
    at = text.columns.index(column)
    found = next((n for n, fields in text.rows() if fields[at : at + 1] == [str(value)]), None)
    return "" if found is None else f", line {found}"


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return True


def _texts(table: pa.Table, name: str) -> list[str]:
    return [(text or "").strip() for text in table.column(name).cast("string").to_pylist()]


def _stem(file: Path) -> str:
    return file.name.split(".")[0]
