"""The notebooks in the docs run from the first cell to the last, as plain Python in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"
LONG = ("your-own-data", "yeast-screen")
NAMES = [
    pytest.param(path, id=path.stem, marks=[pytest.mark.full] if path.stem in LONG else [])
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
]


def cells(path: Path) -> list[str]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["nbformat"] == 4
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NAMES)
def test_notebook(path: Path, tmp_path: Path) -> None:
    """Each cell's last line is shown, so that what a notebook would draw is made, too."""
    show = "def show(x): getattr(x, '_repr_html_', x.__repr__)()"
    code = [show]
    for cell in cells(path):
        *before, last = cell.split("\n")
        shown = last if "=" in last or last.startswith((" ", ")", "}")) else f"show({last})"
        code += [*before, shown]
    environment = {key: value for key, value in os.environ.items() if key != "KNOCKGRAPH_DATA"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**environment, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_there_are_three() -> None:
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == {"first-steps", "your-own-data", "yeast-screen"}
    for path in NOTEBOOKS.glob("*.ipynb"):
        document = json.loads(path.read_text(encoding="utf-8"))
        assert not any(cell.get("outputs") for cell in document["cells"])
