"""Base of the pair models: gene effects, a matrix of pairs, and mixtures of seen genes for unseen ones."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph.errors import BaselineError
from knockgraph.models.baselines.baseline import Baseline, Floats, GenotypeRows, sums
from knockgraph.models.baselines.ridge import Indicators, solve_ridge
from knockgraph.models.kernels.correction import Profiles, pair_features
from knockgraph.models.kernels.measured import PairRows
from knockgraph.screen import BoundScreen, ragged
from knockgraph.screen.ragged import Ints

Device = Literal["auto", "cpu", "cuda"]
EFFECT_RIDGE = 3.0
FEWEST = 30  # fewest validation rows for choosing a setting
_GENES = 256  # unseen genes whose mixtures are computed at once


class Mixed(NamedTuple):
    """Unseen genes as mixtures of seen ones."""

    genes: Ints  #: ascending
    share: Tensor  #: a, ``[genes, seen]``
    profile: Tensor  #: :math:`a^\\top \\hat Y`, ``[genes, seen]``


class PairModel(Baseline):
    r""":math:`\hat y_P = c + \sum_{g \in P} b_g + \sum_{g < h \in P} a_g^\top \hat Y a_h`.

    c and b are fitted by ridge regression; a subclass computes :math:`\hat Y`, ``[seen, seen]``, from the residuals.
    For a seen gene (one that a training row deletes) :math:`a_g` is a unit vector; for an unseen gene it is a mixture
    of
    seen genes if the subclass provides one, else 0. The effect of an unseen gene is :math:`a_g^\top b`.

    Args:
        device: Where it is fitted; ``auto``: on a GPU if there is one.
    """

    kept = ("constant", "effect", "seen", "place", "scores")
    _alone: tuple[Self, ...] = ()  # of several phenotypes that learn from each other, each without the others

    def __init__(self, device: Device = "auto") -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise BaselineError(f"device is {device!r}; use auto, cpu or cuda")
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._mixtures: Mixed | None = None
        self._drawn: tuple[Ints, Profiles] | None = None
        self.scores = torch.zeros(0, 0, device=self.device)

    def fit(
        self,
        screen: BoundScreen,
        rows: Ints,
        values: Tensor,
        validation: tuple[Ints, Tensor] | None = None,
        classes: bool = False,
    ) -> Self:
        """See :meth:`Baseline.fit`."""
        super().fit(screen, rows, values, validation, classes)
        self._settle()
        return self

    def fit_again(self, screen: BoundScreen, rows: Ints, values: Tensor) -> Self:
        """See :meth:`Baseline.fit_again`."""
        super().fit_again(screen, rows, values)
        self._settle()
        return self

    def _settle(self) -> None:
        """Nothing will change any more: from now on mixtures and profiles are computed once for each gene."""
        for one in (*self._each, *self._alone) or (self,):
            none = torch.zeros(0, len(one.seen), device=self.device)
            one._mixtures, one._drawn = Mixed(np.empty(0, dtype=np.int64), none, none), None

    def restore(self, state: dict[str, Any]) -> Self:
        """See :meth:`Baseline.restore`."""
        super().restore(state)
        if state:
            self._settle()
        return self

    def to(self, device: torch.device) -> Self:
        """See :meth:`Baseline.to`."""
        if device == self.device:
            return self
        state = self.state()
        self.device, self._each = device, ()
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, value.to(device))
        return self.restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.scores = self.scores.to(self.device)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        self._mixtures = self._drawn = None
        genes = Indicators(genotypes.row, genotypes.genes, (len(genotypes), genotypes.num_genes))
        self.constant, self.effect = solve_ridge(genes, y, np.full(genotypes.num_genes, EFFECT_RIDGE))
        self.seen = np.unique(genotypes.genes)
        self.place = np.full(genotypes.num_genes, -1)
        self.place[self.seen] = np.arange(len(self.seen))
        self.scores = torch.zeros(len(self.seen), len(self.seen), device=self.device)
        residual = y - self.constant - genes @ self.effect
        group = ragged.same_set(genotypes.genes, genotypes.ptr, max(genotypes.num_genes, 1))
        _, first, group, count = np.unique(group, return_index=True, return_inverse=True, return_counts=True)
        mean = sums(group, residual, len(count)) / count
        once = genotypes.take(first)
        paired = np.diff(once.ptr) > 1
        if paired.any():
            self.genotypes = once.take(np.flatnonzero(paired))
            self.rows = self._pair_rows(self.genotypes)
            self._fit_pairs(self._tensor(mean[paired]), self._tensor(count[paired]))

    @abstractmethod
    def _fit_pairs(self, y: Tensor, count: Tensor) -> None:
        """Set :attr:`scores`.

        Args:
            y: The mean residual of each distinct genotype of ``self.rows``, ``[rows]``.
            count: The number of its measurements.
        """

    def _mixture(self, unseen: Ints) -> Tensor:
        """:math:`a` of unseen genes, ``[unseen, seen]``; 0 by default."""
        return torch.zeros(len(unseen), len(self.seen), device=self.device)

    def _mixtures_of(self, unseen: Ints) -> Mixed:
        """Those of unseen genes, ascending; after the fit, that of a gene is computed once."""
        if self._mixtures is None:
            return self._mixed_now(unseen)
        new = np.setdiff1d(unseen, self._mixtures.genes)
        if len(new):
            blocks = [self._mixed_now(part) for part in np.split(new, range(_GENES, len(new), _GENES))]
            genes, shares, profiles = zip(self._mixtures, *blocks, strict=True)
            order = np.argsort(np.concatenate(genes))
            place = torch.from_numpy(order).to(self.device)
            self._mixtures = Mixed(np.concatenate(genes)[order], torch.cat(shares)[place], torch.cat(profiles)[place])
        if len(unseen) == len(self._mixtures.genes):
            return self._mixtures
        place = torch.from_numpy(np.searchsorted(self._mixtures.genes, unseen)).to(self.device)
        return Mixed(unseen, self._mixtures.share[place], self._mixtures.profile[place])

    def _mixed_now(self, unseen: Ints) -> Mixed:
        share = self._mixture(unseen)
        return Mixed(unseen, share, share @ self.scores)

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        effect, mixed = self._of_genes(genotypes)
        total = self.constant + sums(genotypes.row, effect[genotypes.genes], len(genotypes))
        row, code = genotypes.pairs()
        if len(row) and len(self.seen):
            found = self._of_pairs(code // genotypes.num_genes, code % genotypes.num_genes, mixed)
            total = total + sums(row, found.double().cpu().numpy(), len(genotypes))
        return total

    def _of_genes(self, genotypes: GenotypeRows) -> tuple[Floats, Mixed | None]:
        """Effects ``[num_genes]``, and the mixtures of those genes of the genotypes that are unseen."""
        unseen = np.setdiff1d(genotypes.genes, self.seen)
        if not len(unseen) or not len(self.seen):
            return self.effect, None
        mixed, effect = self._mixtures_of(unseen), self.effect.copy()
        effect[unseen] = (mixed.share @ self._tensor(effect[self.seen])).double().cpu().numpy()
        return effect, mixed

    def pair_features(self, genotypes: GenotypeRows, predicted: Floats) -> Tensor:
        """:func:`~knockgraph.models.kernels.correction.pair_features` of genotypes of two genes, ``[rows, 6]``."""
        genes, profiles = self._profiles_of(np.unique(genotypes.genes))
        first, second = torch.from_numpy(np.searchsorted(genes, genotypes.genes).reshape(-1, 2)).to(self.device).T
        effect = self._tensor(self._of_genes(genotypes)[0][genes])
        return pair_features(self._tensor(predicted), effect, profiles, first.contiguous(), second.contiguous())

    def _profiles_of(self, genes: Ints) -> tuple[Ints, Profiles]:
        """Profiles of these genes, ascending, or after the fit of all genes asked for so far, and which they are."""
        if self._drawn is not None:
            if np.isin(genes, self._drawn[0]).all():
                return self._drawn
            genes = np.union1d(genes, self._drawn[0])
        rows = torch.zeros(len(genes), len(self.seen), device=self.device)
        known = self.place[genes] >= 0
        rows[torch.from_numpy(known)] = self.scores[torch.from_numpy(self.place[genes[known]]).to(self.device)]
        if not known.all():
            rows[torch.from_numpy(~known)] = self._mixtures_of(genes[~known]).profile
        drawn = genes, Profiles.of(rows)
        if self._mixtures is not None:
            self._drawn = drawn
        return drawn

    def with_unseen(self, genotypes: GenotypeRows) -> npt.NDArray[np.bool_]:
        """Whether each row perturbs a gene that no training row does."""
        return sums(genotypes.row, (self.place[genotypes.genes] < 0).astype(np.float64), len(genotypes)) > 0

    def _of_pairs(self, g: Ints, h: Ints, mixed: Mixed | None) -> Tensor:
        r""":math:`a_g^\top \hat Y a_h` of pairs of genes."""
        first, second = (torch.from_numpy(self.place[x]).to(self.device) for x in (g, h))
        found = torch.zeros(len(first), device=self.device)
        known = (first >= 0) & (second >= 0)
        found[known] = self.scores[first[known], second[known]]
        if mixed is None:
            return found
        new_g, new_h = (torch.from_numpy(np.searchsorted(mixed.genes, x)).to(self.device) for x in (g, h))
        one = (first < 0) & (second >= 0)
        found[one] = mixed.profile[new_g[one], second[one]]
        other = (first >= 0) & (second < 0)
        found[other] = mixed.profile[new_h[other], first[other]]
        both = (first < 0) & (second < 0)
        if bool(both.any()):
            number = int(both.sum())
            rows = torch.arange(number, device=self.device)
            pairs = PairRows(rows, new_g[both], new_h[both], number, len(mixed.genes))
            found[both] = pairs.collect_product(mixed.profile, mixed.share.T)
        return found

    def _chosen_rows(self, unseen: bool) -> tuple[GenotypeRows, Floats] | None:
        """Validation rows with a pair of which some gene, or no gene, is unseen; ``None`` if there are too few."""
        if self.validation is None:
            return None
        genotypes, y = self.validation
        kept = np.flatnonzero((np.diff(genotypes.ptr) > 1) & (self.with_unseen(genotypes) == unseen))
        return (genotypes.take(kept), y[kept]) if len(kept) >= FEWEST else None

    def _score(self, rows: tuple[GenotypeRows, Floats]) -> float:
        """The correlation used for choosing; −1 if the prediction is constant."""
        genotypes, y = rows
        predicted = self._predict(genotypes)
        if predicted.std() == 0 or y.std() == 0:
            return -1.0
        return float(np.corrcoef(predicted, y)[0, 1])

    def _profiles(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """The mean residual per pair of its rows, symmetric ``[seen, seen]``, and which pairs have rows."""
        total = self.rows.spread(y / self.rows.pairs(y))
        count = self.rows.spread(torch.ones_like(y))
        return total / count.clamp(min=1), count > 0

    def _pair_rows(self, genotypes: GenotypeRows) -> PairRows:
        row, code = genotypes.pairs()
        order = np.argsort(row, kind="stable")
        g, h = self.place[code[order] // genotypes.num_genes], self.place[code[order] % genotypes.num_genes]
        index: list[npt.NDArray[np.int64]] = [row[order], g, h]
        tensors = [torch.from_numpy(x).to(self.device) for x in index]
        return PairRows(tensors[0], tensors[1], tensors[2], len(genotypes), len(self.seen))

    def _tensor(self, values: Floats | Ints) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self.device)
