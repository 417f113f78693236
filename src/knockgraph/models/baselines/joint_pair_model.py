"""Base of pair models of which several phenotypes, such as those of joined screens, learn from each other."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from knockgraph.models.baselines.baseline import Floats, GenotypeRows, each_phenotype
from knockgraph.models.baselines.pair_model import FEWEST, Device, PairModel
from knockgraph.screen import BoundScreen
from knockgraph.screen.ragged import Ints

_MOST_TOGETHER = 8  # phenotypes


class Other(NamedTuple):
    """Another phenotype that one learns from."""

    name: str
    place: int  #: among the phenotypes
    alone: JointPairModel  #: the fit of that phenotype alone
    slope: float  #: of its predictions


class JointPairModel(PairModel):
    r"""Each phenotype is fitted alone, with effects, variance and noise of its own, and then once more with the others,

    .. math:: \hat y^s_P = \sum_{t \ne s} \beta_{st}\, \hat y^t_P + f^s_P ,

    with the slopes :math:`\beta` of a linear regression on what the others predict when they are fitted alone (0 for
    genotypes with a gene that is unseen there), and :math:`f^s` fitted to what this leaves, with :math:`\hat Y^t` as
    features of genes; also with :math:`\beta = 0`. Of these, that is kept which predicts the validation part of the
    phenotype best: the one alone, unless another is better by more than one standard error.

    Args:
        device: Where it is fitted; ``auto``: on a GPU if there is one.
        together: Whether phenotypes learn from each other; otherwise, and without a validation part, each is alone.
    """

    _others: tuple[Other, ...] = ()

    def __init__(self, device: Device = "auto", together: bool = True) -> None:
        super().__init__(device)
        self.together = together

    def fit(
        self,
        screen: BoundScreen,
        rows: Ints,
        values: Tensor,
        validation: tuple[Ints, Tensor] | None = None,
        classes: bool = False,
    ) -> Self:
        """See :meth:`Baseline.fit`."""
        self._alone, self._others = (), ()
        super().fit(screen, rows, values, validation, classes)
        if not self.together or validation is None or not 1 < len(self._each) <= _MOST_TOGETHER:
            return self
        self._alone = tuple(self._each)
        training = each_phenotype("training", screen, rows, values)
        held_out = each_phenotype("validation", screen, *validation)
        every = range(len(training))
        told = screen.phenotype_types  # of the screen; the labels may be others
        names = told if len(told) == len(training) else [f"phenotype {k}" for k in every]
        self._each = [self._better(k, names, training[k], held_out[k]) for k in every]
        self._settle()
        return self

    def fit_again(self, screen: BoundScreen, rows: Ints, values: Tensor) -> Self:
        """See :meth:`Baseline.fit_again`."""
        each, self._each = self._each, self._alone or self._each
        super().fit_again(screen, rows, values)
        self._each = each
        training = each_phenotype("training", screen, rows, values)
        for k, one in enumerate(each):
            if one._others:
                genotypes, y = training[k]
                one._fit_again(genotypes, y - one._said_by_others(genotypes))
        self._settle()
        return self

    def predict_rows(self, genotypes: GenotypeRows) -> Tensor:
        """See :meth:`Baseline.predict_rows`."""
        found = super().predict_rows(genotypes)
        for k, one in enumerate(self._each):
            if one._others:
                found[:, k] += torch.from_numpy(one._said_by_others(genotypes)).float()
        return found

    def state(self) -> dict[str, Any]:
        """See :meth:`Baseline.state`."""
        found = super().state()
        return found | {"alone": [one._state() for one in self._alone]} if any(o._others for o in self._each) else found

    def restore(self, state: dict[str, Any]) -> Self:
        """See :meth:`Baseline.restore`."""
        self._alone, alone = (), []
        for its in state.get("alone", ()):
            alone.append(copy(self))
            alone[-1]._restore(its)
        self._alone = tuple(alone)
        return super().restore(state)

    def _better(
        self, k: int, names: Sequence[str], training: tuple[GenotypeRows, Floats], held_out: tuple[GenotypeRows, Floats]
    ) -> Self:
        """The fit of phenotype k that predicts its validation part best: with the others, or alone."""
        best = alone = self._alone[k]
        others = {t: other for t, other in enumerate(self._alone) if t != k and other.scores.any()}
        new, measured = held_out
        if not others or len(measured) < FEWEST:
            return alone
        least = missed = (measured - alone._predict(new)) ** 2
        slopes = _slopes([other._of_seen(training[0]) for other in others.values()], training[1])
        for chosen in (slopes, [0.0] * len(slopes)):
            one = copy(self)
            one._each = one._alone = ()
            one._others = tuple(Other(names[t], t, others[t], slope) for t, slope in zip(others, chosen, strict=True))
            one.validation = new, measured - one._said_by_others(new)
            one._fit(training[0], training[1] - one._said_by_others(training[0]))
            one.validation = None
            its = (measured - one._predict(new) - one._said_by_others(new)) ** 2
            gain = missed - its
            if its.mean() < least.mean() and gain.mean() > gain.std() / np.sqrt(len(gain)):
                best, least = one, its
        return best

    def _said_by_others(self, genotypes: GenotypeRows) -> Floats:
        """What predictions of the other phenotypes say about this one."""
        said = [other.slope * other.alone._of_seen(genotypes) for other in self._others]
        return np.sum(said, axis=0) if said else np.zeros(len(genotypes))

    def _of_seen(self, genotypes: GenotypeRows) -> Floats:
        """Predictions minus the constant; 0 for genotypes with an unseen gene, about which little is known."""
        found: Floats = np.where(self.with_unseen(genotypes), 0.0, self._predict(genotypes) - self.constant)
        return found

    def _profiles_of_others(self, num_genes: int) -> dict[str, Tensor]:
        """Features of genes, ``[num_genes, columns]``: their rows of the others' :math:`\\hat Y`."""
        found = {}
        for name, _, other, _ in self._others:
            found[f"profiles of {name}"] = profiles = other.scores.new_zeros(num_genes, len(other.seen))
            profiles[torch.from_numpy(other.seen).to(profiles.device)] = other.scores
        return found

    def _state(self) -> dict[str, Any]:
        others = [[other.name, other.place, other.slope] for other in self._others]
        return super()._state() | ({"others": others} if others else {})

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        others = state.get("others", ())
        self._others = tuple(Other(name, place, self._alone[place], slope) for name, place, slope in others)


def _slopes(features: Sequence[Floats], y: Floats) -> list[float]:
    """Of the linear combination of features that is next to y; one that is constant has the slope 0."""
    x = np.stack(features, 1)
    x = x - x.mean(0)
    scale = np.maximum(x.std(0), 1e-12)
    found: list[float] = (np.linalg.lstsq(x / scale, y - y.mean(), rcond=1e-6)[0] / scale).tolist()
    return found
