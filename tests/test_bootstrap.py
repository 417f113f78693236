"""Bootstrap intervals against scipy and against drawing by hand."""

import numpy as np
import pytest
from scipy.stats import pearsonr

from knockgraph.bootstrap import interval, resampled


def data(n: int = 200, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    y = random.normal(size=n)
    shared = random.normal(size=n)
    return y, {"good": y + 0.5 * shared, "fair": y + 0.55 * shared, "none": random.normal(size=n)}


def test_the_first_value_is_that_of_all_experiments() -> None:
    y, p = data()
    found = resampled(y, p, False, 50, 0)["pearson"]
    for name, values in found.items():
        assert values.shape == (51,)
        assert values[0] == pytest.approx(pearsonr(y, p[name])[0], abs=1e-12)


def test_samples_are_draws_with_replacement() -> None:
    y, p = data()
    values = resampled(y, p, False, 2000, 1)["pearson"]["good"][1:]
    random = np.random.default_rng(5)
    by_hand = []
    for _ in range(2000):
        rows = random.integers(0, len(y), len(y))
        by_hand.append(pearsonr(y[rows], p["good"][rows])[0])
    assert values.std() == pytest.approx(np.std(by_hand), rel=0.1)


def test_differences_are_paired() -> None:
    """Both models make the same errors: their difference is far surer than each score."""
    y, p = data()
    found = resampled(y, p, False, 500, 0)["pearson"]
    lead = interval(found["good"] - found["fair"])
    alone = interval(found["good"])
    assert lead.low > 0
    assert lead.high - lead.low < 0.3 * (alone.high - alone.low)


def test_several_phenotypes_with_missing_labels() -> None:
    y, p = data()
    two = np.stack([y, -y], 1)
    two[::3, 1] = np.nan
    predicted = np.stack([p["good"], -p["fair"]], 1)
    found = resampled(two, {"both": predicted}, False, 20, 0)["pearson"]["both"]
    known = ~np.isnan(two[:, 1])
    expected = (pearsonr(y, p["good"])[0] + pearsonr(y[known], p["fair"][known])[0]) / 2
    assert found[0] == pytest.approx(expected, abs=1e-12)
    assert np.isfinite(found).all()


def test_what_is_constant_has_no_correlation_and_warns_nobody() -> None:
    y, _ = data(4)
    found = resampled(y, {"constant": np.full(4, 0.1)}, False, 200, 0)["pearson"]["constant"]
    assert np.isnan(found).all()
    assert np.isnan(interval(found).low)
    few = resampled(y[:2], {"two": np.array([1.0, 2.0])}, False, 200, 0)["pearson"]["two"]  # some samples have one
    assert np.isnan(few[1:]).any()
    assert abs(interval(few).value) == pytest.approx(1.0)
