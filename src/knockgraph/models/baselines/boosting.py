"""Gradient boosting on features of a genotype: a baseline that uses the graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from knockgraph.errors import BaselineError, MissingPackageError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import Baseline, Floats, GenotypeRows, positive, same_graph
from knockgraph.models.baselines.pair_features import GenotypeFeatures, Matrix
from knockgraph.models.baselines.quadratic_odds import QuadraticOdds
from knockgraph.models.baselines.trees import Trees
from knockgraph.models.baselines.triple_features import TripleFeatures
from knockgraph.screen.calls import calls_of

_LARGE: dict[str, float] = {"trees": 300, "learning_rate": 0.1, "leaves": 31, "ridge": 1.0, "rows of a leaf": 40}
_SMALL: dict[str, float] = {"trees": 120, "learning_rate": 0.05, "leaves": 8, "ridge": 10.0, "rows of a leaf": 200}
_CLASSES = _SMALL | {"share of columns": 0.3}


class Boosting(Baseline):
    """Boosted trees (scikit-learn's histogram method) on :class:`GenotypeFeatures`, or on :class:`TripleFeatures` where
    the graph has digenic calls and genotypes have more than two genes. Of classes they sum up to the log-odds.

    Unlike most other baselines it can use information about a gene that no training genotype deletes: its position in
    the networks.

    Of values: large trees (300 with 31 leaves, learning rate 0.1, ridge 1) or small ones (120, 8, 0.05, 10), whichever
    correlate better with the validation labels; large ones without a validation part, or if an option is given. Of
    classes: small ones, each question of which is chosen from 30 % of the features, drawn at random; on
    :class:`TripleFeatures` the log-odds are the mean of theirs and of a smooth function of the same features
    (:class:`~knockgraph.models.baselines.quadratic_odds.QuadraticOdds`).

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
    kept = ("used", "mean", "settings")

    def __init__(
        self,
        graph: CellGraph,
        trees: int | None = None,
        learning_rate: float | None = None,
        leaves: int | None = None,
        ridge: float | None = None,
        max_rows: int = 200_000,
        seed: int = 0,
    ) -> None:
        for name, count in (("trees", trees), ("max_rows", max_rows)):
            if count is not None and count < 1:
                raise BaselineError(f"{name} is {count}, but it must be at least 1")
        if leaves is not None and leaves < 2:
            raise BaselineError(f"leaves is {leaves}, but it must be at least 2")
        for name, value in (("learning_rate", learning_rate), ("ridge", ridge)):
            if value is not None:
                positive(name, value)
        self.graph = graph
        given = {"trees": trees, "learning_rate": learning_rate, "leaves": leaves, "ridge": ridge}
        self.given = {name: value for name, value in given.items() if value is not None}
        self.max_rows = max_rows
        self.seed = seed

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        self.settings = (_CLASSES if self.classes else _LARGE) | self.given
        self._fit_again(genotypes, y)

    def _fit_again(self, genotypes: GenotypeRows, y: Floats) -> None:
        same_graph("boosting", self.graph, genotypes)
        called = calls_of(self.graph) and bool((np.diff(genotypes.ptr) > 2).any())
        self.model: Trees | None = None
        self.smooth: QuadraticOdds | None = None
        self.features = TripleFeatures(self.graph) if called else GenotypeFeatures(self.graph, seed=self.seed)
        table = self.features.fit(genotypes, y)
        if len(y) > self.max_rows:
            kept = np.sort(np.random.default_rng(self.seed).permutation(len(y))[: self.max_rows])
            table, y = table[kept], y[kept]
        # A constant column is useless, and the binning fails on an empty one.
        lowest = np.where(np.isnan(table), np.inf, table).min(0)
        self.used = np.flatnonzero(lowest < np.where(np.isnan(table), -np.inf, table).max(0))
        self.mean = _log_odds(y) if self.classes else float(y.mean())
        if len(self.used) == 0 or (self.classes and y.min() == y.max()):
            return
        table = table[:, self.used]
        self.model = self._grown(table, y)
        if self.classes and called:
            self.smooth = QuadraticOdds.learned(table, y, self.seed)
        if self.classes or self.validation is None or self.given:
            return
        large, score = self.model, self._validated(*self.validation)
        self.settings = _SMALL
        self.model = self._grown(table, y)
        if not self._validated(*self.validation) > score:
            self.model, self.settings = large, _LARGE

    def _grown(self, table: Matrix, y: Floats) -> Trees:
        try:
            from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        except ImportError as error:
            raise MissingPackageError(
                "the baseline boosting needs scikit-learn, which is not installed; pip install 'knockgraph[boosting]', "
                "or leave it out of trainer.baselines"
            ) from error
        model = (HistGradientBoostingClassifier if self.classes else HistGradientBoostingRegressor)(
            learning_rate=self.settings["learning_rate"],
            max_iter=int(self.settings["trees"]),
            max_leaf_nodes=int(self.settings["leaves"]),
            min_samples_leaf=min(int(self.settings["rows of a leaf"]), max(1, len(y) // 50)),
            l2_regularization=self.settings["ridge"],
            max_features=self.settings.get("share of columns", 1.0),
            max_bins=63,
            early_stopping=False,
            random_state=self.seed,
        )
        model.fit(table, y)
        return Trees.of(model, table)

    def _validated(self, genotypes: GenotypeRows, y: Floats) -> float:
        """How well the validation labels are predicted, −1 if that cannot be told."""
        predicted = self._predict(genotypes)
        if predicted.std() == 0 or y.std() == 0:
            return -1.0
        return float(np.corrcoef(predicted, y)[0, 1])

    def _chosen(self) -> dict[str, float]:
        return self.settings

    def _state(self) -> dict[str, Any]:
        trees = None if self.model is None else self.model.state()
        smooth = None if self.smooth is None else self.smooth.state()
        called = isinstance(self.features, TripleFeatures)
        about = {"features": self.features.state(), "called": called}
        return {**super()._state(), **about, "trees": trees, "smooth": smooth}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        made = TripleFeatures if state.get("called") else GenotypeFeatures  # earlier runs do not say
        self.features = made.from_state(self.graph, state["features"])
        self.model = None if state["trees"] is None else Trees.from_state(state["trees"])
        smooth = state.get("smooth")  # earlier runs have none
        self.smooth = None if smooth is None else QuadraticOdds.from_state(smooth)

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        if self.model is None:
            return np.full(len(genotypes), self.mean)
        blocks = []
        for start in range(0, len(genotypes), self.max_rows):  # the table of features is wide
            part = genotypes.part(start, min(start + self.max_rows, len(genotypes)))
            table = self.features(part)[:, self.used]
            found = self.model(table)
            blocks.append(found if self.smooth is None else (found + self.smooth(table)) / 2)
        return np.concatenate(blocks) if blocks else np.empty(0)


def _log_odds(y: Floats) -> float:
    """Of the share of ones, as if there were half a row more of each class."""
    ones = float(y.sum())
    return float(np.log((ones + 0.5) / (len(y) - ones + 0.5)))
