"""A vector per gene; two genes interact by a product of their vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import BaselineError
from knockgraph.models.baselines.baseline import Baseline, Floats, GenotypeRows, positive, sums


class LowRank(Baseline):
    r""":math:`\hat y = c + \sum_{g \in P} b_g + \sum_{g < h \in P} \langle u_g, u_h \rangle` with :math:`u_g \in R^k`.

    The inner product is indefinite, :math:`\langle u, v \rangle = u_1 v_1 - u_2 v_2 + u_3 v_3 - \dots`: a plain one
    would make every gene interact positively with similar genes, but two genes of a pathway may either buffer each
    other or share a defect.

    Minimises :math:`\sum_i (y_i - \hat y_i)^2 + \lambda_b \sum_g b_g^2 + \lambda_u \sum_g \lVert u_g \rVert^2` on
    standardised labels. All else fixed, :math:`\hat y` is linear in :math:`(b_g, u_g)` of one gene, with features
    :math:`(1, \pm \sum_{h \in P \setminus g} u_h)`, for genotypes of any size. So each gene in turn is a small ridge
    regression, solved exactly; a sweep over all genes never increases the objective. The start is random, by ``seed``;
    the same seed gives the same fit.

    A gene with the value :math:`d` counts :math:`w = 1 - d` times, a pair :math:`w_g w_h` times.

    Args:
        rank: :math:`k`.
        ridge: :math:`\lambda_u`.
        additive_ridge: :math:`\lambda_b`.
        max_sweeps: At most so many sweeps over all genes.
        tolerance: Stop when a sweep lowers the objective by less than this share of it.
        seed: Of the start.
    """

    doses = True
    kept = ("center", "scale", "constant", "effect", "factor")

    def __init__(
        self,
        rank: int = 40,
        ridge: float = 10.0,
        additive_ridge: float = 1.0,
        max_sweeps: int = 30,
        tolerance: float = 1e-3,
        seed: int = 0,
    ) -> None:
        for name, count in (("rank", rank), ("max_sweeps", max_sweeps)):
            if count < 1:
                raise BaselineError(f"{name} is {count}, but it must be at least 1")
        self.rank = rank
        self.ridge = positive("ridge", ridge)
        self.additive_ridge = positive("additive_ridge", additive_ridge)
        self.max_sweeps = max_sweeps
        self.tolerance = tolerance
        self.seed = seed
        self.sign = np.where(np.arange(rank) % 2, -1.0, 1.0)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        self.center, self.scale = float(y.mean()), float(y.std()) or 1.0
        genes = np.unique(genotypes.genes)
        self.constant = 0.0
        self.effect = np.zeros(genotypes.num_genes)
        self.factor = np.zeros((genotypes.num_genes, self.rank))  # remains 0 for genes without a training row
        # Small, so that the first sweep fits the additive part; not 0, where the objective is flat.
        self.factor[genes] = np.random.default_rng(self.seed).normal(0.0, 0.1, (len(genes), self.rank))
        # Updated in each step: the residual of the labels, and the sum of the vectors of each row's genes.
        residual = torch.from_numpy((y - self.center) / self.scale - self._score(genotypes))
        total = torch.from_numpy(self._total(genotypes))
        penalty = torch.full((1 + self.rank,), self.ridge, dtype=torch.float64)
        penalty[0] = self.additive_ridge
        coefficients = torch.from_numpy(np.column_stack([self.effect, self.factor]))
        sign = torch.from_numpy(self.sign)
        by_gene = np.argsort(genotypes.genes, kind="stable")
        count = np.bincount(genotypes.genes, minlength=genotypes.num_genes)[genes]
        rows_of = torch.split(torch.from_numpy(genotypes.row[by_gene]), count.tolist()) if len(genes) else ()
        effects: Sequence[Tensor | None] = [None] * len(genes)
        if genotypes.effect is not None and len(genes):
            effects = torch.split(torch.from_numpy(genotypes.effect[by_gene]).unsqueeze(1), count.tolist())
        objective = float("inf")
        with _one_thread():
            for _ in range(self.max_sweeps):
                for gene, rows, effect in zip(genes.tolist(), rows_of, effects, strict=True):
                    _solve(coefficients[gene], rows, residual, total, sign, penalty, effect)
                shift = residual.mean()
                self.constant += float(shift)
                residual -= shift
                previous = objective
                objective = float(residual.square().sum() + (coefficients.square() @ penalty).sum())
                if previous - objective <= self.tolerance * objective:
                    break
        self.effect, self.factor = coefficients[:, 0].numpy(), coefficients[:, 1:].numpy()

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        return self.center + self.scale * self._score(genotypes)

    def _total(self, genotypes: GenotypeRows) -> Floats:
        columns = [
            sums(genotypes.row, _times(column[genotypes.genes], genotypes.effect), len(genotypes))
            for column in self.factor.T
        ]
        return np.stack(columns, 1)

    def _score(self, genotypes: GenotypeRows) -> Floats:
        r""":math:`c + \sum b_g + (\langle \sum u_g, \sum u_g \rangle - \sum \langle u_g, u_g \rangle) / 2`, per row."""
        own, effect, genes = 0.5 * (self.sign * np.square(self.factor)).sum(1), genotypes.effect, genotypes.genes
        both = 0.5 * (self.sign * np.square(self._total(genotypes))).sum(1)
        alone = _times(self.effect[genes] - _times(own[genes], effect), effect)
        score: Floats = self.constant + sums(genotypes.row, alone, len(genotypes)) + both
        return score


def _times(values: Floats, effect: Floats | None) -> Floats:
    return values if effect is None else values * effect


def _solve(
    own: Tensor,
    rows: Tensor,
    residual: Tensor,
    total: Tensor,
    sign: Tensor,
    penalty: Tensor,
    effect: Tensor | None = None,
) -> None:
    """The best effect and vector of one gene, all others fixed, written into ``own``."""
    others = total[rows] - (own[1:] if effect is None else effect * own[1:])
    x = torch.cat([others.new_ones(len(rows), 1), others * sign], 1)
    x = x if effect is None else effect * x
    unexplained = residual[rows] + x @ own
    own.copy_(torch.linalg.solve(x.T @ x + penalty.diag(), x.T @ unexplained))
    residual[rows] = unexplained - x @ own
    total[rows] = others + (own[1:] if effect is None else effect * own[1:])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small do not benefit from threads, and become ten times slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
