"""Interaction profiles as the states that genes start from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import knockgraph as kg
from knockgraph import models
from knockgraph.models.baselines.pair_gp import PairGP
from knockgraph.models.hetero import HeteroCellModel
from knockgraph.models.profile_states import profile_states

ROWS = np.arange(0, 400, 2)


@pytest.fixture(scope="module")
def bound() -> kg.BoundScreen:
    return kg.demo_screen(400).bind(kg.demo_cell(), "gene_interaction")


def states(bound: kg.BoundScreen, channels: int = 8, rows: np.ndarray = ROWS, values: Tensor | None = None) -> Tensor:  # type: ignore[type-arg]
    return profile_states(kg.demo_cell(), bound, rows, bound.values[rows] if values is None else values, channels)


def test_products_of_states_are_the_leading_part_of_the_profiles(bound: kg.BoundScreen) -> None:
    fitted = PairGP(kg.demo_cell()).fit(bound, ROWS, bound.values[ROWS])
    value, vector = np.linalg.eigh(fitted.scores.double().numpy())
    leading = np.argsort(-np.abs(value))[:8]
    expected = (vector[:, leading] * np.abs(value[leading])) @ vector[:, leading].T  # without the signs
    found = states(bound)
    assert found.square().mean(1)[fitted.seen].mean() == pytest.approx(1, rel=1e-5)
    products = (found @ found.T).numpy()[np.ix_(fitted.seen, fitted.seen)]
    np.testing.assert_allclose(products / np.trace(products), expected / np.trace(expected), atol=1e-5)
    unseen = np.setdiff1d(np.arange(len(found)), fitted.seen)
    assert len(unseen)
    assert not found[unseen].any()


def test_more_channels_than_genes(bound: kg.BoundScreen) -> None:
    genes = kg.demo_cell().num_genes
    found = states(bound, genes + 3)
    assert found.shape == (genes, genes + 3)
    assert not found[:, -3:].any()


def test_labels_outside_the_training_part_change_nothing(bound: kg.BoundScreen) -> None:
    others = np.arange(1, 400, 2)
    found = []
    for factor in (1.0, -5.0):
        values = bound.values.clone()
        values[others] *= factor
        torch.manual_seed(0)
        model = models.create("hetero", kg.demo_cell(), preset="pairs", channels=8)
        before = model.state_dict()["input.embedding"].clone()
        changed = replace(bound, values=values)
        model.prepare(changed, ROWS, values[ROWS], (others, values[others]), False)
        found.append(model.state_dict())
        assert not torch.equal(found[-1]["input.embedding"], before)
    assert all(torch.equal(a, b) for a, b in zip(found[0].values(), found[1].values(), strict=True))
    other = states(bound, values=-5 * bound.values[ROWS].roll(1, 0))
    assert not torch.allclose(other, states(bound))


def test_without_the_option_nothing_is_prepared(bound: kg.BoundScreen) -> None:
    model = models.create("hetero", kg.demo_cell(), preset="pairs", input={"profiles": False})
    assert isinstance(model, HeteroCellModel)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.prepare(bound, ROWS, bound.values[ROWS], (ROWS, bound.values[ROWS]), False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_phenotypes_share_the_channels(bound: kg.BoundScreen) -> None:
    y = bound.values[ROWS]
    same = torch.cat([y, 100 * y], 1)  # units do not count
    both = states(bound, values=same)
    first = states(bound, 4)
    scale = both.abs().max() / first.abs().max()
    torch.testing.assert_close(both.abs()[:, ::2], scale * first.abs(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(both.abs()[:, 1::2], scale * first.abs(), rtol=1e-2, atol=1e-2)
    missing = torch.cat([y, torch.full_like(y, torch.nan)], 1)
    torch.testing.assert_close(states(bound, values=missing), states(bound))


def test_rows_without_pairs_or_with_doses() -> None:
    graph = kg.demo_cell()
    genes = list(graph.genes)[:6]
    single = kg.Screen([[gene] for gene in genes], {"fitness": [0.1, 0.4, 0.2, 0.9, 0.3, 0.5]}).bind(graph, "fitness")
    assert not profile_states(graph, single, np.arange(6), single.values, 4).any()
    pairs = [[a, b] for a in genes for b in genes if a < b]
    labels = {"fitness": np.random.default_rng(0).normal(size=len(pairs) + 2)}
    dosed = kg.Screen([*pairs, [f"{genes[0]}=0.5", genes[1]], [f"{genes[2]}=3"]], labels).bind(graph, "fitness")
    every, plain = np.arange(len(pairs) + 2), np.arange(len(pairs))
    found = profile_states(graph, dosed, every, dosed.values, 4)
    assert torch.equal(found, profile_states(graph, dosed, plain, dosed.values[plain], 4))
    assert found.any()
    assert not profile_states(graph, dosed, every[-2:], dosed.values[-2:], 4).any()
