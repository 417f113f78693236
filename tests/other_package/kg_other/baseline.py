"""A baseline."""

import numpy as np

from knockgraph.models.baselines import Baseline


class Median(Baseline):
    def _fit(self, genotypes, y):
        self.median = float(np.median(y))

    def _predict(self, genotypes):
        return np.full(len(genotypes), self.median)
