"""Smoothing over similar genes, against the formula pair by pair."""

import math

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import BoundScreen, CellGraph, GeneListMismatchError, Screen
from knockgraph.models import baselines
from knockgraph.models.baselines import BaselineError

N = 9
GENES = [f"G{i}" for i in range(N)]
KNOWN = GENES[:6]


def graph() -> CellGraph:
    feature = torch.from_numpy(default_rng(0).normal(size=(N, 3)))
    return CellGraph(GENES, {"physical": torch.tensor([[0, 1], [1, 0]])}, features={"diffusion": feature})


def screen(cell: CellGraph, genotypes: list[list[str]], values: list[float]) -> BoundScreen:
    return Screen(genotypes, {"fitness": values}).bind(cell)


def slow(
    cell: CellGraph, training: list[list[str]], values: list[float], genotype: list[str], sharpness: float
) -> float:
    s = cell.features["diffusion"].double()
    mean = sum(values) / len(values)

    def near(a: str, b: str) -> float:
        cosine = torch.cosine_similarity(s[GENES.index(a)], s[GENES.index(b)], dim=0)
        return 0.0 if a == b else math.exp(sharpness * (float(cosine) - 1))

    known = sorted({gene for genes in training if len(genes) > 1 for gene in genes})
    found = []
    pairs = [(a, b) for i, a in enumerate(genotype) for b in genotype[i + 1 :]]
    for a, b in pairs:
        numerator = denominator = 0.0
        for genes, value in zip(training, values, strict=True):
            for k, other in [(k, o) for k in genes for o in genes if k != o]:
                if a in known or b in known:
                    weight = near(a, k) * (other == b) + near(b, k) * (other == a)
                else:
                    weight = near(a, k) * near(b, other)
                numerator += weight * (value - mean)
                denominator += weight
        found.append(numerator / denominator if denominator else 0.0)
    return mean + (sum(found) / len(pairs) if pairs else 0.0)


@pytest.mark.parametrize("sharpness", [1.0, 10.0])
def test_the_formula(sharpness: float) -> None:
    cell, random = graph(), default_rng(1)
    training = [random.choice(KNOWN, size, replace=False).tolist() for size in (2, 2, 2, 2, 3, 1, 2, 2, 2)]
    values = random.normal(size=len(training)).tolist()
    asked = [["G0", "G1"], ["G0", "G7"], ["G7", "G8"], ["G3"], [], ["G2", "G4", "G8"], ["G5", "G6"]]
    baseline = baselines.create("smoothing", cell, sharpness=sharpness)
    baseline.fit(screen(cell, training, values), np.arange(len(training)), torch.tensor(values).unsqueeze(1))
    assert cell == graph()  # the features are the graph's own
    found = baseline.predict(screen(cell, asked, [0.0] * len(asked)), np.arange(len(asked)))
    expected = [slow(cell, training, values, genotype, sharpness) for genotype in asked]
    np.testing.assert_allclose(found[:, 0].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert found[3, 0] == found[4, 0]


def test_without_pairs_to_learn_from_it_is_the_mean() -> None:
    cell = graph()
    bound = screen(cell, [["G0"], ["G1"]], [1.0, 2.0])
    baseline = baselines.create("smoothing", cell).fit(bound, np.arange(2), bound.values)
    assert baseline.predict(screen(cell, [["G0", "G1"]], [0.0]), np.arange(1)).tolist() == [[1.5]]


def test_a_graph_without_the_feature_computes_it() -> None:
    edges = torch.from_numpy(np.stack(np.nonzero(default_rng(2).random((N, N)) < 0.4)))
    cell = CellGraph(GENES, {"physical": edges})
    bound = screen(cell, [["G0", "G1"], ["G1", "G2"], ["G2", "G3"]], [1.0, 2.0, 4.0])
    baseline = baselines.create("smoothing", cell).fit(bound, np.arange(3), bound.values)
    assert bool(baseline.predict(bound, np.arange(3)).isfinite().all())


def test_what_it_refuses() -> None:
    with pytest.raises(BaselineError, match="needs the cell graph; pass graph="):
        baselines.create("smoothing")
    with pytest.raises(BaselineError, match="sharpness is 0, but it must be positive"):
        baselines.create("smoothing", graph(), sharpness=0)
    other = CellGraph(GENES[:3], {"physical": torch.tensor([[0], [1]])})
    bound = screen(other, [["G0", "G1"]], [1.0])
    with pytest.raises(GeneListMismatchError, match="made for a graph of 9 genes"):
        baselines.create("smoothing", graph()).fit(bound, np.arange(1), bound.values)
