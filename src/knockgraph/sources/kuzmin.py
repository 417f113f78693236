"""Kuzmin et al. 2018 and 2020: trigenic interactions τ, as published, or the calls of significant ones as classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from knockgraph.screen import Screen
from knockgraph.sources.delimited import DelimitedFile, Kind
from knockgraph.sources.edges import distinct
from knockgraph.sources.experiments import ExperimentCollector, numbers
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.sga import LinkedPolicy, collector, read_sga
from knockgraph.sources.sgd import Linkage

STUDY = "kuzmin2018"
CALL = "significant"
"""The phenotype of calls: 1 for a significant negative interaction, else 0."""
SIGN = "interaction_sign"
"""The phenotype of digenic calls: −1 negative, 1 positive."""


def read_scores(
    paths: Sequence[Path],
    resolve: NameResolver,
    report: ImportReport,
    linkage: Linkage | None = None,
    linked: LinkedPolicy = "drop",
    study: str = STUDY,
) -> Screen:
    """Scores and fitness of double and triple mutants (Data S1 of 2018, tables S1 and S3 of 2020 as text).

    A query with HO is a single mutant, so that its crosses are digenic (ε); the others are trigenic (τ).

    Args:
        paths: The tables, also compressed or in a zip archive.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        linkage: Positions of the genes.
        linked: What to do with linked crosses.
        study: First word of the experiments' source.
    """
    collected = collector()
    for path in paths:
        file = report.file("Kuzmin, crosses", path)
        read_sga(path, resolve, file, collected, study, linkage, linked, member="*s1*.t*")
    return collected.screen(resolve, paths[0])


def read_trigenic_calls(
    path: Path, resolve: NameResolver, report: FileReport, linked: LinkedPolicy = "drop", study: str = STUDY
) -> Screen:
    """The grid query pair × array as classes: ``significant`` is 1 if called, else 0.

    Linked cells cannot be scored, so their 0 means nothing: they are left out, or kept with 1 in
    ``significant.linked``.

    Args:
        path: Columns ``query_orf1``, ``query_orf2``, ``array_orf``, ``sig_neg_trigenic`` and, if linked cells are in
            it, ``within_200kb_of_a_query_gene``; also compressed.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        linked: What to do with linked cells.
        study: First word of the experiments' source, ``"STUDY GENE+GENE"`` with the query pair.
    """
    file = DelimitedFile(path)
    genes = [file.need(c) for c in ("query_orf1", "query_orf2", "array_orf")]
    call = file.need("sig_neg_trigenic", CALL, "called")
    near = file.find("within_200kb_of_a_query_gene", "linked")
    kinds: dict[str, Kind] = {**dict.fromkeys(genes, "text"), call: "integer"}
    if near:
        kinds[near] = "integer"
    flags = [c for c in (call, near) if c]
    collected = ExperimentCollector([CALL], [f"{CALL}.linked"])
    for batch in file.batches(kinds):
        report.read += len(batch)
        coded = [distinct(batch.column(c)) for c in genes]
        rows = np.stack([resolve.many(names, codes) for names, codes in coded], 1)
        value, is_near = numbers(batch, call), numbers(batch, near) if near else np.zeros(len(batch))
        if not np.isin(value, (0, 1)).all() or not np.isin(is_near, (0, 1)).all():
            file.refuse(
                kinds,
                lambda row: next((f"{c!r} is {row[c]!r}, not 0 or 1" for c in flags if row[c] not in ("0", "1")), None),
            )
        keep = (rows >= 0).all(1)
        report.drop("a name does not resolve", int((~keep).sum()))
        itself = keep & ((rows[:, 2] == rows[:, 0]) | (rows[:, 2] == rows[:, 1]))
        report.drop("the array gene is a query gene", int(itself.sum()))
        keep &= ~itself
        if linked == "drop":
            report.drop("linked: the array gene lies within 200 kb of a query gene", int((keep & (is_near == 1)).sum()))
            keep &= is_near == 0
        (first, a), (second, b) = coded[:2]
        pair, code = np.unique(a * len(second) + b, return_inverse=True)
        names = [f"{study} {first[k // len(second)]}+{second[k % len(second)]}" for k in pair.tolist()]
        collected.add(rows[keep], {CALL: value[keep], f"{CALL}.linked": is_near[keep]}, names, code[keep])
        report.kept["trigenic"] = report.kept.get("trigenic", 0) + int(keep.sum())
        report.kept["positive"] = report.kept.get("positive", 0) + int(value[keep].sum())
    report.unresolved = resolve.finish(str(path))
    return collected.screen(resolve, path)


def read_digenic_calls(path: Path, resolve: NameResolver, report: FileReport, study: str = STUDY) -> Screen:
    """Significant digenic interactions by sign, −1 or 1, missing where alleles of a pair were called both.

    Pairs that were not called are not in the file.

    Args:
        path: Columns ``orf_a``, ``orf_b``, ``sign`` (negative, positive or both); also compressed.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        study: The experiments' source.
    """
    file = DelimitedFile(path)
    pair, sign = (file.need("orf_a", "gene_a"), file.need("orf_b", "gene_b")), file.need("sign")
    known = {"negative": -1.0, "positive": 1.0, "both": np.nan}
    collected = ExperimentCollector([SIGN])
    for batch in file.batches(dict.fromkeys([*pair, sign], "text")):
        report.read += len(batch)
        words, code = distinct(batch.column(sign))
        if any(word.strip().lower() not in known for word in words):
            file.refuse(
                {},
                lambda row: (
                    None
                    if row[sign].strip().lower() in known
                    else f"the sign is {row[sign]!r}, not negative, positive or both; correct the line"
                ),
            )
        rows = np.stack([resolve.many(*distinct(batch.column(c))) for c in pair], 1)
        keep = (rows >= 0).all(1)
        report.drop("a name does not resolve", int((~keep).sum()))
        itself = keep & (rows[:, 0] == rows[:, 1])
        report.drop("a gene paired with itself", int(itself.sum()))
        keep &= ~itself
        value = np.array([known[word.strip().lower()] for word in words])[code]
        collected.add(rows[keep], {SIGN: value[keep]}, [study], np.zeros(int(keep.sum()), np.int64))
        report.kept["digenic"] = report.kept.get("digenic", 0) + int(keep.sum())
        both = int(np.isnan(value[keep]).sum())
        if both:
            report.kept["called both"] = report.kept.get("called both", 0) + both
    report.unresolved = resolve.finish(str(path))
    return collected.screen(resolve, path)
