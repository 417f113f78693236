"""Standard streams that are closed, that nobody reads, or that take ASCII only; memory that does not suffice."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from knockgraph import cli
from knockgraph.cli import terminal

KNOCKGRAPH = f"{sys.executable} -W ignore -m knockgraph"
LEAST = (
    "data.experiments=80 loader.batch_size=16 trainer.max_epochs=1 model=additive trainer.progress_bar=false "
    "trainer.accelerator=cpu trainer.baselines=[mean]"
)


def shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, with the exit code of knockgraph rather than of what it is piped into."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", **variables}
    words = ["bash", "-c", f"set -o pipefail; {line.format(kg=KNOCKGRAPH)}"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_a_run_whose_output_nobody_reads(tmp_path: Path) -> None:
    done = shell(f"{{kg}} train {LEAST} run_dir=run --json r.json | head -1", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    assert (tmp_path / "run" / "report.html").is_file()
    assert "metrics" in json.loads((tmp_path / "r.json").read_text())
    done = shell("{kg} predict run --genes WT --genes YAA001W --json p.json | true", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "p.json").read_text())["genotypes"] == 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("{kg} graph build --preset demo -o x <&- >&- 2>&-", 0),
        ("{kg} graph info none 2>&1 | true", 1),
    ],
)
def test_closed_streams(line: str, code: int, tmp_path: Path) -> None:
    done = shell(line, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert (tmp_path / "x").is_file() == (code == 0)


def test_a_file_name_that_is_no_text(tmp_path: Path) -> None:
    """It was called a damaged file, or an internal error: Arrow and safetensors know UTF-8 only."""
    done = shell("{kg} graph build --preset demo -o $'x\\xfc.cellgraph'", tmp_path)
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert said.startswith("error: 'x\\udcfc.cellgraph' is not UTF-8 text; rename the file or folder, or set LC_ALL")
    assert not list(tmp_path.iterdir())


def test_an_encoding_of_few_characters(tmp_path: Path) -> None:
    """Nothing is lost, and nothing ends in a traceback."""
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    done = shell("{kg} bench strategies --only node-mask --repeats 1", tmp_path, **ascii_only)
    assert done.returncode == 0, done.stderr
    assert "\\u2013" in done.stdout


@pytest.mark.parametrize("channels", [10**8, 10**12])
def test_absurd_sizes(channels: int, command: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    """Far beyond any machine: one sentence, and nothing is taken or written."""
    words = ["model=hetero-small", f"model.options.channels={channels}", f"run_dir={tmp_path}/run"]
    error = command("train", *words, "trainer.accelerator=cpu", code=1)[1]
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_memory_errors(command: Callable[..., tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (MemoryError(), MemoryError("std::bad_alloc"), torch.OutOfMemoryError("CUDA out of memory")):

        def fail(kind: Exception = kind) -> None:
            raise kind

        monkeypatch.setattr(cli, "app", fail)
        assert command("doctor", code=1)[1].startswith("error: out of memory (")


def test_lines_keep_their_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.out.verbatim("a\tb")
    assert capsys.readouterr().out == "a\tb\n"
