"""The pair predictor, batched, against one sample and one pair after another."""

from __future__ import annotations

import itertools

import torch
from model_cases import NUM_GENES, assert_same, assert_same_gradients, batch_of, gradients
from torch import Tensor

from knockgraph.nn.pair_predictor import PairPredictor

CHANNELS = 6
SIZES = [[4, 2, 9], [], [5], [1, 0], [3, 6, 8, 10, 11, 12, 13], [13]]


def one_sample(model: PairPredictor, x: Tensor) -> Tensor:
    """The formula, pair by pair."""
    zero = x.new_zeros(CHANNELS)
    pairs = list(itertools.combinations(x, 2))
    common = sum((a * b for a, b in pairs), zero)
    apart = sum(((a - b) ** 2 for a, b in pairs), zero)
    y: Tensor = model.mlp(torch.cat([sum(x, zero), common, apart]))
    return y


def test_batched_equals_one_at_a_time() -> None:
    torch.manual_seed(0)
    model = PairPredictor(CHANNELS, outputs=2).double()
    x = torch.randn(NUM_GENES, CHANNELS, dtype=torch.float64, requires_grad=True)
    copy = x.detach().clone().requires_grad_()
    y = model(x, batch_of(SIZES))
    upstream = torch.randn_like(y)
    expected = torch.stack([one_sample(model, copy[genes]) for genes in SIZES])
    assert_same(y, expected)
    y.backward(upstream)
    found = gradients(model)
    model.zero_grad(set_to_none=True)
    expected.backward(upstream)
    assert_same_gradients(found, gradients(model))
    assert x.grad is not None
    assert copy.grad is not None
    assert_same(x.grad, copy.grad)


def test_the_order_of_the_genes_does_not_matter() -> None:
    torch.manual_seed(0)
    model = PairPredictor(CHANNELS).double()
    x = torch.randn(NUM_GENES, CHANNELS, dtype=torch.float64)
    assert_same(model(x, batch_of([[4, 2, 9]])), model(x, batch_of([[9, 4, 2]])))


def test_dropout_only_in_training() -> None:
    torch.manual_seed(0)
    model = PairPredictor(CHANNELS, dropout=0.5)
    x = torch.randn(NUM_GENES, CHANNELS)
    assert not torch.equal(model(x, batch_of(SIZES)), model(x, batch_of(SIZES)))
    model.eval()
    assert torch.equal(model(x, batch_of(SIZES)), model(x, batch_of(SIZES)))
