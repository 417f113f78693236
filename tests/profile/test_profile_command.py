"""``knockgraph profile`` as its users call it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_runs import LEAST

from knockgraph.train import config as config_module

Command = Callable[..., tuple[str, str]]
SHORT = ["--steps", "4", "--warmup", "2"]


def test_one_setting(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is no Hydra."""
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    files = ["--json", f"{tmp_path}/p.json", "--html", f"{tmp_path}/p.html", "--markdown", f"{tmp_path}/p.md"]
    out, _ = command("profile", *LEAST, *SHORT, *files)
    result = json.loads((tmp_path / "p.json").read_text())
    assert result["summary"].split(":")[0] in " ".join(out.split())
    runs = result["runs"]
    assert set(runs) >= {"full", "empty", "model-only"}
    for run in runs.values():
        assert sum(run["phases"].values()) == pytest.approx(run["wall_seconds"], rel=0.05)
    for text in ("Time per step", "wait for data", "Full = empty + model + unexplained", "An epoch", "wall clock"):
        assert text in out
        assert text in (tmp_path / "p.md").read_text()
    page = (tmp_path / "p.html").read_text()
    assert page.count("<svg") == 2  # bars and timeline
    assert "http" not in page.split("<svg")[0]
    assert "milliseconds per step" in page


def test_a_comparison(command: Command, tmp_path: Path) -> None:
    common = [word for word in LEAST if not word.startswith("model=")]
    files = ["--json", f"{tmp_path}/c.json", "--html", f"{tmp_path}/c.html", "--markdown", f"{tmp_path}/c.md"]
    names = ["constant", "hetero-small+lazy-mask model.options.channels=4"]
    out, _ = command("profile", "--compare", *names, *common, *SHORT, *files)
    result: dict[str, Any] = json.loads((tmp_path / "c.json").read_text())
    d = result["decomposition"]
    assert d["more_steps"] * d["slower_steps"] * d["unexplained"] == pytest.approx(d["measured"], rel=1e-9)
    by = result["slower_steps_by"]
    assert by["model"] * by["strategy"] == pytest.approx(d["slower_steps"], rel=1e-9)
    assert result["middle"]["setting"] == "hetero+node-mask"
    assert {x["condition"] for x in result["differences"]} >= {"model", "strategy", "graphs per step"}
    for key in "ab":
        assert list(result[key]["runs"]) == ["full", "empty", "model-only"]
    assert list(result["middle"]["runs"]) == ["full"]
    assert "Full = empty + model + unexplained" in out
    assert "Everything but the model takes" in out
    lines = [line.strip() for line in out.splitlines()]
    assert lines.index("Unequal conditions") < lines.index("An epoch") < lines.index("The ratio of the epochs")
    page = (tmp_path / "c.html").read_text()
    assert page.index("Unequal conditions</h2>") < page.index("<svg")
    assert page.count("<svg") == 3
    # Earlier results can be compared without running anything.
    for key in "ab":
        (tmp_path / f"{key}.json").write_text(json.dumps(result[key]))
    command("profile", "--compare", f"{tmp_path}/a.json", f"{tmp_path}/b.json", "--json", f"{tmp_path}/again.json")
    assert json.loads((tmp_path / "again.json").read_text())["decomposition"] == d


def test_traces(command: Command, tmp_path: Path) -> None:
    options = [*LEAST, "trainer.max_epochs=2"]
    out, _ = command("profile", "--trace", f"{tmp_path}/t", "--wait", "2", "--active", "3", *options)
    assert "recording cost" in out
    (file,) = (tmp_path / "t").iterdir()
    out, _ = command("profile", "trace", str(file))
    assert "forward" in out


def test_overhead(command: Command) -> None:
    out, _ = command("profile", "--overhead", *LEAST, *SHORT)
    assert "the timers cost" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trace", "t"], "the trace would be complete after step 626 (wait 600 + warm-up 1 + active 25)"),
        (["--only", "half"], "--only 'half' is not known: use full, empty, model-only, empty-no-backward"),
        (["--steps", "0"], "0 steps after 10 steps of warm-up cannot be measured"),
        (["--device", "tpu"], "--device 'tpu' is not known: use cpu or cuda"),
        (["banana"], "there is no setting 'banana'"),
        (["banana=1"], "banana"),
        (["--compare", "dango", "banana"], "there is no setting 'banana'"),
    ],
)
def test_errors_are_one_sentence(command: Command, words: list[str], text: str) -> None:
    _, err = command("profile", *words, *LEAST, code=1)
    assert text in " ".join(err.split())
    assert "Traceback" not in err


def test_help_speaks_of_traces(command: Command) -> None:
    out, _ = command("profile", "--help")
    assert "knockgraph profile trace FILE" in " ".join(out.split())
    out, _ = command("profile", "trace", "--help")
    assert "Self time per category" in out
