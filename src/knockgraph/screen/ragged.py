"""Ragged rows as two flat arrays: the entries of row ``r`` are ``flat[ptr[r]:ptr[r + 1]]``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
