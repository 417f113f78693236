"""A Gaussian process over pairs of genes: what a screen's measured pairs say about all pairs of its genes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from knockgraph.models.kernels.measured import PairRows

TOLERANCE = 1e-2
MOST_STEPS = 40
_JITTER = 1e-4
_FEW = 0.1  # share of the entries below which a product by entries is faster than a dense one
_BLOCK = 16_384  # pairs at once


def profile_kernel(profiles: Tensor, power: float = 1.3) -> Tensor:
    r""":math:`K = V |w|^p V^\top` of symmetric profiles :math:`F = V w V^\top`, mean diagonal 1.

    With :math:`p = 2` it would be :math:`F F^\top`, the products of profiles; the smaller power trusts the leading
    directions less.
    """
    value, vector = torch.linalg.eigh(profiles)
    return mean_diagonal_1((vector * value.abs() ** power) @ vector.T)


def mean_diagonal_1(kernel: Tensor) -> Tensor:
    """The kernel scaled to mean diagonal 1; a kernel of zeros is unchanged."""
    mean = kernel.diagonal().mean()
    return kernel / mean if bool(mean > 0) else kernel


@dataclass(frozen=True)
class ProcessSettings:
    r"""Parameters of the covariance :math:`K = (1 - a) K_\mathrm{profile} + a\, K_\mathrm{network} \odot
    (\sigma \sigma^\top)^q + d\, \mathrm{diag}(\sigma^3)` and of the noise :math:`s v (\sigma_i \sigma_j)^u`.

    Attributes:
        network: a, the weight of the network kernel.
        scale_power: q.
        own: d, what a gene shares with no other.
        noise: s, in units of the labels' variance v.
        noise_power: u.
    """

    network: float = 0.75
    scale_power: float = 1.2
    own: float = 0.06
    noise: float = 0.5
    noise_power: float = 0.7

    def kernel(self, profile: Tensor, network: Tensor, scale: Tensor) -> Tensor:
        """K, ``[genes, genes]``, of its parts; ``scale`` is :math:`\\sigma`, mean 1."""
        scaled = mean_diagonal_1(network * torch.outer(scale, scale) ** self.scale_power)
        share = self.network if bool(scaled.any()) else 0.0
        return (1 - share) * profile + share * scaled + self.own * torch.diag(scale**3)

    def row_noise(self, rows: PairRows, scale: Tensor, variance: Tensor, count: Tensor) -> Tensor:
        """The variance of the error of each row's mean, ``[rows]``."""
        gene = (scale[rows.first] * scale[rows.second]) ** self.noise_power
        return self.noise * variance * rows.mean(gene).clamp(min=1e-6) / count


@dataclass(frozen=True, eq=False)
class PairProcess:
    r"""Symmetric :math:`f` with :math:`\operatorname{cov}(f_{ij}, f_{kl}) = v (K_{ik} K_{jl} + K_{il} K_{jk})`, seen
    through :math:`y = H f + \varepsilon`, where a genotype is the sum of its pairs (:class:`PairRows`).

    With :math:`\alpha = (v H (K \otimes K) H^\top + N)^{-1} y` the posterior mean is :math:`v K (H^\top \alpha) K`.
    Conjugate gradients need two products of genes × genes matrices per step and no matrix of pairs × pairs. Where few
    of the pairs were measured, only these are computed: a sparse product and one inner product for each of them.

    Attributes:
        kernel: K, symmetric ``[genes, genes]``.
        rows: H.
        noise: The diagonal of N, ``[rows]``.
        variance: v.
        tolerance: The residual, relative to y, at which to stop.
        most_steps: Maximum number of conjugate-gradient steps. Stopping early smooths a little more.
    """

    kernel: Tensor
    rows: PairRows
    noise: Tensor
    variance: Tensor
    tolerance: float = TOLERANCE
    most_steps: int = MOST_STEPS

    def mean(self, y: Tensor) -> Tensor:
        """The posterior mean of every pair given the rows' values ``[rows]``: symmetric ``[genes, genes]``."""
        return self._covariance(self.rows.spread(self._solve(y)))

    def spread(self, samples: int = 32, seed: int = 0) -> Tensor:
        r"""The posterior variance of every pair, ``[genes, genes]``, from samples of the posterior.

        A sample f of the prior and one :math:`\varepsilon` of the noise give one of the posterior,
        :math:`f - v K (H^\top \alpha) K` with :math:`\alpha` solved for :math:`H f + \varepsilon`; the relative error
        of a variance is :math:`\sqrt{2 / \mathrm{samples}}`. It does not depend on what was measured, only on where.
        """
        n = len(self.kernel)
        eye = torch.eye(n, device=self.kernel.device, dtype=self.kernel.dtype)
        root = torch.linalg.cholesky(self.kernel + _JITTER * eye)
        generator = torch.Generator().manual_seed(seed)  # on the host: the same numbers on every device
        total = torch.zeros_like(self.kernel)
        for _ in range(samples):
            free = torch.randn(n, n, generator=generator).to(self.kernel)
            prior = (self.variance / 2).sqrt() * (root @ (free + free.T) @ root.T)
            error = torch.randn(len(self.noise), generator=generator).to(self.kernel) * self.noise.sqrt()
            total += (prior - self.mean(self.rows.collect(prior) + error)).square()
        return total / samples

    def double(self) -> PairProcess:
        """The same in float64."""
        return replace(self, kernel=self.kernel.double(), noise=self.noise.double(), variance=self.variance.double())

    def _covariance(self, pairs: Tensor) -> Tensor:
        return self.variance * (self.kernel @ pairs @ self.kernel)

    def _solve(self, y: Tensor) -> Tensor:
        own = self.kernel.diagonal()
        i, j = self.rows.first, self.rows.second
        per_pair = self.variance * (own[i] * own[j] + self.kernel[i, j].square())
        diagonal = self.noise + self.rows.mean(per_pair) * self.rows.pairs(per_pair)
        few = 3 * len(i) < _FEW * len(self.kernel) ** 2
        seen = self._seen_few if few else lambda a: self.rows.collect(self._covariance(self.rows.spread(a)))
        return conjugate_gradients(lambda a: seen(a) + self.noise * a, y, diagonal, self.tolerance, self.most_steps)

    def _seen_few(self, alpha: Tensor) -> Tensor:
        r""":math:`v H K (H^\top \alpha) K`, only at the pairs of H."""
        half = self.rows.spread_times(alpha, self.kernel).T.contiguous()
        parts = zip(torch.split(self.rows.first, _BLOCK), torch.split(self.rows.second, _BLOCK), strict=True)
        found = [torch.einsum("ek,ek->e", self.kernel[i], half[j]) for i, j in parts]
        return self.variance * self.rows.per_row(torch.cat(found))


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, diagonal: Tensor, tolerance: float, most_steps: int
) -> Tensor:
    """x with ``product(x) = right`` for a symmetric positive operator, scaled by its diagonal.

    Args:
        product: The operator.
        right: ``[rows]``.
        diagonal: Roughly the operator's, positive.
        tolerance: Stop when the residual is below this fraction of ``right``.
        most_steps: Stop after this many steps.
    """
    x = torch.zeros_like(right)
    residual = right.clone()
    direction = residual / diagonal
    size = residual @ direction
    enough = tolerance * torch.linalg.norm(right)
    for _ in range(most_steps):
        if bool(torch.linalg.norm(residual) <= enough):
            break
        along = product(direction)
        step = size / (direction @ along)
        x = x + step * direction
        residual = residual - step * along
        scaled = residual / diagonal
        before, size = size, residual @ scaled
        direction = scaled + (size / before) * direction
    return x
