"""Structural features against dense linear algebra; deterministic, equivariant."""

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import CellGraph, GraphError, demo_cell
from knockgraph.graph.structural_features import FEATURES, degree, diffusion, spectral, with_structural_features

N = 40


def dense_edges(seed: int, directed: bool, p: float = 0.15) -> np.ndarray:
    a = default_rng(seed).random((N, N)) < p
    return a if directed else np.triu(a, 1) | np.triu(a, 1).T


def graph(order: np.ndarray | None = None) -> CellGraph:
    order = np.arange(N) if order is None else order
    relations = {}
    for name, seed, directed in (("physical", 0, False), ("regulatory", 1, True)):
        a = dense_edges(seed, directed)[np.ix_(order, order)]
        relations[name] = torch.from_numpy(np.stack(np.nonzero(a)))
    return CellGraph([f"G{i:02d}" for i in order], relations)


def test_degree() -> None:
    x = degree(graph()).numpy()
    a, b = dense_edges(0, False), dense_edges(1, True)
    np.testing.assert_allclose(x, np.log1p(np.stack([a.sum(0), b.sum(0), b.sum(1)], 1)), rtol=1e-6)
    assert degree(CellGraph(["A"], {})).shape == (1, 0)


@pytest.mark.parametrize("directed", [False, True])
def test_spectral_is_the_truncated_svd(directed: bool) -> None:
    a = dense_edges(3, directed).astype(float)
    tau = a.sum() / ((a.sum(0) + a.sum(1)) > 0).sum()
    s = a / np.sqrt(a.sum(1) + tau)[:, None] / np.sqrt(a.sum(0) + tau)
    cell = CellGraph([f"G{i}" for i in range(N)], {"r": torch.from_numpy(np.stack(np.nonzero(a)))})
    x = spectral(cell, rank=4).double().numpy()
    u, values, v = np.linalg.svd(s)
    # The best approximation of rank 4 does not depend on signs; for a symmetric matrix U alone tells |S|.
    if directed:
        np.testing.assert_allclose(x[:, :4] @ x[:, 4:].T, (u[:, :4] * values[:4]) @ v[:4], atol=2e-3)
    else:
        np.testing.assert_allclose(x @ x.T, (u[:, :4] * values[:4]) @ u[:, :4].T, atol=2e-3)


def test_signs_are_fixed() -> None:
    x = spectral(graph(), rank=4)[:, :4]
    assert bool((x.gather(0, x.abs().argmax(0, keepdim=True)) > 0).all())


def test_diffusion_is_that_of_the_walk() -> None:
    cell = graph()
    a, b = dense_edges(0, False).astype(float), dense_edges(1, True)
    b = (b | b.T).astype(float)
    number = (a.sum(1) > 0).astype(float) + (b.sum(1) > 0)
    w = sum(m / np.maximum(m.sum(1), 1)[:, None] for m in (a, b)) / np.maximum(number, 1)[:, None]
    w[number == 0, number == 0] = 1
    q = 0.5 * np.linalg.inv(np.eye(N) - 0.5 * w)
    logs = np.log(q + 1 / N) - np.log(1 / N)
    u, s, _ = np.linalg.svd(logs)
    x = diffusion(cell, rank=6).double().numpy()
    np.testing.assert_allclose(x @ x.T, (u[:, :6] * s[:6]) @ u[:, :6].T, atol=2e-2)


@pytest.mark.parametrize("name", list(FEATURES))
def test_the_same_graph_gives_the_same_bits(name: str) -> None:
    assert torch.equal(FEATURES[name](graph()), FEATURES[name](graph()))


@pytest.mark.parametrize("name", list(FEATURES))
def test_the_order_of_genes_only_orders_the_rows(name: str) -> None:
    order = default_rng(5).permutation(N)
    x, y = FEATURES[name](graph())[torch.from_numpy(order)].double(), FEATURES[name](graph(order)).double()
    if name == "degree":
        assert torch.equal(x, y)
    elif name == "diffusion":  # of full rank here, so that products of rows are exact
        torch.testing.assert_close(x @ x.T, y @ y.T, rtol=1e-3, atol=1e-2)
    else:  # leading directions; the last ones of a cut spectrum may turn
        torch.testing.assert_close(x[:, :2].abs(), y[:, :2].abs(), rtol=1e-3, atol=1e-3)


def test_lonely_genes_and_empty_relations() -> None:
    cell = CellGraph(["A", "B", "C"], {"p": torch.tensor([[0, 1], [1, 0]]), "q": torch.empty(2, 0)})
    for name in FEATURES:
        x = FEATURES[name](cell)
        assert x.shape[0] == 3
        assert bool(x.isfinite().all())
    assert spectral(cell)[2].abs().max() < 1e-6
    assert spectral(CellGraph(["A"], {})).shape == (1, 0)
    assert diffusion(CellGraph(["A", "B"], {})).shape == (2, 2)


def test_added_to_a_graph() -> None:
    cell = demo_cell()
    more = with_structural_features(cell, ["degree", "spectral"])
    assert set(more.features) == {*cell.features, "degree", "spectral"}
    assert more.relations == cell.relations
    assert more.metabolism == cell.metabolism
    with pytest.raises(GraphError, match="there is no structural feature 'pagerank'; use degree, spectral, diffusion"):
        with_structural_features(cell, ["pagerank"])
    with pytest.raises(GraphError, match=r"restart is 1\.5, but it must be between 0 and 1"):
        diffusion(cell, restart=1.5)
