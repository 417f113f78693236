"""Your own cell graph: genes and edges as plain tables (CSV, TSV or Parquet, ``.gz`` and ``.xz`` too).

A folder::

    genes.csv              gene,standard,aliases        (the last two are optional; aliases separated by |)
    relations/NAME.csv     source,target[,weight]       directed edges
                           gene_a,gene_b[,weight]       undirected: both directions are added
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
from knockgraph.sources.table_layout import decimal_sign, fold
from knockgraph.sources.text_table import TextTable

if TYPE_CHECKING:
    import pyarrow as pa

# Names stay as they are written: a gene called 007 is not the number 7, one called NA is not missing.
_SPELLED = {
    **{name: name for name in ("gene", "standard", "aliases", "source", "target", "weight")},
    **dict.fromkeys(("gene a", "gene 1", "orf a", "orf 1"), "gene_a"),
    **dict.fromkeys(("gene b", "gene 2", "orf b", "orf 2"), "gene_b"),
    **{"alias": "aliases", "standard name": "standard", "systematic name": "gene", "orf": "gene"},
}
_TEXT = ("gene", "standard", "aliases", "source", "target", "gene_a", "gene_b")


def read_graph(directory: Path, unknown: Policy = "error", report: ImportReport | None = None) -> CellGraph:
    """The cell graph of a folder laid out as above.

    Args:
        directory: The folder.
        unknown: Edges with a name that is not in genes.csv: an error, or dropped and reported.
        report: Records what was read and dropped.
    """
    report = ImportReport("tables") if report is None else report
    genes_file = table_in(directory, "genes")
    genes = _genes(genes_file)
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
            # Empty cells stay empty strings; only numeric columns turn them into missing values.
            columns = _spelled(text.columns)
            weights = {name: [row[at] for _, row in text.seen] for at, name in enumerate(columns) if name == "weight"}
            convert = csv.ConvertOptions(
                strings_can_be_null=False,
                column_types=dict.fromkeys(_TEXT, pa.string()),
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


def _spelled(columns: list[str]) -> list[str]:
    """The names of columns as above, however they are spelled: ``Gene A`` and ``gene1`` are ``gene_a``."""
    known = [_SPELLED.get(fold(name), name) for name in columns]
    return [name if known.count(name) > 1 else new for name, new in zip(columns, known, strict=True)]


def _genes(file: Path) -> GeneNames:
    table = read_arrow(file)
    if "gene" not in table.column_names:
        raise GraphError(f"{file} has no column 'gene'; it has {', '.join(table.column_names)}")
    names = _texts(table, "gene")
    empty = [""] * len(names)
    standard = _texts(table, "standard") if "standard" in table.column_names else empty
    aliases = _texts(table, "aliases") if "aliases" in table.column_names else empty
    other = {
        name: [first, *(a.strip() for a in rest.split("|") if a.strip())]
        for name, first, rest in zip(names, standard, aliases, strict=True)
        if first or rest
    }
    try:
        return GeneNames(names, other)
    except GraphError as error:
        raise GraphError(f"{file}: {error}") from error


def _edges(file: Path, resolve: NameResolver, report: FileReport) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    table = read_arrow(file)
    columns = set(table.column_names)
    pair = next((p for p in (("source", "target"), ("gene_a", "gene_b")) if columns >= set(p)), None)
    if pair is None:
        raise GraphError(f"{file} needs the columns source,target (directed) or gene_a,gene_b (undirected)")
    (first, first_codes), (second, second_codes) = (
        distinct(table.column(name).cast("string").fill_null("")) for name in pair
    )
    edge_index = torch.from_numpy(np.stack([resolve.many(first, first_codes), resolve.many(second, second_codes)]))
    report.read = edge_index.shape[1]
    report.unresolved = resolve.finish(str(file))
    known = (edge_index >= 0).all(0)
    report.drop("a name that is not in the gene list", int((~known).sum()))
    report.kept = {"edges": int(known.sum())}
    weight = torch.tensor(_numbers(table, "weight", file)).float() if "weight" in columns else None
    if weight is not None and not bool(weight.isfinite().all()):
        row = int((~weight.isfinite()).nonzero()[0])
        raise GraphError(f"{file}, data row {row + 1}: the weight is {weight[row]:g}; give it a finite number")
    edge_index, weight = edge_index[:, known], None if weight is None else weight[known]
    if pair[0] == "gene_a":
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
    at = _spelled(text.columns).index(column)
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
