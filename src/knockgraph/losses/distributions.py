"""Losses of a pool of samples as a whole: Wasserstein distance, supervised contrastive regression."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_NOTHING = -1e30  # the logarithm of a weight that does not count; the gradient at minus infinity is NaN


def wasserstein(predicted: Tensor, measured: Tensor, missing: bool = False) -> Tensor:
    r""":math:`W_2^2 = \frac{1}{M} \sum_m (\hat y_{(m)} - y_{(m)})^2`, exact, of two samples of equal size.

    In one dimension the best transport joins values of equal rank, so sorting both sides solves it. Several outputs
    are compared one by one, each on the samples that have a label of it, and averaged.

    Args:
        predicted: ``[samples, outputs]``.
        measured: ``[samples, outputs]``, in any order.
        missing: Whether labels may be missing (NaN).

    >>> wasserstein(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [0.0]])).item()
    0.5
    """
    count = None
    if missing:  # what has no label goes to the end on both sides
        labelled = ~measured.isnan()
        count = labelled.sum(0)
        predicted, measured = (torch.where(labelled, y, torch.inf) for y in (predicted, measured))
    # A stable sort gives equal predictions the same partner, and so the same gradient, on every device.
    ranked = torch.sort(predicted, dim=0, stable=True).values
    partner = torch.sort(measured, dim=0).values
    if count is None:
        return F.mse_loss(ranked, partner)
    compared = torch.arange(len(ranked), device=ranked.device).unsqueeze(1) < count
    squared = (torch.where(compared, ranked, 0.0) - torch.where(compared, partner, 0.0)).square()
    return (squared.sum(0) / count.clamp(min=1)).sum() / (count > 0).sum().clamp(min=1)


def rank_n_contrast(embedding: Tensor, label: Tensor, temperature: float, missing: bool = False) -> Tensor:
    r"""Supervised contrastive regression as Rank-N-Contrast: embeddings ordered as their labels are.

    .. math::

        L = \frac{1}{M (M - 1)} \sum_i \sum_{j \ne i}
            -\log \frac{\exp(s_{ij})}{\sum_{k \in S_{ij}} \exp(s_{ik})}, \qquad
        s_{ij} = -\frac{\lVert z_i - z_j \rVert_2}{\tau}, \qquad
        S_{ij} = \{k \ne i : \lVert y_i - y_k \rVert_1 \ge \lVert y_i - y_j \rVert_1\}

    For every anchor :math:`i`, a sample :math:`j` is to be closer to it than all samples whose labels are further
    away, ties included (Zha et al., "Rank-N-Contrast: learning continuous representations for regression", first
    called "Supervised contrastive regression"). Each anchor's row is sorted by label distance, so the sums over
    :math:`S_{ij}` are one cumulative sum from the far end: :math:`O(M^2 \log M)`, not :math:`O(M^3)`.

    Where labels are missing, the distance of two samples is the mean over the outputs that both have; pairs without
    one take no part.

    Args:
        embedding: :math:`z`, ``[samples, channels]``.
        label: :math:`y`, ``[samples, outputs]``.
        temperature: :math:`\tau`.
        missing: Whether labels may be missing (NaN).
    """
    if len(embedding) < 2:
        return embedding[:0].sum()
    # The matrix-product form of the distance is inexact for close points, and its gradient is NaN at distance 0.
    similarity = torch.cdist(embedding, embedding, compute_mode="donot_use_mm_for_euclid_dist") / -temperature
    distance = _common_distance(label) if missing else torch.cdist(label, label, p=1.0)
    order = distance.fill_diagonal_(-1.0).argsort(dim=1, stable=True)[:, 1:]  # without the anchor, which comes first
    distance, similarity = distance.gather(1, order), similarity.gather(1, order)
    if missing:
        similarity = similarity.masked_fill(distance.isinf(), _NOTHING)
    at_least_as_far = similarity.flip(1).logcumsumexp(1).flip(1)
    first_of_tie = torch.searchsorted(distance, distance)
    terms = at_least_as_far.gather(1, first_of_tie) - similarity
    if not missing:
        return terms.mean()
    compared = distance.isfinite()
    return torch.where(compared, terms, 0.0).sum() / compared.sum().clamp(min=1)


def _common_distance(label: Tensor) -> Tensor:
    r""":math:`\frac{1}{|C|} \sum_{o \in C} |y_{io} - y_{jo}|` over the outputs C that both rows have; infinite if none.

    Missing labels count as 0 at first; what they add, :math:`|y_{io}|` where only :math:`i` has a label, is taken off.
    """
    labelled = ~label.isnan()
    known, y = labelled.double(), torch.where(labelled, label, 0.0).double()
    alone = y.abs() @ (1 - known).T
    common = known @ known.T
    total = (torch.cdist(y, y, p=1.0) - alone - alone.T).clamp(min=0.0)
    return torch.where(common > 0, total / common, torch.inf).to(label.dtype)
