import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from screen_cases import examples

from knockgraph.screen import ragged

CODES = 7
rows_of_codes = st.lists(st.lists(st.integers(0, CODES - 1), max_size=5), max_size=10)


def flat(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    codes = np.array([code for row in rows for code in row], dtype=np.int32)
    return codes, np.cumsum([0, *map(len, rows)])


def unflat(codes: np.ndarray, ptr: np.ndarray) -> list[list[int]]:
    assert ptr[0] == 0
    assert ptr[-1] == len(codes)
    return [codes[a:b].tolist() for a, b in itertools.pairwise(ptr)]


@given(rows_of_codes, st.data())
@examples
def test_positions_takes_rows_in_any_order_and_repeated(rows, data):
    codes, ptr = flat(rows)
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=12)) if rows else []
    at, out = ragged.positions(ptr, np.array(chosen, dtype=np.int64))
    assert unflat(codes[at], out) == [rows[r] for r in chosen]


@given(rows_of_codes)
@examples
def test_row_of_entry(rows):
    _, ptr = flat(rows)
    assert ragged.row_of_entry(ptr).tolist() == [r for r, row in enumerate(rows) for _ in row]


@given(rows_of_codes)
@examples
def test_as_sets_sorts_and_removes_repeats(rows):
    codes, ptr = flat(rows)
    before = codes.copy(), ptr.copy()
    sets, out = ragged.as_sets(codes, ptr, CODES)
    assert unflat(sets, out) == [sorted(set(row)) for row in rows]
    assert sets.dtype == codes.dtype
    assert out.dtype == np.int64
    assert np.array_equal(before[0], codes)  # the input is not modified
    assert np.array_equal(before[1], ptr)


def test_as_sets_keeps_a_row_that_starts_below_the_end_of_the_one_before():
    # Ascending inside each row, falling between rows: nothing to do, and nothing may be done across rows.
    sets, ptr = ragged.as_sets(np.array([3, 5, 1, 5]), np.array([0, 2, 4]), 6)
    assert unflat(sets, ptr) == [[3, 5], [1, 5]]


def test_as_sets_does_not_overflow_with_many_rows_of_small_codes():
    rows, num_codes = 70_000, 40_000  # rows × num_codes exceeds int32
    codes = np.tile(np.array([39_999, 0], dtype=np.int32), rows)
    sets, ptr = ragged.as_sets(codes, np.arange(rows + 1) * 2, num_codes)
    assert np.array_equal(sets, np.tile(np.array([0, 39_999]), rows))
    assert np.array_equal(ptr, np.arange(rows + 1) * 2)


@given(st.lists(st.text(max_size=3), unique=True, min_size=1, max_size=8), st.data())
@examples
def test_canonical_names_keeps_the_meaning(names, data):
    codes = np.array(data.draw(st.lists(st.integers(0, len(names) - 1), max_size=12)), dtype=np.int32)
    used, recoded = ragged.canonical_names(names, codes)
    assert [used[c] for c in recoded] == [names[c] for c in codes]
    assert list(used) == sorted({names[c] for c in codes})


@given(rows_of_codes)
@examples
def test_same_set_is_equality_of_sets(rows):
    codes, ptr = ragged.as_sets(*flat(rows), CODES)
    group = ragged.same_set(codes, ptr, CODES)
    for a, first in enumerate(rows):
        for b, second in enumerate(rows):
            assert (group[a] == group[b]) == (set(first) == set(second))
    assert sorted(set(group.tolist())) == list(range(len({frozenset(row) for row in rows})))


@given(rows_of_codes, st.integers(1, 9))
@examples
def test_as_sets_does_not_depend_on_how_much_is_done_at_once(rows, at_once):
    codes, ptr = flat(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "_AT_ONCE", at_once)
        sets, out = ragged.as_sets(codes, ptr, CODES)
    assert unflat(sets, out) == [sorted(set(row)) for row in rows]


@given(rows_of_codes)
@examples
def test_same_set_of_codes_too_large_for_one_key(rows):
    rows = [sorted(set(row)) for row in rows]
    codes, ptr = flat(rows)
    group = ragged.same_set(codes.astype(np.int64) << 40, ptr, CODES << 40)
    assert np.array_equal(group, ragged.same_set(codes, ptr, CODES))
    assert all((group[i] == group[j]) == (a == b) for i, a in enumerate(rows) for j, b in enumerate(rows))
