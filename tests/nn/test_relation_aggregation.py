"""Relation aggregation against the plain formulas."""

from __future__ import annotations

import math

import pytest
import torch
from model_cases import assert_same, assert_same_gradients, gradients
from torch import Tensor, nn

import knockgraph as kg
from knockgraph.nn.relation_aggregation import (
    AGGREGATIONS,
    AttentionAggregation,
    PairwiseAggregation,
    relation_aggregation,
)

CHANNELS, ROWS = 8, 11


def states(relations: int, rows: int = ROWS) -> Tensor:
    shape = (relations, rows, CHANNELS)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(relations))


def randomised(module: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.double()


def plain_pairwise(module: PairwiseAggregation, h: Tensor) -> Tensor:
    """One pair after another, with concatenation."""
    results = []
    pairs = [(i, j) for i in range(len(h)) for j in range(i, len(h))]
    for p, (i, j) in enumerate(pairs):
        weight = torch.cat([module.weight_first[p], module.weight_second[p]])
        hidden = nn.functional.gelu(torch.cat([h[i], h[j]], 1) @ weight + module.bias_in[p])
        results.append(hidden @ module.weight_out[p] + module.bias_out[p])
    o = torch.stack([*results, h.mean(0)])
    return module.norm((module.scorer(o).softmax(0) * o).sum(0))


def plain_attention(module: AttentionAggregation, h: Tensor) -> Tensor:
    q, k, v = module.qkv(h).chunk(3, -1)
    size = h.shape[2] // module.heads
    mixed = []
    for head in range(module.heads):
        cut = slice(head * size, (head + 1) * size)
        weight = torch.einsum("imd,jmd->mij", q[..., cut], k[..., cut]) / math.sqrt(size)
        mixed.append(torch.einsum("mij,jmd->imd", weight.softmax(-1), v[..., cut]))
    return module.norm(h.mean(0) + module.out(torch.cat(mixed, -1)).mean(0))


def compare(module: nn.Module, plain: Tensor, h: Tensor, y: Tensor, other: Tensor) -> None:
    weight = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    (weight * y).sum().backward()
    mine = gradients(module)
    module.zero_grad(set_to_none=True)
    (weight * plain).sum().backward()
    assert_same(y, plain, 1e-12)
    assert h.grad is not None
    assert other.grad is not None
    assert_same(h.grad, other.grad, 1e-11)
    assert_same_gradients(mine, gradients(module), 1e-11)


@pytest.mark.parametrize("relations", [1, 2, 3, 9])
@pytest.mark.parametrize("rows_at_once", [None, 1, 4, 11, 100])
def test_pairwise_follows_the_formula(relations: int, rows_at_once: int | None) -> None:
    module = randomised(PairwiseAggregation(relations, CHANNELS, hidden=5, rows_at_once=rows_at_once))
    assert isinstance(module, PairwiseAggregation)
    assert len(module.weight_first) == relations * (relations + 1) // 2
    h, other = states(relations).requires_grad_(), states(relations).requires_grad_()
    compare(module, plain_pairwise(module, other), h, module(h), other)
    with torch.no_grad():
        assert_same(module(h), plain_pairwise(module, h), 1e-12)


@pytest.mark.parametrize("relations", [1, 2, 5])
def test_attention_follows_the_formula(relations: int) -> None:
    module = randomised(AttentionAggregation(CHANNELS, heads=2))
    assert isinstance(module, AttentionAggregation)
    h, other = states(relations).requires_grad_(), states(relations).requires_grad_()
    compare(module, plain_attention(module, other), h, module(h), other)


def test_sum_and_mean() -> None:
    h = states(3)
    assert_same(relation_aggregation("sum", 3, CHANNELS)(h), h[0] + h[1] + h[2], 1e-14)
    assert_same(relation_aggregation("mean", 3, CHANNELS)(h), (h[0] + h[1] + h[2]) / 3, 1e-14)


@pytest.mark.parametrize("name", AGGREGATIONS)
@pytest.mark.parametrize("rows_at_once", [None, 4])
def test_no_rows_still_reach_every_parameter(name: str, rows_at_once: int | None) -> None:
    module = relation_aggregation(name, 3, CHANNELS, rows_at_once=rows_at_once).double()
    y = module(states(3, 0))
    assert y.shape == (0, CHANNELS)
    if any(True for _ in module.parameters()):
        y.sum().backward()
        gradients(module)


def test_a_block_leaves_nothing_of_its_pairs_behind() -> None:
    kept: dict[int | None, int] = {}
    for rows_at_once in (None, 8):
        module = PairwiseAggregation(9, CHANNELS, rows_at_once=rows_at_once)
        sizes: list[int] = []

        def note(t: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(t.numel())
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            module(torch.randn(9, 64, CHANNELS, requires_grad=True))
        kept[rows_at_once] = sum(sizes)
    assert kept[8] < kept[None] / 10


def test_the_reference_has_45_pairs_and_an_identity() -> None:
    module = PairwiseAggregation(9, 64)
    assert module.weight_first.shape == module.weight_second.shape == (45, 64, 32)
    assert module.weight_out.shape == (45, 32, 64)
    assert "45 pairs" in repr(module)
    assert not [name for name in module.state_dict() if "slot" in name]


def test_wrong_options() -> None:
    with pytest.raises(kg.ModelError, match="no relation aggregation 'max'; use one of sum, mean"):
        relation_aggregation("max", 3, CHANNELS)
    with pytest.raises(kg.ModelError, match="8 channels cannot be divided among 3 heads"):
        relation_aggregation("attention", 3, CHANNELS, heads=3)
    with pytest.raises(kg.ModelError, match="rows_at_once=0"):
        relation_aggregation("pairwise", 3, CHANNELS, rows_at_once=0)
