"""Edge lists, YEASTRACT, TFLink, BioGRID: small files as their owners lay them out."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.random import default_rng
from source_files import write

from knockgraph import FileFormatError, UnknownGeneError
from knockgraph.sources.biogrid import read_biogrid
from knockgraph.sources.edge_list import read_edge_list
from knockgraph.sources.edges import EdgeCollector
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport
from knockgraph.sources.tflink import read_tflink
from knockgraph.sources.yeastract import read_regulations

Resolver = Callable[..., NameResolver]
TAB3 = (
    "#BioGRID Interaction ID\tSystematic Name Interactor A\tSystematic Name Interactor B\tExperimental System Type\t"
    "Organism ID Interactor A\tOrganism ID Interactor B\n"
)


def edges(found: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> list[tuple[int, int]]:
    index = found if isinstance(found, torch.Tensor) else found[0]
    return list(zip(*index.tolist(), strict=True))


# ── collecting ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("directed", [False, True])
def test_collected_edges_are_those_of_a_set(directed: bool) -> None:
    random = default_rng(0)
    collected = EdgeCollector(9, directed)
    expected: dict[tuple[int, int], float] = {}
    for _ in range(5):
        s, t = random.integers(0, 9, (2, 30))
        w = random.integers(1, 1000, 30) / 1000
        collected.add(s, t, w)
        collected.pairs  # noqa: B018 (settles in between, as a large file does)
        for a, b, weight in zip(s.tolist(), t.tolist(), w.tolist(), strict=True):
            for pair in {(a, b)} if directed else {(a, b), (b, a)}:
                expected[pair] = max(weight, expected.get(pair, 0))
    index, weight = collected.result(weighted=True)
    assert edges(index) == sorted(expected)
    np.testing.assert_allclose(weight.numpy(), [expected[pair] for pair in sorted(expected)], rtol=1e-6)
    assert edges(collected.result()) == sorted(expected)


# ── edge lists ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orf1\torf2\nYAL001C\tVPS8\nvps8\tTFC3\n", [(0, 1), (1, 0)]),
        ("gene_a,gene_b,note\nYAL001C,YAL001C,x\n", [(0, 0)]),
        ("regulator\ttarget\nYAL001C\tYAL002W\n", [(0, 1)]),
        ("x\tsource\ttarget\n1\tYAL002W\tYAL001C\n", [(1, 0)]),
        ("YAL001C\tYAL002W\nYAL002W\tYAL003W\n", [(0, 1), (1, 0), (1, 2), (2, 1)]),
        ("TFC3;VPS8\n", [(0, 1), (1, 0)]),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_edge_lists(text: str, expected: list, suffix: str, tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / f"e.txt{suffix}", text)
    report = FileReport("e", path)
    assert edges(read_edge_list(path, resolver(), report)) == expected
    assert report.read == report.dropped.get("the same edge again", 0) + sum(report.kept.values())


def test_weights_and_columns(tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "w.tsv", "gene_a\tgene_b\tweight\nYAL001C\tYAL002W\t0.5\nYAL002W\tYAL001C\t0.75\n")
    index, weight = read_edge_list(path, resolver(), FileReport("w", path))
    assert edges(index) == [(0, 1), (1, 0)]
    assert weight.tolist() == [0.75, 0.75]
    path = write(tmp_path / "c.tsv", "from gene\tto gene\nYAL001C\tYAL002W\n")
    found = read_edge_list(path, resolver(), FileReport("c", path), True, ("from gene", "to gene"))
    assert edges(found) == [(0, 1)]
    path = write(tmp_path / "b.tsv", "gene_a\tgene_b\tweight\nYAL001C\tYAL002W\t1\nYAL001C\tYAL003W\t\n")
    with pytest.raises(FileFormatError, match=r"b.tsv, line 3: 'weight' is blank; give it a number"):
        read_edge_list(path, resolver(), FileReport("b", path))


@pytest.mark.parametrize("weight", ["NA", "-", "null", "inf", "1e39", "-1e300"])
def test_weights_that_are_no_numbers(weight: str, tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "b.tsv", f"gene_a\tgene_b\tweight\nYAL001C\tYAL002W\t1\nYAL001C\tYAL003W\t{weight}\n")
    with pytest.raises(FileFormatError, match=f"b.tsv, line 3: 'weight' is '{weight}'; give it a finite number"):
        read_edge_list(path, resolver(), FileReport("b", path))


def test_unresolved_names_by_policy(tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "e.tsv", "orf1\torf2\nYAL001C\tYAL002W\nREP1\tYAL001C\nREP1\tNOPE\n")
    report = FileReport("e", path)
    assert edges(read_edge_list(path, resolver("drop", {"REP1": "on the plasmid"}), report)) == [(0, 1), (1, 0)]
    assert report.dropped == {"a name does not resolve": 2}
    assert [(u.name, u.rows, u.why) for u in report.unresolved] == [("REP1", 2, "on the plasmid"), ("NOPE", 1, "")]
    assert any("REP1: on the plasmid (2 rows)" in line for line in report.lines())
    with pytest.raises(UnknownGeneError, match=r"e.tsv: 2 names do not resolve"):
        read_edge_list(path, resolver(), FileReport("e", path))


def test_not_an_edge_list(tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "one.txt", "YAL001C\n")
    with pytest.raises(FileFormatError, match="line 1: an edge list needs two columns"):
        read_edge_list(path, resolver(), FileReport("x", path))
    path = write(tmp_path / "h.txt", "alpha\tbeta\nYAL001C\tYAL002W\n")
    with pytest.raises(FileFormatError, match="no two columns of genes that are known by name; it has alpha, beta"):
        read_edge_list(path, resolver(), FileReport("x", path), header=True)
    path = write(tmp_path / "m.tsv", "orf1\torf2\nYAL001C\tYAL002W\nYAL001C\n")
    with pytest.raises(FileFormatError, match=r"m.tsv, line 3: it has 1 fields instead of 2"):
        read_edge_list(path, resolver(), FileReport("x", path))


# ── YEASTRACT, TFLink, BioGRID ───────────────────────────────────────────────────────────────────────────────────────


def test_yeastract_as_published(tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "RegulationTwoColumnTable_Documented_2013927.tsv.gz", "Tfc3;VPS8\nTfc3;EFB1\nTfc3;VPS8\n")
    report = FileReport("r", path)
    assert edges(read_regulations(path, resolver(), report)) == [(0, 1), (0, 2)]
    assert report.dropped == {"the same edge again": 1}


TFLINK = "UniprotID.TF\tUniprotID.Target\tName.TF\tName.Target\tSmall-scale.evidence\n"


def test_tflink(tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "t.tsv", TFLINK + "P1\tP2\tTFC3\tVPS8\tYes\nP1\tP3\tTFC3\tEFB1\tNo\n")
    assert edges(read_tflink(path, resolver(), FileReport("t", path))) == [(0, 1), (0, 2)]
    report = FileReport("t", path)
    assert edges(read_tflink(path, resolver(), report, small_scale_only=True)) == [(0, 1)]
    assert report.dropped == {"no small-scale evidence": 1}
    path = write(tmp_path / "s.tsv", TFLINK + "P1\tP2\tTFC3\tVPS8;EFB1\tYes\nP1\tP2\tTFC3\tNOPE\tYes\n")
    report = FileReport("s", path)
    assert edges(read_tflink(path, resolver("drop"), report)) == [(0, 1), (0, 2)]
    assert [u.name for u in report.unresolved] == ["NOPE"]
    with pytest.raises(FileFormatError, match=r"has no column 'Name\.TF'"):
        read_tflink(write(tmp_path / "x.tsv", "a\tb\n1\t2\n"), resolver(), FileReport("x", path))


@pytest.mark.parametrize("form", ["tab2.txt", "tab3.txt.gz", "zip"])
def test_biogrid(form: str, tmp_path: Path, resolver: Resolver) -> None:
    header = (
        TAB3 if form != "tab2.txt" else TAB3.replace("Organism ID", "Organism").replace("System Type", "System Type")
    )
    text = header + (
        "1\tYAL001C\tYAL002W\tphysical\t559292\t559292\n"
        "2\tYAL002W\tYAL001C\tphysical\t559292\t559292\n"
        "3\tYAL003W\tYAL003W\tphysical\t559292\t559292\n"
        "4\tYAL001C\tYAL003W\tgenetic\t559292\t559292\n"
        "5\tYAL001C\tTP53\tphysical\t559292\t9606\n"
        "6\tYAL001C\tYZZ999W\tphysical\t559292\t559292\n"
    )
    if form == "zip":
        path = tmp_path / "BIOGRID-ORGANISM-4.4.240.tab3.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("BIOGRID-ORGANISM-Homo_sapiens-4.4.240.tab3.txt", header)
            archive.writestr("BIOGRID-ORGANISM-Saccharomyces_cerevisiae_S288c-4.4.240.tab3.txt", text)
    else:
        path = write(tmp_path / f"BIOGRID-ORGANISM-Saccharomyces_cerevisiae_S288c-3.4.156.{form}", text)
    report = FileReport("b", path)
    assert edges(read_biogrid(path, resolver("drop"), report)) == [(0, 1), (1, 0), (2, 2)]
    assert report.read == 6
    assert report.dropped == {
        "not physical": 1,
        "a partner of another organism": 1,
        "a name does not resolve": 1,
        "the same edge again": 1,
    }
    assert report.kept == {"pairs": 2}
    assert edges(read_biogrid(path, resolver("drop"), FileReport("b", path), "genetic")) == [(0, 2), (2, 0)]
