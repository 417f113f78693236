"""Tables of any accepted kind (text, Parquet, Excel, Arrow, dataframes), block by block, whatever their size."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knockgraph.arrow import check_rows
from knockgraph.errors import FileFormatError
from knockgraph.sources.excel import is_workbook, read_workbook
from knockgraph.sources.table_layout import MISSING, Decimal, Sample, TableOptions, is_missing, not_numeric
from knockgraph.sources.text_table import DELIMITERS, SAMPLE_ROWS, TextTable
from knockgraph.words import counted

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 1 << 22  # bytes of text
_ROWS = 1 << 18  # of a Parquet file
_FIX = "correct it, or choose the phenotypes with --phenotype"


class TableBlocks(ABC):
    """The columns of a table, its first rows, and all rows in blocks.

    Attributes:
        name: What to call it.
        columns: Names of all columns.
    """

    name: str
    columns: list[str]

    @abstractmethod
    def form(self) -> str:
        """How the table is written, in words."""

    @abstractmethod
    def sample(self) -> Sample:
        """The first values of each column."""

    def place(self, row: int) -> str:
        """Where a row of the sample is."""
        return f"{self.name}, data row {row + 1}"

    @abstractmethod
    def from_row(self, row: int) -> TableBlocks:
        """The table from this row of the sample on."""

    @abstractmethod
    def blocks(self, texts: Sequence[str], numbers: Sequence[str], decimal: Decimal) -> Iterator[pa.RecordBatch]:
        """Some columns of all rows: texts (or lists of texts) as they are, numbers as float64, null where missing."""

    def notes(self) -> list[str]:
        """What is remarkable about the table, once it has been read."""
        return []


def blocks_of(source: Any, options: TableOptions) -> TableBlocks:
    """The blocks of a file, an Arrow table or a dataframe."""
    import pyarrow as pa

    if not isinstance(source, str | Path):
        return ArrowBlocks("the table", _as_arrow(source), "a table in memory")
    file = Path(source)
    if not file.is_file():
        raise FileFormatError(f"cannot read {file}: there is no such file")
    if file.name.endswith(".parquet"):
        return ParquetBlocks(file)
    if is_workbook(file):
        form, columns = read_workbook(file, options.sheet)
        return ArrowBlocks(str(file), pa.table(columns), form)
    return TextBlocks(file, options.delimiter)


def without_blank_rows(blocks: TableBlocks) -> TableBlocks:
    """A table in memory without rows of which every cell is empty, as spreadsheets have; files have none."""
    import pyarrow.compute as pc

    if type(blocks) is not ArrowBlocks or len(blocks.columns) < 2:
        return blocks
    blank: Any = True
    for column in blocks.table.columns:
        none = column.is_null(nan_is_null=True)
        blank = pc.and_(blank, pc.or_kleene(none, pc.equal(column, "")) if _is_text(column.type) else none)
        if not pc.any(blank).as_py():
            return blocks
    return ArrowBlocks(blocks.name, blocks.table.filter(pc.invert(blank)), blocks.form())


class TextBlocks(TableBlocks):
    """A text file.

    Args:
        file: The file.
        delimiter: See :class:`TextTable`.
    """

    def __init__(self, file: Path, delimiter: str | None) -> None:
        self.name = str(file)
        self.text = TextTable(file, delimiter)
        self.columns = self.text.columns

    def form(self) -> str:
        """See :class:`TableBlocks`."""
        between = "spaces" if self.text.written == "space" else f"{self.text.written}s"
        between = between if self.text.written in DELIMITERS else self.text.written
        some = f", {counted(self.text.comments, 'comment line')}" if self.text.comments else ""
        return f"text, fields divided by {between}{some}" if len(self.columns) > 1 else f"text, one column{some}"

    def notes(self) -> list[str]:
        """See :class:`TableBlocks`."""
        found = []
        if self.text.not_utf8:
            found.append(f"{counted(self.text.not_utf8, 'line is', 'lines are')} not UTF-8 and read as Latin-1")
        if self.text.row_names:
            found.append("the first column has no name, as R writes tables; it is called 'column 1'")
        return found

    def sample(self) -> Sample:
        """See :class:`TableBlocks`."""
        return {name: [row[at] for _, row in self.text.seen] for at, name in enumerate(self.columns)}

    def from_row(self, row: int) -> TextBlocks:
        """See :class:`TableBlocks`."""
        rest = copy.copy(self)
        rest.text = copy.copy(self.text)
        rest.text.first_line, rest.text.seen = self.text.seen[row][0], self.text.seen[row:]
        return rest

    def place(self, row: int) -> str:
        """See :class:`TableBlocks`."""
        return f"{self.name}, line {self.text.seen[row][0]}"

    def blocks(self, texts: Sequence[str], numbers: Sequence[str], decimal: Decimal) -> Iterator[pa.RecordBatch]:
        """See :class:`TableBlocks`."""
        import pyarrow as pa
        import pyarrow.csv as csv

        text = self.text
        types = {**dict.fromkeys(texts, pa.string()), **dict.fromkeys(numbers, pa.float64())}
        with _named(self.name), text.open() as stream:
            try:
                # Empty cells stay empty strings; only numbers turn them into missing values. The header is the one that
                # was read: spaces around a name are not part of it.
                with csv.open_csv(
                    stream,
                    csv.ReadOptions(column_names=text.columns, skip_rows=text.first_line - 1, block_size=_BLOCK),
                    csv.ParseOptions(delimiter=text.delimiter, quote_char='"' if text.quoted else False),
                    csv.ConvertOptions(
                        strings_can_be_null=False,
                        column_types=types,
                        include_columns=list(types),
                        null_values=_spellings(),
                        decimal_point="," if decimal == "comma" else ".",
                    ),
                ) as reader:
                    yield from reader
            except pa.ArrowInvalid as error:
                if "Empty CSV" in str(error):  # a header and nothing else
                    return
                text.refuse({})  # says in which line
                self._refuse_words(numbers, decimal)
                raise

    def _refuse_words(self, names: Sequence[str], decimal: Decimal) -> None:
        """Raise for the first value in a column of numbers that is not a number."""
        at = {name: self.columns.index(name) for name in names}
        for number, fields in self.text.rows():
            for name, column in at.items():
                if _number_of(fields[column], decimal) is None:
                    raise not_numeric(f"{self.name}, line {number}", name, fields[column], _FIX)


class ArrowBlocks(TableBlocks):
    """A table in memory.

    Args:
        name: What to call it.
        table: The table.
        form: How it is written, in words.
    """

    def __init__(self, name: str, table: pa.Table | None, form: str) -> None:
        self.name = name
        self._form = form
        if table is not None:
            self.table = table
            self.columns = [str(column) for column in table.column_names]
        refuse_repeated(name, self.columns)

    def form(self) -> str:
        """See :class:`TableBlocks`."""
        return self._form

    def sample(self) -> Sample:
        """See :class:`TableBlocks`."""
        with _named(self.name):
            first = next(self._batches(self.columns, SAMPLE_ROWS), None)
            if first is None:
                return {name: [] for name in self.columns}
            return {name: first.column(name)[:SAMPLE_ROWS].to_pylist() for name in self.columns}

    def blocks(self, texts: Sequence[str], numbers: Sequence[str], decimal: Decimal) -> Iterator[pa.RecordBatch]:
        """See :class:`TableBlocks`."""
        import pyarrow as pa

        with _named(self.name):
            for batch in self._batches([*texts, *numbers], _ROWS):
                batch.validate(full=True)  # strings that are not UTF-8 are found here, not where they are used
                arrays = [batch.column(name) for name in texts]
                arrays += [_as_numbers(self.name, name, batch.column(name), decimal) for name in numbers]
                yield pa.record_batch(arrays, [*texts, *numbers])

    def from_row(self, row: int) -> ArrowBlocks:
        """See :class:`TableBlocks`."""
        return ArrowBlocks(self.name, self.table.slice(row), self.form())

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        yield from self.table.select(list(columns)).to_batches(max_chunksize=rows)


class ParquetBlocks(ArrowBlocks):
    """A Parquet file."""

    def __init__(self, file: Path) -> None:
        import pyarrow.parquet as pq

        self._file = file
        with _named(str(file)):
            self.columns = list(pq.read_schema(file).names)
            check_rows(file)
        super().__init__(str(file), None, "Parquet")

    def from_row(self, row: int) -> ArrowBlocks:
        """See :class:`TableBlocks`."""
        import pyarrow.parquet as pq

        return ArrowBlocks(self.name, pq.read_table(self._file).slice(row), self.form())

    def _batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(self._file) as parquet:
            yield from parquet.iter_batches(rows, columns=list(columns))


def refuse_repeated(name: str, columns: list[str]) -> None:
    """Refuse two columns with the same name."""
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise FileFormatError(f"{name} has more than one column {', '.join(map(repr, repeated))}; rename or remove one")


class _named:  # noqa: N801 (a context manager)
    """Arrow's errors become ours, with the name of the table."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowException | OSError | UnicodeDecodeError):
            raise FileFormatError(f"cannot read {self.name}: {str(error).splitlines()[0]}") from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_arrow(source: Any) -> pa.Table:
    """An Arrow table, or anything that becomes one: a dataframe of pandas or polars, a mapping of columns."""
    import pyarrow as pa

    if isinstance(source, pa.Table):
        return source
    try:
        return pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{type(source).__name__} cannot be read as a table ({str(error).splitlines()[0]}); give a file, an Arrow "
            "table or a dataframe whose columns hold one kind of value each"
        ) from error


def _as_numbers(where: str, name: str, column: pa.Array, decimal: Decimal) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if _is_text(kind):
        texts = pc.utf8_trim_whitespace(column.cast(pa.string()))
        spelled = pa.array(_spellings(), pa.string())
        texts = pc.if_else(pc.is_in(texts, spelled), pa.scalar(None, pa.string()), texts)
        column = pc.replace_substring(texts, ",", ".") if decimal == "comma" else texts
    try:
        return column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        odd = (value for value in column.drop_null().to_pylist() if _number_of(value, decimal) is None)
        raise not_numeric(where, name, next(odd, f"values of type {kind}"), _FIX) from None


def _number_of(cell: Any, decimal: Decimal) -> float | None:
    """The number that pyarrow reads in a cell, NaN where it is missing, ``None`` where it is not one."""
    import pyarrow as pa

    if is_missing(cell):
        return float("nan")
    text = str(cell).strip()
    if decimal == "comma":
        text = "?" if "." in text else text.replace(",", ".")
    try:
        return float(pa.scalar(text).cast(pa.float64()).as_py())
    except pa.ArrowInvalid:
        return None


def _spellings() -> list[str]:
    """All spellings of missing values; pyarrow takes blanks around them for part of the word."""
    words = {spelling for word in MISSING for spelling in (word, word.upper(), word.title())} | {"NaN", "-NaN"}
    return sorted({f"{before}{word}{after}" for word in words for before in ("", " ") for after in ("", " ")})
