"""The Lightning task in somebody else's Lightning code: his data module, PyG's loaders."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch_geometric.data import HeteroData
from torch_geometric.loader import DataLoader
from training_runs import LEAST, config

import knockgraph as kg
from knockgraph import GeneListMismatchError, MissingPointerError, PerturbationBatch, PerturbationError, StrategyError
from knockgraph.screen import LabelTransform
from knockgraph.train import task as task_module
from knockgraph.train.data import load_graph, load_screen
from knockgraph.train.ranks import Ranks
from knockgraph.train.task import Task

FOLLOW = ["perturbation_indices"]


@pytest.fixture(scope="module")
def graph() -> kg.CellGraph:
    return load_graph(config(*LEAST).data)


@pytest.fixture(scope="module")
def screen(graph: kg.CellGraph) -> kg.BoundScreen:
    return load_screen(config(*LEAST, "data.experiments=40").data).bind(graph, "gene_interaction")


@pytest.fixture
def task(graph: kg.CellGraph, screen: kg.BoundScreen) -> Task:
    return Task(config(*LEAST), graph, LabelTransform.fit(screen.values, names=screen.phenotype_types))


class CellDataModule(pl.LightningDataModule):
    """As torchcell has one: it knows nothing of knockgraph."""

    def __init__(self, samples: Any, follow: list[str]) -> None:
        super().__init__()
        self.samples, self.follow = samples, follow

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.samples, 8, follow_batch=self.follow)

    val_dataloader = train_dataloader


def foreign(sample: HeteroData, **change: Any) -> HeteroData:
    """A sample of another project: no numbers of experiments and no gene-list hash."""
    made = HeteroData.from_dict(sample.to_dict())
    del made["gene"].experiment, made["gene"].gene_list_hash
    for name, value in change.items():
        if value is None:
            del made["gene"][name]
        else:
            made["gene"][name] = value
    return made


def fitted(task: Task, samples: Any, follow: list[str] = FOLLOW) -> pl.Trainer:
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=5, logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers
        trainer.fit(task, datamodule=CellDataModule(samples, follow))
    return trainer


def test_its_data_module_trains_as_ours(graph: kg.CellGraph, screen: kg.BoundScreen) -> None:
    def made() -> Task:
        return Task(config(*LEAST), graph, LabelTransform.fit(screen.values, names=screen.phenotype_types))

    ours, theirs = made(), made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            accelerator="cpu", max_steps=5, logger=False, enable_checkpointing=False, enable_progress_bar=False
        )
        loader = kg.ScreenLoader(screen, batch_size=8, shuffle=False)
        trainer.fit(ours, loader, loader)
    trainer = fitted(theirs, [foreign(s) for s in kg.PerturbationDataset(screen, graph)])
    assert trainer.global_step == 5
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert ours.validated is not None
    assert theirs.validated is not None
    assert torch.equal(ours.validated[0], theirs.validated[0])


def as_subgraph(sample: HeteroData) -> HeteroData:
    """As torchcell's SubgraphRepresentation: only genes that are left are nodes, with features of their own."""
    made = foreign(sample, phenotype_values_original=sample["gene"].phenotype_values, perturbed_genes=None)
    gene = made["gene"]
    gene.ids_pert = sample["gene"].perturbed_genes
    gene.num_nodes = int(gene.mask.sum())
    gene.x, gene.x_pert = torch.zeros(gene.num_nodes, 2), torch.zeros(len(gene.perturbation_indices), 2)
    gene.phenotype_values = gene.phenotype_values * 7 + 3  # standardised by a transform of the dataset
    made["gene", "physical", "gene"].edge_index = torch.zeros(2, 5, dtype=torch.long)
    return made


def test_its_subgraphs_and_standardised_labels(graph: kg.CellGraph, screen: kg.BoundScreen, task: Task) -> None:
    samples = [as_subgraph(s) for s in kg.PerturbationDataset(screen, graph)][:6]
    (batch,) = DataLoader(samples, 6, follow_batch=FOLLOW)
    made, expected = task.as_batch(batch), screen.batch(torch.arange(6))
    assert made.num_genes == graph.num_genes
    assert torch.equal(made.perturbation_indices, expected.perturbation_indices)
    assert made.phenotype_values is not None
    assert expected.phenotype_values is not None
    assert torch.equal(made.phenotype_values, expected.phenotype_values)
    assert fitted(task, samples).global_step == 5
    # What its data module follows by default.
    with pytest.raises(MissingPointerError, match="add follow_batch to the loader"):
        fitted(task, samples, ["x", "x_pert"])


def test_a_batch_by_itself(task: Task, graph: kg.CellGraph, screen: kg.BoundScreen) -> None:
    samples = [foreign(s) for s in kg.PerturbationDataset(screen, graph)][:3]
    (batch,) = DataLoader(samples, 3, follow_batch=FOLLOW)
    expected = task(screen.batch(torch.arange(3))).values
    assert torch.equal(task(batch).values, expected)
    same = task.as_batch(batch)
    assert isinstance(same, PerturbationBatch)
    assert task.as_batch(same) is same
    assert same.experiment is not None
    assert same.experiment.tolist() == [-1, -1, -1]


@pytest.mark.parametrize(
    ("change", "follow", "error", "message"),
    [
        ({}, [], MissingPointerError, r"no perturbation_indices_ptr.*add follow_batch to the loader"),
        ({"perturbation_indices": None}, [], PerturbationError, "this batch has no perturbation_indices; make its"),
        (
            {"phenotype_types": ["fitness"]},
            FOLLOW,
            PerturbationError,
            r"sample 0 has no value of 'gene_interaction' \(it has fitness\)",
        ),
        (
            {"phenotype_types": None, "phenotype_type_indices": None, "phenotype_values": torch.zeros(2)},
            FOLLOW,
            PerturbationError,
            r"have 2 phenotype_values each, but 1 phenotype \(gene_interaction\) are trained",
        ),
        ({"phenotype_values": None}, FOLLOW, StrategyError, "no labels; give its samples phenotype_values"),
        ({"num_nodes": 7}, FOLLOW, PerturbationError, r"sample \d deletes gene \d+, but gene indices run from 0 to 6"),
        ({"num_nodes": 9000}, FOLLOW, GeneListMismatchError, r"have 9000 genes, but the cell graph has \d+; make the"),
    ],
)
def test_what_is_missing_is_named(
    task: Task, graph: kg.CellGraph, screen: kg.BoundScreen, change: dict, follow: list, error: type, message: str
) -> None:
    samples = [foreign(s, **change) for s in kg.PerturbationDataset(screen, graph)][:8]
    with pytest.raises(error, match=message):
        fitted(task, samples, follow)


def test_nothing_is_recorded_that_another_exchange_of_gradients_would_not_see(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "can_be_graphed", lambda *_: True)
    for strategy, ranks, recorded in ((None, 1, True), (DDPStrategy(), 2, False), (Ranks(), 2, True)):
        task._trainer = SimpleNamespace(world_size=ranks, strategy=strategy)
        assert task._records() == recorded
    task._trainer = None
