"""Kernels of the deleted genes' terms: a program per sample, and backward one per place in the list of genes."""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(x, genes, ptr, y, row, channel, C: tl.constexpr):
    sample = tl.program_id(0)
    c = tl.arange(0, C)
    start = tl.load(ptr + sample)
    stop = tl.load(ptr + sample + 1)
    total = tl.zeros([C], dtype=tl.float32)
    squares = tl.zeros([C], dtype=tl.float32)
    for place in range(start, stop):
        state = tl.load(x + tl.load(genes + place) * row + c * channel)
        total += state
        squares += state * state
    size = (stop - start).to(tl.float32)
    to = y + sample * 3 * C + c
    tl.store(to, total)
    tl.store(to + C, (total * total - squares) * 0.5)
    tl.store(to + 2 * C, size * squares - total * total)


@triton.jit(do_not_specialize=["number"])  # of genes, another in each batch: compiled once
def _backward(x, genes, ptr, sample, y, dy, dx, number, row, channel, C: tl.constexpr):
    r"""The first place that names a gene sums over all that do, in their order:
    :math:`dx_i = dt + dc\,(t - x_i) + 2\,da\,(|P|\,x_i - t)` of each sample.
    """
    first = tl.program_id(0)
    gene = tl.load(genes + first)
    earlier = 0
    for place in range(0, first):
        earlier += (tl.load(genes + place) == gene).to(tl.int32)
    if earlier > 0:
        return
    c = tl.arange(0, C)
    state = tl.load(x + gene * row + c * channel)
    grad = tl.zeros([C], dtype=tl.float32)
    for place in range(first, number):
        if tl.load(genes + place) == gene:
            of = tl.load(sample + place)
            size = (tl.load(ptr + of + 1) - tl.load(ptr + of)).to(tl.float32)
            at = of * 3 * C + c
            total = tl.load(y + at)
            grad += tl.load(dy + at) + tl.load(dy + at + C) * (total - state)
            grad += 2.0 * tl.load(dy + at + 2 * C) * (size * state - total)
    tl.store(dx + gene * C + c, grad)


def forward(x: Tensor, genes: Tensor, ptr: Tensor) -> Tensor:
    """The terms [samples, 3 · channels]; x is float32 [num_genes, channels], the others int64."""
    y = x.new_empty(len(ptr) - 1, 3 * x.shape[1])
    with torch.cuda.device_of(x):
        _forward[(len(y),)](x, genes, ptr, y, *x.stride(), C=x.shape[1], num_warps=1)
    return y


def backward(x: Tensor, genes: Tensor, ptr: Tensor, sample: Tensor, y: Tensor, dy: Tensor) -> Tensor:
    """The gradient of x."""
    dx = x.new_zeros(x.shape)
    with torch.cuda.device_of(x):
        _backward[(len(genes),)](x, genes, ptr, sample, y, dy, dx, len(genes), *x.stride(), C=x.shape[1], num_warps=1)
    return dx
