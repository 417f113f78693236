"""Downloading public files from their owners: interrupted and stalled downloads are resumed, and files verified.

A file is collected in ``.NAME.part`` and renamed when it is complete and valid. ``downloads.json`` in the same folder
records the address, size and SHA-256 of everything fetched. Later runs check against it, and another machine that is
given it as a lock file accepts only the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from knockgraph import __version__
from knockgraph.errors import DownloadError, FileFormatError
from knockgraph.files import atomic_write
from knockgraph.sources.catalogue import PublicFile

MANIFEST = "downloads.json"
_BLOCK = 1 << 18
_SLOWEST = 1024  # bytes per second, below which a connection counts as stalled
_UNPACKED = 16  # largest ratio of the unpacked size of an archive to that of the largest download

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes fetched and, if known, the total number."""


@dataclass(frozen=True)
class Fetched:
    """A verified file on disk."""

    name: str
    file: str
    url: str
    bytes: int
    sha256: str
    retrieved: str


def fetch(
    wanted: PublicFile,
    folder: Path,
    lock: Mapping[str, Fetched] | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 5,
    pause: float = 1.0,
) -> tuple[Fetched, bool]:
    """Make sure that a public file is in ``folder``; return its record, and whether it had to be fetched.

    Args:
        wanted: The file.
        folder: Where to put it; created if necessary.
        lock: Files that must be identical byte for byte, see :func:`read_manifest`.
        progress: Called with the progress.
        timeout: Seconds without a byte, or with fewer than 1,024 bytes per second, after which a connection is stalled.
        attempts: Number of consecutive failures without progress after which to give up.
        pause: Seconds before the second attempt, doubled each time.

    Raises:
        DownloadError: The file cannot be fetched; the message says what to do.
    """
    if not wanted.url:
        raise DownloadError(f"{wanted.title} has no address that a program may fetch; get it {wanted.where}")
    if not wanted.url.startswith(("https://", "http://")):
        raise DownloadError(f"{wanted.url} is not a web address; use http or https")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot make the folder {folder}: {(error.strerror or str(error)).lower()}") from error
    noted = read_manifest(folder / MANIFEST) if (folder / MANIFEST).is_file() else {}
    locked = (lock or {}).get(wanted.name)
    expected = wanted.sha256 or (locked.sha256 if locked else "")
    place = folder / wanted.file
    if place.is_file():
        return _present(wanted, place, noted.get(wanted.name), expected), False
    part = folder / f".{wanted.file}.part"
    _collect(wanted, part, progress, timeout, attempts, pause)
    _verify(wanted, part, expected)
    done = Fetched(
        wanted.name,
        wanted.file,
        wanted.url,
        part.stat().st_size,
        _sha256(part),
        datetime.now(UTC).isoformat("T", "seconds"),
    )
    part.replace(place)
    _about(part).unlink(missing_ok=True)
    with atomic_write(folder / MANIFEST) as new:
        entries = {**noted, wanted.name: done}
        new.write_text(json.dumps({name: asdict(f) for name, f in entries.items()}, indent=2) + "\n", encoding="utf-8")
    return done, True


def read_manifest(path: Path) -> dict[str, Fetched]:
    """Read a folder's ``downloads.json``, which also serves as a lock file."""
    try:
        return {name: Fetched(**entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError as error:
        raise FileFormatError(f"cannot read {path}: there is no such file") from error
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a list of downloads ({error}); remove it or copy it again") from error


def _present(wanted: PublicFile, place: Path, noted: Fetched | None, expected: str) -> Fetched:
    """The record of a file that is already present, if it is the right one."""
    digest = _sha256(place)
    should = expected or (noted.sha256 if noted else "")
    if should and digest != should:
        raise DownloadError(
            f"{place} has the SHA-256 {digest[:12]}…, but {should[:12]}… is expected: it was changed or is another "
            "release; remove it to fetch it again"
        )
    return Fetched(
        wanted.name, wanted.file, wanted.url, place.stat().st_size, digest, noted.retrieved if noted else "found here"
    )


def _collect(
    wanted: PublicFile, part: Path, progress: Progress | None, timeout: float, attempts: int, pause: float
) -> None:
    """Download ``part`` to its full size."""
    failures = 0
    while True:
        before = _size(part)
        try:
            if _transfer(wanted, part, progress, timeout):
                return
            why = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code not in (408, 425, 429, 500, 502, 503, 504):
                raise DownloadError(
                    f"{wanted.url} answers {error.code} {error.reason}; the owner may have moved it, see {wanted.page}"
                ) from error
            why = f"the server answers {error.code} {error.reason}"
        except _TooSlowError:
            why = f"fewer than {_SLOWEST:,} bytes a second came"
        except TimeoutError:
            why = f"no byte came for {timeout:g} s"
        except DownloadError:
            raise
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # also TLS errors, and those of a redirected address
            reason = getattr(error, "reason", error)
            why = f"no byte came for {timeout:g} s" if isinstance(reason, TimeoutError) else f"{reason}"
        # One byte per connection is not progress: the download would never end.
        failures = 1 if _size(part) - before >= _SLOWEST * timeout else failures + 1
        if failures >= attempts:
            raise DownloadError(
                f"{wanted.url} could not be fetched after {attempts} attempts ({why}); {_size(part):,} bytes are kept, "
                f"run the command again to continue, or get the file by hand from {wanted.page}"
            )
        time.sleep(pause * 2 ** (failures - 1))


def _transfer(wanted: PublicFile, part: Path, progress: Progress | None, timeout: float) -> bool:
    """One connection; whether the file is complete after it."""
    have, validator = _size(part), _validator(part, wanted.url)
    headers = {"User-Agent": f"knockgraph/{__version__}", "Accept-Encoding": "identity"}
    if have and validator:
        # If the file has changed in the meantime, the server sends the whole new one instead.
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    else:
        have = 0
    request = urllib.request.Request(wanted.url, headers=headers)  # noqa: S310 (the scheme was checked)
    try:
        response = urllib.request.build_opener(_Redirects(), _Http(), _Https()).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and have:  # nothing left to send, or the file has changed
            part.unlink(missing_ok=True)
            return False
        raise
    with response:
        if response.headers.get_content_type() == "text/html" and not wanted.file.endswith((".html", ".htm")):
            raise DownloadError(f"{wanted.url} sent a web page instead of the file; get it by hand from {wanted.page}")
        resumed = response.status == 206 and _starts_at(response.headers.get("Content-Range"), have)
        if not resumed:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length and length.isdecimal() and len(length) < 19 else None
        _check_size(wanted, part, total or 0)
        since, then = time.monotonic(), have
        with _writing(part, "ab" if resumed else "wb") as out:
            _remember(part, wanted.url, response.headers)
            while block := response.read1(_BLOCK):  # what was received, so that a stall loses nothing
                out.write(block)
                have += len(block)
                _check_size(wanted, part, have)
                if time.monotonic() - since > timeout:
                    if have - then < _SLOWEST * timeout:
                        raise _TooSlowError
                    since, then = time.monotonic(), have
                if progress:
                    progress(have, total)
    return total is None or have == total


class _TooSlowError(Exception):
    """The connection is too slow to ever finish the file."""


class _InTime:
    """A connection on which all headers of a response come within the timeout, not only each byte of them."""

    sock: Any
    timeout: Any

    def getresponse(self) -> http.client.HTTPResponse:
        """Cut the connection when the time is over."""
        late = threading.Event()

        def cut() -> None:
            late.set()
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout, cut)
        timer.daemon = True
        timer.start()
        try:
            response: http.client.HTTPResponse = super().getresponse()  # type: ignore[misc]
        except (OSError, http.client.HTTPException):
            if late.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
        if late.is_set():  # http.client takes the end of a connection for the end of the headers
            response.close()
            raise TimeoutError
        return response


class _InTimeHTTP(_InTime, http.client.HTTPConnection):
    pass


class _InTimeHTTPS(_InTime, http.client.HTTPSConnection):
    pass


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_InTimeHTTP, req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_InTimeHTTPS, req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects are followed only to web addresses, and never from https to plain http."""

    def http_error_302(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        """Close the response of a redirect that is not followed."""
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except Exception:
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """See above."""
        old, new = (urllib.parse.urlsplit(url).scheme for url in (req.full_url, newurl))
        if new not in ("http", "https") or (old, new) == ("https", "http"):
            raise DownloadError(f"{req.full_url} redirects to {newurl}, which is not safe to follow; get it by hand")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_size(wanted: PublicFile, part: Path, size: int) -> None:
    """Refuse a download that is too large, before the disk is full."""
    if size > wanted.most_bytes:
        part.unlink(missing_ok=True)
        _about(part).unlink(missing_ok=True)
        raise DownloadError(
            f"{wanted.url} sends more than {wanted.most_bytes:,} bytes, which is not {wanted.title}; it was removed: "
            f"get it by hand from {wanted.page}"
        )


@contextlib.contextmanager
def _writing(part: Path, mode: str) -> Any:
    """Open the part; write errors are reported as such, connection errors are passed on."""
    try:
        out = part.open(mode)
    except OSError as error:
        raise DownloadError(f"cannot write {part}: {(error.strerror or str(error)).lower()}") from error

    class Writer:
        def write(self, block: bytes) -> None:
            try:
                out.write(block)
            except OSError as error:
                raise DownloadError(f"cannot write {part}: {(error.strerror or str(error)).lower()}") from error

    with out:
        yield Writer()


def _verify(wanted: PublicFile, part: Path, expected: str) -> None:
    """Refuse and remove a wrong file."""
    problem = ""
    digest = _sha256(part)
    if expected and digest != expected:
        problem = f"has the SHA-256 {digest[:12]}… instead of {expected[:12]}…"
    elif part.stat().st_size == 0:
        problem = "is empty"
    else:
        broken = _broken_archive(wanted.file, part, _UNPACKED * wanted.most_bytes)
        problem = f"is not a sound archive ({broken})" if broken else ""
    if problem:
        part.unlink(missing_ok=True)
        _about(part).unlink(missing_ok=True)
        raise DownloadError(
            f"what {wanted.url} sent {problem}; it was removed: try again, or get it by hand from {wanted.page}"
        )


def _broken_archive(name: str, path: Path, most: int) -> str:
    """What is wrong with a compressed file, by its own checksums."""
    import gzip
    import lzma
    import zipfile
    import zlib

    try:
        if name.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                if sum(member.file_size for member in archive.infolist()) > most:
                    return f"it unpacks to more than {most:,} bytes"
                bad = archive.testzip()
            return f"{bad} is damaged" if bad else ""
        opened = {".gz": gzip.open, ".xz": lzma.open}.get(Path(name).suffix)
        if opened:
            with opened(path, "rb") as stream:  # type: ignore[operator]
                while block := stream.read(1 << 20):
                    most -= len(block)
                    if most < 0:
                        return "it unpacks without end"
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        return str(error) or type(error).__name__
    return ""


def _starts_at(content_range: str | None, start: int) -> bool:
    return bool(content_range) and str(content_range).replace(" ", "").startswith(f"bytes{start}-")


def _about(part: Path) -> Path:
    return part.with_name(part.name + ".json")


def _remember(part: Path, url: str, headers: Any) -> None:
    """The version of the file that the part belongs to; without a strong validator it cannot be resumed."""
    etag = headers.get("ETag", "")
    mark = etag if etag and not etag.startswith("W/") else headers.get("Last-Modified", "")
    with contextlib.suppress(OSError):
        _about(part).write_text(json.dumps({"url": url, "validator": mark}), encoding="utf-8")


def _validator(part: Path, url: str) -> str:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        about = json.loads(_about(part).read_text(encoding="utf-8"))
        if about.get("url") == url:
            return str(about.get("validator", ""))
    return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
