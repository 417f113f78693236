"""How the fused kernels are cut up on a card: rows of a tile, warps, pipeline stages, registers, shares of the rows.

The constants in :data:`KERNELS` are from a sweep on an H200 (docs/speed.md). On another card they are made to fit:
shares follow the number of multiprocessors, and a tile is halved while it takes more than three quarters of the shared
memory,

    tile × values per row × bytes per value × stages ≤ ¾ · shared memory.

``knockgraph bench tune`` times what else a card can do and keeps the best in the user's cache folder, where it is found
from then on. Without that file the constants depend on nothing but the card.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from knockgraph.files import cache_folder, write_json

Tile = dict[str, int]

FORMAT, VERSION = "knockgraph.tiles", 1
CHOICES: dict[str, tuple[int, ...]] = {
    "TILE": (16, 32, 64, 128),
    "num_warps": (2, 4, 8),
    "num_stages": (1, 2, 3),
    "maxnreg": (128, 168, 255),
    "GELUS": (1, 2),
}
"""What a kernel can be launched with; ``SHARES`` may be any number. ``GELUS``: how often a GELU of what is loaded is
computed, see ``triton/gelu.py``.
"""
_PROCESSORS = 132  # of the H200, to which the shares below belong


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        family: The operation that it belongs to.
        tile: What it is launched with on an H200.
        values: Of each row of a tile, how many stand in shared memory at once, at 64 channels.
    """

    family: str
    tile: Tile
    values: int


def _kernel(family: str, values: int, **tile: int) -> Kernel:
    return Kernel(family, tile, values)


KERNELS: dict[str, Kernel] = {
    "pairs": _kernel("pairs", 128, TILE=64, num_warps=4, num_stages=2, maxnreg=168),
    "gradient of pairs": _kernel("pairs", 128, GELUS=2, TILE=64, num_warps=4, num_stages=2, maxnreg=255, SHARES=47),
    "gradient of first maps": _kernel("pairs", 160, TILE=128, num_warps=4, num_stages=3),
    "gradient of mean": _kernel("pairs", 64, TILE=64, num_warps=4, num_stages=1, SHARES=264),
    "gradient of states": _kernel("pairs", 32, TILE=128, num_warps=4, num_stages=3),
    "MLPs": _kernel("MLPs", 64, TILE=64, num_warps=4, num_stages=1, maxnreg=128),
    "gradient of MLPs": _kernel("MLPs", 192, GELUS=1, TILE=64, num_warps=4, num_stages=1, maxnreg=168, SHARES=44),
    # A tile holds rows × relations, and 64 is the least waste with nine of them.
    "relations": _kernel("relations", 384, TILE=64, num_warps=4, num_stages=2),
    "gradient of relations": _kernel("relations", 448, TILE=64, num_warps=4, num_stages=2, SHARES=264),
}
"""Shares: programs among which the rows of one pair or relation are shared out, all at work at once."""


@dataclass(frozen=True)
class Card:
    """What of a GPU decides.

    Attributes:
        name: Its name.
        shared: Bytes of shared memory that a program can have.
        processors: Multiprocessors.
    """

    name: str
    shared: int
    processors: int

    @staticmethod
    def of(device: int) -> Card:
        """The GPU with this number."""
        found = torch.cuda.get_device_properties(device)
        shared = found.shared_memory_per_multiprocessor - 1024  # which the driver keeps for itself
        return Card(found.name, shared, found.multi_processor_count)

    @property
    def path(self) -> Path:
        """Where its tuned tiles are kept."""
        return cache_folder() / "tiles" / (re.sub(r"[^\w.-]+", "-", self.name) + ".json")


_trial: dict[str, Tile] = {}


def tile(kernel: str, x: Tensor) -> Tile:
    """What to launch a kernel with for data of x's type on x's device.

    Args:
        kernel: One of :data:`KERNELS`.
        x: Its main input.
    """
    if kernel in _trial:
        return _trial[kernel]
    return _tile(kernel, x.device.index if x.is_cuda else None, x.element_size())


@functools.cache
def _tile(kernel: str, device: int | None, size: int) -> Tile:
    if device is None:  # Triton's interpreter, whose programs run one after the other
        made = KERNELS[kernel].tile
        return {**made, "SHARES": 2} if "SHARES" in made else made
    card = Card.of(device)
    tuned = _tuned(card)
    return fitted(kernel, tuned[kernel], card, size) if tuned else default(kernel, card, size)


def default(kernel: str, card: Card, size: int) -> Tile:
    """A kernel's constants on a card that was not tuned.

    Args:
        kernel: One of :data:`KERNELS`.
        card: The card.
        size: Bytes of a value.
    """
    made = dict(KERNELS[kernel].tile)
    if "SHARES" in made:
        made["SHARES"] = max(round(made["SHARES"] * card.processors / _PROCESSORS), 1)
    return fitted(kernel, made, card, size)


def fitted(kernel: str, given: Tile, card: Card, size: int) -> Tile:
    """``given``, with a tile that fits the card's shared memory."""
    made = dict(given)
    per_row = KERNELS[kernel].values * size * made["num_stages"]
    while made["TILE"] > CHOICES["TILE"][0] and made["TILE"] * per_row > 0.75 * card.shared:
        made["TILE"] //= 2
    return made


@contextlib.contextmanager
def trying(tiles: Mapping[str, Tile]) -> Iterator[None]:
    """Launch kernels with these inside the block."""
    before = dict(_trial)
    _trial.update(tiles)
    try:
        yield
    finally:
        _trial.clear()
        _trial.update(before)


def keep(card: Card, tiles: Mapping[str, Tile]) -> Path:
    """Use these on this card from now on; returns the file that says so."""
    card.path.parent.mkdir(parents=True, exist_ok=True)
    write_json(card.path, {"format": FORMAT, "version": VERSION, "card": card.name, "tiles": dict(tiles)})
    _tile.cache_clear()
    _tuned.cache_clear()
    return card.path


@functools.cache
def _tuned(card: Card) -> dict[str, Tile] | None:
    try:
        found = json.loads(card.path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        found = None
    if not _valid(found, card):
        todo = "delete it, or make it again with knockgraph bench tune"
        warnings.warn(f"{card.path} is not a table of tiles for these kernels and is ignored; {todo}", stacklevel=2)
        return None
    tiles: dict[str, Tile] = found["tiles"]
    return tiles


def _valid(found: Any, card: Card) -> bool:
    about = found if isinstance(found, dict) else {}
    if (about.get("format"), about.get("version"), about.get("card")) != (FORMAT, VERSION, card.name):
        return False
    tiles = about.get("tiles")
    return isinstance(tiles, dict) and tiles.keys() == KERNELS.keys() and all(_known(k, t) for k, t in tiles.items())


def _known(kernel: str, tile: Any) -> bool:
    needed = KERNELS[kernel].tile.keys() - {"maxnreg"}
    if not isinstance(tile, dict) or not needed <= tile.keys() <= needed | {"maxnreg"}:
        return False
    numbers = all(type(value) is int and 0 < value < 1 << 16 for value in tile.values())
    return numbers and all(value in CHOICES.get(key, (value,)) for key, value in tile.items())
