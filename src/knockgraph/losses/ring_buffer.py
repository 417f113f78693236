"""The last samples that a rank has seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.errors import LossError


class RingBuffer(nn.Module):
    r"""The last ``capacity`` rows pushed; row number :math:`i` (counted from 0) lies in slot :math:`i \bmod C`.

    The number of rows seen is a Python integer: the host knows every batch's size, so nothing synchronises. Rows and
    number are part of ``state_dict()`` (the number as extra state, a plain integer).

    Args:
        capacity: :math:`C`.

    >>> ring = RingBuffer(3)
    >>> for value in range(5):
    ...     ring.push(torch.tensor([[float(value)]]))
    >>> ring.recent(2).flatten().tolist()
    [3.0, 4.0]
    """

    rows: Tensor

    def __init__(self, capacity: int) -> None:
        super().__init__()
        if capacity < 1:
            raise LossError(f"buffer_size is {capacity}, but it must be at least 1")
        self.capacity = capacity
        self.seen = 0
        self.register_buffer("rows", torch.empty(0, 0))  # [capacity, channels] once the first rows tell the channels

    def recent(self, count: int) -> Tensor:
        """The last ``count`` rows, or as many as there are, oldest first: ``[≤ count, channels]``, without gradient.

        A copy or a view: use it before the next :meth:`push`.
        """
        count = max(min(count, self.seen, self.capacity), 0)
        end = self.seen % self.capacity
        if count <= end:
            return self.rows[end - count : end]
        return torch.cat([self.rows[self.capacity - (count - end) :], self.rows[:end]])

    def completed(self, rows: Tensor) -> Tensor:
        """``rows``, with their gradient, and after them as many recent ones as make ``capacity`` rows, if there are."""
        if self.seen == 0:
            return rows
        self._check(rows)
        return torch.cat([rows, self.recent(self.capacity - len(rows)).to(rows.dtype)])

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        """Add rows ``[n, channels]``; the oldest ones make room."""
        if self.rows.numel() == 0:
            self.rows = rows.new_zeros(self.capacity, rows.shape[1])
        self._check(rows)
        self.seen += len(rows)
        rows = rows.detach()[-self.capacity :]
        start = (self.seen - len(rows)) % self.capacity
        before_end = min(len(rows), self.capacity - start)
        self.rows[start : start + before_end].copy_(rows[:before_end])
        self.rows[: len(rows) - before_end].copy_(rows[before_end:])

    def _check(self, rows: Tensor) -> None:
        if rows.shape[1] != self.rows.shape[1]:
            raise LossError(
                f"samples have {rows.shape[1]} values each, but those in the ring buffer have {self.rows.shape[1]}; "
                "resume with the outputs and embedding channels of the run that filled it"
            )

    def clear(self) -> None:
        """Forget everything."""
        self.seen = 0

    def get_extra_state(self) -> dict[str, int]:
        """What ``state_dict()`` stores beside the rows."""
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """The inverse of :meth:`get_extra_state`."""
        self.seen = int(state["seen"])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        saved = state_dict.get(f"{prefix}rows")
        if saved is not None and saved.shape != self.rows.shape:
            if len(saved) not in (0, self.capacity):
                raise LossError(
                    f"the saved ring buffer has room for {len(saved)} samples, but buffer_size is {self.capacity}; "
                    f"resume with buffer_size={len(saved)}"
                )
            self.rows = torch.zeros(saved.shape, dtype=saved.dtype, device=self.rows.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """The size."""
        return f"{self.capacity}, seen={self.seen}"
