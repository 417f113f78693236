"""The missing pairs of a screen, filled in by a low-rank matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

THRESHOLDS = (0.95, 0.59)
"""In units of the root mean square of the measured entries times the root of the number of genes, one after another."""
ROUNDS = 40
_TOLERANCE = 1e-3
_SPARE = 8  # additional directions beyond those above the threshold


def soft_impute(
    measured: Tensor, known: Tensor, thresholds: Sequence[float] = THRESHOLDS, rounds: int = ROUNDS
) -> list[Tensor]:
    r""":math:`X = \operatorname{shrink}_\lambda(M \odot R + (1 - M) \odot X)`, repeated until it converges.

    With :math:`F = V w V^\top`, :math:`\operatorname{shrink}_\lambda(F) = V\, \mathrm{sign}(w)(|w| - \lambda)_+
    V^\top`: the matrix of least nuclear norm penalty. Only the directions with :math:`|w| > \lambda` are ever computed,
    by subspace iteration that goes on from one round to the next.

    Args:
        measured: R, symmetric ``[n, n]``, 0 where nothing was measured.
        known: M, bool ``[n, n]``.
        thresholds: :math:`\lambda`, see :data:`THRESHOLDS`; each starts from the result of the one before.
        rounds: Maximum number per threshold.

    Returns:
        X of every threshold, ``[n, n]`` each.
    """
    n = len(measured)
    size = (measured.square().sum() / known.sum().clamp(min=1)).sqrt() * n**0.5
    x = torch.zeros_like(measured)
    found: list[Tensor] = []
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(n, min(n, 4 * _SPARE), generator=generator).to(measured)
    for share in thresholds:
        threshold = share * size
        for _ in range(rounds):
            before = x
            x, basis = _shrunk(torch.where(known, measured, x), threshold, basis, generator)
            if torch.linalg.norm(x - before) <= _TOLERANCE * torch.linalg.norm(x):
                break
        found.append(x)
    return found


def _shrunk(f: Tensor, threshold: Tensor, basis: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The shrunk matrix, and the directions to continue from."""
    n = len(f)
    while True:
        basis = torch.linalg.qr(f @ torch.linalg.qr(f @ basis).Q).Q
        value, vector = torch.linalg.eigh(basis.T @ f @ basis)
        passing = int((value.abs() > threshold).sum())
        if passing + _SPARE <= basis.shape[1] or basis.shape[1] == n:
            break
        more = torch.randn(n, min(n - basis.shape[1], basis.shape[1]), generator=generator).to(f)
        basis = torch.cat([basis, more], 1)
    v = basis @ vector
    shrunk = value.sign() * (value.abs() - threshold).clamp(min=0)
    return (v * shrunk) @ v.T, v
