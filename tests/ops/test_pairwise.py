"""The fused pairwise aggregation against the formula, forward and gradient."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor, nn

from knockgraph.errors import StrategyError
from knockgraph.ops import tiles
from knockgraph.ops.pairwise import mix_pairs, pair_tables, pairs_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
# The interpreter multiplies matrices of bfloat16 bit patterns.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def operands(relations: int, rows: int, channels: int, hidden: int, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    pairs = len(pairs_of(relations))
    shapes = [
        (relations, rows, channels),
        (pairs, channels, hidden),
        (pairs, channels, hidden),
        (pairs, 1, hidden),
        (pairs, hidden, channels),
        (pairs, 1, channels),
        (channels, hidden),
        (hidden,),
        (hidden,),
    ]
    return [0.4 * torch.randn(*shape, generator=g).to(DEVICE) for shape in shapes]


def slow(h: Tensor, weights: list[Tensor]) -> Tensor:
    """Row by row and pair by pair, with a concatenation."""
    first, second, bias_in, out, bias_out, scorer_in, scorer_bias, scorer_out = weights
    rows = []
    for n in range(h.shape[1]):
        mixed = []
        for p, (i, j) in enumerate(pairs_of(h.shape[0])):
            both = torch.cat([h[i, n], h[j, n]])
            t = nn.functional.gelu(both @ torch.cat([first[p], second[p]]) + bias_in[p, 0])
            mixed.append(t @ out[p] + bias_out[p, 0])
        mixed.append(h[:, n].mean(0))
        o = torch.stack(mixed)
        share = (nn.functional.gelu(o @ scorer_in + scorer_bias) @ scorer_out).softmax(0)
        rows.append(share @ o)
    return torch.stack(rows)


def run(values: list[Tensor], dy: Tensor, backend: str | None, rows: int, count: Tensor | None = None) -> list[Tensor]:
    """The result and all gradients; with ``backend=None`` those of the slow form."""
    h, *weights = (v.detach().clone().requires_grad_() for v in values)
    tables = tuple(t.to(h.device) for t in pair_tables(h.shape[0]))
    fast = None if backend is None else mix_pairs(h, tuple(weights), tables, count, backend)  # type: ignore[arg-type]
    y = slow(h, weights) if fast is None else fast
    (y[:rows] * dy[:rows].to(y.dtype)).sum().backward()
    gradients = [v.grad for v in (h, *weights)]
    assert all(g is not None for g in gradients)
    return [y[:rows].detach(), gradients[0][:, :rows], *gradients[1:]]  # type: ignore[index, list-item]


def compare(found: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = (a.double() - b.double()).norm() / b.double().norm()
        assert error <= tolerance, (number, error)


def test_plain_equals_the_slow_form() -> None:
    values = [v.double().cpu() for v in operands(4, 7, 6, 5)]
    dy = torch.randn(7, 6, dtype=torch.float64)
    compare(run(values, dy, "torch", 7), run(values, dy, None, 7), 1e-12)


@needs_triton
@pytest.mark.parametrize(
    ("relations", "rows", "channels", "hidden"), [(1, 1, 16, 16), (3, 70, 16, 32), (2, 130, 32, 16)]
)
def test_fused_equals_plain(relations: int, rows: int, channels: int, hidden: int) -> None:
    values = operands(relations, rows, channels, hidden)
    dy = torch.randn(rows, channels, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch", rows)
    compare(run(values, dy, "triton", rows), wanted, 1e-5)


@needs_triton
def test_fused_half() -> None:
    values = operands(3, 70, 32, 16)
    values[0] = values[0].to(HALF)
    dy = torch.randn(70, 32, device=DEVICE)
    wanted = run([v.double() for v in values], dy, "torch", 70)
    compare(run(values, dy, "triton", 70), wanted, 0.02)


@needs_triton
def test_autocast_does_not_round_the_gradients() -> None:
    """A recorded model goes back while autocast is on."""
    h, *weights = (v.detach().clone().requires_grad_() for v in operands(2, 40, 16, 16))
    tables = tuple(t.to(DEVICE) for t in pair_tables(2))
    dy = torch.randn(40, 16, device=DEVICE)
    found = []
    for on in (False, True):
        y = mix_pairs(h, tuple(weights), tables, None, "triton")  # type: ignore[arg-type]
        with torch.autocast(torch.device(DEVICE).type, torch.bfloat16, enabled=on):
            found.append(torch.autograd.grad(y, [h, *weights], dy))
    assert all(map(torch.equal, *found))


@needs_triton
def test_rows_that_are_not_there() -> None:
    values = operands(2, 200, 16, 16)
    values[0][:, 150:] = float("nan")
    dy = torch.randn(200, 16, device=DEVICE)
    wanted = run([values[0][:, :150].double(), *(v.double() for v in values[1:])], dy, "torch", 150)
    h, *weights = (v.detach().clone().requires_grad_() for v in values)
    tables = tuple(t.to(DEVICE) for t in pair_tables(2))
    count = torch.tensor([150], dtype=torch.int32, device=DEVICE)
    y = mix_pairs(h, tuple(weights), tables, count, "triton")  # type: ignore[arg-type]
    d = torch.full_like(y, float("nan"))
    d[:150] = dy[:150]
    y.backward(d)
    assert h.grad is not None
    found = [y[:150], h.grad[:, :150], *(w.grad for w in weights)]
    compare(found, wanted, 1e-5)  # type: ignore[arg-type]


@needs_triton
def test_how_many_gelus_changes_no_bit() -> None:
    values = operands(2, 70, 16, 32)
    dy = torch.randn(70, 16, device=DEVICE)
    count = torch.tensor([50], dtype=torch.int32, device=DEVICE)
    found = []
    for gelus in (2, 1):
        with tiles.trying({"gradient of pairs": {**tiles.tile("gradient of pairs", dy), "GELUS": gelus}}):
            found.append(run(values, dy, "triton", 50, count))
    assert DEVICE == "cuda" or all(map(torch.equal, *found))
    compare(*found, 1e-5)


@needs_triton
def test_equal_bits_twice() -> None:
    values = operands(3, 100, 16, 16)
    dy = torch.randn(100, 16, device=DEVICE)
    for a, b in zip(run(values, dy, "triton", 100), run(values, dy, "triton", 100), strict=True):
        assert torch.equal(a, b)


@needs_triton
def test_no_gradient_keeps_nothing() -> None:
    h, *weights = operands(2, 20, 16, 16)
    tables = tuple(t.to(DEVICE) for t in pair_tables(2))
    with torch.no_grad():
        y = mix_pairs(h, tuple(weights), tables, backend="triton")  # type: ignore[arg-type]
    compare([y], [mix_pairs(h, tuple(weights), tables, backend="torch")], 1e-5)  # type: ignore[arg-type]


def test_refuses_what_it_cannot_do() -> None:
    h, *weights = operands(2, 5, 24, 16)
    tables = tuple(t.to(DEVICE) for t in pair_tables(2))
    with pytest.raises(StrategyError, match="take widths 16, 32 and 64 and no float64"):
        mix_pairs(h, tuple(weights), tables, backend="triton")  # type: ignore[arg-type]
    with pytest.raises(StrategyError, match="choose auto, triton or torch"):
        mix_pairs(h, tuple(weights), tables, backend="cusparse")  # type: ignore[arg-type]
    assert mix_pairs(h, tuple(weights), tables).shape == (5, 24)  # type: ignore[arg-type]
