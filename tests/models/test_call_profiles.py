"""Calls borrowed from similar genes: against one ridge regression per gene, new genes, saved and restored."""

import numpy as np
import torch
from numpy.random import default_rng

from knockgraph import CellGraph, Screen
from knockgraph.models.baselines.call_profiles import CallProfiles
from knockgraph.models.kernels.similarity import Similarities, kernel
from knockgraph.screen.calls import with_calls

N = 24
GENES = [f"G{i:02d}" for i in range(N)]


def cell(positive: bool = False) -> CellGraph:
    """Four groups of genes with a network inside each; groups 0 and 1 have calls with each other, but for some."""
    random = default_rng(0)
    group = np.arange(N) % 4
    edges = np.stack(np.nonzero((group[:, None] == group) & (random.random((N, N)) < 0.7)))
    pairs = [(i, j) for i in range(0, 20, 4) for j in range(1, 20, 4) if random.random() < 0.8]
    signs = np.where(random.random(len(pairs)) < 0.2, 1.0, -1.0) if positive else -np.ones(len(pairs))
    calls = Screen([[GENES[i], GENES[j]] for i, j in pairs], {"sign": signs})
    return with_calls(CellGraph(GENES, {"p": torch.from_numpy(edges)}), calls, positive)


def test_a_gene_with_calls_is_predicted_from_all_others_as_if_its_own_calls_were_unknown() -> None:
    graph = cell()
    profiles = CallProfiles(graph, np.arange(12))
    genes = profiles.genes
    similar = Similarities.of(graph, torch.from_numpy(genes), ["p"])
    k = kernel(similar.to(similar), profiles.sharpness, profiles.weight).double().numpy()
    c = np.zeros((len(genes), len(genes)))
    place = {gene: row for row, gene in enumerate(genes.tolist())}
    for i, j in graph.relations["calls_negative"].edge_index.T.tolist():
        c[place[i], place[j]] = 1
    found = profiles.of(genes)
    np.testing.assert_array_equal(found.common[0], c @ c.T)
    mixture = np.zeros_like(k)
    for g in range(len(genes)):
        rest = np.delete(np.arange(len(genes)), g)
        mixture[g, rest] = np.linalg.solve(k[np.ix_(rest, rest)] + 0.5 * np.eye(len(rest)), k[rest, g])
    np.testing.assert_allclose(found.borrowed[0], mixture @ c, atol=1e-5)
    np.testing.assert_allclose(found.between[0], mixture @ c @ mixture.T, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found.unit, axis=1).max(), 1, rtol=1e-6)


def test_a_gene_without_calls_borrows_those_of_its_neighbours_also_if_it_was_not_known_in_the_fit() -> None:
    graph = cell()
    profiles = CallProfiles(graph, np.arange(12))
    new = np.array([20, 22])  # of groups 0 and 2, without calls and not in training
    assert not np.isin(new, profiles.genes).any()
    found = profiles.of(new)
    of_first, of_second = (found.borrowed[0][found.place[gene]] for gene in new)
    partners = found.place[np.arange(1, 20, 4)]
    assert of_first[partners].min() > 3 * np.abs(of_second[partners]).max()
    assert found.common[0][found.place[20]].max() == 0  # it has no calls of its own


def test_the_last_state_is_restored() -> None:
    graph = cell(positive=True)
    profiles = CallProfiles(graph, np.arange(12))
    again = CallProfiles.from_state(graph, profiles.state())
    asked = np.array([0, 5, 20, 23])
    for one, other in zip(vars(profiles.of(asked)).values(), vars(again.of(asked)).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(profiles.of(asked).borrowed) == 2  # both signs


def test_without_networks_nothing_is_borrowed() -> None:
    calls = Screen([["G00", "G01"], ["G00", "G02"]], {"sign": [-1.0, -1.0]})
    graph = with_calls(CellGraph(GENES, {}), calls)
    found = CallProfiles(graph, np.arange(3)).of(np.arange(5))
    assert not found.borrowed[0].any()
    assert found.common[0][found.place[1], found.place[2]] == 1
