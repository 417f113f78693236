import math
import statistics as stats

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import NAN, examples, screens

from knockgraph import Screen, ScreenError
from knockgraph.screen import Duplicates

INF = float("inf")


def example() -> Screen:
    return Screen(
        [["a", "b"], [], ["b", "a"], ["c"], ["a", "b"]],
        {"fitness": [0.5, 1.0, NAN, 0.25, 0.75], "gi": [NAN, 0.0, NAN, NAN, NAN]},
        {"fitness": {"std": [0.3, 0.1, 0.4, NAN, NAN], "p_value": [0.1, 0.2, 0.3, 0.4, NAN], "n": [1, 2, 4, 5, 7]}},
        source=["x", "y", "z", "x", "y"],
    )


def test_columns_are_float64_copies():
    values = np.array([1, 2], dtype=np.int32)
    screen = Screen([["a"], []], {"fitness": values})
    values[0] = 9
    assert screen.phenotypes["fitness"].dtype == np.float64
    assert screen.phenotypes["fitness"].tolist() == [1.0, 2.0]


def test_nan_is_a_missing_value():
    assert math.isnan(Screen([[]], {"fitness": [NAN]}).phenotypes["fitness"][0])
    assert math.isnan(Screen([[]], {"fitness": [None]}).phenotypes["fitness"][0])


@pytest.mark.parametrize("value", [INF, -INF])
def test_infinite_phenotype_is_refused(value):
    with pytest.raises(ScreenError, match=r"column 'fitness' is infinite at experiment 1; mark a missing value as NaN"):
        Screen([["a"], ["b"], []], {"fitness": [0.0, value, value]})


def test_infinite_statistic_is_refused():
    with pytest.raises(ScreenError, match=r"column 'fitness\.std' is infinite at experiment 0"):
        Screen([["a"]], {"fitness": [0.0]}, {"fitness": {"std": [INF]}})


@pytest.mark.parametrize(("values", "shape"), [([1.0], r"\[1\]"), ([[1.0], [2.0]], r"\[2, 1\]"), (3.0, r"\[\]")])
def test_wrong_shape_is_refused(values, shape):
    with pytest.raises(ScreenError, match=rf"column 'fitness' has shape {shape}, but there are 2 experiments"):
        Screen([["a"], ["b"]], {"fitness": values})
    with pytest.raises(ScreenError, match=rf"column 'gi\.std' has shape {shape}, but there are 2 experiments"):
        Screen([["a"], ["b"]], {"gi": [0, 0]}, {"gi": {"std": values}})


def test_text_is_refused():
    with pytest.raises(ScreenError, match=r"column 'fitness' is not numeric: .*'high'"):
        Screen([["a"]], {"fitness": ["high"]})


def test_no_phenotype_is_refused():
    with pytest.raises(ScreenError, match="needs at least one phenotype"):
        Screen([["a"]], {})


def test_statistics_of_an_unknown_phenotype_are_refused():
    with pytest.raises(ScreenError, match=r"given for 'growth', which is not a phenotype here \(fitness, gi\)"):
        Screen([["a"]], {"fitness": [1], "gi": [1]}, {"growth": {"std": [1]}})


@pytest.mark.parametrize("name", ["genotype", "source", "", ".hidden", 3])
def test_reserved_names_are_refused(name):
    with pytest.raises(ScreenError, match=f"{name!r} cannot name a phenotype"):
        Screen([["a"]], {name: [1.0]})


def test_a_statistic_that_would_overwrite_a_phenotype_is_refused():
    # Both would be the Parquet column 'a.b'; one of them was lost without a word.
    with pytest.raises(ScreenError, match=r"two columns would be called 'a\.b'"):
        Screen([["x"]], {"a": [1.0], "a.b": [2.0]}, {"a": {"b": [3.0]}})
    with pytest.raises(ScreenError, match=r"two columns would be called 'a\.b\.c'"):
        Screen([["x"]], {"a": [1.0], "a.b": [2.0]}, {"a": {"b.c": [3.0]}, "a.b": {"c": [4.0]}})


def test_number_of_sources_is_checked():
    with pytest.raises(ScreenError, match="there are 2 sources for 1 experiments"):
        Screen([["a"]], {"fitness": [1.0]}, source=["x", "y"])


def test_sources_are_canonical():
    one = Screen([["a"], ["b"]], {"f": [1, 2]}, source="s")
    assert one == Screen([["a"], ["b"]], {"f": [1, 2]}, source=["s", "s"])
    assert one == Screen([["a"], ["b"]], {"f": [1, 2]}, source=(["unused", "s"], np.array([1, 1])))
    two = Screen([["a"], ["b"]], {"f": [1, 2]}, source=["z", "b"])
    assert two.source_names == ("b", "z")
    assert two.source_codes.tolist() == [1, 0]


def test_empty_screen():
    screen = Screen([], {"fitness": []}, {"fitness": {"std": []}}, source="x")
    assert len(screen) == 0
    assert screen.duplicates() == Duplicates(0, 0, 0)
    for rule in ("mean", "median", "first"):
        assert screen.merge_duplicates(rule) == screen
    assert screen.take(np.array([], dtype=np.int64)) == screen


@given(screens(), st.data())
@examples
def test_take_against_plain_lists(screen, data):
    rows = data.draw(st.lists(st.integers(0, len(screen) - 1), max_size=8)) if len(screen) else []
    taken = screen.take(np.array(rows, dtype=np.int64))
    sources = [screen.source_names[screen.source_codes[row]] for row in rows]
    assert taken == Screen(
        [screen.genotypes[row] for row in rows],
        {name: [values[row] for row in rows] for name, values in screen.phenotypes.items()},
        {name: {k: [v[row] for row in rows] for k, v in kinds.items()} for name, kinds in screen.statistics.items()},
        sources,
    )


@given(screens())
@examples
def test_duplicates_against_counting(screen):
    counts: dict[tuple[str, ...], int] = {}
    for genotype in screen.genotypes:
        counts[genotype] = counts.get(genotype, 0) + 1
    repeated = [count for count in counts.values() if count > 1]
    assert screen.duplicates() == Duplicates(len(repeated), sum(repeated), max(counts.values(), default=0))


def slow_merge(screen: Screen, rule: str) -> Screen:
    rows: dict[tuple[str, ...], list[int]] = {}
    for row, genotype in enumerate(screen.genotypes):
        rows.setdefault(genotype, []).append(row)

    def merged(values, how):
        out = []
        for members in rows.values():
            measured = [float(values[m]) for m in members if not math.isnan(values[m])]
            if rule == "first":
                out.append(values[members[0]])
            elif not measured:
                out.append(NAN)
            else:
                out.append(how(measured))
        return out

    how = {"mean": lambda v: math.fsum(v) / len(v), "median": stats.median, "first": None}
    kinds = {"std": lambda v: math.sqrt(math.fsum(x * x for x in v) / len(v)), "p_value": max}
    return Screen(
        list(rows),
        {name: merged(values, how[rule]) for name, values in screen.phenotypes.items()},
        {
            name: {kind: merged(v, kinds.get(kind, how["mean"])) for kind, v in columns.items()}
            for name, columns in screen.statistics.items()
        },
        [screen.source_names[screen.source_codes[members[0]]] for members in rows.values()],
    )


def assert_close(a: Screen, b: Screen) -> None:
    assert a.genotypes == b.genotypes
    assert (a.source_names, a.source_codes.tolist()) == (b.source_names, b.source_codes.tolist())
    assert list(a.phenotypes) == list(b.phenotypes)
    for name, values in a.phenotypes.items():
        np.testing.assert_allclose(values, b.phenotypes[name], rtol=1e-12, atol=1e-9)
    assert list(a.statistics) == list(b.statistics)
    for name, kinds in a.statistics.items():
        assert list(kinds) == list(b.statistics[name])
        for kind, values in kinds.items():
            np.testing.assert_allclose(values, b.statistics[name][kind], rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("rule", ["mean", "median", "first"])
@given(screen=screens())
@examples
def test_merge_duplicates_against_slow_reference(rule, screen):
    merged = screen.merge_duplicates(rule)
    assert_close(merged, slow_merge(screen, rule))
    assert merged.duplicates().genotypes == 0
    assert_close(merged.merge_duplicates(rule), merged)


def test_merge_duplicates_by_hand():
    merged = example().merge_duplicates("mean")
    assert list(merged.genotypes) == [("a", "b"), (), ("c",)]
    np.testing.assert_allclose(merged.phenotypes["fitness"], [0.625, 1.0, 0.25])
    np.testing.assert_allclose(merged.phenotypes["gi"], [NAN, 0.0, NAN])
    np.testing.assert_allclose(merged.statistics["fitness"]["std"], [math.sqrt((0.09 + 0.16) / 2), 0.1, NAN])
    np.testing.assert_allclose(merged.statistics["fitness"]["p_value"], [0.3, 0.2, 0.4])
    np.testing.assert_allclose(merged.statistics["fitness"]["n"], [4.0, 2.0, 5.0])
    assert [merged.source_names[c] for c in merged.source_codes] == ["x", "y", "x"]


def test_merge_first_keeps_the_first_experiment_whole():
    assert example().merge_duplicates("first") == example().take(np.array([0, 1, 3]))


def test_unknown_merge_rule():
    with pytest.raises(ScreenError, match="unknown merge rule 'max': use mean, median or first"):
        example().merge_duplicates("max")


def test_merge_does_not_change_the_screen():
    screen = example()
    screen.merge_duplicates("median")
    assert screen == example()


@pytest.mark.parametrize(
    "other",
    [
        Screen([["a"], ["b"]], {"f": [1, NAN]}, {"f": {"std": [1, 2]}}, "s"),  # the same
        Screen([["a"], ["c"]], {"f": [1, NAN]}, {"f": {"std": [1, 2]}}, "s"),
        Screen([["a"], ["b"]], {"g": [1, NAN]}, {"g": {"std": [1, 2]}}, "s"),
        Screen([["a"], ["b"]], {"f": [1, 0]}, {"f": {"std": [1, 2]}}, "s"),
        Screen([["a"], ["b"]], {"f": [1, NAN], "g": [1, 1]}, {"f": {"std": [1, 2]}}, "s"),
        Screen([["a"], ["b"]], {"f": [1, NAN]}, {"f": {"std": [1, NAN]}}, "s"),
        Screen([["a"], ["b"]], {"f": [1, NAN]}, {"f": {"p": [1, 2]}}, "s"),
        Screen([["a"], ["b"]], {"f": [1, NAN]}, None, "s"),
        Screen([["a"], ["b"]], {"f": [1, NAN]}, {"f": {"std": [1, 2]}}, "t"),
        Screen([["a"], ["b"]], {"f": [1, NAN]}, {"f": {"std": [1, 2]}}, ["s", "t"]),
        Screen([["a"]], {"f": [1]}, {"f": {"std": [1]}}, "s"),
        "not a screen",
    ],
)
def test_equality(other):
    screen = Screen([["a"], ["b"]], {"f": [1, NAN]}, {"f": {"std": [1, 2]}}, "s")
    same = isinstance(other, Screen) and repr_all(other) == repr_all(screen)
    assert (screen == other) == same
    assert (screen != other) != same


def repr_all(screen: Screen) -> str:
    """Everything a screen says, as text."""
    columns = [list(map(str, v)) for v in screen.phenotypes.values()]
    kinds = {n: {k: list(map(str, v)) for k, v in kinds.items()} for n, kinds in screen.statistics.items()}
    sources = [screen.source_names[c] for c in screen.source_codes]
    return f"{list(screen.genotypes)} {list(screen.phenotypes)} {columns} {kinds} {sources}"


def test_repr():
    assert repr(example()) == "Screen(5 experiments, 3 gene names, phenotypes fitness and gi)"


def test_joined_screens_keep_their_columns():
    first = example()
    second = Screen([["b", "a"], ["d=0.5"]], {"fitness": [7.0, 8.0]}, {"fitness": {"std": [0.5, 0.6]}})
    both = Screen.join({"one": first, "two": second})
    assert list(both.genotypes) == [*first.genotypes, *second.genotypes]
    assert list(both.phenotypes) == ["one_fitness", "one_gi", "two_fitness"]
    expected = np.append(first.phenotypes["fitness"], [NAN, NAN])
    np.testing.assert_array_equal(both.phenotypes["one_fitness"], expected)
    np.testing.assert_array_equal(both.phenotypes["two_fitness"], [NAN] * 5 + [7.0, 8.0])
    np.testing.assert_array_equal(both.statistics["two_fitness"]["std"], [NAN] * 5 + [0.5, 0.6])
    np.testing.assert_array_equal(both.statistics["one_fitness"]["n"], [1, 2, 4, 5, 7, NAN, NAN])
    sources = [both.source_names[code] for code in both.source_codes]
    assert sources == ["one: x", "one: y", "one: z", "one: x", "one: y", "two", "two"]
    assert both.genotypes.group[0] == both.genotypes.group[5]  # one genotype, measured by both


@given(screens(), screens())
def test_joined_screens_are_parts_of_the_whole(first, second):
    both = Screen.join({"one": first, "two": second})
    for name, screen, start in (("one", first, 0), ("two", second, len(first))):
        rows = np.arange(start, start + len(screen))
        part = both.take(rows)
        assert list(part.genotypes) == list(screen.genotypes)
        for phenotype, values in screen.phenotypes.items():
            np.testing.assert_array_equal(part.phenotypes[f"{name}_{phenotype}"], values)


def test_screens_to_join_need_names():
    with pytest.raises(ScreenError, match="1 screen to join; give two or more, each with a name of its own"):
        Screen.join({"one": example()})
    with pytest.raises(ScreenError, match="'1st' cannot name a screen: use letters, digits and _, a letter first"):
        Screen.join({"1st": example(), "two": example()})
    twice = {"a": Screen([["x"]], {"b_c": [1.0]}), "a_b": Screen([["x"]], {"c": [1.0]})}
    with pytest.raises(ScreenError, match="two columns would be called 'a_b_c'; give a screen another name"):
        Screen.join(twice)
