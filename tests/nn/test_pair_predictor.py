"""The pair predictor, batched, against one sample and one pair after another."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch
from model_cases import NUM_GENES, assert_same, assert_same_gradients, batch_of, gradients
from torch import Tensor

from knockgraph.nn.pair_predictor import PairPredictor
from knockgraph.ops import pair_terms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
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


@needs_triton
@pytest.mark.parametrize("sizes", [SIZES, [[0, 1]], [[], []], [[4]], [[3, 5], [5, 3], [3, 4], [7, 8, 3]]])
def test_fused_terms(sizes: list[list[int]]) -> None:
    """Float32 kernels against the formula in float64; the states lie apart, as those of one column do."""
    torch.manual_seed(0)
    batch = batch_of(sizes).to(DEVICE)
    whole = torch.randn(NUM_GENES, 3, 16, device=DEVICE)
    upstream = torch.randn(len(sizes), 48, device=DEVICE)
    where = batch.perturbation_indices, batch.perturbation_indices_ptr, batch.perturbation_indices_batch
    found = []
    for backend, kind in (("triton", torch.float32), ("torch", torch.float64)):
        x = whole.detach().clone().to(kind).requires_grad_()
        y = pair_terms(x[:, 1], *where, backend=backend)
        y.backward(upstream.to(kind))
        assert x.grad is not None
        found.append((y.detach().double(), x.grad.double()))
    for ours, wanted in zip(*found, strict=True):
        assert (ours - wanted).abs().max() <= 2e-5


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
