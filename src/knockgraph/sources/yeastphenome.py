"""YeastPhenome's single-mutant phenotypes: one row per gene, one column per tested condition."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import FileFormatError
from knockgraph.sources.delimited import DelimitedFile
from knockgraph.sources.edges import distinct
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import ImportReport

FEWEST_GENES = 1000
"""Conditions tested on fewer genes reveal which genes were selected for testing rather than what was found."""
LARGEST = 6.0
"""Values are clipped to ± this: a dead mutant is not twenty times as informative as a sick one."""


def read_phenotypes(paths: Sequence[Path], resolve: NameResolver, report: ImportReport) -> Tensor | None:
    """A gene feature, float32 ``[genes, conditions]``: the owner's z-scores, 0 where not measured.

    Args:
        paths: The owner's ``…_valuez.txt``, one per paper, or one table of them all: the column ``orf``, then numbers.
        resolve: Resolves the names.
        report: Records what was read and dropped.

    Returns:
        ``None`` if no condition is left.
    """
    blocks = [_read(path, resolve, report) for path in paths]
    found = np.concatenate(blocks, 1) if blocks else np.empty((len(resolve.genes), 0), np.float32)
    return torch.from_numpy(found) if found.shape[1] else None


def _read(path: Path, resolve: NameResolver, report: ImportReport) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    told = report.file("phenotypes", path)
    file = DelimitedFile(path, "\t")
    gene = file.need("orf", "gene")
    conditions = [name for name in file.columns if name != gene]
    if not conditions:
        raise FileFormatError(f"{path} has no column beside {gene!r}; is it a table of phenotypes?")
    total = np.zeros((len(resolve.genes), len(conditions)))
    count = np.zeros_like(total)
    for batch in file.batches({gene: "text", **dict.fromkeys(conditions, "number")}):
        names, codes = distinct(batch.column(gene))
        rows = resolve.many(names, codes)
        known = rows >= 0
        told.read += len(rows)
        told.drop("a name does not resolve", int((~known).sum()))
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in conditions]
        value = np.stack(columns, 1)[known]
        np.add.at(total, rows[known], np.nan_to_num(value))
        np.add.at(count, rows[known], np.isfinite(value))
    told.unresolved = resolve.finish(str(path))
    fewest = min(FEWEST_GENES, max(1, len(resolve.genes) // 2))
    enough = (count > 0).sum(0) >= fewest
    total, count = total[:, enough], count[:, enough]
    told.kept = {"conditions": int(enough.sum()), "genes": int((count > 0).any(1).sum())}
    if not enough.all():
        told.notes.append(f"left out: {int((~enough).sum())} conditions tested on fewer than {fewest:,} genes")
    mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return np.clip(mean, -LARGEST, LARGEST).astype(np.float32)
