"""Ragged rows as two flat arrays: the entries of row ``r`` are ``flat[ptr[r]:ptr[r + 1]]``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError

Ints = npt.NDArray[np.integer[Any]]
_AT_ONCE = 1 << 21  # entries


def positions(ptr: Ints, rows: Ints) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where the entries of ``rows`` lie in the flat array, and the pointer of the rows taken together.

    >>> flat, ptr = positions(np.array([0, 2, 2, 5]), np.array([2, 0]))
    >>> flat.tolist(), ptr.tolist()
    ([2, 3, 4, 0, 1], [0, 3, 5])
    """
    start = ptr[rows].astype(np.int64)
    count = ptr[rows + 1] - start
    out = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(count, out=out[1:])
    return np.repeat(start - out[:-1], count) + np.arange(out[-1]), out


def row_of_entry(ptr: Ints) -> npt.NDArray[np.int64]:
    """The row of each entry, ``[ptr[-1]]``."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def as_sets(codes: Ints, ptr: Ints, num_codes: int) -> tuple[Ints, npt.NDArray[np.int64]]:
    """Each row as a set: entries ascending, repeated ones once.

    >>> codes, ptr = as_sets(np.array([3, 1, 3, 0]), np.array([0, 3, 3, 4]), 4)
    >>> codes.tolist(), ptr.tolist()
    ([1, 3, 0], [0, 2, 2, 3])
    """
    size = np.diff(ptr)
    parts: list[Ints] = []
    changed = False
    # Some rows at a time: the keys are twice as wide as the codes, and millions of rows have many.
    edges = np.unique(np.append(np.searchsorted(ptr, np.arange(0, len(codes), _AT_ONCE)), len(size)))
    for first, last in itertools.pairwise(edges.tolist()):
        part = codes[ptr[first] : ptr[last]]
        row = np.repeat(np.arange(last - first), size[first:last])
        if not bool(((part[1:] > part[:-1]) | (row[1:] != row[:-1])).all()):
            changed = True
            key = row * num_codes + part
            key.sort()
            key = key[np.append(True, key[1:] != key[:-1])]
            row = key // num_codes
            size[first:last] = np.bincount(row, minlength=last - first)
            part = (key - row * num_codes).astype(codes.dtype)
        parts.append(part)
    if not changed:
        return codes, ptr.astype(np.int64)
    out = np.zeros(len(ptr), dtype=np.int64)
    np.cumsum(size, out=out[1:])
    return np.concatenate(parts), out


def as_valued_sets(
    codes: Ints, values: npt.NDArray[np.float64], ptr: Ints, names: Sequence[str]
) -> tuple[Ints, npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """:func:`as_sets` of entries that have a value each.

    >>> made = as_valued_sets(np.array([3, 1, 3]), np.array([0.5, 0.0, 0.5]), np.array([0, 3]), "abcd")
    >>> [part.tolist() for part in made]
    [[1, 3], [0.0, 0.5], [0, 2]]

    Raises:
        ScreenError: If an entry is repeated with another value; ``names`` are those of the codes.
    """
    row = row_of_entry(ptr)
    order = np.lexsort((codes, row))
    codes, values, row = codes[order], values[order], row[order]
    again = (row[1:] == row[:-1]) & (codes[1:] == codes[:-1])
    other = np.flatnonzero(again & (values[1:] != values[:-1]))
    if len(other):
        at = int(other[0])
        raise ScreenError(
            f"experiment {row[at]} gives gene {names[int(codes[at])]!r} two values, {values[at]:g} and "
            f"{values[at + 1]:g}; give it one"
        )
    first = np.append(True, ~again)[: len(codes)]
    out = np.zeros(len(ptr), dtype=np.int64)
    np.cumsum(np.bincount(row[first], minlength=len(ptr) - 1), out=out[1:])
    return codes[first], values[first], out


def valued_codes(codes: Ints, values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """One number per entry, equal exactly where code and value are; below the number of entries.

    >>> valued_codes(np.array([0, 0, 1]), np.array([0.5, 0.0, 0.5])).tolist()
    [1, 0, 2]
    """
    distinct, place = np.unique(values, return_inverse=True)
    _, key = np.unique(codes.astype(np.int64) * max(len(distinct), 1) + place, return_inverse=True)
    return np.asarray(key, dtype=np.int64)


def canonical_names(names: Sequence[str], codes: Ints) -> tuple[tuple[str, ...], Ints]:
    """The names that are used, ascending, and the codes that mean the same with them.

    >>> names, codes = canonical_names(("b", "unused", "a"), np.array([0, 2, 0]))
    >>> names, codes.tolist()
    (('a', 'b'), [1, 0, 1])
    """
    seen = np.zeros(len(names), dtype=bool)
    if len(codes):
        seen[codes] = True
    used = np.flatnonzero(seen)
    order = sorted(used.tolist(), key=names.__getitem__)
    if order == list(range(len(names))):
        return tuple(names), codes
    rank = np.zeros(len(names), dtype=np.int32)
    rank[order] = np.arange(len(order))
    return tuple(names[i] for i in order), rank[codes] if len(codes) else codes


def same_set(codes: Ints, ptr: Ints, num_codes: int) -> npt.NDArray[np.int64]:
    """A number per row, equal exactly where the rows (as made by :func:`as_sets`) hold the same set.

    Rows of one size are compared column by column; the number so far is paired with the next code, and renumbered
    before it would overflow, so this is exact, without hashing.
    """
    size = np.diff(ptr)
    group = np.empty(len(size), dtype=np.int64)
    base = 0
    for s in np.unique(size):
        rows = np.flatnonzero(size == s)
        key, span = np.zeros(len(rows), dtype=np.int64), 1
        for column in range(int(s)):
            if span * num_codes >= 1 << 62:
                distinct, key = np.unique(key, return_inverse=True)
                span = len(distinct)
            key = key * num_codes + codes[ptr[rows] + column]
            span *= num_codes
        _, key = np.unique(key, return_inverse=True)
        group[rows] = base + key
        base += int(key.max()) + 1
    return group
