"""A small MLP for each pair of relations, mixed by a softmax over the pairs: one fused operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.ops.backends.choice import fused
from knockgraph.ops.partial_sums import parts_of
from knockgraph.ops.precision import at_least_float32, autocast_input

_SCHEMA = (
    "Tensor h, Tensor first, Tensor second, Tensor bias_in, Tensor out, Tensor bias_out, Tensor scorer_in, "
    "Tensor scorer_bias, Tensor scorer_out, Tensor? count, Tensor pairs, Tensor slots, bool keep"
)


def pairs_of(relations: int) -> list[tuple[int, int]]:
    """All pairs ``i ≤ j``, in the order in which weights are kept."""
    return [(i, j) for i in range(relations) for j in range(i, relations)]


def pair_tables(relations: int) -> tuple[Tensor, Tensor]:
    """The two relations of each pair, ``[2, pairs]``, and for each relation where it takes part, ``[R, R + 1]``:
    the number of a pair as the first of the two, that plus the number of pairs as the second. Both int32.
    """
    pairs = pairs_of(relations)
    slots = [
        [p + side * len(pairs) for side in (0, 1) for p, pair in enumerate(pairs) if pair[side] == r]
        for r in range(relations)
    ]
    return torch.tensor(pairs, dtype=torch.int32).t().contiguous(), torch.tensor(slots, dtype=torch.int32)


def mix_pairs(
    h: Tensor,
    weights: tuple[Tensor, ...],
    tables: tuple[Tensor, Tensor],
    count: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r"""A small MLP for each pair of relations, weighted by a shared scorer,

    .. math::
        o_{ij} &= V_{ij}\, \mathrm{GELU}\bigl(A_{ij} h_i + B_{ij} h_j + a_{ij}\bigr) + b_{ij} \quad (i \le j), \qquad
        o_0 = \frac1R \sum_r h_r, \\
        y &= \sum_p \operatorname{softmax}_p\bigl(s(o_p)\bigr)\, o_p, \qquad
        s(o) = u^\top \mathrm{GELU}(S o + c).

    The fused kernels keep no tensor of the size pairs × rows × channels, forward or backward, and equal inputs give
    equal bits. They need CUDA, Triton, and widths that are powers of two up to 64 channels.

    Shapes:
        h ``[relations, rows, channels]`` -> ``[rows, channels]``, float32 (float64 for float64).

    Args:
        h: The states. Under autocast they are cast as for a matrix product.
        weights: A, B ``[pairs, channels, hidden]``, a ``[pairs, 1, hidden]``, V ``[pairs, hidden, channels]``,
            b ``[pairs, 1, channels]``; S ``[channels, hidden]``, c ``[hidden]``, u ``[hidden]``.
        tables: Of :func:`pair_tables`, on the device of h.
        count: int32 ``[1]``: only the first so many rows are there, the others of the result are undefined.
            ``None``: all.
        backend: ``auto``, ``triton`` or ``torch``.
    """
    h = autocast_input(h)
    # A size of 1 is a constant to Triton; the kernels want a number.
    if fused(backend, h, *weights[0].shape[1:]) and h.shape[1] > 1:
        y: Tensor = _mix_pairs(h.contiguous(), *weights, count, *tables, torch.is_grad_enabled())[0]
        return y
    return _plain(h, weights, tables)


def _plain(h: Tensor, weights: tuple[Tensor, ...], tables: tuple[Tensor, Tensor]) -> Tensor:
    """The formula, batched: every relation is part of R + 1 (pair, side) combinations, so one product with R groups
    makes all the terms A h_i and B h_j, and nothing is concatenated.
    """
    first, second, bias_in, out, bias_out, *scorer = weights
    relations, rows, channels = h.shape
    hidden = first.shape[2]
    weight = torch.cat([first, second])[tables[1].flatten()].to(h.dtype)
    weight = weight.view(relations, relations + 1, channels, hidden).transpose(1, 2).flatten(2)
    # [relations, rows, R + 1, hidden], taken apart without a copy
    parts = torch.bmm(h, weight).view(relations, rows, relations + 1, hidden)
    terms = [iter(of_relation.unbind(1)) for of_relation in parts.unbind(0)]
    pairs = pairs_of(relations)
    # A relation's places are in the order of the pairs: those where it is the first, then those where it is the second.
    one = [next(terms[i]) for i, _ in pairs]
    other = [next(terms[j]) for _, j in pairs]
    t = torch.stack([a + b for a, b in zip(one, other, strict=True)])
    t = nn.functional.gelu(t + bias_in.to(t.dtype))
    o = torch.baddbmm(bias_out.to(t.dtype), t, out.to(t.dtype))
    identity = h.mean(0)
    share = torch.cat([_score(o, *scorer), _score(identity, *scorer).unsqueeze(0)]).softmax(0).unsqueeze(-1)
    return (share[:-1] * o).sum(0) + share[-1] * identity


def _score(o: Tensor, scorer_in: Tensor, scorer_bias: Tensor, scorer_out: Tensor) -> Tensor:
    q = nn.functional.gelu(o @ scorer_in.to(o.dtype) + scorer_bias.to(o.dtype))
    return at_least_float32(q @ scorer_out.to(q.dtype))


@torch.library.custom_op(
    "knockgraph::mix_pairs", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _mix_pairs(h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from knockgraph.ops.triton import pairwise as pairwise_triton

    *weights, count, _, _, keep = rest
    packed = torch.cat([weight.flatten() for weight in weights]).to(h.dtype)  # cast in one go
    return *pairwise_triton.mix_pairs(h, _unpacked(packed, weights), count, keep), packed


@_mix_pairs.register_fake
def _(h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    rows, channels, (pairs, _, hidden) = *h.shape[1:], rest[0].shape
    y = torch.empty(rows, channels, dtype=torch.float32, device=h.device)
    t, mean = h.new_empty(pairs if rest[-1] else 0, rows, hidden), h.new_empty(rows if rest[-1] else 0, channels)
    return y, y.new_empty(rows), t, mean, h.new_empty(sum(weight.numel() for weight in rest[:8]))


@torch.library.custom_op(
    "knockgraph::mix_pairs_grad",
    mutates_args=("t", "mean"),
    schema=f"({_SCHEMA}, Tensor y, Tensor lse, Tensor(a!) t, Tensor(b!) mean, Tensor packed, Tensor dy) -> Tensor[]",
)
def _mix_pairs_grad(h: Tensor, *rest: Any) -> list[Tensor]:
    from knockgraph.ops.triton import pairwise as pairwise_triton

    *weights, count, pairs, slots, _, y, lse, t, mean, packed, dy = rest
    narrow = _unpacked(packed, weights)
    with torch.autocast(h.device.type, enabled=False):  # which would round the gradients of the weights
        found = pairwise_triton.mix_pairs_grad(h, narrow, count, pairs, slots, dy, y, lse, t, mean)
    return [found[0], *(grad.view(w.shape).to(w.dtype) for grad, w in zip(found[1:], weights, strict=True))]


@_mix_pairs_grad.register_fake
def _(h: Tensor, *rest: Any) -> list[Tensor]:
    return [torch.empty_like(h), *(torch.empty_like(w) for w in rest[:8])]


def _unpacked(packed: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    return parts_of(packed, *(tuple(weight.shape) for weight in weights))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:-1], *output)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, *of_kept: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 13
    *inputs, y, lse, t, mean, packed = ctx.saved_tensors
    # What was kept becomes its own gradient; clone() first would be needed to go back through it a second time.
    return (*_mix_pairs_grad(*inputs, True, y, lse, t, mean, packed, dy.contiguous()), None, None, None, None)


_mix_pairs.register_autograd(_backward, setup_context=_setup_context)
