from pathlib import Path

import numpy as np
import pytest
from source_files import write

from knockgraph import FileFormatError
from knockgraph.sources.sgd import read_aliases, read_features


def feature(
    kind: str,
    name: str,
    standard: str = "",
    aliases: str = "",
    chromosome: str = "1",
    start: str = "1",
    stop: str = "9",
) -> str:
    return "\t".join(
        [
            "S1",
            kind,
            "Verified",
            name,
            standard,
            aliases,
            "",
            "",
            chromosome,
            start,
            stop,
            "W",
            "",
            "",
            "",
            'a "quoted text',
        ]
    )


LINES = [
    feature("ORF", "YAL001C", "TFC3", "FUN24|tau 138", "1", "1000", "2000"),
    feature("CDS", "", start="1000"),
    feature("ORF", "YAL002W", "VPS8", "", "1", "201400", "201500"),
    feature("ORF", "YBR003W", "", "", "2", "1500", "1400"),
    feature("ORF", "YCR004W", "", "", "1", "201600", "201700"),
    feature("ORF", "R0020C", "REP1", "", "2-micron"),
    feature("blocked_reading_frame", "YDR134C", "", "CCW22"),
    feature("not in systematic sequence of S288C", "STA1", "", "", "", "", ""),
]


@pytest.fixture(params=["", ".gz", ".xz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(tmp_path / f"SGD_features.tab{request.param}", "\n".join(LINES) + "\n")


def test_features(path: Path) -> None:
    features = read_features(path)
    assert features.rows == 8
    assert [f.name for f in features.orfs] == ["YAL001C", "YAL002W", "YBR003W", "YCR004W", "R0020C"]
    assert features.orfs[0].aliases == ("FUN24", "tau 138")
    assert features.others[-1].start is None
    genes = features.genes()
    assert genes.names == ("YAL001C", "YAL002W", "YBR003W", "YCR004W")
    assert genes.index(["tfc3", "tau 138", "VPS8"]).tolist() == [0, 0, 1]
    assert features.genes(plasmid=True).names[-1] == "R0020C"
    assert features.elsewhere(genes) == {
        "R0020C": "R0020C is on the 2-micron plasmid",
        "REP1": "R0020C is on the 2-micron plasmid",
        "YDR134C": "a blocked reading frame",
        "CCW22": "YDR134C, a blocked reading frame",
        "STA1": "not in systematic sequence of S288C",
    }
    assert "REP1" not in features.elsewhere(features.genes(plasmid=True))


def test_aliases_add_names(path: Path, tmp_path: Path) -> None:
    table = write(
        tmp_path / "sgd_names_and_aliases.tsv.gz",
        "id\tsystematic_name\tcommon_name\taliases\n1\tYAL001C\tTFC3\tFUN24|TSV115\n2\tYBR003W\tCOQ1\t\n3\tOLD1\t\tx\n",
    )
    aliases = read_aliases(table)
    assert aliases == {"YAL001C": ("TFC3", "FUN24", "TSV115"), "YBR003W": ("COQ1",), "OLD1": ("", "x")}
    genes = read_features(path).genes(aliases=aliases)
    assert genes.aliases["YAL001C"] == ("TFC3", "FUN24", "tau 138", "TSV115")
    assert genes.index(["COQ1", "TSV115"]).tolist() == [2, 0]


def test_linked_genes(path: Path) -> None:
    features = read_features(path)
    linkage = features.linkage(features.genes())
    # Middles: 1,500 / 201,450 / 1,450 on chromosome 2 / 201,650.
    a, b = np.array([0, 0, 0, 1, 0]), np.array([1, 2, 3, 3, 0])
    assert linkage.linked(a, b).tolist() == [True, False, False, True, True]
    assert features.linkage(features.genes(), within=100).linked(a, b).tolist() == [False, False, False, False, True]


def test_not_that_file(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="line 1: it has 2 fields, but 16 are needed"):
        read_features(write(tmp_path / "x.tab", "a\tb\n"))
    with pytest.raises(FileFormatError, match=r"holds no ORF; is it SGD_features\.tab\?"):
        read_features(write(tmp_path / "x.tab", feature("CDS", "") + "\n"))
    with pytest.raises(FileFormatError, match="line 2: it has 3 fields instead of 16"):
        read_features(write(tmp_path / "x.tab", LINES[0] + "\na\tb\tc\n"))
    with pytest.raises(FileFormatError, match="line 2: 'start' is 'here', but an integer is needed"):
        read_features(write(tmp_path / "x.tab", LINES[0] + "\n" + feature("ORF", "Y", start="here") + "\n"))
    with pytest.raises(FileFormatError, match="line 2: an ORF has no name"):
        read_features(write(tmp_path / "x.tab", LINES[0] + "\n" + feature("ORF", "") + "\n"))
    with pytest.raises(FileFormatError, match=r"x\.tab has an ORF called 'Y\\x7fP': gene names have no line breaks"):
        read_features(write(tmp_path / "x.tab", LINES[0] + "\n" + feature("ORF", "Y\x7fP") + "\n"))
