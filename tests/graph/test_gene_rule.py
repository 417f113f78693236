import itertools
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from knockgraph.errors import GraphError
from knockgraph.graph.gene_rule import MAX_COMPLEXES, MAX_DEPTH, complexes

GENES = ["A", "B", "C-1", "D.2", "E:3", "YAL001C"]


def satisfied(rule: str, kept: set[str]) -> bool:
    """Slow independent reference: fold the innermost parentheses to a truth value until only one flat rule is left."""

    def flat(text: str) -> bool:
        parts = re.split(r"\bor\b|\|+", text, flags=re.IGNORECASE)
        return any(
            all(
                word == "<true>" or word in kept
                for word in re.split(r"\band\b|&+|\s+", part, flags=re.IGNORECASE)
                if word
            )
            for part in parts
        )

    while "(" in rule:
        rule = re.sub(r"\(([^()]*)\)", lambda match: "<true>" if flat(match[1]) else "<false>", rule)
    return flat(rule)


def rules() -> st.SearchStrategy[str]:
    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operator = st.sampled_from([" and ", " or ", " AND ", " Or ", "&", "|", " && ", "  ||\t"])
        chain = st.tuples(inner, st.lists(st.tuples(operator, inner), max_size=3))
        text = chain.map(lambda parts: parts[0] + "".join(itertools.chain.from_iterable(parts[1])))
        return text | text.map(lambda rule: f"({rule})") | text.map(lambda rule: f" ( {rule} )\n")

    return st.recursive(st.sampled_from(GENES), extend, max_leaves=8)


@given(rules())
def test_survival_equals_the_rule_evaluated_on_every_set_of_genes(rule: str) -> None:
    found = complexes(rule)
    for size in range(len(GENES) + 1):
        for kept in map(set, itertools.combinations(GENES, size)):
            assert any(kept.issuperset(genes) for genes in found) == satisfied(rule, kept)


@given(rules())
def test_complexes_are_sorted_and_distinct(rule: str) -> None:
    found = complexes(rule)
    assert found
    assert len(set(found)) == len(found)
    for genes in found:
        assert list(genes) == sorted(set(genes))
    assert complexes(" or ".join("(" + " and ".join(genes) + ")" for genes in found)) == found


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("", ()),
        (" \t\n", ()),
        ("A", (("A",),)),
        ("((A))", (("A",),)),
        ("B and A and B", (("A", "B"),)),
        ("(A and B) or C", (("A", "B"), ("C",))),
        ("A AND B Or C", (("A", "B"), ("C",))),
        ("C or A and B", (("C",), ("A", "B"))),
        ("A&B|C", (("A", "B"), ("C",))),
        ("A && B || C", (("A", "B"), ("C",))),
        ("(A and B) or (B and A)", (("A", "B"),)),
        ("(A or B) and (C or D)", (("A", "C"), ("A", "D"), ("B", "C"), ("B", "D"))),
        ("A and (B or (C and D))", (("A", "B"), ("A", "C", "D"))),
        ("YML081C-A and YAL001C.2 or HGNC:5", (("YAL001C.2", "YML081C-A"), ("HGNC:5",))),
        ("order and ANDY", (("ANDY", "order"),)),
    ],
)
def test_examples(rule: str, expected: tuple[tuple[str, ...], ...]) -> None:
    assert complexes(rule) == expected


def test_a_complex_that_contains_another_stays() -> None:
    assert complexes("A or (A and B)") == (("A",), ("A", "B"))


@pytest.mark.parametrize(
    ("rule", "match"),
    [
        ("A B", r"'B' at position 2 should be 'and' or 'or'; write one between two genes"),
        ("(A B)", r"'B' at position 3 should be 'and', 'or' or '\)'"),
        ("A (B)", r"'\(' at position 2 should be 'and' or 'or'"),
        ("not A", r"'A' at position 4 should be 'and' or 'or'"),
        ("A and", r"'A and': at its end, a gene name or '\(' is missing; add it or remove the operator"),
        ("(A or", r"at its end, a gene name or '\(' is missing"),
        ("or A", r"'or' at position 0 should be a gene name or '\('"),
        ("A and or B", r"'or' at position 6 should be a gene name"),
        ("A &&& B", r"'&' at position 4 should be a gene name"),
        ("(", r"at its end, a gene name"),
        ("()", r"'\)' at position 1 should be a gene name"),
        (")", r"'\)' at position 0 should be a gene name"),
        ("(A and (B or C)", r"'\(' at position 0 is never closed; add the missing '\)'"),
        ("(A and B))", r"'\)' at position 9 has no matching '\('; remove it"),
    ],
)
def test_malformed_rules_say_where_and_what_to_do(rule: str, match: str) -> None:
    with pytest.raises(GraphError, match=match):
        complexes(rule)


def test_errors_in_long_rules_stay_short() -> None:
    with pytest.raises(
        GraphError, match=r"….* or G4999 G5000 or .*…': 'G5000' at position \d+ should be 'and' or 'or'"
    ) as error:
        complexes(" or ".join(f"G{i}" for i in range(5000)) + " G5000" + " or X" * 5000)
    assert len(str(error.value)) < 300
    with pytest.raises(GraphError, match="should be 'and' or 'or'") as error:
        complexes("A " + "B" * 100_000)
    assert len(str(error.value)) < 300


def test_expansion_is_limited() -> None:
    start = time.perf_counter()
    with pytest.raises(GraphError, match=r"expands to more than 10,000 complexes; split the reaction"):
        complexes(" and ".join(f"(A{i} or B{i})" for i in range(1000)))
    with pytest.raises(GraphError, match=r"expands to more than 10,000 complexes"):
        complexes(" or ".join(f"A{i}" for i in range(MAX_COMPLEXES + 1)))
    with pytest.raises(GraphError, match=r"expands to more than 1,000,000 gene names"):
        complexes(" and ".join([*(f"A{i}" for i in range(5000)), *(f"(B{i} or C{i})" for i in range(9))]))
    assert time.perf_counter() - start < 20


def test_nesting_is_limited() -> None:
    assert complexes("(" * MAX_DEPTH + "A" + ")" * MAX_DEPTH) == (("A",),)
    with pytest.raises(GraphError, match=r"at position 100 opens more than 100 nested parentheses"):
        complexes("(" * 100_000 + "A" + ")" * 100_000)


def test_long_chains_are_fast() -> None:
    names = [f"G{i:06}" for i in range(50_000)]
    start = time.perf_counter()
    assert complexes(" and ".join(names)) == (tuple(names),)
    assert len(complexes(" or ".join(names[:MAX_COMPLEXES]))) == MAX_COMPLEXES
    assert time.perf_counter() - start < 20
