"""DANGO's λ, the weight of an absent edge, from the number of absent edges that a later release of STRING filled in."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from knockgraph.errors import FileFormatError
from knockgraph.sources.names import NameResolver
from knockgraph.sources.report import ImportReport
from knockgraph.sources.string import CHANNELS, channels_of, read_string, relation_prefix, string_version

CHANGED = 0.01
"""Fraction of filled-in zeros above which the zeros of a relation are not trusted."""

UNTRUSTED = 0.1
"""λ of such a relation; 1 for the others."""

_CUT = 0.5  # fraction of lost edges above which a release looks cut


@dataclass(frozen=True)
class ChannelChange:
    """One channel between two releases; pairs of genes, each counted once.

    Attributes:
        channel: Its name.
        old_pairs: Edges of the old release.
        new_pairs: Edges of the new release.
        filled: Pairs without an edge in the old release that have one in the new.
        lost: Edges of the old release that the new one does not have.
        zeros: Pairs without an edge in the old release.
        changed: ``filled / zeros``.
        zero_weight: λ.
    """

    channel: str
    old_pairs: int
    new_pairs: int
    filled: int
    lost: int
    zeros: int
    changed: float
    zero_weight: float


@dataclass(frozen=True)
class LambdaReport:
    """λ of all channels that both releases have.

    Attributes:
        old: Version of the old release.
        new: Version of the new release.
        genes: Genes over which pairs are counted.
        channels: One entry per channel.
        zero_weight: Relation of the new release → λ, as the model option ``zero_weight`` takes it.
        caution: Why the figures are only a demonstration; otherwise empty.
        files: What was read and dropped.
    """

    old: str
    new: str
    genes: int
    channels: tuple[ChannelChange, ...]
    zero_weight: dict[str, float]
    caution: str
    files: ImportReport

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {
            "old": self.old,
            "new": self.new,
            "genes": self.genes,
            "channels": [asdict(c) for c in self.channels],
            "zero_weight": self.zero_weight,
            "caution": self.caution,
            **self.files.as_dict(),
        }


def zero_weights(old: Path, new: Path, resolve: NameResolver, touched_only: bool = False) -> LambdaReport:
    r"""λ per channel: 0.1 where more than 1 % of the zeros of the old release became edges in the new one, else 1.

    .. math:: \text{changed} = \frac{|\{(i, j) : a^{old}_{ij} = 0,\ a^{new}_{ij} > 0\}|}
        {|\{(i, j) : a^{old}_{ij} = 0\}|}, \qquad i < j .

    Args:
        old: ``protein.links.detailed`` of the earlier release.
        new: The same of the later one.
        resolve: Resolves the names; its gene list is what pairs are counted over.
        touched_only: Count only over genes that the channel touches in either release, instead of all genes.
    """
    both = [c for c in CHANNELS if c in channels_of(old) and c in channels_of(new)]
    if not both:
        raise FileFormatError(
            f"{old} and {new} have no channel in common; take protein.links.detailed of both releases"
        )
    report = ImportReport("lambda")
    before = read_string(old, resolve, report.file(f"STRING {string_version(old)}", old), both)
    after = read_string(new, resolve, report.file(f"STRING {string_version(new)}", new), both)
    n = len(resolve.genes)
    changes = tuple(_change(c, _keys(before[c], n), _keys(after[c], n), n, touched_only) for c in both)
    prefix = relation_prefix(new)
    lost, kept = sum(c.lost for c in changes), sum(c.old_pairs for c in changes)
    caution = ""
    if kept and lost > _CUT * kept:
        caution = (
            f"a demonstration only: {lost / kept:.0%} of the edges of {string_version(old)} are not in {new.name}, "
            "which therefore looks cut at a score; take the whole files for figures to train with"
        )
    return LambdaReport(
        string_version(old),
        string_version(new),
        n,
        changes,
        {f"{prefix}{c.channel}": c.zero_weight for c in changes},
        caution,
        report,
    )


def _keys(edges: Tensor | tuple[Tensor, Tensor], n: int) -> npt.NDArray[np.int64]:
    """One ascending number per pair of different genes."""
    index = (edges if isinstance(edges, Tensor) else edges[0]).numpy()
    upper = index[0] < index[1]
    keys: npt.NDArray[np.int64] = np.unique(index[0, upper] * n + index[1, upper])
    return keys


def _change(
    channel: str, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64], n: int, touched_only: bool
) -> ChannelChange:
    common = len(np.intersect1d(old, new, assume_unique=True))
    if touched_only:
        either = np.concatenate([old, new])
        n = len(np.unique(np.concatenate([either // n, either % n])))
    zeros = n * (n - 1) // 2 - len(old)
    filled = len(new) - common
    changed = filled / zeros if zeros else 0.0
    weight = UNTRUSTED if changed > CHANGED else 1.0
    return ChannelChange(channel, len(old), len(new), filled, len(old) - common, zeros, changed, weight)
