import base64
import contextlib
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from screen_cases import NAN, examples, screens

from knockgraph import FileFormatError, KnockgraphError, Screen
from knockgraph.sources.graph_tables import read_arrow


def example() -> Screen:
    return Screen(
        [["YAL001C", "YBR002C"], [], ["YCL003W"], ["YAL001C"]],
        {"fitness": [0.5, 1.0, NAN, 0.25], "gene_interaction": [NAN, 0.0, -0.125, 0.2]},
        {"fitness": {"p_value": [0.1, 0.2, NAN, 0.4], "std": [0.01, 0.02, 0.03, 0.04]}, "gene_interaction": {}},
        source=["Kuzmin", "Costanzo", "Kuzmin", ""],
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "screen.parquet"


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """One file that hypothesis may write again and again."""
    return tmp_path_factory.mktemp("parquet") / "screen.parquet"


@given(screen=screens())
@examples
def test_round_trip(scratch, screen):
    screen.save(scratch)
    loaded = Screen.load(scratch)
    assert loaded == screen
    assert loaded.genotypes.hash == screen.genotypes.hash
    assert list(loaded.phenotypes) == list(screen.phenotypes)


def test_round_trip_of_everything_at_once(path):
    example().save(path)
    loaded = Screen.load(path)
    assert loaded == example()
    assert np.isnan(loaded.phenotypes["fitness"]).tolist() == [False, False, True, False]
    assert [loaded.source_names[c] for c in loaded.source_codes] == ["Kuzmin", "Costanzo", "Kuzmin", ""]


@pytest.mark.parametrize("source", ["", "x"])
@pytest.mark.parametrize("genotypes", [[], [[]], [[], []]])
def test_round_trip_without_experiments_or_genes(path, genotypes, source):
    n = len(genotypes)
    screen = Screen(genotypes, {"fitness": [1.0] * n, "gi": [NAN] * n}, {"gi": {"std": [NAN] * n}}, source)
    screen.save(path)
    assert Screen.load(path) == screen


def test_floats_survive_bit_for_bit(path):
    values = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3]
    Screen([[]] * 5, {"fitness": values}).save(path)
    assert Screen.load(path).phenotypes["fitness"].tobytes() == np.array(values).tobytes()


def test_any_nan_is_the_same_missing_value(path):
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    screen = Screen([["a"], ["b"]], {"fitness": odd})
    screen.save(path)
    assert Screen.load(path) == screen


def test_plain_pyarrow_reads_it(path):
    example().save(path)
    table = pq.read_table(path)
    assert table.column_names == [
        "genotype",
        "fitness",
        "gene_interaction",
        "fitness.p_value",
        "fitness.std",
        "source",
    ]
    genotype = table.column("genotype").cast(pa.list_(pa.string()))
    assert genotype.to_pylist() == [["YAL001C", "YBR002C"], [], ["YCL003W"], ["YAL001C"]]
    assert genotype.null_count == 0
    assert table.column("fitness").type == pa.float64()
    assert table.column("fitness").to_pylist() == [0.5, 1.0, None, 0.25]  # NaN is null on disk
    assert table.column("source").cast(pa.string()).to_pylist() == ["Kuzmin", "Costanzo", "Kuzmin", ""]
    element = pq.ParquetFile(path).schema.column(0)  # what readers of any language see
    assert (element.path, element.physical_type, str(element.logical_type)) == (
        "genotype.list.element",
        "BYTE_ARRAY",
        "String",
    )


def test_the_same_screen_gives_the_same_file(path, tmp_path):
    example().save(path)
    again = tmp_path / "again.parquet"
    example().save(again)
    assert path.read_bytes() == again.read_bytes()


def test_saving_replaces_and_leaves_nothing_behind(path):
    Screen([["a"]], {"fitness": [1.0]}).save(path)
    example().save(path)
    assert Screen.load(path) == example()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_large_screen(path):
    random = np.random.default_rng(0)
    n = 100_000
    names = np.array([f"Y{i:05d}" for i in range(6_000)])
    genotypes = names[random.integers(0, len(names), (n, 3))].tolist()
    values = random.normal(size=n)
    values[::7] = NAN
    screen = Screen(genotypes, {"fitness": values}, {"fitness": {"std": values}}, random.choice(["x", "y"], n).tolist())
    screen.save(path)
    loaded = Screen.load(path)
    assert loaded == screen
    assert loaded.genotypes[n - 1] == tuple(sorted(set(genotypes[-1])))


def test_several_row_groups_with_their_own_dictionaries(path):
    # Written by another program in small pieces, with the same content: still the same screen.
    example().save(path)
    pq.write_table(pq.read_table(path), path, row_group_size=1)
    assert Screen.load(path) == example()


def test_a_large_list_column(path):
    example().save(path)
    rewrite(path, lambda table: table.set_column(0, "genotype", table["genotype"].cast(pa.large_list(pa.string()))))
    assert Screen.load(path) == example()


def rewrite(path, change, **about):
    """Change the table or the header of a saved screen, as another program might."""
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[b"knockgraph"]) | about
    pq.write_table(change(table).replace_schema_metadata({b"knockgraph": json.dumps(header)}), path)


def refused(path, text):
    with pytest.raises(FileFormatError, match=text) as caught:
        Screen.load(path)
    assert str(path) in str(caught.value)


def test_missing_file(path):
    refused(path, "cannot read .*screen.parquet: there is no such file")


def test_a_folder_is_no_file(tmp_path):
    refused(tmp_path, "there is no such file")


def test_foreign_parquet_names_the_import_command(path):
    pq.write_table(pa.table({"genotype": [["a"]], "fitness": [1.0]}), path)
    refused(path, "not a knockgraph screen; .*'knockgraph screen import table --from .*screen.parquet -o FILE'")


def test_a_file_that_is_not_parquet(path):
    path.write_text("gene,fitness\nYAL001C,0.5\n")
    refused(path, "is not a readable screen .*truncated, damaged or of another format")


def test_a_table_in_the_place_of_a_screen(path):
    table = path.with_name("my.csv")
    table.write_text("gene,fitness\nYAL001C,0.5\n")
    refused(table, "which is a Parquet file; .*: knockgraph screen import table --from .*my.csv -o my.parquet")


def test_an_empty_file(path):
    path.write_bytes(b"")
    refused(path, "is not a readable screen")


def test_newer_version(path):
    example().save(path)
    rewrite(path, lambda table: table, version=3)
    refused(path, "screen format version 3, newer than the 2 this release reads; upgrade knockgraph")


@pytest.mark.parametrize("version", [0, -3])
def test_unknown_version(path, version):
    example().save(path)
    rewrite(path, lambda table: table, version=version)
    refused(path, f"unknown screen format version {version}")


@pytest.mark.parametrize("header", [b"{", b"[]", b"7", b'{"format": "knockgraph.screen", "version": null}', b"\xff"])
def test_damaged_header(path, header):
    example().save(path)
    pq.write_table(pq.read_table(path).replace_schema_metadata({b"knockgraph": header}), path)
    refused(path, "header of .*screen.parquet is damaged|is not a readable screen")


@pytest.mark.parametrize(
    "about",
    [
        {"phenotypes": ["absent"]},
        {"phenotypes": 7},
        {"phenotypes": []},
        {"statistics": []},
        {"statistics": {"fitness": ["absent"]}},
        {"statistics": {"fitness": 3}},
        {"content_hash": None},
    ],
)
def test_header_that_does_not_describe_the_table(path, about):
    example().save(path)
    rewrite(path, lambda table: table, **about)
    refused(path, "does not describe a valid screen|does not match its content hash")


def test_null_genotype_is_not_the_wild_type(path):
    example().save(path)
    rewrite(path, lambda t: t.set_column(0, "genotype", pa.array([["a"], None, [], ["b"]])))
    refused(path, "genotype of experiment 1 is missing; an empty list means the wild type")


def test_null_gene_name(path):
    example().save(path)
    rewrite(path, lambda t: t.set_column(0, "genotype", pa.array([["a"], [], ["b", None], ["b"]])))
    refused(path, "genotype of experiment 2 holds a missing gene name")


def test_null_source(path):
    example().save(path)
    rewrite(path, lambda t: t.set_column(5, "source", pa.array(["a", None, "b", "c"])))
    refused(path, "an experiment has no source")


@pytest.mark.parametrize("column", ["genotype", "fitness", "fitness.std", "source"])
def test_missing_column(path, column):
    example().save(path)
    rewrite(path, lambda t: t.drop_columns([column]))
    refused(path, "does not describe a valid screen|is not a readable screen")


@pytest.mark.parametrize(
    "genotype", [pa.array(["a", "b", "c", "d"]), pa.array([1, 2, 3, 4]), pa.array([[1], [], [2], [1]])]
)
def test_genotype_of_another_type(path, genotype):
    example().save(path)
    rewrite(path, lambda t: t.set_column(0, "genotype", genotype))
    refused(path, "the genotype column holds .*, but lists of gene names are needed")


def test_changed_number(path):
    example().save(path)
    rewrite(path, lambda t: t.set_column(1, "fitness", pa.array([0.5, 1.0, None, 0.26])))
    refused(path, "does not match its content hash: it was damaged or changed by another program")


def test_changed_genotype(path):
    example().save(path)
    rewrite(path, lambda t: t.set_column(0, "genotype", pa.array([["YAL001C"], [], ["YCL003W"], ["YAL001C"]])))
    refused(path, "does not match its content hash")


@pytest.mark.parametrize("source", [["Kuzmin", "Costanzo", "Kuzmin", "?"], ["Costanzo", "Kuzmin", "Kuzmin", ""]])
def test_changed_source(path, source):
    example().save(path)
    rewrite(path, lambda t: t.set_column(5, "source", pa.array(source)))
    refused(path, "does not match its content hash")


def test_lost_row(path):
    example().save(path)
    rewrite(path, lambda t: t.slice(0, 3))
    refused(path, "does not match its content hash")


def test_columns_that_swapped_their_names(path):
    example().save(path)
    rewrite(path, lambda t: t, phenotypes=["gene_interaction", "fitness"])
    refused(path, "does not match its content hash")


def test_truncated_anywhere(path):
    example().save(path)
    raw = path.read_bytes()
    for length in range(0, len(raw), 37):
        path.write_bytes(raw[:length])
        refused(path, "is not a readable screen|does not")


def flip(path, raw: bytes, positions: range, mask: int) -> tuple[int, int]:
    """Flip bits at each position in turn: only a named error or the very same screen may come back."""
    refusals = equal = 0
    for position in positions:
        damaged = bytearray(raw)
        damaged[position] ^= mask
        path.write_bytes(damaged)
        try:
            loaded = Screen.load(path)
        except FileFormatError:
            refusals += 1
        else:
            assert loaded == example(), f"byte {position} ^ {mask} gave another screen"
            equal += 1
    return refusals, equal


@pytest.mark.parametrize(("mask", "start"), [(0xFF, 0), (0x01, 1), (0x80, 2)])
def test_byte_flips(path, mask, start):
    example().save(path)
    raw = path.read_bytes()
    refusals, equal = flip(path, raw, range(start, len(raw), 3), mask)
    assert refusals > equal  # most bytes matter; the rest are Parquet's own column statistics


@pytest.mark.full
@pytest.mark.parametrize("mask", [1, 2, 4, 8, 16, 32, 64, 128, 255])
def test_byte_flips_everywhere(path, mask):
    example().save(path)
    raw = path.read_bytes()
    assert flip(path, raw, range(len(raw)), mask)[0] > len(raw) / 2


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(KnockgraphError, match=r"cannot write .*: the folder .*absent does not exist; create it first"):
        example().save(tmp_path / "absent" / "screen.parquet")


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickled_type_in_the_schema_is_not_executed(path, tmp_path):
    """Arrow before 14.0.1 unpickled types of this name when it read a file."""
    canary = tmp_path / "canary"
    payload = pickle.dumps(Canary(canary))
    example().save(path)
    table = pq.read_table(path)
    evil = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": payload}
    fields = [pa.field(f.name, f.type, metadata=evil if f.name == "source" else None) for f in table.schema]
    table = pa.table(table.columns, schema=pa.schema(fields, metadata=table.schema.metadata))
    pq.write_table(table, path)
    assert payload in base64.b64decode(pq.read_metadata(path).metadata[b"ARROW:schema"])
    for read in (Screen.load, read_arrow):
        with contextlib.suppress(FileFormatError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read(path)
    assert not canary.exists()
    pickle.loads(payload)
    assert canary.exists()  # the payload works, so the check above means something
