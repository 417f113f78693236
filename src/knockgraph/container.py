"""The one file container of knockgraph: named tensors and a JSON document, verified, without pickle.

A container is a safetensors file. Its header's metadata holds

    format        what the file is, e.g. ``knockgraph.cellgraph``
    version       integer version of that format
    document      JSON: names, options, everything that is not a tensor
    digests       JSON: tensor name → SHA-256 of its dtype, shape and bytes
    content_hash  SHA-256 over format, version, document and digests

A file is written under a temporary name and renamed when complete, so a reader never sees a half-written one.
On load every digest is checked; an error names the file and the damaged record.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knockgraph.errors import FileFormatError
from knockgraph.files import atomic_write, reason


@dataclass(frozen=True)
class Contents:
    """What a container holds."""

    document: dict[str, Any]
    tensors: dict[str, Tensor]
    content_hash: str
    version: int


def write_container(
    path: str | os.PathLike[str], kind: str, version: int, document: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> str:
    """Write a container atomically and return its content hash."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors = _apart({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    digests = {name: _digest(t) for name, t in tensors.items()}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    content_hash = _content_hash(kind, version, text, digests)
    metadata = {
        "format": kind,
        "version": str(version),
        "document": text,
        "digests": json.dumps(digests, sort_keys=True),
        "content_hash": content_hash,
    }
    with atomic_write(path) as part:
        try:
            save_file(tensors, part, metadata=metadata)
        except SafetensorError as error:  # it wraps the operating system's error, a full disk for instance
            raise OSError(str(error)) from error
        _sort_metadata(part)
    return content_hash


def _sort_metadata(path: Path) -> None:
    """Make equal content give equal bytes: safetensors writes the entries of the metadata in random order."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) <= size:  # it is as long as before, and padded with spaces
            file.seek(8)
            file.write(text.ljust(size))


def read_container(
    path: str | os.PathLike[str], kind: str, versions: range, describe: Callable[[str], str] = repr
) -> Contents:
    """Read and verify a container.

    Args:
        path: The file.
        kind: The format it must have.
        versions: The versions this release reads.
        describe: Turns a tensor's name into words for the error, e.g. ``relation 'physical'``.
    """
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    what = kind.rpartition(".")[2]
    try:
        if not source.is_file():
            why = "it is a folder; give a file name" if source.is_dir() else "there is no such file"
            raise FileFormatError(f"cannot read {source}: {why}")
        source.open("rb").close()  # safetensors reports every file that it cannot open as missing
        with safe_open(source, framework="pt") as opened:
            metadata = opened.metadata() or {}
            found = metadata.get("format")
            if found != kind:
                is_a = f"is a {found} file" if found else "was not written by knockgraph"
                raise FileFormatError(f"{source} {is_a}, but a {kind} file is needed here")
            version = _version(metadata.get("version"), versions, source, what)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise FileFormatError(
            f"{source} is not a readable {what} file ({error}): it is truncated, damaged or of another format; "
            "build it again or copy it again from its origin"
        ) from error
    except OSError as error:
        raise FileFormatError(f"cannot read {source}: {reason(error, source)}") from error
    try:
        digests: dict[str, str] = json.loads(metadata["digests"])
        document = json.loads(metadata["document"])
        stored = metadata["content_hash"]
    except (KeyError, ValueError, RecursionError) as error:
        raise FileFormatError(f"the header of {source} is damaged ({error}); build the file again") from error
    damaged = not isinstance(digests, dict)
    if damaged or set(digests) != set(tensors) or stored != _content_hash(kind, version, metadata["document"], digests):
        raise FileFormatError(f"the header of {source} is damaged (content hash mismatch); build the file again")
    for name, tensor in tensors.items():
        if _digest(tensor) != digests[name]:
            raise FileFormatError(
                f"while reading {describe(name)} of {source}: its bytes are damaged; build the file again"
            )
    return Contents(document, tensors, stored, version)


def _version(text: str | None, versions: range, source: Path, what: str) -> int:
    version = int(text) if text and text.isdecimal() and len(text) < 9 else -1
    if version in versions:
        return version
    if version >= versions.stop:
        raise FileFormatError(
            f"{source} has {what} format version {version}, newer than the {versions.stop - 1} this release reads; "
            "upgrade knockgraph"
        )
    raise FileFormatError(f"{source} has the unknown {what} format version {text!r}; build the file again")


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory with an earlier one, which safetensors refuses to write."""
    seen: set[int] = set()
    apart = {}
    for name, t in tensors.items():
        place = t.untyped_storage().data_ptr()
        apart[name] = t.clone() if place in seen else t
        seen.add(place)
    return apart


def _digest(tensor: Tensor) -> str:
    """SHA-256 of dtype, shape and bytes."""
    h = hashlib.sha256(f"{tensor.dtype}{list(tensor.shape)}".encode())
    if tensor.numel():
        h.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return h.hexdigest()


def _content_hash(kind: str, version: int, document: str, digests: Mapping[str, str]) -> str:
    text = json.dumps([kind, version, document, sorted(digests.items())])
    return hashlib.sha256(text.encode()).hexdigest()
