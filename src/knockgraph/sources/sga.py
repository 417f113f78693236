"""Tables of synthetic genetic array screens, the layout that Costanzo 2016 and Kuzmin 2018/2020 share.

A row is a cross: a query strain (``YAL015C_sn12``, ``YAL015C+YOL043C_tm72``), an array strain (``YBL007C_dma91``), the
interaction score, its p-value, the mutant's fitness and its standard deviation.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from knockgraph.errors import FileFormatError
from knockgraph.sources.delimited import DelimitedFile, Kind
from knockgraph.sources.edges import distinct
from knockgraph.sources.experiments import NONE, ExperimentCollector, Rows, numbers
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport
from knockgraph.sources.sgd import Linkage

CONTROL = "YDL227C"
"""HO: deleting it has no effect, so a double mutant of a query gene and HO represents the single mutant."""

LinkedPolicy = Literal["drop", "mark"]

QUERY = ("Query Strain ID", "Query strain")
ARRAY = ("Array Strain ID", "Array strain")
SCORE = (
    "Adjusted genetic interaction score (epsilon or tau)",
    "Genetic interaction score (ε)",
    "Genetic interaction score",
    "Genetic interaction score (eps)",
)
P_VALUE = ("P-value", "p value")
FITNESS = ("Double/triple mutant fitness", "Combined mutant fitness", "Double mutant fitness")
FITNESS_STD = tuple(f"{name} standard deviation" for name in FITNESS)


def is_sga(path: Path) -> bool:
    """Whether a file has the columns of this layout."""
    try:
        return DelimitedFile(path, "\t", header="query strain").find(*QUERY) is not None
    except FileFormatError:
        return False


def are_strains(columns: Collection[str]) -> bool:
    """Whether these columns of genes are the queries and the arrays of this layout."""
    names = {name.casefold() for name in columns}
    return all(any(name.casefold() in names for name in known) for known in (QUERY, ARRAY))


def strain_genes(strain: str) -> list[str]:
    """The deleted genes of a strain, without HO.

    >>> strain_genes("YAL015C+YOL043C_tm72"), strain_genes("YAL015C+YDL227C_tm461"), strain_genes("YBL007C_dma91")
    (['YAL015C', 'YOL043C'], ['YAL015C'], ['YBL007C'])
    """
    genes = [gene.strip() for gene in strain.split("_")[0].split("+")]
    return [gene for gene in genes if gene.upper() != CONTROL]


def read_sga(
    path: Path,
    resolve: NameResolver,
    report: FileReport,
    collected: ExperimentCollector,
    study: str,
    linkage: Linkage | None = None,
    linked: LinkedPolicy = "drop",
    member: str = "*",
) -> None:
    """Add the crosses of one table to ``collected``, whose columns are those of :func:`collector`.

    Left out and counted: crosses of a gene with itself, linked ones (policy), names that do not resolve, and crosses
    without a score. The source of an experiment is ``"STUDY GENE+GENE"``, its query, so that a split can hold out whole
    queries.

    Args:
        path: The file, also compressed or in a zip archive.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        collected: Where the experiments go.
        study: First word of the experiments' source.
        linkage: Positions of the genes; without it no cross counts as linked.
        linked: ``drop`` leaves linked crosses out, ``mark`` keeps them, with 1 in ``gene_interaction.linked``.
        member: Pattern of the file in an archive.
    """
    file = DelimitedFile(path, "\t", header="query strain", member=member)
    query, array, score = file.need(*QUERY), file.need(*ARRAY), _score(file)
    p_value, fitness, std = file.find(*P_VALUE), file.find(*FITNESS), file.find(*FITNESS_STD)
    kinds: dict[str, Kind] = {query: "text", array: "text", score: "number"}
    kinds |= {c: "number" for c in (p_value, fitness, std) if c is not None}
    for batch in file.batches(kinds):
        report.read += len(batch)
        (queries, q), (arrays, a) = distinct(batch.column(query)), distinct(batch.column(array))
        crossed = [strain_genes(text) for text in queries]
        deleted = [strain_genes(text) for text in arrays]
        if any(len(genes) > 2 or "" in genes for genes in crossed) or any(len(g) > 1 or "" in g for g in deleted):
            file.refuse(kinds, lambda row: _bad_strain(row[query], 2) or _bad_strain(row[array], 1))
        # An array strain that lacks only HO counts as the wild type.
        first, bad = _lookup([(g[:1] or [""])[0] for g in crossed], q, resolve)
        second, bad_second = _lookup([(g[1:2] or [""])[0] for g in crossed], q, resolve)
        third, bad_third = _lookup([(g[:1] or [""])[0] for g in deleted], a, resolve)
        bad |= bad_second | bad_third
        genes = np.stack([first, second, third], 1)
        value = numbers(batch, score)
        keep = ~bad
        report.drop("a name does not resolve", int(bad.sum()))
        itself = keep & (third != NONE) & ((third == first) | (third == second))
        report.drop("the array gene is a query gene", int(itself.sum()))
        keep &= ~itself
        near = np.zeros(len(batch), bool)
        if linkage is not None:
            for other in (first, second):
                both = keep & (other != NONE) & (third != NONE)
                near[both] |= linkage.linked(other[both], third[both])
        if linked == "drop":
            report.drop(_linked_text(linkage), int((near & keep).sum()))
            keep &= ~near
        unscored = keep & np.isnan(value) & np.isnan(numbers(batch, fitness))
        report.drop("neither a score nor a fitness", int(unscored.sum()))
        keep &= ~unscored
        columns = {
            "gene_interaction": value,
            "fitness": numbers(batch, fitness),
            "gene_interaction.p_value": numbers(batch, p_value),
            "gene_interaction.linked": near.astype(np.float64),
            "fitness.std": numbers(batch, std),
        }
        names = [f"{study} {'+'.join(genes_of) or 'wild type'}" for genes_of in crossed]
        collected.add(genes[keep], {name: v[keep] for name, v in columns.items()}, names, q[keep])
        for size, word in ((2, "digenic"), (3, "trigenic")):
            there = int(((genes[keep] != NONE).sum(1) == size).sum())
            if there:
                report.kept[word] = report.kept.get(word, 0) + there
    report.unresolved = resolve.finish(str(path))
    if linkage is None:
        report.notes.append("the positions of the genes are not known, so linked crosses are not marked")


def collector() -> ExperimentCollector:
    """For :func:`read_sga`."""
    return ExperimentCollector(
        ("gene_interaction", "fitness"), ("gene_interaction.p_value", "gene_interaction.linked", "fitness.std")
    )


def _score(file: DelimitedFile) -> str:
    """The column of scores; the ε in its name has come in several encodings."""
    found = file.find(*SCORE)
    if found is None:
        found = next((c for c in file.columns if c.casefold().startswith("genetic interaction score")), None)
    return found or file.need(*SCORE)


def _lookup(names: list[str], codes: Rows, resolve: NameResolver) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Rows, :data:`NONE` for empty names, and where a name is unknown."""
    there = np.array([bool(name) for name in names], bool)
    position = np.cumsum(there) - 1
    wanted = there[codes]
    rows = np.full(len(codes), NONE, np.int64)
    rows[wanted] = resolve.many([name for name in names if name], position[codes[wanted]])
    return rows, wanted & (rows < 0)


def _linked_text(linkage: Linkage | None) -> str:
    within = linkage.within // 1000 if linkage else 200
    return f"linked: the array gene lies within {within} kb of a query gene"


def _bad_strain(strain: str, most: int) -> str | None:
    genes = strain.split("_")[0].split("+")
    if "" in [g.strip() for g in genes] or len([g for g in genes if g.upper() != CONTROL]) > most:
        return f"{strain!r} is not a strain such as YAL015C+YOL043C_tm72; correct or remove the line"
    return None
