"""Ridge regression on which genes, and which pairs of genes, a genotype deletes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import BaselineError
from knockgraph.models.baselines.baseline import Baseline, Floats, GenotypeRows, packed, positive, sums, unpacked
from knockgraph.screen.ragged import Ints


@dataclass(frozen=True, eq=False)
class Indicators:
    """A sparse matrix: entry ``e`` is at ``(row[e], column[e])``, 1 unless there are values."""

    row: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    shape: tuple[int, int]
    value: Floats | None = None

    def __matmul__(self, coefficients: Floats) -> Floats:
        return sums(self.row, self._times(coefficients[self.column]), self.shape[0])

    def transposed_times(self, residual: Floats) -> Floats:
        """The product of the transposed matrix with one number per row."""
        return sums(self.column, self._times(residual[self.row]), self.shape[1])

    @property
    def squares(self) -> Floats:
        """The sum of squares of each column."""
        return sums(self.column, self._times(self._times(np.ones(len(self.column)))), self.shape[1])

    def _times(self, entries: Floats) -> Floats:
        return entries if self.value is None else entries * self.value


def solve_ridge(
    x: Indicators, y: Floats, penalty: Floats, tolerance: float = 1e-10, max_iterations: int = 10_000
) -> tuple[float, Floats]:
    r""":math:`\min_{c, \beta} \lVert y - c - X \beta \rVert^2 + \sum_j \lambda_j \beta_j^2`, without a dense matrix.

    Conjugate gradients on the normal equations, scaled by their diagonal, until the residual has fallen by
    ``tolerance``. The constant :math:`c` is not penalised.

    Args:
        x: :math:`X`, ``[rows, features]``.
        y: ``[rows]``.
        penalty: :math:`\lambda`, ``[features]``, positive.
        tolerance: Stop when the residual has fallen by this factor.
        max_iterations: Give up after this many steps.
    """
    n = len(y)
    mean = float(y.mean())
    diagonal = np.append(x.squares + penalty, n)
    right = np.append(x.transposed_times(y - mean), 0.0)  # the centred labels sum to 0

    def normal(v: Floats) -> Floats:
        fitted = x @ v[:-1] + v[-1]
        return np.append(x.transposed_times(fitted) + penalty * v[:-1], fitted.sum())

    solution = np.zeros_like(right)
    residual = right
    scaled = residual / diagonal
    direction = scaled
    size = start = _dot(residual, scaled)
    for _ in range(max_iterations):
        if size <= tolerance**2 * start:
            return mean + float(solution[-1]), solution[:-1]
        along = normal(direction)
        step = size / _dot(direction, along)
        solution = solution + step * direction
        residual = residual - step * along
        scaled = residual / diagonal
        previous, size = size, _dot(residual, scaled)
        direction = scaled + (size / previous) * direction
    raise BaselineError(f"ridge regression did not converge in {max_iterations} steps; use a larger ridge")


def _dot(a: Floats, b: Floats) -> float:
    return float((a * b).sum())  # on one thread, so the same on every machine


class Additive(Baseline):
    r""":math:`\hat y = c + \sum_{g \in P} b_g` with :math:`\min \sum_i (y_i - \hat y_i)^2 + \lambda \sum_g b_g^2`.

    A gene with the value :math:`d` counts :math:`1 - d` times.

    Args:
        ridge: :math:`\lambda`: as if each gene had this many more experiments without an effect.
    """

    doses = True
    kept = ("constant", "effect")

    def __init__(self, ridge: float = 1.0) -> None:
        self.ridge = positive("ridge", ridge)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        penalty = np.full(genotypes.num_genes, self.ridge)
        self.constant, self.effect = solve_ridge(_genes(genotypes), y, penalty)

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        return self.constant + _genes(genotypes) @ self.effect


_MOST_PAIRS = 10_000_000  # in the training rows, as columns
_MOST_CELLS = 200_000_000  # of rows × genes


class RidgePairs(Baseline):
    r""":math:`\hat y = c + \sum_{g \in P} b_g + \sum_{g < h \in P} p_{gh}`, ridge on both kinds of effect.

    Only pairs in the training rows have an effect. Where each pair is measured once, as in a screen of double
    deletions, a held-out pair has none, and this is the additive model; triple deletions share pairs.

    Genotypes of hundreds of genes have more pairs than there are rows. The same model is then solved by rows: two that
    share :math:`s` genes have the kernel :math:`s / \lambda_b + \tfrac{1}{2} s (s - 1) / \lambda_p`.

    A gene with the value :math:`d` counts :math:`w = 1 - d` times, a pair :math:`w_g w_h` times.

    Args:
        ridge: Penalty :math:`\lambda_b` of :math:`b`.
        pair_ridge: Penalty :math:`\lambda_p` of :math:`p`.
    """

    doses = True
    kept = ("constant", "effect", "pair_effect", "pairs", "weight")

    def __init__(self, ridge: float = 1.0, pair_ridge: float = 1.0) -> None:
        self.ridge = positive("ridge", ridge)
        self.pair_ridge = positive("pair_ridge", pair_ridge)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        self.rows: GenotypeRows | None = None
        self.effect = self.pair_effect = self.weight = np.empty(0)
        self.pairs = np.empty(0, dtype=np.int64)
        size = np.diff(genotypes.ptr)
        if int((size * (size - 1) // 2).sum()) > _MOST_PAIRS and len(genotypes) * genotypes.num_genes <= _MOST_CELLS:
            self.rows = genotypes
            n = len(genotypes)
            kernel = np.ones((n + 1, n + 1))  # bordered by the constant, which has no penalty
            kernel[:n, :n] = self._kernel(genotypes) + np.eye(n)
            kernel[n, n] = 0.0
            solved = np.linalg.solve(kernel, np.append(y, 0.0))
            self.weight, self.constant = solved[:n], float(solved[n])
            return
        row, code, both = genotypes.weighted_pairs()
        self.pairs, column = np.unique(code, return_inverse=True)
        genes, features = genotypes.num_genes, genotypes.num_genes + len(self.pairs)
        x = Indicators(
            np.concatenate([genotypes.row, row]),
            np.concatenate([genotypes.genes, genes + column]),
            (len(genotypes), features),
            None if both is None or genotypes.effect is None else np.concatenate([genotypes.effect, both]),
        )
        penalty = np.repeat([self.ridge, self.pair_ridge], [genes, len(self.pairs)])
        self.constant, effect = solve_ridge(x, y, penalty)
        self.effect, self.pair_effect = effect[:genes], effect[genes:]

    def _state(self) -> dict[str, Any]:
        rows = self.rows
        saved = None if rows is None else [packed(rows.genes), packed(rows.ptr), rows.num_genes, packed(rows.effect)]
        return {**super()._state(), "rows": saved}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        saved = state["rows"]
        self.rows = None if saved is None else GenotypeRows(*map(unpacked, saved))

    def _kernel(self, genotypes: GenotypeRows) -> Floats:
        """The kernel between some rows and the training rows, ``[rows, fitted]``."""
        assert self.rows is not None
        left, right = _dense(genotypes), _dense(self.rows)
        shared = (left @ right.T).astype(np.float64)
        if genotypes.effect is None and self.rows.effect is None:
            return shared / self.ridge + 0.5 * shared * (shared - 1) / self.pair_ridge
        twice = (np.square(left) @ np.square(right).T).astype(np.float64)
        return shared / self.ridge + 0.5 * (shared * shared - twice) / self.pair_ridge

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        if self.rows is not None:
            starts = range(0, len(genotypes), 1_000)
            parts = (genotypes.part(start, min(start + 1_000, len(genotypes))) for start in starts)
            return self.constant + np.concatenate([np.empty(0), *(self._kernel(part) @ self.weight for part in parts)])
        row, code, both = genotypes.weighted_pairs()
        known, at = _find(self.pairs, code)
        shape = (len(genotypes), len(self.pairs))
        pairs = Indicators(row[known], at[known], shape, None if both is None else both[known])
        return self.constant + _genes(genotypes) @ self.effect + pairs @ self.pair_effect


def _dense(genotypes: GenotypeRows) -> npt.NDArray[np.float32]:
    """1 (its effect) where a row perturbs a gene, ``[rows, genes]``."""
    x = np.zeros((len(genotypes), genotypes.num_genes), dtype=np.float32)
    x[genotypes.row, genotypes.genes] = 1.0 if genotypes.effect is None else genotypes.effect
    return x


def _genes(genotypes: GenotypeRows) -> Indicators:
    return Indicators(genotypes.row, genotypes.genes, (len(genotypes), genotypes.num_genes), genotypes.effect)


def _find(ascending: Ints, wanted: Ints) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """Which of ``wanted`` are in ``ascending``, and where."""
    at = np.searchsorted(ascending, wanted)
    inside = at < len(ascending)
    known = inside.copy()
    known[inside] = ascending[at[inside]] == wanted[inside]
    return known, at
