"""Pair models of several phenotypes: joined screens learn from each other, each with its own scale and noise."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import knockgraph as kg
from knockgraph.models.baselines.pair_gp import PairGP
from knockgraph.screen import BoundScreen, splits
from knockgraph.screen.ragged import Ints


@cache
def joined(related: bool = True) -> tuple[BoundScreen, Ints, Ints]:
    """A screen, and a smaller and noisier one of the same interactions on another scale, or of none; train and val."""
    screen, random = kg.demo_screen(2_000), np.random.default_rng(0)
    y = screen.phenotypes["gene_interaction"]
    some = np.sort(random.permutation(len(screen))[:600])
    small = -3 * y[some] + random.normal(0, 0.3, len(some)) if related else random.normal(0, 1, len(some))
    both = kg.Screen.join(
        {
            "large": kg.Screen(screen.genotypes, {"score": y}),
            "small": kg.Screen(screen.genotypes.take(some), {"score": small}),
        }
    )
    split = splits.by_genotype(both, seed=0)
    return both.bind(kg.demo_cell()), split["train"], np.concatenate([split["val"], split["test"]])


def model(**options: Any) -> PairGP:
    settings: dict[str, Any] = {"weights": "mean", "network": 0.5, "noise": 0.5, "scale_power": 1.2, "ridge": 0.2}
    return PairGP(kg.demo_cell(), relations=["physical"], device="cpu", **settings, **options)


@cache
def fitted(related: bool = True, together: bool = True) -> PairGP:
    screen, train, val = joined(related)
    return model(together=together).fit(screen, train, screen.values[train], (val, screen.values[val]))


def score(found: Tensor, phenotype: int) -> float:
    screen, _, val = joined()
    measured = screen.values[val][:, phenotype]
    known = ~measured.isnan()
    return float(torch.corrcoef(torch.stack([found[known, phenotype].double(), measured[known].double()]))[0, 1])


def test_a_small_screen_learns_from_a_large_one() -> None:
    screen, _, val = joined()
    alone, together = (fitted(together=how).predict(screen, val) for how in (False, True))
    assert score(together, 1) > score(alone, 1) + 0.2
    assert score(together, 0) >= score(alone, 0)
    (other,) = fitted()._each[1]._others
    assert (other.name, other.place) == ("large_score", 0)
    assert -4 < other.slope < -2  # its scale and sign


def test_a_screen_that_says_nothing_is_left_out() -> None:
    screen, _, val = joined(related=False)
    alone, together = (fitted(related=False, together=how).predict(screen, val) for how in (False, True))
    assert fitted(related=False)._each[0]._others == ()
    torch.testing.assert_close(together[:, 0], alone[:, 0], rtol=0, atol=0)


def test_alone_is_one_model_for_each_phenotype() -> None:
    screen, train, val = joined()
    found = fitted(together=False).predict(screen, val)
    for k in range(2):
        rows, others = (part[~screen.values[part][:, k].isnan().numpy()] for part in (train, val))
        one = model().fit(screen, rows, screen.values[rows][:, [k]], (others, screen.values[others][:, [k]]))
        torch.testing.assert_close(one.predict(screen, val)[:, 0], found[:, k], rtol=0, atol=0)


def test_without_a_validation_part_each_is_alone() -> None:
    screen, train, _ = joined()
    assert all(not one._others for one in model().fit(screen, train, screen.values[train])._each)


def test_state_is_restored() -> None:
    screen, _, val = joined()
    again = model().restore(fitted().state())
    torch.testing.assert_close(again.predict(screen, val), fitted().predict(screen, val), rtol=0, atol=0)
    assert [len(one._others) for one in again._each] == [len(one._others) for one in fitted()._each]


def test_a_second_fit_keeps_who_learns_from_whom() -> None:
    screen, train, val = joined()
    found = model().fit(screen, train, screen.values[train], (val, screen.values[val]))
    before = found.predict(screen, val)
    both = np.concatenate([train, val])
    found.fit_again(screen, both, screen.values[both])
    assert [len(one._others) for one in found._each] == [len(one._others) for one in fitted()._each]
    assert score(found.predict(screen, val), 1) > score(before, 1)  # it has seen them now
    again = model().restore(found.state())
    torch.testing.assert_close(again.predict(screen, val), found.predict(screen, val), rtol=0, atol=0)
