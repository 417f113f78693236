"""Wasserstein distance and Rank-N-Contrast against independent references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from loss_cases import case, slow_rank_n_contrast, slow_wasserstein
from scipy.optimize import linear_sum_assignment
from scipy.stats import wasserstein_distance

from knockgraph.losses.distributions import rank_n_contrast, wasserstein


@pytest.mark.parametrize("seed", range(5))
def test_wasserstein_is_the_best_assignment(seed: int) -> None:
    values, target = case(12, seed=seed)
    cost = (values.detach().numpy() - target.numpy().T) ** 2
    row, column = linear_sum_assignment(cost)
    assert wasserstein(values, target).item() == pytest.approx(cost[row, column].mean(), rel=1e-12)


def test_wasserstein_of_a_shift_agrees_with_scipy() -> None:
    # For a pure shift W2 = W1, which scipy has.
    values, _ = case(50)
    shifted = values.detach().flip(0) + 0.75
    w1 = wasserstein_distance(values.detach().numpy()[:, 0], shifted.numpy()[:, 0])
    assert wasserstein(values, shifted).sqrt().item() == pytest.approx(w1, rel=1e-12)


def test_wasserstein_per_output() -> None:
    values, target = case(9, outputs=3)
    single = [wasserstein(values[:, [i]], target[:, [i]]).item() for i in range(3)]
    assert wasserstein(values, target).item() == pytest.approx(np.mean(single), rel=1e-12)
    assert wasserstein(values, target).item() == pytest.approx(slow_wasserstein(values, target).item(), rel=1e-12)


def test_wasserstein_of_a_permutation_is_0() -> None:
    values, _ = case(9)
    total = wasserstein(values, values.detach()[torch.randperm(9)])
    total.backward()
    assert total.item() == 0.0
    assert values.grad.count_nonzero() == 0


def test_wasserstein_gradient() -> None:
    values, target = case(8, outputs=2)
    assert torch.autograd.gradcheck(lambda v: wasserstein(v, target), values)
    (fast,) = torch.autograd.grad(wasserstein(values, target), values)
    (slow,) = torch.autograd.grad(slow_wasserstein(values, target), values)
    torch.testing.assert_close(fast, slow, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("labels", ["distinct", "ties", "classes", "two outputs"])
@pytest.mark.parametrize("temperature", [0.1, 2.0])
def test_rank_n_contrast_equals_reference(labels: str, temperature: float) -> None:
    z, _ = case(9, outputs=4, seed=1)
    _, label = case(9, outputs=2 if labels == "two outputs" else 1, seed=2)
    if labels == "ties":
        label = label.round()
    elif labels == "classes":
        label = (label > 0).double()
    fast, slow = rank_n_contrast(z, label, temperature), slow_rank_n_contrast(z, label, temperature)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-10)
    for a, b in zip(torch.autograd.grad(fast, z), torch.autograd.grad(slow, z), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_rank_n_contrast_gradient() -> None:
    z, label = case(6, outputs=3, seed=3)
    assert torch.autograd.gradcheck(lambda e: rank_n_contrast(e, label[:, :1], 0.5), z)


def test_rank_n_contrast_of_equal_embeddings() -> None:
    # Replicates of one genotype, and every wild type, have the same embedding; the norm has no gradient there.
    z = torch.zeros(4, 3, requires_grad=True)
    total = rank_n_contrast(z, torch.arange(4.0).unsqueeze(1), 1.0)
    total.backward()
    assert total.isfinite()
    assert z.grad.count_nonzero() == 0


def test_rank_n_contrast_prefers_embeddings_in_the_order_of_labels() -> None:
    label = torch.arange(12.0).unsqueeze(1)
    ordered, mixed = label * torch.ones(3), label[torch.randperm(12, generator=torch.Generator().manual_seed(0))]
    assert rank_n_contrast(ordered, label, 1.0) < rank_n_contrast(mixed * torch.ones(3), label, 1.0)


@pytest.mark.parametrize("samples", [0, 1])
def test_rank_n_contrast_needs_two(samples: int) -> None:
    z = torch.ones(samples, 3, requires_grad=True)
    total = rank_n_contrast(z, torch.ones(samples, 1), 1.0)
    total.backward()
    assert total.item() == 0.0
    assert z.grad.count_nonzero() == 0
