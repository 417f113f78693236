"""Downloads from a local server that cuts connections, stalls, serves wrong bytes, changes its mind."""

import contextlib
import gzip
import hashlib
import io
import json
import random
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from knockgraph import FileFormatError
from knockgraph.cli.download import fetch_all
from knockgraph.sources.catalogue import FILES, SETS, PublicFile, chosen, public_file
from knockgraph.sources.download import MANIFEST, DownloadError, _Redirects, fetch, read_manifest

CONTENT = gzip.compress(random.Random(0).randbytes(600_000))


class Server(ThreadingHTTPServer):
    """What the next answers do is set by the test."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"v1"'
        self.ranges = True
        self.cut_after: list[int] = []  # bytes of the body after which the connection is closed, one entry per answer
        self.stall_after: list[int] = []
        self.statuses: list[int] = []  # errors to answer with first
        self.kind = "application/gzip"
        self.length = True
        self.redirect = ""  # where to send the visitor
        self.drip = 0.0  # seconds between bytes
        self.header_drip = 0.0
        self.endless = False
        self.claimed: str | None = None  # a Content-Length of its own
        self.asked: list[str | None] = []  # the Range of every request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file.txt.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        s = self.server
        wanted = self.headers.get("Range")
        s.asked.append(wanted)
        if s.statuses:
            self.send_error(s.statuses.pop(0))
            return
        if s.header_drip:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            with contextlib.suppress(OSError):
                for _ in range(200):
                    self.wfile.write(b"a")
                    time.sleep(s.header_drip)
            return
        if s.redirect:
            self.send_response(302)
            self.send_header("Location", s.redirect)
            self.end_headers()
            return
        start = 0
        if wanted and s.ranges and self.headers.get("If-Range") == s.etag:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start and start >= len(s.content):
            self.send_error(416)
            return
        body = s.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", s.kind)
        if s.length:
            self.send_header("Content-Length", s.claimed or str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(s.content) - 1}/{len(s.content)}")
        if s.etag:
            self.send_header("ETag", s.etag)
        self.end_headers()
        cut = s.cut_after.pop(0) if s.cut_after else None
        stall = s.stall_after.pop(0) if s.stall_after else None
        try:
            while s.endless:
                self.wfile.write(body)
            for place in range(len(body)) if s.drip else ():
                self.wfile.write(body[place : place + 1])
                time.sleep(s.drip)
            self.wfile.write(body[: cut if cut is not None else stall])
            self.wfile.flush()
            if stall is not None:
                time.sleep(1.5)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server()
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()
    thread.join()


def wanted(server: Server, **changes: Any) -> PublicFile:
    return replace(
        PublicFile("f", "a file", "file.txt.gz", server.url, "http://owner", "CC0", "Someone 2020", ("file*",)),
        **changes,
    )


def get(server: Server, folder: Path, **options: object) -> object:
    return fetch(wanted(server), folder, timeout=0.5, pause=0.01, **options)  # type: ignore[arg-type]


def test_a_file_arrives_whole_and_is_noted(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    folder = tmp_path / "new" / "raw"
    fetched, new = fetch(wanted(server), folder, progress=lambda have, total: seen.append((have, total)))
    assert new
    assert (folder / "file.txt.gz").read_bytes() == CONTENT
    assert fetched.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(p.name for p in folder.iterdir()) == [MANIFEST, "file.txt.gz"]
    assert read_manifest(folder / MANIFEST) == {"f": fetched}
    again, new = fetch(wanted(server), folder)
    assert not new
    assert again == fetched
    assert len(server.asked) == 1


def test_cut_connections_are_resumed(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 0, 200_000, 1]
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT
    assert server.asked[0] is None
    assert server.asked[1] == "bytes=100000-"
    assert server.asked[3] == "bytes=300000-"


def test_a_stalled_connection_is_left_and_resumed(server: Server, tmp_path: Path) -> None:
    server.stall_after = [50_000]
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT
    assert server.asked[1] == "bytes=50000-"


def test_giving_up_keeps_what_came_and_a_later_run_continues(server: Server, tmp_path: Path) -> None:
    server.cut_after = [70_000, 0, 0]
    with pytest.raises(
        DownloadError, match=r"after 2 attempts \(the connection was cut\); 70,000 bytes are kept, run the"
    ):
        get(server, tmp_path, attempts=2)
    assert not (tmp_path / "file.txt.gz").exists()
    server.cut_after = []
    get(server, tmp_path)
    assert server.asked[-1] == "bytes=70000-"
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT


def test_a_dead_stall_is_named(server: Server, tmp_path: Path) -> None:
    server.stall_after = [0, 0]
    with pytest.raises(DownloadError, match=r"after 2 attempts \(no byte came for 0.3 s\)"):
        fetch(wanted(server), tmp_path, timeout=0.3, attempts=2, pause=0.01)


@pytest.mark.parametrize("how", ["no ranges", "no mark", "weak mark"])
def test_a_server_that_cannot_resume_sends_it_all_again(how: str, server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000]
    server.ranges = how != "no ranges"
    server.etag = {"no mark": None, "weak mark": 'W/"v1"'}.get(how, '"v1"')
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT


def test_a_file_that_changes_meanwhile_is_not_mixed(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 0]
    with pytest.raises(DownloadError):
        get(server, tmp_path, attempts=2)
    server.content = gzip.compress(random.Random(1).randbytes(500_000))
    server.etag = '"v2"'
    server.cut_after = []
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == server.content


def test_a_part_longer_than_the_file_is_started_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".file.txt.gz.part").write_bytes(b"x" * (len(CONTENT) + 5))
    (tmp_path / ".file.txt.gz.part.json").write_text(json.dumps({"url": server.url, "validator": '"v1"'}))
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT


def test_a_part_of_another_address_is_not_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".file.txt.gz.part").write_bytes(b"x" * 1000)
    (tmp_path / ".file.txt.gz.part.json").write_text(json.dumps({"url": "http://other", "validator": '"v1"'}))
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT


def test_without_a_length_the_archive_itself_tells(server: Server, tmp_path: Path) -> None:
    server.length = False
    server.cut_after = [100_000]
    with pytest.raises(DownloadError, match=r"is not a sound archive .*; it was removed: try again"):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT


def test_wrong_bytes_are_refused_and_removed(server: Server, tmp_path: Path) -> None:
    right = hashlib.sha256(CONTENT).hexdigest()
    damaged = bytearray(CONTENT)
    damaged[1000] ^= 1
    server.content = bytes(damaged)
    with pytest.raises(DownloadError, match=f"has the SHA-256 .* instead of {right[:12]}…; it was removed"):
        fetch(wanted(server, sha256=right), tmp_path, pause=0.01)
    with pytest.raises(DownloadError, match="is not a sound archive"):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_lock_accepts_only_the_same_bytes(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path / "a")
    lock = read_manifest(tmp_path / "a" / MANIFEST)
    fetch(wanted(server), tmp_path / "b", lock)
    server.content = gzip.compress(b"another release")
    with pytest.raises(DownloadError, match="has the SHA-256"):
        fetch(wanted(server), tmp_path / "c", lock)


def test_a_file_changed_on_disk_is_refused(server: Server, tmp_path: Path) -> None:
    get(server, tmp_path)
    (tmp_path / "file.txt.gz").write_bytes(b"changed")
    with pytest.raises(DownloadError, match="it was changed or is another release; remove it to fetch it again"):
        get(server, tmp_path)


def test_a_file_put_there_by_hand_is_taken(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.txt.gz").write_bytes(CONTENT)
    fetched, new = fetch(wanted(server), tmp_path)
    assert not new
    assert fetched.retrieved == "found here"
    assert server.asked == []


def test_errors_of_the_server(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    get(server, tmp_path / "a")
    assert len(server.asked) == 3
    server.statuses = [404]
    with pytest.raises(DownloadError, match=r"answers 404 .*; the owner may have moved it, see http://owner"):
        get(server, tmp_path / "b")
    server.statuses = [503] * 3
    with pytest.raises(DownloadError, match=r"after 3 attempts \(the server answers 503"):
        get(server, tmp_path / "b", attempts=3)
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(DownloadError, match="sent a web page instead of the file; get it by hand from http://owner"):
        get(server, tmp_path / "b")


def test_nobody_there(tmp_path: Path) -> None:
    dead = PublicFile("f", "a file", "f.txt", "http://127.0.0.1:9/f.txt", "http://owner", "", "", ())
    with pytest.raises(DownloadError, match=r"could not be fetched after 2 attempts \(.*refused"):
        fetch(dead, tmp_path, attempts=2, pause=0.01)


def test_other_refusals(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        DownloadError, match="has no address that a program may fetch; get it by hand from http://owner"
    ):
        fetch(wanted(server, url=""), tmp_path)
    with pytest.raises(DownloadError, match="file:///etc/passwd is not a web address; use http or https"):
        fetch(wanted(server, url="file:///etc/passwd"), tmp_path)
    (tmp_path / "taken").write_text("x")
    with pytest.raises(DownloadError, match="cannot make the folder"):
        get(server, tmp_path / "taken" / "raw")
    (tmp_path / MANIFEST).write_text("[1]")
    with pytest.raises(FileFormatError, match="is not a list of downloads"):
        get(server, tmp_path)
    with pytest.raises(FileFormatError, match="there is no such file"):
        read_manifest(tmp_path / "none.json")


def test_the_catalogue_is_complete() -> None:
    names = [f.name for f in FILES]
    assert len(set(names)) == len(names)
    for f in FILES:
        assert all((f.title, f.file, f.page, f.licence, f.citation, f.patterns)), f.name
        assert f.url == "" or f.url.startswith(("http://", "https://"))
        assert "doi:" in f.citation
    for members in SETS.values():
        assert all(public_file(name) for name in members)
    assert [f.name for f in chosen(["yeast-lite", "biogrid"])] == list(SETS["yeast-lite"])


def test_a_download_without_end_is_cut_off(server: Server, tmp_path: Path) -> None:
    server.length, server.endless = False, True
    with pytest.raises(DownloadError, match="sends more than 5,000,000 bytes, which is not a file; it was removed"):
        fetch(wanted(server, most_bytes=5_000_000), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("claimed", [str(5_000_001), "9" * 18])
def test_a_length_beyond_the_limit_is_refused_before_a_byte(claimed: str, server: Server, tmp_path: Path) -> None:
    server.claimed = claimed
    with pytest.raises(DownloadError, match="sends more than 5,000,000 bytes"):
        fetch(wanted(server, most_bytes=5_000_000), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("claimed", ["-5", "many", "9" * 4000, "1e3"])
def test_a_length_that_is_none(claimed: str, server: Server, tmp_path: Path) -> None:
    server.claimed = claimed
    get(server, tmp_path)
    assert (tmp_path / "file.txt.gz").read_bytes() == CONTENT


def test_a_byte_per_connection_is_no_gain(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1] * 1000
    with pytest.raises(DownloadError, match=r"after 5 attempts \(the connection was cut\); 5 bytes are kept"):
        get(server, tmp_path)


def test_headers_that_never_end_are_a_stall(server: Server, tmp_path: Path) -> None:
    """Each byte is in time; the end of the headers is not."""
    server.header_drip = 0.02
    with pytest.raises(DownloadError, match=r"could not be fetched after 2 attempts \(no byte came for 0\.2 s\)"):
        fetch(wanted(server), tmp_path, timeout=0.2, attempts=2, pause=0)
    assert len(server.asked) == 2


def test_a_byte_now_and_then_is_a_stall(server: Server, tmp_path: Path) -> None:
    server.drip = 0.02
    with pytest.raises(DownloadError, match=r"after 2 attempts \(fewer than 1,024 bytes a second came\)"):
        fetch(wanted(server), tmp_path, timeout=0.2, attempts=2, pause=0.01)


@pytest.mark.parametrize(
    "place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "data:text/plain,x", "gopher://x/y", "//\x00", "http://[/"]
)
def test_redirects_elsewhere_are_refused(place: str, server: Server, tmp_path: Path) -> None:
    server.redirect = place
    with pytest.raises(DownloadError, match=r"redirects to|answers 302|could not be fetched"):
        get(server, tmp_path)
    assert not (tmp_path / "file.txt.gz").exists()


def test_a_redirect_from_https_to_http_is_refused() -> None:
    request = urllib.request.Request("https://owner.org/x")
    with pytest.raises(DownloadError, match=r"redirects to http://owner\.org/x, which is not safe to follow"):
        _Redirects().redirect_request(request, None, 302, "Found", {}, "http://owner.org/x")
    followed = _Redirects().redirect_request(request, None, 302, "Found", {}, "https://other.org/x")
    assert followed is not None
    assert followed.full_url == "https://other.org/x"


def test_redirects_in_a_circle_end(server: Server, tmp_path: Path) -> None:
    server.redirect = server.url
    with pytest.raises(DownloadError, match="answers 302"):
        get(server, tmp_path)


def test_archives_that_unpack_without_end(server: Server, tmp_path: Path) -> None:
    server.content = gzip.compress(bytes(20_000_000))
    with pytest.raises(DownloadError, match="is not a sound archive \\(it unpacks without end\\); it was removed"):
        fetch(wanted(server, most_bytes=1_000_000), tmp_path)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", bytes(20_000_000))
    server.content, server.kind = packed.getvalue(), "application/zip"
    with pytest.raises(DownloadError, match="it unpacks to more than 16,000,000 bytes"):
        fetch(wanted(server, most_bytes=1_000_000, file="file.zip"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_plain_http_without_a_checksum_is_told(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch_all([wanted(server)], tmp_path / "a")
    assert "came over plain http and its checksum is not known" in " ".join(capsys.readouterr().out.split())
    fetch_all([wanted(server)], tmp_path / "b", tmp_path / "a" / MANIFEST)
    fetch_all([wanted(server, sha256=hashlib.sha256(CONTENT).hexdigest())], tmp_path / "c")
    assert "plain http" not in capsys.readouterr().out
    plain = {f.name for f in FILES if f.open_to_change}
    assert plain == {"cyc2008", "string9.1-channels", "yeastract"}  # their owners offer no other way
