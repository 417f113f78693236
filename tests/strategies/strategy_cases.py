"""Every strategy in every form, and the nasty little graphs that they are compared on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import knockgraph as kg
from knockgraph.strategies import Strategy

torch.set_num_threads(1)  # the tensors are tiny and the cores are shared

#: Name in the test's id → strategy and options.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in kg.strategies.available()},
    "device-vectorized-padded": ("device-vectorized", {"layout": "padded"}),
    "stored-masks-packed": ("stored-masks", {"packed": True}),
    "neighborhood": ("neighborhood", {"hops": 2, "layers": 2}),
}
REDUCTIONS = ("sum", "mean", "max", "min")
DIRECTIONS = ("both", "in")
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}

_open: list[int] = []


def create(
    variant: str,
    graph: kg.CellGraph,
    direction: str = "both",
    genotypes: Any = None,
    folder: Path | None = None,
    **options: Any,
) -> Strategy:
    """A strategy of this form; a stored one is prepared for ``genotypes`` in a new folder below ``folder``."""
    name, given = VARIANTS[variant]
    strategy = kg.strategies.create(name, graph, direction=direction, **{**given, **options})
    if strategy.placement == "stored" and genotypes is not None:
        assert folder is not None
        _open.append(0)
        strategy.prepare(genotypes, folder / f"store-{len(_open)}")
    return strategy


@dataclass
class Case:
    """One graph and one batch of genotypes on it."""

    graph: kg.CellGraph
    genotypes: list[list[int]]
    rules: list[list[set[int]]] = field(default_factory=list)

    @property
    def batch(self) -> kg.PerturbationBatch:
        return kg.PerturbationBatch.from_lists(self.genotypes, self.graph.num_genes)

    @property
    def sets(self) -> list[set[int]]:
        return [set(genes) for genes in self.genotypes]


def genes(n: int) -> list[str]:
    return [f"g{i}" for i in range(n)]


def cell(n: int, metabolism: kg.Metabolism | None = None, **relations: Any) -> kg.CellGraph:
    """A cell of ``n`` genes; a relation is a list of pairs, or such a list and weights."""
    tables: dict[str, Any] = {}
    for name, given in relations.items():
        pairs, weight = given if isinstance(given, tuple) else (given, None)
        edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
        tables[name] = edge_index if weight is None else (edge_index, torch.as_tensor(weight))
    return kg.CellGraph(genes(n), tables, metabolism)


def random_pairs(n: int, density: float, seed: int, symmetric: bool = False) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(n, n, generator=generator) < density
    if symmetric:
        present = present | present.T
    pairs = present.nonzero()
    return pairs[torch.randperm(len(pairs), generator=generator)].tolist()


def small_metabolism(n: int, split: bool = True) -> tuple[kg.Metabolism, list[list[set[int]]]]:
    """Reactions with a complex, isozymes, both, one gene and none; and the complexes of each node."""
    plan = {
        "complex": [{0, 1}],
        "isozymes": [{2}, {3}],
        "both": [{0, 2}, {4, 5, 1}],
        "one": [{n - 1}],
        "free": [],
    }
    reactions = [
        kg.Reaction(
            name,
            {f"m{i}": -1.0, f"m{i + 1}": 2.0, "h": 0.5},
            gene_rule=" or ".join("(" + " and ".join(f"g{g}" for g in sorted(c)) + ")" for c in complexes),
        )
        for i, (name, complexes) in enumerate(plan.items())
    ]
    metabolism = kg.Metabolism.from_reactions(reactions, {f"g{i}": i for i in range(n)}, split=split)
    rules = []
    for node in metabolism.reactions:
        name, _, listed = node.partition(":")
        rules.append([{int(g[1:]) for g in listed.split("+")}] if listed else plan[name])
    return metabolism, rules


def features(shape: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Random numbers that float32 holds exactly, so that every type sees the same ones."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weights(count: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _random(n: int = 12, genotypes: list[list[int]] | None = None) -> Case:
    directed = random_pairs(n, 0.25, seed=1)
    metabolism, rules = small_metabolism(n)
    graph = cell(
        n,
        metabolism,
        physical=random_pairs(n, 0.12, seed=2, symmetric=True),
        regulatory=directed,
        weighted=(directed, weights(len(directed), 3)),
        precise=(random_pairs(n, 0.2, seed=4), weights(len(random_pairs(n, 0.2, seed=4)), 5, torch.float64)),
        empty=[],
    )
    if genotypes is None:
        source, destination = directed[0]
        both_ends = [source, destination] if source != destination else [source]
        genotypes = [[], [3], [7, 1, 5], [11, 9, 0, 1, 2, 3, 4, 5, 6, 8], list(range(n)), both_ends]
    return Case(graph, genotypes, rules)


def _cases() -> dict[str, Case]:
    hub = [[0, i] for i in range(1, 8)]
    both_ways = hub + [[j, i] for i, j in hub]
    loops = [[i, i] for i in range(6)]
    path = [[i, i + 1] for i in range(7)]
    return {
        "random": _random(),
        "batch-of-one": _random(genotypes=[[2, 8]]),
        "empty-batch": _random(genotypes=[]),
        "wild-types": _random(genotypes=[[], []]),
        "same-genotype-twice": _random(genotypes=[[4, 6], [6, 4]]),
        "hub": Case(cell(8, out=hub, into=[[j, i] for i, j in hub], both=both_ways), [[0], [3], [0, 3], [1, 2, 4]]),
        "all-neighbours-deleted": Case(
            cell(8, both=both_ways, into=[[j, i] for i, j in hub]), [list(range(1, 8)), list(range(1, 7))]
        ),
        "isolated-gene": Case(cell(6, a=[[0, 1], [1, 2], [2, 0], [3, 4]], b=[[4, 3]]), [[5], [1], [1, 5], []]),
        "self-loops": Case(
            cell(6, loops=loops, mixed=[*loops, [0, 1], [1, 0], [2, 5]], weighted=(loops, torch.arange(6.0) - 2)),
            [[0], [2, 5], [], list(range(6))],
        ),
        "both-ends-deleted": Case(cell(8, path=path), [[3, 4], [4, 3, 0], [0, 1, 2, 3, 4, 5, 6, 7]]),
        "one-gene": Case(cell(1, loop=[[0, 0]], nothing=[]), [[], [0]]),
        "one-gene-no-edge": Case(cell(1, nothing=[]), [[0], []]),
        "empty-relation": Case(cell(4, nothing=[]), [[1], [], [0, 1, 2, 3]]),
        "one-edge": Case(cell(2, a=[[1, 0]], w=([[1, 0]], torch.tensor([-3.0]))), [[0], [1], [0, 1], []]),
    }


CASES = _cases()


def relative(actual: Tensor, expected: Tensor, scale: float = 0.0) -> float:
    """Norm-wise error in float64. Where nothing is expected, exactly nothing must come, unless ``scale`` says more."""
    assert actual.shape == expected.shape, (actual.shape, expected.shape)
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert bool(actual.isfinite().all())
    error = float((actual - expected).norm()) if actual.numel() else 0.0
    size = max(float(expected.norm()) if expected.numel() else 0.0, scale)
    return error if error == 0 else (error / size if size > 0 else float("inf"))


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype, what: object = "", scale: float = 0.0) -> None:
    error = relative(actual, expected, scale)
    assert error <= TOLERANCE[dtype], f"{what}: relative error {error:.2e}"
