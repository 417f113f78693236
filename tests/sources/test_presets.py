"""Presets on a folder of small files with the owners' names and layouts, and on the real ones where they are."""

import gzip
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from source_files import write
from test_networks import TAB3, TFLINK
from test_sgd import LINES, feature
from test_string import DETAILED
from test_yeast_gem import YAML

from knockgraph import CellGraph, FileFormatError, KnockgraphError, Screen, UnknownGeneError, cli
from knockgraph.sources.dango_lambda import zero_weights
from knockgraph.sources.delimited import DelimitedFile
from knockgraph.sources.presets import (
    GraphOptions,
    ScreenOptions,
    build_graph,
    check_names,
    how_to_build,
    import_screen,
    resolver_of,
)
from knockgraph.sources.report import FileReport
from knockgraph.sources.string import combine, read_string
from knockgraph.sources.yeast_scale import yeast_scale_cell

SCORES = "4932.YAL001C 4932.YAL002W 5 0 0 300 900 0 0 900\n4932.YAL001C 4932.YDR134C 0 0 0 0 7 0 0 7\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KNOCKGRAPH_CACHE", str(tmp_path / "cache"))
    raw = tmp_path / "raw"
    write(raw / "genes" / "SGD_features.tab.gz", "\n".join(LINES).replace("YBR003W", "YAL003W") + "\n")
    write(raw / "RegulationTwoColumnTable_Documented_2013927.tsv.gz", "Tfc3;VPS8\nTfc3;REP1\n")
    write(
        raw / "net" / "BIOGRID-ORGANISM-Saccharomyces_cerevisiae_S288c-4.4.240.tab3.txt.xz",
        TAB3 + "1\tYAL001C\tYAL003W\tphysical\t559292\t559292\n",
    )
    write(
        raw / "TFLink_Saccharomyces_cerevisiae_interactions_All_simpleFormat_v1.0.tsv",
        TFLINK + "P\tQ\tVPS8\tTFC3\tNo\n",
    )
    write(raw / "4932.protein.links.detailed.v12.0.txt.gz", DETAILED + SCORES)
    write(raw / "yeast-GEM-9.0.2.yml.gz", YAML)
    return raw


def test_the_yeast_preset(folder: Path) -> None:
    pytest.importorskip("cobra")
    graph, report = build_graph("yeast", folder, GraphOptions(features=["degree"]))
    channels = ["neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database"]
    assert list(graph.relations) == ["regulatory", "physical", "tflink", *(f"string12_0_{c}" for c in channels)]
    assert [r.num_edges for r in graph.relations.values()] == [1, 2, 1, 2, 0, 0, 2, 2, 0]
    assert graph.genes.names == ("YAL001C", "YAL002W", "YAL003W", "YCR004W")
    assert graph.metabolism is not None
    assert graph.metabolism.num_reactions == 6
    assert list(graph.features) == ["degree"]
    found = report.as_dict()
    json.dumps(found)
    regulatory = next(f for f in found["files"] if f["what"] == "regulatory")
    assert regulatory["dropped"] == {"a name does not resolve": 1}
    assert regulatory["unresolved_names"][0]["name"] == "REP1"
    assert regulatory["unresolved_names"][0]["why"] == "R0020C is on the 2-micron plasmid"
    text = "\n".join(report.lines())
    assert "YDR134C: a blocked reading frame (1 row)" in text


def test_options(folder: Path) -> None:
    graph, _ = build_graph("yeast", folder, GraphOptions(metabolism=False, cutoff={"experimental": 901}, plasmid=True))
    assert graph.metabolism is None
    assert graph.relations["string12_0_experimental"].num_edges == 0
    assert graph.relations["regulatory"].num_edges == 2  # REP1 is a gene now
    merged, _ = build_graph("yeast", folder, GraphOptions(metabolism=False, merged=True, weighted=True))
    assert list(merged.relations) == ["regulatory", "physical", "tflink", "string12_0_merged"]
    assert merged.relations["string12_0_merged"].weight is not None
    with pytest.raises(UnknownGeneError, match="REP1: R0020C is on the 2-micron plasmid"):
        build_graph("yeast", folder, GraphOptions(metabolism=False, unknown="error"))


def test_missing_files_are_listed_with_their_addresses(folder: Path) -> None:
    with pytest.raises(
        FileFormatError, match=r"2 of 6 files are missing in .*STRING 12.0, the physical network .*STRING 11.5"
    ) as e:
        build_graph("yeast-lite", folder)
    assert "https://stringdb-downloads.org/download/protein.links.detailed.v11.5/" in str(e.value)
    (folder / "genes" / "SGD_features.tab.gz").unlink()
    with pytest.raises(FileFormatError, match=r"a file is missing in .*SGD: genes, names and positions"):
        build_graph("yeast", folder)
    with pytest.raises(FileFormatError, match=r"the folder .*nowhere does not exist"):
        build_graph("yeast", folder / "nowhere")


def test_two_files_for_one_are_refused(folder: Path) -> None:
    write(folder / "again" / "4932.protein.links.detailed.v12.0.txt", DETAILED + SCORES)
    with pytest.raises(FileFormatError, match=r"several files may be meant by '4932\.protein\.links.* leave one"):
        build_graph("yeast", folder)


def test_screens(folder: Path, tmp_path: Path) -> None:
    emap = write(folder / "collins2007_emap.tsv", "g1\tg2\tS\nYAL001C\tYAL002W\t1\nYAL001C\tREP1\t2\n")
    screen, report = import_screen("collins2007", folder)
    assert len(screen) == 1
    assert report.files[-1].unresolved[0].name == "REP1"
    with pytest.raises(UnknownGeneError, match="1 name does not resolve"):
        import_screen("collins2007", folder, ScreenOptions(unknown="error"))
    alone = write(tmp_path / "alone" / "emap.tsv", emap.read_bytes())
    screen, report = import_screen("collins2007", alone)  # no gene list there
    assert set(screen.genotypes.names) == {"REP1", "YAL001C", "YAL002W"}
    assert "names were taken as written" in report.files[0].notes[0]
    screen, _ = import_screen("collins2007", alone, ScreenOptions(genes=folder))
    assert len(screen) == 1
    cell = tmp_path / "c.cellgraph"
    CellGraph(["YAL001C", "YAL002W"], {}).save(cell)
    screen, _ = import_screen("collins2007", alone, ScreenOptions(genes=cell))
    assert len(screen) == 1
    with pytest.raises(FileFormatError, match=r"a file is missing in .*Costanzo 2016"):
        import_screen("costanzo2016", folder)


def test_tables_of_kuzmin(folder: Path) -> None:
    with pytest.raises(FileFormatError, match="holds no table of Kuzmin 2018"):
        import_screen("kuzmin2018", folder)
    write(folder / "kuzmin2018_digenic_calls.tsv", "orf_a\torf_b\tsign\nYAL001C\tYAL002W\tnegative\n")
    assert list(import_screen("kuzmin2018", folder)[0].phenotypes) == ["interaction_sign"]
    calls = "query_orf1\tquery_orf2\tarray_orf\tsig_neg_trigenic\nYAL001C\tYAL002W\tYAL003W\t1\n"
    write(folder / "kuzmin2018_trigenic_calls.tsv", calls)
    assert list(import_screen("kuzmin2018", folder)[0].phenotypes) == ["significant"]
    sample = (
        "Query Strain ID\tArray Strain ID\tAdjusted genetic interaction score (epsilon or tau)\n"
        "YAL001C+YAL003W_tm1\tYCR004W_dma1\t1\n"
    )
    scored = write(folder / "tau_sga_scored_sample.tsv", sample)
    assert list(import_screen("kuzmin2018", folder)[0].phenotypes) == ["significant"]  # a sample is not the study
    for source, options in ((folder, ScreenOptions(table="scores")), (scored, ScreenOptions(genes=folder))):
        screen, _ = import_screen("kuzmin2018", source, options)
        assert list(screen.genotypes) == [("YAL001C", "YAL003W", "YCR004W")]


def test_small_texts() -> None:
    assert how_to_build(Path("data/yeast.cellgraph")).endswith("--preset yeast --from DIR -o data/yeast.cellgraph'")
    assert how_to_build(Path("my.parquet")) == ""
    check_names(["yeast", "tflink"])
    with pytest.raises(
        KnockgraphError, match=r"no public file 'yeats'; use one of .* or one of the sets yeast, yeast-lite"
    ):
        check_names(["yeats"])


# ── λ ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_lambda_counts_filled_zeros(folder: Path, tmp_path: Path) -> None:
    header = "protein1 protein2 fusion database\n"
    old = write(tmp_path / "4932.protein.links.detailed.v9.1.txt", header + "4932.YAL001C 4932.YAL002W 5 5\n")
    new = write(
        tmp_path / "4932.protein.links.detailed.v11.0.txt",
        header + "4932.YAL001C 4932.YAL002W 5 5\n4932.YAL001C 4932.YAL003W 0 9\n4932.YAL003W 4932.YAL001C 0 9\n",
    )
    found = zero_weights(old, new, resolver_of(folder))
    fusion, database = found.channels
    assert (fusion.filled, fusion.zeros, fusion.zero_weight) == (0, 5, 1.0)  # 4 genes, 6 pairs
    assert (database.filled, database.zeros, database.changed, database.zero_weight) == (1, 5, 0.2, 0.1)
    assert found.zero_weight == {"string11_0_fusion": 1.0, "string11_0_database": 0.1}
    assert found.caution == ""
    assert zero_weights(old, new, resolver_of(folder), touched_only=True).channels[1].zeros == 2
    assert zero_weights(new, old, resolver_of(folder)).caution == ""  # one of three edges is lost
    cut = write(tmp_path / "4932.protein.links.detailed.v12.0.txt", header + "4932.YAL002W 4932.YAL003W 1 1\n")
    assert (
        "a demonstration only: 100% of the edges of 9.1 are not in"
        in zero_weights(old, cut, resolver_of(folder)).caution
    )
    other = write(tmp_path / "4932.protein.links.detailed.v10.txt", "protein1 protein2 coexpression\n")
    with pytest.raises(FileFormatError, match="have no channel in common"):
        zero_weights(old, other, resolver_of(folder))


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command line in this process, in ``tmp_path``: standard output, or standard error if it shall fail."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["knockgraph", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        found = capsys.readouterr()
        assert (ended.value.code or 0) == code, (words, found)
        return found.err if code else found.out

    return call


def test_from_raw_files_to_graph_and_screen(folder: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    write(folder / "collins2007_emap.tsv", "g1\tg2\tS\nYAL001C\tYAL002W\t1\nYAL001C\tREP1\t2\n")
    words = [
        "graph",
        "build",
        "--preset",
        "yeast",
        "--from",
        str(folder),
        "--no-metabolism",
        "--features",
        "degree,spectral",
    ]
    shown = run(*words, "--cutoff", "database=900", "-o", "y.cellgraph", "--json", "b.json")
    assert "dropped 1: a name does not resolve" in shown
    assert json.loads((tmp_path / "b.json").read_text())["files"][1]["what"] == "regulatory"
    shown = run("graph", "info", "y.cellgraph", "--html", "g.html", "--json", "i.json")
    assert "string12_0_coexpression" in shown
    assert "fraction of the row's gene pairs" in shown
    assert "features: degree (11), spectral" in shown
    page = (tmp_path / "g.html").read_text()
    assert page.count("<svg") == 2
    assert not re.search(r'(src|href)="https?:', page)
    words = ["screen", "import", "collins2007", "--from", str(folder), "-o", "c.parquet", "--json", "s.json"]
    assert "REP1: R0020C is on the 2-micron plasmid (1 row)" in run(*words)
    assert len(Screen.load(tmp_path / "c.parquet")) == 1
    assert json.loads((tmp_path / "s.json").read_text())["files"][-1]["read"] == 2
    refused = run(*words, "--unknown", "error", code=1)
    assert refused.startswith("error: ")
    assert "--unknown drop" in refused
    assert "needs --from" in run("screen", "import", "kuzmin2018", "-o", "x", code=1)
    cut = ["graph", "build", "--preset", "yeast", "--from", str(folder), "-o", "x", "--cutoff", "high"]
    assert "--cutoff 'high' must be a score such as 700" in run(*cut, code=1)
    assert "tflink" in run("download")
    assert "no public file 'foo'" in run("download", "foo", code=1)


# ── the real files ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_real_networks(real: Path) -> None:
    graph, report = build_graph("yeast-lite", real, GraphOptions(metabolism=False))
    read = {f.what: f.read for f in report.files}
    assert read["genes"] == 16_454
    assert report.files[0].kept == {"ORFs": 6_604, "genes": 6_600}
    assert read["other names"] == 6_605
    assert read["regulatory"] == 11_486
    assert read["physical"] == 58_260
    assert read["STRING 12.0 physical"] == 352_606
    assert read["STRING 11.5 channels"] == 126_618
    physical = graph.relations["string12_0_physical"]
    assert (physical.num_edges, physical.num_genes_touched, physical.symmetric) == (352_606, 5_925, True)
    regulators = DelimitedFile(real / "networks" / "yeastract_2019_regulatory.tsv.gz")
    assert len({fields[0] for _, fields in regulators.rows()}) == 152
    assert graph.num_genes == 6_600
    edges = {name: r.num_edges for name, r in graph.relations.items()}
    assert edges == {
        "regulatory": 11_350,
        "physical": 115_884,
        "string12_0_physical": 352_606,
        "string11_5_neighborhood": 15_312,
        "string11_5_fusion": 982,
        "string11_5_cooccurence": 2_456,
        "string11_5_coexpression": 108_612,
        "string11_5_experimental": 96_374,
        "string11_5_database": 58_462,
    }


def test_the_cell_of_dango(folder: Path) -> None:
    only = folder / "string"
    only.mkdir()
    (only / "SGD_features.tab.gz").write_bytes((folder / "genes" / "SGD_features.tab.gz").read_bytes())
    header = "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database\n"
    rows = "4932.YAL001C 4932.YAL002W 1 2 3 4 5 6\n4932.YAL001C 4932.YAL003W 0 0 0 0 7 0\n"
    write(only / "4932.protein.links.detailed.v9.1.txt", header + rows)
    write(only / "4932.protein.links.detailed.v11.0.txt", "protein1 protein2 fusion\n4932.YAL001C 4932.YAL002W 5\n")
    graph, report = build_graph("dango-string9_1", only)
    channels = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
    assert list(graph.relations) == [f"string9_1_{name}" for name in channels]
    assert graph.relations["string9_1_experimental"].num_edges == 4
    assert graph.metabolism is None
    assert report.files[-1].notes == []
    graph, report = build_graph("dango-string11_0", only)
    assert list(graph.relations) == ["string11_0_fusion"]
    assert report.files[-1].notes == [
        "the file lacks 5 of the six channels: neighborhood, cooccurence, coexpression, experimental, database"
    ]
    with pytest.raises(KnockgraphError, match=r"string12\.0-channels|v12\.0"):
        build_graph("dango-string12_0", only)
    write(only / "4932.protein.links.detailed.v12.0.txt.gz", DETAILED + SCORES)
    graph, report = build_graph("dango-string12_0", only)
    assert {name: relation.num_edges for name, relation in graph.relations.items()} == {
        **{f"string12_0_{name}": 0 for name in channels},
        "string12_0_neighborhood": 2,
        "string12_0_coexpression": 2,
        "string12_0_experimental": 2,
    }
    assert report.files[-1].dropped == {"a name does not resolve": 1}


def test_real_cell_of_dango(real: Path) -> None:
    graph, report = build_graph("dango-string9_1", real)
    edges = {name: relation.num_edges for name, relation in graph.relations.items()}
    assert edges == {
        "string9_1_neighborhood": 91_202,
        "string9_1_fusion": 2_716,
        "string9_1_cooccurence": 5_318,
        "string9_1_database": 66_972,
    }
    assert report.files[-1].notes == ["the file lacks 2 of the six channels: coexpression, experimental"]
    # torchcell's notes give its cell graph of STRING 9.1, which has every pair once and a loop at each of 6,607 genes.
    published = {"neighborhood": 52_208, "fusion": 7_965, "cooccurence": 9_266, "database": 40_093}
    assert {name: edges[f"string9_1_{name}"] // 2 + 6_607 for name in published} == published


def as_release(real: Path, folder: Path, release: str) -> Path:
    """Real channels (of STRING 11.5, strong links only) in a file with the name and columns of another release."""
    (known,) = (real / "string").glob("4932.protein.links.detailed.v11.5*")
    made = folder / f"4932.protein.links.detailed.v{release}.txt.gz"
    with gzip.open(known, "rt") as old, gzip.open(made, "wt") as new:
        new.write(f"{old.readline().strip()} textmining combined_score\n")
        new.writelines(f"{line.strip()} 0 900\n" for line in old)
    shutil.copy(real / "genes" / "SGD_features.tab.gz", folder)
    return folder


@pytest.mark.parametrize("release", [pytest.param("11.0", marks=pytest.mark.full), "12.0"])
def test_real_cell_of_dango_in_the_layout_of_later_releases(real: Path, tmp_path: Path, release: str) -> None:
    name = f"string{release.replace('.', '_')}"
    graph, report = build_graph(f"dango-{name}", as_release(real, tmp_path, release))
    assert {relation: found.num_edges for relation, found in graph.relations.items()} == {
        f"{name}_neighborhood": 15_312,
        f"{name}_fusion": 982,
        f"{name}_cooccurence": 2_456,
        f"{name}_coexpression": 108_612,
        f"{name}_experimental": 96_374,
        f"{name}_database": 58_462,
    }
    assert report.files[-1].notes == []


@pytest.mark.full
def test_dango_runs_on_its_real_cell(real: Path, tmp_path: Path, command: Callable[..., tuple[str, str]]) -> None:
    """Build, import, train, evaluate: torchcell's run on STRING 12.0 and its empty twin, a few steps of each."""
    raw, cell, screen = as_release(real, tmp_path, "12.0"), tmp_path / "my.cellgraph", tmp_path / "my.parquet"
    command("graph", "build", "--preset", "dango-string12_0", "--from", raw, "-o", cell)
    scores = tmp_path / "scores"
    scores.mkdir()
    shutil.copy(real / "interactions" / "tau_sga_scored_sample.tsv.gz", scores)
    command(
        *("screen", "import", "kuzmin2018", "--table", "scores", "--from", scores, "--genes", raw, "-o", screen),
    )
    short = ["trainer=default", "trainer.accelerator=cpu", "trainer.max_epochs=1", "data.split.subset=200"]
    for preset in ("torchcell-dango-string12_0", "torchcell-dango-string12_0-empty"):
        words = [f"preset={preset}", f"data.cell={cell}", f"data.screen={screen}", f"run_dir={tmp_path / preset}"]
        command("train", *words, *short, "trainer.baselines=[mean]", "trainer.progress_bar=false")
        out, _ = command("evaluate", tmp_path / preset)
        assert ("nothing to compare" in out) == preset.endswith("empty")


@pytest.mark.full
def test_cell_of_dango_of_full_size(tmp_path: Path) -> None:
    """The six channels of the yeast-scale cell, written as STRING 12.0 publishes them, come back edge for edge."""
    cell = yeast_scale_cell()
    names = cell.genes.names
    write(tmp_path / "SGD_features.tab.gz", "\n".join(feature("ORF", name) for name in names) + "\n")
    channels = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
    scores = Counter()
    for place, channel in enumerate(channels):
        for edge in cell.relations[f"string12_0_{channel}"].edge_index.t().tolist():
            scores[tuple(edge)] |= 1 << place
    with gzip.open(tmp_path / "4932.protein.links.detailed.v12.0.txt.gz", "wt", compresslevel=1) as file:
        file.write(f"protein1 protein2 {' '.join(channels)} textmining combined_score\n")
        for (a, b), bits in scores.items():
            if a != b:
                found = " ".join(str(400 * (bits >> place & 1)) for place in range(6))
                file.write(f"4932.{names[a]} 4932.{names[b]} {found} 0 400\n")
    graph, _ = build_graph("dango-string12_0", tmp_path)
    assert graph.genes.names == names
    for channel in channels:
        expected, found = (g.relations[f"string12_0_{channel}"].edge_index for g in (cell, graph))
        expected = expected[:, expected[0] != expected[1]]
        assert torch.equal(found.unique(dim=1), expected.unique(dim=1)), channel


def test_real_string_channels_against_plain_python(real: Path) -> None:
    path = real / "string" / "4932.protein.links.detailed.v9.1.four-channels.txt.gz"
    names = ["neighborhood", "fusion", "cooccurence", "database"]
    count = dict.fromkeys(names, 0)
    for _, fields in DelimitedFile(path, " ").rows():
        for name, score in zip(names, fields[2:], strict=True):
            count[name] += score != "0"
    assert count == {"neighborhood": 91_220, "fusion": 2_722, "cooccurence": 5_328, "database": 66_972}
    resolve = resolver_of(real)
    found = read_string(path, resolve, FileReport("s", path))
    lost = {  # directed entries with one of two names that SGD no longer has as genes
        "neighborhood": 18,
        "fusion": 6,
        "cooccurence": 10,
        "database": 0,
    }
    assert {name: count[name] - found[name].shape[1] for name in names} == lost


def test_real_combined_scores_follow_the_formula(real: Path) -> None:
    path = real / "string" / "4932.protein.physical.links.full.v12.0.txt.gz"
    file = DelimitedFile(path, " ")
    parts = [c for c in file.columns[3:] if c != "combined_score"]
    for batch in file.batches(dict.fromkeys([*parts, "combined_score"], "integer")):
        own = batch.column("combined_score").to_numpy()
        made = combine([batch.column(c).to_numpy() for c in parts])
        assert np.abs(made - own).max() <= 1.001  # the file's scores are whole numbers


def test_real_screens(real: Path) -> None:
    screen, report = import_screen("collins2007", real)
    emap = report.files[-1]
    assert emap.read == 186_500
    assert {u.name: u.rows for u in emap.unresolved} == {"REP1": 328, "YDR134C": 434}
    assert len(screen) == 186_500 - 328 - 434
    values = screen.phenotypes["gene_interaction"]
    assert (round(values.min(), 1), round(values.max(), 1)) == (-21.9, 14.6)
    with pytest.raises(UnknownGeneError, match=r"2 names do not resolve among 6,600 genes: YDR134C: .*, REP1: R0020C"):
        import_screen("collins2007", real, ScreenOptions(unknown="error"))

    screen, _ = import_screen("costanzo2016", real)
    assert (len(screen), len(screen.genotypes.names)) == (18_152, 259)

    screen, report = import_screen("kuzmin2018", real)
    calls = report.files[-1]
    assert calls.read == 200_799
    assert calls.dropped == {"linked: the array gene lies within 200 kb of a query gene": 12_184}
    assert (len(screen), len(screen.genotypes.names), len(screen.source_names)) == (188_615, 1_380, 170)
    assert screen.phenotypes["significant"].sum() == 3_192
    whole, _ = import_screen("kuzmin2018", real, ScreenOptions(linked="mark"))
    assert len(whole) == 200_799

    screen, _ = import_screen("kuzmin2018", real, ScreenOptions(table="digenic-calls"))
    assert len(screen) == 14_046
    screen, _ = import_screen("kuzmin2018", real, ScreenOptions(table="scores", linked="mark"))
    assert (len(screen), int((screen.genotypes.size == 3).sum())) == (10_432, 4_606)


def test_real_positions_give_the_published_linkage(real: Path) -> None:
    """The grid's own column, made by others, against distances computed from SGD's positions."""
    from knockgraph.sources.presets import read_gene_list
    from knockgraph.sources.report import ImportReport

    genes, _, linkage = read_gene_list(real, ImportReport("x"))
    index = {name: i for i, name in enumerate(genes.names)}
    path = real / "interactions" / "kuzmin2018_trigenic_calls.tsv.xz"
    fields = [f for _, f in DelimitedFile(path).rows()]
    first, second, array = (np.array([index[f[k]] for f in fields]) for k in range(3))
    near = linkage.linked(first, array) | linkage.linked(second, array)
    assert (near == np.array([f[4] == "1" for f in fields])).all()


def test_real_lambda_is_labelled_a_demonstration(real: Path) -> None:
    old = real / "string" / "4932.protein.links.detailed.v9.1.four-channels.txt.gz"
    new = real / "string" / "4932.protein.links.detailed.v11.5.combined900.txt.gz"
    found = zero_weights(old, new, resolver_of(real))
    assert [c.channel for c in found.channels] == ["neighborhood", "fusion", "cooccurence", "database"]
    assert "a demonstration only" in found.caution
    assert all(c.filled <= c.new_pairs and c.zeros == 6600 * 6599 // 2 - c.old_pairs for c in found.channels)


@pytest.mark.full
def test_real_metabolism(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cobra")
    monkeypatch.setenv("KNOCKGRAPH_CACHE", str(tmp_path))
    graph, report = build_graph("yeast-lite", real, GraphOptions(features=["degree", "spectral"]))
    m = graph.metabolism
    assert m is not None
    assert (m.num_reactions, m.num_reactions_with_genes, m.num_gpr) == (7_122, 4_881, 5_450)
    assert (m.num_metabolites, m.num_rmr, int(m.w_growth.sum())) == (2_806, 26_325, 10)
    assert report.files[-1].read == 4_131
    again, _ = build_graph("yeast-lite", real, GraphOptions(features=["degree", "spectral"]))
    assert again == graph


def test_without_a_folder_the_files_are_fetched(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole preset through a local server that holds the owners' files."""
    import threading
    from dataclasses import replace
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    from knockgraph.cli.graph import _build
    from knockgraph.sources import catalogue
    from knockgraph.sources.folder import gather

    pytest.importorskip("cobra")
    found = gather(folder, catalogue.chosen(["yeast"]))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    local = f"http://127.0.0.1:{server.server_address[1]}"
    files = [
        replace(f, url=f"{local}/{found[f.name].relative_to(folder)}", file=found[f.name].name)
        if f.name in found
        else f
        for f in catalogue.FILES
    ]
    monkeypatch.setattr(catalogue, "FILES", tuple(files))
    try:
        graph, _ = _build("yeast", None, GraphOptions())
        assert graph == build_graph("yeast", folder)[0]
        kept = tmp_path / "cache" / "downloads"
        assert len(list(kept.iterdir())) == 7  # six files and the list of them
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    again, _ = _build("yeast", None, GraphOptions())  # from what is there
    assert again == graph
