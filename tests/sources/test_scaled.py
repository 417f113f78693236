"""The synthetic cell of any size: exact sizes, skewed degrees, sizes that cannot be drawn."""

from __future__ import annotations

import pytest
import torch

from knockgraph.errors import GraphError
from knockgraph.sources.scaled import Sizes, scaled_cell, scaled_screen
from knockgraph.sources.yeast_scale import NUM_GENES, RELATIONS


@pytest.mark.parametrize(
    "sizes", [Sizes(100, 360, 9), Sizes(100, 40, 1), Sizes(150, 3_001, 1), Sizes(700, 20_001, 9), Sizes(300, 9_000, 20)]
)
def test_sizes_are_exact(sizes: Sizes) -> None:
    graph = scaled_cell(sizes)
    assert (graph.num_genes, graph.num_edges, len(graph.relations)) == sizes
    for relation in graph.relations.values():
        assert relation.edge_index.unique(dim=1).shape[1] == relation.num_edges
    assert len(scaled_screen(sizes).bind(graph)) == min(20_000, sizes.genes**2)


def test_it_looks_like_yeast() -> None:
    """At yeast's own sizes every relation has yeast's genes, edges and direction, and hubs."""
    graph = scaled_cell(Sizes(NUM_GENES, sum(size.edges for size in RELATIONS.values())))
    assert set(graph.relations) == set(RELATIONS)
    for name, size in RELATIONS.items():
        relation = graph.relations[name]
        assert relation.num_edges == pytest.approx(size.edges, rel=0.005)
        assert len(relation.edge_index.unique()) == size.nodes
        assert relation.symmetric == (size.sources is None)
        degree = torch.bincount(relation.edge_index[0], minlength=NUM_GENES)
        if size.sources is not None:
            assert (degree > 0).sum() == size.sources
        assert degree.max() > (2 if size.sources else 5) * degree[degree > 0].float().median()


def test_same_seed_same_cell() -> None:
    sizes = Sizes(200, 2_000, 2)
    assert scaled_cell(sizes) == scaled_cell(sizes)
    assert scaled_cell(sizes) != scaled_cell(sizes, seed=1)
    assert scaled_screen(sizes) == scaled_screen(sizes)
    assert scaled_screen(sizes) != scaled_screen(sizes, seed=1)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(GraphError, match=r"^30 genes are too few for a synthetic cell; give at least 100$"):
        scaled_cell(Sizes(30, 100, 1))
    with pytest.raises(GraphError, match=r"^0 relations are too few for a synthetic cell; give at least 1$"):
        scaled_cell(Sizes(200, 100, 0))
    with pytest.raises(
        GraphError, match=r"^300 edges in 9 relations of 200 genes are too few; give at least 360 edges"
    ):
        scaled_cell(Sizes(200, 300))
    with pytest.raises(GraphError, match=r"200 genes are too dense to have skewed degrees; give at most 18,\d+ edges"):
        scaled_cell(Sizes(200, 1_000_000))
    sizes = Sizes(200, 18_000)  # just below what is allowed
    assert scaled_cell(sizes).num_edges == 18_000
