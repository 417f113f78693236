"""Genotypes: which genes each experiment perturbs, by name, and how much."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.graph.genes import WILD_TYPE, unfit
from knockgraph.screen import ragged
from knockgraph.screen.ragged import Ints

Floats = npt.NDArray[np.float64]

VALUES = "but a value is finite and at least 0: 0 deleted, 0.3 turned down, 1 untouched, 2 turned up"
"""The end of a sentence about a value that is none."""

_FORMULA = ("=", "+", "-", "@", "'")


def entry(name: str, value: float) -> str:
    """A gene of a genotype as it is written: ``NAME=VALUE``, or only its name where it is deleted.

    >>> entry("YAL001C", 0.0), entry("YAL001C", 0.3), entry("YAL001C", 2.0)
    ('YAL001C', 'YAL001C=0.3', 'YAL001C=2')
    """
    return name if value == 0 else f"{name}={float(value)!r}".removesuffix(".0").replace("e+", "e")


def name_and_value(text: str) -> tuple[str, float]:
    """What :func:`entry` wrote, or somebody else.

    >>> name_and_value("YAL001C = 0.30"), name_and_value("YAL001C")
    (('YAL001C', 0.3), ('YAL001C', 0.0))

    Raises:
        ScreenError: If what stands behind ``=`` is no number, or none that a gene can have.
    """
    name, sign, written = text.partition("=")
    name, written = name.strip(), written.strip()
    if not sign:
        return name, 0.0
    if not name:
        raise ScreenError(f"{text!r} has a value but no gene; write GENE=VALUE, e.g. YAL001C=0.3")
    try:
        value = float(written)
    except ValueError:
        raise ScreenError(
            f"{text!r} says {written!r} where a value is expected; write GENE=VALUE, e.g. YAL001C=0.3"
        ) from None
    if not 0 <= value < math.inf:
        raise ScreenError(f"gene {name!r} has the value {written}, {VALUES}")
    return name, value


def as_cell(text: str) -> str:
    """A text as a cell of a table.

    A spreadsheet takes a cell that starts with ``=``, ``+``, ``-`` or ``@`` for a formula. Such a text gets an
    apostrophe in front, which spreadsheets take as the mark of a text.

    >>> as_cell("YAL001C"), as_cell("=1+1"), as_cell("")
    ('YAL001C', "'=1+1", '')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_text(genes: Iterable[str]) -> str:
    """A genotype as a cell of a table, see :func:`as_cell`, read back by :func:`parse`.

    >>> as_text(["YAL001C", "YBR002W"]), as_text(["-1A"]), as_text([])
    ('YAL001C+YBR002W', "'-1A", 'WT')
    """
    return as_cell("+".join(genes) or WILD_TYPE)


def parse(text: str) -> tuple[str, ...]:
    """The genes of a genotype that is written as text, joined by ``+`` (or ``,``, ``|``, ``;``), each as it is
    written, see :func:`name_and_value`.

    >>> parse("YAL001C+YBR002W"), parse("YAL001C | YBR002W"), parse("wt")
    (('YAL001C', 'YBR002W'), ('YAL001C', 'YBR002W'), ())

    Raises:
        ScreenError: If it is blank, or a gene between two signs is.
    """
    if text.strip().upper() == WILD_TYPE:
        return ()
    if text[:1] == "'" and text[1:2] in _FORMULA:  # see :func:`as_text`
        text = text[1:]
    genes = tuple(name.strip() for name in re.split(r"[+,|;]", text))
    if genes == ("",):
        raise ScreenError(f"the genotype is empty; write {WILD_TYPE} for the wild type")
    if "" in genes:
        raise ScreenError(
            f"the genotype {text!r} has an empty gene name; join genes with one +, the wild type is {WILD_TYPE}"
        )
    return genes


class Genotypes:
    """Sets of perturbed genes, one per experiment, as codes into a list of names. An empty set is the wild type.

    The form is canonical: names ascending and only those used, codes ascending in each genotype. The same genotypes
    therefore always have the same arrays and the same hash. Genes that are not deleted have a value;
    ``genotypes[row]`` shows it behind their name, ``YAL001C=0.3``.

    Args:
        names: The gene names that the codes refer to, unique.
        codes: Integers below ``len(names)``, the genotypes one after another; a gene repeated in one genotype
            counts once.
        ptr: ``[experiments + 1]``, where each genotype starts.
        values: One per code: 0 deleted, 0.3 turned down, 1 untouched, 2 turned up; all are deleted by default.

    Attributes:
        values: float64 ``[codes]``, or ``None`` where all are 0.
    """

    def __init__(self, names: Sequence[str], codes: Ints, ptr: Ints, values: Floats | None = None) -> None:
        self.names: tuple[str, ...] = tuple(names)
        codes, ptr = np.asarray(codes), np.asarray(ptr)
        if len(set(self.names)) != len(self.names):
            raise ScreenError("the gene names of a screen must be unique")
        if ptr.ndim != 1 or len(ptr) == 0 or ptr[0] != 0 or ptr[-1] != len(codes) or bool((np.diff(ptr) < 0).any()):
            raise ScreenError(f"ptr must start at 0, never fall and end at the number of codes ({len(codes)})")
        if len(codes) and not (codes.min() >= 0 and codes.max() < len(self.names)):
            raise ScreenError(f"genotype codes must lie in 0 … {len(self.names) - 1}")
        self.names, codes = ragged.canonical_names(self.names, codes)
        for name in self.names:
            problem = unfit(name)
            if problem:
                raise ScreenError(f"a gene has the name {name!r}: {problem}; rename it")
        self.values = _checked(values, len(codes))
        if self.values is None:
            codes, self.ptr = ragged.as_sets(codes, ptr, len(self.names))
        else:
            codes, self.values, self.ptr = ragged.as_valued_sets(codes, self.values, ptr, self.names)
        self.codes: npt.NDArray[np.int32] = codes.astype(np.int32, copy=False)

    @staticmethod
    def from_lists(genotypes: Iterable[Iterable[str]]) -> Genotypes:
        """From gene names per experiment, ``NAME=VALUE`` where a gene is not deleted.

        >>> list(Genotypes.from_lists([["b", "a", "b"], [], ["b=0.30"]]))
        [('a', 'b'), (), ('b=0.3',)]
        """
        flat: list[str] = []
        ptr = [0]
        for row, genotype in enumerate(genotypes):
            if genotype is None or isinstance(genotype, str):
                fix = "an empty list means the wild type" if genotype is None else "a single gene is a list of one name"
                raise ScreenError(f"the genotype of experiment {row} is {genotype!r}; give a list of gene names, {fix}")
            genes = list(genotype)
            if not all(isinstance(gene, str) for gene in genes):
                raise ScreenError(f"the genotype of experiment {row} is {genes!r}; every gene needs a name, as text")
            flat.extend(genes)
            ptr.append(len(flat))
        names = sorted(set(flat))
        code = {name: i for i, name in enumerate(names)}
        codes = np.fromiter((code[name] for name in flat), dtype=np.int32, count=len(flat))
        return Genotypes.from_entries(names, codes, np.array(ptr))

    @staticmethod
    def from_entries(entries: Sequence[str], codes: Ints, ptr: Ints) -> Genotypes:
        """As :class:`Genotypes`, from distinct genes as they are written, ``NAME`` or ``NAME=VALUE``."""
        if not any("=" in text for text in entries):
            return Genotypes(entries, codes, ptr)
        read = [name_and_value(text) for text in entries]
        code = {name: i for i, name in enumerate(dict.fromkeys(name for name, _ in read))}
        place = np.array([code[name] for name, _ in read], dtype=np.int32)
        values = np.array([value for _, value in read])
        return Genotypes(tuple(code), place[codes], ptr, values[codes])

    @staticmethod
    def one_after_another(parts: Sequence[Genotypes]) -> Genotypes:
        """The experiments of several, those of the first one first.

        >>> first, second = Genotypes.from_lists([["a", "b"]]), Genotypes.from_lists([["b"], ["c=0.5"]])
        >>> list(Genotypes.one_after_another([first, second]))
        [('a', 'b'), ('b',), ('c=0.5',)]
        """
        names = sorted({name for part in parts for name in part.names})
        code = {name: i for i, name in enumerate(names)}
        none = np.zeros(0, dtype=np.int32)
        codes = [np.array([code[name] for name in part.names], dtype=np.int32)[part.codes] for part in parts]
        size = np.concatenate([none, *(part.size for part in parts)])
        values = [np.zeros(len(part.codes)) if part.values is None else part.values for part in parts]
        dosed = any(part.values is not None for part in parts)
        ptr = np.append(0, np.cumsum(size))
        return Genotypes(names, np.concatenate([none, *codes]), ptr, np.concatenate(values) if dosed else None)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def __getitem__(self, row: int) -> tuple[str, ...]:
        row = range(len(self))[row]  # counts from the end if negative, IndexError beyond either end
        part = slice(self.ptr[row], self.ptr[row + 1])
        names = (self.names[c] for c in self.codes[part])
        if self.values is None:
            return tuple(names)
        return tuple(entry(name, value) for name, value in zip(names, self.values[part], strict=True))

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (self[row] for row in range(len(self)))

    @property
    def size(self) -> npt.NDArray[np.int64]:
        """Perturbed genes per experiment, ``[experiments]``."""
        return np.diff(self.ptr)

    def take(self, rows: Ints) -> Genotypes:
        """The genotypes of ``rows``, in that order."""
        flat, ptr = ragged.positions(self.ptr, rows)
        return Genotypes(self.names, self.codes[flat], ptr, None if self.values is None else self.values[flat])

    def renamed(self, names: Sequence[str]) -> Genotypes:
        """The same experiments with other names, one for each of :attr:`names`; genes that share a name become one.

        >>> list(Genotypes.from_lists([["TFC3", "tfc3"], ["tfc3"]]).renamed(["YAL001C", "YAL001C"]))
        [('YAL001C',), ('YAL001C',)]
        """
        if tuple(names) == self.names:
            return self
        code = {name: i for i, name in enumerate(sorted(set(names)))}
        codes = np.array([code[name] for name in names], dtype=np.int32)[self.codes]
        return Genotypes(tuple(code), codes, self.ptr, self.values)

    def alike(self) -> list[tuple[str, ...]]:
        """Names that differ only in case: most likely one gene, but only a gene list can say so.

        >>> Genotypes.from_lists([["erg10", "ERG9"], ["ERG10"]]).alike()
        [('ERG10', 'erg10')]
        """
        folded: dict[str, list[str]] = {}
        for name in self.names:
            folded.setdefault(name.casefold(), []).append(name)
        return [tuple(names) for names in folded.values() if len(names) > 1]

    @cached_property
    def group(self) -> npt.NDArray[np.int64]:
        """A number per experiment, equal exactly where the same genes are perturbed to the same values.

        These are what a model sees: a gene with the value 1 is not perturbed, and values are compared as float32.

        >>> Genotypes.from_lists([["a", "b=0.3"], ["a", "b=0.30000000001", "c=1"], ["a"]]).group.tolist()
        [1, 1, 0]
        """
        if self.values is None:
            return ragged.same_set(self.codes, self.ptr, max(len(self.names), 1))
        kept = self.perturbed
        ptr = np.append(0, np.cumsum(kept))[self.ptr]
        values = self.values[kept].astype(np.float32).astype(np.float64)
        codes = ragged.valued_codes(self.codes[kept], values)
        return ragged.same_set(codes, ptr, max(len(codes), 1))

    @property
    def perturbed(self) -> npt.NDArray[np.bool_]:
        """Which of :attr:`codes` are perturbed: those whose value, as float32, is not 1."""
        if self.values is None:
            return np.ones(len(self.codes), dtype=bool)
        return np.asarray(self.values.astype(np.float32) != 1)

    def entries(self) -> tuple[list[str], npt.NDArray[np.int32]]:
        """Distinct genes as they are written, and one code into them for each of :attr:`codes`."""
        if self.values is None:
            return list(self.names), self.codes
        code = ragged.valued_codes(self.codes, self.values)
        distinct, first, place = np.unique(code, return_index=True, return_inverse=True)
        del distinct
        texts = [entry(self.names[self.codes[at]], self.values[at]) for at in first.tolist()]
        return texts, place.astype(np.int32)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all genotypes in their order: what a split remembers of its screen."""
        h = hashlib.sha256(json.dumps(self.names).encode())
        h.update(np.ascontiguousarray(self.codes).tobytes())
        h.update(self.ptr.tobytes())
        if self.values is not None:
            h.update(self.values.tobytes())
        return h.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Genotypes) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"Genotypes({len(self)} experiments, {len(self.names)} genes)"


def _checked(values: Floats | None, entries: int) -> Floats | None:
    """The values as they are stored, ``None`` where all are 0."""
    if values is None:
        return None
    values = np.asarray(values, dtype=np.float64) + 0.0  # no minus zero
    if values.shape != (entries,):
        raise ScreenError(f"there are {len(values)} values for {entries} genes; give one for each")
    bad = np.flatnonzero(~((values >= 0) & (values < math.inf)))
    if len(bad):
        raise ScreenError(f"a gene has the value {values[bad[0]]:g}, {VALUES}")
    return values if values.any() else None
