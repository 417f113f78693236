"""Several runs, or runs on a cluster: Hydra's own launcher (``-m``), for instance submitit on SLURM.

``knockgraph train -m seed=0,1,2 hydra/launcher=submitit_slurm hydra.launcher.partition=gpu`` submits three jobs. Each
job's run directory is Hydra's job directory; a requeued job finds its checkpoint there and continues.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from knockgraph.errors import ConfigError
from knockgraph.train.config import check_words, checked, first_line, free, offer
from knockgraph.train.groups import chosen_by_name


def multirun(words: list[str]) -> None:
    """Hand the words to Hydra."""
    import hydra
    from hydra.errors import HydraException

    words = chosen_by_name(words)
    check_words([word for word in words if not word.startswith("-")])
    offer(words)
    sys.argv = ["knockgraph train", *map(free, words)]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # errors come back here, and become one sentence
    try:
        hydra.main(config_path="pkg://knockgraph.conf", config_name="config", version_base="1.3")(job)()
    except (HydraException, ModuleNotFoundError) as error:
        text = first_line(error).rstrip(".")
        if "submitit" in text:
            text += "; pip install 'knockgraph[slurm]'"
        raise ConfigError(f"the sweep cannot be started: {text}") from error


def job(composed: Any) -> None:
    """One run of a sweep."""
    from hydra.core.hydra_config import HydraConfig

    from knockgraph.run import train

    config = checked(composed)
    if config.run_dir is None:
        config.run_dir = HydraConfig.get().runtime.output_dir
    config.requeue = True  # a launcher starts a job that was cut off again, in the same directory
    train(config)
