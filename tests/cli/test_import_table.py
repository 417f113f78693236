"""``knockgraph screen import table`` on tables as people have them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from knockgraph import Screen

Command = Callable[..., tuple[str, str]]
UNTIDY = Path(__file__).parents[2] / "docs" / "example" / "untidy.csv"
DOCS = Path(__file__).parents[2] / "docs" / "data.md"


def test_it_says_how_it_understood_the_table_before_it_writes(command: Command, tmp_path: Path) -> None:
    out, _ = command(
        "screen", "import", "table", "--from", UNTIDY, "-o", tmp_path / "s.parquet", "--json", tmp_path / "j"
    )
    lines = out.splitlines()
    shown = DOCS.read_text().partition("docs/example/untidy.csv: text")[2].partition("```")[0]
    assert "\n".join(lines[:7]).endswith(shown.rstrip())  # the docs show what is printed
    assert lines[7].startswith("wrote ")
    screen = Screen.load(tmp_path / "s.parquet")
    assert list(screen.genotypes) == [("A01", "A12"), ("A01", "B01"), ("PWA07", "PWD08"), ("A05",)]
    assert screen.phenotypes["Interaction"].tolist() == [0.116, -0.444, 0.01, 0.0]
    (file,) = json.loads((tmp_path / "j").read_text())["files"]
    assert file["genes"] == ["Gene A", "Gene B"]
    assert file["dropped"] == {"no value for Interaction": 1}


def test_a_dry_run_writes_nothing(command: Command, tmp_path: Path) -> None:
    out, _ = command("screen", "import", "table", "--from", UNTIDY, "--dry-run", "-o", tmp_path / "s.parquet")
    assert "nothing is written: Screen(4 experiments" in out
    assert list(tmp_path.iterdir()) == []
    _, err = command("screen", "import", "table", "--from", UNTIDY, code=1)
    assert "there is no file to write; name it with -o FILE, or only look with --dry-run" in err


def test_choices_on_the_command_line(command: Command, tmp_path: Path) -> None:
    table = tmp_path / "t.txt"
    table.write_text("a:b:x:y\nG1 G2:u:1,234:z\nG3:v:NA:w\n")
    words = ["--delimiter", ":", "--gene-columns", "a", "--phenotype", "X", "--join", "space", "--decimal", "comma"]
    command("screen", "import", "table", "--from", table, *words, "--missing", "keep", "-o", tmp_path / "s.parquet")
    screen = Screen.load(tmp_path / "s.parquet")
    assert list(screen.genotypes) == [("G1", "G2"), ("G3",)]
    assert screen.phenotypes["x"][0] == 1.234
    _, err = command("screen", "import", "table", "--from", table, *words, "--missing", "error", "--dry-run", code=1)
    assert "1 row has no x, the first is data row 2; leave them out with --missing drop" in err
    _, err = command("screen", "import", "demo", "--phenotype", "x", "-o", tmp_path / "d.parquet", code=1)
    assert "the options that start with 'table:' in --help are not for demo" in err


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_the_folder_is_refused_before_the_work(folder: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, err = command(
        "screen", "import", "table", "--from", "no-such-table", "-o", tmp_path / folder / "s.parquet", code=1
    )
    assert "no-such-table" not in err
    assert "cannot write" in err
