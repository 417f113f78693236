"""Small predictions that the tests of this folder share, and slow references of the losses of a pool."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.models.model import Prediction

torch.set_num_threads(1)  # the tensors are tiny and the cores are shared


def prediction(values: Tensor, embedding: Tensor | None = None, reconstruction: Tensor | None = None) -> Prediction:
    auxiliary = {} if reconstruction is None else {"reconstruction": reconstruction}
    return Prediction(values, embedding, auxiliary)


def case(samples: int, outputs: int = 1, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Predicted values, with gradient, and targets."""
    random = torch.Generator().manual_seed(seed)
    values = torch.randn(samples, outputs, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
    return values, torch.randn(samples, outputs, generator=random, dtype=torch.float64).to(dtype)


def slow_pool_terms(pool: list[Tensor], outputs: int, temperature: float) -> tuple[Tensor, Tensor]:
    """Both terms of a pool, given as rows of prediction, target, embedding."""
    rows = torch.stack(pool)
    predicted, measured, z = rows[:, :outputs], rows[:, outputs : 2 * outputs].detach(), rows[:, 2 * outputs :]
    return slow_wasserstein(predicted, measured), slow_rank_n_contrast(z, measured, temperature)


def slow_wasserstein(predicted: Tensor, measured: Tensor) -> Tensor:
    """Joins values of equal rank, one at a time."""
    total = predicted.new_zeros(())
    for output in range(predicted.shape[1]):
        by_prediction = sorted(range(len(predicted)), key=predicted[:, output].tolist().__getitem__)
        by_target = sorted(range(len(measured)), key=measured[:, output].tolist().__getitem__)
        for i, j in zip(by_prediction, by_target, strict=True):
            total = total + (predicted[i, output] - measured[j, output]) ** 2
    return total / predicted.numel()


def slow_rank_n_contrast(embedding: Tensor, label: Tensor, temperature: float) -> Tensor:
    """The double sum as it is written, with the set of each pair spelled out."""
    n = len(embedding)
    total = embedding.new_zeros(())
    if n < 2:
        return total

    def similarity(i: int, j: int) -> Tensor:
        return -torch.linalg.vector_norm(embedding[i] - embedding[j]) / temperature

    def distance(i: int, j: int) -> float:
        return float((label[i] - label[j]).abs().sum())

    for i in range(n):
        for j in range(n):
            if i != j:
                at_least_as_far = [k for k in range(n) if k != i and distance(i, k) >= distance(i, j)]
                others = torch.stack([similarity(i, k) for k in at_least_as_far])
                total = total - (similarity(i, j) - torch.logsumexp(others, 0))
    return total / (n * (n - 1))
