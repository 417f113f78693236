"""Small cells and screens that the tests of this folder share, and hypothesis strategies for them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from knockgraph import BoundScreen, CellGraph, PerturbationBatch, Screen

torch.set_num_threads(1)  # the tensors are tiny and the cores are shared

GENES = tuple(f"Y{letter}L{number:03d}C" for letter in "ABCD" for number in range(1, 4))
NAN = float("nan")

_EXAMPLES = int(os.environ.get("KNOCKGRAPH_EXAMPLES", "30"))  # hundreds for a long search
examples = settings(max_examples=_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

genotype_lists = st.lists(st.lists(st.sampled_from(GENES), max_size=4), max_size=12)
numbers = st.floats(-1e6, 1e6, allow_nan=False, width=32)
numbers_or_nan = numbers | st.just(NAN)


def cell(genes: Sequence[str] = GENES, aliases: dict[str, list[str]] | None = None) -> CellGraph:
    """A cell of these genes; its edges do not matter here."""
    return CellGraph(genes, {"physical": torch.tensor([[0], [1 % len(genes)]])}, aliases=aliases)


@st.composite
def screens(draw: st.DrawFn, missing: bool = True, min_size: int = 0) -> Screen:
    """Screens with one or two phenotypes, statistics and sources."""
    genotypes = draw(st.lists(st.lists(st.sampled_from(GENES), max_size=3), min_size=min_size, max_size=12))
    n = len(genotypes)
    column = st.lists(numbers_or_nan if missing else numbers, min_size=n, max_size=n)
    phenotypes = draw(st.dictionaries(st.sampled_from(["fitness", "gene_interaction"]), column, min_size=1))
    kinds = st.dictionaries(st.sampled_from(["std", "p_value", "replicates"]), column)
    statistics = {name: draw(kinds) for name in phenotypes if draw(st.booleans())}
    texts = st.sampled_from(["", "Kuzmin 2018", "Costanzo 2016", "é\n"])
    source = draw(texts | st.lists(texts, min_size=n, max_size=n))
    return Screen(genotypes, phenotypes, statistics, source)


def bound(num_experiments: int, seed: int = 0, genes: Sequence[str] = GENES) -> BoundScreen:
    """A bound screen of 0 to 4 deletions per experiment, two phenotypes and two statistics."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 5, num_experiments)
    genotypes = [random.choice(genes, size, replace=False).tolist() for size in sizes]
    a, b, c, d = random.normal(size=(4, num_experiments))
    return Screen(
        genotypes, {"fitness": a, "gene_interaction": b}, {"fitness": {"std": c}, "gene_interaction": {"p_value": d}}
    ).bind(cell(genes))


FIELDS = (
    "perturbation_indices",
    "perturbation_indices_ptr",
    "perturbation_indices_batch",
    "experiment",
    "phenotype_values",
    "phenotype_stat_values",
)


def assert_same_batch(a: PerturbationBatch, b: PerturbationBatch, step_size: bool = True) -> None:
    """Every field equal, bit for bit, dtype and shape included."""
    for name in FIELDS:
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        if x is not None:
            assert x.dtype == y.dtype, name
            assert x.shape == y.shape, name
            assert torch.equal(x, y), f"{name}: {x} is not {y}"
    assert a.num_genes == b.num_genes
    assert a.wild_type == b.wild_type
    assert a.gene_list_hash == b.gene_list_hash
    assert a.step_size == b.step_size or not step_size


def assert_same_batches(a: Sequence[PerturbationBatch], b: Sequence[PerturbationBatch]) -> None:
    """The same batches in the same order."""
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert_same_batch(x, y)


def slow_batch(screen: BoundScreen, rows: Sequence[int]) -> PerturbationBatch:
    """What :meth:`BoundScreen.batch` must give, one sample at a time."""
    ptr = screen.ptr.tolist()
    lists = [screen.indices[ptr[row] : ptr[row + 1]].tolist() for row in rows]
    at = torch.tensor(rows, dtype=torch.long)
    batch = PerturbationBatch.from_lists(
        lists, screen.num_genes, screen.values[at], screen.stat_values[at], screen.experiment[at]
    )
    object.__setattr__(batch, "gene_list_hash", screen.gene_list_hash)
    return batch
