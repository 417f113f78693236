"""From the config to what is trained on: splits, classes, labels, relations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import config

import knockgraph as kg
from knockgraph.errors import ConfigError
from knockgraph.train.data import TrainingData, load_graph, make_split, of_screen


def cell(genes: str = "abcdefgh") -> kg.CellGraph:
    n = len(genes)
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    return kg.CellGraph(list(genes), {"ring": ring, "back": ring.flip(0)})


def screen(values: Any = None, n: int = 40, **statistics: Any) -> kg.Screen:
    genotypes = [["abcdefgh"[k % 8], "abcdefgh"[(k // 8 + k + 1) % 8]] for k in range(n)]
    given = np.sin(np.arange(n)) if values is None else values
    return kg.Screen(genotypes, {"score": given}, {"score": statistics} if statistics else None)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    cell().save(tmp_path / "my.cellgraph")
    screen().save(tmp_path / "my.parquet")
    return [
        "data=files",
        f"data.cell={tmp_path}/my.cellgraph",
        f"data.screen={tmp_path}/my.parquet",
        "data.phenotype=score",
    ]


def data(files: list[str], *overrides: str) -> TrainingData:
    made = config(*files, *overrides)
    made.data.experiments = None
    return TrainingData.from_config(made)


def given(experiments: kg.Screen, *overrides: str) -> TrainingData:
    made = config("data.phenotype=score", *overrides)
    return TrainingData(made, cell(), experiments, make_split(made.data, experiments))


def test_splits_from_the_config(files: list[str], tmp_path: Path) -> None:
    expected = {
        "random": kg.splits.random,
        "genotype": kg.splits.by_genotype,
    }
    unique = screen().merge_duplicates()
    unique.save(tmp_path / "my.parquet")
    for kind, make in expected.items():
        found = data(
            files, f"data.split.kind={kind}", "data.split.seed=3", "data.split.fractions=[0.5,0.25,0.25]"
        ).split
        reference = make(unique, [0.5, 0.25, 0.25], 3, None)
        assert all(np.array_equal(found[part], reference[part]) for part in ("train", "val", "test")), kind
    found = data(files, "data.split.kind=k-fold", "data.split.folds=4", "data.split.fold=2").split
    reference = kg.splits.k_fold(unique, 4, 2, 0)
    assert all(np.array_equal(found[part], reference[part]) for part in ("train", "val", "test"))
    found = data(files, "data.split.kind=unseen-genes", "data.split.unseen=any", "data.split.held_out=0.2").split
    reference = kg.splits.unseen_genes(unique, "any", 0.2, 0)
    assert found.held_out == reference.held_out
    assert data(files, "data.split.subset=20").split.num_experiments == 20


def test_split_from_a_file(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config key 'data\.split\.file': kind=file needs the path"):
        data(files, "data.split.kind=file")
    split = kg.splits.by_genotype(screen(), [0.6, 0.2, 0.2], 9)
    split.save(tmp_path / "my.split")
    found = data(files, "data.split.kind=file", f"data.split.file={tmp_path}/my.split").split
    assert all(np.array_equal(found[part], split[part]) for part in split.parts)
    kg.splits.by_genotype(screen(n=39)).save(tmp_path / "my.split")
    with pytest.raises(kg.SplitError, match="another screen"):
        data(files, "data.split.kind=file", f"data.split.file={tmp_path}/my.split")


def test_an_empty_part(files: list[str]) -> None:
    with pytest.raises(kg.SplitError, match="leaves test empty"):
        data(files, "data.split.fractions=[0.5,0.5,0]")
    with pytest.raises(kg.SplitError, match="must be three numbers"):
        data(files, "data.split.fractions=[0.5,0.5]")


def test_a_part_that_binding_emptied() -> None:
    experiments = screen(n=40)
    made = config("data.phenotype=score", "data.missing=drop")
    split = make_split(made.data, experiments)
    values = experiments.phenotypes["score"].copy()
    values[split["val"]] = np.nan
    with pytest.raises(kg.SplitError, match=r"none of the .* rows of the val part is left after binding"):
        TrainingData(made, cell(), screen(values), split)


def test_labels_are_standardised_by_the_training_part() -> None:
    for kind, slow in (
        ("standard", lambda y: (y.mean(), y.std())),
        ("min-max", lambda y: (y.min(), np.ptp(y))),
        ("robust", lambda y: (np.median(y), np.subtract(*np.percentile(y, [75, 25])))),
        ("none", lambda y: (0.0, 1.0)),
    ):
        made = given(screen(np.arange(40.0) ** 2), f"data.transform={kind}")
        center, scale = slow(made.bound.values[made.rows["train"], 0].double().numpy())
        assert made.transform.center.item() == pytest.approx(center)
        assert made.transform.scale.item() == pytest.approx(scale)
        for part in ("train", "val", "test"):
            expected = (made.bound.values[made.rows[part]].double().numpy() - center) / scale
            np.testing.assert_allclose(made.targets(part), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "overrides", "error", "text"),
    [
        (np.full(40, 0.25), [], kg.LabelError, r"training labels are constant \(0.25\)"),
        (np.where(np.arange(40) == 7, np.nan, 1.0), [], kg.LabelError, "1 of 40 experiments have no value for score"),
        (np.full(40, np.nan), ["data.missing=drop"], kg.ScreenError, "nothing is left of 40 experiments"),
        (np.full(40, 1e300), [], kg.LabelError, "which float32 cannot hold"),
    ],
)
def test_labels_that_cannot_be_trained_on(values: Any, overrides: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        given(screen(values), *overrides)


def test_missing_labels_are_dropped_and_counted() -> None:
    values = np.sin(np.arange(40.0))
    values[[3, 17]] = np.nan
    made = given(screen(values), "data.missing=drop")
    assert made.bound.report.without_label == 2
    assert sum(map(len, made.rows.values())) == 38
    assert not set(made.bound.experiment.tolist()) & {3, 17}


CLASSES = ["task=classification", "loss=bce"]


def test_classes_by_threshold_and_p_value() -> None:
    values = np.linspace(-1, 1, 40)
    p = np.resize([0.01, 0.2, 0.05], 40)
    made = given(screen(values, p_value=p), *CLASSES, "data.threshold=0.1", "data.max_p_value=0.05")
    expected = (values.astype(np.float32) < 0.1) & (p.astype(np.float32) < 0.05)
    np.testing.assert_array_equal(made.bound.values[:, 0].numpy(), expected)
    assert 0 < expected.sum() < 40
    assert made.transform.kind == "none"  # classes are never rescaled
    made = given(screen(values), *CLASSES, "data.threshold=0.1")
    np.testing.assert_array_equal(made.bound.values[:, 0].numpy(), values < 0.1)
    made = given(screen((values > 0).astype(float)), *CLASSES)
    np.testing.assert_array_equal(made.bound.values[:, 0].numpy(), values > 0)


@pytest.mark.parametrize(
    ("values", "overrides", "error", "text"),
    [
        (
            np.linspace(-1, 1, 40),
            [],
            kg.LabelError,
            r"needs labels 0 and 1, but score holds -1 … 1; set data\.threshold",
        ),
        (np.arange(40) % 3, [], kg.LabelError, "needs labels 0 and 1"),
        (np.ones(40), [], kg.SplitError, "all labels are 1, so there is nothing to classify"),
        (np.linspace(-1, 1, 40), ["data.threshold=-5"], kg.SplitError, "all labels are 0"),
        (
            np.linspace(-1, 1, 40),
            ["data.threshold=0", "data.max_p_value=0.1"],
            kg.ScreenError,
            r"statistic 'score\.p_value'",
        ),
        (np.where(np.arange(40) == 7, np.nan, 1.0), [], kg.LabelError, "have no value for score"),
    ],
)
def test_what_cannot_be_classified(values: Any, overrides: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        given(screen(values), *CLASSES, *overrides)


def test_relations(files: list[str]) -> None:
    assert list(data(files).graph.relations) == ["ring", "back"]
    assert list(data(files, "data.relations=[back]").graph.relations) == ["back"]
    assert list(data(files, "data.relations=[back,ring]").graph.relations) == ["back", "ring"]
    with pytest.raises(
        ConfigError, match=r"config key 'data\.relations': the graph has no relation 'physical'; it has ring, back"
    ):
        data(files, "data.relations=[ring,physical]")
    with pytest.raises(ConfigError, match="no relation is left"):
        data(files, "data.relations=[]")
    demo = load_graph(config("data.relations=[regulatory]").data)
    assert list(demo.relations) == ["regulatory"]
    assert (demo.metabolism, demo.genes) == (kg.demo_cell().metabolism, kg.demo_cell().genes)
    assert list(demo.features) == list(kg.demo_cell().features)


def test_a_screen_of_another_cell(files: list[str], tmp_path: Path) -> None:
    cell("abcdefgx").save(tmp_path / "my.cellgraph")
    with pytest.raises(kg.UnknownGeneError, match="'h'"):
        data(files)
    made = data(files, "data.unknown=drop")
    assert made.bound.report.with_unknown_genes > 0
    assert len(made.bound) == 40 - made.bound.report.with_unknown_genes
    with pytest.raises(kg.UnknownGeneError, match="gene names do not resolve"):
        TrainingData.from_config(config(f"data.cell={tmp_path}/my.cellgraph"))  # the demo screen


def test_missing_files_and_phenotypes(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(kg.ScreenError, match="has no phenotype 'fitness'; it has score"):
        data(files, "data.phenotype=fitness")
    with pytest.raises(kg.FileFormatError, match=f"cannot read {tmp_path}/no.cellgraph"):
        data(files, f"data.cell={tmp_path}/no.cellgraph")
    with pytest.raises(kg.FileFormatError, match=f"cannot read {tmp_path}/no.parquet"):
        data(files, f"data.screen={tmp_path}/no.parquet")


def test_loaders_visit_their_part_once(files: list[str]) -> None:
    made = data(files, "loader.batch_size=7")
    for part in ("train", "val", "test"):
        seen = torch.cat([batch.experiment for batch in made.loader(part, shuffle=part == "train")])
        assert sorted(seen.tolist()) == made.split[part].tolist()


def test_merged_relations() -> None:
    both = load_graph(config("data.merge={both: [physical, co*]}").data)
    assert list(both.relations) == ["both", "regulatory"]
    assert both == kg.demo_cell().merged({"both": ["physical", "coexpression"]})
    chosen = load_graph(config("data.relations=[physical,regulatory]", "data.merge={all: ['*']}").data)
    assert list(chosen.relations) == ["all"]
    with pytest.raises(
        ConfigError, match=r"config key 'data\.merge': no relation matches 'tf\*', to be merged into 'x'"
    ):
        load_graph(config("data.merge.x=[tf*]").data)


@pytest.mark.parametrize(("strategy", "resident"), [("node-mask", True), ("lazy-mask", False), ("subgraph", False)])
def test_what_is_made_in_workers_starts_on_the_host(
    files: list[str], strategy: str, resident: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A screen that lived on the GPU gave worker-side strategies batches that they could not collate."""
    made = data(files)
    own = kg.strategies.create(strategy, made.graph)
    monkeypatch.setattr(made, "_device", lambda: torch.device("cuda"))
    moved: list[Any] = []
    monkeypatch.setattr(kg.screen.BoundScreen, "to", lambda bound, device: moved.append(device) or bound)
    made.loader("train", False, own).close()
    assert bool(moved) == resident


def test_only_the_genes_of_the_screen() -> None:
    names = kg.demo_cell().genes.names
    screen = kg.Screen([{names[9], names[4]}, {names[2]}, {"nobody"}, set()], {"fitness": [0.5, 0.7, 0.2, 1.0]})
    assert of_screen(kg.demo_cell(), screen).genes.names == (names[2], names[4], names[9])
    data = TrainingData.from_config(config("data.experiments=300", "data.genes=screened"))
    assert set(data.graph.genes.names) == set(data.screen.genotypes.names)


def test_which_genes_a_part_deletes() -> None:
    data = TrainingData.from_config(config("data.experiments=300"))
    for part in ("train", "test"):
        deleted = {gene for genes in data.bound.batch(data.rows[part]).tolist() for gene in genes}
        assert set(data.deleted(part).nonzero().flatten().tolist()) == deleted
