"""Files written completely or not at all, and checked to be writable before the work begins."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from knockgraph.errors import KnockgraphError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it is synced and renamed to ``path``, else removed.

    What ``path`` links to is replaced, not the link. A device, a pipe or a socket is written to.
    """
    target = _target(path)
    part = _part(target)
    try:
        yield part
        if _is_special(target):
            with part.open("rb") as written, target.open("ab") as sink:
                shutil.copyfileobj(written, sink)
            part.unlink()
            return
        with part.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)  # mkstemp's 0600 is for secrets; this is an ordinary file
        part.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise KnockgraphError(f"cannot write {target}: {reason(error, target)}") from error
        raise


def check_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a file that :func:`atomic_write` cannot write, before the work begins."""
    target = _target(path)
    if _is_special(target) and not os.access(target, os.W_OK):
        raise KnockgraphError(f"cannot write {target}: permission denied")
    _part(target).unlink()


def check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse a folder that cannot be created or written to, before the work begins."""
    place = Path(os.path.abspath(path))
    while not os.path.lexists(place):
        place = place.parent
    if not os.path.isdir(place):
        raise KnockgraphError(f"cannot use {place}: it is a file, not a folder; choose another place")
    try:
        handle, name = tempfile.mkstemp(prefix=".", suffix=".part", dir=place)
    except OSError as error:
        raise KnockgraphError(f"cannot use {path}: {str(error.strerror).lower()}; choose another place") from error
    os.close(handle)
    os.unlink(name)


def _target(path: str | os.PathLike[str]) -> Path:
    """Where to write: the target of a symbolic link, except for the standard streams, which are also links."""
    target = Path(path)
    if os.path.isdir(target):  # unlike Path.is_dir, it never raises
        raise KnockgraphError(f"cannot write {target}: it is a folder; give a file name")
    return target if _is_special(target) or not os.path.islink(target) else Path(os.path.realpath(target))


def _is_special(target: Path) -> bool:
    """Whether the path is something that must not be replaced: a device, a pipe, a socket, an open stream."""
    if os.path.abspath(target).startswith(("/dev/std", "/dev/fd/", "/proc/")):
        return True
    try:
        return not stat.S_ISREG(os.stat(target).st_mode)
    except (OSError, ValueError):
        return False


def _part(target: Path) -> Path:
    """An empty temporary file in the folder of ``target``, so that it can be renamed to it."""
    folder = None if _is_special(target) else target.parent
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=folder)
    except OSError as error:
        raise KnockgraphError(f"cannot write {target}: {reason(error, target)}") from error
    os.close(handle)
    return Path(name)


def cache_folder() -> Path:
    """What can be made again is kept in ``$KNOCKGRAPH_CACHE``, or in knockgraph's folder in the user's cache."""
    given = os.environ.get("KNOCKGRAPH_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "knockgraph"


def write_json(path: Path | None, data: Any) -> None:
    """Write JSON atomically; do nothing without a path."""
    if path is not None:
        with atomic_write(path) as part:
            text = json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False)
            part.write_text(f"{text}\n", encoding="utf-8")


def finite(data: Any) -> Any:
    """The same with ``None`` in place of NaN and infinities, which JSON does not have."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def reason(error: OSError, path: Path) -> str:
    """Why a file cannot be read or written."""
    if os.path.isfile(path.parent):
        return f"{path.parent} is a file, not a folder; give another path"
    if not os.path.isdir(path.parent):
        return f"the folder {path.parent} does not exist; create it first"
    return (error.strerror or str(error)).lower()
