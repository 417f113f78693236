"""A disk that is full or read-only, a command that is killed: one sentence, nothing lost, nothing half-written.

Two kinds of full disk: a limit on the size of files, which needs no rights, and a file system of a few kilobytes.
"""

import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from training_runs import LEAST, Started, run

from knockgraph import CellGraph, demo_cell
from knockgraph.train import checkpoints

STORED = [*LEAST, "strategy=stored-masks"]  # of a model that never asks a worker for masks


def limit(size: int) -> None:
    """No file may grow larger; without the signal, a write fails as on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands read."""
    folder = tmp_path_factory.mktemp("made")
    run("train", f"run_dir={folder / 'run'}", *LEAST)
    run("graph", "build", "--preset", "demo", "-o", "demo.cellgraph", cwd=folder)
    run("screen", "import", "demo", "--experiments", "400", "-o", "demo.parquet", cwd=folder)
    (folder / "genes.txt").write_text("\n".join(demo_cell().genes.names[:80]))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(*arguments: str, size: int, cwd: Path) -> str:
    done = Started(*arguments, cwd=cwd, before=partial(limit, size)).wait(1)
    assert done.stderr.startswith("error: cannot write ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize(
    ("size", "arguments"),
    [
        (4000, ["graph", "build", "--preset", "demo", "-o", "OUT.cellgraph"]),
        (2000, ["screen", "import", "demo", "--experiments", "400", "-o", "OUT.parquet"]),
        (2000, ["screen", "split", "{made}/demo.parquet", "-o", "OUT.split"]),
        (4000, ["predict", "{made}/run", "--all-pairs", "{made}/genes.txt", "-o", "OUT.parquet"]),
        (4000, ["predict", "{made}/run", "--all-pairs", "{made}/genes.txt", "-o", "OUT.csv"]),
        (2000, ["graph", "info", "{made}/demo.cellgraph", "--json", "OUT.json"]),
        (200, ["graph", "info", "{made}/demo.cellgraph"]),  # what is printed goes to a file here
    ],
)
@pytest.mark.parametrize("there", [pytest.param(False, marks=pytest.mark.full), True])
def test_what_was_there_stays(there: bool, size: int, arguments: list[str], made: Path, tmp_path: Path) -> None:
    words = [word.format(made=made) for word in arguments]
    out = next((word for word in words if word.startswith("OUT")), None)
    before = {out: b"an earlier file"} if out and there else {}
    for name, content in before.items():
        (tmp_path / name).write_bytes(content)
    said = refused(*words, size=size, cwd=tmp_path)
    assert out is None or out in said
    assert "file too large" in said
    assert contents(tmp_path) == before


def test_a_run_that_cannot_be_written(tmp_path: Path) -> None:
    """At each of these sizes another file of the run is the one that fails; with room the run then starts."""
    for size, file in ((300, "config.yaml"), (4000, "cell.cellgraph")):
        assert file in refused("train", f"run_dir={tmp_path / 'run'}", *LEAST, size=size, cwd=tmp_path)
    assert not list(tmp_path.rglob("*.part"))
    run("train", f"run_dir={tmp_path / 'run'}", *LEAST)
    assert (tmp_path / "run" / "result.json").is_file()


def test_a_mask_store_that_cannot_be_written(tmp_path: Path) -> None:
    said = refused("train", f"run_dir={tmp_path / 'run'}", *STORED, size=200_000, cwd=tmp_path)
    assert "free some disk space, or use node-mask" in said
    assert contents(tmp_path / "run" / "store") == {}
    run("train", f"run_dir={tmp_path / 'run'}", *STORED)
    assert sorted(contents(tmp_path / "run" / "store")) == ["data.mdb", "manifest.json"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mounted anew with ``mount``; ``disk`` is only the place."""
    if shutil.which("mount") is None or not mounted(tmp_path, 64):
        pytest.skip("needs the right to mount a tmpfs")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def mounted(place: Path, kilobytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(place)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# 88: TensorBoard's files are the ones that fail; 104: a checkpoint; 184: the results; 204: the report.
SIZES = [88, 184]


def train_on(disk: Path, kilobytes: int) -> None:
    """Fill a disk by training; then give it room and go on."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)
    options = [f"run_dir={disk / 'run'}", *LEAST, "trainer.checkpoint_every_n_steps=1"]
    done = Started("train", *options).wait(1)
    assert done.stderr.startswith("error: cannot write ")
    assert done.stderr.count("\n") == 1
    assert "no space left on device" in done.stderr
    assert not list(disk.rglob("*.part"))
    for path in (disk / "run" / "checkpoints").glob("*.ckpt"):
        checkpoints.load(path)
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    saved = checkpoints.any_saved(disk / "run" / "checkpoints")
    run("train", *options, *(["resume=true"] if saved else []))
    assert (disk / "run" / "report.html").is_file()
    assert CellGraph.load(disk / "run" / "cell.cellgraph") == demo_cell()


@pytest.mark.parametrize("kilobytes", SIZES)
def test_a_small_disk(kilobytes: int, disk: Path) -> None:
    train_on(disk, kilobytes)


@pytest.mark.full
@pytest.mark.parametrize("kilobytes", range(72, 232, 8))
def test_small_disks(kilobytes: int, disk: Path) -> None:
    train_on(disk, kilobytes)


@pytest.mark.parametrize(
    "arguments",
    [
        ["graph", "build", "--preset", "demo", "-o", "{disk}/x.cellgraph"],
        ["screen", "import", "demo", "-o", "{disk}/x.parquet"],
        ["predict", "{made}/run", "--genes", "WT", "-o", "{disk}/x.csv"],
        ["train", "run_dir={disk}/new", *LEAST],
        ["train", "run_dir={disk}/run", "resume=true", "trainer.max_epochs=3"],
    ],
)
def test_a_disk_that_cannot_be_written(arguments: list[str], made: Path, disk: Path) -> None:
    """Rights would not do here: those who may do everything run tests, too."""
    subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
    shutil.copytree(made / "run", disk / "run")
    before = contents(disk)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    done = run(*(word.format(disk=disk, made=made) for word in arguments), code=1)
    assert done.stderr.startswith(f"error: cannot {'use' if 'new' in arguments[1] else 'write'} {disk}/")
    assert "read-only file system" in done.stderr
    assert done.stderr.count("\n") == 1
    assert contents(disk) == before


def test_evaluate_only_reads(disk: Path) -> None:
    """It wrote the store of a stored strategy anew, under a training that was reading it."""
    subprocess.run(["mount", "-o", "remount,size=40m", str(disk)], check=True)
    run("train", f"run_dir={disk / 'run'}", *LEAST, "strategy=stored-indices", "model=hetero-small")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    said = run("evaluate", str(disk / "run")).stdout
    assert "test part:" in said
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    shutil.rmtree(disk / "run" / "store")
    assert run("evaluate", str(disk / "run")).stdout == said
    assert not (disk / "run" / "store").exists()


def test_a_run_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for place in ("run", "run/below"):
        done = run("train", f"run_dir={tmp_path / place}", *LEAST, code=1)
        assert done.stderr.startswith(f"error: cannot use {tmp_path}/run")
        assert done.stderr.count("\n") == 1
    assert contents(tmp_path) == {"run": b"mine"}


# ── kill −9 ──────────────────────────────────────────────────────────────────────────────────────────────────────────

BUILDS = {
    "graph": ["graph", "build", "--preset", "demo", "-o", "x.cellgraph"],
    "screen": ["screen", "import", "demo", "--experiments", "6000", "-o", "x.parquet"],
    "predict": ["predict", "{made}/run", "--all-pairs", "{made}/genes.txt", "-o", "x.csv"],
}


def kill(name: str, seed: int, made: Path, folder: Path) -> str:
    """Kill a command at any moment of its life; what was there is there, or what it writes, whole."""
    words = [word.format(made=made) for word in BUILDS[name]]
    whole, target = folder / "whole", folder / f"killed-{seed}" / words[-1]
    target.parent.mkdir()
    if not whole.exists():
        whole.mkdir()
        start = time.perf_counter()
        run(*words, cwd=whole)
        (whole / "seconds").write_text(str(time.perf_counter() - start))
    target.write_text("an earlier file")
    started = Started(*words, cwd=target.parent)
    # The writing is near the end, so most kills go there.
    time.sleep(float((whole / "seconds").read_text()) * random.Random(seed).triangular(0, 1, 0.9))
    started.process.kill()
    started.wait(code=None)
    if target.read_bytes() == b"an earlier file":
        return "old"
    if target.suffix == ".cellgraph":  # equal graphs may order the keys of the header differently
        assert CellGraph.load(target) == CellGraph.load(whole / words[-1])
    else:
        assert target.read_bytes() == (whole / words[-1]).read_bytes()
    return "new"


@pytest.mark.parametrize("name", BUILDS)
def test_killed(name: str, made: Path, tmp_path: Path) -> None:
    for seed in range(2):
        assert kill(name, seed, made, tmp_path) in ("old", "new")


@pytest.mark.full
@pytest.mark.parametrize("name", BUILDS)
def test_killed_20_times(name: str, made: Path, tmp_path: Path) -> None:
    assert "old" in {kill(name, seed, made, tmp_path) for seed in range(20)}
