"""What an import read, what it dropped, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from knockgraph.sources.names import UnresolvedName
from knockgraph.words import counted


@dataclass
class FileReport:
    """One file.

    Attributes:
        what: What it is, in words.
        path: Where it is.
        read: Rows of data.
        dropped: Reason → number of rows left out.
        kept: What was made of it → how many, e.g. ``{"edges": 116520}``.
        unresolved: Unknown names.
        notes: Further remarks.
    """

    what: str
    path: Path
    read: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    unresolved: list[UnresolvedName] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def drop(self, why: str, rows: int) -> None:
        """Count rows left out."""
        if rows:
            self.dropped[why] = self.dropped.get(why, 0) + int(rows)

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {
            "what": self.what,
            "path": str(self.path),
            "read": self.read,
            "dropped": dict(self.dropped),
            "kept": dict(self.kept),
            "unresolved_names": [
                {"name": u.name, "rows": u.rows, "why": u.why, "suggestions": u.suggestions} for u in self.unresolved
            ],
            "notes": list(self.notes),
        }

    def lines(self, most_names: int = 10) -> Iterator[str]:
        """As lines of text."""
        kept = ", ".join(f"{count:,} {what}" for what, count in self.kept.items())
        yield f"{self.what}: {self.read:,} rows of {self.path.name}" + (f" → {kept}" if kept else "")
        for why, rows in self.dropped.items():
            yield f"  dropped {rows:,}: {why}"
        if self.unresolved:
            shown = "; ".join(f"{u} ({counted(u.rows, 'row')})" for u in self.unresolved[:most_names])
            more = (
                f" and {len(self.unresolved) - most_names} more (--json lists all)"
                if len(self.unresolved) > most_names
                else ""
            )
            some = "1 name does" if len(self.unresolved) == 1 else f"{len(self.unresolved)} names do"
            yield f"  {some} not resolve: {shown}{more}"
        for note in self.notes:
            yield f"  note: {note}"


@dataclass
class ImportReport:
    """All files of one import.

    Attributes:
        name: Of the source.
        files: One entry each.
        brief: Whether to show only files of which something was left out, or about which there is something to say.
    """

    name: str
    files: list[FileReport] = field(default_factory=list)
    brief: bool = False

    def file(self, what: str, path: Path) -> FileReport:
        """A new entry."""
        self.files.append(FileReport(what, path))
        return self.files[-1]

    def as_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        return {"import": self.name, "files": [f.as_dict() for f in self.files]} if self.files else {}

    def lines(self) -> Iterator[str]:
        """As lines of text."""
        for file in self.files:
            if file.dropped or file.notes or not self.brief:
                yield from file.lines()
