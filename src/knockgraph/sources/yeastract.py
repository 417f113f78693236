"""YEASTRACT's documented regulations: ``regulator;target`` without a header, or a table with one."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from knockgraph.sources.edge_list import read_edge_list
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport


def read_regulations(path: Path, resolve: NameResolver, report: FileReport) -> Tensor:
    """Directed edges regulator → target, ``[2, edges]``.

    Args:
        path: ``RegulationTwoColumnTable_Documented_….tsv.gz`` or any table with the columns regulator and target.
        resolve: Resolves the names.
        report: Records what was read and dropped.
    """
    edges = read_edge_list(path, resolve, report, directed=True)
    return edges if isinstance(edges, Tensor) else edges[0]
