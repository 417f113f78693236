import gzip
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from knockgraph import CellGraph, FileFormatError, GraphError, KnockgraphError, Screen, ScreenError, UnknownGeneError
from knockgraph.sources import delimited as delimited_file
from knockgraph.sources import table_blocks
from knockgraph.sources.graph_tables import read_arrow, read_graph
from knockgraph.sources.report import ImportReport
from knockgraph.sources.tables import TableOptions, read_genotypes, read_table

Columns = dict[str, list]

GENES: Columns = {"gene": ["A", "B", "C"], "standard": ["TFC3", "", ""], "aliases": ["x| y", "", "z"]}


def read_screen(path: Path) -> Screen:
    return read_table(path, TableOptions(missing="keep"))[0]


def delimited(columns: Columns, delimiter: str) -> str:
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "".join(delimiter.join("" if v is None else str(v) for v in row) + "\n" for row in rows)


def write(path: Path, columns: Columns) -> Path:
    """The same table in the form that the file's name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.name.endswith(".parquet"):
        pq.write_table(pa.table(columns), path)
    else:
        text = delimited(columns, "," if ".csv" in path.name else "\t").encode()
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(text))
    return path


FORMS = [".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".csv.xz", ".tsv.xz", ".parquet"]


def folder(tmp_path: Path, edges: Columns, genes: Columns = GENES, form: str = ".csv") -> Path:
    write(tmp_path / f"genes{form}", genes)
    write(tmp_path / "relations" / f"physical{form}", edges)
    return tmp_path


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", FORMS)
def test_graph_from_every_kind_of_table(form: str, tmp_path: Path) -> None:
    write(tmp_path / "relations" / f"regulatory{form}", {"source": ["x", "b"], "target": ["B", "A"]})
    graph = read_graph(folder(tmp_path, {"source": ["A", "B"], "target": ["TFC3", "C"], "weight": [0.5, 2]}, form=form))
    assert graph.genes.names == ("A", "B", "C")
    assert graph.genes.aliases == {"A": ("TFC3", "x", "y"), "C": ("", "z")}
    assert list(graph.relations) == ["physical", "regulatory"]
    physical = graph.relations["physical"]
    assert physical.edge_index.tolist() == [[0, 1], [0, 2]]
    assert physical.weight is not None
    assert physical.weight.tolist() == [0.5, 2.0]
    assert graph.relations["regulatory"].edge_index.tolist() == [[0, 1], [1, 0]]
    assert graph.relations["regulatory"].weight is None
    graph.save(tmp_path / "g.cellgraph")
    assert CellGraph.load(tmp_path / "g.cellgraph") == graph


def test_undirected_edges_go_both_ways_and_loops_once(tmp_path: Path) -> None:
    edges = {"gene_a": ["A", "C", "B"], "gene_b": ["B", "C", "C"], "weight": [1, 2, 3]}
    relation = read_graph(folder(tmp_path, edges)).relations["physical"]
    assert relation.edge_index.T.tolist() == [[0, 1], [2, 2], [1, 2], [1, 0], [2, 1]]
    assert relation.weight is not None
    assert relation.weight.tolist() == [1.0, 2.0, 3.0, 1.0, 3.0]
    assert relation.symmetric
    assert relation.num_duplicates == 0


def test_an_undirected_edge_given_twice_counts_once(tmp_path: Path) -> None:
    relation = read_graph(folder(tmp_path, {"gene_a": ["A", "B"], "gene_b": ["B", "A"]})).relations["physical"]
    assert relation.edge_index.T.tolist() == [[0, 1], [1, 0]]
    assert relation.num_duplicates == 2


def test_directed_edges_stay_directed(tmp_path: Path) -> None:
    relation = read_graph(folder(tmp_path, {"source": ["A"], "target": ["B"]})).relations["physical"]
    assert relation.edge_index.T.tolist() == [[0, 1]]
    assert not relation.symmetric


def test_only_the_gene_column_is_needed(tmp_path: Path) -> None:
    graph = read_graph(folder(tmp_path, {"source": ["A"], "target": ["B"]}, {"gene": ["A", "B"]}))
    assert graph.genes.aliases == {}


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_a_relation_may_be_empty(form: str, tmp_path: Path) -> None:
    edges = {"source": pa.array([], pa.string()), "target": pa.array([], pa.string())}
    assert read_graph(folder(tmp_path, edges, form=form)).relations["physical"].num_edges == 0


def test_gene_names_that_look_like_numbers_stay_as_written(tmp_path: Path) -> None:
    names = ["007", "7", "1e3", "NA", "nan", "true", "2020-01-01"]
    graph = read_graph(folder(tmp_path, {"source": ["007"], "target": ["7"]}, {"gene": names}))
    assert graph.genes.names == tuple(names)
    assert graph.relations["physical"].edge_index.tolist() == [[0], [1]]


def test_columns_beside_the_known_ones_are_ignored(tmp_path: Path) -> None:
    graph = read_graph(folder(tmp_path, {"pubmed": [1], "target": ["B"], "source": ["A"]}))
    assert graph.relations["physical"].edge_index.tolist() == [[0], [1]]


@pytest.mark.parametrize(
    "genes",
    [
        {"systematic_name": ["A", "B", "C"], "common_name": ["TFC3", "", ""], "aliases": ["x|y", "", "z"]},
        {"id": [1, 2, 3], "ORF": ["A", "B", "C"], "Gene": ["TFC3", "", ""], "Synonyms": ["x; y", "", "z"]},
        {"Symbol": ["TFC3", "", ""], "Locus tag": ["A", "B", "C"], "alias": ["x, y", "", "z"]},
    ],
)
@pytest.mark.parametrize("form", [".tsv", ".parquet"])
def test_gene_lists_with_other_names_of_columns(genes: Columns, form: str, tmp_path: Path) -> None:
    report = ImportReport("tables", brief=True)
    graph = read_graph(folder(tmp_path, {"source": ["tfc3"], "target": ["z"]}, genes, form), report=report)
    assert graph.genes.names == ("A", "B", "C")
    assert graph.genes.aliases == {"A": ("TFC3", "x", "y"), "C": ("", "z")}
    said = "\n".join(report.lines())
    assert f"genes: 3 rows of genes{form} → 3 genes, 2 with other names" in said
    assert "gene from " in said
    assert ("not used: id" in said) == ("id" in genes)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("Interactor A", "Interactor B"), "gene_a from Interactor A, gene_b from Interactor B"),
        (("protein1", "protein2"), "gene_a from protein1, gene_b from protein2"),
        (("regulator", "target"), "source from regulator"),
        (("TF", "Target gene"), "source from TF, target from Target gene"),
    ],
)
@pytest.mark.parametrize("form", [".tsv", ".parquet"])
def test_edges_with_other_names_of_columns(columns: tuple[str, str], said: str, form: str, tmp_path: Path) -> None:
    report = ImportReport("tables", brief=True)
    edges = {"Evidence": ["ms"], columns[0]: ["A"], columns[1]: ["B"], "Weight": [0.5]}
    relation = read_graph(folder(tmp_path, edges, form=form), report=report).relations["physical"]
    undirected = "gene_a" in said
    assert relation.edge_index.T.tolist() == [[0, 1], [1, 0]][: 1 + undirected]
    assert relation.weight is not None
    assert relation.weight.tolist() == [0.5] * (1 + undirected)
    lines = "\n".join(report.lines())
    assert f"note: columns: {said}" in lines
    assert "not used: Evidence" in lines


@pytest.mark.parametrize(
    ("edges", "kind", "text"),
    [
        (
            {"source": ["A", "Q1", "Q2"], "target": ["Q3", "B", "Q1"]},
            UnknownGeneError,
            "physical.csv: 3 names do not resolve among 3 genes: Q1, Q2, Q3; correct them, or .* --unknown drop",
        ),
        ({"source": ["A"], "target": [""]}, UnknownGeneError, r"physical.csv: 1 name does not resolve .*\(blank\)"),
        (
            {"from": ["A"], "to": ["B"]},
            GraphError,
            r"physical.csv needs the columns source,target \(directed\) or .*; it has from and to; rename two of them",
        ),
        ({"source": ["A"], "gene_b": ["B"]}, GraphError, "physical.csv needs the columns source,target"),
        (
            {"source": ["A"], "target": ["B"], "weight": ["high"]},
            KnockgraphError,
            "physical.csv, line 2: column 'weight' is not numeric, it holds 'high'",
        ),
        (
            {"source": ["A", "B"], "target": ["B", "C"], "weight": [1, None]},
            GraphError,
            r"physical\.csv, data row 2: the weight is nan; give it a finite number",
        ),
    ],
)
def test_bad_edges(edges: Columns, kind: type[Exception], text: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=text):
        read_graph(folder(tmp_path, edges))


def test_unknown_genes_are_listed_for_programs_too(tmp_path: Path) -> None:
    with pytest.raises(UnknownGeneError) as caught:
        read_graph(folder(tmp_path, {"gene_a": ["Q1", "A"], "gene_b": ["B", "Q2"]}))
    assert caught.value.names == ("Q1", "Q2")


def test_edges_with_unknown_names_are_dropped_when_asked(tmp_path: Path) -> None:
    edges = {"gene_a": ["A", "A", "Q1", "B"], "gene_b": ["B", "Q1", "Q2", "C"], "weight": [1, 2, 3, 4]}
    report = ImportReport("tables")
    graph = read_graph(folder(tmp_path, edges), "drop", report)
    relation = graph.relations["physical"]
    assert sorted(zip(*relation.edge_index.tolist(), relation.weight.tolist(), strict=True)) == [
        (0, 1, 1.0),
        (1, 0, 1.0),
        (1, 2, 4.0),
        (2, 1, 4.0),
    ]
    _, file = report.files
    assert file.dropped == {"a name that is not in the gene list": 2}
    assert [str(u) for u in file.unresolved] == ["Q1", "Q2"]


@pytest.mark.parametrize("sign", ["+", ",", "|", ";", " + ", " | "])
def test_any_usual_sign_joins_genes(sign: str, tmp_path: Path) -> None:
    """``A|B`` was one gene of that name."""
    (tmp_path / "s.csv").write_text(f'genotype,fitness\n"A{sign}B",1.0\nwt,2.0\n')
    assert list(read_screen(tmp_path / "s.csv").genotypes) == [("A", "B"), ()]


@pytest.mark.parametrize("form", [".csv", ".parquet"])
def test_a_table_without_experiments(form: str, tmp_path: Path) -> None:
    if form == ".csv":
        (tmp_path / "s.csv").write_text("genotype,fitness\n")
    else:
        pq.write_table(
            pa.table({"genotype": pa.array([], pa.string()), "fitness": pa.array([], pa.float64())}),
            tmp_path / "s.parquet",
        )
    for read in (read_screen, read_genotypes):
        with pytest.raises(ScreenError, match=f"s{form} has a header but no experiments"):
            read(tmp_path / f"s{form}")


def test_missing_gene_in_parquet_edges(tmp_path: Path) -> None:
    with pytest.raises(UnknownGeneError, match=r"physical.parquet: 1 name does not resolve .*\(blank\)"):
        read_graph(folder(tmp_path, {"source": ["A", None], "target": ["B", "C"]}, form=".parquet"))


@pytest.mark.parametrize(
    ("genes", "kind", "text"),
    [
        (
            {"name": ["A"]},
            GraphError,
            r"genes.csv has no column 'gene' \(or .*\); it has name; rename",
        ),
        ({"gene": ["A", "B", "A"]}, GraphError, "genes.csv: gene names must be unique.* 'A'"),
        ({"gene": ["A", ""], "standard": ["x", "y"]}, GraphError, "genes.csv: gene 1 has the name ''"),
        ({"gene": []}, GraphError, "at least one gene"),
    ],
)
def test_bad_gene_lists(genes: Columns, kind: type[Exception], text: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=text):
        read_graph(folder(tmp_path, {"source": [], "target": []}, genes))


def test_missing_parts_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"nowhere is not a folder; give the folder that holds genes.csv"):
        read_graph(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match=r"holds no genes.csv \(or .tsv, .csv.gz, .parquet\)"):
        read_graph(tmp_path)
    write(tmp_path / "genes.csv", GENES)
    with pytest.raises(FileFormatError, match="relations holds no relation; put one table per relation there"):
        read_graph(tmp_path)
    (tmp_path / "relations").mkdir()
    (tmp_path / "relations" / "notes.md").write_text("not a table")
    with pytest.raises(FileFormatError, match="relations holds no relation"):
        read_graph(tmp_path)


def test_two_files_of_one_relation_are_not_silently_one(tmp_path: Path) -> None:
    path = folder(tmp_path, {"source": ["A"], "target": ["B"]})
    write(tmp_path / "relations" / "physical.v2.tsv", {"source": ["B"], "target": ["C"]})
    with pytest.raises(FileFormatError, match=r"physical.csv and .*physical.v2.tsv both describe relation 'physical'"):
        read_graph(path)


# ── screens ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SCREEN: Columns = {
    "genotype": ["A+B", "WT", " C + A ", "wt", "B", "A+A"],
    "fitness": [0.5, 1.0, None, 1.25, -2, 3],
    "fitness.std": [0.1, 0.2, 0.3, 0.4, None, 0.6],
    "score": [1, 2, 3, 4, 5, 6],
    "source": ["s1", "s2", "s1", "s1", "", "s2"],
}


@pytest.mark.parametrize("form", FORMS)
def test_screen_from_every_kind_of_table(form: str, tmp_path: Path) -> None:
    screen = read_screen(write(tmp_path / f"screen{form}", SCREEN))
    assert list(screen.genotypes) == [("A", "B"), (), ("A", "C"), (), ("B",), ("A",)]
    assert list(screen.phenotypes) == ["fitness", "score"]
    np.testing.assert_array_equal(screen.phenotypes["fitness"], [0.5, 1.0, np.nan, 1.25, -2.0, 3.0])
    np.testing.assert_array_equal(screen.phenotypes["score"], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(screen.statistics["fitness"]["std"], [0.1, 0.2, 0.3, 0.4, np.nan, 0.6])
    assert [screen.source_names[code] for code in screen.source_codes] == ["s1", "s2", "s1", "s1", "", "s2"]
    assert read_screen(tmp_path) == screen  # a folder that holds screen.*
    screen.save(tmp_path / "saved")
    assert Screen.load(tmp_path / "saved") == screen


def test_source_defaults_to_the_file(tmp_path: Path) -> None:
    screen = read_screen(write(tmp_path / "mine.csv", {"genotype": ["A"], "fitness": [1]}))
    assert screen.source_names == ("mine.csv",)


def test_a_dot_without_its_phenotype_is_a_phenotype(tmp_path: Path) -> None:
    screen = read_screen(write(tmp_path / "s.csv", {"genotype": ["A"], "other.day3": [1]}))
    assert list(screen.phenotypes) == ["other.day3"]
    assert screen.statistics == {}


@pytest.mark.parametrize("name", ["other.std", "P value (two-sided)", "adj.P.Val", "-log10(p)", "n", "t-statistic"])
def test_a_statistic_alone_is_no_phenotype_unless_chosen(name: str, tmp_path: Path) -> None:
    table = write(tmp_path / "s.csv", {"genotype": ["A"], name: [1]})
    with pytest.raises(ScreenError, match=r"no phenotype: by its name, .* is a statistic; if not, choose with --phen"):
        read_screen(table)
    assert list(read_table(table, TableOptions(phenotypes=(name,)))[0].phenotypes) == [name]


def test_statistics_are_known_by_words_within_their_names(tmp_path: Path) -> None:
    columns = {"gene_a": ["A"], "gene_b": ["B"], "Genetic interaction": [-0.5], "Genetic interaction p-value": [0.01]}
    more = {"Interaction FDR (BH)": [0.05], "SD of the interaction": [0.1], "Number of replicates": [4]}
    screen = read_screen(write(tmp_path / "s.csv", {**columns, **more}))
    assert list(screen.phenotypes) == ["Genetic interaction"]
    assert {name: values[0] for name, values in screen.statistics["Genetic interaction"].items()} == {
        **{"p_value": 0.01, "q_value": 0.05, "std": 0.1, "count": 4}
    }


def test_a_phenotype_may_be_all_missing(tmp_path: Path) -> None:
    screen = read_screen(write(tmp_path / "s.csv", {"genotype": ["A", "B"], "fitness": [None, None]}))
    assert np.isnan(screen.phenotypes["fitness"]).all()


def test_windows_line_ends_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes("\ufeffgenotype,fitness\r\nA,1\r\n\r\nB,2\r\n".encode())
    screen = read_screen(tmp_path / "s.csv")
    assert list(screen.genotypes) == [("A",), ("B",)]
    assert screen.phenotypes["fitness"].tolist() == [1.0, 2.0]


def test_genotypes_that_look_like_numbers_stay_as_written(tmp_path: Path) -> None:
    names = ["007", "1e3", "NA", "nan", "2020-01-01"]
    screen = read_screen(write(tmp_path / "s.csv", {"genotype": names, "fitness": [1] * 5, "source": ["01"] * 5}))
    assert list(screen.genotypes) == [(name,) for name in names]
    assert screen.source_names == ("01",)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([["B", "A"], []]),
        pa.array([["B", "A"], []], pa.large_list(pa.string())),
        pa.array(["A+B", "WT"]).dictionary_encode(),
        pa.array(["A+B", "WT"], pa.large_string()),
    ],
)
def test_parquet_genotypes_as_lists_or_texts(column: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"genotype": column, "fitness": [1.0, 2.0]}), tmp_path / "s.parquet")
    assert list(read_screen(tmp_path / "s.parquet").genotypes) == [("A", "B"), ()]


def test_parquet_genotypes_as_numbers_and_fixed_lists(tmp_path: Path) -> None:
    for column in (pa.array([[12, 7]]), pa.array([["12", "7"]], pa.list_(pa.string(), 2)), pa.array(["12+7"])):
        pq.write_table(pa.table({"genotype": column, "fitness": [1.0]}), tmp_path / "s.parquet")
        assert list(read_screen(tmp_path / "s.parquet").genotypes) == [("12", "7")]


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (
            {"who": ["A"], "fitness": [1]},
            "s.csv has no column 'genotype', nor gene_a,gene_b or query,array; it has who, fitness; choose",
        ),
        (
            {"genotype": ["A"]},
            "s.csv has no phenotype, which is a column of numbers, e.g. 'fitness'; add one, or choose",
        ),
        ({"genotype": ["A"], "source": ["x"]}, "s.csv has no phenotype"),
        ({"genotype": ["A", "", "B"], "fitness": [1, 2, 3]}, "s.csv, data row 2: the genotype is empty; write WT for"),
        ({"genotype": ["A", "B", "  "], "fitness": [1, 2, 3]}, "s.csv, data row 3: the genotype is empty"),
        (
            {"genotype": ["A++B"], "fitness": [1]},
            r"s.csv, data row 1: the genotype 'A\+\+B' has an empty gene name; join",
        ),
        ({"genotype": [], "fitness": []}, "s.csv has a header but no experiments; add one row for each"),
        ({"genotype": ["A+"], "fitness": [1]}, r"the genotype 'A\+' has an empty gene name"),
        (
            {"genotype": ["A", "B"], "fitness": [1, "high"]},
            "s.csv, line 3: column 'fitness' is not numeric, it holds 'high'",
        ),
        ({"genotype": ["A"], "fitness": ["true"]}, r"no phenotype, .* \('fitness' holds 'true'\); add one, or choose"),
        ({"genotype": ["A"], "fitness": ["2020-01-01"]}, r"no phenotype, .* \('fitness' holds '2020-01-01'\)"),
        ({"genotype": ["A"], "fitness": ["1_000"]}, r"no phenotype, .* \('fitness' holds '1_000'\)"),
        ({"genotype": ["A"], "fitness": ["inf"]}, "s.csv: column 'fitness' is infinite at experiment 0"),
        ({"genotype": ["A"], ".std": [1]}, "s.csv: '.std' cannot name a phenotype"),
    ],
)
def test_bad_screens(columns: Columns, text: str, tmp_path: Path) -> None:
    with pytest.raises(ScreenError, match=text):
        read_screen(write(tmp_path / "s.csv", columns))


@pytest.mark.parametrize(
    ("genotype", "text"),
    [
        (pa.array([["A"], None]), "s.parquet, data row 2: the genotype is missing; an empty list means the wild"),
        (pa.array([["A"], ["B", None]]), "s.parquet, data row 2: the genotype holds a missing gene name"),
        (pa.array(["A", None]), "s.parquet, data row 2: the genotype is blank; write WT for the wild type"),
        (
            pa.array([{"a": 1}, {"a": 2}]),
            "s.parquet: the column 'genotype' holds struct<a: int64>; give strings or lists",
        ),
    ],
)
def test_bad_parquet_genotypes(genotype: pa.Array, text: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"genotype": genotype, "fitness": [1.0, 2.0]}), tmp_path / "s.parquet")
    with pytest.raises(ScreenError, match=text):
        read_screen(tmp_path / "s.parquet")


# ── broken files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def truncated_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(b"genotype,fitness\n" + b"A,1\n" * 1000)[:-12])


@pytest.mark.parametrize(
    ("name", "spoil", "text"),
    [
        ("s.csv", lambda path: None, "cannot read .*s.csv: there is no such file"),
        ("s.csv", lambda path: path.write_text(""), "s.csv is empty"),
        (
            "s.csv",
            lambda path: path.write_text("genotype,fitness\nA,1\nB,2,3\n"),
            "s.csv, line 3: it has 3 fields instead of 2",
        ),
        ("s.csv", lambda path: path.write_text("genotype,fitness\nA\n"), "s.csv, line 2: it has 1 fields instead of 2"),
        (
            "s.csv",
            lambda path: path.write_bytes(b"genotype,fitness\nA\x9d,1\n"),
            "s.csv has a line that is neither UTF-8 nor Latin-1 text, .*A.*x9d.*; convert the file to UTF-8",
        ),
        ("s.csv", lambda path: path.write_bytes(b"genotype\0,fitness\nA,1\n"), "s.csv is not text, it holds zero"),
        ("s.csv", lambda path: path.write_text("genotype,x,x\nA,1,2\n"), "s.csv has more than one column 'x'; rename"),
        ("s.csv.gz", truncated_gzip, "s.csv.gz is damaged or incomplete .*; get the file again"),
        ("s.parquet", lambda path: path.write_text("genotype,fitness\nA,1\n"), "cannot read .*s.parquet: "),
        ("s.parquet", lambda path: path.write_bytes(b"PAR1" + b"\0" * 64 + b"PAR1"), "cannot read .*s.parquet: "),
    ],
)
def test_malformed_files(name: str, spoil: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    spoil(tmp_path / name)
    for read in (read_arrow, read_screen):
        with pytest.raises(FileFormatError, match=text) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_malformed_edges_name_their_file(tmp_path: Path) -> None:
    path = folder(tmp_path, {"source": ["A"], "target": ["B"]})
    (path / "relations" / "physical.csv").write_text("source,target\nA,B\nA,B,C\n")
    with pytest.raises(FileFormatError, match=r"physical.csv, line 3: it has 3 fields instead of 2"):
        read_graph(path)


def test_a_folder_without_a_screen(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"holds no screen.csv"):
        read_screen(tmp_path)


def test_a_cell_that_is_no_number_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv.xz", {"genotype": ["A", "B", "C"], "fitness": ["1", "2", "high"]})
    with pytest.raises(ScreenError, match=r"s\.csv\.xz, line 4: column 'fitness' is not numeric, it holds 'high'"):
        read_screen(path)
    parquet = write(tmp_path / "s.parquet", {"genotype": ["A", "B"], "fitness": ["1", "high"]})
    with pytest.raises(ScreenError, match=r"s\.parquet, data row 2: column 'fitness' is not numeric, it holds 'high'"):
        read_screen(parquet)


def test_blanks_around_the_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("genotype , fitness,source \n007,1.5,mine\n")
    screen = read_screen(tmp_path / "s.csv")
    assert (screen.genotypes[0], screen.phenotypes["fitness"].tolist()) == (("007",), [1.5])
    (tmp_path / "b.csv").write_text("genotype, fitness\nA,1\nB,high\n")
    with pytest.raises(ScreenError, match=r"b\.csv, line 3: column 'fitness' is not numeric, it holds 'high'"):
        read_screen(tmp_path / "b.csv")


@pytest.mark.parametrize("name", ["s.csv.gz", "s.csv.xz"])
def test_a_table_that_unpacks_without_end_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delimited_file, "_FREE_TEXT", 1 << 16)
    pack = gzip.compress if name.endswith("gz") else lzma.compress
    (tmp_path / name).write_bytes(pack(b"genotype,gene,fitness\n" + b"A,B,1\n" * (1 << 17)))
    for read in (read_screen, read_genotypes, read_arrow):
        with pytest.raises(FileFormatError, match="unpacks to more than 200 times its size"):
            read(tmp_path / name)


def test_a_parquet_file_of_more_rows_than_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.arrow._FREE_ROWS", 1 << 10)
    constant = pa.table({"genotype": pa.array(["A"]).take(pa.array([0] * 100_000)), "fitness": pa.nulls(100_000)})
    pq.write_table(constant, tmp_path / "s.parquet", compression="zstd")
    with pytest.raises(FileFormatError, match=r"s.parquet has 100,000 rows in [\d,]+ bytes"):
        read_screen(tmp_path / "s.parquet")
    with pytest.raises(FileFormatError, match=r"s.parquet has 100,000 rows in [\d,]+ bytes"):
        Screen.load(tmp_path / "s.parquet")


def test_blocks_of_any_size_give_the_same_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    signs = ["+", ",", "|", " + "]
    rows = []
    for k in range(3_000):
        genes = random.choice(list("ABCDEFG"), random.integers(0, 4))
        text = random.choice(signs).join(genes) or random.choice(["WT", "wt", " WT "])
        rows.append(f'"{text}",{k / 8 if k > 900 else k},{"" if k % 7 else k},{random.choice(["x", "y", ""])}')
    (tmp_path / "s.csv").write_text("genotype,fitness,other,source\n" + "\n".join(rows) + "\n")
    whole = read_screen(tmp_path / "s.csv")
    assert len(whole) == 3_000
    assert 0 in whole.genotypes.size
    monkeypatch.setattr(table_blocks, "_BLOCK", 1_000)  # the first blocks hold integers only
    assert read_screen(tmp_path / "s.csv") == whole
    written = pa.table(
        {
            "genotype": list(map(list, whole.genotypes)),
            **whole.phenotypes,
            "source": [whole.source_names[c] for c in whole.source_codes],
        }
    )
    pq.write_table(written, tmp_path / "s.parquet")
    monkeypatch.setattr(table_blocks, "_ROWS", 100)
    assert read_screen(tmp_path / "s.parquet") == whole
    assert read_genotypes(tmp_path / "s.parquet").genotypes == read_genotypes(tmp_path / "s.csv").genotypes
    (tmp_path / "s.csv").write_text("genotype,fitness\n" + "A,1\n" * 2_000 + "B++C,1\n")
    with pytest.raises(ScreenError, match=r"s.csv, data row 2001: the genotype 'B\+\+C' has an empty gene name"):
        read_screen(tmp_path / "s.csv")
    (tmp_path / "s.csv").write_text("genotype,fitness\n" + "A,1\n" * 2_000 + "B,high\n")
    with pytest.raises(ScreenError, match=r"s.csv, line 2002: column 'fitness' is not numeric, it holds 'high'"):
        read_screen(tmp_path / "s.csv")


@pytest.mark.full
def test_the_memory_of_an_import_is_that_of_the_screen(tmp_path: Path) -> None:
    """20 million rows took 16.6 GB, 800 bytes for each; a row of the screen has 28, and some copies are made of it."""
    program = (
        "import sys, pathlib\n"
        "from knockgraph.sources.tables import read_table\n"
        "read_table(pathlib.Path(sys.argv[1]))\n"
        "print(pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
    )
    random = np.random.default_rng(0)
    names = np.array([f"YAL{k:04d}C" for k in range(6_607)])
    peak = {}
    for rows in (300_000, 1_500_000):
        genes = names[random.integers(0, len(names), (3, rows))]
        text = np.char.add(np.char.add(np.char.add(genes[0], "+"), np.char.add(genes[1], "+")), genes[2])
        pa.csv.write_csv(pa.table({"genotype": text, "fitness": random.normal(size=rows)}), tmp_path / "s.csv")
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "s.csv")], capture_output=True, text=True)
        peak[rows] = 1024 * int(done.stdout)
    assert (peak[1_500_000] - peak[300_000]) / 1_200_000 < 200
