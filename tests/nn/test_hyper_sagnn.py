"""Hyper-SAGNN, batched, against one sample after another."""

from __future__ import annotations

import math

import pytest
import torch
from model_cases import NUM_GENES, assert_same, assert_same_gradients, batch_of, gradients
from torch import Tensor

import knockgraph as kg
from knockgraph.nn.hyper_sagnn import HyperSAGNN

CHANNELS = 8
SIZES = [[4, 2, 9], [], [5], [1, 0], [3, 6, 8, 10, 11, 12, 13], [], [13]]


def one_sample(model: HyperSAGNN, x: Tensor) -> Tensor:
    """The formula, gene by gene."""
    if len(x) == 0:
        nothing = x.sum() + sum(p.sum() for p in model.parameters())
        return torch.zeros(model.score.out_features, dtype=x.dtype) + 0 * nothing
    dynamic = x
    size = x.shape[1] // model.heads
    for layer, (qkv, out) in enumerate(zip(model.qkv, model.out, strict=True)):
        q, k, v = qkv(dynamic).chunk(3, 1)
        rows = []
        for i in range(len(x)):
            others = [j for j in range(len(x)) if j != i]
            if not others:
                rows.append(torch.zeros_like(x[i]) + 0 * out(v[i]))
                continue
            mixed = []
            for h in range(model.heads):
                cut = slice(h * size, (h + 1) * size)
                logits = torch.stack([q[i, cut] @ k[j, cut] / math.sqrt(size) for j in others])
                mixed.append(sum(w * v[j, cut] for w, j in zip(logits.softmax(0), others, strict=True)))
            rows.append(out(torch.cat(mixed)))
        dynamic = dynamic + model.rezero[layer] * torch.stack(rows)
    return model.score((dynamic - model.static(x)) ** 2).mean(0)


def make(outputs: int = 1, **options: int | None) -> HyperSAGNN:
    torch.manual_seed(0)
    model = HyperSAGNN(CHANNELS, heads=2, outputs=outputs, **options).double()
    torch.nn.init.normal_(model.rezero)
    return model


def features() -> Tensor:
    return torch.randn(NUM_GENES, CHANNELS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def compare(model: HyperSAGNN, genotypes: list[list[int]]) -> None:
    x, other = features().requires_grad_(), features().requires_grad_()
    weight = torch.arange(1.0, len(genotypes) + 1, dtype=torch.float64).unsqueeze(1)
    y = model(x, batch_of(genotypes))
    (weight * y).sum().backward()
    mine = gradients(model)
    model.zero_grad(set_to_none=True)
    expected = torch.stack([one_sample(model, other[genes]) for genes in genotypes])
    (weight * expected).sum().backward()
    assert_same(y, expected, 1e-12)
    assert x.grad is not None
    assert other.grad is not None
    assert_same(x.grad, other.grad, 1e-12)
    assert_same_gradients(mine, gradients(model), 1e-12)


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7])
def test_equal_sizes_follow_the_formula(size: int, outputs: int) -> None:
    compare(make(outputs), [list(range(start, start + size)) for start in (0, 4, 7)])


@pytest.mark.parametrize("most", [None, 7, 9])
def test_different_sizes_follow_the_formula(most: int | None) -> None:
    compare(make(most_deletions=most), SIZES)


@pytest.mark.parametrize("genotypes", [SIZES, [[]], [[4]], [[0, 1]], [[], []]])
@pytest.mark.parametrize("most", [None, 7])
def test_layouts_of_a_device_follow_the_formula(
    genotypes: list[list[int]], most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = sum(map(len, genotypes))
    width = None if most is None else min(most, total)
    monkeypatch.setattr(HyperSAGNN, "_width", lambda self, batch: width)
    compare(make(most_deletions=most), genotypes)


def test_one_gene_gets_nothing_from_attention_and_no_gene_scores_zero() -> None:
    model = make()
    x = features()
    y = model(x, batch_of([[5], []]))
    assert_same(y[0], model.score((x[5] - model.static(x[5])) ** 2), 1e-12)
    assert y[1].tolist() == [0.0]


def test_the_order_of_the_genes_and_the_other_samples_do_not_matter() -> None:
    model, x = make(), features()
    y = model(x, batch_of([[4, 2, 9], [1, 0]]))
    assert_same(model(x, batch_of([[9, 4, 2], [3, 6, 8, 10, 11]]))[0], y[0], 1e-12)
    assert_same(model(x, batch_of([[0, 1]]))[0], y[1], 1e-12)


@pytest.mark.parametrize("dense", [False, True])
def test_a_batch_without_samples_still_reaches_every_parameter(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    if dense:
        monkeypatch.setattr(HyperSAGNN, "_width", lambda self, batch: None)
    y = model(features(), batch_of([]))
    assert y.shape == (0, 1)
    y.sum().backward()
    assert all(bool((g == 0).all()) for g in gradients(model).values())


def test_too_many_deletions_are_refused_on_the_host_and_nan_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(most_deletions=2)
    with pytest.raises(kg.PerturbationError, match=r"sample 1 deletes 3 genes, .* at most 2; raise its most_deletions"):
        model(features(), batch_of([[1], [2, 3, 4]]))
    monkeypatch.setattr(HyperSAGNN, "_width", lambda self, batch: 2)
    y = model(features(), batch_of([[1], [2, 3, 4], [5, 6]]))
    assert y.isnan().flatten().tolist() == [False, True, False]
    assert_same(y[2], one_sample(model, features()[[5, 6]]), 1e-12)


def test_bf16_autocast() -> None:
    model = make().float()
    x = features().float()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x, batch_of(SIZES))
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, model(x, batch_of(SIZES)), rtol=0.05, atol=0.05)


def test_wrong_options() -> None:
    with pytest.raises(kg.ModelError, match="6 channels cannot be divided among 4 heads"):
        HyperSAGNN(6)
    with pytest.raises(kg.ModelError, match="most_deletions=0"):
        HyperSAGNN(8, most_deletions=0)
    assert "most_deletions=None" in repr(HyperSAGNN(8))
