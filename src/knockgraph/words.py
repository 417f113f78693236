"""Numbers with their nouns, and names one after another, for what people read."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """``1 experiment``, ``2 experiments``, ``1,000 studies``.

    >>> counted(1, "experiment"), counted(1200, "study", "studies"), counted(0, "gene")
    ('1 experiment', '1,200 studies', '0 genes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], last: str = "and", most: int = 3) -> str:
    """``a``, ``a and b``, ``a, b and c``, ``a, b, c and 7 more``.

    >>> listed(["a", "b"]), listed(["a", "b"], "or"), listed(list("abcde"))
    ('a and b', 'a or b', 'a, b, c and 2 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most:,} more"
    return f" {last} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
