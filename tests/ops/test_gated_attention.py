"""Gated attention against a loop over the destinations of really filtered entries."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from knockgraph import ops
from knockgraph.errors import StrategyError
from knockgraph.ops import reference

SOURCES, DESTINATIONS, BATCH, HEADS, CHANNELS = 9, 6, 3, 2, 3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}


def entries(density: float = 0.4) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    found = (torch.rand(SOURCES, DESTINATIONS, generator=generator) < density).nonzero().t()
    return found[:, torch.randperm(found.shape[1], generator=generator)].contiguous()


def keep(nodes: int, seed: int, share: float = 0.7) -> Tensor:
    return torch.rand(nodes, BATCH, generator=torch.Generator().manual_seed(seed)) < share


MASKS = {
    "both": {"keep_in": keep(SOURCES, 4), "keep_out": keep(DESTINATIONS, 5)},
    "senders": {"keep_in": keep(SOURCES, 4, 0.3)},
    "receivers": {"keep_out": keep(DESTINATIONS, 5)},
    "none": {},
    "nobody": {"keep_in": torch.zeros(SOURCES, BATCH, dtype=torch.bool)},
}


def operands(count: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Gate, source, target, attention, gradient of the result."""
    generator = torch.Generator().manual_seed(1)
    inner = (BATCH, HEADS, CHANNELS)
    shapes = [(count,), (SOURCES, *inner), (DESTINATIONS, *inner), (HEADS, CHANNELS), (DESTINATIONS, *inner)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def run(edges: Tensor, given: list[Tensor], masks: dict[str, Tensor], fast: bool) -> list[Tensor]:
    *leaves, grad = [t.clone() for t in given]
    gate, source, target, attention = (leaf.requires_grad_() for leaf in leaves)
    if fast:
        operator = ops.GatedOperator(edges, SOURCES, DESTINATIONS)
        y = ops.gated_attend(operator, gate, source, target, attention, **masks)
    else:
        y = reference.attend(edges, source, target, attention, gate=gate, **masks)
        y = y + 0 * sum(leaf.sum() for leaf in leaves)  # a gradient exists without any entry
    y.backward(grad)
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def check(edges: Tensor, masks: dict[str, Tensor], dtype: torch.dtype) -> None:
    given = operands(edges.shape[1], dtype)
    expected = run(edges, [t.double() for t in given], masks, fast=False)
    actual = run(edges, given, masks, fast=True)
    for what, a, e in zip(("y", "gate", "source", "target", "attention"), actual, expected, strict=True):
        assert a.dtype == dtype
        error = float((a.double() - e).norm())
        assert error <= TOLERANCE[dtype] * max(float(e.norm()), 1e-6), what


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("masks", MASKS)
def test_against_the_reference(masks: str, dtype: torch.dtype) -> None:
    check(entries(), MASKS[masks], dtype)


def test_without_entries_and_in_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    check(entries(0.0), MASKS["both"], torch.float64)
    monkeypatch.setattr("knockgraph.ops.attention._CPU_COLUMNS", 1)
    monkeypatch.setattr("knockgraph.ops.attention._CPU_ENTRIES", 4)
    for masks in MASKS.values():
        check(entries(), masks, torch.float64)


def test_gates_of_one_are_plain_attention() -> None:
    edges = entries()
    _, source, target, attention, _ = operands(edges.shape[1])
    operator = ops.GatedOperator(edges, SOURCES, DESTINATIONS)
    gate = torch.ones(edges.shape[1], dtype=torch.float64)
    y = ops.gated_attend(operator, gate, source, target, attention, **MASKS["both"])
    assert torch.equal(y, ops.attend(operator.structure, source, target, attention, **MASKS["both"]))


def test_values_of_dead_nodes_reach_nobody() -> None:
    edges, masks = entries(), MASKS["both"]
    clean = run(edges, operands(edges.shape[1]), masks, fast=True)
    dirty = operands(edges.shape[1])
    dirty[1][~masks["keep_in"]] = float("nan")
    dirty[2][~masks["keep_out"]] = float("nan")
    dirty[4][~masks["keep_out"]] = float("inf")
    assert all(torch.equal(a, b) for a, b in zip(clean, run(edges, dirty, masks, fast=True), strict=True))


def test_opcheck() -> None:
    edges = entries()
    operator = ops.GatedOperator(edges, SOURCES, DESTINATIONS)
    table = operator.structure.by_destination
    *states, _ = (t.requires_grad_() for t in operands(edges.shape[1], torch.float32))
    arguments = (table.ptr, table.indices, *states, MASKS["both"]["keep_in"], MASKS["both"]["keep_out"], 0.2)
    torch.library.opcheck(torch.ops.knockgraph.gated_attend, arguments)


def test_refuses() -> None:
    edges = entries()
    gate, source, target, attention, _ = operands(edges.shape[1])
    operator = ops.GatedOperator(edges, SOURCES, DESTINATIONS)
    with pytest.raises(StrategyError, match=r"gate must be floating point \[entries="):
        ops.gated_attend(operator, gate[1:], source, target, attention)
    with pytest.raises(StrategyError, match="target must be"):
        ops.gated_attend(operator, gate, source, source, attention)


@pytest.mark.gpu
def test_cuda() -> None:
    edges = entries()
    given = operands(edges.shape[1])
    masks = {name: mask.cuda() for name, mask in MASKS["both"].items()}
    expected = run(edges, given, MASKS["both"], fast=False)
    *leaves, grad = (t.cuda() for t in given)
    for leaf in leaves:
        leaf.requires_grad_()
    y = ops.gated_attend(ops.GatedOperator(edges, SOURCES, DESTINATIONS).cuda(), *leaves, **masks)
    y.backward(grad)
    for actual, e in zip([y.detach(), *(leaf.grad for leaf in leaves)], expected, strict=True):
        torch.testing.assert_close(actual.cpu(), e, rtol=1e-11, atol=1e-12)
