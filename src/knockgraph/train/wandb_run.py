"""Logging to W&B, when asked: one W&B run per run directory, continued when the run is resumed."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import lightning.pytorch as pl
from lightning.pytorch.loggers import WandbLogger

from knockgraph.errors import ConfigError
from knockgraph.files import atomic_write

if TYPE_CHECKING:
    from knockgraph.train.schema import Config


def wandb_logger(config: Config, directory: Path, main: bool) -> WandbLogger:
    """The logger of a run; offline ones are sent later with ``wandb sync RUN/wandb/offline-run-…``.

    Args:
        config: The config, which W&B is told.
        directory: The run directory.
        main: Whether this process writes.
    """
    if find_spec("wandb") is None:
        raise ConfigError(
            "config key 'logging.wandb': W&B is not installed; pip install 'knockgraph[wandb]', or set it to off"
        )
    path = directory / "wandb" / "id"
    if main and not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(secrets.token_hex(8), encoding="utf-8")
    logger = WandbLogger(
        name=directory.name,
        id=path.read_text(encoding="utf-8") if main else None,
        resume="allow",
        project=config.logging.project,
        entity=config.logging.entity,
        group=config.logging.group,
        tags=config.logging.tags,
        save_dir=directory,
        offline=config.logging.wandb == "offline",
    )
    logger.log_hyperparams(asdict(config))
    return logger


def finish(trainer: pl.Trainer) -> None:
    """End W&B's runs: the next run of this process, in a sweep, must not go on with them."""
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger):
            logger.experiment.finish()
