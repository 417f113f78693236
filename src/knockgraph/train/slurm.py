"""A run whose processes SLURM has started: one task per device."""

from __future__ import annotations

import os

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from knockgraph.errors import ConfigError
from knockgraph.train.schema import TrainerConfig


class Slurm(SLURMEnvironment):
    """SLURM without Lightning's own requeueing, which saves in the middle of a step and prefers that file ever after.

    Lightning wants ``--ntasks-per-node`` even where ``--ntasks`` means the same; :func:`check_tasks` counts the tasks
    that there are.
    """

    def __init__(self) -> None:
        super().__init__(auto_requeue=False)

    @staticmethod
    def _validate_srun_variables() -> None:
        pass

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """See :func:`check_tasks`."""


def used() -> bool:
    """Whether SLURM has started this process; in a shell on a node (``salloc``, ``srun --pty bash``) it has not."""
    return "SLURM_NTASKS" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive")


def check_tasks(trainer: TrainerConfig) -> None:
    """Refuse a job in which srun has started another number of processes than the run has devices."""
    nodes = f"{trainer.devices}(x{trainer.num_nodes})" if trainer.num_nodes > 1 else f"{trainer.devices}"
    several = trainer.devices * trainer.num_nodes > 1
    started = os.environ.get("SLURM_STEP_TASKS_PER_NODE")
    if started is None and several:
        raise ConfigError(
            f"config key 'trainer.devices': {trainer.devices * trainer.num_nodes} processes are wanted, but SLURM has "
            "started one; put srun in front of the command"
        )
    if started is not None and started != nodes:
        raise ConfigError(
            f"config key 'trainer.devices': srun started {started} tasks per node (×nodes), but trainer.devices is "
            f"{trainer.devices} and trainer.num_nodes {trainer.num_nodes}; make --ntasks-per-node and --nodes equal to "
            "them"
        )
