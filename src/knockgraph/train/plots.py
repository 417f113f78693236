"""Pictures of a run while it goes on: every n epochs, into its directory, TensorBoard and W&B."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from knockgraph.files import atomic_write
from knockgraph.train.metrics_file import MetricsFile, curves

if TYPE_CHECKING:
    from knockgraph.train.task import Task

_MOST_POINTS = 5000


class Plots(pl.Callback):
    """After every n-th epoch: predicted against measured (validation part, original units), and the curves so far.

    ``plots/epoch-0010-predicted.svg`` and ``plots/curves.svg``; only the first process draws. Classes have curves only.

    Args:
        directory: The run directory.
        every_n_epochs: n.
    """

    def __init__(self, directory: Path, every_n_epochs: int) -> None:
        self.directory = directory
        self.every_n_epochs = every_n_epochs

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Draw."""
        from knockgraph.train.task import Task

        epoch = trainer.current_epoch + 1
        if trainer.sanity_checking or epoch % self.every_n_epochs or not trainer.is_global_zero:
            return
        assert isinstance(pl_module, Task)
        if not pl_module.classes:
            self._write(trainer, f"epoch-{epoch:04d}-predicted", "predicted", _predicted(pl_module))
        self._write(trainer, "curves", "curves", self._curves(trainer, "auroc" if pl_module.classes else "pearson"))

    def _curves(self, trainer: pl.Trainer, score: str) -> Any:
        from knockgraph.html.plots import lines_figure

        for logger in trainer.loggers:
            if isinstance(logger, MetricsFile):
                logger.save()  # rows wait for log_every_n_steps
        logged = curves(self.directory / "metrics.csv")
        shown = ("train/loss", "val/mse", "val/bce", f"val/{score}")
        return lines_figure({name: logged[name] for name in shown if name in logged}, "step", "")

    def _write(self, trainer: pl.Trainer, name: str, tag: str, figure: Any) -> None:
        from knockgraph.html.plots import svg

        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure(f"plots/{tag}", figure, trainer.global_step, close=False)
            elif isinstance(logger, WandbLogger):
                logger.log_image(f"plots/{tag}", [figure], step=trainer.global_step)
        (self.directory / "plots").mkdir(exist_ok=True)
        with atomic_write(self.directory / "plots" / f"{name}.svg") as part:
            part.write_text(svg(figure), encoding="utf-8")


def _predicted(task: Task) -> Any:
    """Of several phenotypes in label units, in which they share the axes; whatever has a label."""
    from knockgraph.html.plots import scatter_figure

    assert task.validated is not None
    predicted, measured = task.validated
    unit = ""
    if len(task.phenotypes) == 1:
        predicted, measured = (task.transform.invert(x.double()) for x in task.validated)
    elif task.transform.kind != "none":
        unit = f" ({task.transform.kind} units)"
    known = ~measured.isnan()
    x, y = (values[known][:_MOST_POINTS].tolist() for values in (measured, predicted))
    return scatter_figure(x, y, f"measured{unit}", f"predicted{unit}")
