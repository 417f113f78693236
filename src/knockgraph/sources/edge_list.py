"""Plain edge lists and regulator → target tables: two columns of names, whatever else the file holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from knockgraph.errors import FileFormatError
from knockgraph.sources.delimited import MISSING, DelimitedFile
from knockgraph.sources.edges import EdgeCollector, resolved_pairs
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport

UNDIRECTED = (
    ("gene_a", "gene_b"),
    ("orf1", "orf2"),
    ("orf_a", "orf_b"),
    ("gene1", "gene2"),
    ("protein1", "protein2"),
    ("node1", "node2"),
    ("interactor a", "interactor b"),
)
LARGEST = float(np.finfo(np.float32).max)
"""Weights are kept as float32."""

DIRECTED = (
    ("source", "target"),
    ("regulator", "target"),
    ("tf", "target"),
    ("transcription factor", "target gene"),
    ("from", "to"),
)


def read_edge_list(
    path: Path,
    resolve: NameResolver,
    report: FileReport,
    directed: bool | None = None,
    columns: tuple[str, str] | None = None,
    header: bool | None = None,
    delimiter: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """The edges ``[2, edges]`` of a two-column table; from a column ``weight`` or ``score`` their weights ``[edges]``.

    Args:
        path: The file, also compressed.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        directed: By default inferred from the names of the columns (``regulator``, ``target``); undirected without a
            header.
        columns: Names of the two columns, by default one of :data:`UNDIRECTED` and :data:`DIRECTED`.
        header: Whether the first line is one; by default if it names such columns.
        delimiter: By default inferred from the first line.
    """
    file = DelimitedFile(path, delimiter)
    pair, found_directed = _pair(file, columns)
    if header is None:
        header = pair is not None
    if not header:
        names = [f"column {i + 1}" for i in range(len(file.columns))]
        if len(names) < 2:
            raise FileFormatError(
                f"{path}, line 1: an edge list needs two columns, this has one; is it the right file?"
            )
        file = DelimitedFile(path, file.delimiter, names)
        pair, found_directed = (names[0], names[1]), False
    if pair is None:
        raise FileFormatError(
            f"{path} has no two columns of genes that are known by name; it has {', '.join(file.columns[:16])}; rename "
            "them source,target (directed) or gene_a,gene_b (undirected)"
        )
    weight = file.find("weight", "score") if header else None
    kinds = {pair[0]: "text", pair[1]: "text"} | ({weight: "number"} if weight else {})
    collected = EdgeCollector(len(resolve.genes), found_directed if directed is None else directed)
    for batch in file.batches(kinds):  # type: ignore[arg-type]
        source, target, known = resolved_pairs(batch, pair, resolve, report)
        w = None
        if weight:
            w = batch.column(weight).to_numpy(zero_copy_only=False)  # NaN where it is missing
            if not bool((np.abs(w) <= LARGEST).all()):
                file.refuse({}, lambda row: _bad_weight(weight, row[weight].strip()))
            w = w[known]
        collected.add(source[known], target[known], w)
    report.unresolved = resolve.finish(str(path))
    collected.tell(report)
    return collected.result(weight is not None)


def _bad_weight(name: str, text: str) -> str | None:
    """What is wrong with a weight."""
    if not text:
        return f"{name!r} is blank; give it a number"
    fits = text not in MISSING and abs(float(text)) <= LARGEST
    return None if fits else f"{name!r} is {text!r}; give it a finite number"


def _pair(file: DelimitedFile, wanted: tuple[str, str] | None) -> tuple[tuple[str, str] | None, bool]:
    if wanted is not None:
        return (file.need(wanted[0]), file.need(wanted[1])), False
    for directed, known in ((False, UNDIRECTED), (True, DIRECTED)):
        for first, second in known:
            a, b = file.find(first), file.find(second)
            if a and b:
                return (a, b), directed
    return None, False
