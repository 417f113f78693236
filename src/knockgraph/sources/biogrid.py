"""BioGRID's tables (tab 2 and tab 3, also inside the organism archive), or a plain edge list made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from knockgraph.sources.delimited import DelimitedFile
from knockgraph.sources.edge_list import read_edge_list
from knockgraph.sources.edges import EdgeCollector, resolved_pairs
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport

YEAST = ("559292", "4932")
"""NCBI taxonomy: strain S288c, and the species."""


def read_biogrid(
    path: Path,
    resolve: NameResolver,
    report: FileReport,
    kind: Literal["physical", "genetic"] = "physical",
    organisms: tuple[str, ...] = YEAST,
) -> Tensor:
    """Undirected interactions of one kind within one organism, ``[2, edges]``, both directions.

    Args:
        path: ``BIOGRID-ORGANISM-….tab2.txt``, ``….tab3.txt``, the zip archive of them, or an edge list.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        kind: Which interactions.
        organisms: NCBI taxonomy ids that both partners must have.
    """
    file = DelimitedFile(path, member="*Saccharomyces_cerevisiae*.txt")
    kinds = file.find("Experimental System Type")
    if kinds is None:
        edges = read_edge_list(path, resolve, report, directed=False)
        report.notes.append(f"an edge list; all its rows count as {kind} interactions")
        return edges if isinstance(edges, Tensor) else edges[0]
    pair = file.need("Systematic Name Interactor A"), file.need("Systematic Name Interactor B")
    taxa = [file.need(f"Organism ID Interactor {x}", f"Organism Interactor {x}") for x in "AB"]
    collected = EdgeCollector(len(resolve.genes), directed=False)
    for batch in file.batches(dict.fromkeys([*pair, kinds, *taxa], "text")):
        wanted = np.array([text.strip().lower() == kind for text in batch.column(kinds).to_pylist()], bool)
        here = np.ones(len(batch), bool)
        for name in taxa:
            here &= np.isin(np.array(batch.column(name).to_pylist(), dtype=str), organisms)
        report.drop(f"not {kind}", int((~wanted).sum()))
        report.drop("a partner of another organism", int((wanted & ~here).sum()))
        report.read += int((~(wanted & here)).sum())
        first, second, known = resolved_pairs(batch.filter(wanted & here), pair, resolve, report)
        collected.add(first[known], second[known])
    report.unresolved = resolve.finish(str(path))
    collected.tell(report)
    edges = collected.result()
    assert isinstance(edges, Tensor)
    return edges
