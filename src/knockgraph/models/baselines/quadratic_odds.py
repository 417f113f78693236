"""Log-odds that are a quadratic function of the features: smooth, where trees have steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.models.baselines.baseline import Floats, packed, unpacked
from knockgraph.models.baselines.pair_features import Matrix

_FAR = 3.0  # standard deviations beyond which a feature grows no more
_PENALTY = 1000.0
_ZEROS = 45_000  # rows of the class 0 that are fitted, at most; the rare class decides, and all its rows are fitted
_BLOCK = 16_384  # rows at once


@dataclass(frozen=True, eq=False)
class QuadraticOdds:
    r""":math:`f(x) = b + w^\top z + z^\top Q z`, the standardised features :math:`z = (x - \mu) / s` clipped at ±3, 0
    where missing; Q is upper triangular. Fitted by logistic regression with the penalty
    :math:`500\, (\lVert w \rVert^2 + \lVert Q \rVert^2)` on the sum of the log losses.

    Attributes:
        center: :math:`\mu`, ``[features]``.
        scale: s.
        offset: b.
        linear: w, ``[features]``.
        square: Q, ``[features, features]``.
    """

    center: Floats
    scale: Floats
    offset: float
    linear: Floats
    square: Floats

    @staticmethod
    def learned(table: Matrix, y: Floats, seed: int = 0) -> QuadraticOdds:
        """From rows of both classes; of very many zeros some are drawn, and b is corrected for those left out.

        Args:
            table: ``[rows, features]``, NaN where missing; no column is empty.
            y: 0 or 1, ``[rows]``.
            seed: Of the draw.
        """
        from sklearn.linear_model import LogisticRegression

        center: Floats = np.asarray(np.nanmean(table, 0, dtype=np.float64))
        scale: Floats = np.asarray(np.nanstd(table, 0, dtype=np.float64))
        scale = np.where(scale > 0, scale, 1.0)
        zeros = np.flatnonzero(y == 0)
        drawn = np.random.default_rng(seed).permutation(zeros)[:_ZEROS]
        kept = np.sort(np.concatenate([np.flatnonzero(y != 0), drawn]))
        z = _standardised(table[kept], center, scale)
        first, second = np.triu_indices(z.shape[1])
        x = np.concatenate([z, z[:, first] * z[:, second]], 1).astype(np.float32)
        model = LogisticRegression(C=1 / _PENALTY, solver="newton-cholesky")
        weight = model.fit(x, y[kept] != 0).coef_[0].astype(np.float64)
        square = np.zeros((z.shape[1], z.shape[1]))
        square[first, second] = weight[z.shape[1] :]
        offset = float(model.intercept_[0]) + float(np.log(len(drawn) / len(zeros)))
        return QuadraticOdds(center, scale, offset, weight[: z.shape[1]], square)

    def __call__(self, table: Matrix) -> Floats:
        """f of each row of ``table``, ``[rows]``."""
        found = np.full(len(table), self.offset)
        for start in range(0, len(table), _BLOCK):
            part = slice(start, start + _BLOCK)
            z = _standardised(table[part], self.center, self.scale)
            found[part] += z @ self.linear + np.einsum("rk,rk->r", z @ self.square, z)
        return found

    def state(self) -> dict[str, Any]:
        """As tensors and numbers."""
        return {name: packed(value) for name, value in vars(self).items()}

    @staticmethod
    def from_state(state: dict[str, Any]) -> QuadraticOdds:
        """The inverse of :meth:`state`."""
        return QuadraticOdds(**{name: unpacked(value) for name, value in state.items()})


def _standardised(table: Matrix, center: Floats, scale: Floats) -> npt.NDArray[np.float64]:
    z: npt.NDArray[np.float64] = np.nan_to_num((table - center) / scale).clip(-_FAR, _FAR)
    return z
