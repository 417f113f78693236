"""Interaction profiles smoothed over similar genes, without any learning."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.graph import CellGraph
from knockgraph.graph.structural_features import diffusion
from knockgraph.models.baselines.baseline import Baseline, Floats, GenotypeRows, positive, same_graph, sums


class Smoothing(Baseline):
    r"""A pair is predicted from the pairs that similar genes form with either of the two,

    .. math::
        \hat y_P = \bar y + \operatorname*{mean}_{g < h \in P} \frac{\sum_k w_{gk} y_{kh} + w_{hk} y_{kg}}
            {\sum_k w_{gk} m_{kh} + w_{hk} m_{kg}}, \qquad w_{gk} = e^{T (\cos(s_g, s_k) - 1)}, \quad k \neq g,

    where :math:`m` counts the training measurements of a pair and :math:`y` sums how far they are from the mean (of a
    larger genotype, every pair gets its deviation). If neither gene was ever deleted, both are replaced by similar
    ones. A single gene, or a pair that nothing similar was measured for, gets the mean.

    Args:
        graph: The cell graph; s is its feature ``diffusion``, which is computed where the graph does not have it.
        sharpness: T. Larger values trust only the most similar genes.
    """

    needs_graph = True
    kept = ("direction", "mean", "known", "total", "count")

    def __init__(self, graph: CellGraph, sharpness: float = 10.0) -> None:
        self.graph = graph
        self.sharpness = positive("sharpness", sharpness)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        same_graph("smoothing", self.graph, genotypes)
        s = self.graph.features["diffusion"] if "diffusion" in self.graph.features else diffusion(self.graph)
        self.direction: Floats = torch.nn.functional.normalize(s.double(), dim=1).numpy()
        self.mean = float(y.mean())
        row, code = genotypes.pairs()
        first, second = np.divmod(code, genotypes.num_genes)
        self.known = np.unique(np.concatenate([first, second]))
        n = len(self.known)
        place = np.searchsorted(self.known, first) * n + np.searchsorted(self.known, second)
        self.total, self.count = (
            sums(place, values, n * n).reshape(n, n) for values in ((y - self.mean)[row], np.ones(len(row)))
        )
        self.total, self.count = self.total + self.total.T, self.count + self.count.T

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        row, code = genotypes.pairs()
        found = np.zeros(len(code))
        if len(code) and len(self.known):
            first, second = np.divmod(code, genotypes.num_genes)
            genes, place = np.unique(np.concatenate([first, second]), return_inverse=True)
            found = self._smoothed(genes, place[: len(first)], place[len(first) :])
        pairs = np.maximum(np.bincount(row, minlength=len(genotypes)), 1)
        return self.mean + sums(row, found, len(genotypes)) / pairs

    def _smoothed(self, genes: npt.NDArray[np.int64], g: npt.NDArray[np.int64], h: npt.NDArray[np.int64]) -> Floats:
        """Of pairs of ``genes``, given by their places in it."""
        near = np.exp(self.sharpness * (self.direction[genes] @ self.direction[self.known].T - 1))
        near[genes[:, None] == self.known[None, :]] = 0.0
        total, count = near @ self.total, near @ self.count  # [genes, known]
        column = np.searchsorted(self.known, genes).clip(max=len(self.known) - 1)
        among = self.known[column] == genes
        numerator, denominator = np.zeros(len(g)), np.zeros(len(g))
        for one, other in ((g, h), (h, g)):
            numerator += np.where(among[other], total[one, column[other]], 0.0)
            denominator += np.where(among[other], count[one, column[other]], 0.0)
        new = ~(among[g] | among[h])
        numerator[new] = np.einsum("ik,ik->i", total[g[new]], near[h[new]])
        denominator[new] = np.einsum("ik,ik->i", count[g[new]], near[h[new]])
        smoothed: Floats = np.divide(numerator, denominator, out=np.zeros(len(g)), where=denominator > 0)
        return smoothed
