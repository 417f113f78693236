"""Labels in coordinate form: one entry for each number that was measured, and what it is a measurement of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.screen.ragged import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Coordinates:
    """Numbers of many samples, one after another.

    Attributes:
        sample: int ``[entries]``, ascending.
        kind: int ``[entries]``, into ``names``.
        item: int ``[entries]``, which measurement of the sample the number belongs to.
        value: float ``[entries]``.
        names: What the kinds are called.
    """

    sample: Ints
    kind: Ints
    item: Ints
    value: Floats
    names: tuple[str, ...]


@dataclass(frozen=True)
class Columns:
    """The same as a table.

    Attributes:
        sample: int ``[rows]``: the sample of each row; one that was measured repeatedly has several.
        place: int ``[entries]``: the row of each phenotype's entry.
        phenotypes: Name → float ``[rows]``, NaN where it was not measured.
        statistics: Phenotype → statistic → float ``[rows]``.
    """

    sample: Ints
    place: Ints
    phenotypes: dict[str, Floats]
    statistics: dict[str, dict[str, Floats]]


def as_columns(samples: int, phenotypes: Coordinates, statistics: Coordinates) -> Columns:
    """A row for each sample, and one more for each repeated measurement of a phenotype.

    A number's row is the n-th of its sample if it is the n-th measurement of its phenotype there. A statistic stands
    in the row of the phenotype with the same ``item``.

    >>> import numpy as np
    >>> values = Coordinates(np.array([0, 0, 0]), np.array([0, 1, 0]), np.array([0, 1, 2]), np.array([.9, .2, .8]),
    ...     ("fitness", "gene_interaction"))
    >>> p_value = Coordinates(np.array([0]), np.array([0]), np.array([1]), np.array([.05]),
    ...     ("gene_interaction_p_value",))
    >>> made = as_columns(1, values, p_value)
    >>> made.phenotypes["fitness"].tolist(), made.statistics["gene_interaction"]["p_value"].tolist()
    ([0.9, 0.8], [0.05, nan])
    """
    kinds = max(len(phenotypes.names), 1)
    group = phenotypes.sample.astype(np.int64) * kinds + phenotypes.kind
    number = nth(group)
    rows = np.ones(samples, dtype=np.int64)
    np.maximum.at(rows, phenotypes.sample, number + 1)
    first = np.concatenate([[0], np.cumsum(rows)])
    place = first[phenotypes.sample] + number
    columns = {}
    for kind, name in enumerate(phenotypes.names):
        here = phenotypes.kind == kind
        columns[name] = _scattered(place[here], phenotypes.value[here], int(first[-1]))
    owners = _owners(statistics.names, phenotypes.names)
    nested: dict[str, dict[str, Floats]] = {}
    for kind, (owner, short) in enumerate(owners):
        here = statistics.kind == kind
        at = _place_of(statistics, here, owner, phenotypes, place, kinds)
        nested.setdefault(phenotypes.names[owner], {})[short] = _scattered(at, statistics.value[here], int(first[-1]))
    return Columns(np.repeat(np.arange(samples), rows), place, columns, nested)


def nth(group: Ints) -> npt.NDArray[np.int64]:
    """How often the group of each entry came before.

    >>> nth(np.array([5, 3, 5, 5])).tolist()
    [0, 0, 1, 2]
    """
    order = np.argsort(group, kind="stable")
    ranked = group[order]
    start = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1])) if len(ranked) else np.zeros(0, np.int64)
    size = np.diff(np.append(start, len(ranked)))
    out = np.empty(len(group), dtype=np.int64)
    out[order] = np.arange(len(group)) - np.repeat(start, size)
    return out


def _scattered(place: Ints, value: Floats, rows: int) -> Floats:
    out = np.full(rows, np.nan)
    out[place] = value
    return out


def _place_of(
    statistics: Coordinates, here: npt.NDArray[np.bool_], owner: int, phenotypes: Coordinates, place: Ints, kinds: int
) -> Ints:
    """The rows of one statistic: those of its phenotype's numbers of the same sample and item."""
    items = int(max(phenotypes.item.max(initial=0), statistics.item.max(initial=0))) + 1
    of_owner = phenotypes.kind == owner
    known = phenotypes.sample[of_owner].astype(np.int64) * items + phenotypes.item[of_owner]
    order = np.argsort(known, kind="stable")
    known = known[order]
    twice = np.flatnonzero(known[1:] == known[:-1])
    if len(twice):
        raise ScreenError(
            f"sample {int(known[twice[0]]) // items} has two values of {phenotypes.names[owner]!r} for one "
            "measurement, so its statistics cannot be told apart; number the measurements with phenotype_sample_indices"
        )
    wanted = statistics.sample[here].astype(np.int64) * items + statistics.item[here]
    at = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    missing = np.flatnonzero(known[at] != wanted) if len(known) else np.arange(len(wanted))
    if len(missing):
        raise ScreenError(
            f"sample {int(wanted[missing[0]]) // items} has a statistic of {phenotypes.names[owner]!r} but no value of "
            "it; leave the statistic out"
        )
    return place[of_owner][order][at] if len(wanted) else np.zeros(0, dtype=np.int64)


def _owners(statistics: Sequence[str], phenotypes: Sequence[str]) -> list[tuple[int, str]]:
    """For each statistic its phenotype and its short name.

    >>> _owners(["gene_interaction_p_value", "fitness.std"], ["fitness", "gene_interaction"])
    [(1, 'p_value'), (0, 'std')]
    >>> _owners(["p_value"], ["gene_interaction"])
    [(0, 'p_value')]
    """
    found = []
    for place, name in enumerate(statistics):
        # The longest name that fits: 'gene_interaction' before 'gene'.
        fits = [i for i, owner in enumerate(phenotypes) if name.startswith((f"{owner}_", f"{owner}."))]
        if fits:
            owner = max(fits, key=lambda i: len(phenotypes[i]))
            found.append((owner, name[len(phenotypes[owner]) + 1 :]))
        elif len(statistics) == len(phenotypes):
            found.append((place, name))
        else:
            raise ScreenError(
                f"it is not clear of which phenotype {name!r} is a statistic ({', '.join(phenotypes)}); call it "
                f"PHENOTYPE_{name}"
            )
    return found
