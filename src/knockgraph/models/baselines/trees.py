"""Boosted trees as plain arrays, which can be saved and evaluated without the library that grew them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import BaselineError
from knockgraph.models.baselines.baseline import Floats, packed, unpacked
from knockgraph.screen.ragged import Ints

_FIELDS = ("value", "feature_idx", "num_threshold", "missing_go_to_left", "left", "right", "is_leaf")
_CHECKED = 100  # rows on which the arrays are compared with scikit-learn


@dataclass(frozen=True, eq=False)
class Trees:
    r""":math:`f(x) = c + \sum_t v_{t, \mathrm{leaf}_t(x)}`: the nodes of all trees, one after another.

    Attributes:
        start: c.
        root: int64 ``[trees]``, where each tree begins.
        value: Of each node, ``[nodes]``; only a leaf's counts.
        feature: Column that a node asks for.
        threshold: Up to here it goes to the left.
        missing_left: Whether a missing value goes to the left.
        left: The child, as a position in these arrays; of a leaf the leaf itself.
        right: The other child.
    """

    start: float
    root: Ints
    value: Floats
    feature: Ints
    threshold: Floats
    missing_left: npt.NDArray[np.bool_]
    left: Ints
    right: Ints

    @staticmethod
    def of(model: Any, table: npt.NDArray[np.floating]) -> Trees:
        """Those of a fitted ``HistGradientBoostingRegressor``, or of a ``…Classifier`` of two classes (the log-odds),
        checked on rows of ``table``.
        """
        try:
            nodes = [stage[0].nodes for stage in model._predictors]
            columns = [np.concatenate([tree[name] for tree in nodes]) for name in _FIELDS]
            start = float(np.asarray(model._baseline_prediction).reshape(-1)[0])
        except (AttributeError, ValueError, IndexError) as error:
            raise BaselineError(_UNKNOWN) from error
        value, feature, threshold, missing, left, right, leaf = columns
        size = [len(tree) for tree in nodes]
        root = np.append(0, np.cumsum(size)[:-1]).astype(np.int64)
        offset, own = np.repeat(root, size), np.arange(len(value))
        left, right = (np.where(leaf, own, child.astype(np.int64) + offset) for child in (left, right))
        trees = Trees(start, root, value, feature.astype(np.int64), threshold, missing.astype(bool), left, right)
        some = table[:_CHECKED]
        theirs = model.decision_function(some) if hasattr(model, "decision_function") else model.predict(some)
        if not np.allclose(trees(some), theirs, rtol=1e-6, atol=1e-9):
            raise BaselineError(_UNKNOWN)
        return trees

    def __call__(self, table: npt.NDArray[np.floating]) -> Floats:
        """f of each row of ``table``, ``[rows]``."""
        total = np.full(len(table), self.start)
        row = np.arange(len(table))
        for root in self.root.tolist():
            node = np.full(len(table), root)
            while True:
                asked = table[row, self.feature[node]]
                to_left = np.where(np.isnan(asked), self.missing_left[node], asked <= self.threshold[node])
                child = np.where(to_left, self.left[node], self.right[node])
                if (child == node).all():
                    break
                node = child
            total += self.value[node]
        return total

    def state(self) -> dict[str, Any]:
        """As tensors and numbers."""
        return {name: packed(value) for name, value in vars(self).items()}

    @staticmethod
    def from_state(state: dict[str, Any]) -> Trees:
        """The inverse of :meth:`state`."""
        return Trees(**{name: unpacked(value) for name, value in state.items()})


_UNKNOWN = "this version of scikit-learn keeps its trees in another way than those known here; install scikit-learn 1.9"
