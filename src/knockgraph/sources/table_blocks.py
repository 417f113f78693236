"""Tables of any accepted kind (CSV, TSV, Parquet; ``.gz`` and ``.xz`` too), block by block, whatever their size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from knockgraph.arrow import check_rows
from knockgraph.errors import FileFormatError, ScreenError
from knockgraph.sources.delimited import DelimitedFile

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK = 1 << 22  # bytes of text
_ROWS = 1 << 18  # of a Parquet file


class TableBlocks:
    """The columns of a table, and its rows in blocks.

    Args:
        file: The table.
        text: Columns that hold text; all others of a CSV or TSV file are numbers. A gene called 007 is not the number
            7, one called NA is not missing.
        only: The columns to read; all by default.
    """

    def __init__(self, file: Path, text: Collection[str], only: Sequence[str] | None = None) -> None:
        self.file = file
        self.text = text
        self.only = only
        if not file.is_file():
            raise FileFormatError(f"cannot read {file}: there is no such file")
        self._delimited = None if file.name.endswith(".parquet") else delimited(file)
        self.columns: list[str] = self._parquet_columns() if self._delimited is None else self._delimited.columns
        refuse_repeated(file, self.columns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            yield from self._parquet() if self._delimited is None else self._csv(self._delimited)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileFormatError(f"cannot read {self.file}: {str(error).splitlines()[0]}") from error

    def _parquet_columns(self) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(self.file).names)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise FileFormatError(f"cannot read {self.file}: {str(error).splitlines()[0]}") from error

    def _parquet(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        check_rows(self.file)
        with pq.ParquetFile(self.file) as parquet:
            for batch in parquet.iter_batches(_ROWS, columns=self.only):
                batch.validate(full=True)  # strings that are not UTF-8 are found here, not where they are used
                for name in batch.schema.names:
                    kind = batch.schema.field(name).type
                    if name in self.text or pa.types.is_null(kind):
                        continue
                    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                        values = batch.column(name).drop_null().to_pylist()
                        bad = (v for v in values if not isinstance(v, str) or not _is_number(v))
                        raise self._not_numeric(name, next(bad, next(iter(values), "")), "")
                yield batch

    def _csv(self, text: DelimitedFile) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.csv as csv

        types = {name: pa.string() if name in self.text else pa.float64() for name in text.columns}
        with text.open() as stream:
            try:
                # Empty cells stay empty strings; only numbers turn them into missing values. The header is the one that
                # was read: spaces around a name are not part of it.
                with csv.open_csv(
                    stream,
                    csv.ReadOptions(column_names=text.columns, skip_rows=text.first_line - 1, block_size=_BLOCK),
                    csv.ParseOptions(delimiter=text.delimiter),
                    csv.ConvertOptions(strings_can_be_null=False, column_types=types, include_columns=self.only or []),
                ) as reader:
                    yield from reader
            except pa.ArrowInvalid as error:
                if "Empty CSV" in str(error):  # a header and nothing else
                    return
                text.refuse({})  # says in which line
                self._refuse_words(text, [name for name in text.columns if name not in self.text])
                raise

    def _refuse_words(self, text: DelimitedFile, names: list[str]) -> None:
        """Raise for the first value in a column of numbers that is not a number."""
        at = {name: text.columns.index(name) for name in names}
        for number, fields in text.rows():
            for name, column in at.items():
                if not _is_number(fields[column]):
                    raise self._not_numeric(name, fields[column], f", line {number}")

    def _not_numeric(self, name: str, value: Any, where: str) -> ScreenError:
        return ScreenError(
            f"{self.file}{where}: column {name!r} is not numeric, it holds {value!r}; correct it or remove the column"
        )


def delimited(file: Path) -> DelimitedFile:
    """A CSV or TSV file and its header."""
    text = DelimitedFile(file, "," if ".csv" in file.suffixes else "\t", quoted=True)
    if any("\ufffd" in name for name in text.columns):
        raise FileFormatError(f"{file}, line {text.first_line - 1}: it is not UTF-8 text; convert the file")
    return text


def refuse_repeated(file: Path, names: list[str]) -> None:
    """Refuse two columns with the same name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise FileFormatError(f"{file} has more than one column {', '.join(map(repr, repeated))}; rename or remove one")


def _is_number(text: str) -> bool:
    """Whether pyarrow reads a cell as a number or as missing."""
    import pyarrow as pa
    import pyarrow.csv as csv

    if text.strip() in csv.ConvertOptions().null_values:
        return True
    try:
        pa.scalar(text.strip()).cast(pa.float64())
    except pa.ArrowInvalid:
        return False
    return True
