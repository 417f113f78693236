"""Interaction profiles propagated between similar genes, learned with each gene left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import BaselineError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.pair_gp import PairGP
from knockgraph.models.baselines.pair_model import Device
from knockgraph.models.kernels.attention import ProfileAttention
from knockgraph.screen.ragged import Ints

_SHARES = (0.5, 0.0, 0.25, 0.75, 1.0)
_EFFECT = 11.5  # weight of a gene's effect relative to its profile, in units of the labels' spread


class ProfilePropagation(PairGP):
    r"""An unseen gene takes a mixture of seen genes' profiles, :math:`\hat y_u = a_u^\top \hat Y`.

    :math:`\hat Y` is denoised by :class:`PairGP`. The mixture is :math:`a = t\, a_\mathrm{attention} + (1 - t)\,
    a_\mathrm{ridge}`, of :class:`~knockgraph.models.kernels.attention.ProfileAttention` and of kernel ridge regression
    (:func:`~knockgraph.models.kernels.propagation.ridge_mixture`). Both are learned with each gene's own profile left
    out,
    as for an unseen gene. t is chosen by the validation part, 1/2 without one.

    Args:
        graph: The cell graph.
        relations: Networks to use; by default all.
        features: Gene features to use; by default all but those that repeat the networks.
        method: ``ridge``, ``attention``, or ``both``.
        ridge: λ of the kernel ridge regression, by default chosen (0.2).
        seed: Of the attention's first weights.
        device: Where it is fitted; ``auto``: on a GPU if there is one.
    """

    _name = "profile-propagation"

    def __init__(
        self,
        graph: CellGraph,
        relations: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        method: Literal["ridge", "attention", "both"] = "both",
        ridge: float | None = None,
        seed: int = 0,
        device: Device = "auto",
    ) -> None:
        super().__init__(graph, relations, features, ridge=ridge, device=device)
        if method not in ("ridge", "attention", "both"):
            raise BaselineError(f"method is {method!r}; use ridge, attention or both")
        self.method = method
        self.seed = seed

    def _chosen(self) -> dict[str, float]:
        found = super()._chosen()
        return found | {"share of attention": self.share} if found else found

    def _state(self) -> dict[str, Any]:
        found = super()._state()
        if self.process is None:
            return found
        attention = self.attention
        learned = None if attention is None else [dict(attention.state_dict()), attention.center, attention.scale]
        return found | {"share": self.share, "attention": learned}

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self.attention = None
        if self.process is None:
            return
        self.share = state["share"]
        if state["attention"] is not None:
            weights, center, scale = state["attention"]
            self.attention = ProfileAttention(self._here(center), self._here(scale))
            self.attention.load_state_dict(weights)

    def _fit_mixture(self, similarity: Tensor) -> None:
        self.share, self.attention = 0.0, None
        super()._fit_mixture(similarity)
        if self.method == "ridge" or len(similarity) == 0:
            return
        self._fit_attention(similarity)
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
        self.share = 1.0
        self.attention.learn(similarity, profiles, known, check=None if rows is None else lambda: self._score(rows))

    def _mixture(self, unseen: Ints) -> Tensor:
        if self.attention is None:
            return super()._mixture(unseen)
        across = self._across(unseen)
        with torch.no_grad():
            mixture: Tensor = self.share * self.attention(across)
        return mixture + (1 - self.share) * self._ridge_mixture(across) if self.share < 1 else mixture

    attention: ProfileAttention | None = None
