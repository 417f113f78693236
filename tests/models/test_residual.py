"""A trained correction of a fitted model."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from knockgraph import BoundScreen, demo_cell, demo_screen, models, strategies
from knockgraph.errors import ModelError
from knockgraph.models.residual import ResidualModel
from knockgraph.run import train
from knockgraph.train.config import compose
from knockgraph.train.run import load_task


@pytest.fixture(scope="module")
def bound() -> BoundScreen:
    return demo_screen(300).bind(demo_cell(), "gene_interaction")


def made(**options: object) -> ResidualModel:
    model = models.create("residual", demo_cell(), correction="hetero", **options)
    assert isinstance(model, ResidualModel)
    return model


def test_it_starts_as_its_base_and_never_sees_the_label_of_a_training_sample(bound: BoundScreen) -> None:
    rows = np.arange(len(bound))
    model = made(options={"preset": "small"}, base="mean", folds=3)
    model.prepare(bound, rows[:200], bound.values[:200], (rows[200:], bound.values[200:]), False)
    batch = bound.batch(rows[:50])
    with strategies.create("node-mask", demo_cell())(model.columns(batch)) as view:
        trained = model(view, batch).values.detach()
        model.eval()
        tested = model(view, batch).values.detach()
    torch.testing.assert_close(tested, torch.full((50, 1), float(bound.values[:200].mean())))
    assert len(trained.unique()) == 3  # the mean of the two other folds
    held_out = trained[:, 0] == trained[0, 0]
    assert 0 < int(held_out.sum()) < 50


def test_without_perturbed_graphs_it_sees_the_wild_type(bound: BoundScreen) -> None:
    model = made(options={"preset": "small"}, base="mean", perturbed=False)
    batch = bound.batch(np.arange(5))
    columns = model.columns(batch)
    assert columns.num_columns == 6
    assert len(columns.perturbation_indices) == 0


def test_unseen_genes_are_held_out_where_they_are_to_be_predicted(bound: BoundScreen) -> None:
    rows = np.arange(len(bound))
    genes = np.unique(bound.batch(rows).perturbation_indices.numpy())
    new = np.isin(bound.batch(rows).perturbation_indices.numpy(), genes[:40])
    ptr = bound.batch(rows).perturbation_indices_ptr.numpy()
    has_new = np.array([new[a:b].any() for a, b in itertools.pairwise(ptr)])
    folds = made(options={"preset": "small"}, base="mean")._folds(bound, rows[~has_new], rows[has_new])
    training = bound.batch(rows[~has_new])
    for held_out in folds:
        lists = torch.split(training.perturbation_indices, training.perturbation_indices_ptr.diff().tolist())
        inside = {int(g) for genes, h in zip(lists, held_out, strict=True) if not h for g in genes}
        outside = {int(g) for genes, h in zip(lists, held_out, strict=True) if h for g in genes}
        assert outside - inside  # genes that the others do not have


def test_a_run(tmp_path: Path) -> None:
    words = ["model=residual", "model.options.base=low-rank", "model.options.options={preset: small}"]
    words += ["data.experiments=200", "trainer.max_epochs=1", "trainer.baselines=[mean]", f"run_dir={tmp_path}/run"]
    said: list[str] = []
    directory = train(compose(words), said.append)
    _, task = load_task(directory, "last")
    assert task.model.out_of_fold is not None
    assert float(task.model.gain.detach().abs()) > 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"folds": 1}, "folds is 1, but it must be at least 2"),
        ({"base": "hetero"}, "base is 'hetero', which is not fitted at once"),
        ({"correction": "pair-gp"}, "correction is 'pair-gp', which is not trained step by step"),
    ],
)
def test_refused(options: dict[str, object], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        models.create("residual", demo_cell(), **options)
