"""Gene Ontology annotations (GAF 2): the terms of each gene, except those based on genetic interactions."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from knockgraph.sources.delimited import DelimitedFile
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport

GENETIC = ("IGI", "HGI")
"""Evidence "inferred from genetic interaction": it would leak what an interaction screen measures."""
SIZES = range(5, 101)
"""Sizes of the terms that are kept: smaller ones say nothing about other genes, larger ones say little."""
_COLUMNS = (
    "database",
    "id",
    "symbol",
    "qualifier",
    "term",
    "reference",
    "evidence",
    "with",
    "aspect",
    "name",
    "synonyms",
    "type",
    "taxon",
    "date",
    "assigned by",
    "extension",
    "product",
)
_TERM, _QUALIFIER, _EVIDENCE, _SYMBOL, _SYNONYMS = (
    _COLUMNS.index(name) for name in ("term", "qualifier", "evidence", "symbol", "synonyms")
)


def read_annotations(path: Path, resolve: NameResolver, report: FileReport, sizes: range = SIZES) -> Tensor | None:
    """A gene feature, float32 ``[genes, terms]``: 1 where a gene has the term itself (not only one below it).

    Args:
        path: ``sgd.gaf`` or another file of annotations, also compressed.
        resolve: Resolves the names; the first of the synonyms is the systematic one in SGD's files.
        report: Records what was read and dropped.
        sizes: Numbers of genes of the terms that are kept.

    Returns:
        ``None`` if no term is left.
    """
    file = DelimitedFile(path, "\t", _COLUMNS, header=r"^[^!]")
    genes_of: dict[str, set[int]] = {}
    for _, fields in file.rows():
        report.read += 1
        if len(fields) <= _SYNONYMS:
            file.refuse({})
        if "NOT" in fields[_QUALIFIER].split("|"):
            report.drop("the gene does not have the term", 1)
        elif fields[_EVIDENCE] in GENETIC:
            report.drop("evidence by genetic interactions", 1)
        elif fields[_EVIDENCE] == "ND":
            report.drop("no evidence", 1)
        else:
            found = resolve.genes.find(fields[_SYNONYMS].split("|")[0]) or resolve.genes.find(fields[_SYMBOL])
            if len(found) == 1:
                genes_of.setdefault(fields[_TERM], set()).add(found[0])
            else:
                report.drop("not a gene of the list", 1)
    terms = [genes for _, genes in sorted(genes_of.items()) if len(genes) in sizes]
    report.kept = {"terms": len(terms), "genes": len(set().union(*terms))}
    if not terms:
        return None
    has = torch.zeros(len(resolve.genes), len(terms))
    for column, genes in enumerate(terms):
        has[sorted(genes), column] = 1.0
    return has
