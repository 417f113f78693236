"""Conformal intervals: the quantile, the coverage that it promises, what a run keeps and predicts with."""

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_runs import config

import knockgraph as kg
from knockgraph.models.baselines.baseline import GenotypeRows
from knockgraph.predict import RunPredictor, predict
from knockgraph.run import train
from knockgraph.train.intervals import COVERAGE, LEVELS, Intervals, by_chance, half_width
from knockgraph.train.run import load_task

Command = Callable[..., tuple[str, str]]


@settings(deadline=None)
@given(n=st.integers(0, 300), coverage=st.sampled_from(LEVELS))
def test_the_quantile_is_the_smallest_that_keeps_the_promise(n: int, coverage: float) -> None:
    """Of n + 1 exchangeable errors the last is at most the k-th smallest of the others with probability k / (n + 1)."""
    q = half_width(np.arange(1.0, n + 1), coverage)
    rank = n + 1 if math.isinf(q) else int(q)
    assert rank / (n + 1) >= coverage - 1e-9
    assert rank == 1 or (rank - 1) / (n + 1) < coverage


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_coverage_over_many_draws(seed: int) -> None:
    """The mean over 1,000 draws of 40 labels is the promise, for any distribution of the errors; never below it."""
    random = np.random.default_rng(seed)
    inside = []
    for _ in range(1000):
        y = random.standard_t(2, size=(41, 2)) * [1.0, 30.0]
        found = Intervals.of_errors("last", ("a", "b"), y[:40], np.zeros((40, 2)))
        inside.append(found.measured(y[40:], np.zeros((1, 2))))
    error = math.sqrt(COVERAGE * (1 - COVERAGE) / 1000)
    expected = math.ceil(41 * COVERAGE) / 41
    assert np.mean(inside, 0) == pytest.approx([expected, expected], abs=4.5 * error)


def test_missing_labels_and_few(tmp_path: Path) -> None:
    y = np.array([[1.0, np.nan], [2.0, np.nan], [np.nan, 3.0]])
    found = Intervals.of_errors("best-error", ("a", "b"), y, np.zeros((3, 2)))
    assert found.labels == (2, 1)
    assert found.half_width(0.6).tolist() == [2.0, math.inf]
    assert np.isinf(found.half_width()).all()
    found.save(tmp_path)
    assert Intervals.load(tmp_path, "best-error") == found  # infinite ones, too
    assert Intervals.load(tmp_path, "last") is None
    assert Intervals.load(tmp_path / "nowhere", "last") is None
    with pytest.raises(kg.KnockgraphError, match=r"no intervals with a coverage of 0\.85; use one of 0\.5, 0\.6"):
        found.half_width(0.85)
    (tmp_path / "intervals.json").write_text("{}")
    with pytest.raises(kg.FileFormatError, match=r"intervals.json cannot be read: 'half_widths'; remove it"):
        Intervals.load(tmp_path, "last")
    (tmp_path / "intervals.json").write_text("[" * 100_000)
    with pytest.raises(kg.FileFormatError, match=r"intervals.json cannot be read: .*recursion"):
        Intervals.load(tmp_path, "last")


@pytest.mark.parametrize(("labels", "tested"), [(800, 800), (613, 611), (54, 5000), (5000, 57)])
def test_what_is_within_chance(labels: int, tested: int) -> None:
    """Against the exact distribution, and against intervals of random errors."""
    from scipy.stats import betabinom

    low, high = by_chance(labels, tested, 0.9)
    rank = math.ceil((labels + 1) * 0.9)
    exact = betabinom(tested, rank, labels + 1 - rank)
    assert low == pytest.approx(exact.ppf(0.025) / tested, abs=0.02)
    assert high == pytest.approx(exact.ppf(0.975) / tested, abs=0.02)
    random = np.random.default_rng(0)
    errors = random.exponential(size=(2000, labels + tested))
    q = np.array([half_width(np.sort(row[:labels]), 0.9) for row in errors])
    shares = (errors[:, labels:] <= q[:, None]).mean(1)
    assert 0.93 < ((low <= shares) & (shares <= high)).mean() < 0.98


def test_a_run_keeps_them(finished: Path, command: Command) -> None:
    """16 validation labels: the 90 % half width is the largest error, as computed here from the predictions alone."""
    kept = json.loads((finished / "intervals.json").read_text())
    assert (kept["checkpoint"], kept["phenotypes"], kept["labels"]) == ("best-error", ["gene_interaction"], [16])
    predictor = RunPredictor(finished, note=lambda _: None)
    split, screen = kg.Split.load(finished / "data.split"), kg.demo_screen(160)
    lines: list[str] = []
    texts = ["+".join(screen.genotypes[row]) or "WT" for row in split["val"]]
    predict(finished, None, genes=texts, say=lines.append)
    predicted = np.array([float(line.split("\t")[1]) for line in lines[1:]])
    errors = np.sort(np.abs(screen.phenotypes["gene_interaction"][split["val"]] - predicted))
    assert predictor.intervals is not None
    assert predictor.intervals.half_width()[0] == pytest.approx(errors[math.ceil(17 * 0.9) - 1], rel=1e-4)
    assert predictor.intervals.half_width(0.5)[0] == pytest.approx(errors[math.ceil(17 * 0.5) - 1], rel=1e-4)
    result = json.loads((finished / "result.json").read_text())
    y, p, q = (np.array(x) for x in (result["measured"], result["predicted"], kept["half_widths"]["0.9"][0]))
    assert result["intervals"]["measured"] == [pytest.approx(float(np.mean(np.abs(y - p) <= q)))]
    ((low, high),) = result["intervals"]["by_chance"]
    assert 0.5 < low < 0.9 < high <= 1
    said, _ = command("evaluate", str(finished))
    assert f"({100 * low:.1f} to {100 * high:.1f} % is within chance)" in " ".join(said.split())
    assert f"90 % intervals (prediction ± {q:.3g}, from the validation part)" in said
    assert "90 % intervals" in (finished / "report.html").read_text()


def test_scaled_intervals_hold_for_quiet_and_for_loud_strains(tmp_path: Path) -> None:
    """Half of the errors are four times as large: one width covers 100 and 80 %, scaled ones 90 % of either."""
    random = np.random.default_rng(0)
    spread = np.tile([[1.0], [4.0]], (2000, 1))
    y = random.uniform(-1, 1, spread.shape) * spread
    one, scaled = (Intervals.of_errors("last", ("a",), y[:2000], 0 * y[:2000], s) for s in (None, spread[:2000]))
    covered = []
    for found, s in ((one, None), (scaled, spread[2000:])):
        inside = np.abs(y[2000:]) <= found.widths(y[2000:], s)
        assert found.measured(y[2000:], 0 * y[2000:], spread=s) == [pytest.approx(inside.mean())]
        covered.append([inside[::2].mean(), inside[1::2].mean()])
        low, high = found.around(y[2000:], np.zeros_like(inside), spread=s)
        assert np.allclose(high - low, 2 * found.widths(y[2000:], s))
    assert covered[0] == pytest.approx([1.0, 0.8], abs=0.03)
    assert covered[1] == pytest.approx([0.9, 0.9], abs=0.03)
    scaled.save(tmp_path)
    assert Intervals.load(tmp_path, "last") == scaled
    with pytest.raises(kg.KnockgraphError, match=r"intervals.json are scaled .* remove the file"):
        scaled.widths(y)
    kept = json.loads((tmp_path / "intervals.json").read_text())
    del kept["scaled"]  # as an earlier version wrote it
    (tmp_path / "intervals.json").write_text(json.dumps(kept))
    earlier = Intervals.load(tmp_path, "last")
    assert earlier is not None
    assert not earlier.scaled


def test_a_pair_model_scales_them(tmp_path: Path, command: Command) -> None:
    """What is predicted, printed and reported, against the definition."""
    words = ["model=pair-gp", "data.experiments=900", "trainer.baselines=[]"]
    said: list[str] = []
    directory = train(config(f"run_dir={tmp_path}/run", *words), say=said.append)
    kept = json.loads((directory / "intervals.json").read_text())
    assert kept["scaled"]
    screen, split = kg.demo_screen(900), kg.Split.load(directory / "data.split")
    task = load_task(directory)[1]
    bound, rows = screen.bind(task.graph, "gene_interaction"), split["val"]
    errors = (bound.values[rows] - task.told(task.model.validated, bound.num_perturbed[rows])).abs().numpy()
    ratio = np.sort((errors / task.model.validated_spread.numpy())[:, 0])
    q = ratio[math.ceil((len(ratio) + 1) * 0.9) - 1]
    assert kept["half_widths"]["0.9"] == [pytest.approx(q)]
    found = pq.read_table(directory / "predictions.parquet").to_pydict()
    texts = [("--genes", "+".join(genotype) or "WT") for genotype in found["genotype"]]
    command("predict", str(directory), *itertools.chain(*texts), "-o", str(tmp_path / "out.parquet"))
    out = pq.read_table(tmp_path / "out.parquet").to_pydict()
    low, high = (np.array(out[f"{end}_gene_interaction"]) for end in ("lower", "upper"))
    assert len(np.unique(np.round(high - low, 6))) > 30
    spread = task.model.spread_of(GenotypeRows.of(bound, split["test"])).numpy()[:, 0]
    exact = np.array([len(genotype) == 0 for genotype in found["genotype"]])
    assert np.allclose((high - low)[~exact], (2 * q * spread)[~exact])
    y = np.array(found["measured_gene_interaction"])
    result = json.loads((directory / "result.json").read_text())["intervals"]
    assert result["measured"] == [pytest.approx(np.mean((low <= y) & (y <= high)), abs=0.02)]
    assert result["half_width"] == [pytest.approx(float(np.median(q * spread)), rel=1e-6)]
    ((least, most),) = result["half_width_of_most"]
    assert f"(prediction ± {least:.3g} to {most:.3g} for most, from the validation part)" in " ".join(said)
    (quarters,) = result["by_width"]
    inside, half = np.array((low <= y) & (y <= high))[~exact], ((high - low) / 2)[~exact]
    assert quarters[-1] == pytest.approx(inside[half > np.quantile(half, 0.75)].mean(), abs=0.05)
    assert f"of the widest {100 * quarters[-1]:.1f} %" in " ".join(said)


def test_another_checkpoint_has_none(finished: Path, command: Command) -> None:
    out, _ = command("predict", str(finished), "--genes", "WT", "--checkpoint", "last")
    assert out.splitlines()[0] == "genotype\tgene_interaction\tstandard"
    out, _ = command("predict", str(finished), "--genes", "WT", "--genes", "YAA001W,YAA003W", "--coverage", "0.5")
    _, wild, double = (line.split("\t") for line in out.splitlines())
    assert wild[1:4] == ["0", "0", "0"]  # by definition
    assert float(double[2]) < float(double[1]) < float(double[3])
    _, err = command("predict", str(finished), "--genes", "WT", "--coverage", "0.42", code=1)
    assert "no intervals with a coverage of 0.42; use one of 0.5" in err


def test_classes_have_none(tmp_path: Path) -> None:
    words = ["task=classification", "loss=bce", "data.threshold=-0.1", "data.experiments=300"]
    directory = train(config(f"run_dir={tmp_path}/run", *words), say=lambda _: None)
    assert not (directory / "intervals.json").exists()
    assert "intervals" not in json.loads((directory / "result.json").read_text())
