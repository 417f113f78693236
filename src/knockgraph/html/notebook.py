"""What a notebook shows of an object: its one line, and a small table."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def card(title: str, headings: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> str:
    """A heading, a table and a note, in the notebook's own style.

    >>> card("Split", ["part", "experiments"], [["train", 8]])[:23]
    '<div><strong>Split</str'
    """
    head = "".join(f"<th>{escape(text)}</th>" for text in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(_text(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    said = f"<p>{escape(note)}</p>" if note else ""
    return f"<div><strong>{escape(title)}</strong>{table}{said}</div>"


def _text(cell: object) -> str:
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:.4g}"
