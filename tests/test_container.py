"""Files that are damaged, cut short, foreign, half written or malicious: a named error, never a wrong graph."""

import json
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from knockgraph import CellGraph, FileFormatError, KnockgraphError, Metabolism, Reaction, Screen, Split, splits
from knockgraph.container import read_container, write_container
from knockgraph.files import atomic_write

KIND = "knockgraph.cellgraph"
NO_DEADLINE = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


def sample_graph() -> CellGraph:
    """Every kind of record, in a file of a few kilobytes."""
    genes = [f"YAL00{i}C" for i in range(6)]
    metabolism = Metabolism.from_reactions(
        [
            Reaction("r1", {"x": -1.0, "y": 2.0}, gene_rule="(g0 and g1) or g2"),
            Reaction("r2", {"y": -1.0}, growth=True),
        ],
        {f"g{i}": i for i in range(3)},
    )
    edges = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 3]])
    weighted = torch.tensor([[5, 0], [0, 5]]), torch.tensor([0.25, -1.5])
    features = {"length": torch.arange(12.0).reshape(6, 2)}
    return CellGraph(genes, {"physical": edges, "tflink": weighted}, metabolism, features, {genes[0]: ["TFC3", "Ä1"]})


def sample_split() -> Split:
    screen = Screen([[f"G{i}"] for i in range(30)], {"fitness": list(range(30))})
    return splits.random(screen, (0.6, 0.2, 0.2), seed=1)


def same_split(a: Split, b: Split) -> bool:
    return (
        {part: rows.tolist() for part, rows in a.parts.items()} == {part: r.tolist() for part, r in b.parts.items()}
        and a.about == b.about
        and a.genotypes_hash == b.genotypes_hash
        and a.held_out == b.held_out
    )


@pytest.fixture(scope="module")
def graph() -> CellGraph:
    return sample_graph()


@pytest.fixture(scope="module")
def graph_bytes(graph: CellGraph, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sample") / "sample.cellgraph"
    graph.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def split_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sample") / "sample.split"
    sample_split().save(path)
    return path.read_bytes()


def refused_or_equal(path: Path, data: bytes, graph: CellGraph) -> bool:
    """Whether the file was refused; fails if a different graph, or another exception, comes out."""
    path.write_bytes(data)
    try:
        loaded = CellGraph.load(path)
    except FileFormatError as error:
        refusal = str(error)
    else:
        assert loaded == graph
        return False
    assert str(path) in refusal
    return True


def header_end(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_wrong_byte_anywhere_is_noticed(graph: CellGraph, graph_bytes: bytes, tmp_path: Path) -> None:
    rng = random.Random(0)
    refused = 0
    for position in range(len(graph_bytes)):
        flipped = bytearray(graph_bytes)
        flipped[position] ^= rng.randrange(1, 256)
        refused += refused_or_equal(tmp_path / "flipped", bytes(flipped), graph)
    # Only blanks that pad the header may be changed without consequence.
    assert refused >= len(graph_bytes) - 8


@pytest.mark.full
def test_one_wrong_bit_anywhere_is_noticed(graph: CellGraph, graph_bytes: bytes, tmp_path: Path) -> None:
    for position in range(len(graph_bytes)):
        for bit in range(8):
            flipped = bytearray(graph_bytes)
            flipped[position] ^= 1 << bit
            refused_or_equal(tmp_path / "flipped", bytes(flipped), graph)


def test_error_names_the_damaged_record(graph_bytes: bytes, tmp_path: Path) -> None:
    header = json.loads(graph_bytes[8 : header_end(graph_bytes)])
    path = tmp_path / "damaged.cellgraph"
    for record, words in {
        "relation/physical/edge_index": "relation 'physical'",
        "relation/tflink/weight": "relation 'tflink'",
        "feature/length": "feature 'length'",
        "metabolism/stoichiometry": "metabolism 'stoichiometry'",
    }.items():
        damaged = bytearray(graph_bytes)
        damaged[header_end(graph_bytes) + header[record]["data_offsets"][0]] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(
            FileFormatError, match=f"while reading {words} of .*damaged.cellgraph: its bytes are damaged"
        ):
            CellGraph.load(path)


def test_a_file_cut_short_at_any_length_is_refused(graph: CellGraph, graph_bytes: bytes, tmp_path: Path) -> None:
    for length in range(0, len(graph_bytes), 7):
        assert refused_or_equal(tmp_path / "short", graph_bytes[:length], graph), length
    assert refused_or_equal(tmp_path / "short", graph_bytes[:-1], graph)
    assert refused_or_equal(tmp_path / "long", graph_bytes + b"\0", graph)
    assert not refused_or_equal(tmp_path / "whole", graph_bytes, graph)


def test_a_split_is_protected_alike(split_bytes: bytes, tmp_path: Path) -> None:
    rng = random.Random(1)
    path = tmp_path / "flipped.split"
    for position in rng.sample(range(len(split_bytes)), 300):
        flipped = bytearray(split_bytes)
        flipped[position] ^= rng.randrange(1, 256)
        path.write_bytes(flipped)
        try:
            assert same_split(Split.load(path), sample_split())
        except FileFormatError:
            continue


def test_swapped_records_are_noticed(tmp_path: Path) -> None:
    # Same names, same dtypes and shapes, right bytes in the wrong place.
    a = CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]]), "q": torch.tensor([[1], [0]])})
    a.save(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    header = json.loads(data[8 : header_end(data)])
    header["relation/p/edge_index"], header["relation/q/edge_index"] = (
        header["relation/q/edge_index"],
        header["relation/p/edge_index"],
    )
    text = json.dumps(header).encode()
    (tmp_path / "b").write_bytes(struct.pack("<Q", len(text)) + text + data[header_end(data) :])
    with pytest.raises(FileFormatError, match=r"while reading relation '[pq]'"):
        CellGraph.load(tmp_path / "b")


# ── foreign files ────────────────────────────────────────────────────────────────────────────────────────────────────


class Canary:
    """Creates a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def a_parquet(path: Path) -> None:
    Screen([["A"]], {"fitness": [1.0]}).save(path)


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda path: path.write_bytes(b""), "is not a readable cellgraph file .*truncated, damaged or of another"),
        (lambda path: path.write_text("source,target\nA,B\n" * 50), "is not a readable cellgraph file"),
        (lambda path: path.write_bytes(b"\0" * 4096), "is not a readable cellgraph file"),
        (lambda path: path.write_bytes(b"\xff" * 4096), "is not a readable cellgraph file"),
        (
            lambda path: save_file({"w": torch.ones(2)}, path),
            "was not written by knockgraph, but a knockgraph.cellgraph",
        ),
        (lambda path: save_file({"w": torch.ones(2)}, path, {"format": "pt"}), "is a pt file, but a knockgraph.cellg"),
        (a_parquet, "is not a readable cellgraph file"),
        (lambda path: sample_split().save(path), "is a knockgraph.split file, but a knockgraph.cellgraph file is"),
        (Path.mkdir, "cannot read .*: it is a folder"),
        (lambda path: None, "cannot read .*: there is no such file"),
    ],
)
def test_foreign_files_are_refused(write: Callable[[Path], None], text: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.cellgraph"
    write(path)
    with pytest.raises(FileFormatError, match=text) as caught:
        CellGraph.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [CellGraph.load, Split.load, Screen.load])
def test_a_path_that_the_system_refuses(load: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"(?i)file name too long"):
        load(tmp_path / ("n" * 300))


def test_a_graph_is_no_split(graph: CellGraph, tmp_path: Path) -> None:
    graph.save(tmp_path / "g")
    with pytest.raises(FileFormatError, match=r"is a knockgraph.cellgraph file, but a knockgraph.split file is needed"):
        Split.load(tmp_path / "g")


@pytest.mark.parametrize("load", [CellGraph.load, Split.load, Screen.load])
@pytest.mark.parametrize(
    "write", [lambda x, path: path.write_bytes(pickle.dumps(x)), lambda x, path: torch.save(x, path)]
)
def test_no_pickle_is_executed(load: Callable[[Path], Any], write: Callable[..., None], tmp_path: Path) -> None:
    path, canary = tmp_path / "malicious", tmp_path / "canary"
    write({"genes": Canary(canary)}, path)
    with pytest.raises(FileFormatError, match="malicious"):
        load(path)
    assert not canary.exists()
    torch.load(path, weights_only=False) if write.__code__.co_names[0] == "torch" else pickle.loads(path.read_bytes())
    assert canary.exists()  # the payload works, so the check above means something


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("2", "has cellgraph format version 2, newer than the 1 this release reads; upgrade knockgraph"),
        ("99", "version 99, newer"),
        ("0", "has the unknown cellgraph format version '0'; build the file again"),
        ("-1", "unknown cellgraph format version '-1'"),
        ("1.5", "unknown cellgraph format version '1.5'"),
        ("9" * 5000, "unknown cellgraph format version"),
        ("", "unknown cellgraph format version ''"),
        (None, "unknown cellgraph format version None"),
    ],
)
def test_other_versions_are_refused(version: str | None, text: str, tmp_path: Path) -> None:
    metadata = {"format": KIND} | ({} if version is None else {"version": version})
    save_file({"w": torch.ones(1)}, tmp_path / "other", metadata)
    with pytest.raises(FileFormatError, match=text):
        CellGraph.load(tmp_path / "other")


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"document": "{}", "digests": "{}"},
        {"document": "{}", "digests": "{", "content_hash": ""},
        {"document": "[" * 100_000, "digests": "{}", "content_hash": ""},
        {"document": "{}", "digests": "[]", "content_hash": ""},
        {"document": "{}", "digests": "5", "content_hash": ""},
        {"document": "{}", "digests": "{}", "content_hash": "0" * 64},
    ],
)
def test_damaged_headers(metadata: dict[str, str], tmp_path: Path) -> None:
    save_file({}, tmp_path / "header", {"format": KIND, "version": "1"} | metadata)
    with pytest.raises(FileFormatError, match=r"the header of .*header is damaged .*; build the file again"):
        CellGraph.load(tmp_path / "header")


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "A", "physical"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["A", "B", "physical"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def check_foreign_document(path: Path, graph: CellGraph, key: str, value: Any) -> None:
    """A file with right hashes that another program wrote: an error of ours or a graph, nothing else."""
    graph.save(path)
    contents = read_container(path, KIND, range(1, 2))
    write_container(path, KIND, 1, contents.document | {key: value}, contents.tensors)
    try:
        CellGraph.load(path)
    except FileFormatError as error:
        assert "does not describe a valid cell graph" in str(error)  # noqa: PT017


DOCUMENT_KEYS = st.sampled_from(["genes", "aliases", "gene_list_hash", "relations", "features", "metabolism"])


@given(key=DOCUMENT_KEYS, value=JSON)
@example(key="aliases", value=["A"])
@example(key="relations", value=[["physical", 4, 0]])
@settings(max_examples=100, **NO_DEADLINE)
def test_foreign_documents(key: str, value: Any, graph: CellGraph, tmp_path: Path) -> None:
    check_foreign_document(tmp_path / "foreign", graph, key, value)


@pytest.mark.full
@given(key=DOCUMENT_KEYS, value=JSON)
@settings(max_examples=3000, **NO_DEADLINE)
def test_foreign_documents_full(key: str, value: Any, graph: CellGraph, tmp_path: Path) -> None:
    check_foreign_document(tmp_path / "foreign", graph, key, value)


@given(key=st.sampled_from(["parts", "about", "genotypes_hash", "held_out"]), value=JSON)
@example(key="held_out", value=["A"])
@example(key="about", value=[1])
@settings(max_examples=100, **NO_DEADLINE)
def test_foreign_split_documents(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "foreign.split"
    sample_split().save(path)
    contents = read_container(path, "knockgraph.split", range(1, 2))
    write_container(path, "knockgraph.split", 1, contents.document | {key: value}, contents.tensors)
    try:
        assert repr(Split.load(path)).startswith("Split(")
    except FileFormatError as error:
        assert "does not describe a valid split" in str(error)  # noqa: PT017


# ── fuzzing of the header ────────────────────────────────────────────────────────────────────────────────────────────

PIECES = st.sampled_from(
    [
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"0",
        b"-1",
        b"1e999",
        b"9" * 30,
        b"null",
        b"\\",
        b"\\ud800",
        b"\xff",
        b" ",
    ]
)
# Where (as a share of the header), how many bytes to drop there, what to put in their place.
EDITS = st.lists(
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 6), st.binary(max_size=4) | PIECES),
    min_size=1,
    max_size=4,
)


def with_edited_header(data: bytes, edits: list[tuple[float, int, bytes]], fix_length: bool) -> bytes:
    end = header_end(data)
    header = bytearray(data[8:end])
    for place, drop, piece in edits:
        at = int(place * len(header))
        header[at : at + drop] = piece
    length = struct.pack("<Q", len(header)) if fix_length else data[:8]
    return length + bytes(header) + data[end:]


@given(edits=EDITS, fix_length=st.booleans())
@settings(max_examples=100, **NO_DEADLINE)
def test_edited_header(edits, fix_length: bool, graph: CellGraph, graph_bytes: bytes, tmp_path: Path) -> None:
    refused_or_equal(tmp_path / "fuzzed", with_edited_header(graph_bytes, edits, fix_length), graph)


@pytest.mark.full
@given(edits=EDITS, fix_length=st.booleans())
@settings(max_examples=10_000, **NO_DEADLINE)
def test_fuzzed_graph_header(edits, fix_length: bool, graph: CellGraph, graph_bytes: bytes, tmp_path: Path) -> None:
    refused_or_equal(tmp_path / "fuzzed", with_edited_header(graph_bytes, edits, fix_length), graph)


@pytest.mark.full
@given(edits=EDITS, fix_length=st.booleans())
@settings(max_examples=10_000, **NO_DEADLINE)
def test_fuzzed_split_header(edits, fix_length: bool, split_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "fuzzed.split"
    path.write_bytes(with_edited_header(split_bytes, edits, fix_length))
    try:
        loaded = Split.load(path)
    except FileFormatError:
        return
    assert same_split(loaded, sample_split())


@pytest.mark.full
@given(st.binary(max_size=400), st.booleans())
@settings(max_examples=5_000, **NO_DEADLINE)
def test_arbitrary_bytes_are_refused(tmp_path: Path, data: bytes, as_header: bool) -> None:
    (tmp_path / "bytes").write_bytes(struct.pack("<Q", len(data)) + data if as_header else data)
    with pytest.raises(FileFormatError):
        CellGraph.load(tmp_path / "bytes")


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.uint8, torch.complex64])
def test_tensors_of_any_dtype_and_shape_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    base = torch.arange(12).to(dtype)
    tensors = {"a": base, "view": base.reshape(3, 4).T, "same": base, "empty": base[:0], "scalar": base[3]}
    content_hash = write_container(tmp_path / "t", "test", 3, {"key": "ä\n"}, tensors)
    contents = read_container(tmp_path / "t", "test", range(3, 4))
    assert contents.document == {"key": "ä\n"}
    assert contents.content_hash == content_hash
    assert contents.version == 3
    assert contents.tensors.keys() == tensors.keys()
    for name, t in tensors.items():
        assert contents.tensors[name].dtype == dtype
        assert torch.equal(contents.tensors[name], t)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("missing/graph", r"the folder .*missing does not exist; create it first"),
        ("file/graph", r"file is a file, not a folder"),
        ("file/deeper/graph", r"the folder .*deeper does not exist"),
        (".", "it is a folder; give a file name"),
        ("folder", "folder: it is a folder; give a file name"),
        ("n" * 300, "file name too long"),
    ],
)
def test_places_that_cannot_be_written(graph: CellGraph, place: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KnockgraphError, match=f"^cannot write .*{text}") as caught:
        graph.save(tmp_path / place)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder(graph: CellGraph, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(KnockgraphError, match=r"cannot write .*permission denied"):
            graph.save(tmp_path / "graph")
    finally:
        tmp_path.chmod(0o700)


def test_a_failed_write_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("before")

    def write_half(error: BaseException) -> None:
        with atomic_write(path) as part:
            part.write_text("half")
            raise error

    for error in (RuntimeError("mine"), KeyboardInterrupt("mine")):
        with pytest.raises(type(error), match="mine"):
            write_half(error)
    with pytest.raises(KnockgraphError, match=r"cannot write .*kept: no space left on device"):
        write_half(OSError(28, "No space left on device"))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_saved_file_has_ordinary_permissions(graph: CellGraph, tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    graph.save(tmp_path / "graph")
    assert (tmp_path / "graph").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def large_graph() -> CellGraph:
    edges = torch.randint(1000, (2, 200_000), generator=torch.Generator().manual_seed(0))
    return CellGraph([f"G{i}" for i in range(1000)], {"physical": edges})


def test_full_disk(graph: CellGraph, tiny_disk: Path) -> None:
    path = tiny_disk / "graph"
    graph.save(path)
    with pytest.raises(KnockgraphError, match=r"cannot write .*no space left on device") as caught:
        large_graph().save(path)
    assert "\n" not in str(caught.value)
    assert CellGraph.load(path) == graph
    assert list(tiny_disk.iterdir()) == [path]
    screen = Screen([[f"G{i}", f"H{i}"] for i in range(40_000)], {"fitness": torch.rand(40_000).tolist()})
    with pytest.raises(KnockgraphError, match="cannot write"):
        screen.save(tiny_disk / "screen")
    assert list(tiny_disk.iterdir()) == [path]


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


LIMITED = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_container import large_graph, sample_graph
import knockgraph as kg
path, large = Path(sys.argv[1]), large_graph()
sample_graph().save(path)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    large.save(path)
except kg.KnockgraphError as error:
    print(error)
"""


def test_file_size_limit(graph: CellGraph, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    done = subprocess.run(
        python(LIMITED, folder / "graph", Path(__file__).parent),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"cannot write {folder / 'graph'}: ")
    assert "file too large" in lines[0]
    assert list(folder.iterdir()) == [folder / "graph"]
    assert CellGraph.load(folder / "graph") == graph


# ── kill −9 ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SAVER = """
import sys
import torch
import knockgraph as kg
torch.set_num_threads(1)
graphs = [kg.CellGraph.load(f"{sys.argv[1]}/{name}.cellgraph") for name in ("a", "b")]
print("ready", flush=True)
while True:
    for graph in graphs:
        graph.save(sys.argv[1] + "/target.cellgraph")
"""


def wait_for_a_write(folder: Path, whole: int, seconds: float = 10) -> None:
    """Until a temporary file stands in the folder, or a file has only a part of its bytes."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if not entry.name.endswith(".cellgraph") or entry.stat().st_size < whole:
                        return
                except FileNotFoundError:  # renamed since
                    continue


def kill_while_saving(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    edges = torch.randint(2000, (2, 1_000_000), generator=torch.Generator().manual_seed(seed)).chunk(10, 1)
    names = [f"G{i}" for i in range(2000)]
    expected = [
        CellGraph(names, {f"r{i}": e for i, e in enumerate(edges)}),
        CellGraph(names, {f"r{i}": e.flip(0) for i, e in enumerate(edges)}),
    ]
    for name, graph in zip("ab", expected, strict=True):
        graph.save(folder / f"{name}.cellgraph")
    target = folder / "target.cellgraph"
    saver = subprocess.Popen(python(SAVER, folder), stdout=subprocess.PIPE, text=True)
    try:
        assert saver.stdout is not None
        assert saver.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0, 0.15))
        if seed % 3:  # two of three kills hit the writing itself, the others any moment
            wait_for_a_write(folder, (folder / "a.cellgraph").stat().st_size)
            time.sleep(rng.uniform(0, 0.005))
    finally:
        saver.send_signal(signal.SIGKILL)
        saver.communicate()
    assert saver.returncode == -signal.SIGKILL
    if target.exists():
        assert CellGraph.load(target) in expected
    # What the kill left behind does not stand in the way of the next save.
    expected[0].save(target)
    assert CellGraph.load(target) == expected[0]


@pytest.mark.parametrize("seed", [0])
def test_kill_while_saving(seed: int, tmp_path: Path) -> None:
    kill_while_saving(seed, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 23))
def test_kill_while_saving_full(seed: int, tmp_path: Path) -> None:
    kill_while_saving(seed, tmp_path)


def test_plain_safetensors_readers_open_the_file(graph: CellGraph, graph_bytes: bytes) -> None:
    from safetensors.torch import load

    tensors = load(graph_bytes)
    assert torch.equal(tensors["relation/physical/edge_index"].long(), graph.relations["physical"].edge_index)
    assert len(save(tensors)) < len(graph_bytes)


def test_equal_content_has_equal_bytes(graph: CellGraph, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}.cellgraph" for i in range(12)]
    for file in files:
        graph.save(file)
    assert len({file.read_bytes() for file in files}) == 1
    odd = {"names": ['\u2028\x00\x1f\x7f"\\/é😀', "\t\n"], "number": 1e-9}
    for file in files:
        write_container(file, "knockgraph.test", 1, odd, {"b": torch.ones(3), "a": torch.zeros(2, dtype=torch.int8)})
    assert len({file.read_bytes() for file in files}) == 1
    assert read_container(files[0], "knockgraph.test", range(1, 2)).document == odd
