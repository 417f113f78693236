"""Metrics over a whole split, per phenotype and exact across processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_average_precision
from torchmetrics.utilities.distributed import gather_all_tensors

from knockgraph.screen import LabelTransform
from knockgraph.train.exchange import several

_MOST_CELLS = 1 << 24  # of experiments × phenotypes that are ranked at once


def gather_rows(rows: Tensor) -> Tensor:
    """The rows ``[n, …]`` of all processes, in the order of their ranks; shares may differ in length and be empty."""
    if not several():
        return rows
    return torch.cat(gather_all_tensors(rows))


def pearson(x: Tensor, y: Tensor, labelled: Tensor | None = None) -> Tensor:
    """Correlation of two lists ``[…, n]`` along their last dimension; NaN where one is constant.

    Args:
        x: One list or many.
        y: The same shape.
        labelled: bool of the same shape, what takes part; everything by default.
    """
    x, y = _centered(x.double(), labelled), _centered(y.double(), labelled)
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def _centered(x: Tensor, labelled: Tensor | None) -> Tensor:
    # The mean of equal values may be off by a rounding error, and the rest would then correlate with anything.
    if labelled is None:
        constant = (x == x[..., :1]).all(-1, keepdim=True)
        return torch.where(constant, torch.zeros_like(x), x - x.mean(-1, keepdim=True))
    lowest, highest = x.masked_fill(~labelled, torch.inf).amin(-1), x.masked_fill(~labelled, -torch.inf).amax(-1)
    kept = labelled & (lowest != highest).unsqueeze(-1)
    mean = torch.where(labelled, x, 0.0).sum(-1) / labelled.sum(-1)
    return torch.where(kept, x - mean.unsqueeze(-1), 0.0)


def spearman(x: Tensor, y: Tensor, labelled: Tensor | None = None) -> Tensor:
    """Correlation of the ranks of two lists ``[…, n]``, see :func:`pearson`; ties share their mean rank."""
    return pearson(_ranks(x, labelled), _ranks(y, labelled), labelled)


def _ranks(x: Tensor, labelled: Tensor | None) -> Tensor:
    """From 1 on; of what takes no part, anything."""
    x = (x if labelled is None else x.masked_fill(~labelled, torch.inf)).contiguous()
    ascending = x.sort(-1).values
    below, up_to = (torch.searchsorted(ascending, x, right=right) for right in (False, True))
    return (below + up_to + 1).double() / 2


def regression_metrics(prediction: Tensor, target: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """MSE, RMSE, Pearson and Spearman, errors also in original units: each ``[outputs]``, NaN without a label.

    Args:
        prediction: ``[experiments, outputs]`` in label units.
        target: The same shape; a missing label is NaN.
        scale: ``[outputs]``, original units per label unit.
    """
    blocks = [_regression(*_of_outputs(p, t), s[0]) for p, t, s in _blocks(prediction, target, scale.unsqueeze(0))]
    mse, original, r, rho = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return {
        "mse": mse,
        "rmse": mse.sqrt(),
        "pearson": r,
        "spearman": rho,
        "mse_original": original,
        "rmse_original": original.sqrt(),
    }


def _regression(p: Tensor, t: Tensor, labelled: Tensor | None, scale: Tensor) -> tuple[Tensor, ...]:
    squared = (p.double() - t.double()) ** 2
    original = squared * scale.to(squared).unsqueeze(1) ** 2
    return _mean(squared, labelled), _mean(original, labelled), pearson(p, t, labelled), spearman(p, t, labelled)


def classification_metrics(logit: Tensor, target: Tensor) -> dict[str, Tensor]:
    """AUROC and average precision, and the cross-entropy of the logits: each ``[outputs]``, see above.

    Args:
        logit: ``[experiments, outputs]``.
        target: The same shape, 0 or 1; a missing label is NaN.
    """
    blocks = [_classification(*_of_outputs(p, t)) for p, t in _blocks(logit, target)]
    entropy, auroc, precision = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return {"bce": entropy, "auroc": auroc, "average_precision": precision}


def _classification(score: Tensor, truth: Tensor, labelled: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    score, truth = score.double(), truth.double()
    entropy = torch.nn.functional.binary_cross_entropy_with_logits(score, truth, reduction="none")
    # Only the order counts for the curves; large logits would become ties as probabilities.
    rank = _ranks(score, labelled)
    there = torch.ones_like(truth, dtype=torch.bool) if labelled is None else labelled
    positive, negative = there & (truth > 0.5), there & (truth < 0.5)
    both = positive.any(-1) & negative.any(-1)
    if len(score) == 1 and labelled is None and bool(both):
        place, classes = rank[0] / max(rank.shape[1], 1), truth[0].long()
        curves = (binary_auroc(place, classes).double()[None], binary_average_precision(place, classes).double()[None])
    else:
        curves = (_auroc(rank, positive, negative), _average_precision(rank, positive, there))
    auroc, precision = (torch.where(both, value, torch.nan) for value in curves)
    return _mean(entropy, labelled), auroc, precision


def _auroc(rank: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    r"""How often a positive stands above a negative: :math:`(R - P (P + 1) / 2) / (P N)`, R the positives' ranks."""
    p, n = positive.sum(-1).double(), negative.sum(-1).double()
    return (torch.where(positive, rank, 0.0).sum(-1) - p * (p + 1) / 2) / (p * n)


def _average_precision(rank: Tensor, positive: Tensor, there: Tensor) -> Tensor:
    """The mean, over the positives, of the share of positives among all that stand at least as high."""
    place, order = torch.where(there, rank, -torch.inf).sort(-1, descending=True)
    hits = positive.gather(-1, order).double().cumsum(-1)
    last_of_tie = torch.searchsorted(-place, -place, right=True)  # 1-based: how many stand at least as high
    precision = hits.gather(-1, last_of_tie - 1) / last_of_tie
    found = torch.where(positive.gather(-1, order), precision, 0.0).sum(-1)
    return found / positive.sum(-1)


def _blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some outputs at a time, so that thousands of them do not need thousands of times the memory."""
    size = max(_MOST_CELLS // max(len(tensors[0]), 1), 1)
    return zip(*(torch.split(tensor, size, 1) for tensor in tensors), strict=True)


def _of_outputs(prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Both with an output per row, and which labels there are (``None``: all); a missing one is 0."""
    prediction, target = prediction.T.contiguous(), target.T.contiguous()
    missing = target.isnan()
    if not bool(missing.any()):
        return prediction, target, None
    return prediction, target.masked_fill(missing, 0.0), ~missing


def _mean(values: Tensor, labelled: Tensor | None) -> Tensor:
    if labelled is None:
        return values.mean(-1)
    return torch.where(labelled, values, 0.0).sum(-1) / labelled.sum(-1)


def metrics_of(prediction: Tensor, target: Tensor, transform: LabelTransform, classes: bool) -> dict[str, Tensor]:
    """Metric → ``[outputs]``, of classes or of numbers."""
    if classes:
        return classification_metrics(prediction, target)
    return regression_metrics(prediction, target, transform.scale)


def headline(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One figure for each metric: its mean over the phenotypes that have it; of errors, the root of the mean square.

    With several phenotypes there is none in original units, which differ from one to the next.

    Args:
        found: Metric → ``[outputs]``.
    """
    if all(len(values) == 1 for values in found.values()):
        return {name: values[0] for name, values in found.items()}
    means = {name: values.nanmean() for name, values in found.items() if not name.endswith("_original")}
    return {name: means["mse"].sqrt() if name == "rmse" else value for name, value in means.items()}
