"""Writes tiny files of every format as this release writes them, for ``tests/test_archive.py``.

Run once when the version of a format rises: ``python tests/archive/write_archive.py``. Files that are there are never
written again: that old ones can still be read is what the archive is for.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from knockgraph import CellGraph, Metabolism, Reaction, Screen, splits, strategies
from knockgraph.container import write_container
from knockgraph.graph import cell_graph
from knockgraph.profile import settings
from knockgraph.screen import parquet
from knockgraph.sources import yeast_gem
from knockgraph.strategies import mask_store
from knockgraph.train import checkpoints

HERE = Path(__file__).parent
GENES = ["YAL001C", "YAL002W", "YAL003W", "YBR004C", "YCR005C", "YDR006W"]


def graph() -> CellGraph:
    reactions = [
        Reaction("r1", {"x": -1.0, "y": 2.5}, -5.0, 10.0, gene_rule="(YAL001C and YAL002W) or YAL003W"),
        Reaction("r2", {"y": -1.0}, growth=True),
    ]
    metabolism = Metabolism.from_reactions(reactions, {name: i for i, name in enumerate(GENES)})
    physical = torch.tensor([[0, 1, 1, 2, 3], [1, 0, 2, 1, 3]])
    regulatory = torch.tensor([[5, 0, 4], [0, 5, 2]]), torch.tensor([0.25, -1.5, 0.1])
    features = {"length": torch.arange(12.0).reshape(6, 2) / 8}
    other = {"YAL001C": ["TFC3", "Ä1"], "YCR005C": ["", "CIT2"]}
    return CellGraph(GENES, {"physical": physical, "regulatory": regulatory}, metabolism, features, other)


def dosed_screen() -> Screen:
    genotypes = [[], ["YAL001C=0.3", "YBR004C"], ["YAL001C=2"], ["YAL002W=1", "YAL001C"], ["YAL001C"]]
    return Screen(genotypes, {"fitness": [1.0, 0.5, 0.25, 0.125, float("nan")]}, source="doses")


def screen() -> Screen:
    genotypes = [[], ["YAL001C"], ["YAL002W", "YAL001C"], ["YBR004C"], ["YAL003W", "YCR005C", "YDR006W"], ["YCR005C"]]
    fitness = [1.0, 0.5, 0.1, float("nan"), 0.375, 1e-3]
    return Screen(
        genotypes,
        {"fitness": fitness, "size": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]},
        {"fitness": {"std": [0.1, 0.2, float("nan"), 0.4, 0.5, 0.6]}},
        source=["first", "first", "second", "", "first", "Zweite"],
    )


def write_split(path: Path) -> None:
    splits.random(screen(), (0.5, 0.25, 0.25), seed=3).save(path)


def state() -> dict[str, Any]:
    return {
        "epoch": 3,
        "rate": 0.1,
        "nothing": None,
        "limits": (float("inf"), -0.0, [True, "ä"]),
        7: {"weight": torch.tensor([[0.5, -2.0]]), "half": torch.tensor([1.5], dtype=torch.bfloat16)},
    }


def write_store(folder: Path) -> None:
    """LMDB's file is mostly zeros, so it is kept compressed."""
    with tempfile.TemporaryDirectory() as place:
        strategies.create("stored-masks", graph()).prepare([[0], [1, 3]], place)
        folder.mkdir()
        shutil.copy(Path(place) / "manifest.json", folder)
        (folder / "data.mdb.gz").write_bytes(gzip.compress((Path(place) / "data.mdb").read_bytes(), mtime=0))


def write_reactions(path: Path) -> None:
    rows = [["r_1", {"s_1": -1.0, "s_2": 2.5}, -1000.0, 1000.0, "YAL001C or YAL002W", True]]
    write_container(path, yeast_gem.FORMAT, yeast_gem.VERSION, {"reactions": rows}, {})


def write_run(folder: Path) -> None:
    """A run directory as it is after thirty epochs, with the files it was made from beside it."""
    from knockgraph.run import train
    from knockgraph.train.config import compose

    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)  # the config names its files as they are named here
    try:
        graph().save("my.cellgraph")
        names = [[a, b] for i, a in enumerate(GENES) for b in GENES[:i]]
        Screen(names, {"fitness": [k / 8 for k in range(len(names))]}).save("my.parquet")
        words = ["data=files", "data.cell=my.cellgraph", "data.screen=my.parquet", "data.phenotype=fitness"]
        words += ["model=hetero-small", "model.options.channels=2", "model.options.messages.layers=1", "run_dir=run"]
        words += ["trainer.accelerator=cpu", "trainer.max_epochs=30", "trainer.progress_bar=false", "optimizer.lr=0.05"]
        words += ["loader.batch_size=4", "scheduler.warmup_steps=3", "trainer.baselines=[mean]"]
        train(compose(words), say=lambda _: None)
        for best in ("best-mse", "best-pearson", "previous"):  # as large as the last
            Path("run/checkpoints", f"{best}.ckpt").unlink()
        Path("run/report.html").unlink()
        shutil.rmtree("run/tensorboard")
    finally:
        os.chdir(before)


def write_profile(path: Path) -> None:
    """What ``knockgraph profile --json`` says of a model of 361 parameters on the demo, compressed."""
    from knockgraph.cli import main

    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "p.json"
        sys.argv = ["knockgraph", "profile", "model=additive", "--only", "full", "--steps", "3", "--json", str(out)]
        with contextlib.suppress(SystemExit):
            main()
        path.write_bytes(gzip.compress(out.read_bytes(), mtime=0))


ARCHIVED: dict[str, tuple[int, str, Callable[[Path], Any]]] = {
    "knockgraph.cellgraph": (cell_graph.VERSION, "x.cellgraph", lambda path: graph().save(path)),
    "knockgraph.split": (splits.VERSION, "x.split", write_split),
    "knockgraph.checkpoint": (checkpoints.VERSION, "x.ckpt", lambda path: checkpoints.save(path, state())),
    "knockgraph.reactions": (yeast_gem.VERSION, "x.safetensors", write_reactions),
    "knockgraph.screen": (parquet.VERSION, "x.parquet", lambda path: dosed_screen().save(path)),
    "knockgraph.mask-store": (mask_store.VERSION, "store", write_store),
    "knockgraph.profile": (settings.VERSION, "profile.json.gz", write_profile),
    "run directory": (1, "made", write_run),
}
"""Format → the version this release writes, the name of its file, and what writes it."""


def main() -> None:
    for kind, (version, name, write) in ARCHIVED.items():
        path = HERE / f"{kind.removeprefix('knockgraph.').replace(' ', '-')}-{version}" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write(path)
            print("wrote", path)


if __name__ == "__main__":
    main()
