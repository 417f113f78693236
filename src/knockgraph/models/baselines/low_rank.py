"""A vector per gene; two genes interact by a product of their vectors."""

from __future__ import annotations

import numpy as np

from knockgraph.models.baselines.baseline import Baseline, BaselineError, Floats, GenotypeRows, positive, sums
from knockgraph.screen.ragged import Ints


class LowRank(Baseline):
    r""":math:`\hat y = c + \sum_{g \in P} b_g + \sum_{g < h \in P} \langle u_g, u_h \rangle` with :math:`u_g \in R^k`.

    The inner product is indefinite, :math:`\langle u, v \rangle = u_1 v_1 - u_2 v_2 + u_3 v_3 - \dots`: a plain one
    would say that every gene interacts positively with those like it, but two genes of a pathway may buffer each other
    as well as share a defect.

    Minimises :math:`\sum_i (y_i - \hat y_i)^2 + \lambda_b \sum_g b_g^2 + \lambda_u \sum_g \lVert u_g \rVert^2` on
    standardised labels. All else fixed, :math:`\hat y` is linear in :math:`(b_g, u_g)` of one gene, with features
    :math:`(1, \pm \sum_{h \in P \setminus g} u_h)`, for genotypes of any size. So each gene in turn is a small ridge
    regression, solved exactly; a sweep over all genes never increases the objective. The start is random, by ``seed``;
    the same seed gives the same fit.

    Args:
        rank: :math:`k`.
        ridge: :math:`\lambda_u`.
        additive_ridge: :math:`\lambda_b`.
        max_sweeps: At most so many sweeps over all genes.
        tolerance: Stop when a sweep lowers the objective by less than this share of it.
        seed: Of the start.
    """

    def __init__(
        self,
        rank: int = 40,
        ridge: float = 20.0,
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
        self.factor = np.zeros((genotypes.num_genes, self.rank))  # stays 0 for genes without a training row
        # Small, so that the first sweep fits the additive part; not 0, where the objective is flat.
        self.factor[genes] = np.random.default_rng(self.seed).normal(0.0, 0.1, (len(genes), self.rank))
        # Kept up to date: what is left of the labels, and the sum of the vectors of each row's genes.
        residual = (y - self.center) / self.scale - self._score(genotypes)
        total = self._total(genotypes)
        by_gene = np.argsort(genotypes.genes, kind="stable")
        ends = np.searchsorted(genotypes.genes[by_gene], genes, side="right")
        rows_of = np.split(genotypes.row[by_gene], ends[:-1]) if len(genes) else []
        objective = self._objective(residual)
        for _ in range(self.max_sweeps):
            for gene, rows in zip(genes.tolist(), rows_of, strict=True):
                self._solve(gene, rows, residual, total)
            shift = float(residual.mean())
            self.constant += shift
            residual -= shift
            previous, objective = objective, self._objective(residual)
            if previous - objective <= self.tolerance * objective:
                break

    def _solve(self, gene: int, rows: Ints, residual: Floats, total: Floats) -> None:
        """The best effect and vector of one gene, all others fixed."""
        old = np.append(self.effect[gene], self.factor[gene])
        others = total[rows] - self.factor[gene]
        x = np.empty((len(rows), 1 + self.rank))
        x[:, 0] = 1.0
        np.multiply(others, self.sign, out=x[:, 1:])
        unexplained = residual[rows] + x @ old
        gram = x.T @ x
        gram[np.diag_indices_from(gram)] += np.append(self.additive_ridge, np.full(self.rank, self.ridge))
        new = np.linalg.solve(gram, x.T @ unexplained)
        self.effect[gene], self.factor[gene] = new[0], new[1:]
        residual[rows] = unexplained - x @ new
        total[rows] = others + new[1:]

    def _objective(self, residual: Floats) -> float:
        penalty = self.additive_ridge * np.square(self.effect).sum() + self.ridge * np.square(self.factor).sum()
        return float(np.square(residual).sum() + penalty)

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        return self.center + self.scale * self._score(genotypes)

    def _total(self, genotypes: GenotypeRows) -> Floats:
        columns = [sums(genotypes.row, column[genotypes.genes], len(genotypes)) for column in self.factor.T]
        return np.stack(columns, 1)

    def _score(self, genotypes: GenotypeRows) -> Floats:
        r""":math:`c + \sum b_g + (\langle \sum u_g, \sum u_g \rangle - \sum \langle u_g, u_g \rangle) / 2`, per row."""
        own = self.effect - 0.5 * np.square(self.factor) @ self.sign
        both = 0.5 * np.square(self._total(genotypes)) @ self.sign
        score: Floats = self.constant + sums(genotypes.row, own[genotypes.genes], len(genotypes)) + both
        return score
