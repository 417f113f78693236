"""Progress of long work, by logging: on standard error at the command line, silent in Python unless asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_logger = logging.getLogger("knockgraph")
_PAUSE = 15.0  # seconds before the first step is told, and between two of them


class Pace:
    """Tells the steps of one long piece of work, with the time that it has taken so far.

    Args:
        what: Name of the work, the first word of each line.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.start = self.told = time.perf_counter()

    def tell(self, step: str) -> None:
        """Say what comes next, unless the last line is recent; nothing while the work is still short."""
        now = time.perf_counter()
        if now - self.told >= _PAUSE:
            self.told, passed = now, now - self.start
            minutes, seconds = divmod(int(passed), 60)
            _logger.info("%s, after %d:%02d min: %s", self.what, minutes, seconds, step)

    def note(self, about: str) -> None:
        """Say what a person should know before long work."""
        _logger.info("%s: %s", self.what, about)


def show() -> None:
    """Print progress on standard error."""
    if not _logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)


@contextmanager
def shown() -> Iterator[None]:
    """Print progress on standard error for as long as this lasts."""
    handlers, level = _logger.handlers[:], _logger.level
    show()
    try:
        yield
    finally:
        _logger.handlers[:] = handlers
        _logger.setLevel(level)
