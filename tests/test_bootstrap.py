"""Bootstrap intervals against the plain scores of experiments that are really repeated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.random import default_rng
from scipy.stats import pearsonr
from sklearn.metrics import average_precision_score, roc_auc_score

from knockgraph.bootstrap import interval, mean_over_seeds, resampled


def test_samples_are_scores_of_repeated_experiments() -> None:
    random = default_rng(0)
    y = random.normal(size=200)
    predicted = {"good": y + random.normal(size=200), "bad": random.normal(size=200), "constant": np.ones(200)}
    found = resampled(y, predicted, classes=False, samples=3, seed=7)["pearson"]
    draws = default_rng(7).multinomial(200, np.full(200, 1 / 200), size=4)
    for model in ("good", "bad"):
        assert found[model][0] == pytest.approx(pearsonr(y, predicted[model]).statistic)
        for sample, count in zip(found[model][1:], draws[1:], strict=True):
            again = pearsonr(np.repeat(y, count), np.repeat(predicted[model], count)).statistic
            assert sample == pytest.approx(again)
    assert np.isnan(found["constant"]).all()
    assert math.isnan(interval(found["constant"]).value)


def test_classes_with_ties() -> None:
    random = default_rng(1)
    y = (random.random(300) < 0.2).astype(float)
    p = np.round(y + random.normal(size=300), 0)  # many ties
    found = resampled(y, {"m": p}, classes=True, samples=2, seed=3)
    draws = default_rng(3).multinomial(300, np.full(300, 1 / 300), size=3)
    draws[0] = 1
    for k, count in enumerate(draws):
        truth, score = np.repeat(y, count), np.repeat(p, count)
        assert found["auroc"]["m"][k] == pytest.approx(roc_auc_score(truth, score))
        assert found["average_precision"]["m"][k] == pytest.approx(average_precision_score(truth, score))


def test_a_paired_difference_is_tighter_than_its_parts() -> None:
    random = default_rng(2)
    y = random.normal(size=500)
    first = y + random.normal(size=500)
    both = {"first": first, "second": first + 0.1 * random.normal(size=500)}
    found = resampled(y, both, classes=False, samples=400, seed=0)["pearson"]
    one, gap = interval(found["first"]), interval(found["first"] - found["second"])
    assert one.low < one.value < one.high
    assert gap.high - gap.low < 0.3 * (one.high - one.low)
    # The interval is that of the textbook: r ± 1.96 (1 − r²) / √n.
    assert one.high - one.low == pytest.approx(2 * 1.96 * (1 - one.value**2) / math.sqrt(500), rel=0.2)
    assert mean_over_seeds([np.array([1.0, 2.0]), np.array([3.0, 6.0])]).tolist() == [2.0, 4.0]


def test_repeated_measurements_are_drawn_together() -> None:
    """Three copies of each genotype made the interval narrower, as if there were three times as many."""
    random = default_rng(5)
    y, p = random.normal(size=(2, 150))
    genotype = np.tile(random.permutation(150) + 7, 3)
    once = resampled(y, {"m": p}, False, 300, 0)["pearson"]["m"]
    thrice = resampled(np.tile(y, 3), {"m": np.tile(p, 3)}, False, 300, 0, genotype)["pearson"]["m"]
    assert thrice[0] == pytest.approx(once[0])
    assert thrice[1:].std() == pytest.approx(once[1:].std(), rel=0.15)
    apart = resampled(np.tile(y, 3), {"m": np.tile(p, 3)}, False, 300, 0)["pearson"]["m"]
    assert apart[1:].std() < 0.7 * thrice[1:].std()
    draw = default_rng(0).multinomial(150, np.full(150, 1 / 150), size=2)[1]
    rows = np.argsort(np.unique(genotype[:150], return_inverse=True)[1])
    assert thrice[1] == pytest.approx(pearsonr(np.repeat(y[rows], draw), np.repeat(p[rows], draw)).statistic)
    different = resampled(y, {"m": p}, False, 3, 0, random.permutation(150))["pearson"]["m"]
    assert different.tolist() == once[:4].tolist()  # nothing is repeated


def test_several_phenotypes_with_missing_labels() -> None:
    random = default_rng(3)
    y = random.normal(size=200)
    p = {"good": y + random.normal(size=200), "fair": y + 2 * random.normal(size=200)}
    two = np.stack([y, -y], 1)
    two[::3, 1] = np.nan
    predicted = np.stack([p["good"], -p["fair"]], 1)
    found = resampled(two, {"both": predicted}, False, 20, 0)["pearson"]["both"]
    known = ~np.isnan(two[:, 1])
    expected = (pearsonr(y, p["good"])[0] + pearsonr(y[known], p["fair"][known])[0]) / 2
    assert found[0] == pytest.approx(expected, abs=1e-12)
    assert np.isfinite(found).all()


def test_what_is_constant_has_no_correlation_and_warns_nobody() -> None:
    y = default_rng(4).normal(size=4)
    found = resampled(y, {"constant": np.full(4, 0.1)}, False, 200, 0)["pearson"]["constant"]
    assert np.isnan(found).all()
    assert np.isnan(interval(found).low)
    few = resampled(y[:2], {"two": np.array([1.0, 2.0])}, False, 200, 0)["pearson"]["two"]  # some samples have one
    assert np.isnan(few[1:]).any()
    assert abs(interval(few).value) == pytest.approx(1.0)
