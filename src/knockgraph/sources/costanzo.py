"""Costanzo et al. 2016: digenic interactions ε, as published (``SGA_NxN.txt`` …) or as a list of gene pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from knockgraph.errors import FileFormatError
from knockgraph.screen import Screen
from knockgraph.sources.collins import read_scored_pairs
from knockgraph.sources.delimited import members
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import ImportReport
from knockgraph.sources.sga import LinkedPolicy, collector, is_sga, read_sga
from knockgraph.sources.sgd import Linkage

STUDY = "costanzo2016"
TABLES = ("SGA_NxN", "SGA_ExE", "SGA_ExN_NxE", "SGA_DAmP")


def read_costanzo(
    paths: Sequence[Path],
    resolve: NameResolver,
    report: ImportReport,
    linkage: Linkage | None = None,
    linked: LinkedPolicy = "drop",
) -> Screen:
    """The screen of one or more tables of the study.

    Args:
        paths: ``SGA_NxN.txt``, ``SGA_ExE.txt``, ``SGA_ExN_NxE.txt``, ``SGA_DAmP.txt`` (also compressed), the archive
            of them, or one list with the columns ``orf_a``, ``orf_b``, ``epsilon``.
        resolve: Resolves the names.
        report: Records what was read and dropped.
        linkage: Positions of the genes.
        linked: What to do with linked pairs of the published tables; lists hold none.
    """
    if len(paths) == 1 and members(paths[0]) is None and not is_sga(paths[0]):
        file = report.file("Costanzo 2016, gene pairs", paths[0])
        return read_scored_pairs(paths[0], resolve, file, ("epsilon", "ε", "score"), STUDY)
    collected = collector()
    for path in paths:
        for member in _members(path):
            file = report.file(f"Costanzo 2016, {member}", path)
            read_sga(path, resolve, file, collected, STUDY, linkage, linked, member)
    return collected.screen(resolve, paths[0])


def _members(path: Path) -> list[str]:
    """Patterns of the tables in an archive; of a plain file, one that fits it."""
    packed = members(path)
    if packed is None:
        return ["crosses"]
    names = {Path(name).name.lower() for name in packed}
    found = [f"{table}.txt" for table in TABLES if f"{table}.txt".lower() in names]
    if not found:
        raise FileFormatError(f"{path} holds none of {', '.join(TABLES)}; is it the pair-wise format of Costanzo 2016?")
    return found
