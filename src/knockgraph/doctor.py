"""What this machine has, what is missing, and what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

Status = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    name: str
    status: Status
    detail: str
    fix: str = ""


_NEEDED = ("torch", "numpy", "safetensors", "pyarrow", "torch_geometric", "typer", "rich")


def examine() -> list[Finding]:
    """Run every check; the whole takes about a second."""
    return [*_packages(), _gpu(), _triton(), _shared_memory(), _write_access(), _self_test()]


def _packages() -> list[Finding]:
    found = []
    for name in _NEEDED:
        try:
            found.append(Finding(name, "ok", importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            found.append(Finding(name, "problem", "not installed", f"pip install {name}"))
    return found


def _gpu() -> Finding:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return Finding("GPU", "ok", f"{torch.cuda.get_device_name()}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free")
    if shutil.which("nvidia-smi"):
        built = torch.version.cuda
        why = f"torch was built for CUDA {built}" if built else "torch is a CPU build"
        fix = "install a torch build that matches the driver (see pytorch.org), or check CUDA_VISIBLE_DEVICES"
        return Finding("GPU", "problem", f"the driver is here, but torch sees no device ({why})", fix)
    return Finding("GPU", "note", "none; training runs on the CPU")


def _triton() -> Finding:
    if importlib.util.find_spec("triton") is not None:
        try:
            return Finding("Triton", "ok", importlib.metadata.version("triton"))
        except importlib.metadata.PackageNotFoundError:  # some builds are distributed under another name
            return Finding("Triton", "ok", "installed")
    if torch.cuda.is_available():
        return Finding("Triton", "problem", "not installed; the fused kernels are off", "pip install triton")
    return Finding("Triton", "note", "not installed; it is only needed with a GPU")


def _shared_memory() -> Finding:
    path = Path("/dev/shm")  # noqa: S108 (the place itself is what is examined)
    if not path.is_dir():
        return Finding("Shared memory", "note", "no /dev/shm on this system")
    free = shutil.disk_usage(path).free
    if free < 512e6:
        fix = "start the container with more, e.g. --shm-size=2g, or use num_workers=0"
        return Finding("Shared memory", "problem", f"{free / 1e6:.0f} MB free: too little for loader workers", fix)
    return Finding("Shared memory", "ok", f"{free / 1e9:.1f} GB free")


def _write_access() -> Finding:
    try:
        here = Path.cwd()
    except OSError:
        return Finding("Write access", "problem", "the current folder was deleted", "change to a folder that exists")
    try:
        with tempfile.TemporaryFile(dir=here):
            pass
    except OSError as error:
        return Finding("Write access", "problem", f"{here}: {error.strerror}", "run from a folder you can write to")
    return Finding("Write access", "ok", f"{here}, {shutil.disk_usage(here).free / 1e9:.0f} GB free")


def _self_test() -> Finding:
    """Build, save, reload and batch a tiny cell."""
    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen, ScreenLoader

    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            graph = CellGraph(["A", "B", "C"], {"physical": torch.tensor([[0, 1], [1, 2]])})
            graph.save(os.path.join(folder, "tiny.cellgraph"))
            same = CellGraph.load(os.path.join(folder, "tiny.cellgraph")) == graph
        screen = Screen([["A", "C"], []], {"fitness": [0.5, 1.0]}).bind(graph)
        kept = next(iter(ScreenLoader(screen, batch_size=2, shuffle=False))).keep().tolist()
        right = same and kept == [[False, True], [True, True], [False, True]]
    except Exception as error:
        return Finding("Self test", "problem", f"failed: {error}", "reinstall knockgraph; if it persists, report it")
    if not right:
        return Finding("Self test", "problem", "gave a wrong result", "reinstall knockgraph; if it persists, report it")
    return Finding("Self test", "ok", f"passed in {time.perf_counter() - start:.2f} s")
