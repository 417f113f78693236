"""Several phenotypes at once, some of their labels missing: from a table to training, evaluation and prediction."""

import csv
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.stats
import torch
import yaml
from training_runs import QUIET, close, config, weights

import knockgraph as kg
from knockgraph.errors import ConfigError, KnockgraphError, LabelError, ModelError, SplitError
from knockgraph.evaluate import ceiling, evaluate
from knockgraph.models import baselines
from knockgraph.predict import predict
from knockgraph.run import train
from knockgraph.train.config import compose, load
from knockgraph.train.data import TrainingData
from knockgraph.train.metrics import classification_metrics, headline, regression_metrics
from knockgraph.train.metrics_file import curves
from knockgraph.train.plain_config import compose_plain
from knockgraph.train.run import load_task, make_task

Command = Callable[..., tuple[str, str]]
BOTH = "data.phenotypes=[fitness,gene_interaction]"
SILENT: Any = lambda _: None  # noqa: E731


def with_holes(experiments: int = 160) -> kg.Screen:
    """The demo; a third of the fitness and, elsewhere, half of the interactions are missing, in some rows both."""
    demo = kg.demo_screen(experiments)
    fitness, interaction = (demo.phenotypes[name].copy() for name in ("fitness", "gene_interaction"))
    fitness[1::3] = interaction[::2] = np.nan
    return kg.Screen(demo.genotypes, {"fitness": fitness, "gene_interaction": interaction})


@pytest.fixture(scope="module")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("screens") / "holes.parquet"
    with_holes().save(path)
    return path


def test_from_a_table_to_predictions(command: Command, tmp_path: Path) -> None:
    screen = with_holes()
    with (tmp_path / "screen.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["genotype", *screen.phenotypes])
        for genes, *values in zip(screen.genotypes, *screen.phenotypes.values(), strict=True):
            writer.writerow(["+".join(genes) or "WT", *("" if math.isnan(v) else v for v in values)])
    target = ("-o", tmp_path / "screen.parquet", "--missing", "keep")
    command("screen", "import", "table", "--from", tmp_path / "screen.csv", *target)
    run = tmp_path / "run"
    words = [f"data.screen={tmp_path}/screen.parquet", BOTH, "loader.batch_size=16", "trainer.max_epochs=2", *QUIET]
    small = ["model.options.channels=8", "trainer.plot_every_n_epochs=1", f"run_dir={run}"]
    _, refused = command("train", *words, *small, code=1)
    assert "have no value for fitness or gene_interaction" in refused
    said, _ = command("train", *words, *small, "data.missing=drop")
    both = int(np.isnan(list(screen.phenotypes.values())).all(0).sum())
    labels = [int((~np.isnan(v)).sum()) for v in screen.phenotypes.values()]
    assert f"note: left out {both} experiments without a label" in said
    assert f"labels are known ({labels[0]} of fitness and {labels[1]} of gene_interaction); the loss and the" in said
    assert "2 phenotypes (fitness and gene_interaction), task regression" in said
    assert "test part, means over 2 phenotypes:" in said
    assert "hetero" in said.splitlines()[-1]
    assert "of 2 phenotypes" in said.splitlines()[-1]

    written = pq.read_table(run / "predictions.parquet").to_pydict()
    result = json.loads((run / "result.json").read_text())
    assert result["phenotypes"] == ["fitness", "gene_interaction"]
    for k, name in enumerate(result["phenotypes"]):
        there = [i for i, value in enumerate(written[f"measured_{name}"]) if value is not None]
        assert 0 < len(there) < result["experiments"]
        assert result["labels"][k] == len(there)
        measured, predicted = (
            np.array(written[f"{kind}_{name}"], dtype=float)[there] for kind in ("measured", "predicted")
        )
        np.testing.assert_allclose(measured, screen.phenotypes[name][np.array(written["experiment"])[there]], rtol=1e-6)
        # The wild type's interaction would be told as 0, and scored as predicted.
        assert name == "fitness" or all(written["genotype"][i] for i in there)
        scores = result["by_phenotype"]["hetero"]
        assert scores["pearson"][k] == pytest.approx(scipy.stats.pearsonr(predicted, measured)[0], abs=1e-5)
        assert scores["rmse_original"][k] == pytest.approx(np.sqrt(np.mean((predicted - measured) ** 2)), rel=1e-5)
    mean = np.mean(result["by_phenotype"]["hetero"]["pearson"])
    assert result["metrics"]["hetero"]["pearson"] == pytest.approx(mean)
    logged = curves(run / "metrics.csv")
    each = np.array([logged[f"val/pearson/{name}"] for name in result["phenotypes"]])[..., 1]
    np.testing.assert_allclose(each.mean(0), np.array(logged["val/pearson"])[:, 1], rtol=1e-5)
    assert sorted(path.stem for path in (run / "checkpoints").iterdir()) == [
        "best-error",
        "best-score",
        "last",
        "previous",
    ]
    page = (run / "report.html").read_text()
    assert "measured gene_interaction" in page
    assert "Means over 2 phenotypes" in page
    assert (run / "plots" / "epoch-0002-predicted.svg").is_file()

    again, _ = command("evaluate", run, "--html", tmp_path / "page.html", "--json", tmp_path / "found.json")
    assert (
        json.loads((tmp_path / "found.json").read_text())["by_phenotype"]["hetero"] == result["by_phenotype"]["hetero"]
    )
    assert again.splitlines()[-2] == said.splitlines()[-1]
    out, _ = command("predict", run, "--genes", "YAA001W,YAA002C", "--genes", "WT")
    head, *rows = [line.split("\t") for line in out.splitlines()]
    assert head == ["genotype", "fitness", "gene_interaction", "standard"]
    assert rows[1][0] == "WT"
    assert rows[1][2] == "0"  # by definition; its fitness is not
    assert float(rows[1][1]) != 0
    for name in ("o.csv", "o.parquet"):
        said, _ = command("predict", run, "--screen", run / "predictions.parquet", "-o", tmp_path / name)
        assert "columns predicted_fitness and predicted_gene_interaction" in said
    table = pq.read_table(tmp_path / "o.parquet").to_pydict()
    for name in result["phenotypes"]:
        np.testing.assert_allclose(table[f"predicted_{name}"], written[f"predicted_{name}"], rtol=1e-4, atol=1e-6)
    with (tmp_path / "o.csv").open() as file:
        text = list(csv.DictReader(file))
    np.testing.assert_allclose([float(r["predicted_fitness"]) for r in text], table["predicted_fitness"])


@pytest.mark.parametrize(
    "loss",
    [
        "loss=composite",
        "loss=gaussian",
        pytest.param("loss=log-cosh", marks=pytest.mark.full),
        pytest.param("model=dango", marks=pytest.mark.full),
    ],
)
def test_every_loss_and_resume(loss: str, holes: Path, tmp_path: Path) -> None:
    words = [f"data.screen={holes}", BOTH, "data.missing=drop", "model=hetero-small", "model.options.channels=4", loss]
    words += ["loss.options.buffer_size=24", "loss.options.contrastive_weight=0.1"] if "composite" in loss else []
    half = train(config(*words, f"run_dir={tmp_path}/half"), say=SILENT)
    made = config(*words, f"run_dir={half}", "resume=true", "trainer.max_epochs=2")
    train(made, say=SILENT, overrides=[BOTH, "trainer.max_epochs=2"])
    assert len(curves(half / "metrics.csv")["val/mse"]) == 2
    assert all(math.isfinite(value) for _, value in curves(half / "metrics.csv")["train/loss"])
    other = config(f"run_dir={half}", "resume=true", "data.phenotype=fitness")
    with pytest.raises(ConfigError, match=r"'data\.phenotypes': it is \['fitness', 'gene_interaction'\] in this run"):
        train(other, say=SILENT, overrides=["data.phenotype=fitness"])


def test_a_noise_is_learned_for_each_phenotype(holes: Path, tmp_path: Path) -> None:
    words = [f"data.screen={holes}", BOTH, "data.missing=drop", "loss=gaussian"]
    run = train(config(*words, f"run_dir={tmp_path}/run"), say=SILENT)
    noise = weights(run)["loss.log_noise"]
    assert noise.shape == (2,)
    assert (noise != 0).all()
    assert load_task(run, "last")[1].loss.state_dict()["log_noise"].equal(noise)
    with pytest.raises(
        ConfigError, match=r"'loss\.options\.outputs': it is 3, but 2 phenotypes will be trained; leave"
    ):
        train(config(*words, "loss.options.outputs=3", f"run_dir={tmp_path}/three"), say=SILENT)
    assert not (tmp_path / "three").exists()


def test_a_label_counts_the_same_in_whatever_batch(holes: Path) -> None:
    """Gradients of one step: accumulated batches of 8 are one of 64."""
    found = []
    for size in (8, 64):
        cfg = config(f"data.screen={holes}", BOTH, "data.missing=drop", f"loader.batch_size={size}")
        data = TrainingData.from_config(cfg)
        task = make_task(cfg, data.graph, data.transform).double()
        assert data.transform.known < 1
        data.rows["train"] = data.rows["train"][:64]
        for batch in data.loader("train", shuffle=False):
            prediction, target = task(batch), data.transform(batch.phenotype_values.double())
            loss = task.loss(prediction, target, step_size=batch.step_size, known=data.transform.known).total
            (loss * size / 64).backward()
        found.append({name: p.grad for name, p in task.model.named_parameters()})
    assert close(*found, 1e-12)


def test_thousands_of_phenotypes(tmp_path: Path) -> None:
    demo = kg.demo_screen(300)
    random = np.random.default_rng(0)
    measured = np.stack([demo.phenotypes[name] for name in ("fitness", "gene_interaction")], 1)
    y = measured @ random.normal(size=(2, 2000)) + 0.1 * random.normal(size=(300, 2000))
    y[random.random(y.shape) < 0.2] = np.nan
    names = [f"expression_{k:04d}" for k in range(2000)]
    kg.Screen(demo.genotypes, {**dict(zip(names, y.T, strict=True)), "other": y[:, 0]}).save(tmp_path / "wide.parquet")
    words = [f"data.screen={tmp_path}/wide.parquet", "data.phenotypes=[expression_*]", "trainer.baselines=[mean]"]
    start = time.perf_counter()
    said: list[str] = []
    run = train(config(*words, f"run_dir={tmp_path}/run", "trainer.max_epochs=3"), say=said.append)
    summary = predict(run, tmp_path / "out.parquet", genes=["YAA001W", "YAA002C+YAA003W"], say=SILENT)
    assert time.perf_counter() - start < 60  # a loop over columns in each of the 48 steps would take minutes
    assert summary["columns"] == [f"predicted_{name}" for name in names]
    assert pq.read_table(tmp_path / "out.parquet").shape == (
        2,
        2 + 3 * 2000,
    )  # genotype, standard; prediction, lower, upper of each
    losses = [value for _, value in curves(run / "metrics.csv")["train/loss"]]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    result = json.loads((run / "result.json").read_text())
    assert len(result["by_phenotype"]["additive"]["pearson"]) == len(result["labels"]) == 2000
    assert result["metrics"]["additive"]["pearson"] == pytest.approx(
        np.mean(result["by_phenotype"]["additive"]["pearson"])
    )
    # Summaries, not two thousand lines.
    assert len(said) < 30
    assert sum("of 2,000 phenotypes" in line for line in said) == 2
    assert "val/pearson/expression_0000" not in curves(run / "metrics.csv")
    page = (run / "report.html").read_text()
    assert "expression_1999" not in page
    assert "highest tenth" in page
    with pytest.raises(KnockgraphError, match="2,000 phenotypes are too many to print"):
        predict(run, None, genes=["YAA001W"], say=SILENT)


def test_classes_of_two_phenotypes(tmp_path: Path) -> None:
    screen = with_holes(200)
    statistics = {name: {"p_value": np.linspace(0, 0.2, len(screen))} for name in screen.phenotypes}
    made = kg.Screen(screen.genotypes, screen.phenotypes, statistics)
    made.save(tmp_path / "s.parquet")
    words = [f"data.screen={tmp_path}/s.parquet", BOTH, "data.missing=drop", "task=classification", "loss=bce"]
    with pytest.raises(LabelError, match="needs labels 0 and 1, but fitness holds"):
        TrainingData.from_config(config(*words))
    words += ["data.threshold=0.3", "data.max_p_value=0.15"]
    data = TrainingData.from_config(config(*words))
    kept = data.bound.experiment.numpy()
    for column, values in zip(data.bound.values.T, screen.phenotypes.values(), strict=True):
        y, p = values[kept], statistics["fitness"]["p_value"][kept]
        np.testing.assert_array_equal(column, np.where(np.isnan(y), np.nan, (y < 0.3) & (p < 0.15)))
    run = train(config(*words, f"run_dir={tmp_path}/run"), say=SILENT)
    result = json.loads((run / "result.json").read_text())
    written = pq.read_table(run / "predictions.parquet").to_pydict()
    assert result["metrics"]["additive"]["auroc"] == pytest.approx(
        np.nanmean([v for v in result["by_phenotype"]["additive"]["auroc"] if v is not None])
    )
    for name in ("fitness", "gene_interaction"):
        assert {v for v in written[f"measured_{name}"] if v is not None} <= {0.0, 1.0}
        assert None in written[f"measured_{name}"]
    assert predict(run, None, genes=["YAA001W"], say=SILENT)["columns"] == [
        "predicted_fitness_probability",
        "predicted_gene_interaction_probability",
    ]
    with pytest.raises(SplitError, match="all labels of fitness are 0, so there is nothing to classify"):
        TrainingData.from_config(config(*words, "data.threshold=-1"))


def test_metrics_of_each_phenotype_against_scipy() -> None:
    random = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(2, 50, 4, generator=random, dtype=torch.float64)
    prediction = prediction.round(decimals=1)  # ties
    target[torch.rand(50, 4, generator=random) < 0.3] = torch.nan
    target[:, 3] = torch.nan
    target[0, 3] = 1.0
    found = regression_metrics(prediction, target, torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64))
    classes = torch.where(target.isnan(), target, (target > 0).double())
    scores = classification_metrics(prediction, classes)
    for k in range(3):
        there = ~target[:, k].isnan()
        p, y, c = prediction[there, k], target[there, k], classes[there, k]
        assert found["mse_original"][k].item() == pytest.approx(((p - y) ** 2).mean().item() * (k + 1) ** 2)
        assert found["pearson"][k].item() == pytest.approx(scipy.stats.pearsonr(p, y)[0])
        assert found["spearman"][k].item() == pytest.approx(scipy.stats.spearmanr(p, y)[0])
        # One phenotype with all its labels is what torchmetrics computes.
        alone = {name: value.item() for name, value in classification_metrics(p.unsqueeze(1), c.unsqueeze(1)).items()}
        assert {name: scores[name][k].item() for name in alone} == pytest.approx(alone, abs=1e-6)
    assert found["mse"][3].item() == pytest.approx((prediction[0, 3] - 1).item() ** 2)
    assert found["pearson"][3].isnan()
    assert headline(found)["pearson"].item() == pytest.approx(found["pearson"][:3].mean().item())


@pytest.mark.parametrize("name", ["mean", "additive", "ridge-pairs", "low-rank", "smoothing"])
def test_a_baseline_is_fitted_to_the_labels_of_each_phenotype(name: str) -> None:
    cell, screen = kg.demo_cell(), with_holes(300)
    bound = screen.bind(cell, missing="drop")
    train_rows, test_rows = np.arange(180), np.arange(180, len(bound))
    together = baselines.create(name, cell).fit(bound, train_rows, bound.values[train_rows]).predict(bound, test_rows)
    assert together.shape == (len(test_rows), 2)
    for k in range(2):
        known = train_rows[~bound.values[train_rows, k].isnan().numpy()]
        alone = baselines.create(name, cell).fit(bound, known, bound.values[known, k : k + 1])
        assert torch.equal(together[:, k : k + 1], alone.predict(bound, test_rows))


def test_a_ceiling_is_of_the_labels_that_there_are() -> None:
    names = [f"G{k % 20}" for k in range(80)]
    random = np.random.default_rng(0)
    y = np.arange(80) % 20 + random.normal(0, 3, 80)
    holes = y.copy()
    holes[60:] = np.nan
    cell = kg.CellGraph([f"G{k}" for k in range(20)], {"r": torch.tensor([[0], [1]])})
    both = kg.Screen([[n] for n in names], {"a": y, "b": holes}).bind(cell)
    alone = kg.Screen([[n] for n in names[:60]], {"b": y[:60]}).bind(cell)
    found = baselines.reproducibility_ceiling(both, phenotype="b")
    assert found == baselines.reproducibility_ceiling(alone)
    assert found != baselines.reproducibility_ceiling(both, phenotype="a")


def test_a_ceiling_that_is_known_of_one_phenotype_is_not_that_of_their_mean(tmp_path: Path) -> None:
    demo = kg.demo_screen(300)
    without = kg.Screen(demo.genotypes, demo.phenotypes, {"fitness": demo.statistics["fitness"]})
    without.save(tmp_path / "one.parquet")
    words = [BOTH, "data.cell=demo", "data.experiments=null"]
    for screen, known in ((tmp_path / "one.parquet", False), ("demo", True)):
        mean, each = ceiling(TrainingData.from_config(config(*words, f"data.screen={screen}")))
        assert [mean is not None, each[1] is not None] == [known, known]
        assert each[0] is not None


def test_spellings_of_the_key() -> None:
    for read in (compose, compose_plain):
        assert read([]).data.phenotypes == ["gene_interaction"]
        assert read(["data.phenotype=fitness"]).data.phenotypes == ["fitness"]
        assert read(["data.phenotypes=fitness"]).data.phenotypes == ["fitness"]
        assert read(["data.phenotypes=[a,b]"]).data.phenotypes == ["a", "b"]
        with pytest.raises(ConfigError, match=r"'data\.phenotype': it is short for data\.phenotypes=\[…\]; give one"):
            read(["data.phenotype=a", "data.phenotypes=[b]"])
        with pytest.raises(ConfigError, match=r"'data\.phenotype': \['a', 'b'\] is not one name; .* data\.phenotypes"):
            read(["data.phenotype=[a,b]"])
        for wrong in ("[]", "[a,a]"):
            with pytest.raises(ConfigError, match=r"'data\.phenotypes': .* must name at least one phenotype, and each"):
                read([f"data.phenotypes={wrong}"])


def test_outputs_follow_from_the_phenotypes(holes: Path, tmp_path: Path) -> None:
    words = [f"data.screen={holes}", BOTH, "data.missing=drop", f"run_dir={tmp_path}/run"]
    with pytest.raises(
        ModelError, match="the option outputs is 3, but there are 2 phenotypes to predict; leave it out"
    ):
        train(config(*words, "model.options.outputs=3"), say=SILENT)
    with pytest.raises(ModelError, match=r"gives 1 output for 2 phenotypes; give its class the argument outputs"):
        train(config(*words, f"model={__name__}:OneOutput"), say=SILENT)
    cfg = config("data.zero_below=2", "data.phenotypes=[a,b]")
    with pytest.raises(ConfigError, match=r"'data\.zero_below': of several phenotypes it concerns those that are"):
        make_task(cfg, kg.demo_cell(), kg.LabelTransform("none", torch.zeros(2), torch.ones(2)))


class OneOutput(torch.nn.Module):
    """A model of somebody who did not think of several phenotypes."""

    def __init__(self, graph: kg.CellGraph) -> None:
        super().__init__()
        self.value = torch.nn.Parameter(torch.zeros(1))

    def forward(self, view: Any, batch: kg.PerturbationBatch) -> torch.Tensor:
        return self.value.expand(batch.num_samples, 1)


def test_run_directories_of_earlier_versions(finished: Path, tmp_path: Path) -> None:
    """Their config has ``phenotype``, their checkpoints other names and no names of phenotypes."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    written = yaml.safe_load((run / "config.yaml").read_text())
    (written["data"]["phenotype"],) = written["data"].pop("phenotypes")
    (run / "config.yaml").write_text(yaml.safe_dump(written))
    for new, old in (("best-error", "best-mse"), ("best-score", "best-pearson")):
        (run / "checkpoints" / f"{new}.ckpt").rename(run / "checkpoints" / f"{old}.ckpt")
    assert load(run / "config.yaml").data.phenotypes == ["gene_interaction"]
    for which in ("best-error", "best-mse", "best-score"):
        expected, found = load_task(finished, which.replace("mse", "error"))[1], load_task(run, which)[1]
        assert close(expected.state_dict(), found.state_dict(), 0.0)
    assert evaluate(run, "test", "best-error", SILENT)["phenotypes"] == ["gene_interaction"]
    with pytest.raises(KnockgraphError, match="has no checkpoint 'best-pearson'; its name is best-score now"):
        load_task(finished, "best-pearson")
    assert weights(run, "best-mse")
