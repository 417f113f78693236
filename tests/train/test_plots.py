"""Pictures during a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import config

from knockgraph.html import plots
from knockgraph.run import train
from knockgraph.train.data import TrainingData


def events(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory / "tensorboard"))
    found.Reload()
    return found


def test_every_second_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[list[float], list[float]]] = []
    original = plots.scatter_figure

    def watched(x: list[float], y: list[float], *labels: str) -> Any:
        drawn.append((x, y))
        return original(x, y, *labels)

    monkeypatch.setattr(plots, "scatter_figure", watched)
    made = config(f"run_dir={tmp_path}/run", "trainer.max_epochs=5", "trainer.plot_every_n_epochs=2")
    train(made, say=lambda _: None)
    folder = tmp_path / "run" / "plots"
    names = {path.name for path in folder.iterdir()}
    assert names == {"epoch-0002-predicted.svg", "epoch-0004-predicted.svg", "curves.svg"}
    assert all(path.read_text().startswith("<svg") for path in folder.iterdir())
    assert "val/pearson" in (folder / "curves.svg").read_text()

    data = TrainingData.from_config(made)
    measured = data.bound.values[data.rows["val"], 0].tolist()
    assert len(drawn) == 3  # the report's is the third
    for x, y in drawn[:2]:
        np.testing.assert_allclose(x, measured, rtol=1e-5, atol=1e-6)
        assert len(y) == len(measured)
    assert drawn[0][1] != drawn[1][1]

    images = events(tmp_path / "run")
    assert set(images.Tags()["images"]) == {"plots/predicted", "plots/curves"}
    assert [image.step for image in images.Images("plots/predicted")] == [8, 16]
    assert "matplotlib.pyplot" in sys.modules
    from matplotlib import pyplot as plt

    assert not plt.get_fignums()  # every figure was closed


def test_classes_have_curves_only(tmp_path: Path) -> None:
    options = ["task=classification", "loss=bce", "data.threshold=0.0", "trainer.plot_every_n_epochs=1"]
    train(config(f"run_dir={tmp_path}/run", *options), say=lambda _: None)
    assert [path.name for path in (tmp_path / "run" / "plots").iterdir()] == ["curves.svg"]


def test_none_by_default(tmp_path: Path) -> None:
    train(config(f"run_dir={tmp_path}/run"), say=lambda _: None)
    assert not (tmp_path / "run" / "plots").exists()


@pytest.mark.parametrize("values", [[-0.0045, -0.00357, -0.000363], [-4.15e-4, 1.22e-4, -5.6e-05], [12.0], [0.0], []])
def test_the_values_of_signed_bars_stay_within_the_axes(values: list[float]) -> None:
    """Else the longest one would be written over the names of the bars."""
    from matplotlib import pyplot as plt

    figure = plots.signed_bars_figure({f"GENE{k}": v for k, v in enumerate(values)}, "part", "by gene")
    figure.canvas.draw()
    (axes,) = figure.axes
    inside = axes.get_window_extent()
    for text in axes.texts:
        box = text.get_window_extent()
        assert inside.x0 <= box.x0
        assert box.x1 <= inside.x1 + 1
    plt.close(figure)
