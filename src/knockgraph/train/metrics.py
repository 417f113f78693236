"""Metrics over a whole split, exact across processes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist
from torchmetrics.functional.classification import binary_auroc, binary_average_precision
from torchmetrics.utilities.distributed import gather_all_tensors


def gather_rows(rows: Tensor) -> Tensor:
    """The rows ``[n, …]`` of all processes, in the order of their ranks; shares may differ in length and be empty."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return rows
    return torch.cat(gather_all_tensors(rows))


def pearson(x: Tensor, y: Tensor) -> Tensor:
    """Correlation of two lists ``[n]``; NaN where one is constant."""
    x, y = _centered(x.double()), _centered(y.double())
    return (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()


def _centered(x: Tensor) -> Tensor:
    # The mean of equal values may be off by a rounding error, and the rest would then correlate with anything.
    return torch.where((x == x[:1]).all(), torch.zeros_like(x), x - x.mean())


def spearman(x: Tensor, y: Tensor) -> Tensor:
    """Correlation of the ranks of two lists ``[n]``; ties share their mean rank."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(x: Tensor) -> Tensor:
    group: Tensor
    count: Tensor
    _, group, count = torch.unique(x, sorted=True, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return ((2 * last - count + 1) / 2)[group]


def regression_metrics(prediction: Tensor, target: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """MSE, RMSE, Pearson and Spearman; errors also in original units.

    Args:
        prediction: ``[experiments, outputs]`` in label units.
        target: The same shape.
        scale: ``[outputs]``, original units per label unit.
    """
    squared = (prediction.double() - target.double()) ** 2
    mse, original = squared.mean(), (squared * scale.to(squared) ** 2).mean()
    correlations = [
        torch.stack([function(prediction[:, k], target[:, k]) for k in range(target.shape[1])]).mean()
        for function in (pearson, spearman)
    ]
    return {
        "mse": mse,
        "rmse": mse.sqrt(),
        "pearson": correlations[0],
        "spearman": correlations[1],
        "mse_original": original,
        "rmse_original": original.sqrt(),
    }


def classification_metrics(logit: Tensor, target: Tensor) -> dict[str, Tensor]:
    """AUROC and average precision, and the cross-entropy of the logits ``[experiments, 1]``."""
    score, truth = logit.double().squeeze(-1), target.squeeze(-1)
    # Only the order counts for the curves; large logits would become ties as probabilities.
    place = _ranks(score) / max(len(score), 1)
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(score, truth.double())
    both = bool((truth > 0.5).any()) and bool((truth < 0.5).any())
    nan = torch.tensor(float("nan"), dtype=torch.float64, device=score.device)
    return {
        "bce": entropy,
        "auroc": binary_auroc(place, truth.long()).double() if both else nan,
        "average_precision": binary_average_precision(place, truth.long()).double() if both else nan,
    }
