"""Resolving the gene names of public files against the gene list, and reporting every unknown name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knockgraph.errors import UnknownGeneError
from knockgraph.graph import GeneNames

Policy = Literal["error", "drop"]
_SUGGESTED = 200  # close matches cost milliseconds each


@dataclass
class UnresolvedName:
    """An unknown or ambiguous name."""

    name: str
    rows: int = 0
    why: str = ""
    suggestions: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        name = self.name or "(blank)"
        text = f"{name}: {self.why}" if self.why else name
        return f"{text} (did you mean {' or '.join(self.suggestions)}?)" if self.suggestions else text


class NameResolver:
    """Turns names into rows of the gene list and collects the unknown ones.

    Args:
        genes: The gene list with all other names.
        elsewhere: Names known not to be in the list → what they are, e.g. ``"a pseudogene"``.
        unknown: ``"error"``: :meth:`finish` refuses the file; ``"drop"``: it only reports.
    """

    def __init__(self, genes: GeneNames, elsewhere: Mapping[str, str] | None = None, unknown: Policy = "error") -> None:
        if unknown not in ("error", "drop"):
            raise ValueError(f"unknown={unknown!r} is not an option; use 'error' or 'drop'")
        self.genes = genes
        self.elsewhere = {name.casefold(): what for name, what in (elsewhere or {}).items()}
        self.unknown = unknown
        self._row: dict[str, int] = {}
        self._bad: dict[str, UnresolvedName] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The genes of the rows."""
        return self.genes.names

    def one(self, name: str) -> int:
        """The row of a gene, −1 if the name has none."""
        row = self._row.get(name)
        if row is None:
            found = self.genes.find(name)
            row = self._row[name] = found[0] if len(found) == 1 else -1
            if row < 0:
                why = self.elsewhere.get(name.strip().casefold(), "")
                if found:
                    why = f"ambiguous, {' or '.join(self.genes.names[i] for i in found)}"
                suggest = not why and len(self._bad) < _SUGGESTED
                self._bad[name] = UnresolvedName(name, 0, why, self.genes.suggest(name) if suggest else [])
        return row

    def many(self, names: Sequence[str], codes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Rows of ``names[codes]``, int64, −1 where a name has none; each distinct name is looked up once."""
        row = np.fromiter((self.one(name) for name in names), np.int64, len(names))
        found = row[codes] if len(names) else np.empty(0, np.int64)
        if len(row) and bool((row < 0).any()):
            count = np.bincount(codes, minlength=len(names))
            for i in np.flatnonzero(row < 0).tolist():
                self._bad[names[i]].rows += int(count[i])
        return found

    def finish(self, what: str) -> list[UnresolvedName]:
        """Every name that did not resolve since the last call, most rows first.

        Raises:
            UnknownGeneError: If there is one and the policy is ``error``; it lists them all.
        """
        bad = sorted((b for b in self._bad.values() if b.rows), key=lambda b: (-b.rows, b.name))
        if bad and self.unknown == "error":
            listed = ", ".join(map(str, bad[:20])) + (f" and {len(bad) - 20} more" if len(bad) > 20 else "")
            some = "1 name does" if len(bad) == 1 else f"{len(bad)} names do"
            raise UnknownGeneError(
                f"{what}: {some} not resolve among {len(self.genes):,} genes: {listed}; correct them, or drop "
                "their rows with --unknown drop",
                [b.name for b in bad],
            )
        report = [UnresolvedName(b.name, b.rows, b.why, b.suggestions) for b in bad]
        for b in bad:
            b.rows = 0
        return report


class AsWritten(NameResolver):
    """Accepts every name, for files read without a gene list; names are numbered in order of appearance."""

    def __init__(self) -> None:
        super().__init__(GeneNames([]), unknown="drop")
        self._names: list[str] = []

    def one(self, name: str) -> int:
        """A number per distinct name."""
        name = name.strip()
        row = self._row.get(name)
        if row is None:
            row = self._row[name] = len(self._names)
            self._names.append(name)
        return row

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of their numbers."""
        return tuple(self._names)
