r"""Baselines that a graph model has to beat, and the ceiling that no model can exceed.

=======================  ==========================================================================================
name                     prediction for a genotype :math:`P`
=======================  ==========================================================================================
``mean``                 :math:`c`
``additive``             :math:`c + \sum_{g \in P} b_g`
``ridge-pairs``          :math:`c + \sum_{g \in P} b_g + \sum_{g < h \in P} p_{gh}`
``low-rank``             :math:`c + \sum_{g \in P} b_g + \sum_{g < h \in P} \langle u_g, u_h \rangle`
``boosting``             boosted trees on network features of :math:`P`, see :class:`Boosting`; needs scikit-learn
``smoothing``            :math:`c +` the mean of what similar genes do with those of :math:`P`, see :class:`Smoothing`
``soft-impute``          low-rank by a penalty on the singular values, see :class:`SoftImpute`
``pair-gp``              a Gaussian process over pairs that knows the networks, see :class:`PairGP`
``profile-propagation``  ``pair-gp`` with unseen genes and a learned correction, see :class:`ProfilePropagation`
=======================  ==========================================================================================

``boosting``, ``smoothing``, ``pair-gp`` and ``profile-propagation`` look at the graph. The last three of the table
choose their settings by the validation part.

The product of ``low-rank`` is indefinite, see :class:`LowRank`. A gene or a pair that was not in the training rows
contributes 0; the wild type is :math:`c`. Fitted on 0/1 labels the predictions are scores for ranking (AUROC, average
precision), not probabilities.
"""

from __future__ import annotations

from typing import Any

from knockgraph import registry
from knockgraph.errors import BaselineError, MissingPackageError, NoDosesError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import Baseline, Mean
from knockgraph.models.baselines.boosting import Boosting
from knockgraph.models.baselines.ceiling import reproducibility_ceiling
from knockgraph.models.baselines.low_rank import LowRank
from knockgraph.models.baselines.pair_gp import PairGP
from knockgraph.models.baselines.profile_propagation import ProfilePropagation
from knockgraph.models.baselines.ridge import Additive, RidgePairs
from knockgraph.models.baselines.smoothing import Smoothing
from knockgraph.models.baselines.soft_impute import SoftImpute

__all__ = [
    "Additive",
    "Baseline",
    "BaselineError",
    "Boosting",
    "LowRank",
    "Mean",
    "MissingPackageError",
    "NoDosesError",
    "PairGP",
    "ProfilePropagation",
    "RidgePairs",
    "Smoothing",
    "SoftImpute",
    "available",
    "create",
    "reproducibility_ceiling",
]


def available() -> list[str]:
    """The names of all baselines."""
    return registry.available("baseline")


def create(name: str, graph: CellGraph | None = None, **options: Any) -> Baseline:
    """A baseline by name.

    Args:
        name: One of :func:`available`, or ``package.module:Class``.
        graph: The cell graph, for baselines that need it.
        options: Those of the baseline's own docstring.
    """
    looks = registry.find("baseline", name).needs_graph
    if looks and graph is None:
        raise BaselineError(f"the baseline {name} needs the cell graph; pass graph=")
    made: Baseline = registry.create("baseline", name, *([graph] if looks else []), **options)
    return made
