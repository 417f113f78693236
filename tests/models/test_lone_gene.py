"""The lone gene of genotypes that a screen of query pairs deletes, told by the roles of the partners of its calls."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.random import default_rng

from knockgraph import CellGraph, Screen, splits
from knockgraph.models.baselines.lone_gene import LoneGenes
from knockgraph.screen.calls import with_calls
from knockgraph.sources.presets import import_screen
from knockgraph.sources.source import ScreenOptions

N = 60
GENES = [f"G{i:02d}" for i in range(N)]
QUERIES, ARRAYS = np.arange(24), np.arange(16, 60)  # 16 to 23 are both


def study() -> CellGraph:
    random = default_rng(0)
    pairs = {tuple(sorted((q, a))) for q in QUERIES for a in ARRAYS if q != a and random.random() < 0.4}
    calls = Screen([[GENES[i], GENES[j]] for i, j in sorted(pairs)], {"sign": -np.ones(len(pairs))})
    return with_calls(CellGraph(GENES, {}), calls)


def test_a_new_query_gene_that_is_also_an_array_gene_is_not_taken_for_the_lone_one() -> None:
    # Training: queries 0 to 15 against all arrays; 16 to 23 are known as arrays only.
    alone, count = np.zeros(N), np.zeros(N)
    alone[ARRAYS] = 8
    count[ARRAYS], count[:16] = 8, len(ARRAYS)
    find = LoneGenes(study(), alone, count)
    for array in range(24, 60):
        genes = np.array([[16, 17, array]])  # all three are known array genes
        known = np.full((1, 3), 8.0)
        assert find(genes, np.zeros((1, 3)), known).tolist() == [2]


def test_a_known_pair_decides() -> None:
    find = LoneGenes(study(), np.zeros(N), np.zeros(N))
    together = np.array([[900.0, 0.0, 0.0]])
    assert find(np.array([[30, 31, 32]]), together, np.zeros((1, 3))).tolist() == [0]


def test_the_evidence_of_the_calls_is_that_of_a_loop_over_partners() -> None:
    graph, random = study(), default_rng(1)
    count = random.integers(0, 5, N).astype(float)
    alone = np.minimum(random.integers(0, 5, N), count).astype(float)
    find = LoneGenes(graph, alone, count)
    edges = graph.relations["calls_negative"].edge_index.T.tolist()
    for gene in (0, 20, 50):
        partners = [j for i, j in edges if i == gene and count[j] > 0]
        share = (0.5 + sum(alone[j] / count[j] for j in partners)) / (1 + len(partners))
        assert find.query[gene] == pytest.approx(np.log(share / (1 - share)))


@pytest.mark.full
def test_array_genes_of_new_query_pairs_in_a_real_screen() -> None:
    folder = Path(os.environ.get("KNOCKGRAPH_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "interactions" / "kuzmin2018_trigenic_calls.tsv.xz").exists():
        pytest.skip("the calls of Kuzmin 2018 are absent; set KNOCKGRAPH_DATA to the folder that holds interactions/")
    screen, _ = import_screen("kuzmin2018", folder, ScreenOptions(table="trigenic-calls"))
    calls, _ = import_screen("kuzmin2018", folder, ScreenOptions(table="digenic-calls"))
    names = sorted({*screen.genotypes.names, *calls.genotypes.names})
    graph = with_calls(CellGraph(names, {}), calls)
    bound = screen.bind(graph)
    genes = bound.indices.numpy().astype(np.int64).reshape(-1, 3)
    query = [{*name.split()[-1].split("+")} for name in screen.source_names]
    array = np.array(
        [[names[g] not in query[s] for g in row] for row, s in zip(genes, screen.source_codes, strict=True)]
    )
    assert (array.sum(1) == 1).mean() > 0.99  # the sources are written with systematic names
    for seed in range(3):
        split = splits.by_source(screen, seed=seed)
        train, test = split["train"], split["test"]
        alone = np.bincount(genes[train][array[train]], minlength=len(names)).astype(float)
        count = np.bincount(genes[train].ravel(), minlength=len(names)).astype(float)
        find = LoneGenes(graph, alone, count)
        found = find(genes[test], np.zeros((len(test), 3)), count[genes[test]])
        assert array[test][np.arange(len(test)), found].mean() > 0.95
