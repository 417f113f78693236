"""Called pairs as relations of the graph."""

from __future__ import annotations

import numpy as np
import pytest

from knockgraph import CellGraph, Screen
from knockgraph.errors import ScreenError
from knockgraph.graph.genes import GeneNames
from knockgraph.screen.calls import NEGATIVE, POSITIVE, check_calls, with_calls

CALLS = Screen(
    [["A", "B"], ["C", "B"], ["A", "C"], ["A"], ["A", "X"], ["B", "D"]],
    {"interaction_sign": np.array([-1.0, 1.0, -1.0, -1.0, -1.0, np.nan])},
)


def edges(graph: CellGraph, name: str) -> set[tuple[int, int]]:
    return {(int(a), int(b)) for a, b in graph.relations[name].edge_index.T}


def test_negative_calls_become_a_relation_and_positive_ones_if_wanted() -> None:
    graph = CellGraph(GeneNames(["A", "B", "C", "D"]), {})
    found = with_calls(graph, CALLS)
    assert edges(found, NEGATIVE) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert list(found.relations) == [NEGATIVE]
    assert edges(with_calls(graph, CALLS, positive=True), POSITIVE) == {(1, 2), (2, 1)}


def test_what_cannot_be_calls_is_refused() -> None:
    graph = CellGraph(GeneNames(["A", "B", "C", "D"]), {})
    with pytest.raises(ScreenError, match="already has a relation 'calls_negative'"):
        with_calls(with_calls(graph, CALLS), CALLS)
    with pytest.raises(ScreenError, match="has no pair of genes of this graph"):
        with_calls(graph, Screen([["A"]], {"interaction_sign": np.array([-1.0])}))


def test_a_screen_of_the_called_pairs_themselves_is_refused() -> None:
    """Pure noise, its signs given as calls under other names: boosting reached a test Pearson of 0.79."""
    graph = with_calls(CellGraph(GeneNames(["A", "B", "C", "D"]), {}), CALLS, positive=True)
    triples = Screen([["A", "B", "C"], ["A", "D"], []], {"f": np.arange(3.0)})
    check_calls(graph, triples.bind(graph))
    pairs = Screen([["A", "B", "C"], ["b", "a"], ["C", "b"], ["D"]], {"f": np.arange(4.0)})
    with pytest.raises(ScreenError, match=r"2 of 4 experiments delete a pair that is among the calls.*data.calls=null"):
        check_calls(graph, pairs.bind(graph))
