"""STRING's ``protein.links.detailed`` and ``protein.(physical.)links.full`` of any version: channels as relations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from knockgraph.errors import FileFormatError, GraphError
from knockgraph.sources.delimited import DelimitedFile, Kind
from knockgraph.sources.edges import EdgeCollector, resolved_pairs
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import FileReport

CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")
"""The six channels of DANGO, in its order and STRING's own spelling; text mining is left out."""

PRIOR = 0.041
"""STRING's own probability that two proteins interact by chance, part of every channel's score."""

_NOT_CHANNELS = ("protein1", "protein2", "combined_score", "homology")
_SAME = {"experiments": "experimental", "experiments_transferred": "experimental_transferred"}


def string_version(path: Path) -> str:
    """The release in a file's name, ``"12.0"``."""
    found = re.search(r"\.v(\d+(?:\.\d+)*)", path.name)
    if not found:
        raise FileFormatError(
            f"the name of {path} does not contain STRING's version (….v12.0.txt.gz); keep the original name"
        )
    return found[1]


def relation_prefix(path: Path) -> str:
    """The prefix of the relations of a file: ``"string12_0_"``."""
    return f"string{string_version(path).replace('.', '_')}_"


def channels_of(path: Path) -> list[str]:
    """The channels that a file has; ``experiments`` is called ``experimental`` as in the detailed files."""
    return [_SAME.get(c, c) for c in DelimitedFile(path, " ").columns if c not in _NOT_CHANNELS]


def read_string(
    path: Path,
    resolve: NameResolver,
    report: FileReport,
    channels: Sequence[str] | None = None,
    cutoff: int | Mapping[str, int] = 1,
    merged: bool = False,
    weighted: bool = False,
    with_transferred: bool = True,
) -> dict[str, Tensor | tuple[Tensor, Tensor]]:
    r"""Undirected relations ``[2, edges]``, one per channel, or one of all channels together.

    Merged, an edge's score is STRING's own combination of the channels' scores :math:`s_c` in 0 … 1,

    .. math:: s = 1 - (1 - p) \prod_c \Bigl(1 - \max\bigl(0, \tfrac{s_c - p}{1 - p}\bigr)\Bigr), \qquad p = 0.041,

    without its correction for homology. With ``channels=None`` and a column ``combined_score``, that column is used.

    Args:
        path: The file, also compressed.
        resolve: Resolves the names (without the taxon before the dot).
        report: Records what was read and dropped.
        channels: Which; by default those of :data:`CHANNELS` that the file has (merged: all that it has).
        cutoff: Least score 1 … 1000 of an edge, for all or per channel (``"merged"`` for the merged one).
        merged: One relation ``merged`` instead of one per channel.
        weighted: Whether edges carry score / 1000 as their weight.
        with_transferred: Combine a channel with its ``_transferred`` column where the file has one ("full" files).

    Returns:
        Channel (without the version) → edges, ordered by source and target.
    """
    file = DelimitedFile(path, " ")
    pair = file.need("protein1"), file.need("protein2")
    has = {_SAME.get(c, c): c for c in file.columns if c not in _NOT_CHANNELS}
    if channels is None:
        channels = list(has) if merged else [c for c in CHANNELS if c in has]
        combined = file.find("combined_score") if merged else None
    else:
        combined = None
    absent = [c for c in channels if c not in has]
    if absent or not (channels or combined):
        what = f"no channel {absent[0]!r}" if absent else "none of the known channels"
        raise FileFormatError(f"{path} has {what}; it has {', '.join(has) or 'no channel'}; choose among these")
    parts = {c: [has[c]] for c in channels}
    if with_transferred:
        for c in channels:
            other = has.get(f"{c}_transferred")
            if other and f"{c}_transferred" not in channels:
                parts[c].append(other)
    made = ["merged"] if merged else list(channels)
    least = {name: cutoff if isinstance(cutoff, int) else cutoff.get(name, 1) for name in made}
    _check_cutoffs(least, cutoff, made)
    numeric = [combined] if combined else list(dict.fromkeys(c for names in parts.values() for c in names))
    kinds: dict[str, Kind] = {**dict.fromkeys(pair, "text"), **dict.fromkeys(numeric, "integer")}
    collected = {name: EdgeCollector(len(resolve.genes), directed=False) for name in made}
    silent = 0
    for batch in file.batches(kinds):
        score = {c: batch.column(c) for c in numeric}
        if any(s.null_count for s in score.values()):
            _refuse(file, kinds, numeric)
        value = {c: s.to_numpy(zero_copy_only=False) for c, s in score.items()}
        if any(len(v) and (v.min() < 0 or v.max() > 1000) for v in value.values()):
            _refuse(file, kinds, numeric)
        taxon = _taxon(file, batch, pair)
        first, second, known = resolved_pairs(batch, pair, resolve, report, taxon)
        first, second = first[known], second[known]
        kept = np.zeros(len(first), bool)
        for name in made:
            columns = [combined] if combined else ([c for p in parts.values() for c in p] if merged else parts[name])
            s = combine([value[c][known] for c in columns])
            chosen = s >= least[name]
            kept |= chosen
            collected[name].add(first[chosen], second[chosen], s[chosen] / 1000)
        silent += int((~kept).sum())
    report.drop("no score reaches the cut-off", silent)
    report.unresolved = resolve.finish(str(path))
    report.kept |= {f"{name} pairs": edges.pairs for name, edges in collected.items()}
    return {name: edges.result(weighted) for name, edges in collected.items()}


def combine(scores: Sequence[npt.NDArray[np.integer] | npt.NDArray[np.floating]]) -> npt.NDArray[np.float64]:
    """STRING's combination of scores 0 … 1000, see :func:`read_string`; a single score stays as it is."""
    if len(scores) == 1:
        return scores[0].astype(np.float64)
    absent = np.ones(len(scores[0]))
    for s in scores:
        absent *= 1 - np.maximum(0.0, (s / 1000 - PRIOR) / (1 - PRIOR))
    combined = 1000 * (1 - (1 - PRIOR) * absent)
    # Without any evidence there is no edge, although the formula gives the prior.
    return np.where(absent == 1, np.max(scores, axis=0), combined)


def _check_cutoffs(least: Mapping[str, int], given: int | Mapping[str, int], made: Sequence[str]) -> None:
    strange = [] if isinstance(given, int) else [name for name in given if name not in made]
    if strange:
        raise GraphError(f"a cut-off is given for {strange[0]!r}, which is not among {', '.join(made)}")
    for name, value in least.items():
        if not 1 <= value <= 1000:
            raise GraphError(f"the cut-off of {name} is {value}, but STRING's scores run from 1 to 1000")


def _taxon(file: DelimitedFile, batch: object, pair: tuple[str, str]) -> str:
    """The prefix of STRING's names, ``"4932."``."""
    import pyarrow.compute as pc

    if len(batch) == 0:  # type: ignore[arg-type]
        return ""
    first = str(batch.column(pair[0])[0])  # type: ignore[attr-defined]
    taxon = first.split(".")[0] + "."
    fits = all(pc.all(pc.starts_with(batch.column(name), taxon)).as_py() for name in pair)  # type: ignore[attr-defined]
    if not fits or not taxon[:-1].isdecimal():
        file.refuse(
            {},
            lambda row: next(
                (
                    f"{row[name]!r} is not a protein of STRING such as 4932.YAL001C; is it the right file?"
                    for name in pair
                    if not re.fullmatch(r"\d+\..+", row[name])
                ),
                None,
            ),
        )
        raise FileFormatError(f"{file.path} holds proteins of several organisms; take the file of one organism")
    return taxon


def _refuse(file: DelimitedFile, kinds: Mapping[str, Kind], numeric: Sequence[str]) -> None:
    def reason(row: dict[str, str]) -> str | None:
        for name in numeric:
            if not row[name].strip().isdecimal() or int(row[name]) > 1000:
                return f"{name!r} is {row[name]!r}, but a score from 0 to 1000 is needed; correct or remove the line"
        return None

    file.refuse(kinds, reason)
