"""The notebooks of the docs run from the first cell to the last, as stored: without outputs."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
DATA = Path(os.environ.get("KNOCKGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))
QUICK = "first-steps"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def run(name: str, folder: Path) -> nbformat.NotebookNode:
    """Execute a notebook in a folder; a cell that fails, fails the test with its traceback."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    return client.execute()


def shown(notebook: nbformat.NotebookNode) -> str:
    """Everything that the cells print or show, as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


@pytest.mark.parametrize("name", NAMES)
def test_stored_without_outputs(name: str) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 20_000


def test_the_three_are_there() -> None:
    assert NAMES == ["first-steps", "yeast-screen", "your-own-data"]


def test_first_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = shown(run(QUICK, tmp_path))
    assert (tmp_path / "explorer.html").is_file()
    assert (tmp_path / "first-model" / "report.html").is_file()
    assert "YAA001W+YAA010C" in text
    assert "Explanation(" in text


@pytest.mark.full
def test_your_own_data(tmp_path: Path) -> None:
    text = shown(run("your-own-data", tmp_path))
    assert "genes: columns query and array" in text
    assert len((tmp_path / "candidates.csv").read_text().splitlines()) == 11


@pytest.mark.full
def test_yeast_screen_without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KNOCKGRAPH_DATA", str(tmp_path / "none"))
    assert "the demo cell" in shown(run("yeast-screen", tmp_path))


@pytest.mark.full
def test_yeast_screen_with_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (DATA / "interactions" / "costanzo2016_subset.tsv.gz").is_file():
        pytest.skip("the real yeast files are not here; set KNOCKGRAPH_DATA to the folder that holds interactions/ …")
    monkeypatch.setenv("KNOCKGRAPH_DATA", str(DATA))
    assert "real data" in shown(run("yeast-screen", tmp_path))
