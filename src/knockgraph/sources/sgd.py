"""SGD's ``SGD_features.tab`` (genes, names, positions) and tables of names and aliases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from knockgraph.errors import FileFormatError
from knockgraph.graph import GeneNames
from knockgraph.graph.genes import unfit
from knockgraph.sources.delimited import DelimitedFile

PLASMID = "2-micron"
LINKED_WITHIN = 200_000
"""Base pairs: genes closer than this are inherited together, so a cross of their deletions cannot be scored."""

_COLUMNS = (
    "sgdid",
    "type",
    "qualifier",
    "name",
    "standard",
    "aliases",
    "parent",
    "secondary sgdid",
    "chromosome",
    "start",
    "stop",
    "strand",
    "genetic position",
    "coordinate version",
    "sequence version",
    "description",
)


@dataclass(frozen=True)
class Feature:
    """One line of ``SGD_features.tab``: a named feature and its position."""

    name: str
    type: str
    qualifier: str
    standard: str
    aliases: tuple[str, ...]
    chromosome: str
    start: int | None
    stop: int | None


@dataclass(frozen=True, eq=False)
class Features:
    """The named features of the genome, in the order of the file.

    Attributes:
        orfs: Open reading frames.
        others: Everything else that has a systematic name: pseudogenes, transposons, RNA genes, …
        rows: Lines of the file.
    """

    orfs: tuple[Feature, ...]
    others: tuple[Feature, ...]
    rows: int

    def genes(self, plasmid: bool = False, aliases: Mapping[str, Sequence[str]] | None = None) -> GeneNames:
        """The gene list of the cell: ORFs with their standard names and aliases.

        Args:
            plasmid: Whether the four ORFs of the 2-micron plasmid are genes of the cell.
            aliases: Further names, systematic → (standard, alias, …), see :func:`read_aliases`.
        """
        chosen = [f for f in self.orfs if plasmid or f.chromosome != PLASMID]
        names: dict[str, list[str]] = {}
        for f in chosen:
            more = list((aliases or {}).get(f.name, ()))
            standard = f.standard or (more[0] if more else "")
            other = dict.fromkeys([*f.aliases, *more])
            names[f.name] = [standard, *(a for a in other if a and a not in (standard, f.name))]
        return GeneNames([f.name for f in chosen], names)

    def elsewhere(self, genes: GeneNames) -> dict[str, str]:
        """Names in the genome that are not in the gene list → what they are."""
        listed = set(genes.names)
        known: dict[str, str] = {}
        for f in (*self.orfs, *self.others):
            if f.name in listed:
                continue
            what = f"{f.name} is on the {f.chromosome} plasmid" if f.chromosome == PLASMID else f"{f.name}, {_words(f)}"
            for name in (f.name, f.standard, *f.aliases):
                if name and not genes.find(name):
                    known.setdefault(name, what.removeprefix(f"{f.name}, ") if name == f.name else what)
        return known

    def linkage(self, genes: GeneNames, within: int = LINKED_WITHIN) -> Linkage:
        """Which genes lie close together."""
        place = {f.name: f for f in self.orfs}
        chromosome = np.full(len(genes), -1)
        middle = np.zeros(len(genes))
        codes: dict[str, int] = {}
        for row, name in enumerate(genes.names):
            f = place.get(name)
            if f is None or f.start is None or f.stop is None or not f.chromosome:
                continue
            chromosome[row] = codes.setdefault(f.chromosome, len(codes))
            middle[row] = (f.start + f.stop) / 2
        return Linkage(chromosome, middle, within)


@dataclass(frozen=True, eq=False)
class Linkage:
    """Positions of genes: which pairs are linked.

    Attributes:
        chromosome: ``[genes]``, −1 where the position is not known.
        middle: ``[genes]``, the base in the middle of each gene.
        within: Base pairs between the middles of two genes below which they are linked.
    """

    chromosome: npt.NDArray[np.int64]
    middle: npt.NDArray[np.float64]
    within: int

    def linked(self, a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether the genes ``a[i]`` and ``b[i]`` lie on one chromosome, less than ``within`` apart."""
        same = (self.chromosome[a] == self.chromosome[b]) & (self.chromosome[a] >= 0)
        return same & (np.abs(self.middle[a] - self.middle[b]) < self.within)  # type: ignore[no-any-return]


def read_features(path: Path) -> Features:
    """The named features of ``SGD_features.tab``, also compressed."""
    file = DelimitedFile(path, "\t", _COLUMNS)
    kept = ["type", "qualifier", "name", "standard", "aliases", "chromosome", "start", "stop"]
    orfs: list[Feature] = []
    others: list[Feature] = []
    rows = 0
    for batch in file.batches({c: "integer" if c in ("start", "stop") else "text" for c in kept}):
        columns = [batch.column(c).to_pylist() for c in kept]
        rows += len(batch)
        for kind, qualifier, name, standard, aliases, chromosome, start, stop in zip(*columns, strict=True):
            if not name:
                if kind == "ORF":
                    file.refuse({}, lambda r: "an ORF has no name" if r["type"] == "ORF" and not r["name"] else None)
                continue
            split = tuple(a.strip() for a in aliases.split("|") if a.strip())
            feature = Feature(name, kind, qualifier, standard, split, chromosome, start, stop)
            (orfs if kind == "ORF" else others).append(feature)
    if not orfs:
        raise FileFormatError(f"{path} holds no ORF; is it SGD_features.tab?")
    twice = next((name for name, count in Counter(f.name for f in orfs).items() if count > 1), None)
    if twice is not None:
        raise FileFormatError(f"{path} lists the ORF {twice!r} more than once; get the file again")
    for f in orfs:
        reason = unfit(f.name)
        if reason is not None:
            raise FileFormatError(f"{path} has an ORF called {f.name!r}: {reason}; get the file again")
    return Features(tuple(orfs), tuple(others), rows)


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """Systematic name → (standard name or blank, alias, …) of a table with such columns, aliases separated by ``|``."""
    file = DelimitedFile(path)
    name = file.need("systematic_name", "systematic", "orf", "gene")
    standard = file.need("common_name", "standard_name", "standard", "symbol")
    other = file.need("aliases", "synonyms")
    found: dict[str, tuple[str, ...]] = {}
    for batch in file.batches(dict.fromkeys([name, standard, other], "text")):
        columns = (batch.column(c).to_pylist() for c in (name, standard, other))
        for systematic, first, rest in zip(*columns, strict=True):
            found[systematic.strip()] = (first.strip(), *(a.strip() for a in rest.split("|") if a.strip()))
    return found


def _words(f: Feature) -> str:
    kind = f.type.replace("_", " ")
    return kind if kind.startswith("not ") else f"a {kind}"
