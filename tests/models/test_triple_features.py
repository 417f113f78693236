"""Features of triples with digenic calls: against loops over rows, no leakage, the lone gene, boosting on them."""

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import CellGraph, Screen
from knockgraph.errors import BaselineError
from knockgraph.models import baselines
from knockgraph.models.baselines.baseline import GenotypeRows
from knockgraph.models.baselines.boosting import Boosting
from knockgraph.models.baselines.triple_features import TripleFeatures
from knockgraph.screen.calls import calls_of, with_calls

N = 30
GENES = [f"G{i:02d}" for i in range(N)]
QUERIES = [(0, 1), (2, 3), (4, 5), (0, 6)]
ARRAYS = range(5, 25)


def cell(both: bool = False) -> CellGraph:
    random = default_rng(0)
    edges = torch.from_numpy(np.stack(np.nonzero(random.random((N, N)) < 0.1)))
    pairs = [(q, a) for q in range(7) for a in ARRAYS if q != a and random.random() < 0.3]
    calls = Screen([[GENES[i] for i in pair] for pair in pairs], {"sign": random.choice([-1.0, 1.0], len(pairs))})
    return with_calls(CellGraph(GENES, {"physical": edges}), calls, positive=both)


def triples() -> list[tuple[int, int, int]]:
    return [(*pair, a) for pair in QUERIES for a in ARRAYS if a not in pair]


def rows_of(graph: CellGraph, genotypes: list[tuple[int, ...]]) -> GenotypeRows:
    bound = Screen([[GENES[i] for i in genotype] for genotype in genotypes], {"y": np.zeros(len(genotypes))})
    return GenotypeRows.of(bound.bind(graph), np.arange(len(genotypes)))


def slow_effect(genotypes: list[tuple[int, ...]], y: np.ndarray, gene: int, others: set[int]) -> float:
    chosen = [k for k, one in enumerate(genotypes) if gene in one and not others & set(one)]
    return float((y[chosen] - y.mean()).sum() / (len(chosen) + 20)) if chosen else np.nan


def test_effects_are_those_of_rows_that_share_one_gene_only() -> None:
    graph, genotypes = cell(), triples()
    y = default_rng(1).normal(size=len(genotypes))
    features = TripleFeatures(graph)
    training = features.fit(rows_of(graph, genotypes), y)
    new = [(7, 8, 9), (0, 1, 28), (0, 20), (3,), (28, 29, 27)]
    held_out = features(rows_of(graph, new))
    for row, genotype in [*zip(training, genotypes, strict=True), *zip(held_out, new, strict=True)]:
        effects = [slow_effect(genotypes, y, g, set(genotype) - {g}) for g in genotype]
        found = [k for k, effect in enumerate(effects) if np.isclose(row[0], effect, equal_nan=True)]
        assert found, genotype
        others = [[e for i, e in enumerate(effects) if i != k and not np.isnan(e)] for k in found]
        assert any(np.allclose(row[1:3], [min(e), max(e)] if e else [np.nan] * 2, equal_nan=True) for e in others)


def test_the_lone_gene_is_the_array_gene() -> None:
    graph, genotypes = cell(), triples()
    features = TripleFeatures(graph)
    y = np.array([float(one[2]) for one in genotypes])
    training = features.fit(rows_of(graph, genotypes), y)
    lone = [slow_effect(genotypes, y, one[2], set(one[:2])) for one in genotypes]
    sure = [k for k, one in enumerate(genotypes) if not set(one) & {0, 4, 5, 6}]  # those genes have two roles
    assert len(sure) > 10
    np.testing.assert_allclose(training[sure, 0], np.array(lone)[sure], rtol=1e-5)


def test_own_labels_do_not_count_and_batch_mates_do_not_matter() -> None:
    graph, genotypes = cell(both=True), triples()
    y = default_rng(1).normal(size=len(genotypes))
    changed = y.copy()
    changed[7] += 1.0
    changed[8] -= 1.0  # the mean stays; both rows have the same query pair
    rows = rows_of(graph, genotypes)
    before, after = TripleFeatures(graph).fit(rows, y), TripleFeatures(graph).fit(rows, changed)
    moved = np.nan_to_num(np.abs(before - after)).max(1) > 1e-9
    assert not moved[7]
    assert moved.any()
    features = TripleFeatures(graph)
    features.fit(rows, y)
    alone = np.concatenate([features(rows.part(k, k + 1)) for k in range(len(rows))])
    np.testing.assert_allclose(alone, features(rows), rtol=1e-5, atol=1e-7)
    assert features(rows.part(0, 0)).shape[0] == 0


@pytest.mark.parametrize("both", [False, True])
def test_boosting_on_calls_is_saved_and_predicts_log_odds(both: bool) -> None:
    graph, genotypes = cell(both), triples() * 8
    assert len(calls_of(graph)) == 1 + both
    called = set(zip(*graph.relations["calls_negative"].edge_index.tolist(), strict=True))
    truth = np.array([(q1, a) in called or (q2, a) in called for q1, q2, a in genotypes], dtype=float)
    screen = Screen([[GENES[i] for i in one] for one in genotypes], {"y": truth}).bind(graph)
    rows = np.arange(len(genotypes))
    fitted = Boosting(graph).fit(screen, rows, screen.values, classes=True)
    assert isinstance(fitted.features, TripleFeatures)
    predicted = fitted.predict(screen, rows)[:, 0].numpy()
    assert predicted[truth == 1].min() > 0 > predicted[truth == 0].max()
    again = Boosting(graph).restore(fitted.state())
    np.testing.assert_array_equal(again.predict(screen, rows)[:, 0].numpy(), predicted)
    assert fitted.model is not None
    assert fitted.smooth is not None
    table = fitted.features(GenotypeRows.of(screen, rows))[:, fitted.used]
    np.testing.assert_allclose(predicted, (fitted.model(table) + fitted.smooth(table)) / 2, rtol=1e-5)
    state = fitted.state()
    del state["phenotypes"][0]["smooth"]  # a run of an earlier version had trees alone
    before = Boosting(graph).restore(state).predict(screen, rows)[:, 0].numpy()
    np.testing.assert_allclose(before, fitted.model(table), rtol=1e-5)
    only = Boosting(graph).fit(screen, rows[truth == 1], screen.values[truth == 1], classes=True)  # one class alone
    assert (only.predict(screen, rows) > 0).all()


def test_classes_are_fitted_without_a_look_at_the_validation_part_and_the_same_each_time() -> None:
    graph, genotypes = cell(), triples() * 4
    truth = (default_rng(0).random(len(genotypes)) < 0.4).astype(float)
    screen = Screen([[GENES[i] for i in one] for one in genotypes], {"y": truth}).bind(graph)
    train, val = np.arange(200), np.arange(200, len(genotypes))
    validation = val, screen.values[val]
    alone = Boosting(graph).fit(screen, train, screen.values[train], classes=True)
    beside = Boosting(graph).fit(screen, train, screen.values[train], validation, classes=True)
    assert torch.equal(alone.predict(screen, val), beside.predict(screen, val))
    other = Boosting(graph, seed=1).fit(screen, train, screen.values[train], classes=True)
    assert not torch.equal(alone.predict(screen, val), other.predict(screen, val))  # other columns are drawn


def test_the_features_of_an_earlier_version_are_refused() -> None:
    graph, genotypes = cell(), triples()
    features = TripleFeatures(graph)
    features.fit(rows_of(graph, genotypes), np.zeros(len(genotypes)))
    state = features.state()
    del state["similar"]
    with pytest.raises(BaselineError, match="made by an earlier version with other features of digenic calls; train"):
        TripleFeatures.from_state(graph, state)


def test_a_genotype_with_genes_that_no_row_and_no_call_has_is_predicted() -> None:
    graph, genotypes = cell(), triples()
    features = TripleFeatures(graph)
    features.fit(rows_of(graph, genotypes), default_rng(0).normal(size=len(genotypes)))
    new = rows_of(graph, [(27, 28, 29), (0, 1, 29), (0, 1, 8), (3, 29), (3,), ()])
    table = features(new)
    again = TripleFeatures.from_state(graph, features.state())(new)
    np.testing.assert_array_equal(again, table)
    np.testing.assert_allclose(features(new.part(2, 3))[0], table[2], rtol=1e-4, atol=1e-6)


def test_without_calls_boosting_uses_the_networks() -> None:
    graph, genotypes = CellGraph(GENES, {"physical": torch.tensor([[0, 1], [1, 0]])}), triples()
    screen = Screen([[GENES[i] for i in one] for one in genotypes], {"y": default_rng(0).normal(size=len(genotypes))})
    bound = screen.bind(graph)
    fitted = baselines.create("boosting", graph).fit(bound, np.arange(len(bound)), bound.values)
    assert isinstance(fitted, Boosting)
    assert not isinstance(fitted.features, TripleFeatures)
