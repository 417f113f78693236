"""A chrome trace read event by event: only a window of a few megabytes is in memory."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any

from knockgraph.errors import FileFormatError

CHUNK = 1 << 20  # characters read at a time
LONGEST = 64 << 20  # characters that one event, or one value of the header, may have
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_AGAIN = "record the trace again, or copy it again from its origin"
_HOW = "give a file that torch.profiler's export_chrome_trace wrote"

Event = dict[str, Any]


class TraceStream:
    """The events of a chrome trace, in the order of the file; ``.json`` or gzip, an object or a bare array.

    Numbers with a point stay text, so that a time of day in microseconds keeps its nanoseconds.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, Any] = {}  #: fields before or after the events
        self.closed = True  #: False if a bare array ended without its bracket, which the format allows
        self.events = 0  #: values met so far in the list of events
        self.read_characters = 0
        self._decode = json.JSONDecoder(parse_float=str, strict=False).raw_decode
        self._text = ""
        self._at = 0
        self._before = 0  # characters already dropped from the window
        self._ended = False

    def __iter__(self) -> Iterator[Event]:
        with self._open() as raw, io.TextIOWrapper(raw, "utf-8-sig", errors="replace", newline="") as self._file:
            opening = self._peek()
            if not opening:
                raise FileFormatError(f"{self.path} is empty: no trace was written to it; {_AGAIN}")
            if opening == "[":
                self._at += 1
                yield from self._array(bare=True)
            elif opening == "{":
                yield from self._object()
            else:
                start = self._text[self._at : self._at + 20]
                raise FileFormatError(f"{self.path} is not a chrome trace, it starts with {start!r}; {_HOW}")
            if rest := self._peek():
                raise self._damaged(f"something follows the end of the trace, {rest!r}")

    def _open(self) -> IO[bytes]:
        if self.path.is_dir():
            raise FileFormatError(f"cannot read {self.path}: it is a folder; give the trace files in it")
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
            return gzip.open(self.path) if packed else self.path.open("rb")  # type: ignore[return-value]
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror).lower()
            raise FileFormatError(f"cannot read {self.path}: {reason}") from error

    def _object(self) -> Iterator[Event]:
        found = False
        self._at += 1
        if self._peek() != "}":
            while True:
                key = self._value("the name of a field")
                if not isinstance(key, str):
                    raise self._damaged(f"a field has the name {key!r}")
                self._expect(":")
                if key == "traceEvents" and self._peek() == "[":
                    found = True
                    self._at += 1
                    yield from self._array(bare=False)
                else:
                    self.header[key] = self._value(f"the field {key!r}")
                if self._expect(",}") == "}":
                    break
        else:
            self._at += 1
        if not found:
            keys = ", ".join(list(self.header)[:5]) or "none"
            raise FileFormatError(f"{self.path} is JSON without a list 'traceEvents' (its fields: {keys}); {_HOW}")

    def _array(self, bare: bool) -> Iterator[Event]:
        decode, skip = self._decode, _BETWEEN.match
        if self._peek() == "]":
            self._at += 1
            return
        while True:
            # The fast path: the whole event is in the window.
            self._peek()
            text, at = self._text, self._at
            try:
                while True:
                    event, end = decode(text, at)
                    after = skip(text, end).end()  # type: ignore[union-attr]
                    if after >= len(text) or text[after] == "]" or "," not in text[end:after]:
                        break
                    at = self._at = after
                    self.events += 1
                    if type(event) is dict:
                        yield event
            except (ValueError, RecursionError):
                pass
            # The slow path: at the edge of the window, at the end of the list, or at an error.
            if bare and not self._peek():
                self.closed = False
                return
            event = self._value(f"event {self.events + 1:,}")
            self.events += 1
            if type(event) is dict:
                yield event
            if bare and not self._peek():
                self.closed = False
                return
            if self._expect(",]") == "]":
                return

    def _value(self, what: str) -> Any:
        """The JSON value that starts here; the window grows until it is complete."""
        self._peek()
        failed = -1
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                # A number may continue beyond the window: "1", "1." and "1e+" are all read as 1.
                left = len(self._text) - end
                if left > 2 or not self._more():  # which moves the window
                    self._at = len(self._text) - left
                    return value
            except RecursionError as error:
                raise self._damaged(f"{what} is nested too deeply") from error
            except JSONDecodeError as error:
                place = error.pos + self._before
                unfinished = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - 8
                if not unfinished and place == failed:
                    raise self._damaged(f"in {what}, {_lower(error.msg)}", place) from error
                failed = place
                if len(self._text) - self._at > LONGEST:
                    raise self._damaged(f"{what} does not end within {LONGEST:,} characters", place) from error
                if not self._more():
                    if unfinished:
                        raise self._truncated(what) from error
                    raise self._damaged(f"in {what}, {_lower(error.msg)}", place) from error
            except ValueError as error:  # a number of thousands of digits
                raise self._damaged(f"in {what}, {error}") from error

    def _expect(self, wanted: str) -> str:
        found = self._peek()
        if not found:
            raise self._truncated(f"what follows event {self.events:,}" if self.events else "its header")
        if found not in wanted:
            raise self._damaged(f"{' or '.join(map(repr, wanted))} is expected, {found!r} found")
        self._at += 1
        return found

    def _peek(self) -> str:
        """The next character that is not white space, or nothing at the end of the file."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Drop what was read, add a chunk; False at the end of the file."""
        if self._ended:
            return False
        try:
            chunk = self._file.read(max(CHUNK, len(self._text) - self._at))
        except EOFError as error:
            raise FileFormatError(
                f"{self.path} is truncated: its gzip stream ends after {self.read_characters:,} characters; {_AGAIN}"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise FileFormatError(f"{self.path} is a damaged gzip file ({error}); {_AGAIN}") from error
        except OSError as error:
            raise FileFormatError(f"cannot read {self.path}: {str(error.strerror).lower()}") from error
        self._ended = not chunk
        self._text = self._text[self._at :] + chunk
        self._before += self._at
        self._at = 0
        self.read_characters += len(chunk)
        return bool(chunk)

    def _truncated(self, where: str) -> FileFormatError:
        return FileFormatError(
            f"{self.path} is truncated: it ends after {self.read_characters:,} characters, within {where}; "
            f"the program was stopped while it wrote the trace, {_AGAIN}"
        )

    def _damaged(self, what: str, place: int | None = None) -> FileFormatError:
        at = self._before + self._at if place is None else place
        return FileFormatError(f"{self.path} is not valid JSON at character {at:,}: {what}; {_AGAIN}")


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
