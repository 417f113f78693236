"""A relation that was made from the labels is found, one that was not is not."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.random import default_rng

from knockgraph import BoundScreen, CellGraph, Screen
from knockgraph.errors import GeneListMismatchError
from knockgraph.models.baselines import BaselineError
from knockgraph.models.baselines.leak import label_shifts

NAMES = [f"G{k:02d}" for k in range(80)]
PAIRS = np.array(list(itertools.combinations(range(80), 2)))


def cell_and_screen(sign: float = -1.0) -> tuple[CellGraph, Screen]:
    """Labels with a long tail; ``listed`` holds a tenth of the strong ones among edges of ``clean``."""
    random = default_rng(0)
    y = sign * random.exponential(1.0, len(PAIRS))
    clean = random.permutation(len(PAIRS))[:600]
    strong = np.argsort(-sign * y)[:300]
    listed = np.concatenate([clean, random.permutation(strong)[:60]])
    relations = {name: torch.from_numpy(PAIRS[rows].T.copy()) for name, rows in (("clean", clean), ("listed", listed))}
    relations["small"] = torch.from_numpy(PAIRS[:5].T.copy())
    return CellGraph(NAMES, relations), Screen([[NAMES[g] for g in pair] for pair in PAIRS], {"gene_interaction": y})


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_listed_interactions_are_found(sign: float) -> None:
    graph, screen = cell_and_screen(sign)
    clean, listed, small = label_shifts(graph, screen.bind(graph))
    assert (clean.leaks, listed.leaks, small.leaks) == (False, True, False)
    assert clean.pairs == 600
    assert abs(clean.shift) < 0.15
    assert listed.shift < 0.4  # hidden among the clean edges …
    assert (listed.beyond, listed.beyond_pairs > 40, listed.beyond_shift > 1.5) == ("clean", True, True)  # … not there
    assert listed.z > 4
    assert small.pairs == 5
    assert math.isnan(small.shift)
    json.dumps([s.as_dict() for s in (clean, listed, small)], allow_nan=False)
    assert label_shifts(graph, screen.bind(graph)) == [clean, listed, small] or small.as_dict()["shift"] is None


def test_edges_count_without_direction_and_repeats_by_their_mean() -> None:
    graph, screen = cell_and_screen()
    other = CellGraph(NAMES, {name: r.edge_index.flip(0) for name, r in graph.relations.items()})
    assert label_shifts(other, screen.bind(other))[0] == label_shifts(graph, screen.bind(graph))[0]
    twice = Screen([*screen.genotypes, *screen.genotypes], {"y": np.tile(screen.phenotypes["gene_interaction"], 2)})
    assert label_shifts(graph, twice.bind(graph))[0].pairs == 600


def test_errors() -> None:
    graph, screen = cell_and_screen()
    with pytest.raises(GeneListMismatchError, match="bound to a different gene list than this graph's"):
        label_shifts(CellGraph(NAMES[::-1], {}), screen.bind(graph))
    constant: BoundScreen = Screen([["G00", "G01"], ["G02"]], {"y": [1.0, 2.0]}).bind(graph)
    with pytest.raises(BaselineError, match="no pairs with different labels"):
        label_shifts(graph, constant)
    two = Screen([["G00", "G01"]], {"y": [1.0], "z": [1.0]}).bind(graph)
    with pytest.raises(BaselineError, match="several phenotypes; bind it with one of them"):
        label_shifts(graph, two)


def test_the_command_warns(tmp_path: Path, command: Callable[..., tuple[str, str]]) -> None:
    graph, screen = cell_and_screen()
    graph.save(tmp_path / "my.cellgraph")
    screen.save(tmp_path / "my.parquet")
    found = tmp_path / "found.json"
    told, _ = command(
        "graph", "check", tmp_path / "my.cellgraph", "--against", tmp_path / "my.parquet", "--json", found
    )
    text = " ".join(told.split())
    assert "warning: labels of pairs in the relation 'listed' are" in text
    assert "relation 'clean'" not in text
    relations = json.loads(found.read_text())["against"]["relations"]
    assert [r["leaks"] for r in relations] == [False, True, False]
    told, _ = command("graph", "check", tmp_path / "my.cellgraph")
    assert "warning" not in told
