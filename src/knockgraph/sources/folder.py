"""Finding the files of an import in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from knockgraph.errors import FileFormatError
from knockgraph.sources.catalogue import PublicFile

SUFFIXES = (*(f"{kind}{packed}" for packed in ("", ".gz", ".xz") for kind in (".csv", ".tsv", ".txt")), ".parquet")
"""Names of tables end with one of these."""

_DEPTH = 3  # nesting depth; a home directory given by mistake must not take minutes


def listing(folder: Path) -> list[Path]:
    """All files of a folder and the folders in it, ordered."""
    if not folder.is_dir():
        what = "is a file; give the folder that holds it" if folder.exists() else "does not exist"
        raise FileFormatError(f"the folder {folder} {what}")
    found: list[Path] = []
    for base, folders, files in os.walk(folder):
        if len(Path(base).relative_to(folder).parts) >= _DEPTH:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(base) / name for name in sorted(files) if not name.endswith((".part", ".json"))]
    return found


def locate(files: Sequence[Path], patterns: Sequence[str]) -> Path | None:
    """The one file that matches the first pattern with a match; ``None`` without one.

    Raises:
        FileFormatError: Several do, so that it is not clear which is meant.
    """
    for pattern in patterns:
        fitting = [f for f in files if fnmatch(f.name.lower(), pattern.lower())]
        if len(fitting) > 1:
            raise FileFormatError(
                f"several files may be meant by {pattern!r}: {', '.join(map(str, fitting))}; leave one in the folder"
            )
        if fitting:
            return fitting[0]
    return None


def gather(folder: Path, wanted: Sequence[PublicFile]) -> dict[str, Path]:
    """Name → path of every wanted file.

    Raises:
        FileFormatError: Lists all that are missing, and where to get them.
    """
    files = listing(folder)
    found = {f.name: locate(files, f.patterns) for f in wanted}
    missing = [f for f in wanted if found[f.name] is None]
    if missing:
        listed = "; ".join(f"{f.title} ({f.patterns[0]}): {f.where}" for f in missing)
        count = f"{len(missing)} of {len(wanted)} files are" if len(missing) > 1 else "a file is"
        raise FileFormatError(f"{count} missing in {folder}: {listed}")
    return {name: path for name, path in found.items() if path is not None}


def table_in(folder: Path, stem: str) -> Path:
    """The table of this name in a folder, whatever kind it is."""
    if not folder.is_dir():
        raise FileFormatError(f"{folder} is not a folder; give the folder that holds {stem}.csv")
    for suffix in SUFFIXES:
        if (folder / f"{stem}{suffix}").is_file():
            return folder / f"{stem}{suffix}"
    raise FileFormatError(f"{folder} holds no {stem}.csv (or .tsv, .csv.gz, .parquet)")
