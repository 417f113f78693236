"""The loader: batches of a bound screen, in the order of the epoch, resumable at any step."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from knockgraph.errors import KnockgraphError, ScreenError
from knockgraph.phases import WAIT, phase
from knockgraph.screen.ahead import copied_ahead
from knockgraph.screen.batch import PerturbationBatch
from knockgraph.screen.bound import BoundScreen
from knockgraph.screen.order import EpochOrder
from knockgraph.screen.ragged import Ints

Collate = Callable[[PerturbationBatch], PerturbationBatch]

# Experiments gathered at once: enough to hide the call overhead, few enough that torch does not start its threads,
# which cost milliseconds where the cores are busy.
_CHUNK = 8_192


class ScreenLoader:
    """Iterates over the batches of one epoch at a time.

    ``iter(loader)`` starts the current epoch; after the last batch the epoch number advances by one. A state saved in
    the middle of an epoch (:meth:`state_dict`) continues there, also with another batch size or number of processes.
    The batches are the same for any number of workers.

    Args:
        screen: The bound screen; resident on a GPU, the batches are made there and nothing is copied per step.
        rows: Positions in ``screen`` to visit (a split); all by default.
        batch_size: Samples per batch and process.
        seed: Of the order.
        shuffle: ``False`` visits the rows in their order.
        drop_last: Leave a short last batch out.
        rank: This process.
        world_size: Number of processes.
        collate: Applied to every batch where it is made: the ``collate`` of a worker-side strategy.
        num_workers: Worker processes; 0 makes the batches in this process, which is the fastest where ``collate``
            does no heavy work.
        pin_memory: Page-lock the batches (needs a CUDA device).
        persistent_workers: Keep the workers between epochs.
        prefetch_factor: Batches each worker prepares ahead.
        ahead: Copy each batch to this device while the one before is worked on, see
            :func:`~knockgraph.screen.ahead.copied_ahead`.
        timeout: Seconds to wait for a batch of the workers before an error says so; 0 waits for ever.
        multiprocessing_context: ``fork`` or ``spawn``.

    Attributes:
        between_batches: Called when the next batch is asked for: what was done with the one before is complete then,
            and :meth:`state_dict` is the position after it.
    """

    def __init__(
        self,
        screen: BoundScreen,
        rows: Ints | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        collate: Collate | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        prefetch_factor: int = 2,
        ahead: torch.device | None = None,
        timeout: float = 0,
        multiprocessing_context: str | None = None,
    ) -> None:
        self.screen = screen
        if rows is not None and np.asarray(rows).dtype == np.bool_:
            raise ScreenError("rows is a mask, but positions are needed; use numpy.flatnonzero(mask)")
        self.rows = None if rows is None else np.asarray(rows, dtype=np.int64)
        if self.rows is not None and len(self.rows) and not (self.rows.min() >= 0 and self.rows.max() < len(screen)):
            raise ScreenError(f"rows must lie in 0 … {len(screen) - 1}, the positions of the bound screen")
        if num_workers and screen.device.type != "cpu":
            raise ScreenError("worker processes cannot read a screen on the GPU; use num_workers=0 or screen.to('cpu')")
        n = len(screen) if self.rows is None else len(self.rows)
        self.order = EpochOrder(n, batch_size, seed, shuffle, drop_last, rank, world_size)
        self.collate = collate
        self.pin_memory = pin_memory
        self.ahead = ahead
        self.between_batches: Callable[[], None] | None = None
        self.epoch = 0
        self._position = 0  # experiments delivered in this epoch over all ranks
        self._resumed = False
        self._workers: DataLoader[PerturbationBatch] | None = None
        if num_workers:
            self._sampler = _Steps()
            self._workers = DataLoader(
                _StepDataset(screen, self.rows, self.order, collate),
                batch_size=None,  # an item is a whole batch
                sampler=self._sampler,
                num_workers=num_workers,
                pin_memory=pin_memory,
                persistent_workers=persistent_workers,
                prefetch_factor=prefetch_factor,
                timeout=timeout,
                worker_init_fn=_prepare_worker,
                multiprocessing_context=multiprocessing_context,
                # Without its own generator it draws from the global one at every epoch and every resumption,
                # and a resumed run would see other dropout masks than an uninterrupted one.
                generator=torch.Generator().manual_seed(seed % 2**63),
            )

    @property
    def batch_size(self) -> int:
        """Samples per batch and process."""
        return self.order.batch_size

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        return self.order.num_steps()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``iter`` delivers, from its start unless a state was loaded for it."""
        if epoch != self.epoch:
            self.epoch, self._position, self._resumed = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch delivered: small, JSON-safe."""
        return {
            "epoch": self.epoch,
            "position": self._position,
            "seed": self.order.seed,
            "shuffle": self.order.shuffle,
            "experiments": self._fingerprint(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken; refused if it belongs to other experiments or another order."""
        mine = self.state_dict()
        for key, what in (("experiments", "other experiments"), ("seed", "another seed"), ("shuffle", "another order")):
            if state.get(key) != mine[key]:
                raise KnockgraphError(
                    f"this loader state belongs to {what} ({key}: {state.get(key)!r}, here {mine[key]!r}); "
                    "resume with the data and seed of the original run, or start again"
                )
        self.epoch, self._position, self._resumed = int(state["epoch"]), int(state["position"]), True

    def close(self) -> None:
        """Stop persistent workers. Left to Python's cyclic garbage collection, each is waited for in vain, 5 s long."""
        iterator = None if self._workers is None else self._workers._iterator
        if self._workers is not None and iterator is not None:
            iterator._shutdown_workers()  # type: ignore[attr-defined]
            self._workers._iterator = None

    def _fingerprint(self) -> str:
        h = hashlib.sha256(self.screen.content_hash.encode())
        h.update(b"all" if self.rows is None else self.rows.tobytes())
        return h.hexdigest()[:16]

    def __iter__(self) -> Iterator[PerturbationBatch]:
        if not self._resumed:
            self._position = 0
        self._resumed = False
        epoch = self.epoch
        batches = self._deliver(epoch, self._position)
        for batch in batches if self.ahead is None else copied_ahead(batches, self.ahead):
            self._position = min(self._position + self.order.global_batch_size, self.order.num_experiments)
            yield batch
            if self.between_batches is not None:
                self.between_batches()
        self.epoch, self._position = epoch + 1, 0

    def _deliver(self, epoch: int, start: int) -> Iterator[PerturbationBatch]:
        if self._workers is not None:
            self._sampler.steps = [(epoch, start, k) for k in range(self.order.num_steps(start))]
            yield from self._workers
            return
        for batch in _all_batches(self.screen, self.rows, self.order, epoch, start):
            made = batch
            if self.collate is not None:
                with phase(WAIT, "collate"):
                    made = self.collate(batch)
            yield made.pin_memory() if self.pin_memory and self.screen.device.type == "cpu" else made


def _all_batches(
    screen: BoundScreen, rows: Ints | None, order: EpochOrder, epoch: int, start: int
) -> Iterator[PerturbationBatch]:
    """Every batch of this rank, many gathered at once."""
    mine: Ints
    tail: Ints
    mine, tail, tail_total = order.share(epoch, start)
    if rows is not None:
        mine, tail = rows[mine], rows[tail]
    chunk = max(_CHUNK // order.batch_size, 1) * order.batch_size
    for first in range(0, len(mine), chunk):
        yield from screen.batches(mine[first : first + chunk], order.batch_size, order.global_batch_size)
    if tail_total:
        yield screen.batches(tail, max(len(tail), 1), tail_total)[0]


def _prepare_worker(worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        # Ctrl-C reaches all processes of a terminal; the run decides when its workers end.
        signal.signal(number, signal.SIG_IGN)
    # A worker that cannot hand over a batch (no shared memory left) would print a traceback and go on with the next,
    # while the run waits for that batch for ever.
    Queue._on_queue_feeder_error = staticmethod(lambda error, batch: os._exit(1))  # type: ignore[attr-defined]


class _Steps:
    """The steps that the workers are asked for, in order; set anew for each epoch."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


class _StepDataset(Dataset[PerturbationBatch]):
    """Makes one batch in a worker from (epoch, start, step). Each worker derives the epoch's order by itself."""

    def __init__(self, screen: BoundScreen, rows: Ints | None, order: EpochOrder, collate: Collate | None) -> None:
        self.screen, self.rows, self.order, self.collate = screen, rows, order, collate
        self._share: tuple[tuple[int, int], tuple[Ints, Ints, int]] | None = None

    def __getitem__(self, step: tuple[int, int, int]) -> PerturbationBatch:
        epoch, start, k = step
        if self._share is None or self._share[0] != (epoch, start):
            self._share = ((epoch, start), self.order.share(epoch, start))
        mine, tail, tail_total = self._share[1]
        b = self.order.batch_size
        if k * b < len(mine):
            rows, step_size = mine[k * b : (k + 1) * b], self.order.global_batch_size
        else:
            rows, step_size = tail, tail_total
        if self.rows is not None:
            rows = self.rows[rows]
        batch = self.screen.batches(rows, max(len(rows), 1), step_size)[0]
        return batch if self.collate is None else self.collate(batch)
