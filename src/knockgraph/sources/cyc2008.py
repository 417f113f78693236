"""CYC2008's protein complexes: one row per protein and complex."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from knockgraph.errors import FileFormatError
from knockgraph.sources.delimited import DelimitedFile
from knockgraph.sources.edges import EdgeCollector
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport


def read_complexes(path: Path, resolve: NameResolver, report: FileReport) -> tuple[Tensor, Tensor]:
    r"""Undirected edges ``[2, edges]`` between the genes of a complex, and their weights ``[edges]``.

    The weight is the cosine of the two genes' memberships, :math:`|M_i \cap M_j| / \sqrt{|M_i| |M_j|}`: 1 for genes
    that are in the same complexes.

    Args:
        path: ``CYC2008_complex.tab`` or any table with the columns ``ORF`` and ``Complex``; rows may end early.
        resolve: Resolves the names.
        report: Records what was read and dropped.
    """
    file = DelimitedFile(path)
    gene_at, complex_at = (file.columns.index(file.need(name)) for name in ("ORF", "Complex"))
    members: dict[str, set[int]] = {}
    names, unknown = [], 0
    for number, fields in file.rows():
        if len(fields) <= max(gene_at, complex_at) or not fields[complex_at].strip():
            raise FileFormatError(f"{path}, line {number}: it names no complex; correct or remove the line")
        report.read += 1
        names.append(fields[gene_at].strip())
        gene = resolve.one(names[-1])
        unknown += gene < 0
        if gene >= 0:
            members.setdefault(fields[complex_at].strip(), set()).add(gene)
    distinct, codes = np.unique(np.array(names, dtype=str), return_inverse=True)
    resolve.many(distinct.tolist(), codes)  # counts the rows of the names that do not resolve
    report.drop("a name does not resolve", unknown)
    report.unresolved = resolve.finish(str(path))
    edges = _edges(members, len(resolve.genes))
    report.kept = {"complexes": len(members), "pairs": edges.pairs}
    found = edges.result(weighted=True)
    assert isinstance(found, tuple)
    return found


def _edges(members: dict[str, set[int]], num_genes: int) -> EdgeCollector:
    memberships = np.zeros(num_genes)
    shared: dict[tuple[int, int], int] = {}
    for genes in members.values():
        ordered = sorted(genes)
        memberships[ordered] += 1
        for at, first in enumerate(ordered):
            for second in ordered[at + 1 :]:
                shared[first, second] = shared.get((first, second), 0) + 1
    edges = EdgeCollector(num_genes, directed=False)
    if shared:
        pair = np.array(list(shared), dtype=np.int64)
        weight = np.array(list(shared.values())) / np.sqrt(memberships[pair[:, 0]] * memberships[pair[:, 1]])
        edges.add(pair[:, 0], pair[:, 1], weight)
    return edges
