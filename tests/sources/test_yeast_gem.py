import gzip
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from source_files import write

from knockgraph import FileFormatError, KnockgraphError, Metabolism
from knockgraph.files import cache_folder
from knockgraph.sources import yeast_gem
from knockgraph.sources.yeast_gem import read_model

YAML = """---
!!omap
- metaData:
    id: "tiny"
- metabolites:
    - !!omap
      - id: s_1
      - name: glucose
      - compartment: c
    - !!omap
      - id: s_2
      - name: biomass
      - compartment: c
- reactions:
    - !!omap
      - id: r_1
      - name: one
      - metabolites: !!omap
          - s_1: -1
          - s_2: 2.5
      - lower_bound: -1000
      - upper_bound: 1000
      - gene_reaction_rule: (YAL001C and YAL002W) or YAL003W
      - subsystem:
          - Glycolysis
    - !!omap
      - id: r_2
      - name: two
      - metabolites: !!omap
          - s_1: -1
      - lower_bound: 0
      - upper_bound: 1000
      - gene_reaction_rule: ''
      - subsystem:
          - Growth
    - !!omap
      - id: r_3
      - name: three
      - metabolites: !!omap
          - s_1: 1
      - lower_bound: 0
      - upper_bound: 1000
      - gene_reaction_rule: YAL001C
- genes:
    - !!omap
      - id: YAL001C
    - !!omap
      - id: YAL002W
    - !!omap
      - id: YAL003W
- compartments: !!omap
    - c: cytoplasm
"""


@pytest.fixture
def yaml(tmp_path: Path) -> Path:
    pytest.importorskip("cobra")
    return write(tmp_path / "yeast-GEM.yml.gz", YAML)


def test_yaml_then_the_cache(yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    reactions = read_model(yaml, cache)
    assert [r.id for r in reactions] == ["r_1", "r_2", "r_3"]
    assert reactions[0].stoichiometry == {"s_1": -1.0, "s_2": 2.5}
    assert (reactions[0].lower_bound, reactions[0].upper_bound) == (-1000.0, 1000.0)
    assert reactions[0].gene_rule == "(YAL001C and YAL002W) or YAL003W"
    assert [r.growth for r in reactions] == [True, True, False]  # biomass, subsystem, neither
    assert len(list((cache / "reactions").iterdir())) == 1
    monkeypatch.setitem(sys.modules, "cobra.io", None)  # the second time cobra is not asked
    assert read_model(yaml, cache) == reactions
    m = Metabolism.from_reactions(reactions, {"YAL001C": 0, "YAL002W": 1, "YAL003W": 2})
    assert (m.num_reactions, m.num_gpr, m.num_metabolites) == (6, 7, 2)


def test_a_damaged_cache_is_passed_over_and_another_file_has_its_own(yaml: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    reactions = read_model(yaml, cache)
    stored = next((cache / "reactions").iterdir())
    stored.write_bytes(stored.read_bytes()[:-5])
    assert read_model(yaml, cache) == reactions
    other = write(tmp_path / "other.yml", YAML.replace("2.5", "3.5"))
    assert read_model(other, cache)[0].stoichiometry["s_2"] == 3.5
    unwritable = tmp_path / "file"
    unwritable.write_text("x")
    assert read_model(yaml, unwritable) == reactions


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_sbml_gives_the_same(yaml: Path, suffix: str, tmp_path: Path) -> None:
    import io

    import cobra.io
    from cobra.core import Group

    model = cobra.io.load_yaml_model(io.StringIO(YAML))
    for r in model.reactions:  # as yeast-GEM's SBML has it: subsystems are groups
        r.subsystem = ""
    model.add_groups([Group("g1", name="Growth", members=[model.reactions.r_2], kind="partonomy")])
    cobra.io.write_sbml_model(model, str(tmp_path / "plain.xml"))
    path = write(tmp_path / f"yeast-GEM.xml{suffix}", (tmp_path / "plain.xml").read_bytes())
    found = read_model(path, tmp_path / "cache")
    expected = read_model(yaml, tmp_path / "cache")
    assert [(r.id, dict(r.stoichiometry), r.lower_bound, r.upper_bound, r.growth) for r in found] == [
        (r.id, dict(r.stoichiometry), r.lower_bound, r.upper_bound, r.growth) for r in expected
    ]
    names = {"YAL001C": 0, "YAL002W": 1, "YAL003W": 2}
    assert Metabolism.from_reactions(found, names).num_gpr == Metabolism.from_reactions(expected, names).num_gpr


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("x.yml", b"just: text\n", "is not a metabolic model in YAML that cobra can read"),
        ("x.xml", b"<html></html>", "is not a metabolic model in SBML that cobra can read"),
        ("x.yml", b"\xff\xfe", "is not a metabolic model in YAML"),
        ("x.yml.gz", b"\x1f\x8b\x08broken", "is damaged or incomplete"),
        ("x.yml.xz", b"\xfd7zXZ\x00broken", "is damaged or incomplete"),
    ],
)
def test_refusals(name: str, content: bytes, text: str, tmp_path: Path) -> None:
    pytest.importorskip("cobra")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=text):
        read_model(tmp_path / name, tmp_path / "cache")


def test_no_file_no_cobra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileFormatError, match="there is no such file"):
        read_model(tmp_path / "none.yml")
    monkeypatch.setitem(sys.modules, "cobra.io", None)
    with pytest.raises(
        KnockgraphError, match=r"read with cobra, which is not installed; pip install 'knockgraph\[yeast\]'"
    ):
        read_model(write(tmp_path / "m.yml", YAML), tmp_path / "cache")


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KNOCKGRAPH_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("KNOCKGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "knockgraph"


BOMB = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
READS = '<!ENTITY a9 SYSTEM "file:///etc/hostname">'
SBML = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "ha">{}]><sbml level="3" version="1"><model name="&a9;"/></sbml>'


@pytest.mark.parametrize("entities", [BOMB, READS])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_xml_entities_are_refused(entities: str, encoding: str, tmp_path: Path) -> None:
    """They can stand for gigabytes, or for other files of the reader."""
    path = tmp_path / "model.xml"
    path.write_bytes(b" " * (encoding == "utf-8") + SBML.format(entities).encode(encoding))
    with pytest.raises(FileFormatError, match=r"model\.xml (defines XML entities|is not a metabolic model in)"):
        read_model(path, tmp_path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_what_unpacks_without_end_is_refused(
    compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yeast_gem, "_MOST_BYTES", 1 << 20)
    (tmp_path / "model.yml.gz").write_bytes(compress(b"<" + b" " * (1 << 20)))
    with pytest.raises(FileFormatError, match="has more than 1 MB, far more than a metabolic model"):
        read_model(tmp_path / "model.yml.gz", tmp_path)
