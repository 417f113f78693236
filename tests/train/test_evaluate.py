"""``evaluate`` reads a run, also one that is being trained, and writes nothing into it."""

import shutil
from pathlib import Path

import pytest
from training_runs import config

from knockgraph.evaluate import evaluate
from knockgraph.run import train


@pytest.mark.usefixtures("no_page")
def test_the_store_of_a_run_is_only_read(tmp_path: Path) -> None:
    """It was written anew, under a training that was reading it."""
    options = [
        "strategy=stored-indices",
        "model=hetero-small",
        "model.options.channels=4",
        "model.options.messages.layers=1",
    ]
    directory = train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)

    def files() -> dict[Path, tuple[int, int]]:
        found = ((path, path.stat()) for path in directory.rglob("*") if path.is_file())
        return {path: (about.st_ino, about.st_mtime_ns) for path, about in found}

    before = files()
    first = evaluate(directory, "test", "best-error", lambda _: None)
    assert files() == before
    shutil.rmtree(directory / "store")
    assert evaluate(directory, "test", "best-error", lambda _: None)["predicted"] == first["predicted"]
    assert not (directory / "store").exists()
