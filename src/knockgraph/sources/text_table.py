"""Tables of text as people have them: delimiter, comment lines, encoding and header line are found, not asked for."""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from knockgraph.errors import FileFormatError
from knockgraph.sources.delimited import LONGEST_LINE, DelimitedFile, does_not_end
from knockgraph.sources.table_layout import is_number, names_genes

DELIMITERS = {"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
"""Names of the delimiters; ``space`` is any run of spaces and tabs."""

SAMPLE_ROWS = 1000
"""How many rows a table is understood by."""

_SAMPLE = 1 << 20  # bytes
_CHUNK = 1 << 20  # bytes
_MOST_COMMENTS = 200  # lines above the header
_MOST_TITLES = 10  # lines above the header that are no comments
_COMMENT = re.compile(rb"(?:^|(?<=[\r\n]))[#%][^\r\n]*")
_BLANKS = re.compile(rb'("[^"\r\n]*")|[ \t]+')
_EXCEL_HINT = re.compile(r'^"?sep=(.)"?$', re.IGNORECASE)
_HARD_SPACE = "\u00a0".encode()  # of word processors and web pages; nobody means it
_LINE_END = re.compile(r"\r\n|\r|\n")
_Numbered = tuple[int, str]


class TextTable(DelimitedFile):
    """A delimited text file with its header; fields may stand in quotes.

    Lines that start with ``#`` or ``%`` are comments; the last one above the data is the header if it names the
    columns. A line of which every cell is empty is none. A line that is not UTF-8 is read as Windows-1252, which
    contains Latin-1.

    Args:
        path: The file.
        delimiter: One of :data:`DELIMITERS`, or one character; by default the one that divides all lines into equally
            many fields.

    Attributes:
        written: What divides the fields in the file, in words.
        comments: How many lines were comments, of those read so far.
        titles: How many lines of a title stand above the header.
        row_names: Whether the header has no name for the first column, as R writes tables.
        not_utf8: How many lines were not UTF-8, of those read so far.
        seen: The first rows with their line numbers.
    """

    def __init__(self, path: Path, delimiter: str | None = None) -> None:
        self.path = path
        self.member = "*"
        self.not_utf8 = self.comments = 0
        self._commented_header = False
        wanted = None if delimiter is None else _by_name(delimiter)
        lines, comments, hint = self._first_lines()
        if not lines:
            raise FileFormatError(f"{path} is empty" if not comments else f"{path} holds nothing but comments")
        self.titles = _titles([text for _, text in lines])
        lines = lines[self.titles : self.titles + SAMPLE_ROWS + 1]
        self._separator, self.quoted = _separator(path, [text for _, text in lines], wanted or hint)
        self.delimiter = "\t" if self._separator == " " else self._separator
        self.written = next((name for name, d in DELIMITERS.items() if d == self._separator), repr(self._separator))
        (line, names), *rows = [(number, self._fields(text)) for number, text in lines]
        if comments and _is_header(above := self._fields(comments[-1][1].lstrip("#% ")), names):
            line, names, rows = comments.pop()[0], above, [(line, names), *rows]
            self._commented_header = True
        self.row_names = False
        if rows and {len(row) for _, row in rows} == {len(names) + 1}:
            self.row_names = any(row[-1].strip() for _, row in rows)
            names = ["", *names] if self.row_names else [*names, ""]
        self.skip, self.first_line = line - 1, line + 1
        self.seen = [(number, row) for number, row in rows if len(row) == len(names)]
        self._name_columns([name.strip() for name in names])

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The table as UTF-8 with blank lines instead of comments, so that lines keep their numbers."""
        self.not_utf8, self.comments = 0, -int(self._commented_header)
        with self._lines_as_utf8() as stream:
            yield io.BufferedReader(_Edited(stream, self._edited), _CHUNK)

    @contextlib.contextmanager
    def _lines_as_utf8(self) -> Iterator[_WholeLines]:
        with super().open() as stream:
            yield _WholeLines(stream, self)

    def _edited(self, block: bytes) -> bytes:
        """Whole lines of the file as :meth:`open` yields them."""
        if any(sign in block for sign in (b"\n#", b"\n%", b"\r#", b"\r%")) or block[:1] in (b"#", b"%"):
            block, comments = _COMMENT.subn(b"", block)
            self.comments += comments
        sign = self._separator.encode()
        if block.startswith(sign) or b"\n" + sign in block or b"\r" + sign in block:
            block = re.sub(rb"(?:^|(?<=[\r\n]))[ \t%b]+(?=[\r\n]|$)" % re.escape(sign), b"", block)
        if self._separator == " ":
            ends = re.split(rb"([\r\n]+)", block)
            block = b"".join(_BLANKS.sub(lambda found: found[1] or b"\t", part.strip(b" \t")) for part in ends)
        return block

    def _first_lines(self) -> tuple[list[_Numbered], list[_Numbered], str | None]:
        """Numbered lines of data, the comments above them, and the delimiter that the first line announces."""
        with self._lines_as_utf8() as stream:
            text, whole = stream.start(_SAMPLE)
        texts = _LINE_END.split(text)
        texts = texts if whole or len(texts) < 2 else texts[:-1]
        numbered = [(number, line) for number, line in enumerate(texts, 1) if line.strip(" \t,;|")]
        hint = _EXCEL_HINT.match(numbered[0][1].strip()) if numbered else None
        numbered = numbered[1:] if hint else numbered
        data = [(number, line) for number, line in numbered if line[0] not in "#%"]
        above = [(number, line) for number, line in numbered if line[0] in "#%" and (not data or number < data[0][0])]
        if len(above) > _MOST_COMMENTS and not data:
            raise FileFormatError(f"{self.path} holds nothing but comments; is it the right file?")
        return data[: SAMPLE_ROWS + _MOST_TITLES], above, hint[1] if hint else None

    def _fields(self, line: str) -> list[str]:
        return _fields(line, self._separator, bool(self.quoted))


class _WholeLines:
    """The lines of a stream as UTF-8, many at a time."""

    def __init__(self, stream: IO[bytes], table: TextTable) -> None:
        self._stream = stream
        self._table = table
        self._rest: list[bytes] = []
        self._number = 1
        self._decode: Any = None
        self._ended = False

    def read(self) -> bytes:
        """The next whole lines; nothing at the end."""
        while not self._ended:
            chunk = self._stream.read(_CHUNK)
            self._ended = not chunk
            if self._decode is None:
                self._decode = _decoder(chunk)
                chunk = chunk.removeprefix(codecs.BOM_UTF8)
            chunk = self._decode(chunk, self._ended)
            end = len(chunk) if self._ended else 1 + max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
            lines = b"".join([*self._rest, chunk[:end]]) if end or self._ended else b""
            self._rest = [chunk[end:]] if end or self._ended else [*self._rest, chunk]
            if lines:
                self._number += lines.count(b"\n")
                return self._as_utf8(lines)
            if sum(map(len, self._rest)) > LONGEST_LINE:
                raise does_not_end(self._table.path, self._number)
        return b""

    def start(self, size: int) -> tuple[str, bool]:
        """The first lines, up to about this size, and whether that is all."""
        parts: list[bytes] = []
        while sum(map(len, parts)) < size and (block := self.read()):
            parts.append(block)
        text = b"".join(parts)
        return text[:size].decode("utf-8", "replace"), self._ended and len(text) <= size

    def _as_utf8(self, lines: bytes) -> bytes:
        if b"\x00" in lines:
            raise FileFormatError(f"{self._table.path} is not text, it holds zero bytes; is it the right file?")
        try:
            lines.decode("utf-8")
        except UnicodeDecodeError:
            lines = b"".join(map(self._one_as_utf8, lines.splitlines(keepends=True)))
        return lines.replace(_HARD_SPACE, b" ")

    def _one_as_utf8(self, line: bytes) -> bytes:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError:
            self._table.not_utf8 += 1
            try:
                return line.decode("cp1252").encode()
            except UnicodeDecodeError as error:
                raise FileFormatError(
                    f"{self._table.path} has a line that is neither UTF-8 nor Latin-1 text, {line[:60]!r}; convert "
                    "the file to UTF-8"
                ) from error
        return line


class _Edited(io.RawIOBase):
    """A stream of lines, each block edited."""

    def __init__(self, lines: _WholeLines, edit: Any) -> None:
        self._lines = lines
        self._edit = edit
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """See :class:`io.RawIOBase`."""
        while not self._ready:
            block = self._lines.read()
            if not block:
                return 0
            self._ready = memoryview(self._edit(block))
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken


def _decoder(start: bytes) -> Any:
    """From the bytes of a file to UTF-8, or to bytes that are hoped to be UTF-8."""
    if not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return lambda chunk, final: chunk
    decode = codecs.getincrementaldecoder("utf-16")("replace").decode
    return lambda chunk, final: decode(chunk, final).encode()


def _by_name(delimiter: str) -> str:
    found = DELIMITERS.get(delimiter.strip().lower(), delimiter)
    if len(found) != 1 or found in '"\r\n':
        raise FileFormatError(f"the delimiter {delimiter!r} is not one; use {', '.join(DELIMITERS)} or one character")
    return found


def _fields(line: str, separator: str, quoted: bool) -> list[str]:
    if separator == " ":
        return [field.strip('"') for field in re.findall(r'"[^"]*"|[^ \t]+', line)]
    if not quoted or '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator))
    except csv.Error:  # a field of more than 131,072 characters
        return line.split(separator)


def _separator(path: Path, lines: Sequence[str], wanted: str | None) -> tuple[str, bool]:
    """What divides the fields, and whether quotes enclose them."""
    for quoted in (True, False):
        fitting = [d for d in (wanted or "\t,;|") if _equally_many(lines, d, quoted)]
        if len(fitting) > 1:
            return _best(path, lines, fitting, quoted), quoted
        if fitting:
            return fitting[0], quoted
    if wanted is not None:
        return wanted, True
    if _equally_many(lines, " ", True):
        return " ", True
    # One column, or lines that do not fit, which the reader reports: by the header.
    count, found = max((len(_fields(lines[0], d, True)), d) for d in "|;,\t")
    return (found, True) if count > 1 else ("\t", True)


def _titles(lines: Sequence[str]) -> int:
    """How many lines stand above the one that names genes, each with a single field: a title, as spreadsheets have."""
    for separator in "\t,;|":
        for number, line in enumerate(lines[:_MOST_TITLES]):
            cells = [cell for cell in _fields(line, separator, True) if cell.strip()]
            if len(cells) > 1:
                if names_genes(cells) and not any(map(is_number, cells)):
                    return number
                break
    return 0


def _equally_many(lines: Sequence[str], separator: str, quoted: bool) -> bool:
    """Whether all lines have as many fields as the header, or all but the header one more."""
    header, *counts = (len(_fields(line, separator, quoted)) for line in lines)
    return header > 1 and (set(counts) <= {header} or set(counts) == {header + 1})


def _best(path: Path, lines: Sequence[str], fitting: list[str], quoted: bool) -> str:
    """Of several delimiters the one with which the columns make sense."""

    def sense(separator: str) -> tuple[bool, bool]:
        names, *rows = (_fields(line, separator, quoted) for line in lines)
        width = min(map(len, [names, *rows]))
        numbers = any(all(is_number(row[at]) for row in rows) for at in range(width))
        return names_genes(names), numbers and bool(rows)

    ranked = sorted(fitting, key=sense, reverse=True)
    if sense(ranked[0]) > sense(ranked[1]):
        return ranked[0]
    named = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
    by_name = next((named[suffix] for suffix in path.suffixes if named.get(suffix) in fitting), None)
    if by_name is not None:
        return by_name
    words = [name for name, d in DELIMITERS.items() if d in fitting]
    raise FileFormatError(
        f"{path} can be divided at more than one sign ({', '.join(words)}); choose with --delimiter {words[0]}"
    )


def _is_header(above: list[str], first: list[str]) -> bool:
    """Whether a comment names the columns of the line below it."""
    return len(above) == len(first) > 1 and any(is_number(cell) for cell in first) and not any(map(is_number, above))
