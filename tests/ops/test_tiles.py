"""How kernels are cut up: by the card, by a tuned table in the cache, and the same results whatever the tile."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import test_pairwise
import test_relation_attention
import test_relation_mlp
import torch

from knockgraph.bench import tune
from knockgraph.ops import tiles
from knockgraph.ops.tiles import CHOICES, KERNELS, Card, Tile

H200 = Card("NVIDIA H200", 232_448, 132)
A100 = Card("NVIDIA A100-SXM4-80GB", 166_912, 108)
RTX = Card("NVIDIA GeForce RTX 4090", 101_376, 128)
SMALL = Card("NVIDIA RTX A2000", 101_376, 26)
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("KNOCKGRAPH_CACHE", str(tmp_path))
    monkeypatch.setattr(Card, "of", staticmethod(lambda device: RTX))
    tiles._tile.cache_clear()
    tiles._tuned.cache_clear()
    yield
    tiles._tile.cache_clear()
    tiles._tuned.cache_clear()


def chosen(kernel: str, size: int = 2) -> Tile:
    return tiles._tile(kernel, 0, size)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kernel", KERNELS)
def test_by_card(kernel: str, size: int) -> None:
    assert tiles.default(kernel, H200, 2) == KERNELS[kernel].tile  # as they were measured
    for card in (H200, A100, RTX, SMALL):
        tile = tiles.default(kernel, card, size)
        assert tile["TILE"] * KERNELS[kernel].values * size * tile["num_stages"] <= 0.75 * card.shared
        assert tile["TILE"] in CHOICES["TILE"]
        assert {k: v for k, v in tile.items() if k not in ("TILE", "SHARES")} == {
            k: v for k, v in KERNELS[kernel].tile.items() if k not in ("TILE", "SHARES")
        }


def test_examples() -> None:
    name = "gradient of first maps"
    assert [tiles.default(name, card, 2)["TILE"] for card in (H200, A100, RTX)] == [128, 128, 64]
    assert [tiles.default(name, card, 4)["TILE"] for card in (H200, A100, RTX)] == [64, 64, 32]
    name = "gradient of MLPs"
    assert [tiles.default(name, card, 2)["SHARES"] for card in (H200, A100, RTX, SMALL)] == [44, 36, 43, 9]


def test_a_tuned_table_is_used(tmp_path: Path) -> None:
    assert chosen("MLPs") == tiles.default("MLPs", RTX, 2)
    tuned = {name: tiles.default(name, RTX, 2) for name in KERNELS}
    tuned["MLPs"] = {"TILE": 32, "num_warps": 2, "num_stages": 3}  # without a limit of registers
    path = tiles.keep(RTX, tuned)
    assert path == tmp_path / "tiles" / "NVIDIA-GeForce-RTX-4090.json"
    assert chosen("MLPs") == tuned["MLPs"]
    assert chosen("pairs") == tuned["pairs"]
    assert chosen("gradient of first maps", 4)["TILE"] == 32  # tuned for two bytes: made to fit four


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        "[]",
        json.dumps({"format": "another"}),
        json.dumps({"format": tiles.FORMAT, "version": 1, "card": "NVIDIA H200", "tiles": {}}),
        *(
            json.dumps(
                {
                    "format": tiles.FORMAT,
                    "version": 1,
                    "card": RTX.name,
                    "tiles": {n: {**k.tile, **wrong} for n, k in KERNELS.items()},
                }
            )
            for wrong in ({"TILE": 48}, {"TILE": "64"}, {"num_warps": True}, {"more": 1})
        ),
        json.dumps({"format": tiles.FORMAT, "version": 1, "card": RTX.name, "tiles": {"MLPs": KERNELS["MLPs"].tile}}),
    ],
)
def test_a_table_that_does_not_belong_here_is_ignored(damage: str) -> None:
    RTX.path.parent.mkdir(parents=True)
    RTX.path.write_text(damage)
    text = r"RTX-4090.json is not a table of tiles for these kernels and is ignored; delete it, or make it again with"
    with pytest.warns(UserWarning, match=text):
        assert chosen("pairs") == tiles.default("pairs", RTX, 2)


def test_tuning_takes_one_step_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that knows the best tile: every constant away from it costs a tenth."""
    best = {"TILE": 32, "num_warps": 8, "num_stages": 1, "maxnreg": 255, "SHARES": 23, "GELUS": 1}
    seen: list[dict[str, Tile]] = []

    def timed(work: object, given: dict[str, Tile], repeats: int) -> float | None:
        seen.append(given)
        if any(tile["num_warps"] == 2 for tile in given.values()):
            return None  # it does not fit
        return sum(1.0 + 0.1 * (best[key] != value) for tile in given.values() for key, value in tile.items())

    monkeypatch.setattr(tune, "_timed", timed)
    monkeypatch.setattr(tune, "GAIN", 0.001)
    report = tune.bench_tune("cpu", 4, 1, 16, 16, card=RTX)
    found = {name: tile["tuned"] for name, tile in report["tiles"].items()}
    assert found["pairs"] == {"TILE": 32, "num_warps": 8, "num_stages": 1, "maxnreg": 255}
    assert found["gradient of pairs"]["SHARES"] == 23
    assert found["gradient of states"] == {"TILE": 32, "num_warps": 8, "num_stages": 1}
    assert all(r["tuned_ms"] < r["default_ms"] for r in report["results"])
    assert len(seen) < 150
    tune.keep(report, RTX)
    assert chosen("pairs") == found["pairs"]
    assert [row[0] for row in tune.rows(report)] == list(KERNELS)


@needs_triton
def test_the_result_does_not_depend_on_the_tile() -> None:
    by_pair, by_relation = test_pairwise.operands(2, 40, 16, 16), test_relation_mlp.operands(2, 40, 16, 2)
    of_relations = test_relation_attention.operands(3, 40, 16)
    dy = torch.randn(40, 16, generator=torch.Generator().manual_seed(1)).to(test_pairwise.DEVICE)
    results = []
    for change in ({"TILE": 64, "SHARES": 2}, {"TILE": 16, "SHARES": 3, "GELUS": 1}):
        given = {
            name: {**kernel.tile, **{key: value for key, value in change.items() if key in kernel.tile}}
            for name, kernel in KERNELS.items()
        }
        with tiles.trying(given):
            pairs = test_pairwise.run(by_pair, dy, "triton", 40)
            pairs += test_relation_attention.run(of_relations, dy, "triton", 2)
            results.append(pairs + test_relation_mlp.run(by_relation, dy.expand(2, -1, -1), "triton"))
    test_pairwise.compare(*results, 1e-5)
    assert not tiles._trial


@needs_triton
def test_what_is_timed_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the interpreter, with few candidates; a tile that does not fit is passed over."""
    monkeypatch.setattr(tune, "_changes", lambda name, *rest: [{"TILE": 16}] if name == "pairs" else [])
    monkeypatch.setattr(tiles, "KERNELS", {n: replace(k, tile={**k.tile, "TILE": 32}) for n, k in KERNELS.items()})
    few = Card("NVIDIA RTX", 101_376, 2)
    said: list[str] = []
    report = tune.bench_tune(test_pairwise.DEVICE, 20, 2, 16, 16, repeats=1, card=few, progress=said.append)
    assert said == ["pairs: tile 16, num_warps 4, num_stages 2, maxnreg 168"]
    assert all(r["default_ms"] > 0 for r in report["results"])

    class OutOfResources(Exception):  # noqa: N818
        pass

    def fails() -> None:
        raise OutOfResources

    assert tune._timed(fails, {}, 1) is None
