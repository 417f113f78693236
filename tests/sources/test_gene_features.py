"""CYC2008, YeastPhenome and the Gene Ontology: small files as their owners lay them out, and the preset of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from source_files import write
from test_networks import TAB3
from test_sgd import LINES

from knockgraph import FileFormatError, UnknownGeneError
from knockgraph.sources import yeastphenome
from knockgraph.sources.cyc2008 import read_complexes
from knockgraph.sources.go import read_annotations
from knockgraph.sources.names import NameResolver
from knockgraph.sources.presets import GraphOptions, build_graph
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.yeastphenome import read_phenotypes

Resolver = Callable[..., NameResolver]
COMPLEXES = (
    "ORF\tName\tComplex\tPubMed_id\tMethod\n"
    'YAL001C\tTFC3\tfirst complex\t1\t"a,b"\nYAL002W\tVPS8\tfirst complex\nYAL003W\tEFB1\tfirst complex\n'
    "YAL001C\tTFC3\tsecond\nYAL002W\tVPS8\tsecond\nYXX001C\tNONE\tsecond\n"
)


def test_complexes_are_weighted_by_shared_memberships(tmp_path: Path, resolver: Resolver) -> None:
    path = write(tmp_path / "CYC2008_complex.tab.gz", COMPLEXES)
    report = FileReport("complexes", path)
    index, weight = read_complexes(path, resolver("drop"), report)
    found = dict(zip(map(tuple, index.T.tolist()), weight.tolist(), strict=True))
    assert found == pytest.approx(
        {(0, 1): 1.0, (1, 0): 1.0} | dict.fromkeys([(0, 2), (2, 0), (1, 2), (2, 1)], 0.5**0.5)
    )
    assert report.read == 6
    assert report.kept == {"complexes": 2, "pairs": 3}
    assert report.dropped == {"a name does not resolve": 1}
    assert [(u.name, u.rows) for u in report.unresolved] == [("YXX001C", 1)]
    with pytest.raises(UnknownGeneError, match="1 name does not resolve among 5 genes: YXX001C"):
        read_complexes(path, resolver(), report)


@pytest.mark.parametrize("row", ["YAL001C\tTFC3", "YAL001C\tTFC3\t "])
def test_a_row_without_a_complex_is_refused(tmp_path: Path, resolver: Resolver, row: str) -> None:
    path = write(tmp_path / "CYC2008_complex.tab", f"ORF\tName\tComplex\n{row}\n")
    with pytest.raises(FileFormatError, match=r"line 2: it names no complex; correct or remove the line"):
        read_complexes(path, resolver(), FileReport("complexes", path))


def test_phenotypes(tmp_path: Path, resolver: Resolver) -> None:
    text = "orf\thom | growth | UVB\tfew\nYAL001C\t0.5\t\nYAL002W\t-9\t\nYAL003W\t\t\nTFC3\t1.5\t\nYNO001C\t3\t7\n"
    paper = write(tmp_path / "someone_2001_valuez.txt", text)
    second = write(tmp_path / "other_2002_valuez.txt", "orf\tx\nYAL003W\t2\nYBR004C\t1\n")
    report = ImportReport("yeast-clean")
    found = read_phenotypes([paper, second], resolver("drop"), report)
    assert found is not None
    # The mean of two rows of one gene; cut at 6; 0 where nothing was measured; 'few' has no gene of the list.
    assert found.tolist() == [[1.0, 0.0], [-6.0, 0.0], [0.0, 2.0], [0.0, 1.0], [0.0, 0.0]]
    assert report.files[0].kept == {"conditions": 1, "genes": 2}
    assert report.files[0].notes == ["left out: 1 conditions tested on fewer than 2 genes"]
    assert report.files[0].dropped == {"a name does not resolve": 1}
    assert read_phenotypes([], resolver(), report) is None
    empty = write(tmp_path / "empty_valuez.txt", "orf\n")
    with pytest.raises(FileFormatError, match="has no column beside 'orf'; is it a table of phenotypes"):
        read_phenotypes([empty], resolver(), report)
    bad = write(tmp_path / "bad_valuez.txt", "orf\tx\nYAL003W\thigh\n")
    with pytest.raises(FileFormatError, match="line 2: 'x' is 'high', but a number is needed"):
        read_phenotypes([bad], resolver(), report)
    assert yeastphenome.FEWEST_GENES == 1000


def annotation(gene: str, term: str, evidence: str = "IDA", qualifier: str = "involved_in") -> str:
    fields = ["SGD", "S1", gene, qualifier, term, "PMID:1", evidence, "", "P", "", f"{gene}|other", "gene", "taxon:1"]
    return "\t".join([*fields, "20200101", "SGD", "", ""]) + "\n"


def test_annotations_leave_genetic_interactions_out(tmp_path: Path, resolver: Resolver) -> None:
    text = "!gaf-version: 2.2\n" + "!\n" * 60
    text += annotation("YAL001C", "GO:1") + annotation("VPS8", "GO:1", "IMP") + annotation("YAL003W", "GO:1", "IGI")
    text += annotation("YAL003W", "GO:1", "HGI") + annotation("YBR004C", "GO:1", qualifier="NOT|involved_in")
    text += annotation("YAL003W", "GO:2") + annotation("YAL003W", "GO:3", "ND") + annotation("YNO001C", "GO:1")
    path = write(tmp_path / "sgd.gaf.gz", text)
    report = FileReport("Gene Ontology", path)
    found = read_annotations(path, resolver("drop"), report, range(2, 5))
    assert found is not None
    assert found.tolist() == [[1.0], [1.0], [0.0], [0.0], [0.0]]
    assert report.read == 8
    assert report.dropped == {
        "evidence by genetic interactions": 2,
        "the gene does not have the term": 1,
        "no evidence": 1,
        "not a gene of the list": 1,
    }
    assert (
        read_annotations(path, resolver("drop"), FileReport("Gene Ontology", path)) is None
    )  # all terms are too small
    short = write(tmp_path / "short.gaf", annotation("YAL001C", "GO:1") + "SGD\tS1\n")
    with pytest.raises(FileFormatError, match="line 2: it has 2 fields instead of 17"):
        read_annotations(short, resolver("drop"), report)


PHYSICAL = (
    "protein1 protein2 homology experiments combined_score\n4932.YAL001C 4932.YAL002W 0 400 600\n"
    "4932.YAL002W 4932.YAL001C 0 400 600\n"
)


def test_the_clean_preset(tmp_path: Path) -> None:
    write(tmp_path / "SGD_features.tab.gz", "\n".join(LINES).replace("YBR003W", "YAL003W") + "\n")
    write(tmp_path / "RegulationTwoColumnTable_Documented_2013927.tsv.gz", "Tfc3;VPS8\n")
    biogrid = TAB3 + "1\tYAL001C\tYAL003W\tphysical\t559292\t559292\n2\tYAL001C\tYAL002W\tgenetic\t559292\t559292\n"
    write(tmp_path / "BIOGRID-ORGANISM-Saccharomyces_cerevisiae_S288c-4.4.240.tab3.txt", biogrid)
    write(tmp_path / "4932.protein.physical.links.full.v12.0.txt.gz", PHYSICAL)
    write(tmp_path / "CYC2008_complex.tab", COMPLEXES)
    graph, _ = build_graph("yeast-clean", tmp_path, GraphOptions(metabolism=False))
    assert list(graph.relations) == ["regulatory", "physical", "string12_0_physical", "complex"]
    assert graph.relations["physical"].edge_index.tolist() == [[0, 2], [2, 0]]  # not the genetic one
    weight = graph.relations["string12_0_physical"].weight
    assert weight is not None
    torch.testing.assert_close(weight, torch.tensor([0.6, 0.6]))
    assert not graph.features
    write(tmp_path / "phen" / "yeastphenome_z.tsv.xz", "orf\t1.1\nYAL001C\t1\nYAL002W\t2\n")
    graph, report = build_graph("yeast-clean", tmp_path, GraphOptions(metabolism=False))
    assert graph.features["phenotypes"].flatten().tolist() == [1.0, 2.0, 0.0, 0.0]
    assert report.files[-1].what == "phenotypes"
    graph, _ = build_graph("yeast-clean", tmp_path, GraphOptions(metabolism=False, phenotypes=False))
    assert not graph.features


def test_real_files(real: Path) -> None:
    graph, report = build_graph("yeast-clean", real, GraphOptions(metabolism=False))
    edges = {name: relation.num_edges for name, relation in graph.relations.items()}
    assert edges == {"regulatory": 11350, "physical": 115884, "string12_0_physical": 352606, "complex": 22510}
    assert graph.features["phenotypes"].shape == (6600, 1298)
    kept = {file.what: file.kept for file in report.files}
    assert kept["complexes"] == {"complexes": 408, "pairs": 11255}
    assert kept["phenotypes"] == {"conditions": 1298, "genes": 6266}
