"""E-MAPs in long form, a gene pair and a score per row: Collins et al. 2007 and tables like it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from knockgraph.errors import FileFormatError
from knockgraph.screen import Screen
from knockgraph.sources.delimited import DelimitedFile, Kind
from knockgraph.sources.edges import resolved_pairs
from knockgraph.sources.experiments import ExperimentCollector, numbers
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport

STUDY = "collins2007"
_PAIRS = (
    ("g1", "g2"),
    ("orf_a", "orf_b"),
    ("gene_a", "gene_b"),
    ("gene1", "gene2"),
    ("orf1", "orf2"),
    ("query", "array"),
)


def read_collins(path: Path, resolve: NameResolver, report: FileReport) -> Screen:
    """The S scores as ``gene_interaction``; repeated measurements of a pair are kept, to estimate the noise."""
    return read_scored_pairs(path, resolve, report, ("S", "score", "S score", "gene_interaction"), STUDY)


def read_scored_pairs(
    path: Path, resolve: NameResolver, report: FileReport, score: Sequence[str], study: str
) -> Screen:
    """Gene pairs with one score each.

    Args:
        path: The file, also compressed: two columns of genes and one of scores, blank or ``NA`` if not measured.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        score: Names that the column of scores may have.
        study: The experiments' source.
    """
    file = DelimitedFile(path)
    pair = next(((a, b) for x, y in _PAIRS if (a := file.find(x)) and (b := file.find(y))), None)
    if pair is None:
        raise FileFormatError(
            f"{path} has no two columns of genes such as g1 and g2; it has {', '.join(file.columns[:16])}; is it the "
            "right file?"
        )
    value = file.need(*score)
    kinds: dict[str, Kind] = {pair[0]: "text", pair[1]: "text", value: "number"}
    collected = ExperimentCollector(["gene_interaction"])
    for batch in file.batches(kinds):
        first, second, keep = resolved_pairs(batch, pair, resolve, report)
        scores = numbers(batch, value)
        if bool(np.isinf(scores).any()):
            file.refuse(kinds, lambda row: "the score is infinite" if "inf" in row[value].lower() else None)
        for why, bad in (("a gene paired with itself", first == second), ("not measured", np.isnan(scores))):
            report.drop(why, int((keep & bad).sum()))
            keep = keep & ~bad
        genes = np.stack([first, second], 1)[keep]
        collected.add(genes, {"gene_interaction": scores[keep]}, [study], np.zeros(len(genes), np.int64))
        report.kept["digenic"] = report.kept.get("digenic", 0) + len(genes)
    report.unresolved = resolve.finish(str(path))
    return collected.screen(resolve, path)
