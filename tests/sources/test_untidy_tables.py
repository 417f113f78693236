"""Tables as people have them: whatever the layout, delimiter, decimal sign and encoding, the same screen."""

import csv
import datetime
import io
import os
import runpy
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from knockgraph import FileFormatError, KnockgraphError, Screen, ScreenError
from knockgraph.graph import GeneNames
from knockgraph.sources import excel
from knockgraph.sources.graph_tables import read_graph
from knockgraph.sources.presets import read_gene_list
from knockgraph.sources.report import ImportReport
from knockgraph.sources.table_layout import TableOptions
from knockgraph.sources.tables import TableReading, read_genotypes, read_table


def write(tmp_path: Path, text: str, name: str = "my.csv", encoding: str = "utf-8") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return path


def read(tmp_path: Path, text: str, name: str = "my.csv", **options: object) -> tuple[Screen, TableReading]:
    return read_table(write(tmp_path, text, name), TableOptions(**options))


def pairs(screen: Screen) -> list[tuple[tuple[str, ...], float]]:
    (values,) = screen.phenotypes.values()
    return list(zip(screen.genotypes, values.tolist(), strict=True))


EXPECTED = [(("YAL001C", "YBR002W"), -0.31), (("YCL003W",), 0.5)]


@pytest.mark.parametrize(
    "text",
    [
        "genotype,score\nYAL001C+YBR002W,-0.31\nYCL003W,0.5\n",
        "Genotype;Score\nYAL001C|YBR002W;-0,31\nYCL003W;0,5\n",
        "GENOTYPE\tscore\nYAL001C,YBR002W\t-0.31\nYCL003W\t+.5\n",
        "genotype|score\nYAL001C;YBR002W|-0.31\nYCL003W|0.5\n",
        "genotype   score\nYAL001C,YBR002W   -0,31\n  YCL003W 0,5\n",
        "genotype,score\nYAL001C YBR002W,-0.31\nYCL003W,0.5\n",
        "genotype,score\nYAL001C/YBR002W,-0.31\nYCL003W,0.5\n",
        "genotype,score\nYAL001C+YBR002W,-0.31,\nYCL003W,0.5,\n",
        "genotype,score,\nYAL001C+YBR002W,-0.31,\nYCL003W,0.5,\n",
        "Gene A,Gene B,score\nYAL001C,YBR002W,-0.31\nYCL003W,,0.5\n",
        "score,gene1,gene2\n-0.31,YAL001C,YBR002W\n0.5,YCL003W,NA\n",
        'Query ORF;Array ORF;score\n"YAL001C";"YBR002W";"-0,31"\n"YCL003W";"-";"0,5"\n',
        "query\tarray\tscore\nYAL001C\tYBR002W\t-0.31\nYCL003W\tWT\t0.5\n",
        "query_orf1\tquery_orf2\tarray_orf\tscore\nYBR002W\t\tYAL001C\t-0.31\n\t\tYCL003W\t0.5\n",
        "Gene,Gene.1,score\nYAL001C,YBR002W,-0.31\nYCL003W,,0.5\n",
        "gene\tgene2\tscore\nYAL001C\tYBR002W\t-0.31\nYCL003W\tNA\t0.5\n",
        "g1\tg2\tscore\nYAL001C\tYBR002W\t-0.31\nYCL003W\tYCL003W\t0.5\n",
        "perturbation,score\nYAL001C+YBR002W,-0.31\nYCL003W+ctrl,0.5\n",
        "# a screen\n% of mine\ngenotype,score\n# half of it\nYAL001C+YBR002W,-0.31\nYCL003W,0.5\n",
        "# made, by, me\n#genotype\tscore\nYAL001C+YBR002W\t-0.31\nYCL003W\t0.5\n",
        "sep=;\ngenotype;score\nYAL001C+YBR002W;-0.31\nYCL003W;0.5\n",
        "Table S1. Scores of double mutants\n\ngenotype,score\nYAL001C+YBR002W,-0.31\nYCL003W,0.5\n",
        "Scores;;\n;;\nGenotype;Score;Remark\nYAL001C+YBR002W;-0,31;\n;;\nYCL003W;0,5;x\n;;\n ; ;\n",
        "\ufeffgenotype,score\r\nYAL001C+YBR002W,-0.31\r\n\r\nYCL003W,0.5",
        '"genotype"\t"score"\n"1"\t"YAL001C+YBR002W"\t-0.31\n"2"\t"YCL003W"\t0.5\n',
        'index,genotype,score,remark\n0,YAL001C+YBR002W,-0.31,5" plate\n1,YCL003W,0.5,ok\n',
    ],
)
def test_one_screen_in_many_tables(text: str, tmp_path: Path) -> None:
    for name in ("my.csv", "my.txt"):
        screen, reading = read(tmp_path, text, name)
        assert pairs(screen) == EXPECTED
        assert (reading.read, reading.kept, reading.dropped) == (2, {"experiments": 2}, {})
        assert [tuple(genes) for genes in read_genotypes(tmp_path / name).genotypes] == [g for g, _ in EXPECTED]


@pytest.mark.parametrize(
    "text",
    [
        "Genotype,score\nYAL001CΔ YBR002WΔ,-0.31\nYCL003W∆0,0.5\n",
        "genotype,score\nYAL001C-Δ::kanMX YBR002W::natMX4,-0.31\nYCL003WΔ,0.5\n",
        "gene_a,gene_b,score\nΔYAL001C,YBR002WΔ::kanMX6,-0.31\nYCL003W_Δ,,0.5\n",
        "query,array,score\nYAL001C_tsq508,YBR002W_dma7,-0.31\nYCL003W_sn12,,0.5\n",
        "Query Strain ID\tQuery allele name\tArray Strain ID\tArray allele name\tscore\n"
        "YAL001C_tsq508\ttfc3-1\tYBR002W_dma7\trer2\t-0.31\nYCL003W_sn12\tycl3\t\t\t0.5\n",
        "Gene A,Gene B,score\nYAL001C - DAMP,YBR002W-DAmP,-0.31\nYCL003W (DAmP),,0.5\n",
        "genotype,score\nYAL001C - DAMP YBR002W_damp,-0.31\nYCL003W DAmP,0.5\n",
    ],
)
def test_deletions_may_be_marked(text: str, tmp_path: Path) -> None:
    screen, reading = read(tmp_path, text)
    assert pairs(screen) == EXPECTED
    assert any("3 names are read without the mark of a deletion, allele or strain: " in note for note in reading.notes)


MATRIX = "query;a;b;C\nA;;-0,5;0,25\nb;-0,5;9;\n"


@pytest.mark.parametrize("text", [MATRIX, MATRIX.replace("query", ""), MATRIX.replace("query", "Gene")])
def test_a_matrix_that_is_symmetric_counts_once(text: str, tmp_path: Path) -> None:
    screen, reading = read(tmp_path, text)
    assert [(set(genes), value) for genes, value in pairs(screen)] == [({"A", "b"}, -0.5), ({"A", "C"}, 0.25)]
    said = str(reading)
    assert "phenotypes: score" in said
    assert "a matrix: 2 genes in rows (named by " in said
    assert "cells of a gene with itself are left out: 1" in said
    assert "cells that repeat the one across the diagonal are left out: 1" in said


def test_a_matrix_whose_sides_differ_keeps_both(tmp_path: Path) -> None:
    screen, _ = read(tmp_path, "x,a,b,c\na,,1,2\nb,3,,4\n", phenotypes=["tau"])
    assert list(screen.phenotypes) == ["tau"]
    assert pairs(screen) == [(("a", "b"), 1.0), (("a", "c"), 2.0), (("a", "b"), 3.0), (("b", "c"), 4.0)]


def test_a_matrix_with_other_names_must_be_said(tmp_path: Path) -> None:
    text = "ORF,TFC3,VPS8\nYAL003W,0.5,\nYAL004W,,-1\n"
    assert list(read(tmp_path, text)[0].phenotypes) == ["TFC3", "VPS8"]
    screen, _ = read(tmp_path, text, matrix=True)
    assert pairs(screen) == [(("TFC3", "YAL003W"), 0.5), (("VPS8", "YAL004W"), -1.0)]
    with pytest.raises(ScreenError, match=r"or say --matrix if rows and columns are genes"):
        read(tmp_path, text.replace("ORF", "thing"))
    with pytest.raises(ScreenError, match=r"is no matrix: no column but 'thing' holds numbers; leave out --matrix"):
        read(tmp_path, "thing,other\nx,y\n", matrix=True)


def test_the_control_of_genetic_arrays_counts_as_no_gene(tmp_path: Path) -> None:
    """A pair of HO and a query gene was taken for a double mutant, and a digenic row for a trigenic one."""
    queries = {"YAL015C+YDL227C_tm461": 0.1, "YAL015C+YOL043C_tm72": -0.2, "YDL227C_sn1": 0.0}
    rows = "".join(f"{query}\tYBL007C_dma91\t{value}\n" for query, value in queries.items())
    screen, reading = read(tmp_path, f"Query Strain ID\tArray Strain ID\tscore\n{rows}", "sga.txt")
    assert pairs(screen) == [
        (("YAL015C", "YBL007C"), 0.1),
        (("YAL015C", "YBL007C", "YOL043C"), -0.2),
        (("YBL007C",), 0.0),
    ]
    assert "note: 2 genotypes have YDL227C (HO), the control of genetic arrays, which counts as no gene" in str(reading)
    other, reading = read(tmp_path, "gene_a\tgene_b\tscore\nYAL015C\tYDL227C\t0.1\n", "other.txt")
    assert pairs(other) == [(("YAL015C", "YDL227C"), 0.1)]
    assert "HO" not in str(reading)


def test_a_matrix_with_other_names_is_known_by_its_genes(tmp_path: Path) -> None:
    """Its columns were read as phenotypes of single genes, without a word."""
    columns = [f"YBR{k:03}W" for k in range(21)]
    text = "\n".join(["\t".join(["Gene", *columns]), *("\t".join([a, *["0.5"] * 21]) for a in ("YAL001C", "YAL002W"))])
    known = GeneNames(["YAL001C", "YAL002W", *columns])
    screen, reading = read(tmp_path, text, known=known)
    assert len(screen) == 42
    assert "a matrix: 2 genes in rows (named by Gene) × 21 genes in columns" in str(reading)
    screen, reading = read(tmp_path, text)
    assert len(screen.phenotypes) == 21
    assert "21 columns are read as phenotypes of single genes; if they are genes, say --matrix" in str(reading)
    screen, reading = read(tmp_path, text, known=known, genes=("Gene",))  # the user says otherwise
    assert len(screen.phenotypes) == 21
    assert "--matrix" not in str(reading)
    with pytest.raises(
        ScreenError, match=r"no column but 'Gene' holds numbers; fill it with numbers, or say --gene-columns Gene"
    ):
        read(tmp_path, text.replace("0.5", "high"), known=known)  # nobody said --matrix
    screen, _ = read(tmp_path, text, known=known, phenotypes=["YBR003W"])  # a column, not a name for the values
    assert list(screen.genotypes) == [("YAL001C",), ("YAL002W",)]
    assert list(screen.phenotypes) == ["YBR003W"]


def test_a_matrix_of_pandas() -> None:
    pd = pytest.importorskip("pandas")
    values = pd.DataFrame([[None, -0.5, 0.25]], index=["A"], columns=["A", "b", "C"])
    assert pairs(read_table(values)[0]) == [(("A", "b"), -0.5), (("A", "C"), 0.25)]


def test_blank_rows_of_a_dataframe(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.read_csv(write(tmp_path, "genotype;score;n\nA+B;0,5;x\n;;\n"), sep=";", decimal=",")
    screen, reading = read_table(table)
    assert (pairs(screen), reading.read) == ([(("A", "B"), 0.5)], 1)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    path = write(tmp_path, "genotype;strain;größe\nYAL001C;Müller;0,25\n", "my.csv", encoding)
    screen, reading = read_table(path)
    assert {name: v.tolist() for name, v in screen.phenotypes.items()} == {"größe": [0.25]}
    latin = encoding in ("latin-1", "cp1252")
    assert reading.notes == (["2 lines are not UTF-8 and read as Latin-1"] if latin else [])


def test_the_report_says_how_the_table_was_understood(tmp_path: Path) -> None:
    text = (
        "# 12 May\nNr;Strain;Gene A;Gene B;score;score_sd;P-Value;n/a\n"
        "1;x1;YAL001C;YBR002W;-0,31;0,1;0,01;\n2;x2;YAL001C;YAL001C;0,2;;n/a;\n3;x3;YCL003W;YBR002W;NA;0,1;0,5;\n"
    )
    screen, reading = read(tmp_path, text)
    assert str(reading).splitlines() == [
        f"{tmp_path}/my.csv: text, fields divided by semicolons, 1 comment line, decimal comma",
        "  genes: columns Gene A and Gene B, one gene each",
        "  phenotypes: score (with std from score_sd and p_value from P-Value)",
        "  set aside: Nr (it numbers the rows), Strain (text), n/a (empty in the first 3 rows)",
        "  rows: 3 read, 2 kept; 1 left out: no value for score",
        "  genotypes: 1 with 1 gene, 1 with 2 genes",
        "  note: 1 row names the same gene twice, which counts once",
        "  first row: YAL001C+YBR002W, score -0.31",
    ]
    assert pairs(screen) == [(("YAL001C", "YBR002W"), -0.31), (("YAL001C",), 0.2)]
    np.testing.assert_array_equal(screen.statistics["score"]["std"], [0.1, np.nan])
    np.testing.assert_array_equal(screen.statistics["score"]["p_value"], [0.01, np.nan])
    assert reading.as_dict()["set_aside"] == {
        "Nr": "it numbers the rows",
        "Strain": "text",
        "n/a": "empty in the first 3 rows",
    }


def test_comments_are_counted(tmp_path: Path) -> None:
    _, reading = read(tmp_path, "# one\n#genotype,x\nA,1\n# two\n%three\nB,2\n")
    assert reading.form == "text, fields divided by commas, 3 comment lines"
    assert reading.read == 2


def test_columns_are_chosen(tmp_path: Path) -> None:
    text = "who,what,x,y,x.std\nA,B,1,2,3\nC,D,4,oops,6\n"
    screen, reading = read(tmp_path, text, phenotypes=["X"], genes=["who,what"])
    assert pairs(screen) == [(("A", "B"), 1.0), (("C", "D"), 4.0)]
    assert screen.statistics["x"]["std"].tolist() == [3, 6]
    assert reading.layout is not None
    assert reading.layout.aside == {"y": "not chosen"}
    screen, _ = read(tmp_path, text, phenotypes=["x", "x.std"], genes=["what"])
    assert list(screen.phenotypes) == ["x", "x.std"]
    assert list(screen.genotypes) == [("B",), ("D",)]


def test_missing_labels_have_one_policy(tmp_path: Path) -> None:
    words = ["", "NA", "NaN", "nan", "n/a", "N/A", "null", "NULL", "None", "-", "#N/A", " NA ", "n.d."]
    text = "genotype;x;y\nA;1;1\n" + "".join(f"G{k};{word};{'' if k else 2}\n" for k, word in enumerate(words))
    screen, reading = read(tmp_path, text)
    assert list(screen.genotypes) == [("A",), ("G0",)]
    assert reading.dropped == {"no value for x or y": 12}
    np.testing.assert_array_equal(screen.phenotypes["x"], [1, np.nan])
    assert len(read(tmp_path, text, missing="keep")[0]) == 14
    with pytest.raises(
        ScreenError, match="12 rows have no x or y, the first is data row 3; leave them out with --miss"
    ):
        read(tmp_path, text, missing="error")
    with pytest.raises(ScreenError, match=r"my\.csv: no row has a value for x; choose another column with --phenotype"):
        read(tmp_path, "genotype,x\nA,NA\n")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "genotype;x\nA;1,234\nB;2,500\n",
            {},
            r"column 'x' holds '1,234', which may be 1\.234 or 1234; say --decimal comma, or take the commas out",
        ),
        (
            "genotype;x;y\nA;0,5;0.5\n",
            {},
            r"column 'x' is written with decimal commas \('0,5'\) and y with decimal points; choose with --decimal",
        ),
        ("genotype;x\nA;0,5\nB;0.5\n", {}, r"line 2: column 'x' is not numeric, it holds '0,5'; correct"),
        ("genotype;x\nA;0.5\nB;0,5\nC;0.1\n", {}, r"line 3: column 'x' is not numeric, it holds '0,5'"),
        ("genotype,x\nA B,1\nC/D,2\n", {}, "unclear how 'A B' divides into genes; say --join space or --join /"),
        (
            "gene_a,gene_b,query,array,x\nA,B,C,D,1\n",
            {},
            r"several ways \(gene_a,gene_b or query,array\); choose with --g",
        ),
        ("A,B,0.5\nC,D,0.7\n", {}, r"no line with the names of its columns \(it has A, B, 0\.5\); add one"),
        (
            "genotype,fitness\nA,1\n",
            {"phenotypes": ["fitnes"]},
            r"no column 'fitnes' \(did you mean 'fitness'\?\) for --phen",
        ),
        ("a,fitness\nA,1\n", {"genes": ["b"]}, "no column 'b' for --gene-columns; it has a, fitness"),
        ("genotype,x\nA,1\n", {"phenotypes": ["genotype"]}, "column 'genotype' cannot hold genes and a phenotype"),
        ("genotype,x,y\nA,u,1\n", {"phenotypes": ["x"]}, "line 2: column 'x' is not numeric, it holds 'u'; .* another"),
        ("genotype,x\nA,1\n", {"delimiter": "::"}, "the delimiter '::' is not one; use tab, comma, semicolon"),
        ("genotype,x\nA,1\n", {"join": "&"}, "--join '&' is not known; use"),
        ("gene_a,gene_b,x\nA,B,1\n,NA,2\n", {}, "data row 2: the genotype is empty; write WT for the wild type"),
        ("# only\n# comments\n", {}, "holds nothing but comments"),
        ("genotype,x\nA,1\nB,2,3\n", {}, "line 3: it has 3 fields instead of 2"),
    ],
)
def test_what_is_unclear_is_refused_with_the_option(text: str, options: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(KnockgraphError, match=message) as caught:
        read(tmp_path, text, **options)
    assert "\n" not in str(caught.value)
    assert "my.csv" in str(caught.value) or options


def test_two_delimiters_that_fit(tmp_path: Path) -> None:
    text = "a;b,c;d\nx;y,z;5\n"
    with pytest.raises(
        FileFormatError, match=r"at more than one sign \(comma, semicolon\); choose with --delimiter comma"
    ):
        read(tmp_path, text.replace("5", "w"), "my.txt")
    screen, _ = read(tmp_path, text, "my.txt", delimiter="semicolon", genes=["a"], phenotypes=["d"])
    assert pairs(screen) == [(("x",), 5.0)]


def test_the_choice_settles_what_was_unclear(tmp_path: Path) -> None:
    assert pairs(read(tmp_path, "genotype;x\nA;1,234\n", decimal="comma")[0]) == [(("A",), 1.234)]
    assert pairs(read(tmp_path, "genotype;x;y\nA;0,5;0.5\n", phenotypes=["y"])[0]) == [(("A",), 0.5)]
    assert list(read(tmp_path, "genotype,x\nA B,1\nC/D,2\n", join="/")[0].genotypes) == [("A B",), ("C", "D")]
    assert list(read(tmp_path, "genotype,x\nA B,1\nC/D,2\n", join="space")[0].genotypes) == [("A", "B"), ("C/D",)]


def test_doses_stay(tmp_path: Path) -> None:
    screen, _ = read(tmp_path, "genotype;x\nYAL001C=0,3+YBR002W;0,5\nYAL001C = 2;1\nwild type;0,0\n")
    assert list(screen.genotypes) == [("YAL001C=0.3", "YBR002W"), ("YAL001C=2",), ()]
    screen, _ = read(tmp_path, "gene_a,gene_b,x\nYAL001C=0.3,YBR002W,0.5\n")
    assert list(screen.genotypes) == [("YAL001C=0.3", "YBR002W")]


def test_a_late_cell_that_is_no_number(tmp_path: Path) -> None:
    text = "genotype,x\n" + "A,1\n" * 3000 + "B,high\n"
    with pytest.raises(
        ScreenError, match=r"my\.csv, line 3002: column 'x' is not numeric, it holds 'high'; correct it, or"
    ):
        read(tmp_path, text)


def test_untidy_tables_of_a_graph(tmp_path: Path) -> None:
    write(tmp_path, "# my genes\nORF;Standard name;Alias\nYAL001C;TFC3;x|y\nYBR002W;;\n", "genes.csv")
    (tmp_path / "relations").mkdir()
    write(tmp_path, "Gene A;Gene B;Weight\nYAL001C;YBR002W;0,83\n", "relations/physical.csv")
    write(tmp_path, "Source Target\nTFC3   YBR002W\n", "relations/regulatory.txt")
    graph = read_graph(tmp_path)
    assert graph.genes.aliases == {"YAL001C": ("TFC3", "x", "y")}
    physical = graph.relations["physical"]
    assert physical.edge_index.tolist() == [[0, 1], [1, 0]]
    assert physical.weight is not None
    np.testing.assert_allclose(physical.weight, [0.83, 0.83])
    assert graph.relations["regulatory"].edge_index.tolist() == [[0], [1]]
    write(tmp_path, "Gene A;Gene B;Weight\nYAL001C;YBR002W;0,83\nYAL001C;YAL001C;high\n", "relations/physical.csv")
    with pytest.raises(
        KnockgraphError, match=r"physical\.csv, line 2: column 'Weight' is not numeric, it holds '0,83'"
    ):
        read_graph(tmp_path)


# ── Arrow, pandas, Excel ─────────────────────────────────────────────────────────────────────────────────────────────


def test_arrow_and_dataframes(tmp_path: Path) -> None:
    import pandas as pd

    columns = {
        "Gene_A": ["YAL001C", "YCL003W"],
        "Gene_B": ["YBR002W", None],
        "score": [-0.31, 0.5],
        "ok": [True, False],
    }
    frame = pd.DataFrame(columns)
    arrow = pa.table(columns)
    for table in (arrow, frame, frame.set_index(["Gene_A", "Gene_B"]), columns):
        screen, reading = read_table(table)
        assert pairs(screen) == EXPECTED
        assert screen.source_names == ("table",)
        assert reading.layout is not None
        assert reading.layout.aside == {"ok": "text"}
    pq.write_table(arrow, tmp_path / "my.parquet")
    assert read_table(tmp_path / "my.parquet")[0].genotypes == screen.genotypes
    texts = arrow.set_column(2, "score", pa.array(["-0,31", "0,5"]).dictionary_encode())
    assert pairs(read_table(texts)[0]) == EXPECTED
    assert read_table(texts.append_column("x", pa.array([["A"], []])), TableOptions(genes=["x"]))[0].genotypes[0] == (
        "A",
    )
    ids = pa.table({"gene 1": pa.array([12, 7]), "gene 2": pa.array([3.0, None]), "score": [1.0, 2.0]})
    assert list(read_table(ids)[0].genotypes) == [("12", "3"), ("7",)]


def test_what_is_no_table() -> None:
    with pytest.raises(FileFormatError, match="int cannot be read as a table"):
        read_table(3)
    with pytest.raises(ScreenError, match="the table has a header but no experiments"):
        read_table(pa.table({"genotype": pa.array([], pa.string()), "x": pa.array([], pa.float64())}))


def test_systematic_names_are_taken_where_both_are_given(tmp_path: Path) -> None:
    """Many genes have no other name."""
    screen, _ = read(tmp_path, "Gene,ORF,fitness\nTFC3,YAL001C,0.8\n,YAL004W,0.7\n")
    assert list(screen.genotypes) == [("YAL001C",), ("YAL004W",)]


REPLICATES = "Query,Array,Size,Fitness rep 1,Fitness rep 2,fitness_rep3\nA,B,3,0.5,0.7,\nA,C,4,n.d.,,\nB,C,5,1,2,3\n"


def test_replicates_are_one_phenotype(tmp_path: Path) -> None:
    screen, reading = read(tmp_path, REPLICATES)
    assert list(screen.phenotypes) == ["Size", "Fitness"]
    np.testing.assert_allclose(screen.phenotypes["Fitness"], [0.6, np.nan, 2.0])
    expected = [np.std([0.5, 0.7], ddof=1) / 2**0.5, np.nan, 1 / 3**0.5]
    np.testing.assert_allclose(screen.statistics["Fitness"]["sem"], expected)
    assert "  phenotypes: Size, Fitness (the mean of Fitness rep 1, Fitness rep 2 and fitness_rep3)" in str(reading)
    assert reading.as_dict()["replicates"] == {"Fitness": ["Fitness rep 1", "Fitness rep 2", "fitness_rep3"]}


@pytest.mark.parametrize(
    ("header", "options", "expected"),
    [
        ("Fitness rep 1,Fitness rep 2", {"phenotypes": ["fitness"]}, {"Fitness": [0.6, 2.0]}),
        ("Fitness rep 1,Fitness rep 2", {"phenotypes": ["Fitness rep 2"]}, {"Fitness rep 2": [0.7, 3.0]}),
        (
            "Fitness rep 1,Fitness rep 2",
            {"phenotypes": ["Fitness rep 2,Fitness"]},
            {"Fitness rep 2": [0.7, 3.0], "Fitness": [0.6, 2.0]},
        ),
        ("Fitness,Fitness rep 1", {}, {"Fitness": [0.5, 1.0], "Fitness rep 1": [0.7, 3.0]}),
        ("repression 1,repression 2", {}, {"repression 1": [0.5, 1.0], "repression 2": [0.7, 3.0]}),
        ("x rep 1,y rep 1", {}, {"x rep 1": [0.5, 1.0], "y rep 1": [0.7, 3.0]}),
        ("Replicate A size,Replicate B size", {}, {"size": [0.6, 2.0]}),
        ("f (repeat 1),f (repeat 2)", {}, {"f": [0.6, 2.0]}),
    ],
)
def test_what_is_a_replicate(
    tmp_path: Path, header: str, options: dict[str, object], expected: dict[str, list[float]]
) -> None:
    screen, _ = read(tmp_path, f"genotype,{header}\nA+B,0.5,0.7\nA,1,3\n", **options)
    assert {name: values.tolist() for name, values in screen.phenotypes.items()} == expected


def test_a_replicate_with_a_statistic_of_its_own(tmp_path: Path) -> None:
    screen, _ = read(tmp_path, "genotype,f rep 1,f rep 1 sd,f rep 2,f rep 2 sd\nA+B,0.5,0.1,0.7,0.2\n")
    assert list(screen.phenotypes) == ["f rep 1", "f rep 2"]
    assert screen.statistics["f rep 2"]["std"].tolist() == [0.2]


def workbook(path: Path, **sheets: list[list[object]]) -> Path:
    """A minimal workbook, as the format's standard describes it."""
    from xml.sax.saxutils import escape

    def cell(value: object) -> str:
        if value is None:
            return "<c/>"
        if isinstance(value, datetime.date):
            return f'<c s="1"><v>{(value - datetime.date(1899, 12, 30)).days}</v></c>'
        if isinstance(value, int | float):
            return f"<c><v>{value}</v></c>"
        return f'<c t="inlineStr"><is><t>{escape(str(value))}</t></is></c>'

    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    rels = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    listed = "".join(f'<sheet name="{n}" sheetId="{k}" r:id="r{k}"/>' for k, n in enumerate(sheets, 1))
    targets = "".join(
        f'<Relationship Id="r{k}" Type="{rels}/worksheet" Target="worksheets/sheet{k}.xml"/>'
        for k in range(1, len(sheets) + 1)
    )
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="xml" ContentType="{kinds}'
        f'.sheet.main+xml"/><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.'
        'relationships+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{rels}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{rels}"><sheets>{listed}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">{targets}<Relationship Id="s" '
        f'Type="{rels}/styles" Target="styles.xml"/></Relationships>',
        "xl/styles.xml": f'<styleSheet xmlns="{main}"><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
        "</styleSheet>",
    }
    for k, rows in enumerate(sheets.values(), 1):
        body = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
        parts[f"xl/worksheets/sheet{k}.xml"] = f'<worksheet xmlns="{main}"><sheetData>{body}</sheetData></worksheet>'
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def test_excel(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows = [
        ["Table S1"],
        ["Gene A", "Gene B", "score", "id"],
        ["YAL001C", "YBR002W", -0.31, 7],
        ["YCL003W", None, 0.5, 8],
    ]
    screen, reading = read_table(workbook(tmp_path / "a.xlsx", Scores=rows, Empty=[]))
    assert pairs(screen) == EXPECTED
    assert reading.form == "sheet 'Scores' of an Excel workbook"
    notes = workbook(tmp_path / "n.xlsx", Notes=[["Read me"], ["not plate 9"]], Scores=rows)
    assert pairs(read_table(notes)[0]) == EXPECTED
    assert read_table(notes)[1].form.endswith("workbook, the only one of 2 with columns of genes")
    both = workbook(tmp_path / "b.xlsx", one=rows, two=rows)
    with pytest.raises(FileFormatError, match=r"b\.xlsx has several sheets; choose with --sheet: one or two"):
        read_table(both)
    with pytest.raises(FileFormatError, match=r"b\.xlsx has no sheet 'three'; choose with --sheet: one or two"):
        read_table(both, TableOptions(sheet="three"))
    assert pairs(read_table(both, TableOptions(sheet="two"))[0]) == EXPECTED
    dated = [["genotype", "score"], ["YAL001C", 1], [datetime.date(2026, 10, 1), 2]]
    with pytest.raises(
        FileFormatError, match="data row 2: the spreadsheet holds the date 2026-10-01; if it was a gene"
    ):
        read_table(workbook(tmp_path / "c.xlsx", s=dated))
    (tmp_path / "d.xlsx").write_bytes((tmp_path / "a.xlsx").read_bytes()[:-400])
    with pytest.raises(FileFormatError):
        read_table(tmp_path / "d.xlsx")


def test_a_cell_far_from_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cells in the corners of a sheet, 1 kB: the reader asked for 550 GB and aborted the process."""
    pytest.importorskip("python_calamine")
    monkeypatch.setattr("knockgraph.sources.excel._AT_ONCE", 7)  # tags that stand across two blocks
    rows: list[list[object]] = [["genotype", "score"], ["YAL001C", 1], ["YBR002W", 2]]
    corner = "<row r='1048576'><c r='XFD1048576'><v>1</v></c></row>"
    inside = '<row r="3"><c/><c t="n"><v>3</v></c></row>'
    for name, row in (("far", corner), ("near", inside)):
        path = workbook(tmp_path / f"{name}.xlsx", s=rows)
        with zipfile.ZipFile(path) as archive:
            parts = {member: archive.read(member).decode() for member in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, text in parts.items():
                archive.writestr(member, text.replace("</sheetData>", f"{row}</sheetData>"))
    assert len(read_table(workbook(tmp_path / "plain.xlsx", s=rows))[0]) == 2
    with pytest.raises(
        FileFormatError, match=r"far\.xlsx has a sheet of 1,048,576 × 16,384 cells .*; delete the cells"
    ):
        read_table(tmp_path / "far.xlsx")
    with zipfile.ZipFile(tmp_path / "near.xlsx") as archive:
        assert excel._extent(archive, "xl/worksheets/sheet1.xml") == (3, 2)


def test_excel_without_its_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(
        FileFormatError, match=r"a Excel|is an Excel workbook; save its sheet as CSV .* 'knockgraph\[excel\]'"
    ):
        read_table(workbook(tmp_path / "a.xlsx", s=[["genotype", "x"]]))


REAL = Path(os.environ.get("KNOCKGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.skipif(not REAL.is_dir(), reason="set KNOCKGRAPH_DATA to the folder of the public files")
def test_published_tables_as_they_are() -> None:
    """Without a reader of their own."""
    expected = {
        "collins2007_emap.tsv.gz": ("S", 2),
        "costanzo2016_subset.tsv.gz": ("epsilon", 2),
        "kuzmin2018_trigenic_calls.tsv.xz": ("sig_neg_trigenic", 3),
    }
    for name, (phenotype, genes) in expected.items():
        (file,) = REAL.rglob(name)
        screen, reading = read_table(file, TableOptions(phenotypes=[phenotype]))
        assert reading.layout is not None
        assert len(reading.layout.genes) == genes
        assert len(screen) == reading.kept["experiments"] > 10_000
        assert int(screen.genotypes.size.max()) == genes


# ── properties ───────────────────────────────────────────────────────────────────────────────────────────────────────

GENES = st.sampled_from(["YAL001C", "YBR002W-A", "TFC3", "rpl-7", "Q0045", "HO", "SNR18"])
NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 4)) | st.none()


@st.composite
def written_tables(draw: st.DrawFn) -> tuple[bytes, list[tuple[frozenset[str], float | None]]]:
    """A table in a random layout, and the experiments that it holds."""
    rows = draw(st.lists(st.tuples(st.sets(GENES, min_size=1, max_size=3), NUMBERS, NUMBERS), min_size=1, max_size=12))
    comma = draw(st.booleans())
    delimiter = draw(st.sampled_from("\t;|" if comma else "\t;|,"))
    signs = [sign for sign in ("+", ",", "|", ";", " + ", " ", "/") if sign.strip() != delimiter or draw(st.booleans())]
    sign = draw(st.sampled_from(signs))
    columns = draw(st.booleans())
    header = draw(
        st.sampled_from([["gene_a", "gene_b", "gene_c"], ["Gene1", "Gene2", "Gene3"], ["ORF A", "ORF B", "ORF C"]])
    )
    header = header if columns else [draw(st.sampled_from(["genotype", "Genotype", "Perturbation", "genes"]))]
    missing = draw(st.sampled_from(["", "NA", "NaN", "n/a", "null", "-"]))
    text = draw(st.sampled_from(["strain", "remark"]))

    def number(x: float | None) -> str:
        return missing if x is None else repr(x).replace(".", ",") if comma else repr(x)

    table = [[text, *header, "score", "score_sd"]]
    for genes, score, deviation in rows:
        order = draw(st.permutations(sorted(genes)))
        cells = [*order, *[""] * (3 - len(order))] if columns else [sign.join(order)]
        table.append([draw(st.sampled_from(["x", "a b", "é", ""])) or "y", *cells, number(score), number(deviation)])
    out = io.StringIO()
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows(table)
    comment = draw(st.sampled_from(["", f"# a comment{end}", f"% one{end}#two{end}"]))
    encoding = draw(st.sampled_from(["utf-8", "utf-8-sig", "latin-1", "utf-16"]))
    return (comment + out.getvalue()).encode(encoding), [(frozenset(genes), score) for genes, score, _ in rows]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written_tables())
@example((b"strain;genotype;score\nx;A+B;0,5\n", [(frozenset("AB"), 0.5)]))
def test_whatever_is_written_is_read(
    tmp_path: Path, table: tuple[bytes, list[tuple[frozenset[str], float | None]]]
) -> None:
    content, experiments = table
    (tmp_path / "t.txt").write_bytes(content)
    try:
        screen, _ = read_table(tmp_path / "t.txt", TableOptions(phenotypes=["score"], missing="keep"))
    except ScreenError as error:
        if "--decimal comma" not in str(error):  # the only thing that may be unclear in these
            raise
        screen, _ = read_table(tmp_path / "t.txt", TableOptions(phenotypes=["score"], missing="keep", decimal="comma"))
    assert [frozenset(genes) for genes in screen.genotypes] == [genes for genes, _ in experiments]
    np.testing.assert_array_equal(screen.phenotypes["score"], [np.nan if x is None else x for _, x in experiments])


def test_repeated_measurements_are_told(tmp_path: Path) -> None:
    table = tmp_path / "s.csv"
    table.write_text("gene_a,gene_b,score\nA,B,1\nB,A,2\nA,C,3\n")
    assert "1 genotype was measured more than once, in 2 rows; splits keep these together" in str(read_table(table)[1])
    table.write_text("gene_a,gene_b,score\nA,B,1\nA,C,3\n")
    assert "more than once" not in str(read_table(table)[1])


ROWS, COLUMNS = ["YAL001C", "YBR002W"], ["YCL003W", "YDR004C", "YER005W"]
VALUES = [[-0.5, 0.25, 1.0], [2.0, -1.0, 0.5]]
HEADERS = {
    "a second name for each gene": [["", "", *COLUMNS], ["ORF", "Gene", "CCC3", "DDD4", "EEE5"]],
    "clusters": [
        *[["GID", "NAME", "GWEIGHT", *COLUMNS], ["AID", "", "", "ARRY0X", "ARRY1X", "ARRY2X"]],
        ["EWEIGHT", "", "", "1", "1", "1"],
    ],
    "both names": [["Gene", "CCC3 - YCL003W", "DDD4 - YDR004C - DAMP", "EEE5 - YER005W"]],
}
LABELS = {
    "a second name for each gene": lambda k: [ROWS[k], f"ABC{k}"],
    "clusters": lambda k: [f"GENE{k}X", ROWS[k], "1"],
    "both names": lambda k: [f"ABC{k} - {ROWS[k]}"],
}


@pytest.mark.parametrize("kind", HEADERS)
def test_matrices_as_laboratories_write_them(kind: str, tmp_path: Path) -> None:
    lines = [*HEADERS[kind], *([*LABELS[kind](k), *map(str, VALUES[k])] for k in range(2))]
    (tmp_path / "m.txt").write_text("\n".join("\t".join(line) for line in lines), encoding="utf-8")
    screen, reading = read_table(tmp_path / "m.txt", TableOptions(matrix=True))
    expected = {(a, b): VALUES[i][j] for i, a in enumerate(ROWS) for j, b in enumerate(COLUMNS)}
    assert dict(zip(screen.genotypes, screen.phenotypes["score"].tolist(), strict=True)) == expected
    more = len(HEADERS[kind]) - 1
    assert any("below the header" in note for note in reading.notes) == (more > 0)


def test_tables_cut_from_the_public_screens(real: Path, tmp_path: Path) -> None:
    """As their files have them: matrices, standard names, strains, the control HO, several scores."""
    runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tools" / "small_screens.py"))["write"](real, tmp_path)
    known = read_gene_list(real / "genes", ImportReport("genes"))[0]
    found = {path.name: read_table(path, TableOptions(known=known))[0] for path in tmp_path.iterdir()}
    sizes = {name: np.bincount(screen.genotypes.size).tolist() for name, screen in found.items()}
    assert sizes == {
        "matrix.txt": [0, 0, 23797],
        "long.csv": [0, 0, 20566],
        "square.csv": [0, 0, 15505],
        "half.tsv": [0, 0, 9000],
        "classes.tsv": [0, 0, 18152],
        "calls.tsv": [0, 0, 0, 30000],
        "crosses.txt": [0, 0, 5826, 4606],
        "triples.txt": [0, 0, 0, 4606],
    }
    assert list(found["long.csv"].phenotypes) == ["S-score"]
