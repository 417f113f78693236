import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from knockgraph import GeneNames, GraphError, KnockgraphError, UnknownGeneError
from knockgraph.graph.genes import unfit

YEAST = GeneNames(
    ["YAL001C", "YBR002C", "YCL003W"],
    {"YAL001C": ["TFC3", "FUN24", "TSV115"], "YBR002C": ["RER2", "FUN24"], "YCL003W": ["", "Tfc3"]},
)


@pytest.mark.parametrize(
    ("name", "gene"),
    [
        ("YAL001C", 0),
        ("TFC3", 0),
        ("TSV115", 0),
        ("yal001c", 0),
        ("rer2", 1),
        ("tsv115", 0),
        ("Tfc3", 2),  # an exact alias comes before a standard name in another case
        ("tfc3", 0),  # without regard to case the standard name comes before the alias
        ("  YBR002C\t", 1),
    ],
)
def test_name_resolves_by_the_first_rule_that_catches_it(name: str, gene: int) -> None:
    assert YEAST.find(name) == (gene,)
    assert YEAST.index([name]).tolist() == [gene]


def test_each_rule_comes_before_the_next() -> None:
    # One spelling, caught by a different rule in each list: the gene that wins tells the rule.
    names = ["A", "B", "C", "D"]
    assert GeneNames(names, {"B": ["A"], "C": ["", "A"], "D": ["a"]}).find("A") == (0,)  # systematic
    assert GeneNames(names, {"B": ["X"], "C": ["", "X"], "D": ["x"]}).find("X") == (1,)  # standard
    assert GeneNames(names, {"B": ["x"], "C": ["", "X"]}).find("X") == (2,)  # alias, before case is ignored
    assert GeneNames(["x", "B", "C"], {"B": ["x"], "C": ["", "x"]}).find("X") == (0,)  # systematic, any case
    assert GeneNames(names, {"B": ["x"], "C": ["", "x"]}).find("X") == (1,)  # standard, any case
    assert GeneNames(names, {"C": ["", "x"]}).find("X") == (2,)  # alias, any case


@pytest.mark.parametrize(
    ("names", "aliases", "query", "text"),
    [
        (["A", "B"], {"A": ["S"], "B": ["S"]}, "S", r"'S' is ambiguous \(A or B\)"),
        (["A", "B"], {"A": ["", "S"], "B": ["", "S"]}, "S", r"'S' is ambiguous \(A or B\)"),
        (["aB", "Ab"], {}, "AB", r"'AB' is ambiguous \(aB or Ab\)"),
        (["A", "B"], {"A": ["Sx"], "B": ["sX"]}, "SX", r"'SX' is ambiguous \(A or B\)"),
    ],
)
def test_ambiguous_name_is_reported_never_guessed(names, aliases, query, text) -> None:
    genes = GeneNames(names, aliases)
    assert genes.find(query) == (0, 1)
    with pytest.raises(UnknownGeneError, match=text):
        genes.index([query])


def test_two_names_of_the_same_gene_are_not_ambiguous() -> None:
    assert GeneNames(["A", "B"], {"A": ["Sx", "sX", "SX"]}).find("sx") == (0,)


def test_error_lists_every_offender_once_with_suggestions() -> None:
    with pytest.raises(UnknownGeneError) as caught:
        YEAST.index(["YAL001C", "YAL001W", "nonsense", "FUN24", "TFC4", "nonsense", "RER2"])
    error = caught.value
    assert error.names == ("YAL001W", "nonsense", "FUN24", "TFC4")
    text = str(error)
    assert "4 gene names do not resolve in this graph of 3 genes" in text
    assert "'YAL001W' (did you mean YAL001C" in text
    assert "'FUN24' is ambiguous (YAL001C or YBR002C)" in text
    assert "TFC3 = YAL001C" in text
    assert "'nonsense'," in text
    assert text.endswith("correct the names, or add aliases to the graph")  # what can be dropped, the caller says
    assert isinstance(error, KnockgraphError)
    assert isinstance(error, KeyError)


def test_one_offender_reads_as_singular() -> None:
    with pytest.raises(UnknownGeneError, match=r"^gene name does not resolve in this graph of 3 genes: 'QQQ';"):
        YEAST.index(["QQQ"])


def test_thousands_of_offenders_are_all_named() -> None:
    bad = [f"wrong{i}" for i in range(3000)]
    with pytest.raises(UnknownGeneError, match="3000 gene names do not resolve") as caught:
        YEAST.index(bad)
    assert caught.value.names == tuple(bad)
    assert "'wrong49' and 2950 more; correct the names" in str(caught.value)


@pytest.mark.parametrize("name", [3, None, ("YAL001C",)])
def test_a_name_that_is_no_text_is_an_unknown_gene(name) -> None:
    with pytest.raises(UnknownGeneError, match="does not resolve"):
        YEAST.index(["YAL001C", name])


def test_index_keeps_order_and_repeats() -> None:
    rows = YEAST.index(["YCL003W", "YAL001C", "YCL003W"])
    assert rows.dtype == torch.long
    assert rows.tolist() == [2, 0, 2]
    assert YEAST.index([]).shape == (0,)
    assert YEAST.index([]).dtype == torch.long


def test_a_single_text_is_one_name_not_its_letters() -> None:
    assert YEAST.index("YBR002C").tolist() == [1]


def test_both_alias_forms() -> None:
    by_gene = GeneNames(["A", "B"], {"A": ["", "X", "Y"], "B": "S"})
    assert by_gene.aliases == {"A": ("", "X", "Y"), "B": ("S",)}
    by_alias = GeneNames(["A", "B"], {"X": "A", "Y": "A"})
    assert by_alias.aliases == {"A": ("", "X", "Y")}
    assert by_alias.index(["y", "X"]).tolist() == [0, 0]


@pytest.mark.parametrize("reverse", [False, True])
def test_mixed_alias_forms_do_not_depend_on_their_order(reverse: bool) -> None:
    items = [("A", ["TFC3"]), ("X", "A")]
    aliases = dict(reversed(items) if reverse else items)
    assert GeneNames(["A", "B"], aliases).aliases == {"A": ("TFC3", "X")}


def test_blanks_around_an_alias_do_not_hide_it() -> None:
    assert GeneNames(["A"], {"A": [" TFC3 ", "x "]}).index(["TFC3", " x"]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("names", "aliases", "text"),
    [
        (["A", "B", "A", "B", "A", "C"], None, "must be unique, but these are repeated: 'A', 'B'$"),
        (["A", ""], None, "gene 1 has the name ''"),
        (["A", " "], None, "gene 1 has the name ' '"),
        ([" A"], None, "gene 0 has the name ' A': gene names do not begin or end with a space; rename it"),
        (["A", "A+B"], None, r"gene 1 has the name 'A\+B': it holds '\+', which separates genes"),
        (["A,B"], None, "it holds ','"),
        (["A|B"], None, r"it holds '\|'"),
        (["A;B"], None, "it holds ';'"),
        (["A=0.3"], None, "it holds '='"),
        (["A\tB"], None, "no line breaks, tabs"),
        (["wt"], None, "WT means the wild type"),
        (["A\nB"], None, r"gene 0 has the name 'A\\nB'"),
        (["A", 7], None, "gene 1 has the name 7"),
        ([None], None, "gene 0 has the name None"),
        (["A"], {"Q": ["x"]}, "aliases are given for names that are not in the gene list: 'Q'; leave them out"),
        (["A"], {"Q": "R"}, "not in the gene list: 'Q'"),
        (["A"], {f"Q{i}": "R" for i in range(12)}, "'Q9' and 2 more"),
        (["A"], {"A": [5]}, r"the aliases of gene 'A' are \[5\]; give a string or a list of strings"),
        (["A"], {"A": 5}, "the aliases of gene 'A' are 5"),
    ],
)
def test_bad_lists_are_refused(names, aliases, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        GeneNames(names, aliases)


def test_hash_depends_on_names_and_order_only() -> None:
    a = GeneNames(["A", "B"])
    assert a.hash == GeneNames(["A", "B"], {"A": ["X"]}).hash
    assert a.hash != GeneNames(["B", "A"]).hash
    assert a.hash != GeneNames(["A", "B", "C"]).hash
    assert a.hash != GeneNames(["a", "B"]).hash
    assert GeneNames(["A", "BC"]).hash != GeneNames(["AB", "C"]).hash


def test_equality_length_item_repr_pickle() -> None:
    same = GeneNames(YEAST.names, YEAST.aliases)
    assert same == YEAST
    assert hash(same) == hash(YEAST)
    assert GeneNames(YEAST.names) != YEAST
    assert len(YEAST) == 3
    assert YEAST[1] == "YBR002C"
    assert repr(GeneNames(["A", "B"], {"A": ["X", "Y"]})) == "GeneNames(2 genes, 2 other names)"
    assert pickle.loads(pickle.dumps(YEAST)) == YEAST


def test_suggestions_are_at_most_three_and_ignore_case() -> None:
    genes = GeneNames([f"YAL00{i}C" for i in range(9)])
    assert len(genes.suggest("yal009c")) == 3
    assert genes.suggest("completely different") == []


# Few letters, so that names collide in every way.
SHORT = st.text("aAbB", min_size=1, max_size=2)


@st.composite
def name_lists(draw: st.DrawFn) -> tuple[list[str], dict[str, list[str]]]:
    names = draw(st.lists(SHORT, min_size=1, max_size=5, unique=True))
    other = st.lists(st.one_of(SHORT, st.just("")), max_size=3)
    return names, {name: draw(other) for name in names if draw(st.booleans())}


def slow_find(names: list[str], aliases: dict[str, list[str]], query: str) -> tuple[int, ...]:
    """Independent reference: try every name of every gene against the query, rule by rule."""
    for fold in (str, str.casefold):
        for rule in ("systematic", "standard", "alias"):
            matches = set()
            for gene, name in enumerate(names):
                others = aliases.get(name, [])
                own = {"systematic": [name], "standard": others[:1], "alias": others[1:]}[rule]
                if any(n and fold(n) == fold(query) for n in own):
                    matches.add(gene)
            if matches:
                return tuple(sorted(matches))
    return ()


@given(name_lists(), st.lists(SHORT, max_size=8))
@settings(deadline=None)
def test_find_equals_the_slow_resolver(lists, queries) -> None:
    names, aliases = lists
    genes = GeneNames(names, aliases)
    queries += [n for others in aliases.values() for n in others if n] + names
    expected = {q: slow_find(names, aliases, q) for q in queries}
    assert {q: genes.find(q) for q in queries} == expected
    bad = tuple(q for q, found in expected.items() if len(found) != 1)
    if bad:
        with pytest.raises(UnknownGeneError) as caught:
            genes.index(expected)
        assert caught.value.names == bad
    else:
        assert genes.index(expected).tolist() == [found[0] for found in expected.values()]


@given(name_lists())
@settings(deadline=None)
def test_every_systematic_name_resolves_to_itself(lists) -> None:
    names, aliases = lists
    assert GeneNames(names, aliases).index(names).tolist() == list(range(len(names)))


@given(st.lists(st.text(min_size=1, max_size=6).filter(lambda t: unfit(t) is None), unique=True))
@settings(deadline=None)
def test_any_unicode_name_resolves_to_itself_and_in_any_case_where_unambiguous(names: list[str]) -> None:
    genes = GeneNames(names)
    assert genes.index(names).tolist() == list(range(len(names)))
    folded = [name.casefold() for name in names]
    for i, name in enumerate(names):
        if folded.count(folded[i]) == 1 and name.casefold() not in names:
            assert genes.find(name.casefold()) == (i,)
