"""What is learned out of fold: it helps where pairs are not linear, and no fold sees what it predicts."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import BoundScreen, CellGraph, Screen, progress
from knockgraph.models import baselines
from knockgraph.models.baselines import pair_gp, profile_propagation
from knockgraph.models.baselines.baseline import GenotypeRows
from knockgraph.models.baselines.out_of_fold import FOLDS, WithoutFold, held_out
from knockgraph.models.baselines.profile_propagation import ProfilePropagation
from knockgraph.models.kernels.correction import PairCorrection, Profiles, pair_features

GENES = 66
UNSEEN = np.arange(0, GENES, 6)


@cache
def curved() -> tuple[CellGraph, BoundScreen]:
    """Genes of eleven groups and of different strength; no interaction is stronger than a bound."""
    random = default_rng(1)
    names, group = [f"G{k:02d}" for k in range(GENES)], np.arange(GENES) % 11
    block = random.normal(size=(11, 11))
    strength = random.lognormal(0.0, 0.7, GENES)
    truth = 2 * (block + block.T)[group][:, group] * np.outer(strength, strength)
    same = np.array([(i, j) for i, j in itertools.permutations(range(GENES), 2) if group[i] == group[j]]).T
    graph = CellGraph(names, {"module": torch.from_numpy(same)})
    pairs = list(itertools.combinations(range(GENES), 2))
    y = [np.tanh(truth[pair]) + 0.1 * random.normal() for pair in pairs]
    return graph, Screen([[names[g] for g in pair] for pair in pairs], {"f": y}).bind(graph)


def parts(unseen: bool) -> tuple[np.ndarray, np.ndarray]:
    """Training rows, and others: at random, or with the unseen genes."""
    screen = curved()[1]
    if unseen:
        new = np.isin(screen.indices.numpy().reshape(-1, 2), UNSEEN).any(1)
        return np.flatnonzero(~new), np.flatnonzero(new)
    rows = default_rng(0).permutation(len(screen))
    return rows[:1400], rows[1400:]


@cache
def fitted(unseen: bool, correction: bool = True) -> ProfilePropagation:
    graph, screen = curved()
    train, _ = parts(unseen)
    model = baselines.create("profile-propagation", graph, correction=correction)
    assert isinstance(model, ProfilePropagation)
    return model.fit(screen, train, screen.values[train])


def error(model: baselines.Baseline, rows: np.ndarray) -> float:
    screen = curved()[1]
    return float((model.predict(screen, rows) - screen.values[rows]).square().mean())


@pytest.mark.parametrize("unseen", [False, True])
def test_it_learns_what_a_linear_model_leaves(unseen: bool) -> None:
    rest = parts(unseen)[1]
    assert set(fitted(unseen).corrections) == {False, True}
    assert not fitted(unseen, False).corrections
    assert error(fitted(unseen), rest) < 0.93 * error(fitted(unseen, False), rest)


def test_validation_rejects_what_does_not_help() -> None:
    graph, screen = curved()
    train, rest = parts(unseen=False)
    opposite = -fitted(False).predict(screen, rest)  # the better the prediction, the lower its score
    model = baselines.create("profile-propagation", graph)
    model.fit(screen, train, screen.values[train], (rest, opposite))
    assert model.chosen()["correction, seen genes"] == 0.0
    assert model.chosen()["correction, unseen genes"] == 1.0  # there is no validation row to reject it


def test_it_is_saved_and_earlier_runs_have_none() -> None:
    graph, screen = curved()
    state, rest = fitted(False).state(), parts(unseen=False)[1]
    again = baselines.create("profile-propagation", graph).restore(state)
    torch.testing.assert_close(again.predict(screen, rest), fitted(False).predict(screen, rest), rtol=0, atol=1e-6)
    earlier = {key: value for key, value in state["phenotypes"][0].items() if key != "corrections"}
    before = baselines.create("profile-propagation", graph).restore({**state, "phenotypes": [earlier]})
    torch.testing.assert_close(before.predict(screen, rest), fitted(False, False).predict(screen, rest))


def test_only_genotypes_of_two_genes_are_corrected() -> None:
    names, train = list(curved()[0].genes), parts(unseen=False)[0]
    more = Screen([[], names[:1], names[:3], names[:2]], {"f": [0.0] * 4}).bind(curved()[0])
    with_it, without = (fitted(False, on).predict(more, np.arange(4))[:, 0] for on in (True, False))
    assert torch.equal(with_it[:3], without[:3])
    assert with_it[3] != without[3]
    few = baselines.create("profile-propagation", curved()[0])
    few.fit(curved()[1], train[:900], curved()[1].values[train[:900]])
    assert few.chosen()["correction, seen genes"] == 0.0  # fewer than 1,000 pairs


def test_with_many_genes_one_fold_must_do(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def learned(features: torch.Tensor, left: torch.Tensor, seed: int) -> PairCorrection:
        seen.append(len(left))
        return PairCorrection(features.mean(0), features.std(0), torch.tensor(1.0), seed)

    monkeypatch.setattr(profile_propagation, "_MANY_GENES", GENES - 1)
    monkeypatch.setattr(profile_propagation, "_FEWEST_PAIRS", 200)
    monkeypatch.setattr(PairCorrection, "learned", learned)
    train, _ = parts(unseen=False)
    baselines.create("profile-propagation", curved()[0]).fit(curved()[1], train, curved()[1].values[train])
    assert seen[0] == len(train) // FOLDS  # of genotypes
    assert 0.3 < seen[1] / len(train) < 0.42  # those of a fifth of the genes


def test_a_long_fit_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    graph, screen = curved()
    train, _ = parts(unseen=False)
    with caplog.at_level("INFO", "knockgraph"):
        baselines.create("pair-gp", graph).fit(screen, train, screen.values[train])
        assert not caplog.messages  # it was short
        monkeypatch.setattr(progress, "_PAUSE", 0.0)
        monkeypatch.setattr(pair_gp, "MOST_GENES", GENES - 1)
        baselines.create("profile-propagation", graph).fit(screen, train, screen.values[train])
    first, *steps = caplog.messages
    assert first == (
        "profile-propagation: 66 genes and 1,400 genotypes on CPU: weights of networks and features, and attention, "
        "are learned from 1,500 of the genes, the correction from one fold"
    )
    assert all(step.startswith("profile-propagation, after 0:0") for step in steps)
    for what in ("similarities", "weights", "second posterior", "attention", "without some genotypes", "some genes"):
        assert any(what in step for step in steps), what


@pytest.mark.parametrize("unseen", [False, True])
def test_a_fold_does_not_see_what_it_predicts(unseen: bool) -> None:
    screen, model = curved()[1], fitted(False)
    rows = GenotypeRows.of(screen, parts(unseen=False)[0])
    y = screen.values[parts(unseen=False)[0], 0].double().numpy()
    similarity = model.similarities.to(model.similarities)
    folds = list(held_out(rows, unseen))
    assert len(folds) == FOLDS
    assert np.sum(folds, 0).min() == 1  # every row is left out by one fold, or by those of its two genes
    assert np.sum(folds, 0).max() == 1 + unseen
    held = folds[0]
    fold = WithoutFold(model, similarity)
    fold._fit(rows.take(np.flatnonzero(~held)), y[~held])
    left_out = rows.take(np.flatnonzero(held))
    assert fold.with_unseen(left_out).all() == unseen
    assert fold.with_unseen(left_out).any() == unseen
    assert np.corrcoef(fold._predict(left_out), y[held])[0, 1] > 0.5
    again = list(held_out(rows, unseen))
    assert all(np.array_equal(a, b) for a, b in zip(folds, again, strict=True))


def test_all_measurements_of_a_genotype_are_left_out_together() -> None:
    rows = GenotypeRows(np.array([0, 1, 2, 3, 0, 1, 1, 2] * 20), np.arange(0, 162, 2), 5)
    for held in held_out(rows, unseen=False):
        assert np.array_equal(held[::4], held[2::4])


def test_a_correction_knows_no_units_and_is_the_same_again() -> None:
    random = default_rng(0)
    x = torch.from_numpy(random.normal(size=(1000, 6))).float()
    left = (x[:, 0] * x[:, 1]).tanh() + 0.1 * torch.from_numpy(random.normal(size=1000)).float()
    once, again = PairCorrection.learned(x, left), PairCorrection.learned(x, left)
    other = PairCorrection.learned(1000 * x + 7, 1000 * left)
    with torch.no_grad():
        found = once(x)
        assert (found - left).square().mean() < 0.2 * left.square().mean()
        assert torch.equal(found, again(x))
        torch.testing.assert_close(other(1000 * x + 7) / 1000, found, rtol=0, atol=0.05)
        start = PairCorrection(x.mean(0), x.std(0), torch.tensor(1.0))
        assert not start(x).any()


def test_features_of_pairs_by_hand() -> None:
    profiles = Profiles.of(torch.tensor([[3.0, 4.0], [4.0, 3.0], [0.0, 0.0]]))
    effect, first, second = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0, 1]), torch.tensor([1, 2])
    found = pair_features(torch.tensor([9.0, 8.0]), effect, profiles, first, second)
    torch.testing.assert_close(found[0], torch.tensor([9.0, -1.0, 3.0, 12.5, 0.0, 0.96]))
    torch.testing.assert_close(found[1], torch.tensor([8.0, -1.5, 2.5, 0.0, 12.5**0.5, 0.0]))
    torch.testing.assert_close(pair_features(torch.tensor([9.0, 8.0]), effect, profiles, second, first), found)
