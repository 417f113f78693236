"""Checkpoints without pickle: tensors and JSON in the verified container, atomic, reopened after writing."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knockgraph.container import read_container, write_container
from knockgraph.errors import FileFormatError, KnockgraphError
from knockgraph.train import moments
from knockgraph.train.config import quoted
from knockgraph.words import listed

FORMAT = "knockgraph.checkpoint"
VERSION = 1
LAST, PREVIOUS = "last.ckpt", "previous.ckpt"
NEXT = ".next.ckpt"  # being written; never read as a checkpoint
_EARLIER = {"best-error": "best-mse", "best-score": "best-pearson"}  # what earlier versions called them


def save(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write nested dicts, lists, numbers, texts and tensors; read them back to be sure."""
    tensors: dict[str, Tensor] = {}
    document = {"state": _encode(state, tensors, "")}
    # Tensors that share memory are written once each; a checkpoint is about values.
    written = write_container(path, FORMAT, VERSION, document, {k: t.clone() for k, t in tensors.items()})
    if read_container(path, FORMAT, range(1, VERSION + 1)).content_hash != written:
        raise KnockgraphError(f"the checkpoint {path} does not read back as it was written; check the disk")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The inverse of :func:`save`. Nothing in the file is executed."""
    contents = read_container(path, FORMAT, range(1, VERSION + 1))
    try:
        state = _decode(contents.document["state"], contents.tensors)
        if not isinstance(state, dict):
            raise TypeError(f"it holds {type(state).__name__} instead of names and values")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileFormatError(f"{path} does not describe a valid checkpoint: {error}") from error
    return state


def _encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.dtype == torch.complex128:
            raise KnockgraphError(f"a checkpoint cannot hold a {value.dtype}, {value.layout} tensor (at {path})")
        name = path
        while name in tensors or name in ("", "__metadata__"):  # 1 and "1" are two keys; the second name is reserved
            name += "'"
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [[_plain(k, path), _encode(v, tensors, f"{path}/{k}" if path else str(k))] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]}
    return _plain(value, path)


def _plain(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, also for inf and nan
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise KnockgraphError(f"a checkpoint cannot hold {type(value).__name__} (at {path or 'its top'})")


def _decode(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "tensor":
            return tensors[content]
        if kind == "float":
            return float.fromhex(content)
        if kind == "dict":
            return {_decode(k, tensors): _decode(v, tensors) for k, v in content}
        if kind in ("list", "tuple"):
            items = [_decode(v, tensors) for v in content]
            return items if kind == "list" else tuple(items)
        raise ValueError(f"unknown entry {kind!r}")
    return value


def moment_of(checkpoint: dict[str, Any]) -> str:
    """Where the run was that this is the checkpoint of; one of an earlier version is brought into today's form."""
    found = _about(checkpoint).get("moment")
    return moments.of_earlier_version(checkpoint["loops"]) if found is None else str(found)


def rows_of(checkpoint: dict[str, Any]) -> int | None:
    """How many rows ``metrics.csv`` had; ``None`` in a checkpoint of an earlier version."""
    return _about(checkpoint).get("rows")


def _about(checkpoint: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = checkpoint["callbacks"]["Checkpoints"]  # the callback of saving.py
    return found


def find(folder: Path, which: str) -> Path:
    """The file of ``last``, ``previous``, ``best-error`` or ``best-score``, whatever version wrote it.

    While the last one is replaced, or after a kill in that moment, it is the previous one.

    Raises:
        KnockgraphError: If there is none.
    """
    for path in [*_places(folder, which), *([folder / PREVIOUS] if which == "last" else [])]:
        if path.is_file():
            return path
    now = next((f"its name is {new} now" for new, old in _EARLIER.items() if which == old), None)
    there = [name for name in ("best-error", "best-score", "last", "previous") if _there(folder, name)]
    why = now or (f"it has {listed(there, most=4)}" if there else "is it a run directory that has saved its state?")
    raise KnockgraphError(f"{folder.parent} has no checkpoint {which!r}; {why}")


def any_best(folder: Path) -> bool:
    """Whether the run has validated and kept the best states."""
    return _there(folder, "best-error") or _there(folder, "best-score")


def _there(folder: Path, which: str) -> bool:
    return any(path.is_file() for path in _places(folder, which))


def _places(folder: Path, which: str) -> list[Path]:
    return [folder / f"{name}.ckpt" for name in dict.fromkeys([which, _EARLIER.get(which, which)])]


def any_saved(folder: Path) -> bool:
    """Whether a run has saved its state here; the last may just have been being replaced."""
    return any((folder / name).is_file() for name in (LAST, PREVIOUS))


def make_last(folder: Path) -> None:
    """Make the next checkpoint, complete and read back, the last one, and the last one the previous one.

    A kill between the two steps leaves the previous one, from which the run goes on and writes the next one again.
    """
    last = folder / LAST
    if last.is_file():
        last.replace(folder / PREVIOUS)
    (folder / NEXT).replace(last)
    for left in folder.glob(".*.part"):  # of a write that was killed
        left.unlink(missing_ok=True)


def resume_command(directory: Path) -> str:
    """The command that continues a run, as a shell takes it.

    >>> resume_command(Path("runs/my"))
    'knockgraph train run_dir=runs/my resume=true'
    >>> print(resume_command(Path("my run [1]")))
    knockgraph train "run_dir='my run [1]'" resume=true
    """
    word = f"run_dir={quoted(str(directory))}"
    # The quotes that shlex chooses read badly around single ones.
    shown = f'"{word}"' if "'" in word and not re.search(r'["$`\\!]', word) else shlex.quote(word)
    return f"knockgraph train {shown} resume=true"


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be read here: it is not deleted, and does not take the place of a good one."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.stem}-unread-{number}{path.suffix}")
        if not aside.exists():
            return path.rename(aside)
    raise AssertionError


def newest_valid(folder: Path) -> tuple[Path, list[str]]:
    """The newest checkpoint that reads back whole, and what was wrong with newer ones."""
    problems = []
    for name in (LAST, PREVIOUS):
        path = folder / name
        if not path.is_file():
            continue
        try:
            load(path)
        except FileFormatError as error:
            problems.append(str(error))
            continue
        return path, problems
    found = "; ".join(problems) or f"{folder} holds none"
    raise KnockgraphError(f"there is no checkpoint to resume from: {found}; start the run again without resume")
