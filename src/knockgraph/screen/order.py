"""The order in which an epoch visits the experiments, as a pure function of (seed, epoch)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from knockgraph.errors import ScreenError


@dataclass(frozen=True)
class EpochOrder:
    r"""A global permutation, cut into global batches, shared out over ranks.

    With :math:`w` ranks and batch :math:`b`, global batch :math:`k` is the next :math:`w \cdot b` experiments of the
    permutation; rank :math:`r` takes the :math:`r`-th of :math:`w` equal parts of it. So the ranks together see every
    experiment exactly once, and :math:`w` processes with batch :math:`b` visit what one process with batch
    :math:`w b` visits. The last global batch may be short; its parts then differ by at most one experiment and may
    even be empty, but every rank takes the same number of steps.

    Attributes:
        num_experiments: Experiments per epoch.
        batch_size: Per rank.
        seed: Of the run.
        shuffle: ``False`` visits the experiments in their own order.
        drop_last: Leave a short last global batch out.
        rank: This process, ``0 … world_size - 1``.
        world_size: Number of processes.
    """

    num_experiments: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ScreenError(f"batch_size is {self.batch_size}, but it must be at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ScreenError(f"rank {self.rank} does not exist among {self.world_size} processes")
        if self.num_steps() == 0:
            dropped = "; keep the short last batch or make the batch smaller" if self.num_experiments else ""
            raise ScreenError(f"an epoch over {self.num_experiments} experiments has no step{dropped}")

    @property
    def global_batch_size(self) -> int:
        """Experiments per step over all ranks."""
        return self.batch_size * self.world_size

    def num_steps(self, start: int = 0) -> int:
        """Steps of an epoch, from global position ``start`` on; the same on every rank."""
        left = max(self.num_experiments - start, 0)
        return left // self.global_batch_size if self.drop_last else -(-left // self.global_batch_size)

    def permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        """All experiments in the order of ``epoch``, the same on every rank."""
        if not self.shuffle:
            return np.arange(self.num_experiments)
        # Philox is counter-based and specified bit by bit, unlike the default generator.
        random = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed % 2**64, epoch])))
        return random.permutation(self.num_experiments)

    def share(self, epoch: int, start: int = 0) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
        """This rank's experiments of ``epoch`` from global position ``start`` on.

        Returns:
            The experiments of all full steps one after another, those of the short last step (possibly none), and the
            number of experiments that the short step has over all ranks (0: there is no short step).
        """
        order = self.permutation(epoch)[start:]
        g, b, r, w = self.global_batch_size, self.batch_size, self.rank, self.world_size
        full = len(order) // g
        mine = order[: full * g].reshape(full, w, b)[:, r].reshape(-1)
        tail = order[full * g :] if not self.drop_last else order[:0]
        sizes = shares(len(tail), w)
        return mine, tail[sum(sizes[:r]) : sum(sizes[: r + 1])], len(tail)


def shares(step_size: int, world_size: int) -> list[int]:
    r"""Samples of each rank in a short step, :math:`\lfloor S (r + 1) / w \rfloor - \lfloor S r / w \rfloor`.

    >>> shares(7, 3), shares(1, 2)
    ([2, 2, 3], [0, 1])
    """
    ends = [step_size * r // world_size for r in range(world_size + 1)]
    return [stop - start for start, stop in pairwise(ends)]
