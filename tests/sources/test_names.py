from pathlib import Path

import numpy as np
import pytest

from knockgraph import GeneNames, UnknownGeneError
from knockgraph.sources.collins import read_collins
from knockgraph.sources.names import AsWritten, NameResolver
from knockgraph.sources.report import FileReport

GENES = GeneNames(["YAL001C", "YAL002W"], {"YAL001C": ["TFC3", "DUP"], "YAL002W": ["VPS8", "DUP"]})


def test_names_resolve_and_the_others_are_counted() -> None:
    resolve = NameResolver(GENES, {"REP1": "R0020C is on the 2-micron plasmid"}, "drop")
    rows = resolve.many(["tfc3", "REP1", "YAL002W", "DUP", "TFC33"], np.array([0, 1, 1, 2, 3, 4, 1]))
    assert rows.tolist() == [0, -1, -1, 1, -1, -1, -1]
    bad = resolve.finish("x")
    assert [(b.name, b.rows) for b in bad] == [("REP1", 3), ("DUP", 1), ("TFC33", 1)]
    assert bad[0].why == "R0020C is on the 2-micron plasmid"
    assert bad[1].why == "ambiguous, YAL001C or YAL002W"
    assert bad[2].suggestions == ["TFC3 = YAL001C"]
    assert str(bad[2]) == "TFC33 (did you mean TFC3 = YAL001C?)"
    assert resolve.finish("y") == []  # each file has its own report
    resolve.many(["REP1"], np.array([0]))
    assert [b.rows for b in resolve.finish("z")] == [1]
    assert resolve.many([], np.empty(0, np.int64)).tolist() == []


def test_policy_error_lists_them_all() -> None:
    resolve = NameResolver(GENES, {"rep1": "on the plasmid"})
    resolve.many(["REP1", "NO1"], np.array([0, 1]))
    with pytest.raises(
        UnknownGeneError, match=r"f.tsv: 2 names do not resolve among 2 genes: NO1, REP1: on the plasmid;"
    ):
        resolve.finish("f.tsv")
    with pytest.raises(ValueError, match="unknown='keep' is not an option; use 'error' or 'drop'"):
        NameResolver(GENES, unknown="keep")  # type: ignore[arg-type]


def test_every_kind_of_name_in_one_report(tmp_path: Path) -> None:
    """Systematic, standard, alias, retired, lower case; ambiguous, no gene, unknown; a gene paired with itself."""
    known = GeneNames(
        ["YAL001C", "YAL002W"], {"YAL001C": ["TFC3", "FUN24", "YAL001W"], "YAL002W": ["VPS8", "DUP", "FUN24"]}
    )
    elsewhere = {"YDR134C": "a blocked reading frame", "YXX000W": "not in systematic sequence of S288C"}
    pairs = ["YAL001C YAL002W", "TFC3 VPS8", "YAL001W DUP", "tfc3 yal002w", "TFC3 YAL001C"]  # the last: one gene, twice
    pairs += ["FUN24 VPS8", "YDR134C VPS8", "YXX000W TFC3", "NOPE YXX000W"]
    path = tmp_path / "e.tsv"
    path.write_text("\n".join(["g1\tg2\tS", *(pair.replace(" ", "\t") + "\t1" for pair in pairs)]) + "\n")
    report = FileReport("e", path)
    screen = read_collins(path, NameResolver(known, elsewhere, "drop"), report)
    assert [tuple(screen.genotypes[i]) for i in range(len(screen))] == [("YAL001C", "YAL002W")] * 4
    assert report.dropped == {"a name does not resolve": 4, "a gene paired with itself": 1}
    assert {u.name: (u.rows, u.why) for u in report.unresolved} == {
        "FUN24": (1, "ambiguous, YAL001C or YAL002W"),
        "YDR134C": (1, "a blocked reading frame"),
        "YXX000W": (2, "not in systematic sequence of S288C"),
        "NOPE": (1, ""),
    }
    with pytest.raises(
        UnknownGeneError, match=r"e\.tsv: 4 names do not resolve among 2 genes: YXX000W: not in"
    ) as caught:
        read_collins(path, NameResolver(known, elsewhere, "error"), FileReport("e", path))
    assert sorted(caught.value.names) == ["FUN24", "NOPE", "YDR134C", "YXX000W"]


def test_thousands_of_strange_names_take_no_thousands_of_guesses() -> None:
    resolve = NameResolver(GENES, unknown="drop")
    names = [f"X{i}" for i in range(5000)]
    resolve.many(names, np.arange(5000))
    assert len(resolve.finish("x")) == 5000


def test_as_written() -> None:
    resolve = AsWritten()
    assert resolve.many(["B", " A ", "B "], np.array([0, 1, 2])).tolist() == [0, 1, 0]
    assert resolve.names == ("B", "A")
    assert resolve.finish("x") == []
