"""Metrics against slow references, and across real processes."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from knockgraph.train.metrics import (
    classification_metrics,
    gather_rows,
    headline,
    pearson,
    regression_metrics,
    spearman,
)

PAIRS = st.integers(2, 40).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(-4, 4), min_size=n, max_size=n) for _ in range(2)))  # many ties
)


def column(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64)).unsqueeze(1)


@given(PAIRS)
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_correlations_with_ties(pair: tuple[list[int], list[int]]) -> None:
    x, y = (torch.tensor(values) * 0.1 + 0.7 for values in pair)
    if len(set(pair[0])) == 1 or len(set(pair[1])) == 1:
        assert math.isnan(pearson(x, y))
        assert math.isnan(spearman(x, y))
        return
    assert pearson(x, y).item() == pytest.approx(scipy.stats.pearsonr(x.double(), y.double())[0], abs=1e-9)
    assert spearman(x, y).item() == pytest.approx(scipy.stats.spearmanr(x, y)[0], abs=1e-9)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-8, 1e8 + 0.1, 0.0])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 1000])
def test_a_constant_has_no_correlation(value: float, n: int) -> None:
    """The mean of n times 0.1 is not always 0.1: what is left over correlated with anything."""
    x, y = torch.full((n,), value, dtype=torch.float64), torch.arange(n).double()
    for function in (pearson, spearman):
        assert math.isnan(function(x, y))
        assert math.isnan(function(y, x))
        assert math.isnan(function(x.float(), y))


def test_correlations_do_not_change_their_input_nor_depend_on_scale() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 50, generator=random, dtype=torch.float64)
    kept = x.clone()
    expected = scipy.stats.pearsonr(x, y)[0]
    assert pearson(x, y).item() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(x, kept)
    assert pearson(1e6 * x - 3e6, y).item() == pytest.approx(expected, abs=1e-9)
    assert pearson(-x, y).item() == pytest.approx(-expected, abs=1e-12)
    assert spearman(x.exp(), y).item() == pytest.approx(scipy.stats.spearmanr(x, y)[0], abs=1e-12)


def test_regression_in_label_and_original_units() -> None:
    prediction, target = (
        torch.tensor([[1.0, 0.0], [2.0, 0.5], [4.0, 1.0]]),
        torch.tensor([[0.0, 0.0], [2.0, 2.5], [5.0, 1.0]]),
    )
    scale = torch.tensor([10.0, 0.5], dtype=torch.float64)
    found = regression_metrics(prediction, target, scale)
    squared = ((prediction - target).double().numpy() ** 2).mean(0)
    np.testing.assert_allclose(found["mse"], squared)
    np.testing.assert_allclose(found["rmse"], np.sqrt(squared))
    np.testing.assert_allclose(found["mse_original"], squared * scale.numpy() ** 2)
    np.testing.assert_allclose(found["rmse_original"], np.sqrt(squared) * scale.numpy())
    means = headline(found)
    assert set(means) == {"mse", "rmse", "pearson", "spearman"}  # original units have no mean
    assert means["mse"].item() == pytest.approx(squared.mean())
    assert means["rmse"].item() == pytest.approx(math.sqrt(squared.mean()))
    for name, function in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        expected = [function(prediction[:, k], target[:, k])[0] for k in range(2)]
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)
        assert means[name].item() == pytest.approx(np.mean(expected))


def test_one_sample() -> None:
    found = regression_metrics(column([2.0]), column([3.0]), torch.ones(1))
    assert found["mse"] == 1.0
    assert math.isnan(found["pearson"])
    assert math.isnan(found["spearman"])
    found = classification_metrics(column([2.0]), column([1.0]))
    assert found["bce"].item() == pytest.approx(math.log1p(math.exp(-2.0)))
    assert math.isnan(found["auroc"])
    assert math.isnan(found["average_precision"])


def slow_auroc(score: np.ndarray, truth: np.ndarray) -> float:
    """How often a positive stands above a negative; a tie counts half."""
    wins = [(p > n) + 0.5 * (p == n) for p in score[truth == 1] for n in score[truth == 0]]
    return float(np.mean(wins))


def slow_average_precision(score: np.ndarray, truth: np.ndarray) -> float:
    total, recalled = 0.0, 0.0
    for threshold in sorted(set(score), reverse=True):
        chosen = score >= threshold
        recall = (truth * chosen).sum() / truth.sum()
        total += (recall - recalled) * (truth * chosen).sum() / chosen.sum()
        recalled = recall
    return float(total)


@given(PAIRS, st.sampled_from([1.0, 0.1, 30.0, 1000.0]))
@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
def test_classification(pair: tuple[list[int], list[int]], scale: float) -> None:
    """Logits of 40 and 50 are the same probability, 1, but not the same place in the ranking."""
    score, truth = np.array(pair[0]) * scale, (np.array(pair[1]) > 0).astype(float)
    found = classification_metrics(column(score), column(truth))
    entropy = np.logaddexp(0, score) - truth * score
    assert found["bce"].item() == pytest.approx(entropy.mean(), rel=1e-9)
    if truth.min() == truth.max():
        assert math.isnan(found["auroc"])
        assert math.isnan(found["average_precision"])
        return
    assert found["auroc"].item() == pytest.approx(slow_auroc(score, truth), abs=1e-6)
    assert found["average_precision"].item() == pytest.approx(slow_average_precision(score, truth), abs=1e-6)


SHARES = [(3, 5), (0, 4), (4, 0), (0, 0), (1, 1)]


def rows_of(rank: int, case: int) -> Tensor:
    return torch.arange(SHARES[case][rank] * 2).reshape(-1, 2) + 100 * rank


def worker(rank: int, directory: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    found = [gather_rows(rows_of(rank, case)).numpy() for case in range(len(SHARES))]
    flat = gather_rows(torch.full((rank,), 1.5, dtype=torch.float64)).numpy()
    np.savez(os.path.join(directory, f"rank{rank}.npz"), *found, flat=flat)
    dist.destroy_process_group()


def test_rows_of_two_processes(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(worker, args=(str(tmp_path),), nprocs=2, start_method="forkserver")
    for rank in range(2):
        found = np.load(tmp_path / f"rank{rank}.npz")
        for case in range(len(SHARES)):
            np.testing.assert_array_equal(found[f"arr_{case}"], torch.cat([rows_of(0, case), rows_of(1, case)]))
        np.testing.assert_array_equal(found["flat"], [1.5])


def test_rows_of_one_process() -> None:
    rows = torch.ones(3, 2)
    assert gather_rows(rows) is rows
