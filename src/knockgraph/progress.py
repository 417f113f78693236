"""Progress of long work, by logging: on standard error at the command line, silent in Python unless asked for."""

from __future__ import annotations

import logging
import time

_logger = logging.getLogger("knockgraph")
_AFTER = 15.0  # seconds of work before anything is told


class Pace:
    """Tells the steps of one long piece of work, with the time that it has taken so far.

    Args:
        what: Name of the work, the first word of each line.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.start = time.perf_counter()

    def tell(self, step: str) -> None:
        """Say what comes next; nothing while the work is still short."""
        passed = time.perf_counter() - self.start
        if passed >= _AFTER:
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
