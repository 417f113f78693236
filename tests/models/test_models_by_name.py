"""Models by name, presets, and the toys that test the training."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from model_cases import batch_of, cell, gradients, predict

import knockgraph as kg
from knockgraph import models
from knockgraph.graph.structural_features import with_structural_features
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.models.hetero_options import MOVED, MessageOptions
from knockgraph.models.presets import of_a_run, spelled_out


def test_every_name_makes_a_model() -> None:
    graph = cell()
    for name in models.available():
        model = models.create(name, graph)
        assert isinstance(model, models.CellModel)


@pytest.mark.parametrize(("name", "preset"), [(n, p) for n, presets in models.PRESETS.items() for p in presets])
def test_every_preset_runs(name: str, preset: str) -> None:
    graph = with_structural_features(cell(), ["diffusion"])
    model = models.create(name, graph, preset=preset, outputs=2)
    assert predict(model, kg.strategies.create("node-mask", graph), batch_of()).values.shape == (5, 2)


def test_options_win_over_the_preset() -> None:
    model = models.create("hetero", cell(), preset="small", channels=8, heads=2)
    assert model.get_parameter("input.embedding").shape[1] == 8
    assert models.PRESETS["hetero"]["small"]["channels"] != 8


def test_options_win_within_a_group() -> None:
    small = models.PRESETS["hetero"]["small"]["messages"]
    model = models.create("hetero", cell(), preset="small", channels=8, messages={"layers": 2})
    assert isinstance(model, HeteroCellModel)
    assert len(model.layers) == 2
    assert {layer.residual for layer in model.layers} == {small["residual"]}
    same = models.create("hetero", cell(), channels=8, heads=2, messages=MessageOptions(layers=2, conv="sage"))
    assert len(same.layers) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("old", MOVED)
def test_options_of_earlier_versions_are_refused_with_the_new_name(old: str) -> None:
    group, option = MOVED[old].split(".")
    match = rf"option {old} is now {group}\.{option}: write model\.options\.{group}\.{option}=2 on the command line"
    with pytest.raises(kg.ModelError, match=match):
        models.create("hetero", cell(), **{old: 2})


def test_what_runs_of_earlier_versions_kept() -> None:
    flat = {"channels": 8, "residual": True, "conv": "sage", "norm": False, "head_dropout": 0.1, "metabolism": True}
    assert of_a_run("hetero", flat) == {
        "channels": 8,
        "input": {"norm": True},
        "messages": {"residual": True, "conv": "sage", "norm": False},
        "readout": {"dropout": 0.1},
        "metabolism": {"enabled": True},
    }
    first = of_a_run("hetero", {"preset": "small", "layers": 2})  # from before the residual path
    assert (first["messages"]["residual"], first["messages"]["layers"]) == (False, 2)
    assert first["readout"] == {"local": False}
    for preset in models.PRESETS["hetero"]:
        now = spelled_out("hetero", {"preset": preset})
        assert of_a_run("hetero", now) == now == spelled_out("hetero", now)


def test_wrong_names() -> None:
    with pytest.raises(
        kg.ModelError, match=r"there is no model 'gnn'; use one of hetero, dango, .*, or package\.module:Class"
    ):
        models.create("gnn", cell())
    with pytest.raises(
        kg.ModelError, match="the model hetero has no preset 'big'; it has small, fast, pairs, reference"
    ):
        models.create("hetero", cell(), preset="big")
    with pytest.raises(kg.ModelError, match="the model constant has no preset 'small'; it has none"):
        models.create("constant", cell(), preset="small")
    with pytest.raises(kg.ModelError, match="the model dango has no option 'layers'"):
        models.create("dango", cell(), layers=3)


def test_importing_the_models_loads_none() -> None:
    code = "import sys, knockgraph.models; print([m for m in sys.modules if m.endswith(('.hetero', '.dango'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "knockgraph.models.hetero" not in done.stdout
    assert "knockgraph.models.dango" not in done.stdout


def test_constant_never_moves() -> None:
    graph = cell()
    model, strategy = models.create("constant", graph), kg.strategies.create("node-mask", graph)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    for _ in range(3):
        values = predict(model, strategy, batch_of()).values
        assert values.tolist() == [[0.0]] * 5
        (values - 1).square().sum().backward()
        assert gradients(model)["unused"].tolist() == [0.0]
        optimizer.step()


def test_additive_learns_an_additive_phenotype() -> None:
    graph = cell()
    model, strategy = models.create("additive", graph), kg.strategies.create("node-mask", graph)
    batch = batch_of([[a, b] for a in range(14) for b in range(a)])
    truth = torch.linspace(-1, 1, 14)
    label = torch.stack([truth[a] + truth[b] for a in range(14) for b in range(a)]).unsqueeze(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(150):
        loss = (predict(model, strategy, batch).values - label).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.01 * losses[0]
    assert predict(model, strategy, batch_of([[], [3]])).values.shape == (2, 1)
