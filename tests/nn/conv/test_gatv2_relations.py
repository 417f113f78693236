"""GATv2 over several relations at once: each relation by itself, also with the weights of earlier versions."""

from __future__ import annotations

import pytest
import torch
from strategy_cases import assert_close, cell, features, random_pairs
from torch import nn

import knockgraph as kg
from knockgraph.nn.conv.by_name import relation_conv

N, CHANNELS, HEADS = 9, 4, 2
NAMES = ("a", "b", "c")
GENOTYPES = [[], [3], [7, 1, 5]]


def view() -> kg.PerturbedGraphs:
    graph = cell(N, **{name: random_pairs(N, 0.3, seed) for seed, name in enumerate(NAMES)})
    return kg.strategies.create("node-mask", graph)(kg.PerturbationBatch.from_lists(GENOTYPES, N))


@pytest.mark.parametrize("names", [NAMES, ("c", "a"), ("b",)])
@pytest.mark.parametrize("shape", [(N, CHANNELS), (N, len(GENOTYPES), CHANNELS), (3, N, len(GENOTYPES), CHANNELS)])
def test_each_relation_by_itself(shape: tuple[int, ...], names: tuple[str, ...]) -> None:
    """Earlier versions had one layer for each relation, whose weights are loaded here."""
    torch.manual_seed(0)
    singles = [kg.nn.GATv2Conv.of_channels(CHANNELS, HEADS).double() for _ in names]
    for conv in singles:
        for parameter in conv.parameters():
            nn.init.normal_(parameter)
    together = relation_conv("gatv2", len(names), CHANNELS, heads=HEADS).double()
    holder = nn.ModuleDict({"conv": together})
    holder.load_state_dict(
        {f"conv.convs.{n}.{key}": value for n, conv in enumerate(singles) for key, value in conv.state_dict().items()}
    )
    graphs = view()
    x = features(shape)
    x = x[: len(names)] if x.dim() == 4 else x
    found = together(graphs, names, x)
    assert found.shape == (len(names), N * len(GENOTYPES), CHANNELS)
    grad = torch.randn(found.shape, dtype=found.dtype)
    found.backward(grad)
    for number, (conv, name) in enumerate(zip(singles, names, strict=True)):
        expected = conv(graphs, name, x[number] if x.dim() == 4 else x)
        assert_close(found[number].view_as(expected), expected, torch.float64, name)
        expected.backward(grad[number].view_as(expected))
        for key, parameter in conv.named_parameters():
            whole = together.get_parameter(key).grad
            assert whole is not None
            assert parameter.grad is not None
            part = whole[number].t() if key.endswith("weight") else whole[number].view(parameter.shape)
            assert_close(part, parameter.grad, torch.float64, f"{name} {key}")


def test_starts_as_one_layer_does() -> None:
    torch.manual_seed(0)
    alone, together = kg.nn.GATv2Conv(64, 16, 4), kg.nn.GATv2Conv(64, 16, 4, relations=9)
    for key, parameter in together.named_parameters():
        largest = [float(p.detach().abs().max()) for p in (parameter, alone.get_parameter(key))]
        assert largest[0] == pytest.approx(largest[1], rel=0.1)
    assert "9 × 64, 64" in repr(together)
