"""torchcell's runs by name: each is what its public config says, and differs from the next in what its name says."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from knockgraph import losses, models
from knockgraph.sources import yeast_scale
from knockgraph.sources.demo import demo_cell
from knockgraph.sources.string import CHANNELS
from knockgraph.train.config import compose
from knockgraph.train.plain_config import compose_plain

RELEASES = ("9_1", "11_0", "12_0")


def flat(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    found = {}
    for key, value in tree.items():
        below = f"{path}.{key}" if path else str(key)
        found.update(flat(value, below) if isinstance(value, dict) and value else {below: value})
    return found


def resolved(name: str) -> dict[str, Any]:
    config = compose([f"preset=torchcell-{name}"])
    assert compose_plain([f"preset=torchcell-{name}"]) == config
    return flat(dataclasses.asdict(config))


def difference(first: str, second: str) -> dict[str, tuple[Any, Any]]:
    one, other = resolved(first), resolved(second)
    return {key: (one.get(key), other.get(key)) for key in sorted({*one, *other}) if one.get(key) != other.get(key)}


@pytest.mark.parametrize(
    ("first", "second", "changes"),
    [
        ("full", "no-gather", {"loss.options.gather": ("differentiable", "none")}),
        ("full", "one-relation", {"data.relations": (None, ["string12_0_coexpression"])}),
        ("full", "empty", {"task": ("regression", "empty")}),
        ("full", "profile", {"trainer.profile": ("off", "trace"), "trainer.max_epochs": (500, 1)}),
        *((f"dango-string{v}", f"dango-string{v}-empty", {"task": ("regression", "empty")}) for v in RELEASES),
        *(
            (
                "dango-string9_1",
                f"dango-string{v}",
                {"data.cell": ("data/dango-string9_1.cellgraph", f"data/dango-string{v}.cellgraph")},
            )
            for v in RELEASES[1:]
        ),
    ],
)
def test_each_differs_from_the_next_in_what_its_name_says(first: str, second: str, changes: dict) -> None:
    assert difference(first, second) == changes


def test_the_one_relation_is_the_largest() -> None:
    (relation,) = resolved("one-relation")["data.relations"]
    assert relation == max(yeast_scale.RELATIONS, key=lambda name: yeast_scale.RELATIONS[name].edges)


# The values of the public configs: hetero_cell_bipartite_dango_gi_gh_073 and dango_kuzmin2018_tmi_string9_1. The path
# around a layer is in no config; its code has none. docs/torchcell.md lists what differs, and why.
FULL = {
    "data.transform": "standard",
    "loader.batch_size": 28,
    "loss.name": "composite",
    "loss.options.mse_weight": 1.0,
    "loss.options.wasserstein_weight": 0.1,
    "loss.options.contrastive_weight": 0.0,
    "loss.options.buffer_size": 224,
    "loss.options.gather": "differentiable",
    "loss.options.gather_interval": 1,
    "loss.options.temperature": 1.0,
    "loss.options.final_temperature": 0.1,
    "loss.options.temperature_schedule": "exponential",
    "loss.options.temperature_epochs": 500,
    "model.options.channels": 64,
    "model.options.heads": 8,
    "model.options.messages.layers": 3,
    "model.options.messages.conv": "gin",
    "model.options.messages.mlp_layers": 4,
    "model.options.messages.aggregation": "pairwise",
    "model.options.messages.activation": "gelu",
    "model.options.messages.dropout": 0.0,
    "model.options.messages.residual": False,
    "model.options.readout.combine": "concat",
    "model.options.metabolism.enabled": True,
    "model.options.metabolism.attention": True,
    "optimizer.lr": 5e-4,
    "optimizer.weight_decay": 1e-12,
    "scheduler.first_cycle_steps": 300,
    "scheduler.cycle_mult": 0.75,
    "scheduler.gamma": 0.5,
    "scheduler.warmup_steps": 0,
    "scheduler.interval": "epoch",
    "trainer.accumulate.0": 1,
    "trainer.devices": 4,
    "trainer.precision": "bf16-mixed",
    "trainer.gradient_clip": 10.0,
    "trainer.max_epochs": 500,
    "trainer.plot_every_n_epochs": 2,
}
DANGO = {
    "data.transform": "none",
    "loader.batch_size": 64,
    "loss.name": "dango",
    "loss.options.schedule": "LinearUntilUniform",
    "loss.options.transition_epoch": 10,
    "model.name": "dango",
    "model.options.channels": 64,
    "model.options.heads": 4,
    "optimizer.lr": 1e-5,
    "optimizer.weight_decay": 1e-6,
    "scheduler.name": "plateau",
    "scheduler.factor": 0.2,
    "scheduler.patience": 3,
    "scheduler.cooldown": 2,
    "scheduler.min_lr": 1e-9,
    "trainer.devices": 4,
    "trainer.precision": "32-true",
    "trainer.gradient_clip": 10.0,
    "trainer.max_epochs": 1000,
}


@pytest.mark.parametrize(("name", "expected"), [("full", FULL), ("dango-string9_1", DANGO)])
def test_as_the_public_configs_say(name: str, expected: dict[str, Any]) -> None:
    found = resolved(name)
    assert {key: found.get(key) for key in expected} == expected


def test_the_lowest_rate_is_that_of_the_public_config() -> None:
    found = resolved("full")
    assert found["optimizer.lr"] * found["scheduler.min_factor"] == pytest.approx(1e-6)


@pytest.mark.parametrize("name", ["full", "dango-string9_1"])
def test_models_and_losses_can_be_made(name: str) -> None:
    config = compose([f"preset=torchcell-{name}", "data=demo"])
    graph = demo_cell()
    assert models.create(config.model.name, graph, **config.model.options) is not None
    losses.create(config.loss.name, **config.loss.options)
    assert len(CHANNELS) == 6
