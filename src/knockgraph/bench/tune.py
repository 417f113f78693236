"""Tiles of the fused kernels, tuned on the card at hand: one constant after the other, kept where it is faster.

Only the number of linear maps in a launch is tried together with others, because two maps need more registers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from knockgraph import ops
from knockgraph.machine import describe_machine
from knockgraph.ops import tiles
from knockgraph.ops.tiles import CHOICES, KERNELS, Card, Tile

GAIN = 0.02
"""A constant is changed for a gain of at least this fraction, so that noise changes nothing."""


def bench_tune(
    device: str = "cuda",
    rows: int = 6_607 * 29,
    relations: int = 9,
    channels: int = 64,
    hidden: int = 32,
    repeats: int = 10,
    card: Card | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Time each kernel's operation, forward and backward, with other constants than the default ones.

    Args:
        device: ``cuda``, or ``cpu`` with Triton's interpreter, which shows that everything runs.
        rows: Genes × samples, by default yeast's at batch 28 and the wild type.
        relations: Number of relations.
        channels: Of the states.
        hidden: Of the pairs' MLPs.
        repeats: Timed calls for each candidate.
        card: The card, by default the current one.
        progress: Called with what is being timed.
    """
    card = card or Card.of(torch.cuda.current_device())
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    size = torch.empty(0, dtype=kind).element_size()
    best = {name: tiles.default(name, card, size) for name in KERNELS}
    results = []
    for family, work in _work(device, kind, rows, relations, channels, hidden).items():
        spent = before = _timed(work, best, repeats)
        for name in (n for n, kernel in KERNELS.items() if kernel.family == family):
            for change in _changes(name, best[name]):
                candidate = tiles.fitted(name, {**best[name], **change}, card, size)
                if candidate == best[name]:
                    continue
                progress(f"{name}: {_text(candidate)}")
                found = _timed(work, {**best, name: candidate}, repeats)
                if found is not None and (spent is None or found < (1 - GAIN) * spent):
                    best[name], spent = candidate, found
        results.append({"family": family, "default_ms": before, "tuned_ms": spent})
    return {
        "benchmark": "tune",
        "machine": describe_machine(),
        "card": card.name,
        "conditions": {"rows": rows, "relations": relations, "channels": channels, "hidden": hidden},
        "results": results,
        "tiles": {name: {"default": tiles.default(name, card, size), "tuned": best[name]} for name in KERNELS},
    }


def keep(report: dict[str, Any], card: Card | None = None) -> str:
    """Use what was found from now on; returns the file that says so."""
    found = {name: tile["tuned"] for name, tile in report["tiles"].items()}
    return str(tiles.keep(card or Card.of(torch.cuda.current_device()), found))


def rows(report: dict[str, Any]) -> list[list[str]]:
    """One row of text for each kernel: its name, the default tile, the tuned one if another."""
    found = report["tiles"].items()
    return [[name, _text(t["default"]), _text(t["tuned"]) if t["tuned"] != t["default"] else "–"] for name, t in found]


def _changes(name: str, start: Tile) -> Iterator[Tile]:
    """Each constant's other values, one constant after the other."""
    for key in KERNELS[name].tile:
        given = start[key]
        shares = (max(given // 2, 1), max(given * 3 // 4, 1), given * 3 // 2, given * 2)
        yield from ({key: value} for value in CHOICES.get(key, shares))


def _work(
    device: str, kind: torch.dtype, rows: int, relations: int, channels: int, hidden: int
) -> dict[str, Callable[[], None]]:
    """Family → its operation on random numbers, forward and backward."""
    random = torch.Generator().manual_seed(0)

    def made(*shape: int) -> Tensor:
        return (0.3 * torch.randn(*shape, generator=random)).to(device).to(kind).requires_grad_()

    pairs = relations * (relations + 1) // 2
    tables = ops.pair_tables(relations)
    tables = (tables[0].to(device), tables[1].to(device))
    h = made(relations, rows, channels)
    of_pairs = [(channels, hidden), (channels, hidden), (1, hidden), (hidden, channels), (1, channels)]
    weights = (*(made(pairs, *shape) for shape in of_pairs), made(channels, hidden), made(hidden), made(hidden))
    own, eps = made(rows, channels), made(relations)
    weight, bias = made(4, relations, channels, channels), made(4, relations, channels)
    norm = (made(relations, channels), made(relations, channels))
    qkv, qkv_bias = made(3 * channels, channels), made(3 * channels)
    out, out_bias = made(channels, channels), made(channels)

    def mix() -> None:
        y = ops.mix_pairs(h, weights, tables, backend="triton")
        torch.autograd.grad(y.sum(), (h, *weights))

    def mlp() -> None:
        y = ops.relation_mlp(own, h, eps, weight, bias, norm, backend="triton")
        torch.autograd.grad(y.sum(), (own, h, eps, weight, bias, *norm))

    def attend() -> None:
        y = ops.mix_relations(h, (qkv, qkv_bias), (out, out_bias), heads=4, backend="triton")
        torch.autograd.grad(y.sum(), (h, qkv, qkv_bias, out, out_bias))

    return {"pairs": mix, "MLPs": mlp, "relations": attend}


def _timed(work: Callable[[], None], chosen: dict[str, Tile], repeats: int) -> float | None:
    """Median milliseconds; None for what does not fit the card."""
    wait: Callable[[], Any] = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    spent = []
    with tiles.trying(chosen):
        try:
            work()  # compiles
        except Exception as error:
            if type(error).__name__ not in ("OutOfResources", "PTXASError"):
                raise
            return None
        for _ in range(repeats):
            wait()
            start = time.perf_counter()
            work()
            wait()
            spent.append(1e3 * (time.perf_counter() - start))
    return statistics.median(spent)


def _text(tile: Tile) -> str:
    """A tile in words.

    >>> _text({"TILE": 64, "num_warps": 4})
    'tile 64, num_warps 4'
    """
    return ", ".join(f"{key.lower()} {value}" for key, value in tile.items())
