"""Losses of a pool of samples as a whole: Wasserstein distance, supervised contrastive regression."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def wasserstein(predicted: Tensor, measured: Tensor) -> Tensor:
    r""":math:`W_2^2 = \frac{1}{M} \sum_m (\hat y_{(m)} - y_{(m)})^2`, exact, of two samples of equal size.

    In one dimension the best transport joins values of equal rank, so sorting both sides solves it. Several outputs
    are compared one by one and averaged.

    Args:
        predicted: ``[samples, outputs]``.
        measured: ``[samples, outputs]``, in any order.

    >>> wasserstein(torch.tensor([[0.0], [2.0]]), torch.tensor([[3.0], [0.0]])).item()
    0.5
    """
    # A stable sort gives equal predictions the same partner, and so the same gradient, on every device.
    ranked = torch.sort(predicted, dim=0, stable=True).values
    return F.mse_loss(ranked, torch.sort(measured, dim=0).values)


def rank_n_contrast(embedding: Tensor, label: Tensor, temperature: float) -> Tensor:
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

    Args:
        embedding: :math:`z`, ``[samples, channels]``.
        label: :math:`y`, ``[samples, outputs]``.
        temperature: :math:`\tau`.
    """
    if len(embedding) < 2:
        return embedding[:0].sum()
    # The matrix-product form of the distance is inexact for close points, and its gradient is NaN at distance 0.
    similarity = torch.cdist(embedding, embedding, compute_mode="donot_use_mm_for_euclid_dist") / -temperature
    distance = torch.cdist(label, label, p=1.0).fill_diagonal_(-1.0)
    order = distance.argsort(dim=1, stable=True)[:, 1:]  # without the anchor itself, which comes first
    distance, similarity = distance.gather(1, order), similarity.gather(1, order)
    at_least_as_far = similarity.flip(1).logcumsumexp(1).flip(1)
    first_of_tie = torch.searchsorted(distance, distance)
    return (at_least_as_far.gather(1, first_of_tie) - similarity).mean()
