"""The trainer of a run: callbacks, loggers, devices."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import lightning.pytorch as pl
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch import callbacks
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.plugins.precision import DoublePrecision
from lightning.pytorch.utilities import rank_zero_only

from knockgraph.strategies import placement
from knockgraph.train import saving, slurm, wandb_run
from knockgraph.train.finite import Finite
from knockgraph.train.learning import Learning
from knockgraph.train.metrics_file import MetricsFile
from knockgraph.train.plots import Plots
from knockgraph.train.progress import RunProgress
from knockgraph.train.ranks import Ranks
from knockgraph.train.schema import EMPTY, Config

# What is monitored → the file of the best, and whether larger is better.
_BEST_REGRESSION = {"val/mse": ("best-error.ckpt", False), "val/pearson": ("best-score.ckpt", True)}
_BEST_CLASSES = {"val/bce": ("best-error.ckpt", False), "val/auroc": ("best-score.ckpt", True)}

_STEPS = 1400  # that a run takes by default, within these numbers of epochs
_FEWEST_EPOCHS, _MOST_EPOCHS = 7, 100

Kind = TypeVar("Kind", bound=pl.Callback)


class SharedStore(pl.Callback):
    """Ranks other than the first read what it wrote for a stored strategy; Lightning waits for all before ``setup``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Open it."""
        if not trainer.is_global_zero:
            pl_module.strategy.open(self.directory)  # type: ignore[union-attr, operator]


class Float64(DoublePrecision):
    """Parameters in float64; a batch is indices and float32 labels, which the task converts itself."""

    def convert_input(self, data: Any) -> Any:
        """As it is: Lightning cannot convert an immutable batch."""
        return data


class Throughput(pl.Callback):
    """Steps and samples per second of each training epoch, by the wall clock."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock: a run that is resumed in the middle of an epoch does not start that epoch again."""
        self._start, self._steps, self._samples = time.perf_counter(), 0, 0

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self.on_train_start(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count; validation inside the epoch is not counted because the clock is read here."""
        self._steps += 1
        self._samples += batch.step_size
        self._seconds = time.perf_counter() - self._start

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the rates; they are unknown where a run was resumed at the end of the epoch."""
        seconds = self._seconds if self._steps else math.nan
        pl_module.log_dict({"train/it_per_s": self._steps / seconds, "train/samples_per_s": self._samples / seconds})


class EarlyStopping(callbacks.EarlyStopping):
    """Early stopping; a run that was stopped by it stays so when it is resumed, unless it is given more patience."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """All but the patience, which is the config's."""
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop again."""
        trainer.should_stop = 0 < self.wait_count >= self.patience


class LearningRate(pl.Callback):
    """A run that is resumed with another learning rate goes on with its schedule, times new / old.

    Args:
        lr: The learning rate of the config.
    """

    def __init__(self, lr: float) -> None:
        self.lr = lr
        self._factor = 1.0

    def state_dict(self) -> dict[str, Any]:
        """The rate to which those of the optimizer and the schedule belong."""
        return {"lr": self.lr}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Compare with it."""
        self._factor = self.lr / state_dict["lr"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Change what was restored."""
        factor, self._factor = self._factor, 1.0
        if factor == 1.0:
            return
        for group in (group for optimizer in trainer.optimizers for group in optimizer.param_groups):
            for key in ("lr", "initial_lr"):
                if key in group:
                    group[key] *= factor
        for config in trainer.lr_scheduler_configs:
            if hasattr(config.scheduler, "base_lrs"):
                config.scheduler.base_lrs = [lr * factor for lr in config.scheduler.base_lrs]


class Accumulation(GradientAccumulationScheduler):
    """Batches per optimizer step, by epoch; also of one that is resumed in its middle, which does not start anew."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set it."""
        super().on_train_start(trainer, pl_module)
        self.on_train_epoch_start(trainer)


def set_epochs(config: Config, experiments: int) -> None:
    """Set ``trainer.max_epochs`` where it is not given: to as many as make 1,400 steps, from 7 to 100; with
    ``max_steps`` to as many as that takes.

    Args:
        config: The config, which is changed.
        experiments: Those of the training part.
    """
    t = config.trainer
    if t.max_epochs is not None:
        return
    if t.max_steps != -1:
        t.max_epochs = -1
        return
    size = config.loader.batch_size * t.devices * t.num_nodes * t.accumulate.get(0, 1)
    t.max_epochs = min(max(math.ceil(_STEPS / math.ceil(experiments / size)), _FEWEST_EPOCHS), _MOST_EPOCHS)


def make_trainer(
    config: Config, directory: Path, folder: Path, say: Callable[[str], None] = lambda text: None
) -> pl.Trainer:
    """The trainer of a run: callbacks, loggers, devices.

    Args:
        config: The config.
        directory: The run directory.
        folder: Where checkpoints go.
        say: Told what looks wrong during the run.
    """
    t = config.trainer
    classes = config.task == "classification"
    metrics = MetricsFile(directory, t.log_every_n_steps)
    best = _BEST_CLASSES if classes else _BEST_REGRESSION
    finite = Finite(config, directory)
    used: list[pl.Callback] = [
        Throughput(),
        LearningRate(config.optimizer.lr),
        finite,
        *([] if config.task in EMPTY else [Learning(say)]),  # before the checkpoints, which hold what it said
        saving.Checkpoints(folder, t.checkpoint_every_n_steps, best, metrics.count, finite.check_weights),
    ]
    if t.accumulate != {0: 1}:
        used.append(Accumulation(t.accumulate))
    if t.early_stopping is not None:
        used.append(EarlyStopping("val/bce" if classes else "val/mse", patience=t.early_stopping))
    if t.plot_every_n_epochs:
        used.append(Plots(directory, t.plot_every_n_epochs))
    if t.progress_bar:
        used.append(RunProgress(t.log_every_n_steps, say))
    if placement(config.strategy.name) == "stored":
        used.append(SharedStore(directory / "store"))
    loggers: list[Logger] = [metrics]
    if find_spec("tensorboard") is not None:  # absent on machines that only measure
        loggers.append(TensorBoardLogger(directory, name="", version="", sub_dir="tensorboard"))
    if config.logging.wandb != "off":
        loggers.append(wandb_run.wandb_logger(config, directory, is_main_process()))
    torchrun = TorchElasticEnvironment.detect()
    cluster = [slurm.Slurm()] if slurm.used() and not torchrun else []
    return pl.Trainer(
        accelerator=t.accelerator,
        devices=t.devices,
        num_nodes=t.num_nodes,
        strategy=_ranks(config) if torchrun or t.devices * t.num_nodes > 1 else "auto",
        precision=None if t.precision == "64-true" else t.precision,  # type: ignore[arg-type]
        max_epochs=t.max_epochs,
        max_steps=t.max_steps,
        gradient_clip_val=t.gradient_clip,
        logger=loggers,
        callbacks=used,
        plugins=[saving.SafeCheckpointIO(), *([Float64()] if t.precision == "64-true" else []), *cluster],
        enable_checkpointing=False,  # ours above: without pickle, verified
        enable_progress_bar=False,  # ours above: one bar for the whole run
        enable_model_summary=False,
        log_every_n_steps=t.log_every_n_steps,
        use_distributed_sampler=False,  # the loader shares the experiments out itself
        num_sanity_val_steps=1,
        default_root_dir=directory,
    )


def _ranks(config: Config) -> Ranks:
    # While the first process writes a store, which may take hours, the others wait for it.
    stored = placement(config.strategy.name) == "stored"
    timeout = timedelta(days=2) if stored else timedelta(seconds=config.trainer.process_timeout)
    return Ranks(timeout=timeout)


def callback(trainer: pl.Trainer, kind: type[Kind]) -> Kind:
    """The trainer's callback of this kind."""
    return next(c for c in trainer.callbacks if isinstance(c, kind))  # type: ignore[attr-defined]


def quiet() -> None:
    """Silence advice of Lightning that does not apply here; real warnings stay."""
    for name in (
        "pytorch.utilities.rank_zero",
        "pytorch.accelerators.cuda",
        "fabric.utilities.seed",
        "fabric.utilities.distributed",
    ):
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
    for text in (
        ".*does not have many workers.*",
        ".*overridden .on_before_batch_transfer.*",  # the task takes PyG's batches, which our data module has none of
        ".*exists and is not empty.*",
        ".*GPU available but not used.*",
        ".*srun. command is available.*",  # on every machine of a cluster; slurm.check_tasks knows where it is needed
        ".*callbacks used to create the checkpoint.*",  # early stopping may be switched off when a run is resumed
        ".*LeafSpec.*",
        ".*smaller than the logging interval.*",  # a screen of a few rows is logged once per epoch
        ".*recommended to use .self.log.*sync_dist=True.*",  # what is logged without it is the same on all ranks
    ):
        warnings.filterwarnings("ignore", text)


def is_main_process() -> bool:
    """Whether this process writes and speaks: the first of those that torchrun or SLURM started, or the only one."""
    return getattr(rank_zero_only, "rank", 0) == 0
