"""Boosting on network features: features against slow formulas, no leakage, unseen genes."""

import sys

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import BoundScreen, CellGraph, GeneListMismatchError, Screen, splits
from knockgraph.models import baselines
from knockgraph.models.baselines import BaselineError, MissingPackageError
from knockgraph.models.baselines.baseline import GenotypeRows
from knockgraph.models.baselines.pair_features import GenotypeFeatures, _weights

N = 24


def graph(seed: int = 0) -> CellGraph:
    random = default_rng(seed)
    genes = [f"G{i:02d}" for i in range(N)]
    dense = np.triu(random.random((N, N)) < 0.2, 1)
    symmetric = torch.from_numpy(np.stack(np.nonzero(dense | dense.T)))
    directed = torch.from_numpy(np.stack(np.nonzero(random.random((N, N)) < 0.05)))
    return CellGraph(genes, {"physical": symmetric, "regulatory": directed})


def screen(cell: CellGraph, n: int = 200, seed: int = 0, sizes: tuple[int, ...] = (1, 2, 3)) -> BoundScreen:
    random = default_rng(seed)
    genotypes = [random.choice(cell.genes.names, random.choice(sizes), replace=False).tolist() for _ in range(n)]
    return Screen(genotypes, {"fitness": random.normal(size=n)}).bind(cell)


def test_weights_are_those_of_the_dense_matrices() -> None:
    relation = graph().relations["regulatory"]
    a = np.zeros((N, N))
    a[tuple(relation.edge_index.numpy())] = 1
    a = np.maximum(a, a.T)
    root = np.sqrt(np.maximum(a.sum(1), 1))
    w = a / root[:, None] / root
    first, second = np.array([0, 3, 7, 7]), np.array([5, 9, 1, 23])
    direct, two_step = _weights(relation, first, second)
    np.testing.assert_allclose(direct, w[first, second], rtol=1e-6)
    np.testing.assert_allclose(two_step, (w @ w.T)[first, second], rtol=1e-5)


def test_the_effect_of_a_gene_leaves_its_own_row_out() -> None:
    cell = graph()
    bound = Screen([["G00"], ["G00"], ["G00", "G01"], []], {"y": [1.0, 2.0, 6.0, 3.0]}).bind(cell)
    rows = GenotypeRows.of(bound, np.arange(4))
    features = GenotypeFeatures(cell, hidden=0.0)
    table = features.fit(rows, np.array([1.0, 2.0, 6.0, 3.0]))
    # The labels deviate from their mean by −2, −1, 3, 0; the pair's 3 is shared out as 1.5 each.
    assert table[0, 1] == pytest.approx((-1.0 + 1.5) / (2 + 20))
    assert table[1, 1] == pytest.approx((-2.0 + 1.5) / (2 + 20))
    assert table[2, 1] == pytest.approx((-2.0 - 1.0) / (2 + 20))  # G01 has no other row
    assert np.isnan(table[3, 1])
    again = features(rows)
    assert again[0, 1] == pytest.approx((-2.0 - 1.0 + 1.5) / (3 + 20))


def test_the_own_label_does_not_leak() -> None:
    cell = graph()
    bound = screen(cell, 60)
    rows = GenotypeRows.of(bound, np.arange(60))
    y = bound.values[:, 0].double().numpy()
    changed = y.copy()
    changed[7] += 100.0
    changed -= changed.mean() - y.mean()  # only row 7 moves against the mean
    first, second = GenotypeFeatures(cell).fit(rows, y), GenotypeFeatures(cell).fit(rows, changed)
    effects = slice(1, 4)
    moved = np.nan_to_num(np.abs(first[:, effects] - second[:, effects])).max(1)
    assert moved[7] < 0.5 < moved.max()  # the mean's shift, not the 100


def test_features_do_not_depend_on_batch_mates_or_order() -> None:
    cell = graph()
    bound = screen(cell, 50)
    rows = GenotypeRows.of(bound, np.arange(50))
    features = GenotypeFeatures(cell)
    features.fit(rows, bound.values[:, 0].double().numpy())
    table = features(rows)
    alone = np.concatenate([features(rows.part(i, i + 1)) for i in range(50)])
    np.testing.assert_allclose(alone, table, rtol=1e-5, atol=1e-6)


def test_an_unseen_gene_is_predicted_from_the_networks() -> None:
    # Two groups of genes that interact within; a gene's group is visible in the network only.
    random = default_rng(0)
    group = np.arange(60) % 2
    edges = np.stack(np.nonzero(np.triu((group[:, None] == group) & (random.random((60, 60)) < 0.4), 1)))
    cell = CellGraph([f"G{i:02d}" for i in range(60)], {"p": torch.from_numpy(np.concatenate([edges, edges[::-1]], 1))})
    pairs = [(i, j) for i in range(60) for j in range(i)]
    y = [1.0 if group[i] == group[j] else -1.0 for i, j in pairs]
    measured = Screen(
        [[f"G{i:02d}", f"G{j:02d}"] for i, j in pairs], {"y": np.array(y) + random.normal(0, 0.3, len(y))}
    )
    split = splits.unseen_genes(measured, "any", 0.1, seed=0)
    bound = measured.bind(cell)
    train, test = split["train"], split["test"]

    def pearson(name: str) -> float:
        fitted = baselines.create(name, cell).fit(bound, train, bound.values[train])
        both = torch.cat([fitted.predict(bound, test), bound.values[test]], 1)
        return float(torch.corrcoef(both.T)[0, 1])

    assert pearson("boosting") > 0.8
    assert abs(pearson("additive")) < 0.4


def test_more_rows_than_allowed_are_sampled_and_predictions_come_in_pieces() -> None:
    cell = graph()
    bound = screen(cell, 200)
    whole = baselines.create("boosting", cell, trees=5).fit(bound, np.arange(200), bound.values)
    few = baselines.create("boosting", cell, trees=5, max_rows=30).fit(bound, np.arange(200), bound.values)
    assert few.predict(bound, np.arange(200)).shape == (200, 1)
    assert not torch.equal(few.predict(bound, np.arange(200)), whole.predict(bound, np.arange(200)))
    assert whole.predict(bound, np.arange(0)).shape == (0, 1)


def test_features_of_the_graph_are_used_where_they_are() -> None:
    cell = graph()
    own = CellGraph(cell.genes, cell.relations, features={"diffusion": torch.ones(N, 3)})
    assert GenotypeFeatures(own).diffusion.shape == (N, 3)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = graph()
    bound = screen(cell, 20)
    with pytest.raises(BaselineError, match="needs the cell graph; pass graph="):
        baselines.create("boosting")
    for option in ("trees", "max_rows"):
        with pytest.raises(BaselineError, match=f"{option} is 0, but it must be at least 1"):
            baselines.create("boosting", cell, **{option: 0})
    with pytest.raises(BaselineError, match="leaves is 1, but it must be at least 2"):
        baselines.create("boosting", cell, leaves=1)
    other = CellGraph(["A", "B"], {"p": torch.tensor([[0], [1]])})
    with pytest.raises(GeneListMismatchError, match="made for a graph of 2 genes, the screen is bound to one of 24"):
        baselines.create("boosting", other).fit(bound, np.arange(20), bound.values)
    monkeypatch.setitem(sys.modules, "sklearn.ensemble", None)
    with pytest.raises(MissingPackageError, match="needs scikit-learn, which is not installed; pip install"):
        baselines.create("boosting", cell).fit(bound, np.arange(20), bound.values)


def test_a_second_fit_keeps_the_size_of_the_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = graph()
    bound = screen(cell, 120)
    rows, scores = np.arange(120), iter([0.1, 0.2])
    monkeypatch.setattr(baselines.Boosting, "_validated", lambda *_: next(scores))
    model = baselines.create("boosting", cell)
    model.fit(bound, rows[:80], bound.values[:80], (rows[80:100], bound.values[80:100]))
    assert model.chosen()["leaves"] == 8
    before = model.predict(bound, rows[100:])
    model.fit_again(bound, rows[:80], bound.values[:80])
    torch.testing.assert_close(model.predict(bound, rows[100:]), before)
    assert model.fit_again(bound, rows[:100], bound.values[:100]).chosen()["leaves"] == 8
