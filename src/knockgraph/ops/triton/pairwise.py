"""Kernels of the pairwise relation aggregation: nothing of the size pairs × rows × channels is ever stored.

The forward pass takes a tile of rows through all pairs with a running softmax, and keeps of each pair only what its
first linear map gave, ``t`` [pairs, rows, hidden], and the mean of the states. From there the backward pass computes
the pairs again: one kernel, a program per pair and share of the rows, turns ``t`` into its own gradient, in place; the
two others turn that into the gradients of the first linear maps and of the states. Sums over rows are taken per share
and then over the shares, always in the same order: equal inputs give equal bits.

A pair's state ``o = g W + b``, with ``g = GELU(t)``, is twice as wide as g, so the rest goes by g where it can:

- the score of a pair is ``s · GELU(g (W S) + (b S + c))``, with ``W S`` and ``b S + c`` made once per pair;
- backward no o is made at all. With the gradient ``dy`` of the mixture and the pair's share ``a`` of it, ``v = dy Wᵀ``
  gives ``o · dy = g · v + b · dy`` and, with ``e = dq / a``, ``dg = a (v + e (W S)ᵀ)``. The sums over rows are
  ``(a g)ᵀ dy`` and ``G = (a g)ᵀ e``, from which follow ``dW = (a g)ᵀ dy + G Sᵀ`` and
  ``dS = Σ_pairs Wᵀ G + b ⊗ Σ_rows dq``.
"""

# Kernels are typed by Triton, not by Python.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from knockgraph.ops.partial_sums import partial_sums, parts_of
from knockgraph.ops.tiles import tile
from knockgraph.ops.triton.gelu import beside, gelu, gelu_and_slope, rounded_anyway


@triton.jit
def _mix_pairs(
    h,
    w_first,
    w_second,
    b_in,
    w_out,
    b_out,
    s_in,
    c_in,
    s_out,
    w_score,
    b_score,
    count,
    y,
    lse,
    kept,
    kept_mean,
    rows,
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    KEEP: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    TILE: tl.constexpr,
):
    start = tl.program_id(0) * TILE
    real = rows
    if COUNTED:
        real = tl.load(count)
    if start >= real:
        return
    row = start + tl.arange(0, TILE)
    inside = (row < real)[:, None]
    c = tl.arange(0, C)
    k = tl.arange(0, K)
    place = row.to(tl.int64)[:, None] * C + c[None, :]
    place_k = row.to(tl.int64)[:, None] * K + k[None, :]
    step = rows.to(tl.int64) * C
    in_ck = c[:, None] * K + k[None, :]
    in_kc = k[:, None] * C + c[None, :]
    kind = h.dtype.element_ty
    in_kk = k[:, None] * K + k[None, :]
    scorer_out = tl.load(s_out + k).to(tl.float32)

    mean = tl.zeros([TILE, C], dtype=tl.float32)
    acc = tl.zeros([TILE, C], dtype=tl.float32)
    largest = tl.full([TILE], float("-inf"), dtype=tl.float32)
    total = tl.zeros([TILE], dtype=tl.float32)
    p = 0
    for i in range(0, R):
        h_i = tl.load(h + i * step + place, mask=inside, other=0.0)
        mean += h_i.to(tl.float32)
        for j in range(i, R):
            h_j = tl.load(h + j * step + place, mask=inside, other=0.0)
            t = tl.dot(h_i, tl.load(w_first + p * C * K + in_ck), input_precision=PRECISION)
            t = tl.dot(h_j, tl.load(w_second + p * C * K + in_ck), t, input_precision=PRECISION)
            stored = (t + tl.load(b_in + p * K + k).to(tl.float32)[None, :]).to(kind)
            if KEEP:
                tl.store(kept + p * rows.to(tl.int64) * K + place_k, stored, mask=inside)
            g = gelu(stored.to(tl.float32), FAST).to(kind)
            o = tl.dot(g, tl.load(w_out + p * K * C + in_kc), input_precision=PRECISION)
            o += tl.load(b_out + p * C + c).to(tl.float32)[None, :]
            q = tl.dot(g, tl.load(w_score + p * K * K + in_kk), input_precision=PRECISION)
            q = gelu(q + tl.load(b_score + p * K + k).to(tl.float32)[None, :], FAST)
            score = tl.sum(q * scorer_out[None, :], 1)
            new = tl.maximum(largest, score)
            shrink = tl.exp(largest - new)
            weight = tl.exp(score - new)
            acc = acc * shrink[:, None] + o * weight[:, None]
            total = total * shrink + weight
            largest = new
            p += 1
    mean = mean / R
    if KEEP:
        tl.store(kept_mean + place, mean.to(kind), mask=inside)
    q = tl.dot(mean.to(kind), tl.load(s_in + in_ck), input_precision=PRECISION)
    q = gelu(q + tl.load(c_in + k).to(tl.float32)[None, :], FAST)
    score = tl.sum(q * scorer_out[None, :], 1)
    new = tl.maximum(largest, score)
    shrink = tl.exp(largest - new)
    weight = tl.exp(score - new)
    acc = acc * shrink[:, None] + mean * weight[:, None]
    total = total * shrink + weight
    tl.store(y + place, acc / total[:, None], mask=inside)
    tl.store(lse + row, new + tl.log(total), mask=row < real)


@triton.jit
def _grad_of_pairs(
    w_out,
    w_score,
    b_score,
    s_out,
    count,
    dy,
    lse,
    delta,
    kept,
    shares,
    d_out,
    d_w_score,
    d_b_score,
    d_s_out,
    rows,
    of_shares,
    per_share,
    C: tl.constexpr,
    K: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
    GELUS: tl.constexpr,
):
    """``shares`` holds ``b · dy``, and then the pair's share ``a`` of the mixture."""
    # Neighbouring programs work on the same rows, so that they find them in the cache.
    p = tl.program_id(0)
    share_number = tl.program_id(1)
    real = rows
    if COUNTED:
        real = tl.load(count)
    c = tl.arange(0, C)
    k = tl.arange(0, K)
    in_kk = k[:, None] * K + k[None, :]
    kind = dy.dtype.element_ty
    of_pair = kept + p * rows.to(tl.int64) * K
    wo = tl.load(w_out + p * K * C + k[:, None] * C + c[None, :])
    ws = tl.load(w_score + p * K * K + in_kk)
    bias = tl.load(b_score + p * K + k).to(tl.float32)
    scorer_out = tl.load(s_out + k).to(tl.float32)

    g_out = tl.zeros([C, K], dtype=tl.float32)  # transposed: the matrix units want the longer axis first
    g_w_score = tl.zeros([K, K], dtype=tl.float32)
    # Summed over the rows of a tile at the end: each thread adds up what it has.
    g_b_score = tl.zeros([TILE, K], dtype=tl.float32)
    g_s_out = tl.zeros([TILE, K], dtype=tl.float32)
    for start in range(share_number * TILE, real, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        here = row < real
        inside = here[:, None]
        at = of_pair + row.to(tl.int64)[:, None] * K + k[None, :]
        at_share = shares + p * of_shares.to(tl.int64) + row
        t = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + row.to(tl.int64)[:, None] * C + c[None, :], mask=inside, other=0.0)
        v = tl.dot(grad, tl.trans(wo), input_precision=PRECISION)
        if GELUS == 1:
            t = beside(t, v, inside)
        g, slope = gelu_and_slope(t, FAST)
        q, q_slope = gelu_and_slope(tl.dot(g.to(kind), ws, input_precision=PRECISION) + bias[None, :], FAST)
        score = tl.sum(q * scorer_out[None, :], 1)
        # A row that is not there has no share.
        share = tl.where(here, tl.exp(score - tl.load(lse + row, mask=here, other=0.0)), 0.0)
        along = tl.sum(g * v, 1) + tl.load(at_share, mask=here, other=0.0).to(tl.float32)
        tl.store(at_share, share.to(kind), mask=here)
        along -= tl.load(delta + row, mask=here, other=0.0)
        g_s_out += (share * along)[:, None] * q
        e = along[:, None] * scorer_out[None, :] * q_slope
        g_b_score += share[:, None] * e
        e = e.to(kind)
        g = (share[:, None] * g).to(kind)
        g_out = tl.dot(tl.trans(grad), g, g_out, input_precision=PRECISION)
        g_w_score = tl.dot(tl.trans(g), e, g_w_score, input_precision=PRECISION)
        d_g = tl.dot(e, tl.trans(ws), v, input_precision=PRECISION)
        tl.store(at, (share[:, None] * d_g * slope).to(kind), mask=inside)
    to = share_number * per_share
    tl.store(d_out + to + p * K * C + k[None, :] * C + c[:, None], g_out)
    to += p * (K + 2) * K  # what belongs to the score of one pair lies side by side
    tl.store(d_w_score + to + in_kk, g_w_score)
    tl.store(d_b_score + to + k, tl.sum(g_b_score, 0))
    tl.store(d_s_out + to + k, tl.sum(g_s_out, 0))


@triton.jit
def _grad_of_first_maps(
    h,
    dt,
    pair_i,
    pair_j,
    count,
    d_first,
    d_second,
    d_b_in,
    rows,
    per_share,
    C: tl.constexpr,
    K: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
):
    p = tl.program_id(0)
    share_number = tl.program_id(1)
    real = rows
    if COUNTED:
        real = tl.load(count)
    c = tl.arange(0, C)
    k = tl.arange(0, K)
    in_ck = c[:, None] * K + k[None, :]
    first = h + tl.load(pair_i + p) * rows.to(tl.int64) * C
    second = h + tl.load(pair_j + p) * rows.to(tl.int64) * C
    of_pair = dt + p * rows.to(tl.int64) * K
    g_first = tl.zeros([C, K], dtype=tl.float32)
    g_second = tl.zeros([C, K], dtype=tl.float32)
    g_b_in = tl.zeros([TILE, K], dtype=tl.float32)
    for start in range(share_number * TILE, real, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        inside = (row < real)[:, None]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        d_t = tl.load(of_pair + row.to(tl.int64)[:, None] * K + k[None, :], mask=inside, other=0.0)
        h_i = tl.load(first + place, mask=inside, other=0.0)
        h_j = tl.load(second + place, mask=inside, other=0.0)
        g_first = tl.dot(tl.trans(h_i), d_t, g_first, input_precision=PRECISION)
        g_second = tl.dot(tl.trans(h_j), d_t, g_second, input_precision=PRECISION)
        g_b_in += d_t.to(tl.float32)
    to = share_number * per_share
    tl.store(d_first + to + p * C * K + in_ck, g_first)
    tl.store(d_second + to + p * C * K + in_ck, g_second)
    tl.store(d_b_in + to + p * K + k, tl.sum(g_b_in, 0))


@triton.jit
def _grad_of_mean(
    mean,
    s_in,
    c_in,
    s_out,
    count,
    dy,
    y,
    lse,
    dy_narrow,
    delta,
    d_s_in,
    d_c_in,
    d_s_out,
    rows,
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
):
    """The identity among the pairs: the mean of the states, which becomes its own gradient, divided by their number.
    Comes first, and leaves for the others ``dy`` in h's type and ``delta = Σ_channels dy · y``.
    """
    share_number = tl.program_id(0)
    real = rows
    if COUNTED:
        real = tl.load(count)
    c = tl.arange(0, C)
    k = tl.arange(0, K)
    in_ck = c[:, None] * K + k[None, :]
    kind = mean.dtype.element_ty
    scorer = tl.load(s_in + in_ck)
    scorer_bias = tl.load(c_in + k).to(tl.float32)
    scorer_out = tl.load(s_out + k).to(tl.float32)
    g_s_in = tl.zeros([C, K], dtype=tl.float32)
    g_c_in = tl.zeros([TILE, K], dtype=tl.float32)
    g_s_out = tl.zeros([TILE, K], dtype=tl.float32)
    for start in range(share_number * TILE, real, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        here = row < real
        inside = here[:, None]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        o = tl.load(mean + place, mask=inside, other=0.0)
        grad = tl.load(dy + place, mask=inside, other=0.0).to(kind)
        tl.store(dy_narrow + place, grad, mask=inside)
        grad = grad.to(tl.float32)
        of_row = tl.sum(grad * tl.load(y + place, mask=inside, other=0.0), 1)
        tl.store(delta + row, of_row, mask=here)
        along = tl.sum(o.to(tl.float32) * grad, 1)
        q, q_slope = gelu_and_slope(tl.dot(o, scorer, input_precision=PRECISION) + scorer_bias[None, :], FAST)
        score = tl.sum(q * scorer_out[None, :], 1)
        share = tl.where(here, tl.exp(score - tl.load(lse + row, mask=here, other=0.0)), 0.0)
        d_score = share * (along - of_row)
        g_s_out += d_score[:, None] * q
        dq = d_score[:, None] * scorer_out[None, :] * q_slope
        g_c_in += dq
        dq = dq.to(kind)
        g_s_in = tl.dot(tl.trans(o), dq, g_s_in, input_precision=PRECISION)
        do = tl.dot(dq, tl.trans(scorer), share[:, None] * grad, input_precision=PRECISION)
        tl.store(mean + place, (do / R).to(kind), mask=inside)
    to = share_number * (C + 2) * K
    tl.store(d_s_in + to + in_ck, g_s_in)
    tl.store(d_c_in + to + k, tl.sum(g_c_in, 0))
    tl.store(d_s_out + to + k, tl.sum(g_s_out, 0))


@triton.jit
def _grad_of_states(
    dt,
    d_mean,
    w_both,
    slots,
    count,
    dh,
    rows,
    R: tl.constexpr,
    PAIRS: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    COUNTED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    TILE: tl.constexpr,
):
    r = tl.program_id(0)
    start = tl.program_id(1) * TILE
    real = rows
    if COUNTED:
        real = tl.load(count)
    if start >= real:
        return
    row = start + tl.arange(0, TILE)
    inside = (row < real)[:, None]
    c = tl.arange(0, C)
    k = tl.arange(0, K)
    in_kc = k[:, None] + c[None, :] * K  # the transpose of [C, K]
    place = row.to(tl.int64)[:, None] * C + c[None, :]
    acc = tl.load(d_mean + place, mask=inside, other=0.0).to(tl.float32)
    for s in range(0, R + 1):
        slot = tl.load(slots + r * (R + 1) + s)
        p = slot % PAIRS
        d_t = tl.load(dt + (p * rows.to(tl.int64) + row.to(tl.int64))[:, None] * K + k[None, :], mask=inside, other=0.0)
        acc = tl.dot(d_t, tl.load(w_both + slot * C * K + in_kc), acc, input_precision=PRECISION)
    tl.store(dh + r * rows.to(tl.int64) * C + place, acc.to(dh.dtype.element_ty), mask=inside)


def mix_pairs(
    h: Tensor, weights: Sequence[Tensor], count: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mixture [rows, channels] and the logarithm of the softmax's denominator [rows], float32; then ``t`` and the
    mean of the states, [rows, channels].

    Args:
        h: [relations, rows, channels].
        weights: ``first``, ``second`` [pairs, channels, hidden], ``bias_in`` [pairs, hidden], ``out`` [pairs, hidden,
            channels], ``bias_out`` [pairs, channels], and the scorer's ``in`` [channels, hidden], ``bias`` [hidden]
            and ``out`` [hidden]; of h's type.
        count: int32 [1]: only that many rows are there, or ``None`` for all.
        keep: Whether there will be a backward pass; without, the last two are empty.
    """
    relations, rows, channels = h.shape
    pairs, _, hidden = weights[0].shape
    y = torch.empty(rows, channels, dtype=torch.float32, device=h.device)
    lse = torch.empty(rows, dtype=torch.float32, device=h.device)
    t = h.new_empty(pairs if keep else 0, rows, hidden)
    mean = h.new_empty(rows if keep else 0, channels)
    launch = tile("pairs", h)
    with torch.cuda.device_of(h):
        _mix_pairs[(triton.cdiv(rows, launch["TILE"]),)](
            h,
            *weights,
            *_of_scores(weights),
            count,
            y,
            lse,
            t,
            mean,
            rows,
            R=relations,
            KEEP=keep,
            **_shape(h, weights, count),
            **launch,
        )
    return y, lse, t, mean


def mix_pairs_grad(
    h: Tensor,
    weights: Sequence[Tensor],
    count: Tensor | None,
    pairs: Tensor,
    slots: Tensor,
    dy: Tensor,
    y: Tensor,
    lse: Tensor,
    t: Tensor,
    mean: Tensor,
) -> tuple[Tensor, ...]:
    """Gradients of h (its type) and of the weights (float32). ``t`` and ``mean`` are used up.

    Args:
        h: As in the forward pass, and so the next two.
        weights: As above; ``first`` and ``second`` side by side in memory.
        count: As above.
        pairs: int32 [2, pairs], the relations of each pair.
        slots: int32 [relations, relations + 1], for each relation where it takes part: ``pair`` as the first of the
            two, ``pair + number of pairs`` as the second.
        dy: Gradient of the mixture, [rows, channels].
        y: The mixture, from the forward pass, and so are the next three.
        lse: As above.
        t: As above.
        mean: As above.
    """
    relations, rows, channels = h.shape
    number, _, hidden = weights[0].shape
    shape = _shape(h, weights, count)
    of_pair, maps, alone, states = (
        tile(f"gradient of {part}", h) for part in ("pairs", "first maps", "mean", "states")
    )
    delta = torch.empty_like(lse)
    # Whole 16 bytes of rows, for fast products. Rows that are not there stay 0, and so do their shares.
    padded = -(-rows // 8) * 8
    narrow, shares = h.new_empty(padded, channels), h.new_empty(number, padded)
    narrow[rows if count is None else 0 :].zero_()
    dh = torch.empty_like(h)
    by_pair = (*(w.shape for w in weights[:4]), (number, (hidden + 2) * hidden))
    of_score = ((hidden, hidden), (hidden,), (hidden,))
    of_scorer = ((channels, hidden), (hidden,), (hidden,))
    of_pairs, (first, second, bias_in, out, score) = partial_sums(h, of_pair["SHARES"], *by_pair)
    of_mean, scorer_of_mean = partial_sums(h, alone["SHARES"], *of_scorer)
    with torch.cuda.device_of(h):
        _grad_of_mean[(alone["SHARES"],)](
            mean,
            *weights[5:],
            count,
            dy,
            y,
            lse,
            narrow,
            delta,
            *scorer_of_mean,
            rows,
            R=relations,
            **shape,
            **alone,
        )
        torch.mm(weights[4].view(number, channels), narrow.t(), out=shares)
        _grad_of_pairs[(number, of_pair["SHARES"])](
            weights[3],
            *_of_scores(weights),
            weights[7],
            count,
            narrow,
            lse,
            delta,
            t,
            shares,
            out,
            *parts_of(score, *of_score),
            rows,
            padded,
            of_pairs.shape[1],
            **shape,
            **of_pair,
        )
        _grad_of_first_maps[(number, of_pair["SHARES"])](
            h,
            t,
            pairs[0],
            pairs[1],
            count,
            first,
            second,
            bias_in,
            rows,
            of_pairs.shape[1],
            SHARES=of_pair["SHARES"],
            **shape,
            **maps,
        )
        _grad_of_states[(relations, triton.cdiv(rows, states["TILE"]))](
            t, mean, weights[0], slots, count, dh, rows, R=relations, PAIRS=number, **shape, **states
        )
    first, second, bias_in, out, score = parts_of(of_pairs.sum(0), *by_pair)
    w_out, b_out, s_in = (w.float() for w in weights[3:6])
    d_w_score = score[:, : hidden * hidden].view(number, hidden, hidden)
    d_b_score = score[:, hidden * hidden :][:, :hidden]
    out = torch.baddbmm(out, d_w_score, s_in.t().expand(number, hidden, channels))
    d_b_out = torch.addmm((shares @ narrow).float(), d_b_score, s_in.t())
    d_s_in, d_c_in, d_s_out = parts_of(of_mean.sum(0), *of_scorer)
    d_s_in = torch.addmm(d_s_in, w_out.flatten(0, 1).t(), d_w_score.flatten(0, 1))
    d_s_in = d_s_in.addmm_(b_out.view(number, channels).t(), d_b_score)
    c_in_of_pairs, s_out_of_pairs = score[:, hidden * hidden :].sum(0).split(hidden)
    # Operators must not give two views of one memory.
    first, second, bias_in = first.clone(), second.clone(), bias_in.clone()
    return dh, first, second, bias_in, out, d_b_out, d_s_in, d_c_in + c_in_of_pairs, d_s_out + s_out_of_pairs


def _of_scores(weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """``W S`` [pairs, hidden, hidden] and ``b S + c`` [pairs, hidden]."""
    w_out, b_out, s_in, c_in = weights[3:7]
    pairs, hidden, channels = w_out.shape
    w_score = (w_out.reshape(pairs * hidden, channels) @ s_in).view(pairs, hidden, hidden)
    return w_score, torch.addmm(c_in, b_out.reshape(pairs, channels), s_in)


def _shape(h: Tensor, weights: Sequence[Tensor], count: Tensor | None) -> dict[str, Any]:
    return {
        "C": h.shape[2],
        "K": weights[0].shape[2],
        "COUNTED": count is not None,
        "FAST": rounded_anyway(h),
        "PRECISION": "ieee" if h.dtype == torch.float32 else "tf32",
    }
