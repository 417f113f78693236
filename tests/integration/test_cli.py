"""The real command line, in a process of its own, as a person would use it (a fresh one: the commands of the docs)."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from training_runs import forget, run
from typer.testing import CliRunner

from knockgraph.cli import app, main


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    run("graph", "build", "--preset", "demo", "-o", "demo.cellgraph", cwd=folder)
    run("screen", "import", "demo", "-o", "demo.parquet", cwd=folder)
    return folder


def test_graph_info_and_check(demo: Path) -> None:
    shown = run("graph", "info", "demo.cellgraph", "--json", "info.json", cwd=demo).stdout
    summary = json.loads((demo / "info.json").read_text())
    assert summary["genes"] == 360
    assert list(summary["relations"]) == ["physical", "coexpression", "regulatory"]
    assert "coexpression" in shown
    assert f"{summary['edges']:,}" in shown
    assert "sound" in run("graph", "check", "demo.cellgraph", cwd=demo).stdout


def test_screen_info_split(demo: Path) -> None:
    shown = run("screen", "info", "demo.parquet", "--graph", "demo.cellgraph", "--json", "s.json", cwd=demo).stdout
    summary = json.loads((demo / "s.json").read_text())
    assert summary["binding"]["bound"] == summary["experiments"] == 8000
    assert "gene_interaction" in shown
    for kind in ("random", "genotype", "unseen-genes", "k-fold"):
        run("screen", "split", "demo.parquet", "--kind", kind, "-o", "d.split", "--json", "split.json", cwd=demo)
        split = json.loads((demo / "split.json").read_text())
        assert split["kind"] == kind
        assert sum(split["sizes"].values()) + split["left_out"] == 8000


def test_screen_join(demo: Path) -> None:
    files = ("one=demo.parquet", "two=demo.parquet")
    run("screen", "join", *files, "--graph", "demo.cellgraph", "-o", "both.parquet", "--json", "join.json", cwd=demo)
    found = json.loads((demo / "join.json").read_text())
    assert found["screens"] == {"one": 8000, "two": 8000}
    assert found["experiments"] == 16000
    assert {"one_gene_interaction", "two_gene_interaction"} <= found["phenotypes"].keys()


def test_bench_loader(demo: Path) -> None:
    run("bench", "loader", "--scale", "demo", "--pyg-samples", "300", "--json", "b.json", cwd=demo, before=forget)
    report = json.loads((demo / "b.json").read_text())["runs"][0]
    rate = {r["name"]: r["samples_per_s"] for r in report["results"]}
    assert set(rate) == {"flat", "flat, 2 workers", "PyG", "PyG, 2 workers"}
    assert all(r["samples"] >= 270 for r in report["results"])
    assert report["screen_bytes"] > 0


def test_doctor(tmp_path: Path) -> None:
    run("doctor", "--json", "d.json", cwd=tmp_path)
    names = [f["name"] for f in json.loads((tmp_path / "d.json").read_text())["findings"]]
    assert names[-1] == "Self test"
    if Path("/proc/self").is_dir():  # a folder that nobody can write to
        shown = run("doctor", cwd=Path("/proc"), code=1).stdout
        assert "problem  Write access" in shown
        assert "run from a folder you can write to" in shown


def test_own_tables_from_csv_to_split(tmp_path: Path) -> None:
    (tmp_path / "cell" / "relations").mkdir(parents=True)
    (tmp_path / "cell" / "genes.csv").write_text("gene,standard\nG1,ABC1\nG2,\nG3,\n")
    (tmp_path / "cell" / "relations" / "physical.csv").write_text("gene_a,gene_b\nG1,G2\nG2,G3\n")
    (tmp_path / "my.csv").write_text("genotype,fitness\nWT,1.0\nabc1,0.9\nG2+G3,0.5\nG1+G2,0.4\nG3,0.8\nG2,0.7\n")
    run("graph", "build", "--preset", "tables", "--from", "cell", "-o", "my.cellgraph", cwd=tmp_path)
    run("screen", "import", "table", "--from", "my.csv", "-o", "my.parquet", cwd=tmp_path)
    shown = run("screen", "info", "my.parquet", "--graph", "my.cellgraph", cwd=tmp_path).stdout
    assert "6 of 6 experiments bind" in shown
    run("screen", "split", "my.parquet", "--fractions", "0.6,0.2,0.2", "-o", "my.split", cwd=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["graph", "info", "missing.cellgraph"], "there is no such file"),
        (["graph", "info", "demo.parquet"], "is not a readable cellgraph file"),
        (["screen", "info", "demo.cellgraph"], "is not a readable screen"),
        (["graph", "build", "--preset", "tables", "-o", "x"], "needs --from"),
        (["graph", "build", "--preset", "demo", "--from", ".", "-o", "x"], "leave --from out"),
        (["graph", "build", "--preset", "demo", "-o", "no/such/folder/x"], "create it first"),
        (["screen", "split", "demo.parquet", "--fractions", "a,b", "-o", "x"], "three numbers"),
        (["screen", "join", "demo.parquet", "-o", "x"], "'demo.parquet' is not NAME=FILE; give each screen a name"),
        (["benchmark", "-o", "x", "--own", "s=a.csv", "--own", "s=b.csv"], "--own s is given twice"),
        (["screen", "join", "a=demo.parquet", "-o", "x"], "1 screen to join; give two or more"),
        (["screen", "join", "a=demo.parquet", "a=demo.parquet", "-o", "x"], "two screens are called 'a'"),
        (["screen", "split", "demo.parquet", "--fractions", "0.5,0.5,0", "-o", "x"], "leaves test empty"),
        (["screen", "import", "demo", "--experiments", "0", "-o", "x"], "allows 1 to"),
        (["screen", "import", "demo", "--merge", "sum", "-o", "x"], "use mean, median or first"),
        (["bench", "loader", "--device", "tpu"], "use cpu or cuda"),
    ],
)
def test_bad_input_is_one_sentence(demo: Path, arguments: list[str], text: str) -> None:
    done = run(*arguments, cwd=demo, code=1)
    assert text in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (demo / "x").exists()


def test_wrong_usage_is_explained(tmp_path: Path) -> None:
    assert "Did you mean 'build'" in run("graph", "biuld", cwd=tmp_path, code=2).stderr
    assert "yeast-scale" in run("graph", "build", "--preset", "foo", "-o", "x", cwd=tmp_path, code=2).stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    assert "Traceback" in run("graph", "info", "missing", "--debug", cwd=tmp_path, code=1).stderr


def test_a_failed_build_keeps_the_old_file(demo: Path, tmp_path: Path) -> None:
    target = tmp_path / "keep.cellgraph"
    target.write_bytes((demo / "demo.cellgraph").read_bytes())
    run("graph", "build", "--preset", "tables", "--from", "nowhere", "-o", str(target), cwd=tmp_path, code=1)
    assert target.read_bytes() == (demo / "demo.cellgraph").read_bytes()


def test_every_command_has_help() -> None:
    def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for name, command in getattr(group, "commands", {}).items():
            yield (*path, name)
            yield from commands(command, (*path, name))

    found = list(commands(typer.main.get_command(app)))
    assert {("train",), ("graph", "lambda"), ("bench", "step"), ("profile", "trace")} <= set(found)
    for command in found:
        shown = CliRunner().invoke(app, [*command, "--help"])
        assert shown.exit_code == 0
        assert "Usage" in shown.output


@pytest.mark.parametrize("way", ["typer", "Lightning"])
def test_control_c_ends_with_130(way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Typer ended without a word, and Lightning, which 'profile' uses, with exit code 1."""

    def press(*_: Any, **__: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if way == "Lightning":
                sys.exit(1)
            raise

    monkeypatch.setattr("knockgraph.doctor.examine", press)
    monkeypatch.setattr(sys, "argv", ["knockgraph", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == "interrupted; run the command again"
