r"""Interaction profiles propagated to genes that no experiment deletes, by similarity.

A seen gene has a profile, its row of the denoised matrix :math:`\hat Y`. An unseen gene u takes a mixture of the
profiles of seen ones, :math:`\hat y_u = a_u^\top \hat Y`; two unseen genes have :math:`a_u^\top \hat Y a_{u'}`. With
:math:`a_g = e_g` for a seen gene, one formula holds for all pairs: :math:`a_g^\top \hat Y a_h`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.models.kernels.similarity import kernel

RIDGES = (0.2, 0.05, 0.1, 0.4, 0.8)
"""λ of :func:`ridge_mixture` to choose from, the first by default."""
_STEPS = 60
_RATE = 0.12
MOST_GENES = 1500
"""Most genes that are left out in turn, and most columns of their profiles."""


Factors = tuple[Tensor, Tensor]


def factorised(seen: Tensor, ridge: float) -> Factors:
    r"""The LU factors of :math:`K_{ss} + \lambda I`, of K ``[seen, seen]``."""
    whole = seen.clone()
    whole.diagonal().add_(ridge)
    factors, pivots = torch.linalg.lu_factor(whole)
    return factors, pivots


def ridge_mixture(factors: Factors, across: Tensor) -> Tensor:
    r"""Kernel ridge regression of profiles: :math:`a = K_{us} (K_{ss} + \lambda I)^{-1}`, ``[unseen, seen]``.

    Args:
        factors: See :func:`factorised`.
        across: :math:`K_{us}`, ``[unseen, seen]``.
    """
    mixture: Tensor = torch.linalg.lu_solve(*factors, across.T).T
    return mixture


def some_genes(similarity: Tensor, profiles: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What leaving out each gene in turn is learned from: all, or 1,500 random genes and the 1,500 columns of their
    profiles with most measurements, where there are more.

    Args:
        similarity: ``[tables, genes, genes]``.
        profiles: ``[genes, columns]``.
        known: Which entries were measured, bool ``[genes, columns]``.
    """
    if len(profiles) > MOST_GENES:
        order = torch.randperm(len(profiles), generator=torch.Generator().manual_seed(0))
        chosen = order[:MOST_GENES].sort().values.to(profiles.device)
        similarity, profiles, known = similarity[:, chosen][:, :, chosen], profiles[chosen], known[chosen]
        often = known.sum(0).argsort(descending=True, stable=True)[:MOST_GENES].sort().values
        profiles, known = profiles[:, often], known[:, often]
    return similarity, profiles, known


def learned_kernel(
    similarity: Tensor, sharpness: Tensor, profiles: Tensor, known: Tensor, steps: int = _STEPS
) -> tuple[Tensor, Tensor]:
    r"""Weights w and sharpness T of :func:`~knockgraph.models.kernels.similarity.kernel`, each gene left out in turn.

    Predicted from all others by kernel ridge regression, the profile of gene i is off by
    :math:`(G F)_i / G_{ii}` with :math:`G = (K + \lambda I)^{-1}`: the error of leaving each gene out costs one
    inverse. Its sum of squares over the measured entries is minimised in w, T and :math:`\lambda`.

    Args:
        similarity: ``[tables, genes, genes]`` of seen genes.
        sharpness: Where T starts, ``[tables]``.
        profiles: F, filled, ``[genes, columns]``.
        known: Which entries were measured, bool ``[genes, columns]``.
        steps: Of Adam.

    Returns:
        w, summing to 1, and T, ``[tables]`` each.
    """
    tables = len(similarity)
    similarity, profiles, known = some_genes(similarity, profiles, known)
    eye = torch.eye(len(profiles), device=profiles.device, dtype=profiles.dtype)
    free = torch.cat([torch.full_like(sharpness, 1 / tables), sharpness, sharpness.new_tensor([0.2])]).log()
    free = free.to(profiles).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=_RATE)
    total = profiles.square()[known].sum().clamp(min=1e-12)
    for _ in range(steps):
        weight, sharp, ridge = torch.split(free.exp(), [tables, tables, 1])
        inverse = torch.linalg.inv(kernel(similarity, sharp, weight) + ridge * eye)
        left_out = (inverse @ profiles) / inverse.diagonal()[:, None]
        loss = left_out.square()[known].sum() / total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weight, sharp, _ = torch.split(free.detach().exp(), [tables, tables, 1])
    return weight / weight.sum(), sharp
