"""Whether two run directories hold the same run: every file, but for what a clock wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import torch
import yaml

from knockgraph import CellGraph
from knockgraph.screen import Split
from knockgraph.train import checkpoints

TIMES = ("train/it_per_s", "train/samples_per_s")


def differences(a: Path, b: Path) -> list[str]:
    """What differs, in words; nothing if they hold the same run."""
    names, others = (_names(directory) for directory in (a, b))
    found = [f"only one has {name}" for name in sorted(names ^ others)]
    for name in sorted(names & others):
        found += [f"{name}{where}" for where in _apart(_read(a / name), _read(b / name))]
    return found


def _names(directory: Path) -> set[str]:
    paths = (str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    # A resumed run adds a file of events; a process that was killed may leave the part that it was writing.
    return {name for name in paths if not name.startswith("tensorboard") and not name.endswith(".part")}


def _read(path: Path) -> Any:
    if path.suffix == ".ckpt":
        return checkpoints.load(path)
    if path.name == "metrics.csv":
        with path.open(newline="") as file:
            return [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
    if path.name == "result.json":
        result = json.loads(path.read_text())
        result.pop("training_seconds")
        result["about"].pop("date")
        for found in result["metrics"].values():
            found.pop("seconds", None)
        return result
    if path.name == "config.yaml":
        return {**yaml.safe_load(path.read_text()), "run_dir": None}
    if path.suffix == ".cellgraph":  # equal graphs may order the keys of the header differently
        return CellGraph.load(path).fingerprint()
    if path.suffix == ".split":
        return {part: rows.tolist() for part, rows in Split.load(path).parts.items()}
    if path.suffix in (".html", ".svg", ".mdb") or path.name == ".lock":  # times, dates, page numbers
        return None
    return path.read_bytes()


def _apart(a: Any, b: Any, where: str = "") -> list[str]:
    """The places at which two nested values differ."""
    if isinstance(a, torch.Tensor):
        return [] if isinstance(b, torch.Tensor) and torch.equal(a, b) else [where]
    if isinstance(a, dict) and isinstance(b, dict):
        shared = [key for key in a if key in b]
        return [f"{where}/{key} (only one)" for key in a.keys() ^ b.keys()] + [
            place for key in shared for place in _apart(a[key], b[key], f"{where}/{key}")
        ]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        return [place for i, pair in enumerate(zip(a, b, strict=True)) for place in _apart(*pair, f"{where}/{i}")]
    return [] if a == b or (a != a and b != b) else [f"{where}: {str(a)[:90]!r} and {str(b)[:90]!r}"]
