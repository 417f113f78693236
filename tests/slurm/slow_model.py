"""A model that is slow the first time a job runs, so that there is time to interrupt it; its numbers are the same."""

import os
import time

from torch import Tensor

from knockgraph.models.hetero import HeteroCellModel
from knockgraph.strategies import PerturbedGraphs


class SlowModel(HeteroCellModel):
    def encode(self, view: PerturbedGraphs) -> tuple[Tensor, ...]:
        if self.training and "SLURM_RESTART_COUNT" not in os.environ:
            time.sleep(float(os.environ.get("SLOW_STEPS", "0")))
        return super().encode(view)
