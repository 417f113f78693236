"""The screen: a columnar table of gene-deletion experiments, independent of any graph."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError
from knockgraph.html.notebook import card
from knockgraph.screen import ragged
from knockgraph.screen.genotypes import Genotypes, as_text
from knockgraph.screen.ragged import Ints
from knockgraph.words import counted, listed

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph, GeneNames
    from knockgraph.screen.bound import BoundScreen

Floats = npt.NDArray[np.float64]
_SHOWN = 6  # rows and columns, in a notebook
MergeRule = Literal["mean", "median", "first"]


@dataclass(frozen=True)
class Duplicates:
    """How often genotypes are repeated in a screen."""

    genotypes: int  #: distinct genotypes measured more than once
    experiments: int  #: experiments that share their genotype with another
    most: int  #: largest number of experiments of one genotype


class Screen:
    """Experiments: a genotype each, one or more phenotypes, their statistics, a source.

    A phenotype that was not measured is NaN; infinite values are refused.

    Args:
        genotypes: Per experiment the deleted genes' names, or a :class:`Genotypes`. An empty set is the wild type.
        phenotypes: Phenotype name → one number per experiment.
        statistics: Phenotype name → statistic (``p_value``, ``std``, …) → one number per experiment.
        source: Where the experiments come from: one text for all or one per experiment.

    >>> screen = Screen([["YAL001C", "YBR002C"], []], {"fitness": [0.8, 1.0]}, source="example")
    >>> screen
    Screen(2 experiments, 2 gene names, phenotype fitness)
    """

    def __init__(
        self,
        genotypes: Genotypes | Iterable[Iterable[str]],
        phenotypes: Mapping[str, Sequence[float] | npt.NDArray[Any]],
        statistics: Mapping[str, Mapping[str, Sequence[float] | npt.NDArray[Any]]] | None = None,
        source: str | Sequence[str] | tuple[Sequence[str], Ints] = "",
    ) -> None:
        self.genotypes = genotypes if isinstance(genotypes, Genotypes) else Genotypes.from_lists(genotypes)
        n = len(self.genotypes)
        if not phenotypes:
            raise ScreenError("a screen needs at least one phenotype")
        self.phenotypes: dict[str, Floats] = {name: _column(name, v, n) for name, v in phenotypes.items()}
        self.statistics: dict[str, dict[str, Floats]] = {}
        for name, kinds in (statistics or {}).items():
            if name not in self.phenotypes:
                known = ", ".join(self.phenotypes)
                raise ScreenError(f"statistics are given for {name!r}, which is not a phenotype here ({known})")
            self.statistics[name] = {kind: _column(f"{name}.{kind}", v, n) for kind, v in kinds.items()}
        columns = [*self.phenotypes, *(f"{name}.{kind}" for name, kinds in self.statistics.items() for kind in kinds)]
        if len(set(columns)) != len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            raise ScreenError(f"two columns would be called {twice!r}; rename the phenotype or the statistic")
        self.source_names, self.source_codes = _sources(source, n)

    def __len__(self) -> int:
        return len(self.genotypes)

    def take(self, rows: Ints) -> Screen:
        """The experiments ``rows`` as a new screen."""
        return Screen(
            self.genotypes.take(rows),
            {name: v[rows] for name, v in self.phenotypes.items()},
            {name: {kind: v[rows] for kind, v in kinds.items()} for name, kinds in self.statistics.items()},
            (self.source_names, self.source_codes[rows]),
        )

    @staticmethod
    def join(screens: Mapping[str, Screen]) -> Screen:
        """Several screens as one, to be trained together: their experiments one after another.

        Each keeps its phenotypes as columns of its own, with its name in front, because screens differ in scale and
        noise. An experiment has labels in the columns of its own screen, and none (NaN) in those of the others.

        Args:
            screens: Name → screen. Join resolved ones (:meth:`resolved`) where they may spell genes differently.

        >>> first, second = Screen([["a"], ["b"]], {"fitness": [0.8, 0.9]}), Screen([["a"]], {"fitness": [5.0]})
        >>> both = Screen.join({"one": first, "two": second})
        >>> both.phenotypes["one_fitness"].tolist(), both.phenotypes["two_fitness"].tolist()
        ([0.8, 0.9, nan], [nan, nan, 5.0])
        """
        if len(screens) < 2:
            raise ScreenError(
                f"{counted(len(screens), 'screen')} to join; give two or more, each with a name of its own"
            )
        for name in screens:
            if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
                raise ScreenError(
                    f"{name!r} cannot name a screen: use letters, digits and _, a letter first; it becomes a part of "
                    "the names of columns"
                )
        total, start = sum(map(len, screens.values())), 0
        phenotypes: dict[str, Floats] = {}
        statistics: dict[str, dict[str, Floats]] = {}
        sources: list[str] = []
        codes: list[Ints] = []

        def placed(values: Floats) -> Floats:
            column = np.full(total, np.nan)
            column[start : start + len(values)] = values
            return column

        for name, screen in screens.items():
            for phenotype, values in screen.phenotypes.items():
                column = f"{name}_{phenotype}"
                if column in phenotypes:
                    raise ScreenError(f"two columns would be called {column!r}; give a screen another name")
                phenotypes[column] = placed(values)
                kinds = screen.statistics.get(phenotype, {})
                if kinds:
                    statistics[column] = {kind: placed(statistic) for kind, statistic in kinds.items()}
            codes.append(screen.source_codes + len(sources))
            sources += [f"{name}: {source}" if source else name for source in screen.source_names]
            start += len(screen)
        genotypes = Genotypes.one_after_another([screen.genotypes for screen in screens.values()])
        return Screen(genotypes, phenotypes, statistics, (sources, np.concatenate(codes)))

    def resolved(self, genes: CellGraph | GeneNames) -> Screen:
        """The same experiments with every gene under its systematic name.

        A screen compares names as they are written; a resolved one compares genes, so that splits, duplicates and
        counts do not depend on spelling. Names that mean no gene, or several, stay as they are; :meth:`bind` reports
        them.

        >>> from knockgraph.graph import GeneNames
        >>> screen = Screen([["TFC3"], ["yal001c"]], {"fitness": [0.8, 0.9]})
        >>> screen.resolved(GeneNames(["YAL001C"], {"YAL001C": ["TFC3"]})).duplicates().genotypes
        1
        """
        from knockgraph.graph import GeneNames

        names = genes if isinstance(genes, GeneNames) else genes.genes
        genotypes = self.genotypes.renamed(names.systematic(self.genotypes.names))
        if genotypes is self.genotypes:
            return self
        return Screen(genotypes, self.phenotypes, self.statistics, (self.source_names, self.source_codes))

    def duplicates(self) -> Duplicates:
        """How many genotypes were measured more than once."""
        count = np.bincount(self.genotypes.group) if len(self) else np.zeros(1, dtype=np.int64)
        repeated = count[count > 1]
        return Duplicates(len(repeated), int(repeated.sum()), int(count.max()))

    def merge_duplicates(self, rule: MergeRule = "mean") -> Screen:
        """One experiment per genotype, in order of first appearance.

        The stated rule is applied to every phenotype over its measured values. With ``first`` the first experiment is
        kept whole. Otherwise statistics of merged experiments become: ``std`` the root mean square, ``p_value`` the
        largest (the cautious one), any other the mean.
        """
        if rule not in ("mean", "median", "first"):
            raise ScreenError(f"unknown merge rule {rule!r}: use mean, median or first")
        _, first, group = np.unique(self.genotypes.group, return_index=True, return_inverse=True)
        order = np.argsort(first)
        if rule == "first":
            return self.take(first[order])
        member = np.argsort(group, kind="stable")
        start = np.searchsorted(group[member], np.arange(len(first)))

        def merged(values: Floats, how: str) -> Floats:
            return _reduce(values[member], start, how)[order]

        combine = {"std": "rms", "p_value": "max"}
        return Screen(
            self.genotypes.take(first[order]),
            {name: merged(v, rule) for name, v in self.phenotypes.items()},
            {
                name: {kind: merged(v, combine.get(kind, "mean")) for kind, v in kinds.items()}
                for name, kinds in self.statistics.items()
            },
            (self.source_names, self.source_codes[first[order]]),
        )

    def bind(
        self,
        graph: CellGraph,
        phenotypes: str | Sequence[str] | None = None,
        unknown: Literal["error", "drop"] = "error",
        missing: Literal["error", "drop"] = "error",
    ) -> BoundScreen:
        """Flat tensors over the genes of ``graph``, see :class:`BoundScreen`.

        Args:
            graph: The cell graph whose gene rows the indices mean.
            phenotypes: Which to carry, names or patterns such as ``expression_*``; all by default.
            unknown: What to do with experiments that name a gene which the graph does not have.
            missing: What to do with experiments of which none of these phenotypes was measured. Where one of several
                is missing, its value is NaN.
        """
        from knockgraph.screen.bound import bind

        return bind(self, graph, phenotypes, unknown, missing)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write Parquet, atomically; see the file formats in the docs."""
        from knockgraph.screen.parquet import write

        write(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Screen:
        """Read a screen written by :meth:`save`; its content hash is verified."""
        from knockgraph.screen.parquet import read

        return read(path)

    @staticmethod
    def from_pyg(dataset: Any, genes: CellGraph | GeneNames | Sequence[str] | None = None, source: str = "") -> Screen:
        """The screen of a PyG dataset of perturbed samples, such as torchcell's, or of any iterable of samples.

        Of each sample (or its ``["gene"]``) it reads ``perturbed_genes``, or ``perturbation_indices``, and the
        phenotypes and statistics in coordinate form, see :mod:`knockgraph.screen.from_pyg`. A sample with repeated
        measurements of a phenotype becomes as many experiments.

        Args:
            dataset: The dataset; an in-memory one is read without making its samples.
            genes: What the indices mean where the samples have no names; by default the genes of
                ``dataset.cell_graph``.
            source: Where the experiments come from.
        """
        from knockgraph.screen.from_pyg import screen_from_pyg

        return screen_from_pyg(dataset, genes, source)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Screen)
            and self.genotypes == other.genotypes
            and _same(self.phenotypes, other.phenotypes)
            and list(self.statistics) == list(other.statistics)
            and all(_same(kinds, other.statistics[name]) for name, kinds in self.statistics.items())
            and self.source_names == other.source_names
            and np.array_equal(self.source_codes, other.source_codes)
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        names = listed(list(self.phenotypes))
        some = f"{counted(len(self), 'experiment')}, {counted(len(self.genotypes.names), 'gene name')}"
        return f"Screen({some}, phenotype{'s' * (len(self.phenotypes) > 1)} {names})"

    def _repr_html_(self) -> str:
        """What a notebook shows: the first experiments."""
        columns = list(self.phenotypes)[:_SHOWN]
        rows = [
            [as_text(self.genotypes[row]), *(float(self.phenotypes[name][row]) for name in columns)]
            for row in range(min(len(self), _SHOWN))
        ]
        return card(repr(self), ["genotype", *columns], rows, "…" if len(self) > _SHOWN else "")


def _column(name: str, values: Sequence[float] | npt.NDArray[Any], n: int) -> Floats:
    if not isinstance(name, str) or not name or name.startswith(".") or name in ("genotype", "source"):
        raise ScreenError(f"{name!r} cannot name a phenotype: use a non-empty text other than 'genotype' and 'source'")
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ScreenError(f"column {name!r} is not numeric: {error}") from error
    if column.shape != (n,):
        raise ScreenError(f"column {name!r} has shape {list(column.shape)}, but there are {n} experiments")
    if bool(np.isinf(column).any()):
        row = int(np.flatnonzero(np.isinf(column))[0])
        raise ScreenError(f"column {name!r} is infinite at experiment {row}; mark a missing value as NaN")
    return column


def _sources(source: str | Sequence[str] | tuple[Sequence[str], Ints], n: int) -> tuple[tuple[str, ...], Ints]:
    if isinstance(source, str):
        return (source,) if n else (), np.zeros(n, dtype=np.int32)
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], np.ndarray):
        names, codes = ragged.canonical_names(source[0], source[1])
        return names, codes.astype(np.int32)
    if len(source) != n:
        raise ScreenError(f"there are {len(source)} sources for {n} experiments; give one text or one per experiment")
    distinct = {name: code for code, name in enumerate(sorted(set(source)))}
    return tuple(distinct), np.array([distinct[name] for name in source], dtype=np.int32)


def _reduce(values: Floats, start: Ints, how: str) -> Floats:
    """Reduce consecutive segments over their measured (not NaN) values; NaN where none was measured."""
    measured = ~np.isnan(values)
    count = np.add.reduceat(measured, start, dtype=np.int64)
    none = count == 0
    if how == "max":
        out = np.maximum.reduceat(np.where(measured, values, -np.inf), start)
    elif how == "median":
        segment = np.repeat(np.arange(len(start)), np.diff(np.append(start, len(values))))
        ranked = values[np.lexsort((values, segment))]  # NaN sorts last
        last = np.maximum(count - 1, 0)
        out = 0.5 * (ranked[start + last // 2] + ranked[start + (last + 1) // 2])
    else:
        powered = np.where(measured, values**2 if how == "rms" else values, 0.0)
        out = np.add.reduceat(powered, start) / np.maximum(count, 1)
        out = np.sqrt(out) if how == "rms" else out
    return np.where(none, np.nan, out)


def _same(a: Mapping[str, Floats], b: Mapping[str, Floats]) -> bool:
    return list(a) == list(b) and all(np.array_equal(v, b[name], equal_nan=True) for name, v in a.items())
