"""How far measurements are expected to be from what a pair process predicts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from knockgraph.models.kernels.pair_process import PairProcess

_PAIRS = 3000  # of each gene, in all samples together
_MOST_SAMPLES = 16


class GeneSpread(NamedTuple):
    """What is needed of each gene, ``[genes]``."""

    scale: Tensor  #: :math:`\\sigma`, how strong its interactions are, mean 1
    posterior: Tensor  #: V, the mean posterior variance of its pairs
    prior: Tensor  #: :math:`\\sqrt v K_{gg}`, so that a product of two is a prior variance

    @staticmethod
    def of(process: PairProcess, scale: Tensor) -> GeneSpread:
        """Of the genes of a process; with many genes few samples of the posterior are enough for a mean over pairs."""
        n = len(scale)
        samples = min(max(_PAIRS // max(n, 1), 1), _MOST_SAMPLES)
        variance = process.spread(samples).fill_diagonal_(0.0).sum(1) / max(n - 1, 1)
        return GeneSpread(scale, variance, process.variance.sqrt() * process.kernel.diagonal())

    def mixed(self, share: Tensor) -> GeneSpread:
        """Of unseen genes, as means over the genes that they are mixtures of; ``share`` is ``[unseen, genes]``."""
        weight = share.clamp(min=0)
        total = weight.sum(1, keepdim=True)
        weight = torch.where(total > 0, weight / total, 1 / max(len(self.scale), 1))
        return GeneSpread(*(weight @ own for own in self))
