import gzip
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from source_files import write

from knockgraph import FileFormatError
from knockgraph.sources import delimited
from knockgraph.sources.delimited import DelimitedFile

TABLE = 'gene\tscore\tnote\nA\t1.5\tx\nB\tNA\t"y\nC\t-2\t\n'


def read(file: DelimitedFile, **kinds: str) -> dict[str, list]:
    found: dict[str, list] = {name: [] for name in kinds}
    for batch in file.batches(kinds):
        for name in kinds:
            found[name] += batch.column(name).to_pylist()
    return found


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2", ".zip"])
def test_every_compression(suffix: str, tmp_path: Path) -> None:
    file = DelimitedFile(write(tmp_path / f"t.tsv{suffix}", TABLE))
    assert file.columns == ["gene", "score", "note"]
    assert read(file, gene="text", score="number") == {"gene": ["A", "B", "C"], "score": [1.5, None, -2.0]}
    assert [number for number, _ in file.rows()] == [2, 3, 4]


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2", ".zip"])
def test_a_file_that_unpacks_without_end_is_refused(suffix: str, tmp_path: Path) -> None:
    """A few kilobytes that unpack to gigabytes ended in MemoryError or SIGABRT."""
    text = "gene\tscore\n" + "A\t1\n" * (1 << 17)
    path = tmp_path / f"t.tsv{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("t.tsv", text)
    else:
        write(path, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "_FREE_TEXT", 1 << 16)
        refused = "unpacks to more than 200 times its size.*if it is sound, unpack it"
        with pytest.raises(FileFormatError, match=refused):
            read(DelimitedFile(path), gene="text")
        with pytest.raises(FileFormatError, match=refused):
            list(DelimitedFile(path).rows())
    assert len(read(DelimitedFile(path), gene="text")["gene"]) == 1 << 17  # half a megabyte is no harm


def test_compression_is_seen_from_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_bytes(gzip.compress(TABLE.encode()))
    assert read(DelimitedFile(path), gene="text") == {"gene": ["A", "B", "C"]}


@pytest.mark.parametrize(
    "text",
    [TABLE.replace("\n", "\r\n"), "\ufeff" + TABLE, TABLE.rstrip("\n"), TABLE.replace("\nB", "\n\nB") + "\n\n"],
    ids=["crlf", "bom", "no last break", "blank lines"],
)
def test_harmless_variants(text: str, tmp_path: Path) -> None:
    file = DelimitedFile(write(tmp_path / "t.tsv", text))
    assert read(file, gene="text", score="number") == {"gene": ["A", "B", "C"], "score": [1.5, None, -2.0]}


def test_delimiters_and_quotes(tmp_path: Path) -> None:
    file = DelimitedFile(write(tmp_path / "t.csv", 'gene,score\n"A,1",2\n'))
    assert read(file, gene="text", score="integer") == {"gene": ["A,1"], "score": [2]}
    assert DelimitedFile(write(tmp_path / "t.txt", "a b\n1 2\n")).delimiter == " "
    assert DelimitedFile(write(tmp_path / "u.txt", "a;b\n1;2\n")).delimiter == ";"


def test_titles_before_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "Table S1. Raw data\n\nQuery strain ID\tP-value\nYAL001C\tx\n")
    file = DelimitedFile(path, "\t", header="query strain")
    assert file.first_line == 4
    assert read(file, **{"Query strain ID": "text"}) == {"Query strain ID": ["YAL001C"]}
    with pytest.raises(FileFormatError, match="line 4: 'P-value' is 'x', but a number is needed"):
        read(file, **{"P-value": "number"})
    with pytest.raises(FileFormatError, match="has no header line like 'nothing'"):
        DelimitedFile(path, header="nothing")


def test_columns_by_any_spelling(tmp_path: Path) -> None:
    file = DelimitedFile(write(tmp_path / "t.tsv", "#BioGRID ID\tName.TF\tsystematic_name\n1\t2\t3\n"))
    assert file.find("biogrid id", "x") == "#BioGRID ID"
    assert file.need("name tf") == "Name.TF"
    assert file.need("no", "Systematic Name") == "systematic_name"
    assert file.find("absent") is None
    with pytest.raises(FileFormatError, match=r"has no column 'absent'; it has '#BioGRID ID', 'Name.TF'"):
        file.need("absent")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("B\t2", r"line 4: it has 2 fields instead of 3 \('B\\t2'\); correct or remove the line"),
        ("B\t2\tx\ty", "line 4: it has 4 fields instead of 3"),
        ("B\ttwo\tx", "line 4: 'score' is 'two', but a number is needed; correct or remove the line"),
        (b"B\xff\t2\tx", "line 4: it is not UTF-8 text"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
def test_a_malformed_line_is_named(line: str | bytes, text: str, suffix: str, tmp_path: Path) -> None:
    raw = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path / f"t.tsv{suffix}", b"gene\tscore\tnote\nA\t1\tx\n\n" + raw + b"\nC\t3\tz\n")
    with pytest.raises(FileFormatError, match=f"{path.name}, {text}"):
        read(DelimitedFile(path), gene="text", score="number")


def test_a_malformed_line_far_down(tmp_path: Path) -> None:
    rows = "".join(f"G{i}\t{i}\n" for i in range(100_000))
    path = write(tmp_path / "t.tsv.gz", "gene\tn\n" + rows + "G\tmany\n")
    with pytest.raises(FileFormatError, match="line 100002: 'n' is 'many', but an integer is needed"):
        list(DelimitedFile(path).batches({"gene": "text", "n": "integer"}, block_size=1 << 16))


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_a_truncated_file_is_refused(suffix: str, tmp_path: Path) -> None:
    import random

    noise = random.Random(0)
    rows = "".join(f"G{i}\t{noise.random()}\n" for i in range(20_000))
    path = write(tmp_path / f"t.tsv{suffix}", "gene\tn\n" + rows)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FileFormatError, match=r"is damaged or incomplete .*; get the file again"):
        read(DelimitedFile(path), gene="text", n="number")


def test_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv.gz", "gene\tn\n" + "".join(f"G{i}\t{i}\n" for i in range(2000)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileFormatError):
        read(DelimitedFile(path), gene="text", n="integer")


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"cannot read .*none.tsv: there is no such file"):
        DelimitedFile(tmp_path / "none.tsv")
    with pytest.raises(FileFormatError, match="is empty"):
        DelimitedFile(write(tmp_path / "e.tsv", ""))
    with pytest.raises(FileFormatError, match="more than one column 'a'"):
        DelimitedFile(write(tmp_path / "d.tsv", "a\ta\n1\t2\n"))
    with pytest.raises(FileFormatError, match="line 1: it has 2 fields, but 3 are needed"):
        DelimitedFile(write(tmp_path / "n.tsv", "1\t2\n"), "\t", ["x", "y", "z"])
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("a.txt", "x\ty\n1\t2\n")
        archive.writestr("b.txt", "x\ty\n3\t4\n")
    with pytest.raises(FileFormatError, match=r"holds 2 of '\*' .*; unpack it and give the file"):
        DelimitedFile(tmp_path / "two.zip")
    assert read(DelimitedFile(tmp_path / "two.zip", member="B.*"), x="integer") == {"x": [3]}
    assert read(DelimitedFile(write(tmp_path / "h.tsv", "a\tb\n")), a="text") == {"a": []}
    with zipfile.ZipFile(tmp_path / "book.xlsx", "w") as archive:
        archive.writestr("xl/workbook.xml", "x")
    with pytest.raises(
        FileFormatError, match="is an Excel workbook; save its sheet as tab-separated text and give that"
    ):
        DelimitedFile(tmp_path / "book.xlsx")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=300), st.text('AB\t\r\n1."', max_size=40).map(str.encode)))
def test_any_bytes_give_rows_or_our_own_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fuzz.tsv"
    path.write_bytes(b"a\tb\n" + data)
    try:
        found = read(DelimitedFile(path), a="text", b="number")
    except FileFormatError as error:
        assert str(path) in str(error)  # noqa: PT017
        return
    slow = [fields for _, fields in DelimitedFile(path).rows()]
    assert found["a"] == [fields[0] for fields in slow]
