"""Gene names: from a name that a person or a file uses to its row in the graph."""

from __future__ import annotations

import difflib
import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from knockgraph.errors import GraphError, UnknownGeneError

_SUGGEST_FOR = 20  # close matches cost milliseconds each; thousands of wrong names get no suggestions
_SHOWN = 50  # in the text of the error; its ``names`` are all


WILD_TYPE = "WT"
"""The written genotype of the wild type."""
_MARKS = re.compile(r"[Δ∆]?(.+?)(?:[-_]?[Δ∆]\d*)?(?:::.*)?")
_STRAIN = re.compile(
    r"(y[a-p][lr]\d{3}[cw](?:-[a-z])?|[a-z]{3}\d{1,3})(?:_[a-z]{1,5}\d+|[_-](?:supp|tsq|tsa|ts)\d*)", re.IGNORECASE
)
_ALLELE = re.compile(r"([a-z]{3}\d{1,3})-[a-z0-9.]+")
DAMP = r"[\s_-]+\(?(?i:damp)\b\)?"
"""The mark of an allele with decreased mRNA, ``ACT1 - DAMP``, as a regular expression; it may hold spaces."""
BOTH_NAMES = r"[^\s+,|;]+\s+-\s+((?i:y[a-p][lr]\d{3}[cw](?:-[a-z])?))\b"
"""A gene by its standard and its systematic name, ``DEP1 - YAL013W``, as a regular expression; the latter is kept."""
_BOTH = re.compile(BOTH_NAMES)
_DAMP_LAST = re.compile(rf"(.+?){DAMP}")
_RESERVED = re.compile(r"[+,|;=\x00-\x1f\x7f]")


def unfit(name: object) -> str | None:
    """Why a value cannot be a gene name, or ``None``: a name in a written genotype must be read back unchanged.

    >>> unfit("YAL001C"), unfit("tA(UGC)A")
    (None, None)
    >>> unfit("A+B")
    "it holds '+', which separates genes or values where genotypes are written"
    """
    if not isinstance(name, str) or not name.strip():
        return "gene names are non-empty strings"
    if name != name.strip():
        return "gene names do not begin or end with a space"
    found = _RESERVED.search(name)
    if found and found[0] in "+,|;=":
        return f"it holds {found[0]!r}, which separates genes or values where genotypes are written"
    if found:
        return "gene names have no line breaks, tabs or other control characters"
    if name.upper() == WILD_TYPE:
        return f"{WILD_TYPE} means the wild type where genotypes are written"
    return None


def unmarked(name: str) -> str:
    """A gene without the mark of its deletion or DAmP allele, the number of its strain, or a second name.

    >>> [unmarked(name) for name in ("rad52Δ", "rad52-Δ", "rad52Δ0::kanMX", "RAD52::URA3", "ΔrecA", "rad52")]
    ['rad52', 'rad52', 'rad52', 'RAD52', 'recA', 'rad52']
    >>> [unmarked(name) for name in ("YAL002W_dma7", "YBR111W-A_tsq508", "YAL011W-supp1", "arp6_tsq12", "ARP6-ts")]
    ['YAL002W', 'YBR111W-A', 'YAL011W', 'arp6', 'ARP6']
    >>> unmarked("DEP1 - YAL013W"), unmarked("ACT1 - YFL039C - DAMP")
    ('YAL013W', 'YFL039C')
    >>> [unmarked(name) for name in ("ACT1 - DAMP", "ACT1-DAmP", "YFL039C_damp", "ACT1 (DAmP)")]
    ['ACT1', 'ACT1', 'YFL039C', 'ACT1']
    """
    written = _BOTH.sub(r"\1", name.strip())
    allele = _STRAIN.fullmatch(written) or _DAMP_LAST.fullmatch(written)
    if allele:
        return allele[1]
    if written != name.strip():
        return written
    if not any(sign in name for sign in ("Δ", "∆", "::")):
        return name
    found = _MARKS.fullmatch(name)
    return found[1].strip() if found else name


class GeneNames:
    r"""The ordered gene list of a cell and all names of its genes.

    A name resolves by the first rule that matches: systematic name, standard name, alias, then the same three
    ignoring case, then all of them without the mark of a deletion (``tfc3Δ``), then an allele of yeast, in lower case,
    as its gene (``cdc28-4``). A name that matches two genes by that rule is ambiguous; it is reported, never guessed.

    Args:
        names: Systematic names, unique; their order is the order of the rows of every gene tensor.
        aliases: Other names, either ``systematic -> [standard, alias, …]`` (an empty first entry: no standard name)
            or ``alias -> systematic``.

    >>> genes = GeneNames(["YAL001C", "YBR002C"], {"YAL001C": ["TFC3", "FUN24"]})
    >>> genes.index(["tfc3", "YBR002C", "tfc3Δ::kanMX", "tfc3-12"]).tolist()
    [0, 1, 0, 0]
    """

    def __init__(
        self,
        names: Iterable[str],
        aliases: Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self.names: tuple[str, ...] = tuple(names)
        for position, name in enumerate(self.names):
            problem = unfit(name)
            if problem:
                raise GraphError(f"gene {position} has the name {name!r}: {problem}; rename it in the gene list")
        self._exact: dict[str, int] = {name: i for i, name in enumerate(self.names)}
        if len(self._exact) != len(self.names):
            seen: set[str] = set()
            repeated = sorted({n for n in self.names if n in seen or seen.add(n)})  # type: ignore[func-returns-value]
            raise GraphError(f"gene names must be unique, but these are repeated: {_listed(repeated)}")
        self.aliases: dict[str, tuple[str, ...]] = self._normalise(aliases or {})

    def _normalise(self, aliases: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """Bring both accepted forms to ``systematic -> (standard, alias, …)``."""
        collected: dict[str, list[str]] = {}
        reverse: list[tuple[str, str]] = []
        strangers: list[str] = []
        for key, value in aliases.items():
            if key in self._exact:
                others = [value] if isinstance(value, str) else value
                if not isinstance(others, Sequence) or not all(isinstance(other, str) for other in others):
                    raise GraphError(f"the aliases of gene {key!r} are {others!r}; give a string or a list of strings")
                collected[key] = [other.strip() for other in others]
            elif isinstance(value, str) and value in self._exact:
                reverse.append((value, key.strip()))
            else:
                strangers.append(key)
        for name, other in reverse:  # this form does not say which name is the standard one
            collected.setdefault(name, [""]).append(other)
        if strangers:
            raise GraphError(
                f"aliases are given for names that are not in the gene list: {_listed(strangers)}; "
                "leave them out or add the genes"
            )
        return {name: tuple(collected[name]) for name in self.names if name in collected}

    @cached_property
    def _levels(self) -> tuple[dict[str, set[int]], ...]:
        """Name → genes, one table per rule, in the order in which the rules are tried."""
        systematic: dict[str, set[int]] = {name: {i} for name, i in self._exact.items()}
        standard: dict[str, set[int]] = {}
        alias: dict[str, set[int]] = {}
        for name, others in self.aliases.items():
            i = self._exact[name]
            for rank, other in enumerate(others):
                if other:
                    (standard if rank == 0 else alias).setdefault(other, set()).add(i)
        levels = [systematic, standard, alias]
        for exact in (systematic, standard, alias):
            folded: dict[str, set[int]] = {}
            for name, found in exact.items():
                folded.setdefault(name.casefold(), set()).update(found)
            levels.append(folded)
        return tuple(levels)

    def find(self, name: str) -> tuple[int, ...]:
        """All genes that ``name`` may mean: one if it resolves, none if it is unknown, several if it is ambiguous."""
        gene = self._exact.get(name)
        if gene is not None:
            return (gene,)
        folded = name.strip().casefold()
        for rank, level in enumerate(self._levels):
            found = level.get(name.strip() if rank < 3 else folded)
            if found:
                return tuple(sorted(found))
        plain = unmarked(name)
        if plain == name:
            allele = _ALLELE.fullmatch(name)
            plain = allele[1] if allele else name
        return () if plain == name else self.find(plain)

    def standard(self, gene: int) -> str:
        """The standard name of a row; the systematic one where there is no other.

        >>> genes = GeneNames(["YAL001C", "YBR002C"], {"YAL001C": ["TFC3", "FUN24"]})
        >>> genes.standard(0), genes.standard(1)
        ('TFC3', 'YBR002C')
        """
        name = self.names[gene]
        others = self.aliases.get(name, ())
        return others[0] if others and others[0] else name

    def systematic(self, names: Iterable[str]) -> list[str]:
        """The systematic name of each; unknown and ambiguous names are left unchanged.

        >>> GeneNames(["YAL001C"], {"YAL001C": ["TFC3"]}).systematic(["tfc3", "nobody"])
        ['YAL001C', 'nobody']
        """
        found = ((name, self.find(name)) for name in names)
        return [self.names[genes[0]] if len(genes) == 1 else name for name, genes in found]

    def index(self, names: Iterable[str]) -> Tensor:
        """Rows of the named genes, int64 ``[len(names)]``.

        Raises:
            UnknownGeneError: Lists *every* name that is unknown or ambiguous, with suggestions.
        """
        if isinstance(names, str):
            names = [names]
        rows: list[int] = []
        bad: dict[str, tuple[int, ...]] = {}
        for name in names:
            found = self.find(name) if isinstance(name, str) else ()
            if len(found) == 1:
                rows.append(found[0])
            else:
                bad[name] = found
        if bad:
            raise self.unknown(bad)
        return torch.tensor(rows, dtype=torch.long)

    def unknown(self, bad: Mapping[str, tuple[int, ...]]) -> UnknownGeneError:
        """The one error for all names in ``bad`` (name → the genes it may mean); its text shows the first ones."""
        parts: list[str] = []
        for rank, (name, found) in enumerate(itertools.islice(bad.items(), _SHOWN)):
            if found:
                parts.append(f"{name!r} is ambiguous ({' or '.join(self.names[i] for i in found)})")
                continue
            close = self.suggest(str(name)) if rank < _SUGGEST_FOR else []
            parts.append(f"{name!r} (did you mean {' or '.join(close)}?)" if close else f"{name!r}")
        some = "gene name does" if len(bad) == 1 else f"{len(bad)} gene names do"
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        return UnknownGeneError(
            f"{some} not resolve in this graph of {len(self.names)} genes: {', '.join(parts)}{more}; "
            "correct the names, or add aliases to the graph",
            tuple(bad),
        )

    def suggest(self, name: str) -> list[str]:
        """Up to three known names that look like ``name``, with the systematic name where it differs."""
        known = self._levels[5] | self._levels[4] | self._levels[3]  # the rule tried first wins
        folded = name.strip().casefold()
        near = [
            k for k in known if abs(len(k) - len(folded)) <= 2 and len(set(k) & set(folded)) >= len(set(folded)) - 2
        ]
        shown: list[str] = []
        for match in difflib.get_close_matches(folded, near, n=3, cutoff=0.7):
            gene = self.names[min(known[match])]
            shown.append(gene if gene.casefold() == match else f"{match.upper()} = {gene}")
        return shown

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the ordered systematic names, stored in bound screens, caches and checkpoints."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> str:
        return self.names[i]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GeneNames) and self.names == other.names and self.aliases == other.aliases

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"GeneNames({len(self.names)} genes, {sum(map(len, self.aliases.values()))} other names)"


def _listed(names: Sequence[str], most: int = 10) -> str:
    """The first few names, for an error message."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(n) for n in names[:most]) + more
