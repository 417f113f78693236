"""Square brackets reach the reader: names and packages hold them, and markup would swallow them."""

import dataclasses
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import knockgraph as kg
from knockgraph import cli, doctor
from knockgraph.cli import terminal
from knockgraph.sources import catalogue, presets

assert presets.BUILT  # imported before the catalogue is changed
Command = Callable[..., tuple[str, str]]
TEXT = "pip install 'knockgraph[stored]' [bold]x[/] :bee: [/]"


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (kg.KnockgraphError(TEXT), 1, TEXT),
        (kg.UnknownGeneError(TEXT, ["a[b]"]), 1, TEXT),
        (OSError(28, "No space left on device", "a[b] :bee:.csv"), 1, "cannot write a[b] :bee:.csv: no space left"),
        (PermissionError(13, "Permission denied", "[x]/y"), 1, "cannot use [x]/y: permission denied"),
        (RuntimeError(TEXT), 70, f"RuntimeError: {TEXT}"),
    ],
)
def test_errors(error: Exception, code: int, shown: str, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    assert shown in command("doctor", code=code)[1]


def test_usage_errors(command: Command) -> None:
    assert "'[bold]x[/]'" in command("graph", "build", "--preset", "[bold]x[/]", "-o", "x", code=2)[1]
    assert "[bold]x[/]" in command("bench", "[bold]x[/]", code=2)[1]
    assert "[x]" in command("train", "[x]=1", code=1)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell graph and a screen in which every name holds brackets."""
    folder = tmp_path_factory.mktemp("brackets") / "[bold]"
    folder.mkdir()
    genes = [f"G[{i}]" for i in range(8)]
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7]])
    relations = {"phys[red]ical": edges, "[bold]": edges.flip(0)}
    kg.CellGraph(genes, relations, features={"f[red]": torch.rand(8, 2)}).save(folder / "a[b].cellgraph")
    rows = [f"G[{i}]+G[{j}],{i - j}.5" for i in range(8) for j in range(i)]
    (folder / "a[b].csv").write_text("genotype,score[red]\n" + "\n".join([*rows, "G[9],1.0", rows[0]]) + "\n")
    return folder


def test_commands(folder: Path, command: Command, tmp_path: Path) -> None:
    graph, screen = folder / "a[b].cellgraph", tmp_path / "[red]" / "s[x].parquet"
    screen.parent.mkdir()

    def shown(*arguments: object) -> str:
        return " ".join(command(*arguments)[0].split())

    info = shown("graph", "info", graph, "--html", screen.parent / "x[1].html")
    for text in ("a[b].cellgraph:", "phys[red]ical", "1 phys[red]ical", "2 [bold]", "f[red] (2)", "[red]/x[1].html"):
        assert text in info
    assert f"sound {graph}" in shown("graph", "check", graph)
    assert f"wrote {screen}" in shown("screen", "import", "table", "--from", folder / "a[b].csv", "-o", screen)
    info = shown("screen", "info", screen, "--graph", graph)
    for text in ("[red]/s[x].parquet:", "score[red]", "G[9]", "[bold]/a[b].cellgraph"):
        assert text in info
    assert f"wrote {screen}.split" in shown("screen", "split", screen, "-o", f"{screen}.split")
    run = tmp_path / "run[red]"
    words = [f"data.cell={graph}", f"data.screen={screen}", "data.phenotype=score[red]", "data.unknown=drop"]
    quoted = [re.sub("=(.*)", r'="\1"', word) for word in words]
    quoted += [f'run_dir="{run}"', "trainer.accelerator=cpu", "trainer.progress_bar=false", "trainer.baselines=[mean]"]
    said = shown("train", "data=files", *quoted, "model=additive", "trainer.max_epochs=1", "loader.batch_size=8")
    for text in ("phenotype score[red]", "(G[9])", "run directory " + str(run)):
        assert text in said
    assert "mean" in shown("evaluate", run, "--html", screen.parent / "y[1].html")
    assert "G[1]+G[2]" in shown("predict", run, "--genes", "G[1],G[2]")
    assert "predicted_score[red]" in shown("predict", run, "--genes", "G[1],G[2]", "-o", screen.parent / "p.csv")


def test_tables_of_other_things(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor.Finding("lmdb[x]", "note", "missing [red]", "pip install 'knockgraph[stored]'")
    monkeypatch.setattr(doctor, "examine", lambda: [finding])
    assert "note lmdb[x] missing [red] → pip install 'knockgraph[stored]'" in " ".join(command("doctor")[0].split())
    file = dataclasses.replace(catalogue.FILES[0], title="[red]x[/]")
    monkeypatch.setattr(catalogue, "FILES", [file])
    assert "[red]x[/]" in command("download")[0]


def test_consoles_know_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.out.print(TEXT)
    terminal.err.print(TEXT)
    assert capsys.readouterr() == (f"{TEXT}\n", f"{TEXT}\n")
    with terminal.busy(TEXT) as say:  # nothing is shown where there is no terminal, but it is parsed
        say(TEXT)
    code = "".join(file.read_text() for file in Path(cli.__file__).parent.glob("*.py"))
    assert "rich.markup" not in code, "the consoles print text as it is; escaping it would add backslashes"
    assert not re.search(r"print\(f?\"[^\"]*\[(/|bold|red|green|yellow)\]", code)


def texts(group: Any) -> Iterator[str]:
    """Help of a command, of its options, and of all commands below it."""
    yield group.help or ""
    for parameter in group.params:
        yield getattr(parameter, "help", None) or ""
    for below in getattr(group, "commands", {}).values():
        yield from texts(below)


def test_help_texts() -> None:
    """They are markup; whatever is in brackets and no style would vanish."""
    found = [text for text in texts(typer.main.get_command(cli.app)) if text]
    assert len(found) > 100
    for text in found:
        assert set(re.findall(r"\[[a-z/@#][^\[\]]*\]", text)) <= {"[bold]", "[/]"}, text
