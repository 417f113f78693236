"""Kernels of the relations' MLPs: a tile of rows goes through all linear maps, norm and activation without leaving.

The forward pass keeps the values before each activation for the backward pass, which goes back through norm and last
activation, and then through one linear map at a time, in place: with several in one kernel the gradients of the weights
do not fit the registers (docs/speed.md). Sums over rows are taken per share of the rows and then over the shares,
always in the same order: equal inputs give equal bits.

``OWN`` says how the rows' own states join what the neighbours sent, and is the number of axes of ``own_weight``: 1 for
(1 + ε) times, 2 for a factor of each row, 3 for a matrix beside that of the first map.
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
from knockgraph.ops.triton import norm_gelu
from knockgraph.ops.triton.gelu import beside, gelu, gelu_and_slope, rounded_anyway
from knockgraph.ops.triton.row_norm import normalised
from knockgraph.ops.triton.spmm import as_factors


@triton.jit
def _own_factor(own_weight, r, row, rows, real, OWN: tl.constexpr):
    """What a row's own state is multiplied with: one number, or one of each row [TILE, 1]."""
    if OWN == 1:
        return 1.0 + tl.load(own_weight + r).to(tl.float32)
    else:
        return tl.load(own_weight + r * rows.to(tl.int64) + row, mask=row < real, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _forward(
    own,
    neighbours,
    own_weight,
    weight,
    bias,
    scale,
    shift,
    count,
    keep,
    z,
    y,
    rows,
    R: tl.constexpr,
    C: tl.constexpr,
    LAYERS: tl.constexpr,
    OWN: tl.constexpr,
    NORM: tl.constexpr,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
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
    in_cc = c[:, None] * C + c[None, :]
    place = row.to(tl.int64)[:, None] * C + c[None, :]
    here = r * rows.to(tl.int64) * C + place
    step = R * rows.to(tl.int64) * C
    kind = y.dtype.element_ty
    x = tl.load(own + place, mask=inside, other=0.0)
    h = tl.load(neighbours + here, mask=inside, other=0.0)
    if MASKED:
        h = tl.where((tl.load(keep + row, mask=row < real, other=0) != 0)[:, None], h, 0.0)
    if OWN < 3:
        h = x.to(tl.float32) * _own_factor(own_weight, r, row, rows, real, OWN) + h.to(tl.float32)
    h = h.to(kind)
    for layer in tl.static_range(LAYERS):
        of = layer * R + r
        v = tl.dot(h, tl.load(weight + of * C * C + in_cc), input_precision=PRECISION)
        if layer == 0 and OWN == 3:
            v = tl.dot(x.to(kind), tl.load(own_weight + r * C * C + in_cc), v, input_precision=PRECISION)
        stored = (v + tl.load(bias + of * C + c).to(tl.float32)[None, :]).to(kind)
        tl.store(z + layer * step + here, stored, mask=inside)
        v = stored.to(tl.float32)
        if layer == LAYERS - 1 and NORM:
            v, _ = normalised(v, C)
            v = v * tl.load(scale + r * C + c).to(tl.float32)[None, :]
            v += tl.load(shift + r * C + c).to(tl.float32)[None, :]
        h = gelu(v, FAST).to(kind)
    tl.store(y + here, h, mask=inside)


@triton.jit
def _backward(
    own,
    neighbours,
    own_weight,
    weight,
    count,
    keep,
    z_before,
    dh,
    d_own_weight,
    d_weight,
    d_bias,
    rows,
    per_share,
    R: tl.constexpr,
    C: tl.constexpr,
    OWN: tl.constexpr,
    FIRST: tl.constexpr,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
    GELUS: tl.constexpr,
):
    """Through one linear map and the activation before it, ``z_before``: ``dh`` becomes its gradient in place. With two
    matrices the first map is left to ``_sum_own``, which passes the same gradient through both.

    Each share's sums lie ``per_share`` numbers after those of the share before.
    """
    r = tl.program_id(0)
    share = tl.program_id(1)
    real = rows
    if COUNTED:
        real = tl.load(count)
    c = tl.arange(0, C)
    in_cc = c[:, None] * C + c[None, :]
    kind = dh.dtype.element_ty
    if OWN == 1:
        factor = _own_factor(own_weight, r, 0, rows, real, OWN)
    w = tl.load(weight + r * C * C + in_cc)
    g = tl.zeros([C, C], dtype=tl.float32)
    g_own = tl.zeros([C, C], dtype=tl.float32)
    # Summed over the rows of a tile at the end: each thread adds up what it has.
    b = tl.zeros([TILE, C], dtype=tl.float32)
    g_eps = tl.zeros([TILE, C], dtype=tl.float32)
    for start in range(share * TILE, real, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        inside = (row < real)[:, None]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        here = r * rows.to(tl.int64) * C + place
        dv = tl.load(dh + here, mask=inside, other=0.0)
        if FIRST:
            x = tl.load(own + place, mask=inside, other=0.0)
            h = tl.load(neighbours + here, mask=inside, other=0.0)
            if MASKED:
                h = tl.where((tl.load(keep + row, mask=row < real, other=0) != 0)[:, None], h, 0.0)
            if OWN == 2:
                factor = _own_factor(own_weight, r, row, rows, real, OWN)
            if OWN < 3:
                h = x.to(tl.float32) * factor + h.to(tl.float32)
        else:
            v = tl.load(z_before + here, mask=inside, other=0.0).to(tl.float32)
            if GELUS == 1:
                d_in = tl.dot(dv, tl.trans(w), input_precision=PRECISION)
                v = beside(v, d_in, inside)
            h, slope = gelu_and_slope(v, FAST)
        b += dv.to(tl.float32)
        g = tl.dot(tl.trans(h.to(kind)), dv, g, input_precision=PRECISION)
        if FIRST and OWN == 3:
            g_own = tl.dot(tl.trans(x.to(kind)), dv, g_own, input_precision=PRECISION)
        else:
            if FIRST or GELUS == 2:
                d_in = tl.dot(dv, tl.trans(w), input_precision=PRECISION)
            if not FIRST:
                d_in = d_in * slope
            elif OWN == 1:
                g_eps += d_in * x.to(tl.float32)
            else:
                of_row = tl.sum(d_in * x.to(tl.float32), 1)
                tl.store(d_own_weight + r * rows.to(tl.int64) + row, of_row, mask=row < real)
            tl.store(dh + here, d_in.to(kind), mask=inside)
    to = share * per_share
    tl.store(d_weight + to + r * C * C + in_cc, g)
    tl.store(d_bias + to + r * C + c, tl.sum(b, 0))
    if FIRST and OWN == 1:
        tl.store(d_own_weight + to + r, tl.sum(tl.sum(g_eps, 0), 0))
    if FIRST and OWN == 3:
        tl.store(d_own_weight + to + r * C * C + in_cc, g_own)


@triton.jit
def _sum_own(
    dh,
    own_weight,
    weight,
    count,
    keep,
    out,
    rows,
    R: tl.constexpr,
    C: tl.constexpr,
    OWN: tl.constexpr,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    TILE: tl.constexpr,
):
    """The gradient of the rows' own states: what all relations pass back, times the factor or through the matrix that
    they went in with. With matrices ``dh`` comes from behind the first map and goes through it here. It is 0 afterwards
    where what the neighbours sent was left out.
    """
    start = tl.program_id(0) * TILE
    real = rows
    if COUNTED:
        real = tl.load(count)
    if start >= real:
        return
    row = start + tl.arange(0, TILE)
    inside = (row < real)[:, None]
    c = tl.arange(0, C)
    transposed = c[None, :] * C + c[:, None]
    place = row.to(tl.int64)[:, None] * C + c[None, :]
    total = tl.zeros([TILE, C], dtype=tl.float32)
    if MASKED:
        left_out = (tl.load(keep + row, mask=row < real, other=0) == 0)[:, None]
    for r in range(R):
        here = r * rows.to(tl.int64) * C + place
        value = tl.load(dh + here, mask=inside, other=0.0)
        if OWN == 3:
            d_in = tl.dot(value, tl.load(weight + r * C * C + transposed), input_precision=PRECISION)
            total = tl.dot(value, tl.load(own_weight + r * C * C + transposed), total, input_precision=PRECISION)
            if MASKED:
                d_in = tl.where(left_out, 0.0, d_in)
            tl.store(dh + here, d_in.to(dh.dtype.element_ty), mask=inside)
        else:
            total += value.to(tl.float32) * _own_factor(own_weight, r, row, rows, real, OWN)
            if MASKED:
                tl.store(dh + here, tl.zeros([TILE, C], dtype=dh.dtype.element_ty), mask=inside & left_out)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def forward(
    own: Tensor,
    neighbours: Tensor,
    own_weight: Tensor,
    weight: Tensor,
    bias: Tensor,
    norm: tuple[Tensor, Tensor] | None,
    count: Tensor | None,
    keep: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The result [relations, rows, channels], and what each linear map gave, [layers, relations, rows, channels].

    Args:
        own: [rows, channels].
        neighbours: [relations, rows, channels].
        own_weight: ε [relations], factors [relations, rows], or matrices [relations, channels, channels] of the type
            of ``neighbours``.
        weight: [layers, relations, channels, channels], of that type, too.
        bias: [layers, relations, channels].
        norm: Scale and shift of the layer norm, [relations, channels].
        count: int32 [1]: only that many rows are there, or ``None`` for all.
        keep: Bool [rows], False where what the neighbours sent is left out, or ``None``.
    """
    layers, relations = weight.shape[:2]
    rows = neighbours.shape[1]
    z = neighbours.new_empty(layers, *neighbours.shape)
    y = torch.empty_like(neighbours)
    scale, shift = (None, None) if norm is None else norm
    launch = tile("MLPs", y)
    with torch.cuda.device_of(y):
        _forward[(relations, triton.cdiv(rows, launch["TILE"]))](
            own,
            neighbours,
            own_weight,
            weight,
            bias,
            scale,
            shift,
            count,
            as_factors(keep),
            z,
            y,
            rows,
            LAYERS=layers,
            NORM=norm is not None,
            FAST=rounded_anyway(weight),
            **_shape(own_weight, weight, count, keep),
            **launch,
        )
    return y, z


def backward(
    own: Tensor,
    neighbours: Tensor,
    own_weight: Tensor,
    weight: Tensor,
    norm: tuple[Tensor, Tensor] | None,
    count: Tensor | None,
    keep: Tensor | None,
    z: Tensor,
    dy: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``own`` and ``neighbours`` (their type), own_weight, weight, bias, scale and shift (float32)."""
    layers, relations, channels, _ = weight.shape
    rows = neighbours.shape[1]
    d_own = torch.empty_like(own)
    factors = torch.empty_like(own_weight, dtype=torch.float32) if own_weight.dim() == 2 else None
    of_own = tuple(own_weight.shape) if factors is None else (0,)  # no sum over rows
    launch = tile("gradient of MLPs", dy)
    shapes = ((layers, relations, channels, channels), (layers, relations, channels), of_own)
    whole, (d_weight, d_bias, d_own_weight) = partial_sums(dy, launch["SHARES"], *shapes)
    shape = _shape(own_weight, weight, count, keep)
    dh, d_scale, d_shift = norm_gelu.backward(z[-1], norm, count, dy)
    with torch.cuda.device_of(dh):
        for layer in reversed(range(layers)):
            _backward[(relations, launch["SHARES"])](
                own,
                neighbours,
                own_weight,
                weight[layer],
                count,
                as_factors(keep),
                z[max(layer - 1, 0)],
                dh,
                d_own_weight if factors is None else factors,
                d_weight[:, layer],
                d_bias[:, layer],
                rows,
                whole.shape[1],
                FIRST=layer == 0,
                FAST=rounded_anyway(weight),
                **shape,
                **launch,
            )
        wide = 64
        _sum_own[(triton.cdiv(rows, wide),)](
            dh, own_weight, weight[0], count, as_factors(keep), d_own, rows, TILE=wide, num_stages=2, **shape
        )
    d_weight, d_bias, d_own_weight = apart(parts_of(whole.sum(0), *shapes))
    return d_own, dh, d_own_weight if factors is None else factors, d_weight, d_bias, d_scale, d_shift


def _shape(own_weight: Tensor, weight: Tensor, count: Tensor | None, keep: Tensor | None) -> dict[str, Any]:
    _, relations, channels, _ = weight.shape
    return {
        "R": relations,
        "C": channels,
        "OWN": own_weight.dim(),
        "COUNTED": count is not None,
        "MASKED": keep is not None,
        "PRECISION": "ieee" if weight.dtype == torch.float32 else "tf32",
    }
