"""``knockgraph profile trace`` as a person calls it: terminal, JSON, Markdown, page, and one sentence per bad file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from trace_cases import header, span, training, write
from typer.testing import CliRunner, Result

from knockgraph.cli import app
from knockgraph.cli.trace import trace
from knockgraph.errors import FileFormatError, KnockgraphError
from knockgraph.traces.categories import BUILT_IN

command = typer.Typer()
command.command()(trace)


def run(*arguments: str | Path) -> str:
    done: Result = CliRunner().invoke(command, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write(tmp_path / "a.json", training(3), header())


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return write(tmp_path / "b.json.gz", training(2, 2), header())


def test_one_trace(a: Path, tmp_path: Path) -> None:
    out, markdown, page = (tmp_path / name for name in ("out.json", "out.md", "out.html"))
    shown = run(a, "--json", out, "--markdown", markdown, "--html", page)
    for heading in (
        *("Where the wall clock goes", "The device", "Device time by the host phase that launched it"),
        *("What the host does while GPU 0 is idle", "Threads and streams", "Operators of the host by self time"),
        *(
            "Kernels and copies by self time",
            "Waits for the device, values read by the host",
            "Copies",
            "Memory allocated",
            "Steps",
        ),
    ):
        assert heading in shown
        assert f"## {heading}" in markdown.read_text()
        assert heading.replace("'", "&#x27;") in page.read_text()
    assert re.search(r"sum +3\.000 +100\.0% +1\.000", shown)
    [report] = json.loads(out.read_text())["traces"]
    assert sum(report["phases"].values()) == pytest.approx(report["wall_seconds"])
    assert sum(report["wall_ns"].values()) == report["span_ns"]


def test_page_is_self_contained(a: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    run(a, "--html", page)
    text = page.read_text()
    assert text.count("<svg") == 4  # bars, two timelines, memory
    fetched = re.findall(r"(?:src|href)=[\"'](?!#)[^\"']*", text)
    assert fetched == []
    assert "prefers-color-scheme: dark" in text
    assert "Timeline: step 1, the one of median length" in text


def test_two_traces(a: Path, b: Path, tmp_path: Path) -> None:
    out, markdown, page = (tmp_path / name for name in ("out.json", "out.md", "out.html"))
    shown = run(a, b, "--json", out, "--markdown", markdown, "--html", page)
    first = shown.strip().splitlines()
    assert first[:2] == ["Two traces", "The conditions differ – number of steps: 3 against 2."]
    assert re.search(r"forward +0\.150 +0\.300 +\+0\.150 +2\.00×", shown)
    assert "2.00 times as long" in markdown.read_text()
    assert page.read_text().count("<svg") == 7
    result = json.loads(out.read_text())
    assert result["comparison"]["step"]["ratio"] == 2.0
    assert result["ranks"] is None


def test_ranks(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"rank{r}.json", training(2, f), header(distributedInfo={"rank": r, "world_size": 3}))
        for r, f in enumerate((2, 1, 3))
    ]
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    shown = run(*files, "--json", out, "--html", page)
    assert re.search(r"span +1\.000 +rank 1 +3\.000 +rank 2 +3\.00×", shown)
    assert json.loads(out.read_text())["comparison"] is None
    assert "Timeline of rank 1" in page.read_text()
    assert "Timeline of rank 0" not in page.read_text()  # only the shortest and the longest are drawn


def test_unmatched_time_is_shown_by_name(tmp_path: Path) -> None:
    events = [span(f"my <b>part</b> {i} | $x$", 10 * i, 5, cat="user_annotation") for i in range(4)]
    path, markdown, page = write(tmp_path / "t$1$.json", events), tmp_path / "t.md", tmp_path / "t.html"
    shown = run(path, "--top", "3", "--markdown", markdown, "--html", page)
    assert "0.020 ms (100.0% of all self time) match no rule and are shown as unmatched" in shown
    assert "Unmatched names" in shown
    assert "my <b>part</b> 2 | $x$" in shown
    assert "1 more names with 0.005 ms in all are not listed." in shown
    assert "my &lt;b>part&lt;/b> 0 \\| $x$" in markdown.read_text()
    assert "<b>part" not in page.read_text()
    assert "This trace holds no GPU events, so only the host is shown" in shown


def test_rules_of_ones_own(a: Path, tmp_path: Path) -> None:
    rules, out = tmp_path / "rules.toml", tmp_path / "out.json"
    rules.write_text("""
categories = ["the model", "everything else"]
[[rule]]
category = "the model"
phase = true
name = ['^knockgraph::(forward|loss)', 'Backward']
[[rule]]
category = "everything else"
cat = ["cpu_op", "user_annotation", "cuda_runtime"]
[[rule]]
on = "device"
category = "everything else"
cat = ["kernel"]
""")
    run(a, "--categories", rules, "--json", out)
    [report] = json.loads(out.read_text())["traces"]
    assert report["wall_ns"] == {"the model": 540_000, "everything else": 2_460_000, "unmatched": 0, "idle": 0}
    assert report["device"]["unmatched"] == 60_000  # the copies


def test_the_rules_that_are_shipped_can_be_copied_and_used(a: Path, tmp_path: Path) -> None:
    copy, first, second = tmp_path / "mine.toml", tmp_path / "1.json", tmp_path / "2.json"
    copy.write_text(BUILT_IN.read_text())
    run(a, "--json", first)
    run(a, "--categories", copy, "--json", second)
    assert json.loads(first.read_text())["traces"] == json.loads(second.read_text())["traces"]


def test_bad_files_give_one_sentence(a: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text(a.read_text()[:5000])
    with pytest.raises(
        FileFormatError, match=r"cut\.json is truncated: it ends after 5,000 characters, within event \d+;"
    ):
        run(a, cut)
    with pytest.raises(KnockgraphError, match=r"cannot write .*: the folder .* does not exist"):
        run(a, "--html", tmp_path / "none" / "out.html")


@pytest.mark.skipif(
    not any(group.name == "profile" for group in app.registered_groups), reason="the group is registered elsewhere"
)
def test_the_whole_command_line(a: Path) -> None:
    done = CliRunner().invoke(app, ["profile", "trace", str(a)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Where the wall clock goes" in done.output
