"""The pairs of a screen as a low-rank matrix."""

from __future__ import annotations

from torch import Tensor

from knockgraph.models.baselines.baseline import Floats, GenotypeRows, positive
from knockgraph.models.baselines.pair_model import Device, PairModel
from knockgraph.models.kernels.soft_impute import THRESHOLDS, soft_impute

_PATH = (1.3, 0.95, 0.75, 0.59, 0.45)


class SoftImpute(PairModel):
    r""":math:`\hat y = c + \sum_{g \in P} b_g + \sum_{g < h \in P} X_{gh}`, X by soft-impute.

    X is the symmetric matrix that minimises :math:`\tfrac12 \sum_\mathrm{measured} (R - X)^2 + \lambda
    \lVert X \rVert_*` for the residuals R; see :func:`~knockgraph.models.kernels.soft_impute.soft_impute`. An
    unseen gene has no interactions.

    Args:
        threshold: :math:`\lambda`, in units of the labels' spread times the root of the number of genes; by default
            chosen by the validation part, 0.59 without one.
        device: Where it is fitted; ``auto``: on a GPU if there is one.
    """

    def __init__(self, threshold: float | None = None, device: Device = "auto") -> None:
        super().__init__(device)
        self.threshold = None if threshold is None else positive("threshold", threshold)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        given = self.threshold
        self._path: tuple[float, ...] = THRESHOLDS if given is None else (1.6 * given, given)
        super()._fit(genotypes, y)

    def _fit_again(self, genotypes: GenotypeRows, y: Floats) -> None:
        super()._fit(genotypes, y)

    def _fit_pairs(self, y: Tensor, count: Tensor) -> None:
        measured, known = self._profiles(y)
        rows = self._chosen_rows(unseen=False)
        if self.threshold is not None or rows is None:
            self.scores = soft_impute(measured, known, self._path)[-1]
            return
        found, score = self.scores, -2.0
        for k, candidate in enumerate(soft_impute(measured, known, _PATH), 1):
            self.scores = candidate
            if (its := self._score(rows)) > score:
                found, score, self._path = candidate, its, _PATH[:k]
        self.scores = found
