"""Random cell graphs for the property tests: weights, features, metabolism, aliases, empty parts, odd names."""

import torch
from hypothesis import strategies as st

from knockgraph import CellGraph, Metabolism, Reaction

# Readable and odd characters, but no blanks, which gene names may not start or end with, and none that join genes.
NAME = st.text(st.sampled_from("abAB01-'()@µß漢\"\\"), min_size=1, max_size=5)


@st.composite
def edges(draw: st.DrawFn, num_genes: int) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    gene = st.integers(0, num_genes - 1)
    pairs = draw(st.lists(st.tuples(gene, gene), max_size=12))
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    if draw(st.booleans()):
        return edge_index
    finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
    weight = draw(st.lists(finite, min_size=len(pairs), max_size=len(pairs)))
    return edge_index, torch.tensor(weight, dtype=draw(st.sampled_from([torch.float32, torch.float64])))


@st.composite
def metabolisms(draw: st.DrawFn, genes: list[str]) -> Metabolism:
    gene = st.sampled_from(range(len(genes)))
    complexes = st.lists(st.sets(gene, min_size=1, max_size=3), max_size=3, unique_by=frozenset)
    coefficients = st.dictionaries(st.sampled_from("xyz"), st.sampled_from([-2.0, -1.0, 0.5, 1.0]), max_size=3)
    reactions = [
        Reaction(
            f"r{i}",
            draw(coefficients),
            lower_bound=draw(st.sampled_from([-10.0, 0.0])),
            gene_rule=" or ".join("(" + " and ".join(f"g{g}" for g in sorted(c)) + ")" for c in draw(complexes)),
            growth=draw(st.booleans()),
        )
        for i in range(draw(st.integers(1, 4)))
    ]
    return Metabolism.from_reactions(reactions, {f"g{i}": i for i in range(len(genes))}, split=draw(st.booleans()))


@st.composite
def cell_graphs(draw: st.DrawFn) -> CellGraph:
    genes = draw(st.lists(NAME, min_size=1, max_size=6, unique=True))
    n = len(genes)
    relation_name = st.text(st.sampled_from("abc- 0é"), min_size=1, max_size=4)
    relations = {name: draw(edges(n)) for name in draw(st.lists(relation_name, max_size=3, unique=True))}
    features = {
        name: torch.tensor(draw(st.lists(st.integers(-9, 9), min_size=n * d, max_size=n * d))).reshape(n, d).to(dtype)
        for name, d, dtype in draw(
            st.lists(
                st.tuples(NAME, st.integers(1, 3), st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
                max_size=2,
                unique_by=lambda feature: feature[0],
            )
        )
    }
    others = st.lists(st.one_of(st.just(""), NAME), max_size=3)
    aliases = {gene: draw(others) for gene in draw(st.lists(st.sampled_from(genes), max_size=3, unique=True))}
    metabolism = draw(st.none() | metabolisms(genes))
    return CellGraph(genes, relations, metabolism, features, aliases)
