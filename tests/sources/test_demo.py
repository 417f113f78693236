"""The demo cell, its screen, and the mechanism that both built-in data sets plant."""

import itertools

import numpy as np
import pytest

from knockgraph.errors import GraphError, ScreenError
from knockgraph.sources.demo import NOISE, NUM_GENES, demo_cell, demo_mechanism, demo_screen
from knockgraph.sources.planted import Buffering, Mix, Pathways, draw_genotypes, gene_names, heavy_tailed_edges, measure


@pytest.fixture(scope="module")
def cell():
    return demo_cell()


@pytest.fixture(scope="module")
def screen():
    return demo_screen()


def padded(screen, num_genes):
    """Genotypes as [n, 3], filled up with num_genes; the screen's names are the cell's."""
    genes = np.full((len(screen), 3), num_genes)
    genes[np.arange(3) < screen.genotypes.size[:, None]] = screen.genotypes.codes
    return genes


def adjacency(edge_index, num_genes):
    matrix = np.zeros((num_genes + 1, num_genes + 1))  # the last row and column: no gene
    matrix[tuple(edge_index)] = 1
    return matrix


def pairwise(genes, matrix):
    return sum(matrix[genes[:, i], genes[:, j]] for i, j in itertools.combinations(range(genes.shape[1]), 2))


def held_out_pearson(x, y, ridge):
    """Correlation with the last fifth of y after fitting the rest; the rows are in random order."""
    x = np.column_stack([x, np.ones(len(x))])
    cut = len(x) * 4 // 5
    weight = np.linalg.solve(x[:cut].T @ x[:cut] + ridge * np.eye(x.shape[1]), x[:cut].T @ y[:cut])
    return np.corrcoef(x[cut:] @ weight, y[cut:])[0, 1]


# --- the mechanism, by hand -------------------------------------------------------------------------------------------

# Genes 0, 1, 2: one pathway; 3, 4: the parallel one; 5, 6: another process; 7: in no pathway.
BY_HAND = Buffering(
    pathway=np.array([0, 0, 0, 1, 1, 2, 3, -1]),
    strength=np.array([0.5, 0.8, 1.0, 0.4, 1.0, 1.0, 1.0, 0.9], dtype=np.float32),
    cost=np.full(8, 0.1, dtype=np.float32),
    masking=0.4,
    buffering=0.6,
)
NONE = 8


@pytest.mark.parametrize(
    ("genotype", "expected"),
    [
        ([NONE, NONE, NONE], 0.0),  # wild type
        ([0, NONE, NONE], 0.0),  # single deletions do not interact
        ([0, 1, NONE], 0.4 * 0.5 * 0.8),  # one pathway: masking, positive
        ([0, 3, NONE], -0.6 * 0.5 * 0.4),  # parallel pathways: synthetic sickness, negative
        ([0, 5, NONE], 0.0),  # different processes
        ([0, 7, NONE], 0.0),  # a gene without a pathway
        ([3, 5, 7], 0.0),
        ([5, 6, 7], -0.6),
        ([0, 1, 2], 0.4 * (0.5 + 0.8 + 1.0 - 1.0)),
        ([0, 1, 3], 0.4 * (1.3 - 0.9) - 0.6 * 0.9 * 0.4),
    ],
)
def test_interaction_follows_the_formula(genotype, expected):
    for order in itertools.permutations(genotype):
        assert BY_HAND.interaction(np.array([order]))[0] == pytest.approx(expected, abs=1e-6)


def test_interaction_equals_the_definition_from_pathway_hits():
    """Against a slow reference that evaluates log f(P) pathway by pathway, for up to five deletions."""

    def log_fitness(genes):
        hit = {q: 1 - np.prod([1 - BY_HAND.strength[g] for g in genes if BY_HAND.pathway[g] == q]) for q in range(4)}
        cost = sum(float(BY_HAND.cost[g]) for g in genes)
        return -cost - 0.4 * sum(hit.values()) - 0.6 * (hit[0] * hit[1] + hit[2] * hit[3])

    for size in range(6):
        for genes in itertools.combinations(range(8), size):
            row = np.array([[*genes, *[NONE] * (5 - size)]])
            expected = log_fitness(genes) - sum(log_fitness([g]) for g in genes)
            assert BY_HAND.interaction(row)[0] == pytest.approx(expected, abs=1e-6)
            assert (BY_HAND.additive(row) + BY_HAND.interaction(row))[0] == pytest.approx(log_fitness(genes), abs=1e-6)


def test_strength_is_read_from_the_physical_edges_inside_the_pathway():
    pathways = Pathways(np.array([4, 2, 0, 1, 3]), np.array([0, 3, 5]), num_genes=6)
    # Inside {4, 2, 0}: 4-2, 4-0; inside {1, 3}: 1-3. Edges to other pathways or genes and self loops do not count.
    edges = np.array([[4, 2, 4, 0, 1, 3, 2, 1, 5, 0], [2, 4, 0, 4, 3, 1, 1, 2, 0, 0]])
    mechanism = Buffering.from_physical(np.random.default_rng(0), pathways, edges)
    assert mechanism.pathway.tolist() == [0, 1, 0, 1, 0, -1]
    assert mechanism.strength.tolist() == pytest.approx([0.625, 1, 0.625, 1, 1, 0])


# --- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_edges", [300, 301])
def test_symmetric_relation_has_exact_counts_and_its_planted_edges(num_edges):
    nodes = np.random.default_rng(1).permutation(200)[:120]
    planted = np.sort(nodes[:20].reshape(2, 10), axis=0)
    edges = heavy_tailed_edges(np.random.default_rng(0), nodes, num_edges, planted=planted)
    columns = set(zip(*edges.tolist(), strict=True))
    assert edges.shape == (2, num_edges)
    assert len(columns) == num_edges
    assert np.array_equal(np.unique(edges), np.sort(nodes))
    assert columns == {(b, a) for a, b in columns}
    assert set(zip(*planted.tolist(), strict=True)) <= columns
    loops = [a for a, b in columns if a == b]
    assert loops == ([nodes[0]] if num_edges % 2 else [])


def test_directed_relation_starts_at_its_sources_only():
    nodes = np.random.default_rng(1).permutation(200)[:120]
    edges = heavy_tailed_edges(np.random.default_rng(0), nodes, 333, num_sources=9)
    assert edges.shape == np.unique(edges, axis=1).shape == (2, 333)
    assert set(edges[0]) <= set(nodes[:9])
    assert np.array_equal(np.unique(edges), np.sort(nodes))


def test_relation_with_too_few_edges_is_refused():
    with pytest.raises(GraphError, match="20 edges are too few to plant"):
        heavy_tailed_edges(np.random.default_rng(0), np.arange(100), 20)


def test_names_are_unique_and_none_of_yeasts():
    names = gene_names(6607)
    assert len(set(names)) == 6607
    assert not {name[2] for name in names} & {"L", "R"}


@pytest.mark.parametrize("num_experiments", [1, 2, 3, 10, 1_000])
def test_small_screens(num_experiments):
    screen = demo_screen(num_experiments)
    assert len(screen) == num_experiments
    assert screen.genotypes[0] == ()
    assert screen.duplicates().experiments == 0


@pytest.mark.parametrize("num_experiments", [0, -1, 10_000_000])
def test_impossible_numbers_of_experiments_are_refused(num_experiments):
    with pytest.raises(ScreenError, match=f"num_experiments is {num_experiments}; this cell of 360 genes allows 1 to"):
        demo_screen(num_experiments)


def test_genotypes_run_out_gracefully():
    """Related genotypes of a tiny cell run out; unrelated ones fill the screen."""
    rng = np.random.default_rng(0)
    pathways = Pathways.draw(rng, np.array([3, 3]), 20)
    genes = draw_genotypes(rng, pathways, Mix(singles=0.1, doubles=0.2), 500)
    assert genes.shape == np.unique(genes, axis=0).shape == (500, 3)


def test_noise_free_measurement_is_the_mechanism():
    genes = np.array([[NONE] * 3, [0, 1, NONE], [0, 3, 5]])
    screen = measure(np.random.default_rng(0), gene_names(8), BY_HAND, genes, 1e-9, "exact")
    assert screen.phenotypes["gene_interaction"] == pytest.approx(BY_HAND.interaction(genes), abs=1e-6)
    expected = np.exp(BY_HAND.additive(genes) + BY_HAND.interaction(genes))
    assert screen.phenotypes["fitness"] == pytest.approx(expected, abs=1e-6)


# --- the demo cell ----------------------------------------------------------------------------------------------------


def test_demo_cell_has_the_documented_shape(cell):
    assert cell.num_genes == 360
    assert list(cell.relations) == ["physical", "coexpression", "regulatory"]
    assert [r.symmetric for r in cell.relations.values()] == [True, True, False]
    assert all(r.num_duplicates == 0 for r in cell.relations.values())
    assert cell.features["degree"].shape == (360, 3)
    metabolism = cell.metabolism
    assert (metabolism.num_reactions, metabolism.num_metabolites) == (93, 39)
    assert metabolism.num_reactions_with_genes == 84
    assert metabolism.w_growth.sum() == 2
    # Complexes ("and") are nodes of two genes, isozymes ("or") two nodes, reversible reactions twice as many.
    assert np.bincount(np.bincount(metabolism.gpr_index[1]))[1:].tolist() == [72, 12]


def test_demo_names_resolve(cell):
    standard = [names[0] for names in cell.genes.aliases.values() if names[0]]
    assert len(standard) == len(set(standard)) > 300
    every = [name for names in cell.genes.aliases.values() for name in names if name]
    assert len(cell.gene_index([*every, *(name.lower() for name in every)])) == 2 * len(every)


@pytest.mark.parametrize("relation", ["physical", "coexpression", "regulatory"])
def test_demo_degrees_are_heavy_tailed(cell, relation):
    degree = np.bincount(cell.relations[relation].edge_index.ravel(), minlength=NUM_GENES)
    assert degree.max() > 8 * np.median(degree)


def test_demo_pathways_are_connected_in_physical(cell):
    """Every pathway is one component of its inner edges, and parallel pathways are far denser in coexpression."""
    mechanism = demo_mechanism()
    physical = adjacency(cell.relations["physical"].edge_index, NUM_GENES)
    coexpression = adjacency(cell.relations["coexpression"].edge_index, NUM_GENES)
    for q in range(mechanism.pathway.max() + 1):
        genes = np.flatnonzero(mechanism.pathway == q)
        inner = physical[np.ix_(genes, genes)] + np.eye(len(genes))
        assert (np.linalg.matrix_power(inner, len(genes)) > 0).all()
        assert inner.mean() > 0.3
        assert coexpression[np.ix_(genes, np.flatnonzero(mechanism.pathway == q ^ 1))].mean() > 0.3
    assert physical.mean() < 0.03
    assert coexpression.mean() < 0.03


def test_demo_is_deterministic_by_seed(cell, screen):
    again, other = demo_cell(0), demo_cell(1)
    for name, relation in cell.relations.items():
        assert np.array_equal(relation.edge_index, again.relations[name].edge_index)
        assert not np.array_equal(relation.edge_index, other.relations[name].edge_index)
    assert again.metabolism == cell.metabolism
    assert again.genes == cell.genes
    assert demo_screen() == screen
    assert demo_screen(seed=1) != screen


def test_demo_screen_has_the_documented_shape(cell, screen):
    assert len(screen) == 8_000
    assert screen.genotypes[0] == ()
    assert np.bincount(screen.genotypes.size).tolist() == [1, 360, 3_200, 4_439]
    assert screen.duplicates().experiments == 0
    assert screen.source_names == ("demo",)
    assert {name: list(kinds) for name, kinds in screen.statistics.items()} == {
        "fitness": ["std"],
        "gene_interaction": ["std", "p_value"],
    }
    assert list(screen.phenotypes) == ["fitness", "gene_interaction"]
    assert set(screen.genotypes.names) == set(cell.genes.names)
    assert (screen.phenotypes["fitness"][0], screen.phenotypes["gene_interaction"][0]) == (1, 0)
    p_value = screen.statistics["gene_interaction"]["p_value"]
    assert ((p_value >= 0) & (p_value <= 1)).all()


def test_demo_noise_and_ceiling_are_as_documented(screen):
    true = demo_mechanism().interaction(padded(screen, NUM_GENES))
    measured = screen.phenotypes["gene_interaction"]
    assert (measured - true).std() == pytest.approx(NOISE, rel=0.05)
    assert np.sqrt((screen.statistics["gene_interaction"]["std"] ** 2).mean()) == pytest.approx(NOISE, rel=0.05)
    assert np.corrcoef(measured, true)[0, 1] == pytest.approx(0.90, abs=0.02)
    # Without an interaction p-values are uniform.
    unrelated = screen.statistics["gene_interaction"]["p_value"][(true == 0) & (measured != 0)]
    assert (unrelated < 0.05).mean() == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_additive_model_fails_where_the_graph_explains(seed):
    """An additive per-gene model learns next to nothing of gene_interaction, a reader of the graph most of it."""
    cell, screen = demo_cell(seed), demo_screen(seed=seed)
    genes, y = padded(screen, NUM_GENES), screen.phenotypes["gene_interaction"]
    deleted = np.zeros((len(genes), NUM_GENES + 1))
    np.put_along_axis(deleted, genes, 1, axis=1)
    additive = max(held_out_pearson(deleted[:, :NUM_GENES], y, ridge) for ridge in (1, 10, 100))

    features = []
    for relation in ("physical", "coexpression"):
        edges = adjacency(cell.relations[relation].edge_index, NUM_GENES)
        shared = edges @ (edges / np.log(2 + edges.sum(1))[:, None])  # shared neighbours, hubs count less
        features += [pairwise(genes, edges), pairwise(genes, shared)]
    oracle = held_out_pearson(np.column_stack(features), y, 1e-3)

    assert abs(additive) < 0.2
    assert oracle > 0.7
