"""Which networks and features say that genes are similar."""

from __future__ import annotations

import pytest
import torch
from model_cases import NUM_GENES, cell

import knockgraph as kg
from knockgraph import models
from knockgraph.models.kernels.similarity import Similarities
from knockgraph.models.similar_genes import similarities


def tables(graph: kg.CellGraph, relations: list[str], features: list[str]) -> torch.Tensor:
    found = Similarities.of(graph, torch.arange(graph.num_genes), relations, features)
    return found.to(found)


def with_features(**features: torch.Tensor) -> kg.CellGraph:
    graph = cell()
    return kg.CellGraph(list(graph.genes), {name: r.edge_index for name, r in graph.relations.items()}, None, features)


def test_a_feature_stays_a_feature() -> None:
    assert similarities(cell(), "length") == "length"
    assert similarities(cell(), "nothing") == "nothing"  # refused where features are
    assert similarities(with_features(all=torch.ones(NUM_GENES, 1)), "all") == "all"


def test_lists_and_all() -> None:
    graph = cell()
    every = [*graph.relations], ["length", "domain"]
    assert torch.equal(torch.as_tensor(similarities(graph, "all")), tables(graph, *every))
    some = similarities(graph, ["domain", "string_fusion"])
    assert torch.equal(torch.as_tensor(some), tables(graph, ["string_fusion"], ["domain"]))
    assert torch.equal(torch.as_tensor(similarities(graph, "physical")), tables(graph, ["physical"], []))
    assert torch.equal(torch.as_tensor(similarities(graph, ["length"])), tables(graph, [], ["length"]))


def test_all_leaves_out_features_that_repeat_the_networks() -> None:
    graph = with_features(diffusion=torch.randn(NUM_GENES, 3), own=torch.randn(NUM_GENES, 3))
    assert torch.equal(torch.as_tensor(similarities(graph, "all")), tables(graph, [*graph.relations], ["own"]))
    asked = similarities(graph, ["diffusion"])
    assert torch.equal(torch.as_tensor(asked), tables(graph, [], ["diffusion"]))


def test_names_that_are_not_there() -> None:
    with pytest.raises(kg.ModelError, match="names 'size', but the graph has no such network or feature; use some of "):
        similarities(cell(), ["length", "size"])
    none = kg.CellGraph(["a", "b"], {"r": torch.zeros(2, 0, dtype=torch.int64)})
    with pytest.raises(kg.ModelError, match=r"is 'all', but that is no network with edges and no feature; .*=null"):
        similarities(none, "all")
    with pytest.raises(kg.ModelError, match="no feature"):
        models.create("hetero", cell(), input={"similar": []})


def test_the_model_has_a_weight_for_each() -> None:
    model = models.create("hetero", cell(), preset="pairs", channels=8, input={"similar": ["length", "physical"]})
    assert dict(model.named_parameters())["input.sharpness"].shape == (2,)
