"""Kernels of the attention across relations: whole rows as one small attention with a mask.

A tile holds all relations of a few rows side by side, seven rows of nine relations in a tile of 64. Logits between all
entries of a tile are one matrix product; those between different rows are masked. That is more arithmetic than needed,
but the matrix units do it, and nothing but the states is read or kept. The backward pass takes one head at a time, so
that the gradients of its weights fit the registers. Sums over rows are taken per share of the rows and then over the
shares, always in the same order: equal inputs give equal bits.
"""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.partial_sums import apart, partial_sums, parts_of
from knockgraph.ops.tiles import tile


@triton.jit
def _asked(x, ask, lean, same, PRECISION: tl.constexpr):
    """What each entry asks, and its shares of the entries of its own row."""
    z = (tl.dot(x, ask, input_precision=PRECISION) + lean.to(tl.float32)[None, :]).to(x.dtype)
    logit = tl.where(same, tl.dot(z, tl.trans(x), input_precision=PRECISION), float("-inf"))
    p = tl.exp(logit - tl.max(logit, 1)[:, None])
    return z, p / tl.sum(p, 1)[:, None]


@triton.jit
def _forward(
    h,
    ask,
    lean,
    tell,
    bias,
    count,
    y,
    rows,
    R: tl.constexpr,
    C: tl.constexpr,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
):
    real = rows
    if COUNTED:
        real = tl.load(count)
    start = tl.program_id(0) * (TILE // R)
    if start >= real:
        return
    entry = tl.arange(0, TILE)
    own = entry // R
    row = start + own
    inside = (own < TILE // R) & (row < real)
    c = tl.arange(0, C)
    in_cc = c[:, None] * C + c[None, :]
    at = ((entry % R).to(tl.int64) * rows + row)[:, None] * C + c[None, :]
    x = tl.load(h + at, mask=inside[:, None], other=0.0)
    kind = x.dtype
    same = own[:, None] == own[None, :]
    number = tl.arange(0, ROWS)
    member = (number[:, None] == own[None, :]).to(kind)

    acc = tl.dot(member, x, input_precision=PRECISION) / R
    for head in range(0, HEADS):
        a = tl.load(ask + head * C * C + in_cc)
        _, p = _asked(x, a, tl.load(lean + head * C + c), same, PRECISION)
        weight = tl.dot(member, p.to(kind), input_precision=PRECISION) / R
        mixed = tl.dot(weight.to(kind), x, input_precision=PRECISION)
        acc = tl.dot(mixed.to(kind), tl.load(tell + head * C * C + in_cc), acc, input_precision=PRECISION)
    acc += tl.load(bias + c).to(tl.float32)[None, :]
    there = (number < TILE // R) & (start + number < real)
    tl.store(y + (start + number).to(tl.int64)[:, None] * C + c[None, :], acc, mask=there[:, None])


@triton.jit
def _backward(
    h,
    ask,
    lean,
    tell,
    count,
    dy,
    dh,
    d_ask,
    d_lean,
    d_tell,
    d_bias,
    rows,
    per_share,
    R: tl.constexpr,
    C: tl.constexpr,
    FIRST: tl.constexpr,
    ROWS: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
):
    """Through one head, whose part is added to ``dh``; the first one brings the mean's with it.

    Each share's sums lie ``per_share`` numbers after those of the share before.
    """
    share = tl.program_id(0)
    real = rows
    if COUNTED:
        real = tl.load(count)
    entry = tl.arange(0, TILE)
    own = entry // R
    c = tl.arange(0, C)
    in_cc = c[:, None] * C + c[None, :]
    kind = h.dtype.element_ty
    same = own[:, None] == own[None, :]
    number = tl.arange(0, ROWS)
    is_member = number[:, None] == own[None, :]
    member = is_member.to(kind)
    offset = tl.load(lean + c)

    g_ask = tl.zeros([C, C], dtype=tl.float32)
    g_tell = tl.zeros([C, C], dtype=tl.float32)
    g_lean = tl.zeros([C], dtype=tl.float32)
    g_bias = tl.zeros([C], dtype=tl.float32)
    for start in range(share * (TILE // R), real, SHARES * (TILE // R)):
        row = start + own
        inside = ((own < TILE // R) & (row < real))[:, None]
        at = ((entry % R).to(tl.int64) * rows + row)[:, None] * C + c[None, :]
        x = tl.load(h + at, mask=inside, other=0.0)
        there = ((number < TILE // R) & (start + number < real))[:, None]
        grad = tl.load(dy + (start + number).to(tl.int64)[:, None] * C + c[None, :], mask=there, other=0.0)
        if FIRST:
            g_bias += tl.sum(grad.to(tl.float32), 0)
        grad = grad.to(kind)
        # From the cache: kept over all rounds, in float32 they would take the shared memory of small cards.
        a = tl.load(ask + in_cc)
        z, p = _asked(x, a, offset, same, PRECISION)
        weight = (tl.dot(member, p.to(kind), input_precision=PRECISION) / R).to(kind)
        mixed = tl.dot(weight, x, input_precision=PRECISION).to(kind)
        g_tell = tl.dot(tl.trans(mixed), grad, g_tell, input_precision=PRECISION)
        d_mixed = tl.dot(grad, tl.trans(tl.load(tell + in_cc)), input_precision=PRECISION).to(kind)
        d_weight = tl.dot(d_mixed, tl.trans(x), input_precision=PRECISION)
        d_share = tl.sum(tl.where(is_member, d_weight, 0.0), 0) / R  # the same for all that ask
        along = tl.sum(p * d_share[None, :], 1)
        d_logit = (p * (d_share[None, :] - along[:, None])).to(kind)
        dz = tl.dot(d_logit, x, input_precision=PRECISION)
        g_lean += tl.sum(dz, 0)
        dz = dz.to(kind)
        g_ask = tl.dot(tl.trans(x), dz, g_ask, input_precision=PRECISION)
        dx = tl.dot(tl.trans(d_logit), z, input_precision=PRECISION)
        dx = tl.dot(dz, tl.trans(a), dx, input_precision=PRECISION)
        dx = tl.dot(tl.trans(weight), d_mixed, dx, input_precision=PRECISION)
        if FIRST:
            dx += tl.dot(tl.trans(member), grad, input_precision=PRECISION) / R
        else:
            dx += tl.load(dh + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(dh + at, dx.to(kind), mask=inside)
    to = share * per_share
    tl.store(d_ask + to + in_cc, g_ask)
    tl.store(d_tell + to + in_cc, g_tell)
    tl.store(d_lean + to + c, g_lean)
    if FIRST:
        tl.store(d_bias + to + c, g_bias)


def forward(h: Tensor, ask: Tensor, lean: Tensor, tell: Tensor, bias: Tensor, count: Tensor | None) -> Tensor:
    """The result, float32 [rows, channels].

    Args:
        h: [relations, rows, channels].
        ask: [heads, channels, channels], of h's type.
        lean: [heads, channels].
        tell: [heads, channels, channels], of h's type.
        bias: [channels].
        count: int32 [1]: only that many rows are there, or ``None`` for all.
    """
    relations, rows, channels = h.shape
    y = torch.empty(rows, channels, dtype=torch.float32, device=h.device)
    launch = _launch("relations", h, count)
    with torch.cuda.device_of(h):
        _forward[(triton.cdiv(rows, launch["TILE"] // relations),)](
            h, ask, lean, tell, bias, count, y, rows, HEADS=len(ask), **launch
        )
    return y


def backward(
    h: Tensor, ask: Tensor, lean: Tensor, tell: Tensor, count: Tensor | None, dy: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of h (its type), ask, lean, tell and bias (float32); arguments as in the forward pass."""
    _, rows, channels = h.shape
    dh = torch.empty_like(h)
    launch = _launch("gradient of relations", h, count)
    shapes = (tuple(ask.shape), tuple(lean.shape), tuple(tell.shape), (channels,))
    whole, (d_ask, d_lean, d_tell, d_bias) = partial_sums(h, launch["SHARES"], *shapes)
    with torch.cuda.device_of(h):
        for head in range(len(ask)):
            _backward[(launch["SHARES"],)](
                h,
                ask[head],
                lean[head],
                tell[head],
                count,
                dy,
                dh,
                d_ask[:, head],
                d_lean[:, head],
                d_tell[:, head],
                d_bias,
                rows,
                whole.shape[1],
                FIRST=head == 0,
                **launch,
            )
    d_ask, d_lean, d_tell, d_bias = apart(parts_of(whole.sum(0), *shapes))
    return dh, d_ask, d_lean, d_tell, d_bias


def _launch(kernel: str, h: Tensor, count: Tensor | None) -> dict[str, Any]:
    relations, _, channels = h.shape
    launch = tile(kernel, h)
    entries = max(launch["TILE"], triton.next_power_of_2(relations))
    return {
        **launch,
        "TILE": entries,
        "ROWS": max(16, triton.next_power_of_2(entries // relations)),  # the least that matrix units take
        "R": relations,
        "C": channels,
        "COUNTED": count is not None,
        # Three products of tf32 are as exact as float32 and, with tiles this wide, much smaller code.
        "PRECISION": "tf32x3" if h.dtype == torch.float32 else "tf32",
    }
