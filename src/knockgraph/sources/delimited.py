"""Delimited text as public databases publish it: plain, ``.gz``, ``.xz``, ``.bz2`` or in a ``.zip``, in a stream.

Files are read block by block through pyarrow, so a file of any size needs little memory. If a block is refused, the
file is read again, slowly, by :meth:`DelimitedFile.rows`, to find the bad line.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from lzma import LZMAError
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from knockgraph.errors import FileFormatError

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["text", "number", "integer"]
MISSING = ("", "NA", "NaN", "nan", "N/A", "null", "-")
"""Values that mean "not measured" in a column of numbers."""

_ZIP = b"PK\x03\x04"
_DAMAGED = (EOFError, zlib.error, LZMAError, zipfile.BadZipFile, OSError)
_UNREADABLE = (NotImplementedError, RuntimeError, KeyError, ValueError, struct.error)  # zipfile's, beside those above
_SHOWN = 60  # characters of a bad line in an error
_LONGEST_NAME = 1000  # characters of a column's name; a longer one is not a header
_MOST_TITLES = 200  # lines before the header
LONGEST_LINE = 1 << 26  # bytes: other kinds of file, and files made to fill the memory, are not read to the end


_FREE_TEXT = 1 << 26  # bytes that any compressed file may hold
_MOST_EXPANSION = 200  # times its size beyond that; tables reach 5 to 50, files made to fill the memory 1,000 and more


class Unpacked(io.RawIOBase):
    """Decompressed bytes, up to the plausible size of a table.

    Args:
        stream: The decompressor.
        path: The compressed file.
    """

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream = stream
        self._path = path
        self._left = max(_FREE_TEXT, _MOST_EXPANSION * path.stat().st_size)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See :class:`io.RawIOBase`."""
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise FileFormatError(
                f"{self._path} unpacks to more than {_MOST_EXPANSION} times its size, as files do that are made to "
                "fill the memory; if it is sound, unpack it and give the unpacked file"
            )
        buffer[: len(data)] = data
        return len(data)


class DelimitedFile:
    """One delimited text file and its header.

    Args:
        path: The file. Its compression is recognised by its first bytes, not by its name.
        delimiter: One character; by default a tab, comma, semicolon or space, whichever the header has.
        columns: Names of the columns of a file that has no header line.
        header: A pattern (case-insensitive) that the header line matches; lines before it, a title for instance, are
            passed over. By default the first line is the header.
        member: Pattern of the wanted file in a zip archive.
        quoted: Whether fields may stand in quotes; by default only between commas and semicolons.
    """

    def __init__(
        self,
        path: Path,
        delimiter: str | None = None,
        columns: Sequence[str] | None = None,
        header: str | None = None,
        member: str = "*",
        quoted: bool | None = None,
    ) -> None:
        self.path = path
        self.quoted = quoted
        self.member = member
        self.skip = 0
        first = ""
        with self.open() as stream:
            for number, raw in itertools.islice(self._lines(stream), _MOST_TITLES):
                first = raw.decode("utf-8", "replace").removeprefix("\ufeff")
                self.skip = number - 1
                if header is None or re.search(header, first, re.IGNORECASE):
                    break
            else:
                raise FileFormatError(f"{path} is empty" if not first else f"{path} has no header line like {header!r}")
        self.delimiter = delimiter or next((d for d in "\t,; " if d in first), "\t")
        given = columns is not None
        self._name_columns(list(columns) if columns is not None else [c.strip() for c in self._fields(first)])
        if given and len(first.split(self.delimiter)) != len(self.columns):
            raise FileFormatError(
                f"{path}, line 1: it has {len(first.split(self.delimiter))} fields, but {len(self.columns)} are needed "
                f"({', '.join(self.columns)}); is it the right file?"
            )
        self.first_line = self.skip + (1 if given else 2)  # the line number of the first row of data

    def _name_columns(self, names: Sequence[str]) -> None:
        """Name the columns; refuse names that are too long or repeated."""
        self.columns = [name or f"column {i + 1}" for i, name in enumerate(names)]
        longest = max(map(len, self.columns))
        if longest > _LONGEST_NAME:
            raise FileFormatError(
                f"{self.path}, line {self.skip + 1}: a column has a name of {longest:,} characters; is it the right "
                "file?"
            )
        folded = [_folded(c) for c in self.columns]
        twice = sorted({c for c, f in zip(self.columns, folded, strict=True) if folded.count(f) > 1})
        if twice:
            raise FileFormatError(
                f"{self.path} has more than one column {', '.join(map(repr, twice))}; rename or remove one"
            )

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The decompressed bytes."""
        try:
            with self.path.open("rb") as raw:
                magic = raw.read(6)
        except OSError as error:
            why = "there is no such file" if not self.path.exists() else (error.strerror or str(error)).lower()
            raise FileFormatError(f"cannot read {self.path}: {why}") from error
        with contextlib.ExitStack() as opened, self._guarded():
            stream: IO[bytes]
            packed = True
            if magic.startswith(b"\x1f\x8b"):
                import gzip

                stream = opened.enter_context(gzip.open(self.path))  # type: ignore[arg-type]
            elif magic.startswith(b"\xfd7zXZ\x00"):
                import lzma

                stream = opened.enter_context(lzma.open(self.path))
            elif magic.startswith(b"BZh"):
                import bz2

                stream = opened.enter_context(bz2.open(self.path))
            elif magic.startswith(_ZIP):
                archive = opened.enter_context(_archive(self.path))
                member = self._member(archive)
                try:
                    stream = opened.enter_context(archive.open(member))
                except _UNREADABLE as error:
                    raise self._damaged(error) from error
            else:
                stream = opened.enter_context(self.path.open("rb"))
                packed = False
            yield io.BufferedReader(Unpacked(stream, self.path), 1 << 20) if packed else stream

    def _member(self, archive: zipfile.ZipFile) -> str:
        """The name of the wanted file in an archive."""
        if "xl/workbook.xml" in archive.namelist():
            raise FileFormatError(
                f"{self.path} is an Excel workbook; save its sheet as tab-separated text and give that"
            )
        names = [i.filename for i in archive.infolist() if not i.is_dir() and not i.filename.startswith("__")]
        wanted = [name for name in names if fnmatch(Path(name).name.lower(), self.member.lower())]
        if len(wanted) != 1:
            raise FileFormatError(
                f"{self.path} holds {len(wanted) or 'none'} of {self.member!r} (it holds {', '.join(names[:10])}); "
                "unpack it and give the file"
            )
        return wanted[0]

    def find(self, *names: str) -> str | None:
        """The first of these columns that the file has, whatever its case; ``None`` without one."""
        by_folded = {_folded(c): c for c in self.columns}
        return next((by_folded[_folded(name)] for name in names if _folded(name) in by_folded), None)

    def need(self, *names: str) -> str:
        """Like :meth:`find`, an error without one."""
        found = self.find(*names)
        if found is None:
            raise FileFormatError(
                f"{self.path} has no column {names[0]!r}; it has {', '.join(map(repr, self.columns[:16]))}; "
                "is it the right file?"
            )
        return found

    def batches(self, columns: Mapping[str, Kind], block_size: int = 1 << 22) -> Iterator[pa.RecordBatch]:
        """The wanted columns, block by block; missing numbers are null.

        Raises:
            FileFormatError: With file, line and what is wrong.
        """
        import pyarrow as pa
        import pyarrow.csv as csv

        types = {"text": pa.string(), "number": pa.float64(), "integer": pa.int64()}
        with self.open() as stream, contextlib.ExitStack() as opened:
            try:
                reader = csv.open_csv(
                    stream,
                    csv.ReadOptions(column_names=self.columns, skip_rows=self.first_line - 1, block_size=block_size),
                    csv.ParseOptions(delimiter=self.delimiter, quote_char=self._quote, ignore_empty_lines=True),
                    csv.ConvertOptions(
                        column_types={name: types[kind] for name, kind in columns.items()},
                        include_columns=list(columns),
                        null_values=list(MISSING),
                        strings_can_be_null=False,
                    ),
                )
                opened.callback(reader.close)
                yield from reader
            except pa.ArrowInvalid as error:
                if "Empty CSV" in str(error):  # a header and nothing else
                    return
                self.refuse(columns)
                raise FileFormatError(f"cannot read {self.path}: {str(error).splitlines()[0]}") from error

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and fields of every row, one after another, in plain Python; fields are not checked."""
        with self.open() as stream:
            for number, raw in self._lines(stream):
                if number < self.first_line or not raw:
                    continue
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise FileFormatError(
                        f"{self.path}, line {number}: it is not UTF-8 text ({error.reason}); convert the file"
                    ) from error
                yield number, self._fields(line)

    def refuse(self, columns: Mapping[str, Kind], reason: Callable[[dict[str, str]], str | None] | None = None) -> None:
        """Raise for the first malformed line: a wrong number of fields, an invalid number, or what ``reason`` reports.

        Returns only if there is no such line.
        """
        for number, fields in self.rows():
            if len(fields) != len(self.columns):
                shown = self.delimiter.join(fields)[:_SHOWN]
                raise FileFormatError(
                    f"{self.path}, line {number}: it has {len(fields)} fields instead of {len(self.columns)} "
                    f"({shown!r}); correct or remove the line, or get the file again"
                )
            row = dict(zip(self.columns, fields, strict=True))
            for name, kind in columns.items():
                problem = _not_a(kind, row[name])
                if problem:
                    raise FileFormatError(
                        f"{self.path}, line {number}: {name!r} is {row[name][:_SHOWN]!r}, but {problem} is needed; "
                        "correct or remove the line"
                    )
            said = reason(row) if reason else None
            if said:
                raise FileFormatError(f"{self.path}, line {number}: {said}")

    def _fields(self, line: str) -> list[str]:
        if not self._quote or '"' not in line:
            return line.split(self.delimiter)
        import csv

        return next(csv.reader([line], delimiter=self.delimiter))

    @property
    def _quote(self) -> str | Literal[False]:
        """Fields between commas may be quoted; those between tabs or spaces are not, and may contain quotes."""
        quoted = self.delimiter in ",;" if self.quoted is None else self.quoted
        return '"' if quoted else False

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
        """Line number and line; \\r also ends a line, as in pyarrow."""
        number = 0
        while raw := stream.readline(LONGEST_LINE):
            if len(raw) == LONGEST_LINE:
                raise does_not_end(self.path, number + 1)
            for line in raw.splitlines():
                number += 1
                yield number, line

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except _DAMAGED as error:
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> FileFormatError:
        return FileFormatError(
            f"{self.path} is damaged or incomplete ({str(error) or type(error).__name__}); get the file again"
        )


def does_not_end(path: Path, number: int) -> FileFormatError:
    """The error of a line that is too long to be read."""
    return FileFormatError(f"{path}, line {number}: it does not end within {LONGEST_LINE:,} bytes; is it text?")


def members(path: Path) -> list[str] | None:
    """Names of the files in a zip archive; ``None`` if the file is not an archive."""
    try:
        with path.open("rb") as raw:
            if raw.read(4) != _ZIP:
                return None
        with _archive(path) as archive:
            return archive.namelist()
    except _DAMAGED as error:
        raise FileFormatError(f"{path} is damaged or incomplete ({error}); get the file again") from error


def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except _UNREADABLE as error:
        raise zipfile.BadZipFile(str(error)) from error


def _folded(name: str) -> str:
    return re.sub(r"[\s_.#]+", " ", name).strip().casefold()


def _not_a(kind: Kind, text: str) -> str | None:
    """What is needed instead, or ``None``."""
    if kind == "text":
        return None
    if text.strip() in MISSING:
        return None
    try:
        (int if kind == "integer" else float)(text)
    except ValueError:
        return "an integer" if kind == "integer" else "a number"
    return None
