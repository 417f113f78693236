"""Rows with similar genes in the same roles: against loops, nothing of the genotype's own sets, few sets kept."""

import numpy as np
import pytest
from numpy.random import default_rng

from knockgraph.models.baselines import similar_rows
from knockgraph.models.baselines.call_profiles import AskedProfiles
from knockgraph.models.baselines.similar_rows import SimilarRows

N = 20
QUERIES = [(0, 1), (2, 3), (4, 5), (0, 6)]


def profiles() -> AskedProfiles:
    unit = default_rng(0).random((N, 7)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return AskedProfiles(np.arange(N), [], [], [], [], unit)


def training() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lone gene is the last one."""
    genes = np.array([(*pair, a) for pair in QUERIES for a in range(7, 17)])
    return genes, np.full(len(genes), 2), default_rng(1).normal(size=len(genes))


def slow(genotype: list[int], lone: int) -> tuple[float, float]:
    unit = profiles().unit.astype(float)

    def others(genes: list[int]) -> np.ndarray:
        total = unit[genes].sum(0)
        return total / np.linalg.norm(total)

    own = others([g for g in genotype if g != lone])
    same = similar = 0.0
    for (*pair, a), _, r in zip(*training(), strict=True):
        if set(pair) <= set(genotype):
            continue
        weight = float(own @ others(pair)) ** 2
        same += weight * r * (a == lone)
        similar += weight * r * float(unit[a] @ unit[lone]) * (a != lone)
    return same, similar


@pytest.mark.parametrize("block", [3, 10_000])
def test_sums_are_those_of_loops(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(similar_rows, "_BLOCK", block)
    rows = SimilarRows(N)
    rows.fit([training()], profiles())
    # A training row, one whose query is taken for the lone gene, a new pair with a known and with a new array gene.
    genotypes, lone = np.array([[0, 1, 8], [2, 3, 9], [5, 18, 10], [1, 2, 19]]), np.array([2, 0, 2, 2])
    same, similar = rows(genotypes, lone, profiles())
    for k, genes in enumerate(genotypes.tolist()):
        expected = slow(genes, genes[lone[k]])
        assert similar[k] == pytest.approx(expected[1], rel=1e-5)
        if genes[lone[k]] in range(7, 17):
            assert same[k] == pytest.approx(expected[0], rel=1e-5)
        else:
            assert np.isnan(same[k])
    again = SimilarRows.from_state(rows.state())
    np.testing.assert_array_equal(again(genotypes, lone, profiles()), (same, similar))


def test_sets_with_few_rows_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    genes, lone, deviation = training()
    keep = np.append(np.arange(20), [20, 30])  # one row each of the last two pairs
    some = genes[keep], lone[keep], deviation[keep]
    new, at = np.array([[17, 18, 8]]), np.array([2])
    monkeypatch.setattr(similar_rows, "_MOST", 2)
    few, most = SimilarRows(N), SimilarRows(N)
    few.fit([some], profiles())
    assert few.unit.shape == (2, 7)
    most.fit([(genes[:20], lone[:20], deviation[:20])], profiles())
    np.testing.assert_allclose(few(new, at, profiles()), most(new, at, profiles()))
