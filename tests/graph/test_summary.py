"""Components, overlap and degrees against plain Python."""

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import CellGraph
from knockgraph.graph.summary import components, degree_counts, overlap, summarise


def slow_components(edges: list[tuple[int, int]]) -> list[set[int]]:
    groups: list[set[int]] = []
    for a, b in edges:
        touching = [g for g in groups if a in g or b in g]
        groups = [g for g in groups if g not in touching] + [{a, b}.union(*touching)]
    return groups


@pytest.mark.parametrize("seed", range(20))
def test_components(seed: int) -> None:
    random = default_rng(seed)
    n = int(random.integers(2, 60))
    index = random.integers(0, n, (2, int(random.integers(0, n))))
    slow = slow_components(list(zip(*index.tolist(), strict=True)))
    found = components(torch.from_numpy(index), n)
    assert found == {"count": len(slow), "largest": max(map(len, slow), default=0)}


def test_components_of_a_long_path_and_of_nothing() -> None:
    order = default_rng(0).permutation(2000)
    path = torch.from_numpy(np.stack([order[:-1], order[1:]]))
    assert components(path, 2000) == {"count": 1, "largest": 2000}
    assert components(torch.empty(2, 0, dtype=torch.long), 5) == {"count": 0, "largest": 0}


def test_overlap_and_degrees() -> None:
    p = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 3]])  # pairs 01, 12, 33
    q = torch.tensor([[2, 0, 0], [1, 2, 3]])  # pairs 12, 02, 03
    graph = CellGraph(["A", "B", "C", "D"], {"p": p, "q": q, "none": torch.empty(2, 0)})
    found = overlap(graph)
    assert found["p"]["q"] == found["q"]["p"] == {"pairs": 1, "jaccard": 1 / 5}
    assert found["p"]["p"] == {"pairs": 3, "jaccard": 1.0}
    assert found["none"]["p"] == {"pairs": 0, "jaccard": 0.0}
    assert found["none"]["none"] == {"pairs": 0, "jaccard": 0.0}
    assert degree_counts(graph.relations["p"]) == [(1, 2), (2, 1)]  # the self loop is no neighbour
    assert degree_counts(graph.relations["none"]) == []
    assert summarise(graph)["components"] == {"count": 1, "largest": 4}
    assert summarise(CellGraph(["A"], {}))["components"] == {"count": 0, "largest": 0}
