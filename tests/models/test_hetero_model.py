"""The hetero cell model: every option, every parameter, every error."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from model_cases import assert_same, batch_of, build, cell, nested, objective, predict, run

import knockgraph as kg
from knockgraph import models
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.nn.attention_pooling import AttentionPooling

BASE: dict[str, Any] = {"channels": 8, "messages.layers": 2, "heads": 2, "messages.mlp_layers": 2}
CONVS = ("gin", "sage", "gcn", "gatv2")
CACHED = {"readout.wild_type": "cached-epoch"}
AGGREGATIONS = ("sum", "mean", "attention", "pairwise")
OPTIONS: list[dict[str, Any]] = [
    *({"messages.conv": c, "messages.aggregation": a} for c, a in itertools.product(CONVS, AGGREGATIONS)),
    *({"messages.conv": c, "messages.relations": ["string_fusion"]} for c in CONVS),
    *(
        {"messages.conv": c, "messages.relations": ["string_fusion", "physical"], "messages.aggregation": "attention"}
        for c in CONVS
    ),
    *({"messages.conv": c, "messages.merge": "typed"} for c in ("gin", "sage", "gcn")),
    {"messages.merge": "typed", "messages.relations": ["string_fusion", "physical"]},
    *(
        {"readout.local": loc, "readout.combine": c, "metabolism.enabled": m}
        for loc in (0, 1)
        for c in ("gating", "mean")
        for m in (0, 1)
    ),
    {"metabolism.enabled": True, "metabolism.attention": True},
    {"metabolism.enabled": True, "metabolism.attention": True, "heads": 4, "metabolism.rounds": 1},
    {"input.embedding": False, "input.features": ["length"]},
    {"input.embedding": True, "input.features": ["length", "domain"]},
    {
        "readout.local": "pairs",
        "readout.combine": "sum",
        "input.features": ["length"],
        "input.embedding_dropout": 0.3,
        "readout.dropout": 0.2,
    },
    {"readout.local": "pairs", "outputs": 3},
    {"readout.local": "pairs", "readout.local_states": "first", "readout.combine": "mean"},
    {"readout.local_states": "first"},
    {"input.similar": "length", "input.embedding_dropout": 0.3},
    {"input.similar": "all", "input.embedding_dropout": 0.3, "input.profiles": True},
    {"messages.norm": False, "messages.activation": "relu", "messages.dropout": 0.3},
    {"messages.activation": "silu", "metabolism.enabled": True, "metabolism.rounds": 0},
    {"messages.activation": "elu", "outputs": 3},
    {"outputs": 2, "readout.combine": "mean", "metabolism.enabled": True, "readout.gain": 2.0},
    {"messages.rows_at_once": 16, "messages.aggregation": "pairwise"},
    {"readout.most_deletions": 7, "messages.layers": 1, "messages.mlp_layers": 1},
    {"readout.wild_type": "cached-epoch", "metabolism.enabled": True},
]
BATCHES = {"mixed": None, "one": [[4, 2]], "wild types": [[], []], "empty": []}


def ident(options: dict[str, Any]) -> str:
    return "-".join(f"{k}={v}" for k, v in options.items())


@pytest.mark.parametrize("options", OPTIONS, ids=ident)
def test_every_option_reaches_every_parameter(options: dict[str, Any]) -> None:
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    model = build("hetero", graph, torch.float32, **{**BASE, **options})
    assert isinstance(model, HeteroCellModel)
    model.refresh_wild_type(strategy(batch_of([]).only_wild_type()))
    for name, genotypes in BATCHES.items():
        batch = batch_of(genotypes)
        prediction, gradient = run(model, strategy, batch)
        assert prediction.values.shape == (batch.num_samples, options.get("outputs", 1)), name
        assert prediction.embedding is not None
        assert prediction.embedding.shape == (batch.num_samples, 8)
        assert prediction.values.dtype == prediction.embedding.dtype == torch.float32
        assert bool(prediction.values.isfinite().all())
        assert all(bool(g.isfinite().all()) for g in gradient.values()), name


@pytest.mark.parametrize("options", OPTIONS, ids=ident)
def test_bf16_autocast_stays_near_float32(options: dict[str, Any]) -> None:
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    model = build("hetero", graph, torch.float32, **{**BASE, **options}).eval()
    model.refresh_wild_type(strategy(batch_of([]).only_wild_type()))
    batch = batch_of()
    expected = predict(model, strategy, batch)
    with torch.autocast("cpu", torch.bfloat16):
        prediction = predict(model, strategy, batch)
    assert prediction.values.dtype == torch.float32
    objective(prediction).backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    assert_same(prediction.values, expected.values, 0.25)


@pytest.mark.parametrize("metabolism", [False, True])
def test_without_a_deletion_nothing_differs_from_the_wild_type(metabolism: bool) -> None:
    graph = cell()
    model = build("hetero", graph, **BASE, **{"metabolism.enabled": metabolism})
    strategy = kg.strategies.create("node-mask", graph)
    prediction = predict(model, strategy, batch_of([[], [3], []]))
    assert prediction.embedding is not None
    assert prediction.embedding[[0, 2]].abs().max() < 1e-11 * prediction.embedding[1].abs().max()
    assert_same(prediction.values[0], prediction.values[2], 1e-12)


def test_the_small_difference_survives_bf16() -> None:
    """A mean over many genes in bfloat16 has no digits left for what one deletion changes."""
    n, columns = 4_000, 5
    torch.manual_seed(0)
    pool = AttentionPooling(32)
    x = torch.randn(n, 1, 32).bfloat16().float().expand(n, columns, 32)
    keep = torch.ones(n, columns, dtype=torch.bool)
    keep[torch.arange(columns - 1), torch.arange(columns - 1)] = False
    with torch.no_grad():
        exact = pool.double()(x.double(), keep)
        with torch.autocast("cpu", torch.bfloat16):
            z = pool.float()(x, keep)
    assert z.dtype == torch.float32
    assert_same((z[-1:] - z[:-1]).double(), exact[-1:] - exact[:-1], 0.03)


def test_the_scale_does_not_depend_on_the_size_of_the_cell() -> None:
    sizes, state = [], {}
    for n in (1_000, 100):
        edges = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
        graph = kg.CellGraph([f"g{i}" for i in range(n)], {"path": edges})
        torch.manual_seed(0)
        model = models.create("hetero", graph, **nested(BASE))
        state = {name: t[:n] if name == "input.embedding" else t for name, t in (state or model.state_dict()).items()}
        model.load_state_dict(state)
        batch = kg.PerturbationBatch.from_lists([[g] for g in range(20, 80)], n)
        embedding = predict(model, kg.strategies.create("node-mask", graph), batch).embedding
        assert embedding is not None
        sizes.append(float(embedding.detach().square().mean().sqrt()))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2)


def test_the_cached_wild_type_equals_the_column_until_the_weights_change() -> None:
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    options = {**BASE, "metabolism.enabled": True}
    column = build("hetero", graph, **options)
    cached = build("hetero", graph, **options, **CACHED)
    assert isinstance(column, HeteroCellModel)
    assert isinstance(cached, HeteroCellModel)
    assert column.exact
    assert not cached.exact
    batch = batch_of()
    with pytest.raises(kg.ModelError, match="refresh_wild_type"):
        cached(strategy(batch), batch)
    with pytest.raises(kg.ModelError, match="no wild-type column"):
        cached.refresh_wild_type(strategy(batch))
    cached.refresh_wild_type(strategy(batch.only_wild_type()))
    expected = predict(column, strategy, batch).values
    assert_same(cached(strategy(batch), batch).values, expected, 1e-10)
    assert_same(predict(cached, strategy, batch).values, expected, 1e-10)

    # A checkpoint carries the cache: a run that goes on in mid-epoch goes on with the same wild type.
    again = build("hetero", graph, seed=5, **options, **CACHED)
    again.load_state_dict(cached.state_dict())
    assert_same(again(strategy(batch), batch).values, expected, 1e-10)

    with torch.no_grad():
        for parameter in cached.parameters():
            parameter.add_(0.01)
    stale = cached(strategy(batch), batch).values
    cached.refresh_wild_type(strategy(batch.only_wild_type()))
    assert not torch.allclose(stale, cached(strategy(batch), batch).values)


def test_refreshing_an_exact_model_does_nothing_and_keeps_the_mode() -> None:
    graph = cell()
    strategy = kg.strategies.create("node-mask", graph)
    for wild_type in ("column", "cached-epoch"):
        model = models.create("hetero", graph, readout={"wild_type": wild_type}, **nested(BASE))
        assert isinstance(model, HeteroCellModel)
        model.refresh_wild_type(strategy(batch_of().only_wild_type()))
        assert model.training


@pytest.mark.parametrize("conv", CONVS)
def test_one_relation_of_many_equals_a_graph_with_that_relation(conv: str) -> None:
    graph = cell()
    only = kg.CellGraph(graph.genes, {"string_coexpression": graph.relations["string_coexpression"]})
    options = {**BASE, "messages.conv": conv}
    small, large = (
        build("hetero", only, **options),
        build("hetero", graph, **options, **{"messages.relations": ["string_coexpression"]}),
    )
    large.load_state_dict(small.state_dict())
    batch = batch_of()
    expected = predict(small, kg.strategies.create("node-mask", only), batch).values
    assert_same(predict(large, kg.strategies.create("node-mask", graph), batch).values, expected, 1e-12)


def test_the_reference_preset_is_the_one_of_the_specification() -> None:
    graph = cell()
    model = models.create("hetero", graph, preset="reference")
    parameters = dict(model.named_parameters())
    assert len([name for name in parameters if name.endswith("conv.eps")]) == 3
    assert parameters["layers.0.conv.mlp.6.weight"].shape == (3, 64, 64)
    assert "layers.0.conv.mlp.8.weight" not in parameters
    assert parameters["layers.2.aggregation.weight_out"].shape == (6, 32, 64)
    assert parameters["local_predictor.mlp.0.weight"].shape == (256, 3 * 64)
    assert all(layer.residual for layer in model.layers)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"messages.conv": "gat"}, "there is no convolution 'gat'.*; use one of gin, sage, gcn, gatv2"),
        ({"messages.aggregation": "max"}, "messages.aggregation=max"),
        ({"messages.activation": "tanh"}, "messages.activation=tanh"),
        ({"readout.combine": "product"}, "readout.combine=product"),
        ({"readout.local": "all"}, "readout.local=all is not known to the hetero model; use one of hyper-sagnn, pairs"),
        ({"readout.local_states": "middle"}, "readout.local_states=middle"),
        ({"readout.local_states": "first", "readout.wild_type": "cached-epoch"}, "needs readout.wild_type=column"),
        ({"input.embedding_dropout": 0.3}, "needs an embedding and something to use instead"),
        ({"input.similar": "size"}, "no gene feature 'size'; it has length, domain$"),
        ({"input.similar": "diffusion"}, "no gene feature 'diffusion'; .*; knockgraph graph build --features makes it"),
        ({"input.similar": ["length", "size"]}, "names 'size', but the graph has no such network or feature; use some"),
        ({"input.profiles": True, "input.embedding": False, "input.features": ["length"]}, "lets embeddings start"),
        ({"input.similar": "length", "input.embedding": False, "input.features": ["length"]}, "borrows embeddings"),
        ({"input.embedding_dropout": 1.0, "input.features": ["length"]}, r"must be in \[0, 1\)"),
        ({"readout.wild_type": "cached"}, "readout.wild_type=cached is"),
        ({"messages.merge": "all"}, "messages.merge=all"),
        (
            {"messages.merge": "typed", "messages.conv": "gatv2"},
            "messages.merge=typed does not go with messages.conv=gatv2; use gin, sage or gcn",
        ),
        ({"messages.layers": 0}, "messages.layers=0, but the hetero model needs at least 1"),
        ({"channels": 0}, "channels=0"),
        ({"messages.dropout": 2}, "messages.dropout=2, but it must be in"),
        ({"readout.dropout": -0.1}, "readout.dropout=-0.1, but it must be in"),
        ({"messages.relations": []}, "at least one relation"),
        (
            {"messages.relations": ["physical", "nothing"]},
            "no relation 'nothing'; it has physical, string_coexpression",
        ),
        ({"messages.relations": ["physical", "physical"]}, "twice"),
        ({"input.features": ["size"]}, "no gene feature 'size'; it has length, domain"),
        ({"input.embedding": False}, "genes need an input"),
        ({"messages.conv": "gatv2", "heads": 3}, "8 channels cannot be divided among 3 heads"),
        ({"depth": 3}, "the model hetero has no option 'depth'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(kg.ModelError, match=message):
        models.create("hetero", cell(), **nested({**BASE, **options}))


def test_metabolism_without_a_metabolism() -> None:
    graph = kg.CellGraph(["a", "b"], {"r": torch.tensor([[0], [1]])})
    with pytest.raises(kg.ModelError, match="this cell graph has no metabolism"):
        models.create("hetero", graph, metabolism={"enabled": True})


def test_a_view_without_the_wild_type_is_refused() -> None:
    graph = cell()
    batch = batch_of()
    model = models.create("hetero", graph, **nested(BASE))
    with pytest.raises(kg.ModelError, match=r"give it strategy\(batch.with_wild_type\(\)\)"):
        model(kg.strategies.create("node-mask", graph)(batch), batch)


def test_features_are_standardised_and_not_saved() -> None:
    graph = cell()
    model = models.create("hetero", graph, input={"features": ["length"]}, **nested(BASE))
    assert isinstance(model, HeteroCellModel)
    given = model.input.features
    assert given is not None
    torch.testing.assert_close(given.mean(0), torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(given.square().mean(0), torch.ones(2))
    assert not [name for name in model.state_dict() if "features" in name]
    constant = kg.CellGraph(["a", "b"], {"r": torch.tensor([[0], [1]])}, features={"same": torch.ones(2, 1)})
    flat = models.create("hetero", constant, input={"features": ["same"]}, **nested(BASE))
    assert isinstance(flat, HeteroCellModel)
    assert flat.input.features is not None
    assert flat.input.features.tolist() == [[0.0], [0.0]]


def test_genes_do_without_their_embedding_in_some_steps() -> None:
    """Only in training; what is left is what the features say."""
    graph = cell()
    model = models.create("hetero", graph, input={"features": ["length"], "embedding_dropout": 0.5}, **nested(BASE))
    assert isinstance(model, HeteroCellModel)
    assert model.input.embedding is not None
    torch.manual_seed(0)
    model.train()
    some = model.input()
    model.eval()
    every = model.input()
    with torch.no_grad():
        model.input.embedding.zero_()
    none = model.input()
    as_none = (some - none).abs().amax(1) < 1e-6
    as_every = (some - every).abs().amax(1) < 1e-6
    assert bool((as_none ^ as_every).all())
    assert 0 < int(as_none.sum()) < graph.num_genes


def test_two_predictions_added() -> None:
    graph = cell()
    model = models.create("hetero", graph, readout={"local": "pairs", "combine": "sum"}, **nested(BASE))
    assert isinstance(model, HeteroCellModel)
    assert model.gate is None
    one, two = torch.randn(3, 1), torch.randn(3, 1)
    assert torch.equal(model._combined(one, two), one + two)


def test_a_gene_that_no_training_sample_deletes_borrows_an_embedding() -> None:
    """From the known genes, by a softmax of the cosine of a feature; known genes keep theirs, also in a checkpoint."""
    graph = cell()
    model = models.create("hetero", graph, input={"similar": "length", "embedding_dropout": 0.5}, **nested(BASE)).eval()
    assert isinstance(model, HeteroCellModel)
    known = torch.arange(graph.num_genes) % 3 > 0
    before = model.input()
    model.set_known(known)
    inside = model.input
    assert inside.embedding is not None
    feature = graph.features["length"].float()
    for gene in range(graph.num_genes):
        if known[gene]:
            continue
        others = [h for h in range(graph.num_genes) if known[h]]
        cosine = torch.stack([torch.cosine_similarity(feature[gene], feature[h], dim=0) for h in others])
        share = (20.0 * cosine).softmax(0)
        u = sum(w * inside.embedding[h] for w, h in zip(share, others, strict=True))
        expected = inside.norm(u + inside.second(torch.nn.functional.gelu(inside.first(u))))
        torch.testing.assert_close(model.input()[gene], expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model.input()[known], before[known])
    assert torch.equal(model.state_dict()["input.known"], known)
    again = models.create("hetero", graph, input={"similar": "length", "embedding_dropout": 0.5}, **nested(BASE))
    again.load_state_dict(model.state_dict())
    assert isinstance(again, HeteroCellModel)
    assert torch.equal(again.input.known, known)


@pytest.mark.parametrize("local", ["pairs", "hyper-sagnn"])
@pytest.mark.parametrize("states", ["last", "first"])
def test_the_local_predictor_alone_is_the_whole_model_while_the_global_one_is_zero(local: str, states: str) -> None:
    """The same predictions, and the same gradients of all that it trains; the rest has none."""
    graph = cell()
    options = {"readout.local": local, "readout.local_states": states, "readout.combine": "sum"}
    model = build("hetero", graph, **BASE, **options, **{"readout.local_first": 0.5, "metabolism.enabled": True})
    for parameter in model.global_predictor[-1].parameters():
        torch.nn.init.zeros_(parameter)
    strategy = kg.strategies.create("node-mask", graph).double()
    whole, expected = run(model, strategy, batch_of())
    model.zero_grad()
    model.begin(0, 4)
    assert not model.perturbs
    alone = predict(model, strategy, batch_of())
    torch.testing.assert_close(alone.values, whole.values, rtol=0, atol=1e-12)
    objective(alone).backward()
    later = ("global_predictor", "pool", "metabolic", "joint")
    for name, parameter in model.named_parameters():
        if name.startswith(later) or (states == "first" and name.startswith("layers")):
            assert parameter.grad is None, name
        else:
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=1e-11)
    model.begin(2, 4)
    assert model.perturbs
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("options", "epochs", "alone"),
    [
        ({"readout.local_first": 0.75}, 4, 3),
        ({"readout.local_first": 0.75}, 3, 2),
        ({"readout.local_first": 0.75}, 1, 0),
        ({"readout.local_first": 0.75}, 2.5, 1),
        ({"readout.local_first": 0.75}, math.inf, 0),
        ({}, 4, 0),
        ({"readout.local_first": 0.75, "readout.combine": "gating"}, 4, 0),
        ({"readout.local_first": 0.75, "readout.local": False}, 4, 0),
    ],
)
def test_how_long_the_local_predictor_is_alone(options: dict[str, Any], epochs: float, alone: int) -> None:
    model = build("hetero", cell(), **{**BASE, "readout.local": "pairs", "readout.combine": "sum", **options})
    model.begin(0, epochs)
    assert model.perturbs  # what its global predictor has learned is not left out
    for parameter in model.global_predictor[-1].parameters():
        torch.nn.init.zeros_(parameter)
    found = []
    for epoch in range(4):
        model.begin(epoch, epochs)
        found.append(not model.perturbs)
    assert found == [True] * alone + [False] * (4 - alone)
    first = model.readout.local_first > 0 and model.readout.local and model.readout.combine == "sum"
    assert (model.remark() is not None) == first
    torch.nn.init.ones_(model.global_predictor[-1].bias)
    assert model.remark() is None


def test_an_impossible_share() -> None:
    with pytest.raises(kg.ModelError, match=r"readout.local_first=1.0, but it must be in \[0, 1\)"):
        build("hetero", cell(), **BASE, **{"readout.local_first": 1.0})


def test_what_somebody_has_frozen_stays_frozen() -> None:
    model = build("hetero", cell(), **BASE)
    model.pool.requires_grad_(False)
    model.begin(0, 4)
    assert not any(parameter.requires_grad for parameter in model.pool.parameters())
