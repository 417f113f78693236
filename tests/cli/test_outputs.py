"""Where results go: refused before the work if it cannot be written, and never replaced if it is no ordinary file."""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from knockgraph import cli
from knockgraph.errors import KnockgraphError
from knockgraph.files import atomic_write, check_folder, check_writable

Command = Callable[..., tuple[str, str]]


def options(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All options of all commands that take a path."""
    for parameter in group.params:
        kind = str(getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", ""))  # by typer's version
        if parameter.param_type_name == "option" and "path" in kind.lower():
            yield path, parameter
    for name, below in getattr(group, "commands", {}).items():
        yield from options(below, (*path, name))


READ = {
    "--cell",
    "--from",
    "--genes",
    "--graph",
    "--screen",
    "--all-pairs",
    "--all-triples",
    "--lock",
    "--categories",
    "--against",
}
WRITTEN = [
    (path, parameter.opts[0])
    for path, parameter in options(typer.main.get_command(cli.app))
    if parameter.opts[0] not in READ | {"--to"}
]
# What a command needs beside the option; the work must not begin, so that nothing of it need be there.
NEEDED = {
    ("graph", "build"): ["--preset", "demo"],
    ("graph", "info"): ["none"],
    ("graph", "check"): ["none"],
    ("graph", "lambda"): ["none", "none", "--genes", "none"],
    ("screen", "import"): ["demo"],
    ("screen", "info"): ["none"],
    ("screen", "split"): ["none"],
    ("screen", "join"): ["a=none", "b=none"],
    ("evaluate",): ["none"],
    ("predict",): ["none", "--genes", "WT"],
    ("profile", "trace"): ["none"],
}


@pytest.mark.parametrize(("path", "option"), WRITTEN, ids=lambda value: "-".join(value).replace("-", ""))
def test_refused_before_the_work(path: tuple[str, ...], option: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    output = [] if option in ("-o", "--output") or path not in [("graph", "build"), ("screen", "import")] else ["-o"]
    if path == ("screen", "split") and option != "-o":
        output = ["-o"]
    rest = [*NEEDED.get(path, []), *([output[0], str(tmp_path / "x")] if output else [])]
    error = command(*path, *rest, option, str(tmp_path / "file" / "x.csv"), code=1)[1]
    assert re.match(rf"error: cannot (write|use) .*{tmp_path}/file.*is a file, not a folder", error), error
    if option not in ("--trace", "--keep") and (path, option) != (("benchmark",), "-o"):  # a folder, which is made
        error = command(*path, *rest, option, str(tmp_path / "no" / "x.csv"), code=1)[1]
        assert f"the folder {tmp_path}/no does not exist; create it first" in error
        assert f"{tmp_path}: it is a folder" in command(*path, *rest, option, str(tmp_path), code=1)[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_every_command_has_such_an_option() -> None:
    names = {path for path, _ in WRITTEN}
    assert {("train",), ("predict",), ("doctor",), ("bench", "step"), ("profile", "run")} <= names
    assert len(WRITTEN) >= 25
    assert {option for _, option in WRITTEN} == {"-o", "--json", "--html", "--markdown", "--plot", "--trace", "--keep"}


def test_a_run_directory_is_tried_before_the_data_are_read(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    words = ["data=files", "data.cell=none", "data.screen=none", f"run_dir={tmp_path}/file/run"]
    assert "is a file, not a folder" in command("train", *words, code=1)[1]
    assert "none" in command("train", *words[:-1], f"run_dir={tmp_path}/new/run", code=1)[1]
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # nothing is made until there is something to write


def test_devices_are_written_to(command: Command, tmp_path: Path) -> None:
    device = tmp_path / "null"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("making a device needs rights")
    command("doctor", "--json", device, code=0)
    assert stat.S_ISCHR(device.stat().st_mode)
    link = tmp_path / "link"
    link.symlink_to(device)
    with atomic_write(link) as part:
        part.write_text("x")
    assert link.is_symlink()
    assert stat.S_ISCHR(device.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "null"]


def test_pipes_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)  # does not wait for a reader
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    with atomic_write(pipe) as part:
        part.write_bytes(b"all of it")
    reader.join(10)
    assert found == [b"all of it"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_full_device(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with (
        pytest.raises(KnockgraphError, match="cannot write /dev/full: no space left on device"),
        atomic_write("/dev/full") as part,
    ):
        part.write_text("x")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_standard_output_stays_what_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """It may be a file, which must not be replaced behind the shell's back."""
    with atomic_write("/dev/stdout") as part:
        part.write_text("to the stream\n")
    assert "to the stream" in capfd.readouterr().out


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "real").write_text("old")
    (tmp_path / "link").symlink_to("below/real")
    with atomic_write(tmp_path / "link") as part:
        part.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "below" / "real").read_text() == "new"
    (tmp_path / "dangling").symlink_to("below/other")
    with atomic_write(tmp_path / "dangling") as part:
        part.write_text("new")
    assert (tmp_path / "below" / "other").read_text() == "new"


def test_folders(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(KnockgraphError, match=r"cannot use .*file: it is a file, not a folder"):
        check_folder(tmp_path / "file" / "b")
