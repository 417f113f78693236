"""Collins, Costanzo and Kuzmin: small files as their owners lay them out."""

import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from source_files import write

from knockgraph import FileFormatError, Screen, UnknownGeneError
from knockgraph.sources.collins import read_collins
from knockgraph.sources.costanzo import read_costanzo
from knockgraph.sources.kuzmin import read_digenic_calls, read_scores, read_trigenic_calls
from knockgraph.sources.names import AsWritten, NameResolver
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.sga import strain_genes
from knockgraph.sources.sgd import Linkage

Resolver = Callable[..., NameResolver]

# YAL001C and YAL002W are linked, the others lie elsewhere; the order is that of the gene list in conftest.py.
LINKAGE = Linkage(np.array([0, 0, 1, 2, 3]), np.array([0.0, 1000.0, 0.0, 0.0, 0.0]), 200_000)


def rows(screen: Screen) -> list[tuple[tuple[str, ...], float]]:
    return list(zip(screen.genotypes, next(iter(screen.phenotypes.values())).tolist(), strict=True))


# ── Collins ──────────────────────────────────────────────────────────────────────────────────────────────────────────

EMAP = (
    "g1\tg2\tS\nYAL001C\tYAL002W\t-2.5\nYAL002W\tTFC3\t-2.0\n"
    "REP1\tYAL001C\t0.1\nYAL003W\tYAL003W\t1\nYAL001C\tYAL003W\tNA\n"
)


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_collins(suffix: str, tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / f"emap.tsv{suffix}", EMAP)
    report = FileReport("c", path)
    screen = read_collins(path, resolver("drop"), report)
    assert rows(screen) == [(("YAL001C", "YAL002W"), -2.5), (("YAL001C", "YAL002W"), -2.0)]
    assert screen.source_names == ("collins2007",)
    assert report.read == 5
    assert report.dropped == {"a name does not resolve": 1, "a gene paired with itself": 1, "not measured": 1}
    assert report.kept == {"digenic": 2}
    with pytest.raises(UnknownGeneError, match="1 name does not resolve among 5 genes: REP1"):
        read_collins(path, resolver("error"), FileReport("c", path))


def test_names_as_written(tmp_path: Path) -> None:
    screen = read_collins(write(tmp_path / "e.tsv", EMAP), AsWritten(), FileReport("c", tmp_path))
    assert set(screen.genotypes.names) == {"REP1", "TFC3", "YAL001C", "YAL002W"}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("g1\tg2\tS\nA\tB\thigh\n", "line 2: 'S' is 'high', but a number is needed"),
        ("g1\tg2\tS\nA\tB\t1\nA\tB\tinf\n", "line 3: the score is infinite"),
        ("g1\tg2\tS\nA\tB\n", "line 2: it has 2 fields instead of 3"),
        ("a\tb\tS\nA\tB\t1\n", "has no two columns of genes such as g1 and g2; it has a, b, S"),
        ("g1\tg2\tx\nA\tB\t1\n", "has no column 'S'"),
        ("g1\tg2\tS\n", "leaves no experiment"),
    ],
)
def test_malformed_emaps(text: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=error):
        read_collins(write(tmp_path / "e.tsv", text), AsWritten(), FileReport("c", tmp_path))


# ── strains ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("strain", "genes"),
    [
        ("YAL015C+YOL043C_tm72", ["YAL015C", "YOL043C"]),
        ("YAL015C+YDL227C_tm461", ["YAL015C"]),
        ("YDL227C+YDL227C_tm1", []),
        ("YBL007C_dma91", ["YBL007C"]),
        ("YBR123C_tsq12_x", ["YBR123C"]),
        ("YAL001C", ["YAL001C"]),
    ],
)
def test_strains(strain: str, genes: list[str]) -> None:
    assert strain_genes(strain) == genes


# ── Kuzmin, scores ───────────────────────────────────────────────────────────────────────────────────────────────────

HEADER = (
    "Query strain ID\tQuery allele name\tArray strain ID\tArray allele name\tCombined mutant type\t"
    "Raw genetic interaction score (epsilon)\tAdjusted genetic interaction score (epsilon or tau)\tP-value\t"
    "Query single/double mutant fitness\tArray single mutant fitness\t{0}\t{0} standard deviation\n"
)


def cross(query: str, array: str, score: str, p: str = "0.01", fitness: str = "0.9", std: str = "0.05") -> str:
    return f"{query}\tq\t{array}\ta\tdigenic\t{score}\t{score}\t{p}\t1.0\t1.0\t{fitness}\t{std}\n"


@pytest.mark.parametrize("name", ["Combined mutant fitness", "Double/triple mutant fitness"])
@pytest.mark.parametrize("title", ["", "Table S1. Raw genetic interaction dataset\n"])
def test_scores(name: str, title: str, tmp_path: Path, resolver: Resolver) -> None:
    text = (
        title
        + HEADER.format(name)
        + (
            cross("YAL001C+YDL227C_tm1", "YAL003W_dma1", "-0.2")  # HO: digenic
            + cross("YAL001C+YBR004C_tm2", "YAL003W_dma1", "-0.3", std="")
            + cross("YAL001C+YDL227C_tm1", "YAL002W_dma2", "0.4")  # linked
            + cross("YAL001C+YBR004C_tm2", "YBR004C_dma3", "0.5")  # itself
            + cross("YAL001C+YXX999W_tm3", "YAL003W_dma1", "0.6")  # unknown
            + cross("YAL002W+YBR004C_tm4", "YAL003W_tsa9", "NaN", fitness="")  # nothing measured
            + cross("YAL002W+YBR004C_tm4", "YAL003W_tsa9", "NaN", fitness="0.5")
        )
    )
    path = write(tmp_path / "aao1729_data_s1.tsv.gz", text)
    report = ImportReport("k")
    screen = read_scores([path], resolver("drop"), report, LINKAGE)
    assert list(screen.genotypes) == [
        ("YAL001C", "YAL003W"),
        ("YAL001C", "YAL003W", "YBR004C"),
        ("YAL002W", "YAL003W", "YBR004C"),
    ]
    assert screen.phenotypes["gene_interaction"][:2].tolist() == [-0.2, -0.3]
    assert math.isnan(screen.phenotypes["gene_interaction"][2])
    assert screen.phenotypes["fitness"].tolist() == [0.9, 0.9, 0.5]
    assert screen.statistics["gene_interaction"]["p_value"].tolist() == [0.01] * 3
    assert math.isnan(screen.statistics["fitness"]["std"][1])
    sources = [screen.source_names[c] for c in screen.source_codes]
    assert sources == ["kuzmin2018 YAL001C", "kuzmin2018 YAL001C+YBR004C", "kuzmin2018 YAL002W+YBR004C"]
    assert report.files[0].dropped == {
        "a name does not resolve": 1,
        "the array gene is a query gene": 1,
        "linked: the array gene lies within 200 kb of a query gene": 1,
        "neither a score nor a fitness": 1,
    }
    assert report.files[0].kept == {"digenic": 1, "trigenic": 2}
    marked = read_scores([path], resolver("drop"), ImportReport("k"), LINKAGE, linked="mark")
    assert marked.statistics["gene_interaction"]["linked"].tolist() == [0, 0, 1, 0]
    blind = read_scores([path], resolver("drop"), (notes := ImportReport("k")))
    assert len(blind) == 4
    assert "linked crosses are not marked" in notes.files[0].notes[0]


@pytest.mark.parametrize("strain", ["YAL001C+YAL002W+YAL003W_tm1", "YAL001C+_tm1", "_tm1"])
def test_malformed_strains(strain: str, tmp_path: Path) -> None:
    text = HEADER.format("Combined mutant fitness") + cross("YAL001C+YDL227C_tm1", "YAL003W_dma1", "1")
    path = write(tmp_path / "s.tsv", text + cross(strain, "YAL003W_dma1", "1"))
    with pytest.raises(FileFormatError, match=r"line 3: .* is not a strain such as YAL015C"):
        read_scores([path], AsWritten(), ImportReport("k"))


# ── Kuzmin, calls ────────────────────────────────────────────────────────────────────────────────────────────────────

CALLS = (
    "query_orf1\tquery_orf2\tarray_orf\tsig_neg_trigenic\twithin_200kb_of_a_query_gene\tquery_set\n"
    "YAL001C\tYBR004C\tYAL003W\t1\t0\tT\nYAL001C\tYBR004C\tYAL002W\t0\t1\tT\nYAL001C\tYAL003W\tYBR004C\t0\t0\tT\n"
    "YAL001C\tYBR004C\tYBR004C\t0\t0\tT\n"
)


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_trigenic_calls(suffix: str, tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / f"kuzmin2018_trigenic_calls.tsv{suffix}", CALLS)
    report = FileReport("k", path)
    screen = read_trigenic_calls(path, resolver(), report)
    assert screen.phenotypes["significant"].tolist() == [1, 0]
    assert [screen.source_names[c] for c in screen.source_codes] == [
        "kuzmin2018 YAL001C+YBR004C",
        "kuzmin2018 YAL001C+YAL003W",
    ]
    assert report.kept == {"trigenic": 2, "positive": 1}
    assert report.dropped == {
        "the array gene is a query gene": 1,
        "linked: the array gene lies within 200 kb of a query gene": 1,
    }
    marked = read_trigenic_calls(path, resolver(), FileReport("k", path), linked="mark")
    assert marked.statistics["significant"]["linked"].tolist() == [0, 1, 0]
    bad = write(tmp_path / "bad.tsv", CALLS.replace("\t1\t0\tT", "\t2\t0\tT"))
    with pytest.raises(FileFormatError, match="line 2: 'sig_neg_trigenic' is '2', not 0 or 1"):
        read_trigenic_calls(bad, resolver(), FileReport("k", bad))


def test_digenic_calls(tmp_path: Path, resolver: Resolver) -> None:
    text = "orf_a\torf_b\tsign\nYAL001C\tYAL002W\tnegative\nYAL001C\tYAL003W\tpositive\nYAL002W\tYAL003W\tboth\n"
    path = write(tmp_path / "d.tsv.gz", text)
    report = FileReport("k", path)
    screen = read_digenic_calls(path, resolver(), report)
    assert screen.phenotypes["interaction_sign"][:2].tolist() == [-1, 1]
    assert math.isnan(screen.phenotypes["interaction_sign"][2])
    assert report.kept == {"digenic": 3, "called both": 1}
    bad = write(tmp_path / "b.tsv", text.replace("both", "maybe"))
    with pytest.raises(FileFormatError, match="line 4: the sign is 'maybe', not negative, positive or both"):
        read_digenic_calls(bad, resolver(), FileReport("k", bad))


# ── Costanzo ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SGA = (
    "Query Strain ID\tQuery allele name\tArray Strain ID\tArray allele name\tArraytype/Temp\t"
    "Genetic interaction score (ε)\tP-value\tQuery single mutant fitness (SMF)\tArray SMF\t"
    "Double mutant fitness\tDouble mutant fitness standard deviation\n"
)


def pair(query: str, array: str, score: str) -> str:
    return f"{query}\tq\t{array}\ta\tDMA30\t{score}\t0.02\t1\t1\t0.8\t0.1\n"


def test_costanzo_lists_tables_and_archives(tmp_path: Path, resolver: Resolver) -> None:
    listed = write(tmp_path / "c.tsv.gz", "orf_a\torf_b\tepsilon\nYAL001C\tYAL003W\t0.25\n")
    assert rows(read_costanzo([listed], resolver(), ImportReport("c"))) == [(("YAL001C", "YAL003W"), 0.25)]
    first = write(tmp_path / "SGA_NxN.txt.gz", SGA + pair("YAL001C_sn1", "YAL003W_dma1", "-0.5"))
    second = write(tmp_path / "SGA_ExE.txt", SGA.replace("(ε)", "(�)") + pair("YAL002W_tsq1", "YAL003W_tsa1", "0.125"))
    report = ImportReport("c")
    screen = read_costanzo([first, second], resolver(), report, LINKAGE)
    assert rows(screen) == [(("YAL001C", "YAL003W"), -0.5), (("YAL002W", "YAL003W"), 0.125)]
    assert screen.source_names == ("costanzo2016 YAL001C", "costanzo2016 YAL002W")
    archive = tmp_path / "costanzo2016_pairwise.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("Data File S1/SGA_NxN.txt", SGA + pair("YAL001C_sn1", "YAL003W_dma1", "-0.5"))
        packed.writestr("Data File S1/SGA_ExE.txt", SGA + pair("YAL002W_tsq1", "YAL003W_tsa1", "0.125"))
        packed.writestr("readme.txt", "x")
    report = ImportReport("c")
    assert read_costanzo([archive], resolver(), report, LINKAGE) == screen
    assert [f.what for f in report.files] == ["Costanzo 2016, SGA_NxN.txt", "Costanzo 2016, SGA_ExE.txt"]
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as packed:
        packed.writestr("readme.txt", "x")
    with pytest.raises(FileFormatError, match="holds none of SGA_NxN"):
        read_costanzo([tmp_path / "other.zip"], resolver(), ImportReport("c"))
