"""Your own data: genes, edges and genotypes as plain tables (CSV, TSV or Parquet, ``.gz`` and ``.xz`` too).

A folder for a cell graph::

    genes.csv              gene,standard,aliases        (the last two are optional; aliases separated by |)
    relations/NAME.csv     source,target[,weight]       directed edges
                           gene_a,gene_b[,weight]       undirected: both directions are added

A table for a screen::

    genotype,PHENOTYPE,…,PHENOTYPE.STATISTIC,…,source
    YAL001C+YBR002C,-0.12                               genes joined by + (or , | ;)
    YAL001C=0.3+YBR002C,-0.05                           turned down to 0.3 instead of deleted
    WT,0.0                                              the wild type; an empty cell is an error
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.errors import FileFormatError, GraphError, ScreenError
from knockgraph.graph import CellGraph, GeneNames
from knockgraph.screen import Screen
from knockgraph.sources.edges import distinct
from knockgraph.sources.names import NameResolver, Policy
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.source import GraphOptions, ScreenOptions, Source
from knockgraph.sources.table_blocks import TableBlocks, delimited, refuse_repeated
from knockgraph.sources.written_genotypes import WrittenGenotypes

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
SUFFIXES = (*(f"{kind}{packed}" for packed in ("", ".gz", ".xz") for kind in (".csv", ".tsv", ".txt")), ".parquet")
# Names stay as they are written: a gene called 007 is not the number 7, one called NA is not missing.
_TEXT = ("gene", "standard", "aliases", "source", "target", "gene_a", "gene_b", "genotype")


def read_graph(directory: Path, unknown: Policy = "error", report: ImportReport | None = None) -> CellGraph:
    """The cell graph of a folder laid out as above.

    Args:
        directory: The folder.
        unknown: Edges with a name that is not in genes.csv: an error, or dropped and reported.
        report: Records what was read and dropped.
    """
    report = ImportReport("tables") if report is None else report
    genes_file = _find(directory, "genes")
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


def read_screen(path: Path) -> Screen:
    """The screen of a table laid out as above; ``path`` is the file, or a folder that holds ``screen.csv``.

    It is read block by block, so that it takes the memory of the screen and not of the text.
    """
    file = _find(path, "screen") if path.is_dir() else path
    blocks = TableBlocks(file, text=("genotype", "source"))
    _need_genotypes(blocks)
    numbers = [name for name in blocks.columns if name not in ("genotype", "source")]
    if not numbers:
        raise ScreenError(f"{file} has no phenotype; add a numeric column, e.g. 'fitness'")
    genotypes = WrittenGenotypes()
    values: dict[str, list[Floats]] = {name: [] for name in numbers}
    sources: dict[str, int] = {}
    source_codes: list[npt.NDArray[np.int32]] = []
    for block in blocks:
        _add_genotypes(genotypes, block, file)
        for name, parts in values.items():
            parts.append(_floats(block.column(name)))
        if "source" in blocks.columns:
            texts = block.column("source").cast("string").fill_null("").dictionary_encode()
            known = np.array([sources.setdefault(s.as_py(), len(sources)) for s in texts.dictionary], dtype=np.int32)
            source_codes.append(known[texts.indices.to_numpy()])
    if len(genotypes) == 0:
        raise ScreenError(f"{file} has a header but no experiments; add one row for each, or is it the right file?")
    column = {name: np.concatenate(values.pop(name)) for name in numbers}  # one at a time: each frees its blocks
    phenotypes: dict[str, Floats] = {}
    statistics: dict[str, dict[str, Floats]] = {}
    for name, numeric in column.items():
        phenotype, _, kind = name.rpartition(".")
        if phenotype and phenotype in blocks.columns:
            statistics.setdefault(phenotype, {})[kind] = numeric
        else:
            phenotypes[name] = numeric
    source: Any = (tuple(sources), np.concatenate(source_codes)) if source_codes else file.name
    try:
        return Screen(genotypes.genotypes(), phenotypes, statistics, source)
    except ScreenError as error:
        raise error if str(file) in str(error) else ScreenError(f"{file}: {error}") from error


class Tables(Source):
    """The source ``tables``: a folder laid out as above."""

    reads = "the folder with genes.csv and relations/"

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """See :func:`read_graph`."""
        report.brief = True
        return read_graph(path, options.unknown or "error", report)


class Table(Source):
    """The source ``table``: a table of experiments laid out as above."""

    reads = "the file"

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :func:`read_screen`."""
        return read_screen(path)


def read_genotypes(path: Path) -> Screen:
    """Only the genotypes of a table, for prediction; the phenotype column, if there is one, is not needed."""
    blocks = TableBlocks(path, text=("genotype",), only=["genotype"])
    _need_genotypes(blocks)
    written = WrittenGenotypes()
    for block in blocks:
        _add_genotypes(written, block, path)
    if len(written) == 0:
        raise ScreenError(f"{path} has a header but no experiments; add one row for each, or is it the right file?")
    try:
        return Screen(written.genotypes(), {"unmeasured": np.full(len(written), np.nan)}, source=path.name)
    except ScreenError as error:
        raise ScreenError(f"{path}: {error}") from error


def _need_genotypes(blocks: TableBlocks) -> None:
    if "genotype" not in blocks.columns:
        raise ScreenError(f"{blocks.file} has no column 'genotype'; it has {', '.join(blocks.columns)}")


def _add_genotypes(genotypes: WrittenGenotypes, block: pa.RecordBatch, file: Path) -> None:
    try:
        genotypes.add(block.column("genotype"))
    except ScreenError as error:
        raise ScreenError(f"{file}{', ' if str(error).startswith('data row') else ': '}{error}") from error


def _floats(column: pa.Array) -> Floats:
    return np.asarray(column.cast("float64").to_numpy(zero_copy_only=False))


def read_table(file: Path) -> pa.Table:
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
            text = delimited(file)
            # Empty cells stay empty strings; only numeric columns turn them into missing values.
            convert = csv.ConvertOptions(strings_can_be_null=False, column_types=dict.fromkeys(_TEXT, pa.string()))
            parse = csv.ParseOptions(delimiter=text.delimiter)
            # The header is the one that was read: spaces around a name are not part of it.
            read = csv.ReadOptions(column_names=text.columns, skip_rows=text.first_line - 1)
            with text.open() as stream:
                try:
                    table = csv.read_csv(stream, read, parse, convert)
                except pa.ArrowInvalid as error:
                    if "Empty CSV" not in str(error):
                        text.refuse({})  # says in which line
                        raise
                    table = pa.table({name: pa.nulls(0) for name in text.columns})  # a header and nothing else
        names = table.column_names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read {file}: {str(error).splitlines()[0]}") from error
    refuse_repeated(file, names)
    return table


def _genes(file: Path) -> GeneNames:
    table = read_table(file)
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
    table = read_table(file)
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
    text = delimited(file)
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


def _find(directory: Path, stem: str) -> Path:
    if not directory.is_dir():
        raise FileFormatError(f"{directory} is not a folder; give the folder that holds {stem}.csv")
    for suffix in SUFFIXES:
        if (directory / f"{stem}{suffix}").is_file():
            return directory / f"{stem}{suffix}"
    raise FileFormatError(f"{directory} holds no {stem}.csv (or .tsv, .csv.gz, .parquet)")


def _stem(file: Path) -> str:
    return file.name.split(".")[0]
