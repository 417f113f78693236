"""A pair model fitted without a part of its rows, so that it can predict them as it would predict new ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph.models.baselines.baseline import Floats, GenotypeRows, sums
from knockgraph.models.baselines.pair_gp import Choices, PairGP
from knockgraph.screen import ragged
from knockgraph.screen.ragged import Ints

if TYPE_CHECKING:
    from knockgraph.models.baselines.profile_propagation import ProfilePropagation

FOLDS = 5


class WithoutFold(PairGP):
    """A fitted model again, on fewer rows: effects, profiles and posterior are new, settings and learned weights (a few
    hundred numbers) are those of the whole.

    Args:
        whole: The fitted model.
        similarity: Of its seen genes, ``[tables, genes, genes]``.
    """

    def __init__(self, whole: ProfilePropagation, similarity: Tensor) -> None:
        super().__init__(whole.graph)
        self.device = whole.device
        self.whole = whole
        self.similarity = similarity
        self.given, self._before = whole.given, Choices(whole.filling, whole.settings, whole.ridge)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        super()._fit(genotypes, y)
        self._settle()

    def _fit_pairs(self, y: Tensor, count: Tensor) -> None:
        self.pace = self.whole.pace
        self._fill(y)
        place = self._in_whole(self.seen)
        self.network_kernel = self.whole.network_kernel[place][:, place]
        self._fit_process(y, count)

    def _mixture(self, unseen: Ints) -> Tensor:
        if len(self.similarity) == 0:
            return torch.zeros(len(unseen), len(self.seen), device=self.device)
        across = self.similarity[:, self._in_whole(unseen)][:, :, self._in_whole(self.seen)]
        return self.whole._mixed(self.network_kernel, across)

    def _in_whole(self, genes: Ints) -> Tensor:
        return torch.from_numpy(self.whole.place[genes]).to(self.device)


def held_out(genotypes: GenotypeRows, unseen: bool, seed: int = 0) -> Iterator[npt.NDArray[np.bool_]]:
    """Which rows each fold leaves out: all measurements of some genotypes, or all genotypes of some genes.

    Args:
        genotypes: All rows.
        unseen: Whether a fold leaves out genes.
        seed: Of the folds.
    """
    random = np.random.default_rng(seed)
    if unseen:
        genes, place = np.unique(genotypes.genes, return_inverse=True)
        fold = random.permutation(len(genes)) % FOLDS
        for k in range(FOLDS):
            yield sums(genotypes.row, (fold[place] == k).astype(np.float64), len(genotypes)) > 0
        return
    same = ragged.same_set(genotypes.genes, genotypes.ptr, max(genotypes.num_genes, 1))
    fold = (random.permutation(int(same.max(initial=-1)) + 1) % FOLDS)[same]
    for k in range(FOLDS):
        yield fold == k
