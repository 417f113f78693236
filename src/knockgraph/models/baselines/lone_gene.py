"""Which gene of a genotype is the array gene of a screen of query pairs, and which ones are the query."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import Floats, packed, unpacked
from knockgraph.models.baselines.pair_features import both_ways
from knockgraph.screen.calls import calls_of

_Genes = npt.NDArray[np.int64]


class LoneGenes:
    r"""A screen of query pairs against arrays deletes the same pair of genes in many rows, with another gene, the
    *lone* one, in each. In a new genotype the lone gene is the one with the largest

    .. math:: \log(1 + n_{-g}) + \log(1 + c_g) - 2 \log \frac{\kappa_g}{1 - \kappa_g} .

    :math:`n_{-g}` is how often training deletes the other genes together (the most frequent pair of them), :math:`c_g`
    how often it deletes g without any of the others. A gene may be query and array gene of the same study. Its digenic
    calls tell: a query gene has them with array genes, an array gene with query genes. :math:`\kappa_g` is the mean
    over the partners of g's calls of the share of their training rows in which they are the lone gene, with one more
    partner of share 1/2.

    Args:
        graph: The cell graph with calls.
        alone: Number of training rows in which a gene is the lone one, ``[num_genes]``.
        count: Number of training rows that delete it.
    """

    def __init__(self, graph: CellGraph, alone: Floats, count: Floats) -> None:
        share, seen = alone / np.maximum(count, 1), (count > 0).astype(np.float64)
        total, number = np.full(graph.num_genes, 0.5), np.ones(graph.num_genes)
        for name in calls_of(graph):
            source, target = both_ways(graph.relations[name])
            total += np.bincount(source, (share * seen)[target], graph.num_genes)
            number += np.bincount(source, seen[target], graph.num_genes)
        self.query = np.log(total / (number - total))

    def state(self) -> dict[str, Any]:
        """The log-odds of κ."""
        return {"query": packed(self.query)}

    @staticmethod
    def from_state(state: dict[str, Any]) -> LoneGenes:
        """The inverse of :meth:`state`."""
        made = LoneGenes.__new__(LoneGenes)
        made.query = unpacked(state["query"])
        return made

    def __call__(self, genes: _Genes, together: Floats, count: Floats) -> _Genes:
        """Column of the lone gene in each row, ``[rows]``.

        Args:
            genes: Genotypes of one size, ``[rows, size]``.
            together: :math:`n_{-g}`, ``[rows, size]``.
            count: :math:`c_g`.
        """
        found: _Genes = (np.log1p(together) + np.log1p(count) - 2 * self.query[genes]).argmax(1)
        return found
