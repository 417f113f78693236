"""Quadratic log-odds: against loops, least penalised loss, missing values, drawn zeros."""

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph.models.baselines import quadratic_odds
from knockgraph.models.baselines.quadratic_odds import QuadraticOdds


def rows(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Four features, one of them far out at times, one missing at times; a product decides the class."""
    random = default_rng(seed)
    table = random.normal(size=(n, 4)).astype(np.float32) * [1, 2, 0.5, 1] + [0, 3, 0, -1]
    table[:, 2] += 40 * (random.random(n) < 0.01)
    table[random.random(n) < 0.2, 3] = np.nan
    odds = 3 * table[:, 0] * (table[:, 1] - 3) - 2
    return table.astype(np.float32), (random.random(n) < 1 / (1 + np.exp(-odds))).astype(np.float64)


def slow(found: QuadraticOdds, row: np.ndarray) -> float:
    z = []
    for x, center, scale in zip(row.tolist(), found.center, found.scale, strict=True):
        z.append(0.0 if np.isnan(x) else min(max((x - center) / scale, -3.0), 3.0))
    total = found.offset + sum(w * one for w, one in zip(found.linear, z, strict=True))
    for j in range(4):
        for k in range(j, 4):
            total += found.square[j, k] * z[j] * z[k]
    return float(total)


def test_predictions_are_those_of_a_loop() -> None:
    table, y = rows(500)
    found = QuadraticOdds.learned(table, y)
    np.testing.assert_allclose(found(table), [slow(found, row) for row in table], rtol=1e-9)
    np.testing.assert_allclose(np.tril(found.square, -1), 0)
    np.testing.assert_allclose(found.center, np.nanmean(table.astype(np.float64), 0), rtol=1e-6)
    again = QuadraticOdds.from_state(found.state())
    np.testing.assert_array_equal(again(table), found(table))
    pieces = np.concatenate([found(table[:7]), found(table[7:])])
    np.testing.assert_allclose(pieces, found(table), rtol=1e-12)


def test_the_penalised_loss_has_no_slope() -> None:
    table, y = rows(4000)
    found = QuadraticOdds.learned(table, y)
    z = np.nan_to_num((table - found.center) / found.scale).clip(-3, 3)
    free = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (found.linear, found.square)]
    offset = torch.tensor(found.offset, dtype=torch.float64, requires_grad=True)
    x = torch.from_numpy(z)
    odds = offset + x @ free[0] + ((x @ free[1].triu()) * x).sum(1)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, torch.from_numpy(y), reduction="sum")
    (loss + 500 * sum(value.square().sum() for value in free)).backward()
    for value in (offset, *free):
        assert value.grad is not None
        assert value.grad.abs().max() < 0.01 * len(y) ** 0.5
    assert found.square[0, 1] > 0.3  # the product that decides


def test_drawn_zeros_do_not_shift_the_odds(monkeypatch: pytest.MonkeyPatch) -> None:
    table, y = rows(6000)
    whole = QuadraticOdds.learned(table, y)
    monkeypatch.setattr(quadratic_odds, "_ZEROS", 2000)
    some = QuadraticOdds.learned(table, y)
    assert (y == 0).sum() > 3500
    assert abs(float((some(table) - whole(table)).mean())) < 0.15
    assert np.corrcoef(some(table), whole(table))[0, 1] > 0.99
    other = QuadraticOdds.learned(table, y, seed=1)
    assert not np.array_equal(other(table), some(table))
