"""Names are genes: what a gene is called changes no split, merge, count or tensor."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import GENES, examples, numbers

from knockgraph import CellGraph, PerturbationDataset, Screen, Split, SplitError, splits, strategies
from knockgraph.screen.summary import summarise

ALIASES = {name: [f"std{i}", f"Alias{i}", f"other-{i}"] for i, name in enumerate(GENES)}
CELL = CellGraph(GENES, {"physical": torch.tensor([[0, 1, 4], [1, 2, 0]])}, aliases=ALIASES)
CASES: tuple[Callable[[str], str], ...] = (str, str.upper, str.lower, str.title, str.swapcase)


def spellings(gene: str) -> st.SearchStrategy[str]:
    """A gene under its own or another name, in any case."""
    return st.builds(lambda name, case: case(name), st.sampled_from([gene, *ALIASES[gene]]), st.sampled_from(CASES))


@st.composite
def respelled(draw: st.DrawFn) -> tuple[Screen, Screen]:
    """A screen by systematic names, and the same one with every occurrence of a gene spelled at random."""
    genotypes = draw(st.lists(st.lists(st.sampled_from(GENES), max_size=3), min_size=4, max_size=24))
    written = [[draw(spellings(gene)) for gene in genotype] for genotype in genotypes]
    n = len(genotypes)
    fitness, std = (draw(st.lists(numbers, min_size=n, max_size=n)) for _ in range(2))
    source = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=n, max_size=n))
    plain, other = (Screen(g, {"fitness": fitness}, {"fitness": {"std": std}}, source) for g in (genotypes, written))
    return plain, other


MAKERS: dict[str, Callable[[Screen], Split]] = {
    "random": lambda s: splits.random(s, (0.5, 0.25, 0.25), 1),
    "genotype": lambda s: splits.by_genotype(s, (0.5, 0.25, 0.25), 1),
    "source": lambda s: splits.by_source(s, (0.34, 0.33, 0.33), 1),
    "unseen one": lambda s: splits.unseen_genes(s, "one", 0.3, 1),
    "unseen any": lambda s: splits.unseen_genes(s, "any", 0.3, 1),
    "k-fold": lambda s: splits.k_fold(s, 3, 1, 1),
    "subset": lambda s: splits.by_genotype(s, (0.5, 0.25, 0.25), 1, subset=4),
}


def outcome(make: Callable[[], Split]) -> Split | str:
    """A split, or why it was refused."""
    try:
        return make()
    except SplitError as error:
        return str(error)


@examples
@given(respelled())
def test_spelling_changes_nothing(both: tuple[Screen, Screen]) -> None:
    plain, written = both
    screen = written.resolved(CELL)
    assert screen == plain
    assert summarise(screen) == summarise(plain)
    assert screen.duplicates() == plain.duplicates()
    for rule in ("mean", "median", "first"):
        assert screen.merge_duplicates(rule) == plain.merge_duplicates(rule)  # type: ignore[arg-type]
    assert written.bind(CELL).content_hash == plain.bind(CELL).content_hash
    for kind, make in MAKERS.items():
        expected, found = outcome(lambda make=make: make(plain)), outcome(lambda make=make: make(screen))
        if isinstance(expected, str) or isinstance(found, str):
            assert found == expected, kind
            continue
        assert found.held_out == expected.held_out, kind
        assert found.genotypes_hash == expected.genotypes_hash, kind
        assert all(np.array_equal(found[part], expected[part]) for part in expected.parts), kind
    views = [PerturbationDataset(s.bind(CELL), CELL) for s in both]
    assert [d["gene"].perturbed_genes for d in views[0]] == [d["gene"].perturbed_genes for d in views[1]]


@examples
@given(respelled())
def test_a_split_of_names_is_translated_or_refused(both: tuple[Screen, Screen]) -> None:
    """What was split by spelling and fits the genes stays as it is; what would leak is refused, never used."""
    _, written = both
    for make in MAKERS.values():
        split = outcome(lambda make=make: make(written))
        if isinstance(split, str):
            continue
        named = written.resolved(CELL)
        found = outcome(lambda split=split: split.resolved(written, CELL))
        if isinstance(found, str):
            assert "names as written" in found
            continue
        splits.leakage(found, named.genotypes)
        found.check(named)
        train = {gene for row in found["train"] for gene in named.genotypes[int(row)]}
        assert not train & {gene for held in found.held_out.values() for gene in held}
        assert all(np.array_equal(found[part], split[part]) for part in split.parts)


def test_a_split_that_leaks_by_gene_says_so() -> None:
    written = Screen([["YAL001C"], ["std0"], ["YAL002C"], ["YAL003C"]], {"fitness": [1.0, 2.0, 3.0, 4.0]})
    split = Split(
        {"train": np.array([0, 2]), "val": np.array([3]), "test": np.array([1])}, {}, written.genotypes.hash, {}
    )
    with pytest.raises(SplitError, match=r"1 genotype would be in .*YAL001C.*screen split --graph"):
        split.resolved(written, CELL)
    held = Split(
        {"train": np.array([0]), "val": np.array([3]), "test": np.array([2])},
        {},
        written.genotypes.hash,
        {"test": ("STD0",)},
    )
    with pytest.raises(SplitError, match=r"names as written.*genes held out for test appear in training"):
        held.resolved(written, CELL)
    with pytest.raises(SplitError, match="another screen"):
        split.resolved(written.take(np.array([0, 1])), CELL)


def test_names_without_a_gene_stay_as_they_are() -> None:
    screen = Screen([["nobody", "STD1"], ["Nobody"]], {"fitness": [1.0, 2.0]}).resolved(CELL)
    assert list(screen.genotypes) == [("YAL002C", "nobody"), ("Nobody",)]


def test_one_gene_under_two_names_is_stored_once(tmp_path: object) -> None:
    """A genotype that names its gene twice had a key of its own in a mask store."""
    pytest.importorskip("lmdb")
    strategy = strategies.create("stored-masks", CELL)
    strategy.prepare(Screen([["YAL001C", "std0"]], {"fitness": [1.0]}), tmp_path)
    bound = Screen([["YAL001C"]], {"fitness": [1.0]}).bind(CELL)
    with strategy(bound.batch([0])) as view:
        assert view.keep[:, 0].tolist() == [False] + [True] * (len(GENES) - 1)
