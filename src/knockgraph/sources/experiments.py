"""Collecting experiments block by block into a screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from knockgraph.errors import FileFormatError, ScreenError
from knockgraph.screen import Genotypes, Screen
from knockgraph.sources.names import NameResolver

if TYPE_CHECKING:
    import pyarrow as pa

Rows = npt.NDArray[np.int64]
NONE = -1
"""Padding of a genotype's row of genes: no gene."""


class ExperimentCollector:
    """Collects genotypes (rows of a gene list), phenotypes and statistics.

    Args:
        phenotypes: Names of the phenotypes.
        statistics: ``PHENOTYPE.STATISTIC`` names.
    """

    def __init__(self, phenotypes: Sequence[str], statistics: Sequence[str] = ()) -> None:
        self.phenotypes = list(phenotypes)
        self.statistics = list(statistics)
        self._genes: list[npt.NDArray[np.int32]] = []
        self._values: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in (*phenotypes, *statistics)}
        self._sources: dict[str, int] = {}
        self._codes: list[npt.NDArray[np.int32]] = []

    def add(
        self, genes: Rows, values: dict[str, npt.NDArray[Any]], sources: Sequence[str], source_codes: npt.NDArray[Any]
    ) -> None:
        """Add experiments.

        Args:
            genes: ``[experiments, most genes]``, :data:`NONE` where a genotype has fewer.
            values: Phenotype or statistic → ``[experiments]``.
            sources: Distinct strings.
            source_codes: ``[experiments]``, which of them.
        """
        self._genes.append(genes.astype(np.int32))
        for name, blocks in self._values.items():
            blocks.append(values[name])
        code = np.array([self._sources.setdefault(s, len(self._sources)) for s in sources] or [0], np.int32)
        self._codes.append(code[source_codes])

    def screen(self, resolve: NameResolver, path: Path) -> Screen:
        """The screen of all experiments, names as the gene list has them."""
        count = sum(map(len, self._genes))
        if count == 0:
            raise FileFormatError(
                f"{path} leaves no experiment; see the report for what was dropped, or get the file again"
            )
        width = max(block.shape[1] for block in self._genes)
        genes = np.full((count, width), NONE, np.int32)
        at = 0
        for block in self._genes:
            genes[at : at + len(block), : block.shape[1]] = block
            at += len(block)
        here = genes != NONE
        ptr = np.concatenate([[0], np.cumsum(here.sum(1))])
        column = {name: np.concatenate(blocks) for name, blocks in self._values.items()}
        nested: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for name in self.statistics:
            phenotype, _, kind = name.rpartition(".")
            nested.setdefault(phenotype, {})[kind] = column[name]
        try:
            return Screen(
                Genotypes(resolve.names, genes[here], ptr),
                {name: column[name] for name in self.phenotypes},
                nested,
                (tuple(self._sources), np.concatenate(self._codes)),
            )
        except ScreenError as error:  # an infinite number, for instance
            raise ScreenError(f"{path}: {error}") from error


def numbers(batch: pa.RecordBatch, name: str | None) -> npt.NDArray[np.float64]:
    """A column of numbers, NaN where one is missing; all NaN without the column."""
    if name is None:
        return np.full(len(batch), np.nan)
    column = batch.column(name)
    return np.asarray(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)
