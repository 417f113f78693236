from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from source_files import write

from knockgraph import FileFormatError, GraphError
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport
from knockgraph.sources.string import channels_of, combine, read_string, relation_prefix, string_version

Resolver = Callable[..., NameResolver]
DETAILED = (
    "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database textmining combined_score\n"
)
ROWS = (
    "4932.YAL001C 4932.YAL002W 0 0 0 300 900 0 50 910\n"
    "4932.YAL002W 4932.YAL001C 0 0 0 300 900 0 50 910\n"
    "4932.YAL001C 4932.YAL003W 10 0 0 0 0 0 700 700\n"
    "4932.YAL003W 4932.YAL001C 10 0 0 0 0 0 700 700\n"
    "4932.YAL002W 4932.YAL003W 0 0 0 0 0 0 400 400\n"
)


def pairs(found: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> list[tuple[int, int]]:
    index = found if isinstance(found, torch.Tensor) else found[0]
    return list(zip(*index.tolist(), strict=True))


@pytest.fixture(params=["", ".gz", ".xz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / f"4932.protein.links.detailed.v12.0.txt{request.param}", DETAILED + ROWS)


def test_channels_become_relations(path: Path, resolver: Resolver) -> None:
    report = FileReport("s", path)
    found = read_string(path, resolver(), report)
    assert list(found) == ["neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database"]
    assert pairs(found["coexpression"]) == pairs(found["experimental"]) == [(0, 1), (1, 0)]
    assert pairs(found["neighborhood"]) == [(0, 2), (2, 0)]
    assert pairs(found["database"]) == []
    assert report.read == 5
    assert report.dropped == {"no score reaches the cut-off": 1}
    assert report.kept["experimental pairs"] == 1


def test_cutoffs_weights_and_chosen_channels(path: Path, resolver: Resolver) -> None:
    found = read_string(
        path, resolver(), FileReport("s", path), ["experimental", "textmining"], {"textmining": 400}, weighted=True
    )
    assert list(found) == ["experimental", "textmining"]
    index, weight = found["textmining"]
    assert pairs(index) == [(0, 2), (1, 2), (2, 0), (2, 1)]
    torch.testing.assert_close(weight, torch.tensor([0.7, 0.4, 0.7, 0.4]))
    assert pairs(read_string(path, resolver(), FileReport("s", path), cutoff=301)["coexpression"]) == []
    with pytest.raises(GraphError, match="a cut-off is given for 'databse', which is not among neighborhood"):
        read_string(path, resolver(), FileReport("s", path), cutoff={"databse": 3})
    with pytest.raises(GraphError, match="the cut-off of neighborhood is 0, but STRING's scores run from 1 to 1000"):
        read_string(path, resolver(), FileReport("s", path), cutoff=0)


def test_merged_by_the_file_or_by_the_formula(path: Path, resolver: Resolver) -> None:
    own = read_string(path, resolver(), FileReport("s", path), merged=True, cutoff=500, weighted=True)["merged"]
    assert pairs(own) == [(0, 1), (0, 2), (1, 0), (2, 0)]
    torch.testing.assert_close(own[1], torch.tensor([0.91, 0.7, 0.91, 0.7]))
    made = read_string(
        path, resolver(), FileReport("s", path), ["coexpression", "experimental"], merged=True, weighted=True
    )
    expected = 1 - (1 - 0.041) * (1 - (0.3 - 0.041) / 0.959) * (1 - (0.9 - 0.041) / 0.959)
    torch.testing.assert_close(made["merged"][1], torch.tensor([expected, expected], dtype=torch.float32))


def test_combination_follows_the_slow_formula() -> None:
    scores = [default_rng(seed).integers(0, 1000, 50) for seed in range(3)]
    for row, found in enumerate(combine(scores)):
        rest = 1.0
        for s in scores:
            rest *= 1 - max(0.0, (s[row] / 1000 - 0.041) / (1 - 0.041))
        assert found == pytest.approx(1000 * (1 - rest + 0.041 * rest) if rest < 1 else max(s[row] for s in scores))
    assert combine([np.array([0, 40]), np.array([0, 0])]).tolist() == [0, 40]
    assert combine([np.array([7])]).tolist() == [7]


FULL = (
    "protein1 protein2 homology experiments experiments_transferred database database_transferred "
    "textmining textmining_transferred combined_score\n"
)


def test_full_files_count_transferred_evidence(tmp_path: Path, resolver: Resolver) -> None:
    rows = "4932.YAL001C 4932.YAL002W 0 0 300 0 0 0 0 300\n4932.YAL002W 4932.YAL003W 0 400 300 0 0 0 0 562\n"
    path = write(tmp_path / "4932.protein.physical.links.full.v12.0.txt.gz", FULL + rows)
    assert channels_of(path)[:2] == ["experimental", "experimental_transferred"]
    found = read_string(path, resolver(), FileReport("p", path), weighted=True)
    assert list(found) == ["experimental", "database"]
    index, weight = found["experimental"]
    assert pairs(index) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert weight[2] == pytest.approx(0.562, abs=1e-3)
    alone = read_string(path, resolver(), FileReport("p", path), with_transferred=False)
    assert pairs(alone["experimental"]) == [(1, 2), (2, 1)]


def test_names_and_versions(tmp_path: Path, resolver: Resolver) -> None:
    assert relation_prefix(Path("4932.protein.links.detailed.v11.5.txt.gz")) == "string11_5_"
    assert string_version(Path("4932.protein.links.detailed.v9.1.four-channels.txt.gz")) == "9.1"
    with pytest.raises(FileFormatError, match="does not contain STRING's version"):
        string_version(Path("links.txt"))
    path = write(
        tmp_path / "4932.protein.links.detailed.v12.0.txt", DETAILED + "4932.YFL057C 4932.YAL001C 5 0 0 0 0 0 0 5\n"
    )
    report = FileReport("s", path)
    read_string(path, resolver("drop", {"YFL057C": "YFL056C, a pseudogene"}), report)
    assert [str(u) for u in report.unresolved] == ["YFL057C: YFL056C, a pseudogene"]
    assert report.dropped == {"a name does not resolve": 1}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("4932.YAL001C 4932.YAL002W 0 0 0 0 0 0 0", "line 7: it has 9 fields instead of 10"),
        ("4932.YAL001C 4932.YAL002W 0 0 0 0 x 0 0 5", "line 7: 'experimental' is 'x', but an integer is needed"),
        (
            "4932.YAL001C 4932.YAL002W 0 0 0 0 1001 0 0 5",
            "line 7: 'experimental' is '1001', but a score from 0 to 1000",
        ),
        ("4932.YAL001C 4932.YAL002W 0 0 0 0 -1 0 0 5", "line 7: 'experimental' is '-1', but a score from 0 to 1000"),
        ("4932.YAL001C 4932.YAL002W 0 0 0 0 NA 0 0 5", "line 7: 'experimental' is 'NA', but a score from 0 to 1000"),
        ("YAL001C 4932.YAL002W 0 0 0 0 5 0 0 5", "line 7: 'YAL001C' is not a protein of STRING such as 4932.YAL001C"),
        ("9606.ENSP1 9606.ENSP2 0 0 0 0 5 0 0 5", "holds proteins of several organisms; take the file of one"),
    ],
)
def test_malformed_rows(row: str, text: str, tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "4932.protein.links.detailed.v12.0.txt.gz", DETAILED + ROWS + row + "\n")
    with pytest.raises(FileFormatError, match=text):
        read_string(path, resolver("drop"), FileReport("s", path))


def test_absent_channels(tmp_path: Path, resolver: Resolver) -> None:
    path = write(
        tmp_path / "4932.protein.links.detailed.v9.1.txt", "protein1 protein2 fusion\n4932.YAL001C 4932.YAL002W 3\n"
    )
    assert list(read_string(path, resolver(), FileReport("s", path))) == ["fusion"]
    with pytest.raises(FileFormatError, match="has no channel 'database'; it has fusion; choose among these"):
        read_string(path, resolver(), FileReport("s", path), ["database"])
