"""Numbers with their nouns, for what people read."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 experiment``, ``2 experiments``, ``1,000 studies``.

    >>> counted(1, "experiment"), counted(1200, "study", "studies"), counted(0, "gene")
    ('1 experiment', '1,200 studies', '0 genes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
