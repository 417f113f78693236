"""Baselines against closed forms, and the figures known for a real screen."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.random import default_rng
from scipy.stats import pearsonr

from knockgraph import BoundScreen, CellGraph, Screen, demo_cell, demo_screen
from knockgraph.errors import GeneListMismatchError, LabelError
from knockgraph.models import baselines
from knockgraph.models.baselines import BaselineError, reproducibility_ceiling, ridge
from knockgraph.models.baselines.ridge import Indicators, solve_ridge
from knockgraph.sources.tables import read_table

GENES = [f"G{number:02d}" for number in range(12)]


def cell(genes: list[str] = GENES) -> CellGraph:
    return CellGraph(genes, {"physical": torch.tensor([[0], [1]])})


def screen(n: int = 80, seed: int = 0, genes: int = 10, most: int = 4) -> BoundScreen:
    """Wild type, single, double, triple deletions, the first of each size at the start; the last two genes unseen."""
    random = default_rng(seed)
    sizes = np.append(np.arange(most), random.integers(0, most, n - most))
    genotypes = [random.choice(GENES[:genes], size, replace=False).tolist() for size in sizes]
    return Screen(genotypes, {"fitness": random.normal(1.0, 1.0, n)}).bind(cell())


def unseen(genotypes: list[list[str]]) -> BoundScreen:
    return Screen(genotypes, {"fitness": np.zeros(len(genotypes))}).bind(cell())


def design(bound: BoundScreen, pairs: list[tuple[int, int]]) -> np.ndarray:
    """Constant, genes, pairs: the dense 0/1 matrix."""
    lists = bound.batch(np.arange(len(bound))).tolist()
    x = np.zeros((len(bound), 1 + bound.num_genes + len(pairs)))
    x[:, 0] = 1
    for row, genes in enumerate(lists):
        x[row, [1 + g for g in genes]] = 1
        for column, (g, h) in enumerate(pairs):
            x[row, 1 + bound.num_genes + column] = g in genes and h in genes
    return x


def closed_form(x: np.ndarray, y: np.ndarray, penalty: np.ndarray) -> np.ndarray:
    return np.linalg.solve(x.T @ x + np.diag(np.append(0.0, penalty)), x.T @ y)


def seen_pairs(bound: BoundScreen) -> list[tuple[int, int]]:
    lists = bound.batch(np.arange(len(bound))).tolist()
    return sorted({pair for genes in lists for pair in itertools.combinations(sorted(genes), 2)})


@pytest.mark.parametrize("name", baselines.available())
def test_interface(name: str) -> None:
    bound = screen()
    rows = np.arange(60)
    values = bound.values[:60].clone()
    fitted = baselines.create(name, cell()).fit(bound, rows, values)
    predicted = fitted.predict(bound, np.arange(60, 80))
    assert predicted.shape == (20, 1)
    assert predicted.dtype == torch.float32
    assert predicted.isfinite().all()
    assert torch.equal(values, bound.values[:60])
    again = baselines.create(name, cell()).fit(bound, rows, values)
    assert torch.equal(again.predict(bound, np.arange(60, 80)), predicted)
    backwards = fitted.predict(bound, np.arange(60, 80)[::-1])
    torch.testing.assert_close(backwards.flip(0), predicted)
    assert fitted.predict(bound, np.arange(0)).shape == (0, 1)


def test_names() -> None:
    assert baselines.available()[:6] == ["mean", "additive", "ridge-pairs", "low-rank", "boosting", "smoothing"]
    assert baselines.available()[6:] == ["soft-impute", "pair-gp", "profile-propagation"]


def test_mean() -> None:
    bound = screen()
    fitted = baselines.create("mean").fit(bound, np.arange(50), bound.values[:50])
    torch.testing.assert_close(fitted.predict(bound, np.arange(80)), bound.values[:50].mean().expand(80, 1))


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_additive_is_ridge_regression(ridge: float) -> None:
    bound = screen()
    rows = default_rng(1).permutation(80)[:60]
    x, y = design(bound, []), bound.values[:, 0].double().numpy()
    solution = closed_form(x[rows], y[rows], np.full(12, ridge))
    fitted = baselines.create("additive", ridge=ridge).fit(bound, rows, bound.values[rows])
    np.testing.assert_allclose(fitted.predict(bound, np.arange(80))[:, 0], x @ solution, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fitted.effect, solution[1:], atol=1e-8)
    assert fitted.effect[10:].tolist() == [0.0, 0.0]  # genes without a training row


def test_ridge_pairs_is_ridge_regression() -> None:
    bound = screen()
    pairs = seen_pairs(bound)
    x, y = design(bound, pairs), bound.values[:, 0].double().numpy()
    solution = closed_form(x, y, np.repeat([0.5, 2.0], [12, len(pairs)]))
    fitted = baselines.create("ridge-pairs", ridge=0.5, pair_ridge=2.0).fit(bound, np.arange(80), bound.values)
    np.testing.assert_allclose(fitted.predict(bound, np.arange(80))[:, 0], x @ solution, rtol=1e-5, atol=1e-6)
    # A pair that was never seen contributes nothing, an unseen gene neither.
    some = unseen([["G00", "G11"], ["G00"], ["G10", "G11"], []])
    predicted = fitted.predict(some, np.arange(4))[:, 0].numpy()
    assert predicted[0] == predicted[1]
    assert predicted[2] == predicted[3] == np.float32(fitted.constant)


def test_solver_gives_up_with_a_text() -> None:
    x = Indicators(np.array([0, 1, 1]), np.array([0, 0, 1]), (3, 2))
    with pytest.raises(BaselineError, match="did not converge in 1 steps; use a larger ridge"):
        solve_ridge(x, np.array([1.0, 2.0, -1.0]), np.full(2, 0.1), max_iterations=1)


def test_low_rank_is_a_minimum() -> None:
    bound = screen(200)
    options = {"rank": 3, "ridge": 0.5, "additive_ridge": 0.7, "tolerance": 0.0, "max_sweeps": 3000}
    fitted = baselines.create("low-rank", **options).fit(bound, np.arange(200), bound.values)
    x = torch.from_numpy(design(bound, []))[:, 1:]
    y = bound.values[:, 0].double()
    y = (y - y.mean()) / y.std(correction=0)
    c = torch.tensor(fitted.constant, dtype=torch.float64, requires_grad=True)
    b, u = (torch.from_numpy(a.copy()).requires_grad_() for a in (fitted.effect, fitted.factor))
    product = u @ torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)) @ u.T
    pair_sum = torch.einsum("ng,gh,nh->n", x, product.triu(1), x)  # the pairs g < h of each genotype
    score = c + x @ b + pair_sum
    objective = (y - score).square().sum() + 0.7 * b.square().sum() + 0.5 * u.square().sum()
    objective.backward()
    for parameter in (c, b, u):
        assert parameter.grad.abs().max() < 1e-3
    expected = score.detach() * bound.values.double().std(correction=0) + bound.values.double().mean()
    torch.testing.assert_close(fitted.predict(bound, np.arange(200))[:, 0].double(), expected, rtol=1e-5, atol=1e-5)


def test_low_rank_sweeps_never_increase_the_objective() -> None:
    bound = screen(200)
    objectives = []
    for sweeps in range(1, 8):
        model = baselines.create("low-rank", rank=4, ridge=1.0, max_sweeps=sweeps, tolerance=0.0)
        model.fit(bound, np.arange(200), bound.values)
        y = (bound.values[:, 0].double().numpy() - model.center) / model.scale
        left = y - (model.predict(bound, np.arange(200))[:, 0].double().numpy() - model.center) / model.scale
        objectives.append(float(left @ left + (model.effect**2).sum() + (model.factor**2).sum()))
    assert all(b <= a + 1e-4 for a, b in itertools.pairwise(objectives))
    assert objectives[-1] < objectives[0]


def test_low_rank_finds_planted_factors_in_triples() -> None:
    # One positive and one negative direction: no inner product without signs can express both.
    random = default_rng(0)
    u = random.normal(size=(12, 2))
    triples = list(itertools.combinations(range(12), 3))
    y = [sum(u[g, 0] * u[h, 0] - u[g, 1] * u[h, 1] for g, h in itertools.combinations(t, 2)) for t in triples]
    bound = Screen([[GENES[g] for g in t] for t in triples], {"f": y}).bind(cell())
    rows = random.permutation(len(bound))
    train, test = rows[:160], rows[160:]
    options = {"rank": 2, "ridge": 1e-3, "additive_ridge": 1e-3, "max_sweeps": 300, "tolerance": 1e-9}
    fitted = baselines.create("low-rank", **options).fit(bound, train, bound.values[train])
    assert pearsonr(fitted.predict(bound, test)[:, 0], bound.values[test, 0]).statistic > 0.999
    additive = baselines.create("additive").fit(bound, train, bound.values[train])
    assert pearsonr(additive.predict(bound, test)[:, 0], bound.values[test, 0]).statistic < 0.9


def test_low_rank_of_unseen_genes_is_the_additive_part() -> None:
    bound = screen(200)
    fitted = baselines.create("low-rank", rank=3, ridge=0.5).fit(bound, np.arange(200), bound.values)
    predicted = fitted.predict(unseen([["G03", "G11"], ["G03"], ["G10", "G11"], []]), np.arange(4))[:, 0]
    assert predicted[0] == predicted[1] != predicted[3]
    assert predicted[2] == predicted[3]


def test_seed_of_low_rank() -> None:
    bound = screen(200)
    a, b = (baselines.create("low-rank", seed=s, ridge=0.1).fit(bound, np.arange(200), bound.values) for s in (0, 1))
    assert not torch.equal(a.predict(bound, np.arange(200)), b.predict(bound, np.arange(200)))


@pytest.mark.parametrize("name", baselines.available())
def test_nothing_but_the_wild_type(name: str) -> None:
    bound = unseen([[], [], ["G01", "G02"]])
    fitted = baselines.create(name, cell()).fit(bound, np.arange(2), torch.tensor([[1.0], [3.0]]))
    assert fitted.predict(bound, np.arange(3)).tolist() == [[2.0], [2.0], [2.0]]


@pytest.mark.parametrize("name", baselines.available())
def test_constant_labels(name: str) -> None:
    bound = screen()
    fitted = baselines.create(name, cell()).fit(bound, np.arange(80), torch.full((80, 1), 0.25))
    torch.testing.assert_close(fitted.predict(bound, np.arange(80)), torch.full((80, 1), 0.25))


def test_ridge_pairs_by_rows_is_ridge_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 genotypes of 500 genes have 30 million pairs, and were not fitted in minutes."""
    graph = CellGraph([f"G{k}" for k in range(30)], {"none": torch.empty(2, 0, dtype=torch.long)})
    random = np.random.default_rng(0)
    genotypes = [[f"G{g}" for g in random.choice(30, random.integers(0, 8), replace=False)] for _ in range(90)]
    bound = Screen(genotypes, {"f": random.normal(size=90)}).bind(graph)
    found = []
    for most in (10**7, 0):
        monkeypatch.setattr(ridge, "_MOST_PAIRS", most)
        fitted = baselines.create("ridge-pairs", ridge=0.5, pair_ridge=2.0).fit(bound, np.arange(60), bound.values[:60])
        found.append(fitted.predict(bound, np.arange(90)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["additive", "ridge-pairs", "low-rank"])
def test_classes_are_ranked(name: str) -> None:
    bound = screen(300)
    positive = torch.tensor([float(0 in genes) for genes in bound.batch(np.arange(300)).tolist()]).unsqueeze(1)
    score = baselines.create(name).fit(bound, np.arange(200), positive[:200]).predict(bound, np.arange(200, 300))
    assert score[positive[200:] == 1].min() > score[positive[200:] == 0].max()


def test_demo() -> None:
    bound = demo_screen(4_000).bind(demo_cell(), "gene_interaction")
    rows = default_rng(0).permutation(4_000)
    train, test = rows[:3_200], rows[3_200:]
    score = {}
    for name in ("additive", "ridge-pairs", "low-rank"):
        fitted = baselines.create(name).fit(bound, train, bound.values[train])
        score[name] = pearsonr(fitted.predict(bound, test)[:, 0], bound.values[test, 0]).statistic
    ceiling = reproducibility_ceiling(bound)
    assert score["additive"] < score["ridge-pairs"] < score["low-rank"] < ceiling
    assert ceiling == pytest.approx(0.90, abs=0.02)  # as the demo states it


def replicated(genotypes: int, times: int, signal: float, noise: float, unreplicated: int = 0) -> BoundScreen:
    random = default_rng(0)
    pairs = list(itertools.combinations(range(60), 2))[: genotypes + unreplicated]
    truth = random.normal(0.0, signal, len(pairs))
    which = np.concatenate([np.repeat(np.arange(genotypes), times), np.arange(genotypes, len(pairs))])
    y = truth[which] + random.normal(0.0, noise, len(which))
    names = [f"Y{i:02d}" for i in range(60)]
    lists = [[names[g] for g in pairs[i]] for i in which]
    std = {"fitness": {"std": np.full(len(which), 0.5)}}
    return Screen(lists, {"fitness": y}, std).bind(cell(names))


@pytest.mark.parametrize(("signal", "noise", "times"), [(1.0, 0.5, 2), (0.3, 0.6, 4), (1.0, 0.0, 2)])
def test_ceiling_of_replicates(signal: float, noise: float, times: int) -> None:
    expected = signal / np.hypot(signal, noise)
    bound = replicated(1_500, times, signal, noise, unreplicated=200)
    assert reproducibility_ceiling(bound) == pytest.approx(expected, abs=0.03)
    assert reproducibility_ceiling(bound, np.arange(0, 1_000)) == pytest.approx(expected, abs=0.06)


def test_ceiling_is_reached_by_the_truth() -> None:
    bound = replicated(1_500, 2, 1.0, 0.5)
    truth = default_rng(0).normal(0.0, 1.0, 1_500)
    reached = pearsonr(np.repeat(truth, 2), bound.values[:, 0]).statistic
    assert reproducibility_ceiling(bound) == pytest.approx(reached, abs=0.02)


def test_ceiling_of_pairs_is_the_root_of_their_correlation() -> None:
    bound = replicated(1_000, 2, 1.0, 0.7)
    first, second = bound.values[::2, 0].numpy(), bound.values[1::2, 0].numpy()
    assert reproducibility_ceiling(bound) == pytest.approx(np.sqrt(pearsonr(first, second).statistic), abs=0.005)


def test_ceiling_of_pure_noise_is_0() -> None:
    bound = replicated(200, 2, 0.0, 1.0)
    assert reproducibility_ceiling(bound) < 0.4
    opposite = Screen([[g] for g in GENES for _ in "ab"], {"fitness": [1.0, -1.0] * len(GENES)}).bind(
        cell()
    )  # replicates that contradict each other exactly
    assert reproducibility_ceiling(opposite) == 0.0


def test_ceiling_without_replicates() -> None:
    stated = replicated(0, 1, 1.0, 0.5, unreplicated=1_500)
    variance = stated.values.double().var().item()
    assert reproducibility_ceiling(stated) == pytest.approx(np.sqrt(1 - 0.25 / variance), rel=1e-6)
    assert reproducibility_ceiling(unseen([["G01"], ["G02"], []])) is None
    assert reproducibility_ceiling(unseen([[]] * 30)) is None  # one genotype tells nothing about the others
    assert reproducibility_ceiling(unseen([])) is None
    nan = Screen([["G01"], ["G02"]], {"f": [1.0, 2.0]}, {"f": {"std": [np.nan, np.nan]}}).bind(cell())
    assert reproducibility_ceiling(nan) is None


def test_ceiling_of_means_of_replicates() -> None:
    """Columns of replicates become a mean, whose error is smaller than theirs."""
    random = default_rng(1)
    names = [f"Y{i:02d}" for i in range(60)]
    genotypes = list(itertools.combinations(names, 2))
    truth = random.normal(0.0, 1.0, len(genotypes))
    table = {"gene_a": [a for a, _ in genotypes], "gene_b": [b for _, b in genotypes]}
    table |= {f"f rep {k}": truth + random.normal(0.0, 0.8, len(truth)) for k in (1, 2, 3)}
    screen, _ = read_table(pa.table(table))
    reached = pearsonr(truth, screen.phenotypes["f"]).statistic
    assert reproducibility_ceiling(screen.bind(cell(names))) == pytest.approx(reached, abs=0.02)


def test_ceiling_errors() -> None:
    two = Screen([["G01"]], {"fitness": [1.0], "score": [2.0]}).bind(cell())
    with pytest.raises(BaselineError, match=r"several phenotypes \(fitness, score\); give the one for which"):
        reproducibility_ceiling(two)
    with pytest.raises(BaselineError, match="the screen has no phenotype 'size'; it has fitness, score"):
        reproducibility_ceiling(two, phenotype="size")
    assert reproducibility_ceiling(two, phenotype="score") is None


def test_errors() -> None:
    bound = screen()
    with pytest.raises(BaselineError, match=r"'median' \(did you mean 'mean'\?\); use one of mean, additive, ridge"):
        baselines.create("median")
    with pytest.raises(BaselineError, match="the baseline additive has no option 'rank'; it has ridge"):
        baselines.create("additive", rank=3)
    with pytest.raises(BaselineError, match="the baseline mean has no option 'ridge'; it has none"):
        baselines.create("mean", ridge=3)
    for name, option in (("additive", "ridge"), ("ridge-pairs", "pair_ridge"), ("low-rank", "additive_ridge")):
        with pytest.raises(BaselineError, match=f"{option} is 0.0, but it must be positive"):
            baselines.create(name, **{option: 0.0})
    for option in ("rank", "max_sweeps"):
        with pytest.raises(BaselineError, match=f"{option} is 0, but it must be at least 1"):
            baselines.create("low-rank", **{option: 0})
    model = baselines.create("mean")
    with pytest.raises(BaselineError, match="Mean was not fitted; call fit first"):
        model.predict(bound, np.arange(3))
    with pytest.raises(BaselineError, match=r"the labels have shape \[3\], but they need \[3, phenotypes\]"):
        model.fit(bound, np.arange(3), torch.zeros(3))
    with pytest.raises(BaselineError, match=r"rows must lie in 0 … 79, the experiments of this screen"):
        model.fit(bound, np.array([80]), torch.zeros(1, 1))
    with pytest.raises(BaselineError, match=r"rows are float64 of shape \[1\], but they need integers"):
        model.fit(bound, np.array([0.0]), torch.zeros(1, 1))
    with pytest.raises(LabelError, match="there are no training labels to fit on"):
        model.fit(bound, np.arange(0), torch.zeros(0, 1))
    with pytest.raises(LabelError, match="training label 1 is nan; drop experiments without a finite label"):
        model.fit(bound, np.arange(2), torch.tensor([[0.0], [float("nan")]]))
    model.fit(bound, np.arange(3), torch.zeros(3, 1))
    other = Screen([["A"]], {"fitness": [1.0]}).bind(cell(["A", "B"]))
    with pytest.raises(GeneListMismatchError, match=r"Mean was fitted on another gene list .* bind both to the same"):
        model.predict(other, np.arange(1))


def collins() -> BoundScreen:
    folder = Path(os.environ.get("KNOCKGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))
    file = folder / "interactions" / "collins2007_emap.tsv.gz"
    if not file.exists():
        pytest.skip(f"{file} is absent; set KNOCKGRAPH_DATA to the folder that holds interactions/{file.name}")
    with gzip.open(file, "rt") as lines:
        table = [line.rstrip("\n").split("\t") for line in lines][1:]
    names = sorted({gene for row in table for gene in row[:2]})
    return Screen([row[:2] for row in table], {"s": [float(row[2]) for row in table]}).bind(cell(names))


def test_known_results_on_the_collins_screen() -> None:
    bound = collins()
    rows = default_rng(0).permutation(len(bound))
    train, test = rows[: int(0.8 * len(bound))], rows[int(0.9 * len(bound)) :]
    score = {}
    for name in ("additive", "low-rank"):
        fitted = baselines.create(name).fit(bound, train, bound.values[train])
        score[name] = pearsonr(fitted.predict(bound, test)[:, 0], bound.values[test, 0]).statistic
    assert score["additive"] == pytest.approx(0.276, abs=0.02)
    assert score["low-rank"] == pytest.approx(0.60, abs=0.03)
    assert score["low-rank"] < reproducibility_ceiling(bound) == pytest.approx(0.79, abs=0.02)
