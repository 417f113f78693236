"""What a run is that does not say: as long as the size of the screen asks for, on the command line as in Python."""

from pathlib import Path

import numpy as np
import pytest
from training_runs import QUIET

import knockgraph as kg
from knockgraph.run import train
from knockgraph.train import checkpoints
from knockgraph.train.config import compose, load
from knockgraph.train.data import TrainingData
from knockgraph.train.plain_config import compose_plain
from knockgraph.train.run import _announce
from knockgraph.train.task import Task
from knockgraph.train.trainer import set_epochs


@pytest.mark.parametrize(
    ("words", "experiments", "epochs"),
    [
        ([], 6400, 7),  # the demo
        ([], 900, 49),
        ([], 20, 100),
        (["model=hetero-fast"], 260_000, 7),
        (["trainer.devices=2", "run_dir=x"], 900, 94),
        (["trainer.accumulate={0:2}"], 900, 94),
        (["trainer.max_epochs=3"], 900, 3),
        (["trainer=gpu"], 900, 50),
        (["trainer.max_steps=90"], 900, -1),
        (["trainer.max_steps=90", "trainer.max_epochs=2"], 900, 2),
    ],
)
def test_default(words: list[str], experiments: int, epochs: int) -> None:
    config = compose(words)
    set_epochs(config, experiments)
    assert config.trainer.max_epochs == epochs


@pytest.mark.usefixtures("no_page")
def test_the_command_line_and_python_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.train.trainer._STEPS", 30)
    words = ["data.experiments=80", "loader.batch_size=16", "model=additive", f"run_dir={tmp_path}/run", *QUIET]
    for _ in range(2):  # the second time it goes on, as it is
        train(compose_plain([*words, "requeue=true"]), say=lambda _: None)
        assert load(tmp_path / "run" / "config.yaml").trainer.max_epochs == 8
        assert checkpoints.load(tmp_path / "run" / "checkpoints" / checkpoints.LAST)["global_step"] == 32
    fitted = kg.fit(
        kg.demo_cell(), kg.demo_screen(80), model="additive", batch_size=16, baselines=["mean"], verbose=False
    )
    assert fitted.config.trainer.max_epochs == 8


@pytest.mark.usefixtures("no_page")
def test_the_model_of_the_demo_on_a_large_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python another preset is chosen; the command line says so."""
    words = ["data.experiments=80", "loader.batch_size=16", "model=hetero-small", "model.options.channels=4", *QUIET]
    said: dict[int, list[str]] = {}
    for most in (360, 361):
        said[most] = []
        monkeypatch.setattr("knockgraph.models.presets.SMALL_CELL", most)
        train(compose_plain([*words, "trainer.max_steps=1", f"run_dir={tmp_path}/{most}"]), say=said[most].append)
    note = "note: model=hetero-small is made for cells of a few hundred genes; for 360 genes try model=hetero-fast"
    assert [note in said[most] for most in (360, 361)] == [True, False]


def test_a_screen_of_pairs_names_the_model_that_is_best_on_pairs(tmp_path: Path) -> None:
    """The default model of one's own data is that of the demo."""
    screen = kg.demo_screen(3_000)
    pairs = screen.take(np.flatnonzero(screen.genotypes.size == 2))
    kg.demo_cell().save(tmp_path / "a.cellgraph")
    notes = []
    for k, (table, words) in enumerate(
        [
            (pairs, ["model=additive"]),
            (pairs, ["model=additive", "trainer.baselines=[mean,profile-propagation]"]),
            (pairs, ["model=mean"]),
            (screen, ["model=additive"]),
        ]
    ):
        table.save(tmp_path / f"{k}.parquet")
        files = [f"data.cell={tmp_path}/a.cellgraph", f"data.screen={tmp_path}/{k}.parquet", f"run_dir={tmp_path}/{k}"]
        said: list[str] = []
        data = TrainingData.from_config(config := compose_plain([*QUIET, *files, *words]))
        _announce(config, data, Task(config, data.graph, data.transform), tmp_path, said.append)
        notes.append(sum("model=profile-propagation, which data=interactions chooses" in line for line in said))
    assert notes == [1, 0, 0, 0]
