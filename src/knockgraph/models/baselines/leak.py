"""Does a graph contain what a screen measures? Labels of connected pairs compared with those of the others."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import BaselineError, GeneListMismatchError
from knockgraph.graph import CellGraph, Relation
from knockgraph.models.baselines.baseline import Floats, GenotypeRows, sums
from knockgraph.screen import BoundScreen

LARGEST_SHIFT = 0.4
"""Of a relation without interactions in it, in standard deviations; see :func:`label_shifts`."""
LEAST_Z = 4.0
_FEWEST = 30  # measured pairs
_PERMUTATIONS = 100


@dataclass(frozen=True)
class LabelShift:
    """How far the labels of the pairs that a relation connects are shifted towards strong interactions.

    Attributes:
        relation: Its name.
        pairs: Measured pairs that it connects.
        connected: Their mean label.
        others: The mean label of all other measured pairs.
        shift: The difference in standard deviations of all labels, positive towards the long tail of the labels.
        beyond: The relation beyond whose edges the shift is largest; blank if it is largest for all edges.
        beyond_pairs: Measured pairs that are connected by the relation, not by that one.
        beyond_shift: Their shift.
        z: ``beyond_shift`` in standard deviations of the shifts of the same edges between permuted genes.
        leaks: Whether this looks as if the relation held what the screen measures.
    """

    relation: str
    pairs: int
    connected: float
    others: float
    shift: float
    beyond: str
    beyond_pairs: int
    beyond_shift: float
    z: float
    leaks: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


def label_shifts(graph: CellGraph, screen: BoundScreen, seed: int = 0) -> list[LabelShift]:
    r"""For every relation, how far labels of connected pairs are from those of the others,

    .. math:: d = \pm \frac{\bar y_\mathrm{connected} - \bar y_\mathrm{others}}{\mathrm{sd}(y)} ,

    with the sign of the labels' skewness, so that it is positive towards the long tail, where the strong interactions
    are. Networks and interactions are related, so d is not 0 even for a clean network; but interactions that were
    *listed* in a network because they are strong shift the mean much further. Strong edges may be hidden among many
    clean ones, so d is also measured on the edges that a relation adds to each other relation, and the largest counts.

    A relation is reported to leak if :math:`d \ge 0.4` and this is at least 4 standard deviations above the same edges
    between permuted genes. On two screens of yeast, physical and regulatory networks and complexes have d up to 0.18,
    the channels of STRING 11.5 cut at a combined score of 900, which contain genetic interactions, 0.45 to 1.16.

    Args:
        graph: The cell graph.
        screen: Experiments bound to it, with one phenotype; of larger genotypes, every pair gets the label.
        seed: Of the permutations.
    """
    if screen.gene_list_hash != graph.gene_list_hash:
        raise GeneListMismatchError(
            "the screen is bound to a different gene list than this graph's; bind it to this graph"
        )
    code, label = _labels(screen)
    spread = float(label.std()) if len(label) else 0.0
    if spread == 0:
        raise BaselineError("the screen has no pairs with different labels, so there is nothing to compare")
    tail = -1.0 if float(((label - label.mean()) ** 3).mean()) < 0 else 1.0
    edges = {name: np.isin(code, _codes(relation)) for name, relation in graph.relations.items()}
    random = np.random.default_rng(seed)

    def shift(connected: npt.NDArray[np.bool_]) -> float:
        if connected.sum() < _FEWEST or connected.all():
            return float("nan")
        return tail * float(label[connected].mean() - label[~connected].mean()) / spread

    found = []
    for name, connected in edges.items():
        beyond = {"": connected} | {other: connected & ~its for other, its in edges.items() if other != name}
        shifts = {other: shift(rest) for other, rest in beyond.items()}
        worst = max(shifts, key=lambda other: -np.inf if np.isnan(shifts[other]) else shifts[other])
        z = float("nan")
        if not np.isnan(shifts[worst]):
            z = shifts[worst] / _chance(code[beyond[worst]], code, label / spread, screen.num_genes, random)
        found.append(
            LabelShift(
                name,
                int(connected.sum()),
                float(label[connected].mean()) if connected.any() else float("nan"),
                float(label[~connected].mean()) if not connected.all() else float("nan"),
                shifts[""],
                worst,
                int(beyond[worst].sum()),
                shifts[worst],
                z,
                bool(shifts[worst] >= LARGEST_SHIFT and z >= LEAST_Z),
            )
        )
    return found


def _labels(screen: BoundScreen) -> tuple[npt.NDArray[np.int64], Floats]:
    """Every measured pair by its code, ascending, and its mean label."""
    if screen.values.shape[1] != 1:
        raise BaselineError("the screen has several phenotypes; bind it with one of them")
    row, code = GenotypeRows.of(screen, np.arange(len(screen))).pairs()
    pair, place, count = np.unique(code, return_inverse=True, return_counts=True)
    label = sums(place, screen.values[:, 0].double().cpu().numpy()[row], len(pair)) / np.maximum(count, 1)
    return pair, label


def _codes(relation: Relation) -> npt.NDArray[np.int64]:
    source, target = relation.edge_index.numpy()
    codes: npt.NDArray[np.int64] = np.minimum(source, target) * relation.num_genes + np.maximum(source, target)
    return codes


def _chance(
    edges: npt.NDArray[np.int64],
    code: npt.NDArray[np.int64],
    label: Floats,
    num_genes: int,
    random: np.random.Generator,
) -> float:
    """The spread of the mean label of the same edges between permuted genes of the screen."""
    genes = np.unique(np.concatenate([code // num_genes, code % num_genes]))
    place = np.full(num_genes, -1)
    means = []
    for _ in range(_PERMUTATIONS):
        place[genes] = random.permutation(genes)
        a, b = place[edges // num_genes], place[edges % num_genes]
        moved = np.minimum(a, b) * num_genes + np.maximum(a, b)
        at = np.minimum(np.searchsorted(code, moved), len(code) - 1)
        there = code[at] == moved
        if there.any():
            means.append(float(label[at[there]].mean()))
    spread = float(np.std(means)) if means else 0.0
    return spread if spread > 0 else float("inf")
