"""AND and OR over ragged groups, without a scatter: which complexes are complete, which reactions survive."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Ragged groups of rows, laid out so that AND or OR over each group is a handful of gathers of fixed shape.

    Groups are sorted by size, largest first. Level 0 holds the first member of each, level k the members 2^(k-1) … 2^k
    − 1
    of those that are large enough. Shorter groups are padded with one of their own members, which changes neither AND
    nor OR. Nearly all groups have one member, so this gathers little more than the members and needs no scatter, which
    would be many times slower.

    Args:
        levels: Per level [groups in it, width] int64, the rows to gather.
        rank: [groups] int64, where in the result each group lies.
    """

    levels: tuple[Tensor, ...]
    rank: Tensor

    @classmethod
    def build(cls, group: Tensor, member: Tensor, num_groups: int) -> Groups:
        """Lay out ``member[i]`` of ``group[i]``; every group needs a member."""
        size = torch.bincount(group, minlength=num_groups)
        start = size.cumsum(0) - size
        member = member[group.argsort(stable=True)]
        order = size.argsort(descending=True, stable=True)
        levels: list[Tensor] = []
        low, high = 0, 1
        while not levels or bool((size > low).any()):
            here = order[: int((size > low).sum())]
            place = torch.arange(low, high).expand(len(here), -1)
            place = torch.where(place < size[here, None], place, 0)
            levels.append(member[start[here, None] + place])
            low, high = high, 2 * high
        rank = torch.empty_like(order)
        rank[order] = torch.arange(num_groups)
        return cls(tuple(levels), rank)

    def reduce(self, x: Tensor, every: bool) -> Tensor:
        """AND (``every``) or OR of the groups of x [rows, batch] bool → [groups, batch], in the order of ``rank``."""
        out = x[self.levels[0][:, 0]]
        for level in self.levels[1:]:
            top = out[: len(level)]
            if every:
                top &= x[level].all(1)
            else:
                top |= x[level].any(1)
        return out

    def to(self, device: torch.device | str) -> Groups:
        """The same on another device."""
        return Groups(tuple(level.to(device) for level in self.levels), self.rank.to(device))
