"""The yeast-scale cell: exact sizes, heavy tails, the planted mechanism, speed."""

import itertools
import time

import numpy as np
import pytest

from knockgraph.sources.yeast_scale import NOISE, yeast_scale_cell, yeast_scale_mechanism, yeast_scale_screen

SIZES = {  # relation: genes touched, edges
    "regulatory": (3_632, 9_753),
    "physical": (5_721, 139_463),
    "tflink": (5_092, 201_898),
    "string12_0_neighborhood": (2_204, 147_874),
    "string12_0_fusion": (3_095, 11_810),
    "string12_0_cooccurence": (2_615, 11_115),
    "string12_0_coexpression": (6_503, 1_002_538),
    "string12_0_experimental": (6_036, 825_101),
    "string12_0_database": (4_044, 73_818),
}
DIRECTED = {"regulatory", "tflink"}
NUM_GENES = 6_607


@pytest.fixture(scope="module")
def cell():
    return yeast_scale_cell()


@pytest.fixture(scope="module")
def screen():
    return yeast_scale_screen()


@pytest.fixture(scope="module")
def mechanism():
    return yeast_scale_mechanism()


def padded(screen):
    genes = np.full((len(screen), 3), NUM_GENES)
    genes[np.arange(3) < screen.genotypes.size[:, None]] = screen.genotypes.codes
    return genes


def test_genes_and_order_of_relations(cell):
    assert cell.num_genes == NUM_GENES
    assert list(cell.relations) == list(SIZES)
    assert cell.num_edges == 2_423_370


@pytest.mark.parametrize("name", SIZES)
def test_relation_has_exactly_the_published_size(cell, name):
    relation = cell.relations[name]
    edges = relation.edge_index.numpy()
    nodes, num_edges = SIZES[name]
    assert edges.shape == (2, num_edges)
    assert relation.num_duplicates == 0
    assert len(np.unique(edges)) == nodes
    assert relation.symmetric == (name not in DIRECTED)
    assert (edges[0] == edges[1]).sum() == (0 if name in DIRECTED else num_edges % 2)


@pytest.mark.parametrize("name", SIZES)
def test_degrees_are_heavy_tailed(cell, name):
    """The largest hub has many times the median degree, and the top hundredth of the genes far more than its share."""
    edges = cell.relations[name].edge_index.numpy()
    degree = np.sort(np.bincount(edges.ravel(), minlength=NUM_GENES))
    degree = degree[degree > 0]
    assert degree[-1] > 12 * np.median(degree)
    assert degree[-len(degree) // 100 :].sum() > 0.05 * degree.sum()


def test_metabolism_has_exactly_the_published_size(cell):
    metabolism = cell.metabolism
    assert metabolism.num_reactions == 7_122
    assert metabolism.num_reactions_with_genes == 4_881
    assert metabolism.num_metabolites == 2_806
    assert metabolism.gpr_index.shape == (2, 5_450)
    assert metabolism.rmr_index.shape == (2, 26_325)
    assert metabolism.w_growth.sum() == 4
    degree = np.bincount(metabolism.rmr_index[1], minlength=2_806)
    assert degree.min() >= 1
    assert degree.max() > 100 * np.median(degree)  # currency metabolites
    assert np.bincount(metabolism.rmr_index[0], minlength=7_122).min() >= 1


def test_deterministic_by_seed(cell, screen):
    again, other = yeast_scale_cell(0), yeast_scale_cell(1)
    for name, relation in cell.relations.items():
        assert np.array_equal(relation.edge_index, again.relations[name].edge_index)
        edges = other.relations[name].edge_index.numpy()
        assert not np.array_equal(relation.edge_index, edges)
        assert (len(np.unique(edges)), edges.shape[1]) == SIZES[name]
    assert again.metabolism == cell.metabolism
    assert other.metabolism != cell.metabolism
    assert other.metabolism.rmr_index.shape == (2, 26_325)
    assert yeast_scale_screen() == screen
    assert yeast_scale_screen(seed=1) != screen


def test_screen_has_the_published_size(cell, screen):
    assert len(screen) == 332_313
    assert np.bincount(screen.genotypes.size).tolist() == [1, 6_607, 33_231, 292_474]
    assert screen.duplicates().experiments == 0
    assert screen.genotypes.names == cell.genes.names
    assert all(np.isfinite(values).all() for values in screen.phenotypes.values())


def test_noise_and_ceiling_are_as_documented(screen, mechanism):
    true = mechanism.interaction(padded(screen))
    measured = screen.phenotypes["gene_interaction"]
    assert (measured - true).std() == pytest.approx(NOISE, rel=0.01)
    assert np.corrcoef(measured, true)[0, 1] == pytest.approx(0.905, abs=0.01)


def test_pathways_are_visible_in_the_edges(cell, mechanism):
    """A fifth of ``physical`` lies inside pathways, 5 % of co-expression between parallel ones; by chance 0.2 %."""
    share = {}
    for name, relation in cell.relations.items():
        a, b = mechanism.pathway[relation.edge_index.numpy()]
        share[name] = ((a == b) & (a >= 0)).mean(), ((a == b ^ 1) & (a >= 0)).mean()
    assert share["physical"][0] > 0.2
    assert share["string12_0_coexpression"][1] > 0.045
    assert max(share["physical"][1], share["string12_0_coexpression"][0]) < 0.004


def test_additive_model_fails_where_the_graph_explains(cell, screen):
    """A few numbers read from the graph explain what 6,607 gene effects cannot."""
    y = screen.phenotypes["gene_interaction"]
    cut = len(y) * 4 // 5

    # Ridge regression by damped Jacobi steps: the normal matrix of 6,607 genes is nearly diagonal.
    row, gene = np.repeat(np.arange(len(y)), screen.genotypes.size), screen.genotypes.codes
    train, ridge = row < cut, 10
    count = np.bincount(gene[train], minlength=NUM_GENES) + ridge
    effect = np.zeros(NUM_GENES)
    for _ in range(20):
        residual = y - np.bincount(row, effect[gene], minlength=len(y))
        gradient = np.bincount(gene[train], residual[row[train]], minlength=NUM_GENES) - ridge * effect
        effect += 0.5 * gradient / count
    additive = np.bincount(row, effect[gene], minlength=len(y))[cut:]
    assert abs(np.corrcoef(additive, y[cut:])[0, 1]) < 0.2

    # Ten thousand experiments are enough for a handful of features, and keep the shared neighbours cheap.
    genes, y = padded(screen)[:10_000], y[:10_000]
    features = [np.ones(len(y))]
    for name in ("physical", "string12_0_coexpression"):
        matrix = np.zeros((NUM_GENES + 1, NUM_GENES + 1), dtype=np.float32)
        matrix[tuple(cell.relations[name].edge_index.numpy())] = 1
        weighted = matrix / np.maximum(matrix.sum(0), 1)  # hubs tell little
        pairs = [(genes[:, i], genes[:, j]) for i, j in itertools.combinations(range(3), 2)]
        features.append(sum(matrix[a, b] for a, b in pairs))
        features.append(sum(np.einsum("en,en->e", matrix[a], weighted[b]) for a, b in pairs))
    x = np.column_stack(features)
    weight = np.linalg.lstsq(x[:8_000], y[:8_000], rcond=None)[0]
    assert np.corrcoef(x[8_000:] @ weight, y[8_000:])[0, 1] > 0.6


@pytest.mark.full
def test_generation_is_fast():
    for build in (yeast_scale_cell, yeast_scale_screen):
        start = time.perf_counter()
        build()
        assert time.perf_counter() - start < 5


@pytest.mark.full
def test_twenty_million_experiments():
    start = time.perf_counter()
    screen = yeast_scale_screen(20_000_000)
    assert time.perf_counter() - start < 60
    assert len(screen) == 20_000_000
    size = np.bincount(screen.genotypes.size)
    assert len(size) == 4
    assert size[3] > 17_000_000
