"""GELU inside Triton kernels: value and slope from one exponential, or for bfloat16 from one hardware tanh."""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def rounded_anyway(x: Tensor) -> bool:
    """Whether results are rounded to bfloat16, so that the hardware's tanh is exact enough (NVIDIA only)."""
    return x.dtype == torch.bfloat16 and x.is_cuda and torch.version.hip is None


@triton.jit
def _tanh(x):
    return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def gelu_and_slope(x, FAST: tl.constexpr):
    r"""``x Φ(x)`` and its derivative ``Φ(x) + x φ(x)``.

    Φ is made of the error function of Abramowitz and Stegun, 7.1.26, at most 7.5e-8 away: float32's own resolution
    there. ``FAST``: of ``tanh(x (a + b x² + c x⁴))`` with constants fitted to Φ; 3e-5 away, and the hardware's tanh
    another 2.5e-4, an eighth of what rounding to bfloat16 takes.
    """
    if FAST:
        square = tl.minimum(x * x, 64.0)
        t = _tanh(x * (0.797650576 + square * (0.0369095524 - 0.000339062077 * square)))
        cdf = 0.5 * t + 0.5
        inner = 0.797650576 + square * (0.1107286572 - 0.001695310385 * square)
        return x * cdf, cdf + 0.5 * x * inner * (1.0 - t * t)
    else:
        a = tl.abs(x) * 0.7071067811865476
        t = 1.0 / (1.0 + 0.3275911 * a)
        e = tl.exp(-a * a)
        tail = 1.061405429 * t - 1.453152027
        tail = tail * t + 1.421413741
        tail = tail * t - 0.284496736
        tail = tail * t + 0.254829592
        tail = 0.5 * tail * t * e
        cdf = tl.where(x >= 0, 1.0 - tail, tail)
        return x * cdf, cdf + x * e * 0.3989422804014327


@triton.jit
def gelu(x, FAST: tl.constexpr):
    """``x Φ(x)``; what the slope would need is left out by the compiler."""
    value, _ = gelu_and_slope(x, FAST)
    return value


@triton.jit
def beside(v, product, inside):
    """``v``, laid out over the threads as ``product``; both are 0 where no row is.

    A GELU's value and slope that are needed in two layouts are computed twice: the compiler would rather compute than
    move. Of a v that is laid out as a matrix product they are computed once.
    """
    return tl.where(inside, v, product)
