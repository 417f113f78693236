"""Your own screen: a table of experiments as text, Parquet, Excel, Arrow or dataframe.

The layouts::

    genotype,PHENOTYPE,…,PHENOTYPE.STATISTIC,…,source
    YAL001C+YBR002C,-0.12                               genes joined by + (or , | ;)
    YAL001C=0.3+YBR002C,-0.05                           turned down to 0.3 instead of deleted
    WT,0.0                                              the wild type; an empty cell is an error

    gene_a,gene_b[,gene_c],PHENOTYPE,…                  one gene per column; an empty cell is no gene
    query,array,PHENOTYPE,…                             the same
    gene,GENE,GENE,…                                    a matrix: one gene per row, one per column

A deletion may be marked: ``rad52Δ``, ``rad52Δ::kanMX``, ``YAL002W_dma7``, ``ACT1 - DAMP``.

:mod:`knockgraph.sources.table_layout` recognises the columns, :mod:`knockgraph.sources.text_table` how a text file is
written. What was understood is reported, never only guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.screen import Screen
from knockgraph.screen.genotypes import as_text
from knockgraph.sources.folder import table_in
from knockgraph.sources.matrix import GENES, as_pairs, below_headers, genes_of_rows
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.sga import CONTROL, are_strains
from knockgraph.sources.source import ScreenOptions, Source
from knockgraph.sources.table_blocks import blocks_of, without_blank_rows
from knockgraph.sources.table_layout import MISSING, WILD_TYPES, Layout, TableOptions, understand
from knockgraph.sources.written_genotypes import WrittenGenotypes
from knockgraph.words import counted, listed

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
_SHOWN = 8  # columns in a list
_MANY = 20  # phenotypes, of single genes
_BETWEEN = "\x1f"  # genes, where no sign of the cells may be in the way


@dataclass
class TableReading(FileReport):
    """How a table of experiments was understood.

    Attributes:
        form: How it is written, in words.
        layout: What each column means; ``None`` before it is known.
        sizes: Number of genes → how many genotypes have so many.
        example: The first row in words.
    """

    form: str = ""
    layout: Layout | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    example: str = ""

    def lines(self, most_names: int = 10) -> Iterator[str]:
        """As lines of text."""
        assert self.layout is not None
        decimal = ", decimal comma" if self.layout.decimal == "comma" else ""
        yield f"{self.path}: {self.form}{decimal}"
        yield f"  genes: {_genes_in_words(self.layout, max(self.sizes, default=0))}"
        yield f"  phenotypes: {', '.join(map(self._phenotype, self.layout.phenotypes[:_SHOWN]))}" + _more(
            self.layout.phenotypes
        )
        if self.layout.source is not None:
            yield f"  source: {self.layout.source}"
        if self.layout.aside:
            shown = [f"{name} ({why})" for name, why in self.layout.aside.items()]
            yield f"  set aside: {', '.join(shown[:_SHOWN])}{_more(shown)}"
        left = "".join(f"; {rows:,} left out: {why}" for why, rows in self.dropped.items())
        yield f"  rows: {self.read:,} read, {self.kept['experiments']:,} kept{left}"
        sizes = [f"{n:,} with {counted(size, 'gene')}" for size, n in self.sizes.items() if size]
        yield f"  genotypes: {', '.join([*sizes, *(f'{n:,} wild type' for size, n in self.sizes.items() if not size)])}"
        for note in self.notes:
            yield f"  note: {note}"
        yield f"  first row: {self.example}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        assert self.layout is not None
        return {
            **super().as_dict(),
            "form": self.form,
            "decimal": self.layout.decimal,
            "genes": list(self.layout.genes),
            "join": self.layout.join,
            "phenotypes": list(self.layout.phenotypes),
            "statistics": {name: list(what) for name, what in self.layout.statistics.items()},
            "replicates": {n: list(c) for n, c in self.layout.replicates.items() if n in self.layout.phenotypes},
            "source": self.layout.source,
            "set_aside": dict(self.layout.aside),
            "genotypes": {str(size): n for size, n in self.sizes.items()},
            "example": self.example,
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _phenotype(self, name: str) -> str:
        assert self.layout is not None
        own = [(kind, column) for column, (p, kind) in self.layout.statistics.items() if p == name]
        said = [kind if column == f"{name}.{kind}" else f"{kind} from {column}" for kind, column in own]
        replicates = self.layout.replicates.get(name)
        about = [f"the mean of {listed(replicates, most=6)}"] if replicates else []
        about += [f"with {listed(said)}"] if said else []
        return f"{name} ({', '.join(about)})" if about else name


def read_table(source: Any, options: TableOptions | None = None) -> tuple[Screen, TableReading]:
    """The screen of a table, and how the table was understood.

    Args:
        source: A file (text of any delimiter, Parquet, Excel), a folder that holds ``screen.csv``, an Arrow table, or a
            dataframe of pandas or polars.
        options: What to use instead of what would be found.

    A file is read block by block, so that it takes the memory of the screen and not of the text.

    >>> import pyarrow as pa
    >>> screen, reading = read_table(pa.table({"Gene_A": ["YAL001C"], "Gene_B": ["YBR002W"], "score": ["-0,31"]}))
    >>> screen.genotypes[0], screen.phenotypes["score"].tolist()
    (('YAL001C', 'YBR002W'), [-0.31])
    >>> print(reading)
    the table: a table in memory, decimal comma
      genes: columns Gene_A and Gene_B, one gene each
      phenotypes: score
      rows: 1 read, 1 kept
      genotypes: 1 with 2 genes
      first row: YAL001C+YBR002W, score -0.31
    """
    options = options or TableOptions()
    if isinstance(source, str | Path) and Path(source).is_dir():
        source = table_in(Path(source), "screen")
    blocks = without_blank_rows(blocks_of(source, options))
    matrix, headers = below_headers(blocks)
    rows = None if options.genes else genes_of_rows(matrix.columns, matrix.sample(), options)
    notes: list[str] = []
    if rows is not None:
        blocks, notes = as_pairs(matrix, rows, options)
        if headers:
            notes.append(f"{counted(headers, 'line')} below the header {'is' if headers == 1 else 'are'} passed over")
        options = replace(options, genes=GENES, decimal="point")
    layout = understand(blocks.name, blocks.columns, blocks.sample(), options, place=blocks.place)
    collected = _Collected(blocks.name, layout)
    for block in blocks.blocks([*layout.genes, *_maybe(layout.source)], layout.numbers, layout.decimal):
        collected.add(block)
    name = Path(blocks.name).name if isinstance(source, str | Path) else "table"
    screen = collected.screen(name)
    reading = TableReading("table", Path(blocks.name), len(screen), form=blocks.form(), layout=layout)
    reading.notes = [*notes, *blocks.notes(), *collected.notes()]
    screen = _measured(screen, options.missing, reading)
    reading.notes += _repeats(screen)
    reading.kept = {"experiments": len(screen)}
    reading.sizes = {size: int(n) for size, n in enumerate(np.bincount(screen.genotypes.size)) if n}
    reading.example = _first(screen)
    found = rows is None and not options.genes and options.known is None
    if found and max(reading.sizes) < 2 and len(layout.phenotypes) > _MANY:
        many = f"{len(layout.phenotypes):,} columns are read as phenotypes of single genes"
        reading.notes.append(f"{many}; if they are genes, say --matrix")
    return screen, reading


def read_genotypes(source: Any, options: TableOptions | None = None) -> Screen:
    """Only the genotypes of a table, for prediction; it needs no phenotype. Arguments as in :func:`read_table`."""
    options = options or TableOptions()
    blocks = blocks_of(source, options)
    layout = understand(blocks.name, blocks.columns, blocks.sample(), options, labels=False)
    collected = _Collected(blocks.name, layout)
    for block in blocks.blocks(layout.genes, (), layout.decimal):
        collected.add(block)
    return collected.screen(Path(blocks.name).name)


class Table(Source):
    """The source ``table``: a table of experiments laid out as above."""

    reads = "the file"

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See :func:`read_table`."""
        screen, reading = read_table(path, options.reading)
        report.files.append(reading)
        return screen


class _Collected:
    """The columns of a screen, block by block.

    Args:
        name: The table, for errors.
        layout: What its columns mean.
    """

    def __init__(self, name: str, layout: Layout) -> None:
        self.name = name
        self.layout = layout
        self._genotypes = WrittenGenotypes(layout.join, CONTROL if are_strains(layout.genes) else None)
        self._values: dict[str, list[Floats]] = {column: [] for column in layout.numbers}
        self._sources: dict[str, int] = {}
        self._source_codes: list[npt.NDArray[np.int32]] = []
        self._repeated = 0

    def add(self, block: pa.RecordBatch) -> None:
        """Some more experiments."""
        try:
            self._genotypes.add(_written(block, self.layout))
        except ScreenError as error:
            raise ScreenError(f"{self.name}{', ' if str(error).startswith('data row') else ': '}{error}") from error
        for column, parts in self._values.items():
            parts.append(np.asarray(block.column(column).to_numpy(zero_copy_only=False), dtype=np.float64))
        if self.layout.source is not None:
            texts = block.column(self.layout.source).cast("string").fill_null("").dictionary_encode()
            codes = [self._sources.setdefault(s.as_py(), len(self._sources)) for s in texts.dictionary]
            self._source_codes.append(np.array(codes, dtype=np.int32)[texts.indices.to_numpy()])

    def screen(self, source: str) -> Screen:
        """All of them.

        Args:
            source: Where they come from, if no column says so.
        """
        rows = len(self._genotypes)
        if rows == 0:
            raise ScreenError(
                f"{self.name} has a header but no experiments; add one row for each, or is it the right file?"
            )
        written: Any = (tuple(self._sources), np.concatenate(self._source_codes)) if self._source_codes else source
        column = {name: np.concatenate(self._values.pop(name)) for name in self.layout.numbers}  # frees its blocks
        statistics: dict[str, dict[str, Floats]] = {}
        for name, columns in self.layout.replicates.items():
            if name in self.layout.phenotypes:
                column[name], error = _mean([column[one] for one in columns])
                statistics[name] = {"sem": error}
        phenotypes = {name: column[name] for name in self.layout.phenotypes} or {"unmeasured": np.full(rows, np.nan)}
        for name, (phenotype, kind) in self.layout.statistics.items():
            statistics.setdefault(phenotype, {})[kind] = column[name]
        try:
            genotypes = self._genotypes.genotypes()
            self._repeated = self._genotypes.repeated(genotypes)
            return Screen(genotypes, phenotypes, statistics, written)
        except ScreenError as error:
            raise ScreenError(f"{self.name}: {error}") from error

    def notes(self) -> list[str]:
        """What is remarkable about the genotypes."""
        found = []
        marked = self._genotypes.marked
        if marked:
            some = counted(len(marked), "name is", "names are")
            found.append(f"{some} read without the mark of a deletion, allele or strain: {listed(list(marked))}")
        controls = self._genotypes.controls
        if controls:
            some = counted(controls, "genotype has", "genotypes have")
            found.append(f"{some} {CONTROL} (HO), the control of genetic arrays, which counts as no gene")
        if self._repeated:
            found.append(f"{counted(self._repeated, 'row names', 'rows name')} the same gene twice, which counts once")
        return found


def _mean(columns: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Mean of the values that there are, and its standard error; NaN where there are too few."""
    values = np.stack(columns)
    known = ~np.isnan(values)
    n = known.sum(0)
    mean = np.where(n > 0, np.where(known, values, 0.0).sum(0) / np.maximum(n, 1), np.nan)
    squares = np.where(known, values - mean, 0.0) ** 2
    return mean, np.where(n > 1, np.sqrt(squares.sum(0) / np.maximum((n - 1) * n, 1)), np.nan)


def _written(block: pa.RecordBatch, layout: Layout) -> pa.Array:
    """The written genotypes of a block: those of one column, or the genes of several joined by +."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [_as_names(block.column(name)) for name in layout.genes]
    if layout.decimal == "comma":
        columns = [
            pc.replace_substring_regex(c, r"(=\s*\d+),(\d+)", r"\1.\2") if pa.types.is_string(c.type) else c
            for c in columns
        ]
    if len(columns) == 1:
        return columns[0]
    wild: Any = pa.array(np.zeros(len(block), dtype=bool))
    genes = []
    for column in columns:
        texts = pc.utf8_trim_whitespace(column.cast(pa.string()).fill_null(""))
        lower = pc.utf8_lower(texts)
        is_wild = pc.is_in(lower, pa.array(sorted(WILD_TYPES)))
        none = pc.or_(is_wild, pc.is_in(lower, pa.array(sorted(MISSING))))
        wild = pc.or_(wild, is_wild)
        genes.append(pc.if_else(none, "", texts))
    # Not with nulls that are skipped: where all of them are null, pyarrow 26 leaves out the row.
    joined = pc.utf8_trim(pc.binary_join_element_wise(*genes, _BETWEEN), _BETWEEN)
    joined = pc.replace_substring_regex(joined, f"{_BETWEEN}+", "+")
    return pc.if_else(pc.and_(pc.equal(joined, ""), wild), "WT", joined)


def _as_names(column: pa.Array) -> pa.Array:
    """A column of genes; numbers (of Entrez, for instance) become texts without decimals."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_floating(kind):
        return column.cast(pa.int64()).cast(pa.string())
    if pa.types.is_integer(kind) or pa.types.is_null(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    if pa.types.is_dictionary(kind):
        return column.cast(pa.string())
    return column


def _measured(screen: Screen, missing: str, reading: TableReading) -> Screen:
    """The experiments in which something was measured; see :attr:`TableOptions.missing`."""
    none = np.ones(len(screen), dtype=bool)
    for values in screen.phenotypes.values():
        none &= np.isnan(values)
    if missing == "keep" or not none.any():
        return screen
    which = listed(list(screen.phenotypes), "or")
    if missing == "error":
        raise ScreenError(
            f"{reading.path}: {counted(int(none.sum()), 'row has', 'rows have')} no {which}, the first is data row "
            f"{int(none.argmax()) + 1}; leave them out with --missing drop"
        )
    if none.all():
        raise ScreenError(f"{reading.path}: no row has a value for {which}; choose another column with --phenotype")
    reading.drop(f"no value for {which}", int(none.sum()))
    return screen.take(np.flatnonzero(~none))


def _repeats(screen: Screen) -> list[str]:
    again = screen.duplicates()
    if not again.genotypes:
        return []
    some = counted(again.genotypes, "genotype was", "genotypes were")
    return [f"{some} measured more than once, in {again.experiments:,} rows; splits keep these together"]


def _first(screen: Screen) -> str:
    values = (f"{name} {float(v[0]):g}" for name, v in list(screen.phenotypes.items())[:3])
    return ", ".join([as_text(screen.genotypes[0]), *values])


def _genes_in_words(layout: Layout, most: int) -> str:
    columns = f"column{'s' * (len(layout.genes) > 1)} {listed(layout.genes)}"
    if 1 < len(layout.genes) >= most:
        return f"{columns}, one gene each"
    signs = {"+": "+ , | or ;", "space": "spaces", "/": "/"}[layout.join]
    return f"{columns}, genes joined by {signs}"


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""


def _maybe(name: str | None) -> list[str]:
    return [] if name is None else [name]
