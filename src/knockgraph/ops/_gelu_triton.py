"""GELU inside Triton kernels: value and slope from one exponential."""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normal_cdf(x):
    r"""``Φ(x)`` and ``exp(−x²/2)``.

    The error function of Abramowitz and Stegun, 7.1.26: at most 7.5e-8 away from Φ, which is float32's own resolution
    there, and a third of the instructions of a correctly rounded one.
    """
    a = tl.abs(x) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * a)
    e = tl.exp(-a * a)
    tail = 1.061405429 * t - 1.453152027
    tail = tail * t + 1.421413741
    tail = tail * t - 0.284496736
    tail = tail * t + 0.254829592
    tail = 0.5 * tail * t * e
    return tl.where(x >= 0, 1.0 - tail, tail), e


@triton.jit
def gelu(x):
    """``x Φ(x)``."""
    cdf, _ = normal_cdf(x)
    return x * cdf


@triton.jit
def gelu_and_slope(x):
    """``x Φ(x)`` and its derivative ``Φ(x) + x φ(x)``."""
    cdf, e = normal_cdf(x)
    return x * cdf, cdf + x * e * 0.3989422804014327
