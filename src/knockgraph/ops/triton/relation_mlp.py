"""Kernels of the relations' MLPs: a tile of rows goes through all linear maps, norm and activation without leaving.

The forward pass keeps the values before each activation for the backward pass, which goes through one or two linear
maps at a time (``MAPS``), in place: with all four in one kernel the gradients of the weights do not fit the registers
(docs/speed.md). Between two maps of one launch the gradient is rounded as it is between two launches, so the number
changes no result. Sums over rows are taken per share of the rows and then over the shares, always in the same order:
equal inputs give equal bits.

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
    scale,
    shift,
    count,
    keep,
    z,
    z_between,
    z_before,
    dy,
    dh,
    d_own_weight,
    d_weight,
    d_bias,
    d_scale,
    d_shift,
    rows,
    per_share,
    R: tl.constexpr,
    C: tl.constexpr,
    OWN: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
    NORM: tl.constexpr,
    COUNTED: tl.constexpr,
    MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
    FAST: tl.constexpr,
    SHARES: tl.constexpr,
    TILE: tl.constexpr,
    MAPS: tl.constexpr,
    GELUS: tl.constexpr,
):
    """Through ``MAPS`` linear maps, one or two, from ``dy`` to ``dh``, which may be the same memory; the last of all
    starts with the norm. With two matrices the first map is left to ``_sum_own``, which passes the same gradient
    through both.

    The maps gave ``z_between`` and ``z``, from ``z_before``. Each share's sums lie ``per_share`` numbers after those of
    the share before.
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
    b = tl.zeros([C], dtype=tl.float32)
    if MAPS == 2:
        w_outer = tl.load(weight + (R + r) * C * C + in_cc)
        g_outer = tl.zeros([C, C], dtype=tl.float32)
        b_outer = tl.zeros([C], dtype=tl.float32)
    g_scale = tl.zeros([C], dtype=tl.float32)
    g_shift = tl.zeros([C], dtype=tl.float32)
    g_eps = tl.zeros([C], dtype=tl.float32)
    g_own = tl.zeros([C, C], dtype=tl.float32)
    for start in range(share * TILE, real, SHARES * TILE):
        row = start + tl.arange(0, TILE)
        inside = (row < real)[:, None]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        here = r * rows.to(tl.int64) * C + place
        dv = tl.load(dy + here, mask=inside, other=0.0).to(tl.float32)
        if LAST:
            v = tl.load(z + here, mask=inside, other=0.0).to(tl.float32)
            if NORM:
                gamma = tl.load(scale + r * C + c).to(tl.float32)[None, :]
                hat, narrow = normalised(v, C)
                _, slope = gelu_and_slope(hat * gamma + tl.load(shift + r * C + c).to(tl.float32)[None, :], FAST)
                dv = dv * slope
                g_scale += tl.sum(dv * hat, 0)
                g_shift += tl.sum(dv, 0)
                dv = dv * gamma
                along = tl.sum(dv * hat, 1) / C
                dv = (dv - (tl.sum(dv, 1) / C)[:, None] - hat * along[:, None]) * narrow[:, None]
            else:
                _, slope = gelu_and_slope(v, FAST)
                dv = dv * slope
        if MAPS == 2:
            b_outer += tl.sum(dv, 0)
            v = tl.load(z_between + here, mask=inside, other=0.0).to(tl.float32)
            dv = dv.to(kind)
            d_in = tl.dot(dv, tl.trans(w_outer), input_precision=PRECISION)
            h, slope = gelu_and_slope(beside(v, d_in, inside), FAST)
            g_outer = tl.dot(tl.trans(h.to(kind)), dv, g_outer, input_precision=PRECISION)
            dv = (d_in * slope).to(kind).to(tl.float32)
        # Before the sum over rows, whose barriers no load can pass.
        if FIRST:
            x = tl.load(own + place, mask=inside, other=0.0)
            h = tl.load(neighbours + here, mask=inside, other=0.0)
            if MASKED:
                h = tl.where((tl.load(keep + row, mask=row < real, other=0) != 0)[:, None], h, 0.0)
        else:
            before = tl.load(z_before + here, mask=inside, other=0.0)
        b += tl.sum(dv, 0)
        if FIRST:
            if OWN == 2:
                factor = _own_factor(own_weight, r, row, rows, real, OWN)
            if OWN < 3:
                h = x.to(tl.float32) * factor + h.to(tl.float32)
        else:
            v = before.to(tl.float32)
            if GELUS == 1:
                d_in = tl.dot(dv.to(kind), tl.trans(w), input_precision=PRECISION)
                v = beside(v, d_in, inside)
            h, slope = gelu_and_slope(v, FAST)
        dv = dv.to(kind)
        g = tl.dot(tl.trans(h.to(kind)), dv, g, input_precision=PRECISION)
        if FIRST and OWN == 3:
            g_own = tl.dot(tl.trans(x.to(kind)), dv, g_own, input_precision=PRECISION)
            tl.store(dh + here, dv, mask=inside)
        else:
            if FIRST or GELUS == 2:
                d_in = tl.dot(dv, tl.trans(w), input_precision=PRECISION)
            if not FIRST:
                d_in = d_in * slope
            elif OWN == 1:
                g_eps += tl.sum(d_in * x.to(tl.float32), 0)
            else:
                of_row = tl.sum(d_in * x.to(tl.float32), 1)
                tl.store(d_own_weight + r * rows.to(tl.int64) + row, of_row, mask=row < real)
            tl.store(dh + here, d_in.to(kind), mask=inside)
    to = share * per_share
    tl.store(d_weight + to + r * C * C + in_cc, g)
    tl.store(d_bias + to + r * C + c, b)
    if MAPS == 2:
        tl.store(d_weight + to + (R + r) * C * C + in_cc, g_outer)
        tl.store(d_bias + to + (R + r) * C + c, b_outer)
    if FIRST and OWN == 1:
        tl.store(d_own_weight + to + r, tl.sum(g_eps, 0))
    if FIRST and OWN == 3:
        tl.store(d_own_weight + to + r * C * C + in_cc, g_own)
    if LAST and NORM:
        tl.store(d_scale + to + r * C + c, g_scale)
        tl.store(d_shift + to + r * C + c, g_shift)


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
            **_shape(own_weight, weight, norm, count, keep),
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
    dh, d_own = torch.empty_like(neighbours), torch.empty_like(own)
    weights, vectors = (relations, channels, channels), (relations, channels)
    factors = torch.empty_like(own_weight, dtype=torch.float32) if own_weight.dim() == 2 else None
    of_own = tuple(own_weight.shape) if factors is None else (0,)  # no sum over rows
    rest, end = tile("gradient of MLPs", dh), tile("gradient of last map", dh)
    inner = layers - min(end["MAPS"], layers)  # maps before those that the norm goes with
    of_end, (end_weight, end_bias, d_scale, d_shift, end_own) = partial_sums(
        dh, end["SHARES"], (layers - inner, *weights), (layers - inner, *vectors), vectors, vectors, of_own
    )
    of_rest, (rest_weight, rest_bias, rest_own) = partial_sums(
        dh, rest["SHARES"], (inner, *weights), (inner, *vectors), of_own
    )
    scale, shift = (None, None) if norm is None else norm
    shape = _shape(own_weight, weight, norm, count, keep)
    del shape["LAYERS"]
    with torch.cuda.device_of(dh):
        for first, behind in _launches(layers, inner, rest["MAPS"]):
            last = behind == layers
            config = end if last else rest
            _backward[(relations, config["SHARES"])](
                own,
                neighbours,
                own_weight,
                weight[first],
                scale,
                shift,
                count,
                as_factors(keep),
                z[behind - 1],
                z[first],
                z[max(first - 1, 0)],
                dy if last else dh,
                dh,
                (end_own if last else rest_own) if factors is None else factors,
                end_weight if last else rest_weight[:, first],
                end_bias if last else rest_bias[:, first],
                d_scale,
                d_shift,
                rows,
                (of_end if last else of_rest).shape[1],
                FIRST=first == 0,
                LAST=last,
                **shape,
                **{**config, "MAPS": behind - first},
            )
        wide = 64
        _sum_own[(triton.cdiv(rows, wide),)](
            dh,
            own_weight,
            weight[0],
            count,
            as_factors(keep),
            d_own,
            rows,
            R=relations,
            C=channels,
            OWN=shape["OWN"],
            COUNTED=shape["COUNTED"],
            MASKED=shape["MASKED"],
            PRECISION=shape["PRECISION"],
            TILE=wide,
            num_stages=2,
        )
    of_end_maps = parts_of(
        of_end.sum(0), (layers - inner, *weights), (layers - inner, *vectors), vectors, vectors, of_own
    )
    of_rest_maps = parts_of(of_rest.sum(0), (inner, *weights), (inner, *vectors), of_own)
    d_weight, d_bias = (d_scale.new_empty(layers, *shape) for shape in (weights, vectors))
    d_scale, d_shift, d_own_weight = (d_scale.new_empty(shape) for shape in (vectors, vectors, of_own))
    apart(
        [*of_end_maps[:4], *of_rest_maps[:2], (of_rest_maps if inner else of_end_maps)[-1]],
        [d_weight[inner:], d_bias[inner:], d_scale, d_shift, d_weight[:inner], d_bias[:inner], d_own_weight],
    )
    norm_grads = (None, None) if norm is None else (d_scale, d_shift)
    return d_own, dh, d_own_weight if factors is None else factors, d_weight, d_bias, *norm_grads


def _launches(layers: int, inner: int, maps: int) -> list[tuple[int, int]]:
    """From which map to which (not included) each launch goes back: the last ones, then the others, ``maps`` at a time.

    >>> _launches(5, 4, 2)
    [(4, 5), (2, 4), (0, 2)]
    >>> _launches(4, 3, 2)
    [(3, 4), (1, 3), (0, 1)]
    """
    return [(inner, layers), *((max(behind - maps, 0), behind) for behind in range(inner, 0, -maps))]


def _shape(
    own_weight: Tensor, weight: Tensor, norm: object, count: Tensor | None, keep: Tensor | None
) -> dict[str, Any]:
    layers, relations, channels, _ = weight.shape
    return {
        "R": relations,
        "C": channels,
        "LAYERS": layers,
        "OWN": own_weight.dim(),
        "NORM": norm is not None,
        "COUNTED": count is not None,
        "MASKED": keep is not None,
        "FAST": rounded_anyway(weight),
        "PRECISION": "ieee" if weight.dtype == torch.float32 else "tf32",
    }
