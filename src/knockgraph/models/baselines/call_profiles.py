"""Digenic calls of genes, and what the calls of similar genes say about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph.graph import CellGraph
from knockgraph.models.baselines.pair_features import both_ways
from knockgraph.models.kernels.propagation import learned_kernel
from knockgraph.models.kernels.similarity import Similarities, kernel
from knockgraph.screen.calls import calls_of

_RIDGE = 0.5
_LEARNED = 500  # genes with the most calls, from which the kernel is learned
_Genes = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AskedProfiles:
    r"""Profiles of some genes, the rows of C and of its prediction :math:`\hat C = A C` (:class:`CallProfiles`).

    Attributes:
        place: Row of a gene in these tables, int64 ``[num_genes]``, −1 for others.
        common: How many genes two of them both have calls with, ``[genes, genes]``, one table for each sign.
        cosine: The same over the root of the product of their numbers of calls.
        borrowed: :math:`\hat C_{gh}`: whether genes similar to g have calls with h.
        between: :math:`(A C A^\top)_{gh}`: whether genes similar to g have calls with genes similar to h.
        unit: :math:`C_g + \hat C_g`, length 1, all signs beside each other, ``[genes, profile]``.
    """

    place: _Genes
    common: list[_Numbers]
    cosine: list[_Numbers]
    borrowed: list[_Numbers]
    between: list[_Numbers]
    unit: _Numbers


class CallProfiles:
    r"""The matrix C of calls, 0 or 1, and the mixtures A that predict a gene's calls from those of similar genes.

    :math:`A = K (K + \lambda I)^{-1}` by kernel ridge regression; for a gene with a profile of its own that profile is
    left out, :math:`a_{gh} = -G_{gh} / G_{gg}`, :math:`G = (K + \lambda I)^{-1}`. The kernel K combines all networks
    and features but the calls themselves, with weights learned with each profile left out in turn
    (:func:`~knockgraph.models.kernels.propagation.learned_kernel`). No label is used.

    Args:
        graph: The cell graph with calls.
        genes: Genes to compare others with; those with calls are added.
    """

    def __init__(self, graph: CellGraph, genes: _Genes) -> None:
        self.graph = graph
        ends = [both_ways(graph.relations[name])[0] for name in calls_of(graph)]
        self.genes = np.unique(np.concatenate([genes, *ends]))
        self._read_calls()
        similar = self._seen
        c = similar.to(similar)
        self.sharpness, self.weight = similar.sharpness, similar.sharpness.new_zeros(len(similar.names))
        self.inverse = torch.eye(len(self.genes))
        if len(c) and len(self.genes):
            most = self.profile.sum(1).argsort(descending=True, stable=True)[:_LEARNED]
            some, known = self.profile[most], torch.ones_like(self.profile[most], dtype=torch.bool)
            chosen = c[:, most][:, :, most]
            self.weight, self.sharpness = learned_kernel(chosen, similar.sharpness, some, known)
            eye = torch.eye(len(self.genes))
            self.inverse = torch.linalg.inv(kernel(c, self.sharpness, self.weight) + _RIDGE * eye)

    def state(self) -> dict[str, Any]:
        """What was learned, as tensors."""
        return {
            "genes": torch.from_numpy(self.genes),
            "sharpness": self.sharpness,
            "weight": self.weight,
            "inverse": self.inverse,
        }

    @staticmethod
    def from_state(graph: CellGraph, state: dict[str, Any]) -> CallProfiles:
        """The inverse of :meth:`state`."""
        made = CallProfiles.__new__(CallProfiles)
        made.graph, made.genes = graph, state["genes"].numpy()
        made.sharpness, made.weight, made.inverse = state["sharpness"], state["weight"], state["inverse"]
        made._read_calls()
        return made

    def of(self, genes: _Genes) -> AskedProfiles:
        """Profiles of these genes and of those that others are compared with."""
        if bool((self.place[genes] >= 0).all()):
            return self._own
        return self._of(np.union1d(self.genes, genes))

    @cached_property
    def _own(self) -> AskedProfiles:
        return self._of(self.genes)

    @cached_property
    def _seen(self) -> Similarities:
        return self._similarities(self.genes)

    def _of(self, asked: _Genes) -> AskedProfiles:
        place = np.full(self.graph.num_genes, -1)
        place[asked] = np.arange(len(asked))
        at = torch.from_numpy(self.place[asked])
        mixture = self._mixtures(asked)
        own = torch.where((at >= 0)[:, None], self.profile[at.clamp(min=0)], 0.0)
        size = len(self.genes)
        parts = [slice(k * size, (k + 1) * size) for k in range(self.profile.shape[1] // max(size, 1))]
        common, cosine, borrowed, between, profile = [], [], [], [], []
        for part in parts:
            calls, predicted = own[:, part], mixture @ self.profile[:, part]
            shared, root = calls @ calls.T, calls.sum(1).clamp(min=1).sqrt()
            common.append(shared.numpy())
            cosine.append((shared / torch.outer(root, root)).numpy())
            borrowed.append(torch.where(at >= 0, predicted[:, at.clamp(min=0)], 0.0).numpy())
            between.append((predicted @ mixture.T).numpy())
            profile.append(calls + predicted)
        unit = torch.nn.functional.normalize(torch.cat(profile, 1), dim=1) if profile else own
        return AskedProfiles(place, common, cosine, borrowed, between, unit.numpy())

    def _read_calls(self) -> None:
        """C of all signs beside each other, float32 ``[genes, signs * genes]``."""
        self.place = np.full(self.graph.num_genes, -1)
        self.place[self.genes] = np.arange(len(self.genes))
        tables = []
        for name in calls_of(self.graph):
            table = torch.zeros(len(self.genes), len(self.genes))
            source, target = both_ways(self.graph.relations[name])
            table[self.place[source], self.place[target]] = 1.0
            tables.append(table)
        self.profile = torch.cat(tables, 1) if tables else torch.zeros(len(self.genes), 0)

    def _mixtures(self, asked: _Genes) -> Tensor:
        """Rows of A, ``[asked, genes]``."""
        mixture = torch.zeros(len(asked), len(self.genes))
        if not len(self.weight) or not len(self.genes):
            return mixture
        at = torch.from_numpy(self.place[asked])
        seen = at >= 0
        rows = self.inverse[at[seen]]
        left_out = -rows / self.inverse.diagonal()[at[seen], None]
        mixture[seen] = left_out.scatter(1, at[seen, None], 0.0)
        new = asked[~seen.numpy()]
        if len(new):
            across = self._similarities(new).to(self._seen)
            mixture[~seen] = kernel(across, self.sharpness, self.weight) @ self.inverse
        return mixture

    def _similarities(self, genes: _Genes) -> Similarities:
        calls = calls_of(self.graph)
        return Similarities.of(
            self.graph, torch.from_numpy(genes), [name for name in self.graph.relations if name not in calls]
        )
