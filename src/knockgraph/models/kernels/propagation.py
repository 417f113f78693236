r"""Interaction profiles propagated to genes that no experiment deletes, by similarity.

A seen gene has a profile, its row of the denoised matrix :math:`\hat Y`. An unseen gene u takes a mixture of the
profiles of seen ones, :math:`\hat y_u = a_u^\top \hat Y`; two unseen genes have :math:`a_u^\top \hat Y a_{u'}`. With
:math:`a_g = e_g` for a seen gene, one formula holds for all pairs: :math:`a_g^\top \hat Y a_h`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from knockgraph.models.kernels.measured import sparse_rows, starts
from knockgraph.models.kernels.similarity import kernel

RIDGES = (0.2, 0.05, 0.1, 0.4, 0.8)
"""λ of :func:`ridge_mixture` to choose from, the first by default."""
_STEPS = 60
_RATE = 0.12
MOST_GENES = 1500
"""Most genes that are left out in turn."""
_FEW = 0.1  # share of measured entries below which only these are computed


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


class LeftOut:
    """Profiles F that leaving out each gene in turn is learned from, and their measured entries.

    Of more than :data:`MOST_GENES` genes a random part is used. Where few entries were measured, products with F are
    computed only there, else only for as many columns, those with most measurements.

    Args:
        similarity: ``[tables, genes, genes]``.
        profiles: F, filled, ``[genes, columns]``.
        known: Which entries were measured, bool ``[genes, columns]``.
    """

    def __init__(self, similarity: Tensor, profiles: Tensor, known: Tensor) -> None:
        few = float(known.float().mean()) < _FEW
        if len(profiles) > MOST_GENES:
            order = torch.randperm(len(profiles), generator=torch.Generator().manual_seed(0))
            chosen = order[:MOST_GENES].sort().values.to(profiles.device)
            similarity, profiles, known = similarity[:, chosen][:, :, chosen], profiles[chosen], known[chosen]
            if not few:
                often = known.sum(0).argsort(descending=True, stable=True)[:MOST_GENES].sort().values
                profiles, known = profiles[:, often], known[:, often]
        self.similarity, self.profiles, self.known, self.few = similarity, profiles, known, few
        self.row, self.column = known.nonzero().T
        self.total = profiles[known].square().sum().clamp(min=1e-12)
        self.start = starts(self.row, len(known))
        self._transposed = profiles.T.contiguous() if few else profiles.T

    def entries(self, part: slice) -> slice:
        """Where the measured entries of these rows are in :attr:`row` and :attr:`column`."""
        return slice(int(self.start[part.start]), int(self.start[part.stop]))

    def product(self, left: Tensor, part: slice) -> Tensor:
        """The measured entries of ``left @ F``, where ``left`` has these rows, ``[entries]``."""
        if not self.few:
            found: Tensor = (left @ self.profiles)[self.known[part]]
            return found
        entries = self.entries(part)
        start = self.start[part.start : part.stop + 1] - entries.start
        some: Tensor = _SomeProducts.apply(left, self._transposed, start, self.column[entries])  # type: ignore[no-untyped-call]
        return some


class _SomeProducts(torch.autograd.Function):
    """Some entries of ``left @ right.T``, with the gradient in ``left``."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, start: Tensor, column: Tensor) -> Tensor:
        ctx.save_for_backward(right, start, column)
        asked = sparse_rows(start, column, left.new_zeros(len(column)), (len(left), len(right)))
        found: Tensor = torch.sparse.sampled_addmm(asked, left, right.T, beta=0.0).values()
        return found

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None]:
        right, start, column = ctx.saved_tensors
        return sparse_rows(start, column, slope, (len(start) - 1, len(right))) @ right, None, None, None


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
    left_out = LeftOut(similarity, profiles, known)
    similarity, every = left_out.similarity, slice(0, len(left_out.profiles))
    eye = torch.eye(len(left_out.profiles), device=profiles.device, dtype=profiles.dtype)
    free = torch.cat([torch.full_like(sharpness, 1 / tables), sharpness, sharpness.new_tensor([0.2])]).log()
    free = free.to(profiles).requires_grad_()
    optimizer = torch.optim.Adam([free], lr=_RATE)
    for _ in range(steps):
        weight, sharp, ridge = torch.split(free.exp(), [tables, tables, 1])
        inverse = torch.linalg.inv(kernel(similarity, sharp, weight) + ridge * eye)
        missed = left_out.product(inverse, every) / inverse.diagonal()[left_out.row]
        loss = missed.square().sum() / left_out.total
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    weight, sharp, _ = torch.split(free.detach().exp(), [tables, tables, 1])
    return weight / weight.sum(), sharp
