"""Gradient boosting on network features of a genotype: a baseline that uses the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from knockgraph.errors import BaselineError, MissingPackageError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import Baseline, Floats, GenotypeRows, positive, same_graph
from knockgraph.models.baselines.pair_features import GenotypeFeatures
from knockgraph.models.baselines.trees import Trees


class Boosting(Baseline):
    """Boosted regression trees (scikit-learn's histogram method) on :class:`GenotypeFeatures`.

    Unlike most other baselines it can use information about a gene that no training genotype deletes: its position in
    the networks.

    Args:
        graph: The cell graph.
        trees: Number of trees.
        learning_rate: Weight of each tree.
        leaves: Maximum number of leaves of a tree.
        ridge: Penalty of a leaf's value.
        max_rows: Training rows beyond these are left out, at random.
        seed: Of all choices.
    """

    needs_graph = True
    kept = ("used", "mean")

    def __init__(
        self,
        graph: CellGraph,
        trees: int = 300,
        learning_rate: float = 0.1,
        leaves: int = 31,
        ridge: float = 1.0,
        max_rows: int = 200_000,
        seed: int = 0,
    ) -> None:
        for name, count in (("trees", trees), ("max_rows", max_rows)):
            if count < 1:
                raise BaselineError(f"{name} is {count}, but it must be at least 1")
        if leaves < 2:
            raise BaselineError(f"leaves is {leaves}, but it must be at least 2")
        self.graph = graph
        self.trees = trees
        self.learning_rate = positive("learning_rate", learning_rate)
        self.leaves = leaves
        self.ridge = positive("ridge", ridge)
        self.max_rows = max_rows
        self.seed = seed

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor
        except ImportError as error:
            raise MissingPackageError(
                "the baseline boosting needs scikit-learn, which is not installed; pip install 'knockgraph[boosting]', "
                "or leave it out of trainer.baselines"
            ) from error
        same_graph("boosting", self.graph, genotypes)
        self.features = GenotypeFeatures(self.graph, seed=self.seed)
        self.model: Trees | None = None
        table = self.features.fit(genotypes, y)
        if len(y) > self.max_rows:
            kept = np.sort(np.random.default_rng(self.seed).permutation(len(y))[: self.max_rows])
            table, y = table[kept], y[kept]
        # A constant column is useless, and the binning fails on an empty one.
        lowest = np.where(np.isnan(table), np.inf, table).min(0)
        self.used = np.flatnonzero(lowest < np.where(np.isnan(table), -np.inf, table).max(0))
        self.mean = float(y.mean())
        if len(self.used) == 0:
            return
        model = HistGradientBoostingRegressor(
            learning_rate=self.learning_rate,
            max_iter=self.trees,
            max_leaf_nodes=self.leaves,
            min_samples_leaf=min(40, max(1, len(y) // 50)),
            l2_regularization=self.ridge,
            max_bins=63,
            early_stopping=False,
            random_state=self.seed,
        )
        model.fit(table[:, self.used], y)
        self.model = Trees.of(model, table[:, self.used])

    def _state(self) -> dict[str, Any]:
        trees = None if self.model is None else self.model.state()
        return {**super()._state(), "features": self.features.state(), "trees": trees}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.features = GenotypeFeatures.from_state(self.graph, state["features"])
        self.model = None if state["trees"] is None else Trees.from_state(state["trees"])

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        if self.model is None:
            return np.full(len(genotypes), self.mean)
        blocks = []
        for start in range(0, len(genotypes), self.max_rows):  # the table of features is wide
            part = genotypes.part(start, min(start + self.max_rows, len(genotypes)))
            blocks.append(self.model(self.features(part)[:, self.used]))
        return np.concatenate(blocks) if blocks else np.empty(0)
