"""Files that earlier releases wrote are read as what they were; files of later versions are refused in one sentence.

``tests/archive`` holds a tiny file of every version of every format. Its content is written out here, not made by the
code under test: a change that reads an old file differently, or not at all, fails.
"""

import gzip
import hashlib
import json
import math
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from knockgraph import (
    CellGraph,
    FileFormatError,
    KnockgraphError,
    LabelError,
    PerturbationBatch,
    Screen,
    Split,
    predict,
    strategies,
)
from knockgraph.evaluate import evaluate
from knockgraph.profile.compare import compared
from knockgraph.profile.settings import read_profile
from knockgraph.run import train
from knockgraph.sources import yeast_gem
from knockgraph.train import checkpoints
from knockgraph.train.config import load

ARCHIVE = Path(__file__).parent / "archive"
SPEC = Path(__file__).parents[1] / "docs" / "formats.md"
sys.path.insert(0, str(ARCHIVE))

from write_archive import ARCHIVED  # noqa: E402

GENES = ("YAL001C", "YAL002W", "YAL003W", "YBR004C", "YCR005C", "YDR006W")


def close(found: Any, expected: list[float]) -> bool:
    return [x.hex() if not math.isnan(x) else "" for x in found] == [x.hex() if x == x else "" for x in expected]


def test_every_version_is_archived_and_in_the_spec() -> None:
    rows = dict(re.findall(r"^\|[^|]*\| `(knockgraph\.[a-z-]+)`, [^|]*\| (\d+) \|", SPEC.read_text(), re.MULTILINE))
    versions = {kind: version for kind, (version, _, _) in ARCHIVED.items() if kind.startswith("knockgraph.")}
    assert {kind: int(version) for kind, version in rows.items()} == versions
    for kind, (version, _, _) in ARCHIVED.items():
        for v in range(1, version + 1):
            folder = ARCHIVE / f"{kind.removeprefix('knockgraph.').replace(' ', '-')}-{v}"
            assert folder.is_dir(), f"run tests/archive/write_archive.py: there is no {folder}"


def test_cell_graph_1() -> None:
    graph = CellGraph.load(ARCHIVE / "cellgraph-1" / "x.cellgraph")
    assert graph.genes.names == GENES
    assert graph.gene_list_hash == "7676aa59a9fcc7f3e9d0541dec991740d11b3e14a43317d11072ca215eca8e9c"
    assert dict(graph.genes.aliases) == {"YAL001C": ("TFC3", "Ä1"), "YCR005C": ("", "CIT2")}
    assert list(graph.relations) == ["physical", "regulatory"]
    physical, regulatory = graph.relations.values()
    assert physical.edge_index.tolist() == [[0, 1, 1, 2, 3], [1, 0, 2, 1, 3]]
    assert physical.weight is None
    assert regulatory.edge_index.tolist() == [[5, 0, 4], [0, 5, 2]]
    assert regulatory.weight.tolist() == [0.25, -1.5, torch.tensor(0.1).item()]
    assert graph.features["length"].tolist() == [[k / 8, (k + 1) / 8] for k in range(0, 12, 2)]
    m = graph.metabolism
    assert m.reactions == ("r1:YAL001C+YAL002W", "r1:YAL003W", "r1_rev:YAL001C+YAL002W", "r1_rev:YAL003W", "r2")
    assert m.metabolites == ("x", "y")
    assert m.gpr_index.tolist() == [[0, 1, 2, 0, 1, 2], [0, 0, 1, 2, 2, 3]]
    assert m.rmr_index.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 4], [0, 1, 0, 1, 0, 1, 0, 1, 1]]
    assert m.stoichiometry.tolist() == [-1.0, 2.5, -1.0, 2.5, 1.0, -2.5, 1.0, -2.5, -1.0]
    assert m.w_growth.tolist() == [0, 0, 0, 0, 1]


def test_split_1() -> None:
    split = Split.load(ARCHIVE / "split-1" / "x.split")
    assert {part: rows.tolist() for part, rows in split.parts.items()} == {
        "train": [0, 3, 4],
        "val": [5],
        "test": [1, 2],
    }
    assert split.about["kind"] == "random"
    assert split.about["seed"] == 3
    split.check(Screen.load(ARCHIVE / "screen-1" / "x.parquet"))


def test_screen_1() -> None:
    screen = Screen.load(ARCHIVE / "screen-1" / "x.parquet")
    expected = [
        (),
        ("YAL001C",),
        ("YAL001C", "YAL002W"),
        ("YBR004C",),
        ("YAL003W", "YCR005C", "YDR006W"),
        ("YCR005C",),
    ]
    assert [tuple(screen.genotypes[i]) for i in range(len(screen))] == expected
    assert screen.genotypes.hash == "e8d6cea3b7ff324cd14d0446bb1e7a3a093109aa9f8ba8fb7ee0ea16494642cd"
    nan = float("nan")
    assert close(screen.phenotypes["fitness"].tolist(), [1.0, 0.5, 0.1, nan, 0.375, 1e-3])
    assert screen.phenotypes["size"].tolist() == [6, 5, 4, 3, 2, 1]
    assert close(screen.statistics["fitness"]["std"].tolist(), [0.1, 0.2, nan, 0.4, 0.5, 0.6])
    sources = [screen.source_names[code] for code in screen.source_codes]
    assert sources == ["first", "first", "second", "", "first", "Zweite"]


def test_screen_2() -> None:
    screen = Screen.load(ARCHIVE / "screen-2" / "x.parquet")
    expected = [(), ("YAL001C=0.3", "YBR004C"), ("YAL001C=2",), ("YAL001C", "YAL002W=1"), ("YAL001C",)]
    assert list(screen.genotypes) == expected
    assert screen.genotypes.names == ("YAL001C", "YAL002W", "YBR004C")
    assert screen.genotypes.codes.tolist() == [0, 2, 0, 0, 1, 0]
    assert screen.genotypes.values is not None
    assert screen.genotypes.values.tolist() == [0.3, 0.0, 2.0, 0.0, 1.0, 0.0]
    assert close(screen.phenotypes["fitness"].tolist(), [1.0, 0.5, 0.25, 0.125, float("nan")])


def test_checkpoint_1() -> None:
    state = checkpoints.load(ARCHIVE / "checkpoint-1" / "x.ckpt")
    assert list(state) == ["epoch", "rate", "nothing", "limits", 7]
    assert (state["epoch"], state["rate"], state["nothing"]) == (3, 0.1, None)
    assert state["limits"] == (math.inf, 0.0, [True, "ä"])
    assert math.copysign(1, state["limits"][1]) == -1
    assert state[7]["weight"].tolist() == [[0.5, -2.0]]
    assert (state[7]["half"].dtype, state[7]["half"].tolist()) == (torch.bfloat16, [1.5])


def test_reactions_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is found by the hash of the model's file, so cobra is not asked for it."""
    model = tmp_path / "m.yml"
    model.write_text("not read")
    name = hashlib.sha256(model.read_bytes()).hexdigest()[:32]
    (tmp_path / "reactions").mkdir()
    shutil.copy(ARCHIVE / "reactions-1" / "x.safetensors", tmp_path / "reactions" / f"{name}.safetensors")
    (reaction,) = yeast_gem.read_model(model, tmp_path)
    assert (reaction.id, dict(reaction.stoichiometry)) == ("r_1", {"s_1": -1.0, "s_2": 2.5})
    assert (reaction.lower_bound, reaction.upper_bound) == (-1000.0, 1000.0)
    assert (reaction.gene_rule, reaction.growth) == ("YAL001C or YAL002W", True)


def unpacked_store(folder: Path) -> Path:
    shutil.copytree(ARCHIVE / "mask-store-1" / "store", folder)
    packed = folder / "data.mdb.gz"
    (folder / "data.mdb").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return folder


def test_mask_store_1(tmp_path: Path) -> None:
    graph = CellGraph.load(ARCHIVE / "cellgraph-1" / "x.cellgraph")
    strategy = strategies.create("stored-masks", graph, directory=unpacked_store(tmp_path / "store"))
    masks = strategy.collate(PerturbationBatch.from_lists([[0], [1, 3], []], 6)).payload.masks
    physical = [[False, False, True, True, True], [False, False, False, False, False], [True] * 5]
    regulatory = [[False, False, True], [True, True, True], [True] * 3]
    assert [mask.T.tolist() for mask in masks] == [physical, regulatory]


def test_profile_1(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(gzip.decompress((ARCHIVE / "profile-1" / "profile.json.gz").read_bytes()))
    profile = read_profile(path)
    assert profile["conditions"]["parameters"] == 361
    comparison = compared(profile, profile)
    assert comparison["decomposition"]["ratio"] == 1
    assert comparison["differences"] == []


@pytest.fixture
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ARCHIVE / "run-directory-1" / "made", tmp_path / "made")
    monkeypatch.chdir(tmp_path / "made")  # the config names its files from there
    return Path("run")


def test_run_directory_1_predicts(run_directory: Path) -> None:
    import pyarrow.parquet as pq

    genotypes = ["YAL001C,YAL002W", "WT", "YDR006W", "YBR004C,YCR005C"]
    predict.predict(run_directory, Path("o.parquet"), genes=genotypes, which="last", say=lambda _: None)
    found = pq.read_table("o.parquet").to_pydict()
    assert found["genotype"] == [["YAL001C", "YAL002W"], [], ["YDR006W"], ["YBR004C", "YCR005C"]]
    expected = [0.7955964675352163, 0.9149712690884203, 0.9423182436277934, 0.9856760063290348]
    assert found["predicted_fitness"] == pytest.approx(expected, rel=1e-5)


def test_run_directory_1_is_evaluated(run_directory: Path) -> None:
    """It has no hash of its labels; what it knows of their scale is compared, and said."""
    said: list[str] = []
    found = evaluate(run_directory, "test", "last", said.append)
    assert found["experiments"] == 1
    assert any("without a hash of its labels" in line for line in said)
    screen = Screen.load("my.parquet")
    Screen(screen.genotypes, {"fitness": screen.phenotypes["fitness"] * 10 + 3}).save("my.parquet")
    with pytest.raises(LabelError, match="their center and scale are"):
        evaluate(run_directory, "test", "last", said.append)


def test_run_directory_1_is_resumed(run_directory: Path) -> None:
    config = load(run_directory / "config.yaml")
    config.resume = True
    before = checkpoints.load(run_directory / "checkpoints" / "last.ckpt")["global_step"]
    assert before == 90
    train(config, say=lambda _: None, max_epochs=31)
    assert checkpoints.load(run_directory / "checkpoints" / "last.ckpt")["global_step"] == 93
    assert len((run_directory / "metrics.csv").read_text().splitlines()) > 60


# ── later versions ───────────────────────────────────────────────────────────────────────────────────────────────────


def raised(data: bytes) -> bytes:
    """A container as a later release would write it: another version, a right hash."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    about = header["__metadata__"]
    about["version"] = str(int(about["version"]) + 1)
    digests = sorted(json.loads(about["digests"]).items())
    text = json.dumps([about["format"], int(about["version"]), about["document"], digests])
    about["content_hash"] = hashlib.sha256(text.encode()).hexdigest()
    new = json.dumps(header).encode()
    return struct.pack("<Q", len(new)) + new + data[end:]


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("cellgraph-1/x.cellgraph", CellGraph.load),
        ("split-1/x.split", Split.load),
        ("checkpoint-1/x.ckpt", checkpoints.load),
        (
            "reactions-1/x.safetensors",
            lambda path: yeast_gem.read_container(path, yeast_gem.FORMAT, range(1, yeast_gem.VERSION + 1)),
        ),
    ],
)
def test_a_container_of_a_later_version(file: str, read: Any, tmp_path: Path) -> None:
    path = tmp_path / "later"
    path.write_bytes(raised((ARCHIVE / file).read_bytes()))
    with pytest.raises(FileFormatError, match=r"later has \w+ format version 2, newer than the 1 .*; upgrade"):
        read(path)


def test_a_screen_of_a_later_version(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    table = pq.read_table(ARCHIVE / "screen-1" / "x.parquet")
    about = {**json.loads(table.schema.metadata[b"knockgraph"]), "version": 3}
    pq.write_table(table.replace_schema_metadata({"knockgraph": json.dumps(about)}), tmp_path / "later")
    with pytest.raises(FileFormatError, match=r"later has screen format version 3, newer than the 2 .*; upgrade"):
        Screen.load(tmp_path / "later")


def test_a_store_of_a_later_version(tmp_path: Path) -> None:
    store = unpacked_store(tmp_path / "store")
    manifest = json.loads((store / "manifest.json").read_text())
    (store / "manifest.json").write_text(json.dumps({**manifest, "version": 2}))
    graph = CellGraph.load(ARCHIVE / "cellgraph-1" / "x.cellgraph")
    with pytest.raises(KnockgraphError, match=r"the store in .*store has version=2, but 1 is needed; prepare it again"):
        strategies.create("stored-masks", graph, directory=store)


def test_a_profile_of_a_later_version(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"profile": 2}))
    with pytest.raises(FileFormatError, match=r"p\.json has profile format version 2, newer than the 1 .*; upgrade kn"):
        read_profile(tmp_path / "p.json")
