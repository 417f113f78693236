"""A Gaussian process over pairs of genes: what a screen's measured pairs say about all pairs of its genes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from knockgraph.models.kernels.measured import PairRows

Linear = Callable[[Tensor], Tensor]
TOLERANCE = 1e-2
MOST_STEPS = 40
_JITTER = 1e-4
_FEW = 0.25  # share of the entries below which a product by entries is faster than a dense one
_LEADING = 32  # eigenvectors of K, whose products prepare the conjugate gradients
_DIRECTIONS = 100  # of these products, those of largest variance
_MOST_NUMBERS = 2**26  # of directions × rows; with more rows there are fewer directions
_ROUNDS = 4  # of subspace iteration


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
    of the pairs were measured, only these are computed: a sparse product and one inner product for each of them. The
    directions of largest variance are solved for beforehand.

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
        return self._mean(y, self._roughly_solved())

    def _mean(self, y: Tensor, roughly_solved: Linear) -> Tensor:
        alpha = self._solve(y, roughly_solved)
        if self._few():
            return self.variance * (self.kernel @ self.rows.spread_times(alpha, self.kernel))
        return self._covariance(self.rows.spread(alpha))

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
        total, roughly_solved = torch.zeros_like(self.kernel), self._roughly_solved()
        for _ in range(samples):
            free = torch.randn(n, n, generator=generator).to(self.kernel)
            prior = (self.variance / 2).sqrt() * (root @ (free + free.T) @ root.T)
            error = torch.randn(len(self.noise), generator=generator).to(self.kernel) * self.noise.sqrt()
            total += (prior - self._mean(self.rows.collect(prior) + error, roughly_solved)).square()
        return total / samples

    def double(self) -> PairProcess:
        """The same in float64."""
        return replace(self, kernel=self.kernel.double(), noise=self.noise.double(), variance=self.variance.double())

    def _covariance(self, pairs: Tensor) -> Tensor:
        return self.variance * (self.kernel @ pairs @ self.kernel)

    def _few(self) -> bool:
        return 3 * len(self.rows.first) < _FEW * len(self.kernel) ** 2

    def _solve(self, y: Tensor, roughly_solved: Linear) -> Tensor:
        seen = self._seen_few if self._few() else lambda a: self.rows.collect(self._covariance(self.rows.spread(a)))
        product: Linear = lambda a: seen(a) + self.noise * a  # noqa: E731
        return conjugate_gradients(product, y, roughly_solved, self.tolerance, self.most_steps)

    def _seen_few(self, alpha: Tensor) -> Tensor:
        r""":math:`v H K (H^\top \alpha) K`, only at the pairs of H."""
        return self.variance * self.rows.collect_product(self.kernel, self.rows.spread_times(alpha, self.kernel))

    def _roughly_solved(self) -> Linear:
        r""":math:`(D + B B^\top)^{-1}`: B the directions of largest variance, D the rest of the diagonal.

        Products of leading eigenvectors of K have variances that are larger than all others by orders of magnitude.
        Without them conjugate gradients do not come to an end.
        """
        own, i, j = self.kernel.diagonal(), self.rows.first, self.rows.second
        variance = self.variance * self.rows.per_row(own[i] * own[j] + self.kernel[i, j].square())
        leading = self._leading()
        rest = torch.maximum(variance + self.noise - leading.square().sum(0), self.noise)
        rest = rest.clamp(min=torch.finfo(rest.dtype).tiny)  # where all labels are the same, every variance is 0
        scaled = leading / rest
        eye = torch.eye(len(leading), device=rest.device, dtype=rest.dtype)
        root = torch.linalg.cholesky(eye + scaled @ leading.T)

        def solved(right: Tensor) -> Tensor:
            along = torch.cholesky_solve((scaled @ right)[:, None], root)[:, 0]
            found: Tensor = right / rest - along @ scaled
            return found

        return solved

    def _leading(self) -> Tensor:
        r""":math:`B^\top`, ``[directions, rows]``: :math:`\sqrt{v w_a w_b}\, H (u_a u_b^\top + u_b u_a^\top)` for
        eigenvectors u of K with values w, over :math:`\sqrt 2` where they are the same.
        """
        n, directions = len(self.kernel), min(_DIRECTIONS, max(8, _MOST_NUMBERS // max(self.rows.num_rows, 1)))
        number = min(_LEADING, directions, n)
        basis = torch.randn(n, number, generator=torch.Generator().manual_seed(0)).to(self.kernel)
        for _ in range(_ROUNDS):
            basis = torch.linalg.qr(self.kernel @ basis).Q
        value, vector = torch.linalg.eigh(basis.T @ self.kernel @ basis)
        value, vector = value.clamp(min=0), basis @ vector
        a, b = torch.triu_indices(number, number, device=value.device)
        size = value[a] * value[b]
        top = size.argsort(descending=True, stable=True)[:directions]
        a, b, scale = a[top], b[top], (self.variance * size[top] * torch.where(a[top] == b[top], 0.5, 1.0)).sqrt()
        first, second = vector.T[:, self.rows.first], vector.T[:, self.rows.second]
        found: Tensor = value.new_zeros(len(top), self.rows.num_rows)
        for k, (x, y, s) in enumerate(zip(a.tolist(), b.tolist(), scale, strict=True)):
            found[k] = self.rows.per_row(s * (first[x] * second[y] + first[y] * second[x]))
        return found


def conjugate_gradients(
    product: Linear, right: Tensor, roughly_solved: Linear, tolerance: float, most_steps: int
) -> Tensor:
    """x with ``product(x) = right`` for a symmetric positive operator.

    Args:
        product: The operator.
        right: ``[rows]``.
        roughly_solved: Roughly its inverse, symmetric positive.
        tolerance: Stop when the residual is below this fraction of ``right``.
        most_steps: Stop after this many steps.
    """
    x = torch.zeros_like(right)
    residual = right.clone()
    direction = roughly_solved(residual)
    size = residual @ direction
    enough = tolerance * torch.linalg.norm(right)
    for _ in range(most_steps):
        if bool(torch.linalg.norm(residual) <= enough):
            break
        along = product(direction)
        step = size / (direction @ along)
        x = x + step * direction
        residual = residual - step * along
        scaled = roughly_solved(residual)
        before, size = size, residual @ scaled
        direction = scaled + (size / before) * direction
    return x
