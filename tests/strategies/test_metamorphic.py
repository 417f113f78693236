"""What must not change a sample's result: gene order, batch mates, batch size, order of deletions, dead genes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from strategy_cases import (
    DIRECTIONS,
    REDUCTIONS,
    VARIANTS,
    assert_close,
    cell,
    create,
    features,
    genes,
    random_pairs,
    weights,
)
from torch import Tensor
from toy_gin import ToyGIN

import knockgraph as kg

N = 14
CHANNELS = 4
GENOTYPES = [[3], [7, 1, 5], [], [0, 13], [2, 4, 6, 8, 10, 12], list(range(N))]

each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_direction = pytest.mark.parametrize("direction", DIRECTIONS)


def _graph() -> kg.CellGraph:
    pairs = random_pairs(N, 0.15, seed=31)
    return cell(
        N,
        physical=random_pairs(N, 0.08, seed=30, symmetric=True),
        regulatory=pairs,
        weighted=(pairs[:12], weights(12, 32)),
    )


GRAPH = _graph()
EMBEDDING = features((N, CHANNELS), seed=33)


class Runner:
    """A strategy of one form and the toy model; every call makes, collates and runs one batch."""

    def __init__(self, variant: str, direction: str, folder: Path, graph: kg.CellGraph = GRAPH) -> None:
        self.variant, self.direction, self.folder, self.graph = variant, direction, folder, graph

    def __call__(
        self, genotypes: list[list[int]], wild_type: str = "no", model: ToyGIN | None = None, collate: bool = True
    ) -> Tensor:
        """[num_genes, batch, channels]; ``wild_type`` is added ``before`` or ``after`` collation."""
        batch = kg.PerturbationBatch.from_lists(genotypes, self.graph.num_genes)
        strategy = create(self.variant, self.graph, self.direction, batch, self.folder)
        batch = batch.with_wild_type() if wild_type == "before" else batch
        batch = strategy.collate(batch) if collate else batch
        batch = batch.with_wild_type() if wild_type == "after" else batch
        model = model or ToyGIN(EMBEDDING, len(self.graph.relations))
        with strategy(batch) as view:
            return model(view).detach()


@pytest.fixture
def run(variant: str, direction: str, tmp_path: Path) -> Runner:
    return Runner(variant, direction, tmp_path)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected, torch.float64)


def test_the_toy_model_sees_the_deletions(tmp_path: Path) -> None:
    """Otherwise the tests below prove nothing."""
    y = Runner("node-mask", "both", tmp_path)(GENOTYPES, "before")
    difference = (y[:, :-1] - y[:, -1:]).norm(dim=(0, 2))
    assert (difference > 0.1).tolist() == [bool(g) for g in GENOTYPES]
    causal = Runner("node-mask", "in", tmp_path)(GENOTYPES, "before")
    assert float((causal - y).norm()) > 0.1


@each_variant
@each_direction
def test_gene_order(run: Runner, variant: str, direction: str, tmp_path: Path) -> None:
    order = torch.randperm(N, generator=torch.Generator().manual_seed(3))  # new row → old row
    row = order.argsort()  # old row → new row
    names = genes(N)
    relations = {}
    for name, relation in GRAPH.relations.items():
        shuffled = torch.randperm(relation.num_edges, generator=torch.Generator().manual_seed(4))
        edge_index = row[relation.edge_index[:, shuffled]]
        relations[name] = edge_index if relation.weight is None else (edge_index, relation.weight[shuffled])
    other = kg.CellGraph([names[i] for i in order.tolist()], relations)
    moved = [row[torch.tensor(g, dtype=torch.long)].tolist() for g in GENOTYPES]
    model = ToyGIN(EMBEDDING[order], len(relations))
    there = Runner(variant, direction, tmp_path, other)(moved, "before", model)
    assert_same(there[row], run(GENOTYPES, "before"))


@each_variant
@each_direction
def test_batch_mates_and_batch_size(run: Runner, variant: str, direction: str) -> None:
    together = run(GENOTYPES)
    for sample, genotype in enumerate(GENOTYPES):
        assert_same(run([genotype]), together[:, sample : sample + 1])
        assert_same(run([[9], genotype, [0, 1, 2]])[:, 1], together[:, sample])
    assert_same(torch.cat([run(GENOTYPES[:4]), run(GENOTYPES[4:])], 1), together)
    assert_same(run(GENOTYPES[::-1]).flip(1), together)
    assert run([]).shape == (N, 0, CHANNELS)


@each_variant
@each_direction
def test_order_of_deletions(run: Runner, variant: str, direction: str) -> None:
    assert_same(run([g[::-1] for g in GENOTYPES]), run(GENOTYPES))
    assert_same(run([[5, 1, 7, 5]]), run([[7, 1, 5]]))  # a gene listed twice is deleted once


@each_variant
@each_direction
def test_wild_type_column(run: Runner, variant: str, direction: str) -> None:
    """No deletion is the wild type, and it does not matter when the wild type joins the batch."""
    before, after = run(GENOTYPES, "before"), run(GENOTYPES, "after")
    assert_same(after, before)
    assert_same(before, run(GENOTYPES, "before", collate=False))
    assert_same(before[:, -1], before[:, GENOTYPES.index([])])
    assert_same(before[:, :-1], run(GENOTYPES))
    for added in ("before", "after"):
        assert_same(run([], added), before[:, -1:])
        assert_same(run([list(range(N))], added)[:, 1:], before[:, -1:])


@each_variant
@each_direction
def test_empty_samples_as_padding(run: Runner, variant: str, direction: str) -> None:
    padded = [[], *[genes for g in GENOTYPES for genes in (g, [], [])]]
    assert_same(run(padded)[:, 1::3], run(GENOTYPES))


@pytest.mark.parametrize("value", [1e6, float("inf"), float("nan")])
@each_variant
def test_deleted_gene_is_silent(variant: str, value: float, tmp_path: Path) -> None:
    """Whatever a deleted gene's features are, not even the last bit of another gene's result or gradient changes."""
    batch = kg.PerturbationBatch.from_lists(GENOTYPES, N)
    strategy = create(variant, GRAPH, "both", batch, tmp_path)
    keep = batch.keep().unsqueeze(-1)
    x = features((N, len(GENOTYPES), CHANNELS), seed=40)
    spoilt = torch.where(keep, x, torch.full_like(x, value))
    upstream = features((3, N, len(GENOTYPES), CHANNELS), seed=41)
    for reduce in REDUCTIONS:
        results = []
        for given in (x, spoilt):
            for together in (True, False):
                leaf = given.clone().requires_grad_()
                with strategy(batch) as view:
                    if together:
                        y = view.aggregate_all(leaf, reduce=reduce)
                    else:
                        y = torch.stack([view.aggregate(name, leaf, reduce=reduce) for name in GRAPH.relations])
                    (y * upstream).sum().backward()
                results.append((y.detach(), leaf.grad))
        for y, gradient in results[2:]:
            assert torch.equal(y, results[0][0]), reduce
            assert_same(gradient, results[0][1])
            assert not gradient[~batch.keep()].any()


@pytest.mark.parametrize("value", [1e6, float("nan")])
@each_variant
def test_deleted_gene_is_silent_in_attention(variant: str, value: float, tmp_path: Path) -> None:
    batch = kg.PerturbationBatch.from_lists(GENOTYPES, N)
    strategy = create(variant, GRAPH, "both", batch, tmp_path)
    keep = batch.keep().view(N, -1, 1, 1)
    states = [features((N, len(GENOTYPES), 2, CHANNELS), seed=s) for s in (42, 43)]
    spoilt = [torch.where(keep, s, torch.full_like(s, value)) for s in states]
    results = []
    for given in (states, spoilt):
        leaves = [t.clone().requires_grad_() for t in (*given, features((2, CHANNELS), seed=44))]
        with strategy(batch) as view:
            y = view.attend("regulatory", *leaves)
            y.square().sum().backward()
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for clean, dirty in zip(*results, strict=True):
        assert_same(dirty, clean)


@each_variant
def test_deleted_gene_is_silent_through_two_layers(variant: str, tmp_path: Path) -> None:
    """Perturb one gene's embedding: samples that delete it change in that gene's row only."""
    run = Runner(variant, "both", tmp_path)
    moved = EMBEDDING.clone()
    moved[1] += 1.0
    here, there = run(GENOTYPES), run(GENOTYPES, model=ToyGIN(moved, len(GRAPH.relations)))
    others = torch.arange(N) != 1
    for sample, genotype in enumerate(GENOTYPES):
        difference = float((here - there)[others, sample].norm())
        assert (difference < 1e-12) == (1 in genotype), genotype
