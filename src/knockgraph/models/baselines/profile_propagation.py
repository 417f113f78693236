"""Interaction profiles propagated between similar genes, learned with each gene left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import BaselineError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import Floats, GenotypeRows
from knockgraph.models.baselines.out_of_fold import WithoutFold, held_out
from knockgraph.models.baselines.pair_gp import WHERE, Choices, PairGP
from knockgraph.models.baselines.pair_model import Device
from knockgraph.models.kernels.attention import STEPS, ProfileAttention
from knockgraph.models.kernels.correction import PairCorrection
from knockgraph.models.kernels.propagation import MOST_GENES

_SHARES = (0.5, 0.0, 0.25, 0.75, 1.0)
_FEWEST_PAIRS = 1000  # fewest pairs out of fold that a correction is learned from
_ENOUGH_PAIRS = 150_000  # once there are as many, the remaining folds are not fitted
_MANY_GENES = MOST_GENES  # with more, one fold must do: fitting takes long, and it has pairs enough
_EFFECT = 11.5  # weight of a gene's effect relative to its profile, in units of the labels' spread


class ProfilePropagation(PairGP):
    r"""An unseen gene takes a mixture of seen genes' profiles, :math:`\hat y_u = a_u^\top \hat Y`.

    :math:`\hat Y` is denoised by :class:`PairGP`. The mixture is :math:`a = t\, a_\mathrm{attention} + (1 - t)\,
    a_\mathrm{ridge}`, of :class:`~knockgraph.models.kernels.attention.ProfileAttention` and of kernel ridge regression
    (:func:`~knockgraph.models.kernels.propagation.ridge_mixture`). Both are learned with each gene's own profile left
    out,
    as for an unseen gene. t is chosen by the validation part, 1/2 without one.

    What this leaves unexplained of a genotype of two genes is learned from pairs that were predicted out of fold:
    :math:`\hat y + \delta(x)`, with a small network :math:`\delta` of six features x of the pair
    (:class:`~knockgraph.models.kernels.correction.PairCorrection`): the prediction, sums and differences of effects and
    of sizes of profiles, and the cosine of the profiles; an unseen gene has those of its mixture. There is one
    :math:`\delta` for pairs of seen genes (five folds leave out genotypes), and one for pairs with an unseen gene (five
    folds leave out genes). The validation part may reject either.

    Args:
        graph: The cell graph.
        relations: Networks to use; by default all.
        features: Gene features to use; by default all but those that repeat the networks.
        method: ``ridge``, ``attention``, or ``both``.
        ridge: λ of the kernel ridge regression, by default chosen (0.2).
        correction: Whether to learn :math:`\delta`; it needs 1,000 genotypes of two genes.
        seed: Of the first weights of attention and correction.
        device: Where it is fitted; ``auto``: on a GPU if there is one.
        together: Whether phenotypes learn from each other.
    """

    _name = "profile-propagation"
    _left_out = (
        f"weights of networks and features, and attention, are learned from {MOST_GENES:,} of the genes, "
        "the correction from one fold"
    )

    def __init__(
        self,
        graph: CellGraph,
        relations: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        method: Literal["ridge", "attention", "both"] = "both",
        ridge: float | None = None,
        correction: bool = True,
        seed: int = 0,
        device: Device = "auto",
        together: bool = True,
    ) -> None:
        super().__init__(graph, relations, features, ridge=ridge, device=device, together=together)
        if method not in ("ridge", "attention", "both"):
            raise BaselineError(f"method is {method!r}; use ridge, attention or both")
        self.method = method
        self.correction = correction
        self.seed = seed

    def _forget(self) -> None:
        super()._forget()
        self.attention: ProfileAttention | None = None
        self.corrections: dict[bool, PairCorrection] = {}

    def _correct(self, genotypes: GenotypeRows, y: Floats) -> None:
        if not self.correction or self._between is None:
            return
        for unseen in (False, True) if self._before is None else self._before.corrected:
            if len(self._between) or not unseen:
                self._fit_correction(genotypes, y, self._between, unseen)

    def _choices(self) -> Choices:
        return replace(super()._choices(), share=self.share, steps=self._steps, corrected=tuple(self.corrections))

    def _chosen(self) -> dict[str, float]:
        found = super()._chosen()
        kept = {f"correction, {WHERE[unseen]}": float(unseen in self.corrections) for unseen in WHERE}
        return found | {"share of attention": self.share} | kept if found else found

    def _state(self) -> dict[str, Any]:
        found = super()._state()
        if self.process is None:
            return found
        attention = self.attention
        learned = None if attention is None else [dict(attention.state_dict()), attention.center, attention.scale]
        corrections = {
            WHERE[unseen]: [dict(one.state_dict()), one.center, one.scale, one.unit]
            for unseen, one in self.corrections.items()
        }
        return found | {"share": self.share, "attention": learned, "corrections": corrections}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        if self.process is None:
            return
        self.share = state["share"]
        if state["attention"] is not None:
            weights, center, scale = state["attention"]
            self.attention = ProfileAttention(self._here(center), self._here(scale))
            self.attention.load_state_dict(weights)
        for unseen, where in WHERE.items():
            if where in state.get("corrections", {}):  # earlier runs have none
                weights, *about = state["corrections"][where]
                self.corrections[unseen] = PairCorrection(*map(self._here, about))
                self.corrections[unseen].load_state_dict(weights)

    def _fit_mixture(self, similarity: Tensor) -> None:
        self.share, self.attention, self._steps = 0.0, None, 0
        super()._fit_mixture(similarity)
        if self.method == "ridge" or len(similarity) == 0:
            return
        self._fit_attention(similarity)
        if self._before is not None:
            self.share = self._before.share
            return
        rows = self._chosen_rows(unseen=True)
        if self.method == "attention" or rows is None:
            self.share = 1.0 if self.method == "attention" else _SHARES[0]
            return
        scores = []
        for share in _SHARES:
            self.share = share
            scores.append(self._score(rows))
        self.share = _SHARES[int(np.argmax(scores))]

    def _fit_attention(self, similarity: Tensor) -> None:
        effect = self._tensor(self.effect[self.seen])[:, None]
        profiles = torch.cat([self.filled, _EFFECT * effect], 1)
        known = torch.cat([self.known, torch.ones_like(effect, dtype=torch.bool)], 1)
        self.attention = ProfileAttention.of(similarity, self.seed)
        rows = self._chosen_rows(unseen=True)
        self.pace.tell("attention")
        self.share = 1.0
        check = None if rows is None else lambda: self._score(rows)
        steps = STEPS if self._before is None else self._before.steps
        self._steps = self.attention.learn(similarity, profiles, known, steps, check)

    def _mixed(self, network: Tensor, across: Tensor) -> Tensor:
        if self.attention is None:
            return super()._mixed(network, across)
        with torch.no_grad():
            mixture: Tensor = self.share * self.attention(across)
        return mixture + (1 - self.share) * super()._mixed(network, across) if self.share < 1 else mixture

    def _fit_correction(self, genotypes: GenotypeRows, y: Floats, similarity: Tensor, unseen: bool) -> None:
        """Learn δ of pairs of seen genes, or of those with an unseen one, and keep it unless validation rejects it."""
        features, left, found = [], [], 0
        enough = _ENOUGH_PAIRS if len(self.seen) <= _MANY_GENES else _FEWEST_PAIRS
        for held in held_out(genotypes, unseen):
            rest = held & (np.diff(genotypes.ptr) == 2)
            if found >= enough or not rest.any() or held.all():
                continue
            self.pace.tell(f"a fold without some {'genes' if unseen else 'genotypes'}, for the correction")
            fold = WithoutFold(self, similarity)
            fold._fit(genotypes.take(np.flatnonzero(~held)), y[~held])
            pairs = np.flatnonzero(rest)
            pairs = pairs[fold.with_unseen(genotypes.take(pairs)) == unseen]
            predicted = fold._predict(genotypes.take(pairs))
            features.append(fold.pair_features(genotypes.take(pairs), predicted))
            left.append(self._tensor(y[pairs] - predicted))
            found += len(pairs)
        if found < _FEWEST_PAIRS:
            return
        learned = PairCorrection.learned(torch.cat(features), torch.cat(left), self.seed)
        rows = self._chosen_rows(unseen)
        without = -1.0 if rows is None else self._score(rows)
        self.corrections[unseen] = learned
        if rows is not None and self._score(rows) <= without:
            del self.corrections[unseen]

    def _in_full(self, genotypes: GenotypeRows) -> Floats:
        found = super()._in_full(genotypes)
        if not self.corrections:
            return found
        of_two, new = np.diff(genotypes.ptr) == 2, self.with_unseen(genotypes)
        for unseen, correction in self.corrections.items():
            pairs = np.flatnonzero(of_two & (new == unseen))
            if len(pairs):
                with torch.no_grad():
                    more = correction(self.pair_features(genotypes.take(pairs), found[pairs]))
                found[pairs] += more.double().cpu().numpy()
        return found
