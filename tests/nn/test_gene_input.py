"""The genes' input: mixtures of embeddings by one feature and by several similarities, against a slow reference."""

from __future__ import annotations

import math

import pytest
import torch
from model_cases import NUM_GENES, cell
from torch import Tensor

from knockgraph.errors import ModelError
from knockgraph.nn.gene_input import GeneInput

KNOWN = torch.arange(NUM_GENES) % 3 > 0


def similarities(tables: int = 3) -> Tensor:
    x = torch.randn(tables, NUM_GENES, 4, generator=torch.Generator().manual_seed(1))
    x = torch.nn.functional.normalize(x, dim=2)
    return x @ x.mT


def made(similar: str | Tensor, **options: float) -> GeneInput:
    torch.manual_seed(0)
    layer = GeneInput(cell(), 5, similar=similar, **options)  # type: ignore[arg-type]
    layer.set_known(KNOWN)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return layer


def slow(layer: GeneInput, borrowing: Tensor) -> Tensor:
    """One gene after another, and for each all known genes but itself."""
    assert layer.embedding is not None
    assert layer.similarity is not None
    weights = layer.sharpness.exp()
    states = []
    for g in range(NUM_GENES):
        u = layer.embedding[g]
        if borrowing[g]:
            total, u = torch.zeros(()).double(), torch.zeros(5).double()
            for h in range(NUM_GENES):
                if KNOWN[h] and h != g:
                    share = math.prod((t * c[g, h]).exp() for t, c in zip(weights, layer.similarity, strict=True))
                    total, u = total + share, u + share * layer.embedding[h]
            u = u / total
        states.append(layer.norm(u + layer.second(torch.nn.functional.gelu(layer.first(u)))))
    return torch.stack(states)


@pytest.mark.parametrize("training", [True, False])
def test_mixtures_by_several_similarities_are_those_of_the_formula(training: bool) -> None:
    layer = made(similarities(), embedding_dropout=0.5).double().train(training)
    torch.manual_seed(3)
    found = layer()
    torch.manual_seed(3)
    dropped = (torch.rand(NUM_GENES) < 0.5) & training
    expected = slow(layer, ~KNOWN | dropped)
    torch.testing.assert_close(found, expected)
    slope = torch.randn_like(found)
    parameters = dict(layer.named_parameters())
    for name, a, b in zip(
        parameters,
        torch.autograd.grad((found * slope).sum(), list(parameters.values())),
        torch.autograd.grad((expected * slope).sum(), list(parameters.values())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")
        assert bool(a.any()), name


@pytest.mark.parametrize("similar", ["length", similarities()], ids=["one", "several"])
def test_a_hidden_gene_does_not_see_its_own_embedding(similar: str | Tensor) -> None:
    layer = made(similar, embedding_dropout=0.5)
    assert layer.embedding is not None
    before = {}
    for training in (True, False):
        torch.manual_seed(4)
        before[training] = layer.train(training)().detach()
    torch.manual_seed(4)
    dropped = torch.rand(NUM_GENES) < 0.5
    for gene in range(NUM_GENES):
        with torch.no_grad():
            embedding = layer.embedding.clone()
            layer.embedding[gene] = torch.randn(5)
        torch.manual_seed(4)
        same = torch.isclose(layer.train()(), before[True], rtol=1e-4, atol=1e-5).all(1)
        assert bool(same[gene]) == bool(dropped[gene] | ~KNOWN[gene])
        if not KNOWN[gene]:  # nobody borrows what was never learned
            assert bool(same.all())
            assert torch.equal(layer.eval()(), before[False])
        with torch.no_grad():
            layer.embedding.copy_(embedding)


def test_one_feature_is_what_it_always_was() -> None:
    layer = made("length").eval()
    state = layer.state_dict()
    assert list(state) == [
        "embedding", "sharpness", "known", "first.weight", "first.bias", "second.weight", "second.bias",
        "norm.weight", "norm.bias",
    ]  # fmt: skip
    assert state["sharpness"].shape == ()
    fresh = GeneInput(cell(), 5, similar="length")
    assert float(fresh.sharpness.detach().exp()) == pytest.approx(20)
    direction = torch.nn.functional.normalize(cell().features["length"].float(), dim=1)
    closeness = state["sharpness"].exp() * (direction @ direction.t())
    nobody = ~KNOWN | torch.eye(NUM_GENES, dtype=torch.bool)
    mixture = closeness.masked_fill(nobody, torch.finfo(torch.float32).min).softmax(1) @ state["embedding"]
    u = torch.where(KNOWN.unsqueeze(1), state["embedding"], mixture)
    assert torch.equal(layer(), layer.norm(u + layer.second(torch.nn.functional.gelu(layer.first(u)))))


def test_similarities_belong_to_the_graph() -> None:
    layer = made(similarities())
    assert layer.state_dict()["sharpness"].shape == (3,)
    assert "similarity" not in layer.state_dict()
    fresh = GeneInput(cell(), 5, similar=similarities())
    torch.testing.assert_close(fresh.sharpness.exp(), torch.full((3,), 20 / 3))


def test_a_useless_similarity_loses_its_weight() -> None:
    """Trained by gradient: what hidden genes are to be tells which similarities say it."""
    torch.manual_seed(0)
    group = torch.arange(NUM_GENES) % 2
    said = (group[:, None] == group).float()
    nonsense = similarities(1)[0]
    layer = GeneInput(cell(), 5, similar=torch.stack([said, nonsense]), embedding_dropout=0.5, norm=False)
    truth = torch.randn(2, 5)[group]
    layer.add_to_embedding(truth)
    optimizer = torch.optim.Adam([layer.sharpness], lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        (layer() - truth).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    useful, useless = layer.sharpness.exp().tolist()
    assert useless < 2 < useful


def test_embeddings_can_start_from_states() -> None:
    torch.manual_seed(0)
    layer = GeneInput(cell(), 5)
    assert layer.embedding is not None
    before, states = layer.embedding.detach().clone(), torch.randn(NUM_GENES, 5)
    layer.add_to_embedding(states)
    assert torch.equal(layer.embedding, before + states)


def test_borrowing_needs_an_embedding() -> None:
    with pytest.raises(ModelError, match="borrows embeddings, but embedding=False; leave one of them out"):
        GeneInput(cell(), 5, embedding=False, features=["length"], similar=similarities())
