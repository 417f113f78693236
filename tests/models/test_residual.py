"""A trained correction of a fitted model."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from knockgraph import BoundScreen, CellGraph, demo_cell, demo_screen, models, strategies
from knockgraph.errors import ModelError
from knockgraph.models.graphed import can_be_graphed
from knockgraph.models.residual import ResidualModel
from knockgraph.run import train
from knockgraph.strategies import PerturbedGraphs
from knockgraph.train import checkpoints
from knockgraph.train.config import compose
from knockgraph.train.data import TrainingData
from knockgraph.train.predictor import load_predictor
from knockgraph.train.run import load_task


@pytest.fixture(scope="module")
def bound() -> BoundScreen:
    return demo_screen(300).bind(demo_cell(), "gene_interaction")


def made(**options: object) -> ResidualModel:
    model = models.create("residual", demo_cell(), **{"correction": "hetero", **options})
    assert isinstance(model, ResidualModel)
    return model


def fitted(bound: BoundScreen, gain: float, **options: object) -> ResidualModel:
    """With a base and a correction that is not zero."""
    torch.manual_seed(0)
    rows = np.arange(len(bound))
    model = made(**{"base": "low-rank", "folds": 2, **options})
    model.prepare(bound, rows[:200], bound.values[:200], (rows[200:], bound.values[200:]), False)
    torch.nn.init.constant_(model.gain, gain)
    return model


class Whole(torch.nn.Module):
    """A correction of somebody else's that has no encoder."""

    def __init__(self, graph: CellGraph) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((graph.num_genes, 1), 0.01))

    def forward(self, view: PerturbedGraphs, batch: object) -> torch.Tensor:
        return (~view.keep).float().T @ self.scale


SMALL = {"correction": "hetero", "options": {"preset": "small"}}
CORRECTIONS: list[dict[str, object]] = [
    SMALL,
    {**SMALL, "perturbed": False},
    {"correction": "hetero", "options": {"preset": "small", "readout": {"local_first": 0.5}}},
    {"correction": "dango", "options": {"channels": 8}},
    {"correction": "additive"},
]


@pytest.mark.parametrize("options", CORRECTIONS)
@pytest.mark.parametrize("training", [True, False])
def test_it_is_an_encoder_and_a_decoder(bound: BoundScreen, options: dict[str, object], training: bool) -> None:
    model = fitted(bound, 0.5, **options).train(training)
    model.begin(0, 4)
    assert model.perturbs == model.correction.perturbs
    batch = bound.batch(np.arange(20))
    with strategies.create("node-mask", demo_cell())(model.columns(batch)) as view:
        expected, encoded = model(view, batch), model.encode(view)
    found = model.decode(encoded, batch)
    assert torch.equal(found.values, expected.values)
    assert found.auxiliary.keys() == expected.auxiliary.keys()
    # The wild type's part may be encoded for itself.
    with strategies.create("node-mask", demo_cell())(batch.only_wild_type()) as view:
        alone = model.encode(view)
    assert torch.allclose(model.decode(model.with_wild_type(encoded, alone), batch).values, expected.values, atol=1e-5)


def test_only_an_encoder_is_recorded() -> None:
    cuda, strategy = torch.device("cuda"), strategies.create("node-mask", demo_cell())
    assert can_be_graphed(made(**SMALL, base="mean"), strategy, cuda)
    assert not can_be_graphed(made(correction="additive", base="mean"), strategy, cuda)


def test_the_base_is_not_rounded(bound: BoundScreen) -> None:
    model = fitted(bound, 0.0, **SMALL).eval()
    batch = bound.batch(np.arange(200, 260))
    with strategies.create("node-mask", demo_cell())(model.columns(batch)) as view, torch.autocast("cpu"):
        found = model(view, batch).values
    assert torch.equal(found, model.base.decode((), batch).values)


def test_genes_have_the_states_of_the_correction(bound: BoundScreen) -> None:
    model = made(**SMALL, base="mean").eval()
    with strategies.create("node-mask", demo_cell())(bound.batch(np.arange(1)).only_wild_type()) as view:
        assert torch.equal(model.gene_states(view), model.correction.gene_states(view))


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


RUN = ["model=residual", "model.options.base=low-rank", "data.experiments=200", "loader.batch_size=8"]
RUN += ["trainer.accelerator=cpu", "trainer.baselines=[mean]", "trainer.progress_bar=false"]


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    "words",
    [
        ["model.options.options={preset: small}"],
        ["model.options.options={preset: small}", "model.options.perturbed=false"],
        [f"model.options.correction={Path(__file__).stem}:Whole"],
    ],
)
def test_a_run_in_bf16_predicts(words: list[str], tmp_path: Path) -> None:
    config = compose([*RUN, *words, "trainer.precision=bf16-mixed", "trainer.max_epochs=1", f"run_dir={tmp_path}/run"])
    directory = train(config, lambda _: None)
    _, predictor = load_predictor(directory, "last")
    batch = demo_screen(50).bind(demo_cell(), "gene_interaction").batch(np.arange(50))
    found = {}
    with torch.no_grad():
        base = predictor.model.base.decode((), batch).values
        for predictor.precision in ("full", "bf16"):
            found[predictor.precision] = predictor(batch).values
    assert found["bf16"].dtype == torch.float32
    correction = (found["full"] - base).abs().max()
    assert correction > 0
    assert (found["full"] - found["bf16"]).abs().max() < 0.05 * correction


@pytest.mark.usefixtures("no_page")
def test_a_correction_that_is_worse_is_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    words = ["model.options.options={preset: small}", "optimizer.lr=1", "trainer.max_epochs=2"]
    directory = train(compose([*RUN, *words, f"run_dir={tmp_path}/run"]), said.append)
    config, task = load_task(directory, "best-error")
    assert "note: this state is the base low-rank alone: no validated correction of it was better" in said
    data = TrainingData.from_directory(config, directory)
    rows = data.rows["val"]
    assert len(rows) > config.loader.batch_size  # all of them are validated, not only the first batch
    batch, expected = data.bound.batch(rows), task.model.base.decode((), data.bound.batch(rows)).values
    with torch.no_grad():
        assert torch.equal(task(batch).values, expected)
    error = (expected - data.transform(data.bound.values[rows])).square().mean()
    for name in ("best-error", "last"):
        state = checkpoints.load(directory / "checkpoints" / f"{name}.ckpt")
        assert state["callbacks"]["Checkpoints"]["values"]["val/mse"] == pytest.approx(float(error), rel=1e-5)
    assert state["global_step"] == 40
    assert float(load_task(directory, "last")[1].model.gain.detach().abs()) > 0


@pytest.mark.usefixtures("no_page")
def test_a_correction_that_is_better_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    words = ["model.options.base=mean", "model.options.options={preset: small}", "trainer.max_epochs=3"]
    directory = train(compose([*RUN, *words, f"run_dir={tmp_path}/run"]), said.append)
    assert float(load_task(directory, "best-error")[1].model.gain.detach().abs()) > 0
    assert not any("alone" in text for text in said)


def test_it_hands_on_what_its_correction_remarks() -> None:
    model = made(base="mean", options={"preset": "small", "readout": {"local_first": 0.5}})
    assert "the base mean alone" in str(model.remark())
    torch.nn.init.ones_(model.gain)
    assert "(model.options.options.readout.local_first=0 trains all parts" in str(model.remark())


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
