"""Several runs, or runs on a cluster: Hydra's own launcher (``-m``), for instance submitit on SLURM.

``knockgraph train -m seed=0,1,2 hydra/launcher=submitit_slurm hydra.launcher.partition=gpu`` submits three jobs. Each
job's run directory is Hydra's job directory; a requeued job finds its checkpoint there and continues.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def multirun(words: list[str]) -> None:
    """Hand the words to Hydra."""
    import hydra

    sys.argv = ["knockgraph train", *words]
    hydra.main(config_path="pkg://knockgraph.conf", config_name="config", version_base="1.3")(job)()


def job(composed: Any) -> None:
    """One run of a sweep."""
    from hydra.core.hydra_config import HydraConfig

    from knockgraph.train import checkpoints
    from knockgraph.train.config import checked
    from knockgraph.train.run import train

    config = checked(composed)
    if config.run_dir is None:
        config.run_dir = HydraConfig.get().runtime.output_dir
    if (Path(config.run_dir) / "checkpoints" / checkpoints.LAST).is_file():
        config.resume = True
    train(config)
