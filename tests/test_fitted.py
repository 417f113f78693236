"""The front door: names of the contract, tables in and out, any module as a model, saving and loading."""

import contextlib
import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn
from training_runs import config

import knockgraph as kg
from knockgraph import models, progress
from knockgraph.fitted import _name_of as name_of
from knockgraph.fitted import as_screen
from knockgraph.models.any_module import AnyModule
from knockgraph.run import train
from knockgraph.train.keywords import config_of

pytestmark = pytest.mark.usefixtures("no_page")

Command = Callable[..., tuple[str, str]]
GRAPH = kg.demo_cell()
SCREEN = kg.demo_screen(240)
A, B, C = GRAPH.genes.names[3], GRAPH.genes.names[40], GRAPH.genes.names[100]
FAST: dict[str, Any] = {"epochs": 1, "verbose": False, "baselines": ["mean"], "accelerator": "cpu"}
TINY: dict[str, Any] = {**FAST, "channels": 8}


class Shift(nn.Module):
    """The change of the sum of all states after one layer."""

    def __init__(self, graph: kg.CellGraph, channels: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(graph.num_genes, channels))
        self.out = nn.Linear(channels, 1)

    def forward(self, view: kg.PerturbedGraphs, batch: kg.PerturbationBatch) -> Tensor:
        z = (view.aggregate("physical", self.embedding) * view.keep.unsqueeze(-1)).sum(0)
        return self.out(z[-1] - z)


@pytest.fixture(scope="module")
def fitted() -> kg.Fitted:
    return kg.fit(GRAPH, SCREEN, **TINY)


def table() -> dict[str, Any]:
    texts = ["+".join(genes) or "WT" for genes in SCREEN.genotypes]
    return {"genotype": texts, **{name: values.tolist() for name, values in SCREEN.phenotypes.items()}}


def test_the_contract(fitted: kg.Fitted) -> None:
    """The names of the front door, in the order of the contract."""
    names = ["graph", "screen", "phenotype", "model", "split", "epochs", "seed", "run_dir"]
    assert list(inspect.signature(kg.fit).parameters)[:8] == names
    found = fitted.predict([[A, B], [C], []])
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == ["genotype", "standard", "prediction", "lower", "upper"]
    assert list(found["genotype"]) == [f"{A}+{B}", C, "WT"]
    assert found["standard"][0] == "+".join(map(GRAPH.genes.standard, (3, 40)))
    assert (found["lower"] <= found["prediction"]).all()
    assert found.iloc[2, 2:].tolist() == [0.0, 0.0, 0.0]  # the interaction of the wild type, by definition
    metrics = fitted.evaluate()
    assert list(metrics.index) == ["hetero", "mean"]
    assert {"pearson", "spearman", "rmse_original", "coverage"} <= set(metrics.columns)
    assert 0 <= metrics.loc["hetero", "coverage"] <= 1
    states = fitted.embeddings()
    assert list(states.index) == list(GRAPH.genes.names)
    assert states.shape == (360, 8)


@pytest.mark.parametrize(("name", "zero"), [("epsilon", True), ("GI score", True), ("fitness", False)])
def test_the_wild_type_of_an_interaction_score(name: str, zero: bool) -> None:
    """Whatever the table calls it."""
    genotypes = ["+".join(genes) or "WT" for genes in SCREEN.genotypes]
    table = {"genotype": genotypes, name: SCREEN.phenotypes["gene_interaction"]}
    found = kg.fit(GRAPH, table, model="additive", **FAST)
    extrapolated = pytest.warns(UserWarning, match="for the wild type")
    with contextlib.nullcontext() if zero else extrapolated:
        wild_type, single = found.predict([[], [A]]).iloc[:, 2:].to_numpy()
    assert (wild_type == 0).all() == zero
    assert single[0] != 0


def test_many_candidates_are_not_waited_for_without_a_word(fitted: kg.Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("knockgraph.fitted._MANY", 5)
    done: list[tuple[int, int]] = []
    names = [A, B, C, "YAA005W"]
    with pytest.warns(UserWarning, match="6 pairs are predicted on the CPU, which may take hours; give genes="):
        expected = fitted.candidates(genes=names)
    found = fitted.candidates(genes=names, progress=lambda *counts: done.append(counts))
    pd.testing.assert_frame_equal(found, expected)
    assert done[-1][0] <= done[-1][1] == 6


def test_it_is_the_run_of_the_command_line(tmp_path: Path, command: Command) -> None:
    """The same config, the same weights: a run of either is read by the other."""
    SCREEN.save(tmp_path / "screen.parquet")
    GRAPH.save(tmp_path / "my.cellgraph")
    words = [f"data.cell={tmp_path}/my.cellgraph", f"data.screen={tmp_path}/screen.parquet", "trainer.max_epochs=1"]
    words += ["model=hetero-small", "model.options.channels=8", "trainer.baselines=[mean]", "loader.batch_size=32"]
    other = train(config(*words, f"run_dir={tmp_path}/other"), say=lambda _: None)
    mine = kg.fit(tmp_path / "my.cellgraph", tmp_path / "screen.parquet", run_dir=tmp_path / "mine", **TINY)
    theirs = kg.load(other)
    pd.testing.assert_frame_equal(mine.predict([[A, B], [C]]), theirs.predict([[A, B], [C]]))
    pd.testing.assert_frame_equal(mine.evaluate(), theirs.evaluate())
    out, _ = command("predict", str(mine.directory), "--genes", f"{A},{B}")
    assert float(out.splitlines()[1].split("\t")[1]) == pytest.approx(
        theirs.predict([[A, B]])["prediction"][0], rel=1e-5
    )
    command("evaluate", str(mine.directory))


def test_saved_and_loaded(fitted: kg.Fitted, tmp_path: Path) -> None:
    """A saved run is complete: it is evaluated, and knows what was measured, wherever it lies."""
    place = fitted.save(tmp_path / "deep" / "run")
    shutil.move(place, tmp_path / "moved")
    loaded = kg.load(tmp_path / "moved")
    pd.testing.assert_frame_equal(loaded.predict([[A, B]]), fitted.predict([[A, B]]))
    assert loaded.evaluate("val").shape == fitted.evaluate().shape
    assert loaded.split.parts.keys() == fitted.split.parts.keys()
    with pytest.raises(kg.KnockgraphError, match="it is there already; choose another folder"):
        fitted.save(tmp_path / "moved")
    with pytest.raises(kg.ConfigError, match=r"is .* a run directory"):
        kg.load(tmp_path / "nowhere")


def test_a_saved_run_of_the_command_line_keeps_its_screen(tmp_path: Path) -> None:
    directory = train(config(f"run_dir={tmp_path}/run"), say=lambda _: None)
    assert not (directory / "screen.parquet").exists()
    assert (kg.load(directory).save(tmp_path / "copy") / "screen.parquet").exists()
    assert kg.load(tmp_path / "copy").evaluate("test").shape == (3, 7)


def test_a_temporary_run_goes_with_its_object() -> None:
    fitted = kg.fit(GRAPH, SCREEN, **{**FAST, "model": "additive"})
    directory = fitted.directory
    assert directory.is_dir()
    del fitted
    assert not directory.exists()


@pytest.fixture(scope="module")
def additive() -> Any:
    """What an additive model of the screen predicts."""
    return kg.fit(GRAPH, SCREEN, phenotype="fitness", model="additive", **FAST).predict([[A, B], [C]])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table], ids=["pandas", "polars", "arrow"])
def test_tables_in_and_out(make: Callable[[dict[str, Any]], Any], additive: Any) -> None:
    """The same table of any library gives the same model, and the answer comes in that library."""
    fitted = kg.fit(GRAPH, make(table()), phenotype="fitness", model="additive", **FAST)
    found = fitted.predict([[A, B], [C]])
    assert type(found) is type(make(table()))
    columns = {name: np.array(found[name]) for name in ("genotype", "prediction", "lower", "upper")}
    assert columns["genotype"].tolist() == additive["genotype"].tolist()
    for name in ("prediction", "lower", "upper"):
        np.testing.assert_allclose(columns[name], additive[name], rtol=1e-12)
    asked = make({"genotype": [f"{A}+{B}", C]})
    np.testing.assert_array_equal(np.array(fitted.predict(asked)["prediction"]), columns["prediction"])


def test_ways_to_write_a_genotype(fitted: kg.Fitted) -> None:
    expected = fitted.predict([[A, B]])["prediction"][0]
    ways = ([[B.lower(), A]], [(A, B)], f"{A}+{B}", [f"{A}|{B}"], kg.Screen([[A, B]], {"x": [1.0]}), [[A, B, A]])
    for way in ways:
        assert fitted.predict(way)["prediction"].tolist() == [expected]
    assert len(fitted.predict([A, B])) == 2  # two single deletions
    assert fitted.predict([[f"{A}=0.5", B]])["genotype"][0] == f"{A}=0.5+{B}"
    with pytest.raises(kg.UnknownGeneError, match="'NEITHER', 'NOPE'"):
        fitted.predict([["NOPE"], [A, "NEITHER"]])


def test_several_phenotypes() -> None:
    fitted = kg.fit(GRAPH, SCREEN, phenotype=["fitness", "gene_interaction"], model="additive", **FAST)
    with pytest.warns(UserWarning, match="with 1, 2 and 3 deleted genes: expect less of predictions for the wild type"):
        found = fitted.predict([[A, B], []])
    assert list(found.columns) == ["genotype", "standard", "phenotype", "prediction", "lower", "upper"]
    assert list(found["phenotype"]) == ["fitness", "gene_interaction"] * 2
    with pytest.raises(kg.KnockgraphError, match="this run predicts fitness and gene_interaction; say by which"):
        fitted.candidates(genes=[A, B, C])
    assert len(fitted.candidates(top=2, genes=[A, B, C], phenotype="fitness")) == 4


def test_candidates(fitted: kg.Fitted) -> None:
    genes = list(GRAPH.genes.names[:30])
    measured = {"+".join(genes) for genes in SCREEN.genotypes}
    found = fitted.candidates(top=1000, genes=genes)
    assert 0 < len(found) < 30 * 29 / 2
    assert not set(found["genotype"]) & measured
    assert len(fitted.candidates(top=1000, new=False, genes=genes)) == 30 * 29 / 2
    assert found["prediction"].abs().is_monotonic_decreasing
    assert fitted.candidates(top=3, genes=genes, order="lowest")["prediction"].is_monotonic_increasing
    again = fitted.predict(found["genotype"][:5])
    np.testing.assert_allclose(again["prediction"], found["prediction"][:5], rtol=1e-5)


def test_any_module(tmp_path: Path) -> None:
    """A class, an object, a function; a class that is no import can be loaded where it is given again."""
    fitted = kg.fit(GRAPH, SCREEN, model=Shift, channels=3, run_dir=tmp_path / "run", **FAST)
    assert fitted.model.module.embedding.shape == (360, 3)
    assert kg.load(tmp_path / "run").predict([[A]]).equals(fitted.predict([[A]]))

    class Local(Shift):
        def gene_states(self, view: kg.PerturbedGraphs) -> Tensor:
            return self.embedding

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.level = nn.Parameter(torch.zeros(1))

        def forward(self, view: kg.PerturbedGraphs, batch: kg.PerturbationBatch) -> Tensor:
            return self.level.expand(batch.num_samples, 1)

    given = Local(GRAPH)
    before = given.embedding.clone()
    assert kg.fit(GRAPH, SCREEN, model=given, **FAST).embeddings().shape == (360, 4)
    assert torch.equal(given.embedding, before)  # a copy was trained
    for model, channels in ((Local, 4), (lambda graph: Local(graph, 5), 5)):
        made = models.create(name_of(model), GRAPH)
        assert isinstance(made, AnyModule)
        assert made.module.embedding.shape == (360, channels)
    assert kg.fit(GRAPH, SCREEN, model=Alone, **FAST).predict([[A], [B]])["prediction"].nunique() == 1
    with pytest.raises(kg.ModelError, match=r"Shift gives no states of genes; give its class a method gene_states"):
        fitted.embeddings()
    with pytest.raises(kg.ModelError, match="3 is no model; give a name, a torch module, its class, or a function"):
        kg.fit(GRAPH, SCREEN, model=3, **FAST)


def test_a_baseline_as_the_model() -> None:
    fitted = kg.fit(GRAPH, SCREEN, model="low-rank", **FAST)
    found = fitted.predict([[A, B]])
    assert found["lower"][0] < found["prediction"][0] < found["upper"][0]
    assert 0 <= fitted.evaluate("val").loc["low-rank", "coverage"] <= 1
    with pytest.raises(kg.KnockgraphError, match="low-rank cannot be explained: it is fitted at once"):
        fitted.explain([A, B])


def test_anndata() -> None:
    """A vector per genotype: a phenotype for each variable; ``ctrl`` is no gene."""
    anndata = pytest.importorskip("anndata")
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    names = ["+".join(genes) if genes else "ctrl" for genes in kg.demo_screen(60).genotypes]
    names[0] = f"{A}+ctrl"
    obs = pd.DataFrame({"condition": names}, index=[f"cell{k}" for k in range(60)])
    data = anndata.AnnData(x, obs=obs, var=pd.DataFrame(index=["E1", "E2", "E3"]))
    fitted = kg.fit(GRAPH, data, model="additive", **FAST)
    assert fitted.phenotypes == ("E1", "E2", "E3")
    assert list(fitted.predict([[A]])["phenotype"]) == ["E1", "E2", "E3"]
    del data.obs["condition"]
    with pytest.raises(kg.ScreenError, match="its obs needs a column genotype or perturbation or condition"):
        kg.fit(GRAPH, data, **FAST)


def test_splits() -> None:
    split = kg.splits.unseen_genes(SCREEN, "any", 0.2)
    fitted = kg.fit(GRAPH, SCREEN, model="additive", split=split, **FAST)
    for part, rows in split.parts.items():
        np.testing.assert_array_equal(fitted.split[part], rows)
    assert config_of("additive", 360, {"folds": 4}).data.split.folds == 4
    with pytest.raises(kg.ConfigError, match=r"'by-gene' is not one of random, genotype"):
        kg.fit(GRAPH, SCREEN, split="by-gene", **FAST)
    with pytest.raises(kg.SplitError, match="made for another screen"):
        kg.fit(GRAPH, kg.demo_screen(100), split=split, **FAST)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"chanels": 3}, "there is no option 'chanels' .did you mean 'channels'"),
        ({"modle": "dango"}, "there is no option 'modle' .did you mean 'model'"),
        ({"dropout": 0.1}, "may mean model.options.messages.dropout or model.options.readout.dropout"),
        ({"max_epochs": 3}, "'trainer.max_epochs' is the argument epochs=… of fit"),
        ({"resume": True}, "has no meaning in Python"),
        ({"preset": "huge"}, "has no preset 'huge'; it has small, fast, pairs, reference"),
        ({"batch_size": "many"}, "loader.batch_size"),
        ({"phenotype": "fitnes"}, "has no phenotype 'fitnes' .did you mean 'fitness'"),
        ({"model": "heterro"}, "heterro"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(kg.KnockgraphError, match=text):
        kg.fit(GRAPH, SCREEN, run_dir=tmp_path / "run", verbose=False, **options)
    assert not (tmp_path / "run").exists()


def test_options_by_their_last_word_in_full_and_in_groups() -> None:
    options = {"batch_size": 64, "optimizer": {"lr": 0.5}, "model.options.messages.dropout": 0.1, "layers": 2}
    found = config_of("hetero", 360, {**options, "loss": "log-cosh", "readout": {"gain": 2.0}})
    assert (found.loader.batch_size, found.optimizer.lr, found.loss.name) == (64, 0.5, "log-cosh")
    assert found.model.options["messages"]["dropout"] == 0.1
    assert found.model.options["messages"]["layers"] == 2
    assert found.model.options["messages"]["residual"] is False  # the rest of the preset stays
    readout = {"local": "pairs", "combine": "sum", "local_first": 0.7, "gain": 2.0}
    assert found.model.options["readout"] == readout
    assert config_of("hetero", 6607, {}).model.options["messages"]["aggregation"] == "pairwise"
    assert config_of("hetero", 360, {"preset": "reference"}).model.options["messages"]["layers"] == 3


def test_what_is_no_screen(tmp_path: Path) -> None:
    with pytest.raises(kg.ScreenError, match=r"a list is no screen; give a kg\.Screen, a path, or a table"):
        kg.fit(GRAPH, [1, 2], **FAST)
    two = kg.Screen([[A], [B]], {"x": [1.0, 2.0], "y": [1.0, 2.0]})
    with pytest.raises(kg.ScreenError, match="several phenotypes, x and y; say which to predict, phenotype="):
        kg.fit(GRAPH, two, **FAST)
    with pytest.raises(kg.KnockgraphError, match="no such file"):
        kg.fit(GRAPH, tmp_path / "no.csv", **FAST)
    with pytest.raises(kg.ScreenError, match=r"choose with --gene-columns .* \(in Python: .*TableOptions"):
        kg.fit(GRAPH, {"x": [A], "y": [B], "score": [1.0]}, **FAST)


def test_genotypes_in_a_file_and_with_marks(fitted: kg.Fitted, tmp_path: Path) -> None:
    expected = fitted.predict([[A, B], [C]])
    (tmp_path / "new.csv").write_text(f"gene_a,gene_b\n{A.lower()}Δ,{B}\n{C},\n")
    SCREEN.take(np.array([0])).save(tmp_path / "screen.parquet")
    for given in (tmp_path / "new.csv", str(tmp_path / "new.csv"), [f"{A}Δ+{B}::kanMX", [C]]):
        pd.testing.assert_frame_equal(fitted.predict(given), expected)
    assert len(fitted.predict(tmp_path / "screen.parquet")) == 1
    assert repr(fitted.explain(f"{A}Δ+{B}")) == repr(fitted.explain([A, B]))
    with pytest.raises(kg.KnockgraphError, match="there is no such file"):
        fitted.predict("no.csv")


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    kg.fit(GRAPH, SCREEN, model="additive", run_dir=tmp_path / "run", **FAST)
    before = (tmp_path / "run" / "cell.cellgraph").stat().st_mtime_ns
    with pytest.raises(kg.KnockgraphError, match="already holds a run"):
        kg.fit(GRAPH, SCREEN, model="additive", run_dir=tmp_path / "run", **FAST)
    assert (tmp_path / "run" / "cell.cellgraph").stat().st_mtime_ns == before


def test_one_line_and_a_card(fitted: kg.Fitted) -> None:
    things: list[Any] = [fitted, GRAPH, SCREEN, fitted.split, SCREEN.bind(GRAPH, "fitness")]
    for thing in things:
        assert "\n" not in repr(thing)
        assert len(repr(thing)) < 200
    for thing in things[:4]:
        html = thing._repr_html_()
        assert html.startswith("<div>")
        assert html.endswith("</div>")
        assert html.count("<tr>") > 2
    hostile = kg.Screen([["<b>x"]], {"<i>": [1.0]})._repr_html_()
    assert "<b>" not in hostile
    assert "<i>" not in hostile


def test_quiet_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    kg.fit(GRAPH, SCREEN, model="additive", **FAST)
    assert capsys.readouterr().out == ""
    fitted = kg.fit(GRAPH, SCREEN, model="additive", **{**FAST, "verbose": True, "progress_bar": False})
    said = capsys.readouterr().out
    assert "phenotype gene_interaction" in said
    assert "90 % intervals" in said
    assert json.loads((fitted.directory / "result.json").read_text())["part"] == "test"


def test_a_long_fit_tells_its_progress_only_if_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    for verbose in (True, False):
        kg.fit(GRAPH, SCREEN, model="pair-gp", **{**FAST, "verbose": verbose})
        said = capsys.readouterr()
        assert ("pair-gp, after 0:0" in said.err) == verbose
        assert bool(said.out) == verbose


def test_what_cannot_be_meant_is_one_sentence(fitted: kg.Fitted) -> None:
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: kg.fit(table(), GRAPH), "the graph is a dict; give a kg.CellGraph or the path of one first, then"),
        (lambda: kg.fit(GRAPH, SCREEN, epochs="3"), "epochs is '3'; give a whole number"),
        (lambda: kg.fit(GRAPH, SCREEN, epochs=2.5), "epochs is 2.5; give a whole number"),
        (lambda: kg.fit(GRAPH, SCREEN, seed=None), "seed is None; give a whole number"),
        (lambda: fitted.candidates(top="5"), "top is '5'; give a whole number"),
        (lambda: fitted.explain([[A, B]]), r"explain takes one genotype, such as \['A', 'B'\] or 'A\+B', not"),
        (lambda: fitted.predict(None), r"None are no genotypes; give a list such as \[\['A', 'B'\], \['C'\]\]"),
    ]
    for call, message in wrong:
        with pytest.raises(kg.KnockgraphError, match=message):
            call()


def test_a_matrix_is_known_by_the_genes_of_the_cell() -> None:
    """One with other genes in rows than in columns was read as many phenotypes of single genes."""
    names, random = GRAPH.genes.names, np.random.default_rng(0)
    matrix = pd.DataFrame({"Gene": names[:20], **{name: random.normal(size=20) for name in names[20:40]}})
    found = kg.fit(GRAPH, matrix, phenotype="score", model="low-rank", **FAST)
    assert found.result["experiments"] == 40  # of 400 in the test part


def test_columns_as_a_mapping_lazily_and_by_pattern() -> None:
    columns = {**table(), "m_1": list(range(len(SCREEN))), "m_2": [k % 7 for k in range(len(SCREEN))]}
    assert len(as_screen(columns, say=str)) == len(SCREEN)
    assert len(as_screen(pl.DataFrame(columns).lazy(), say=str)) == len(SCREEN)
    found = kg.fit(GRAPH, columns, phenotype=["m_*", "fitness"], **TINY)
    assert set(found.phenotypes) == {"m_1", "m_2", "fitness"}
