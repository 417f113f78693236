"""Checks of this machine: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
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


_NEEDED = (
    *("torch", "numpy", "safetensors", "pyarrow", "pandas", "torch_geometric", "typer", "rich"),
    *("matplotlib", "lightning", "torchmetrics", "hydra-core", "omegaconf", "pyyaml", "tensorboard"),
)


def examine() -> list[Finding]:
    """Run all checks; this takes about a second."""
    checks = (_gpu, _triton, _cores, _shared_memory, _write_access, _disk, _self_test)
    return [*_packages(), *(check() for check in checks)]


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
        return _gpu_works()
    if shutil.which("nvidia-smi") is None:
        return Finding("GPU", "note", "none; training runs on the CPU")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and not hidden.strip().strip("-1"):
        detail = f"hidden from this process by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Finding("GPU", "problem", detail, "unset CUDA_VISIBLE_DEVICES, or set it to 0")
    built, driver = torch.version.cuda, _driver_cuda()
    if built is None:
        fix = "install a torch with CUDA (pytorch.org shows the command for your driver)"
        return Finding("GPU", "problem", "there is a driver, but this torch is a CPU build", fix)
    if driver is not None and driver[0] < int(built.split(".")[0]):
        older = ".".join(map(str, driver))
        detail = f"torch was built for CUDA {built}, but the driver only has CUDA {older}"
        return Finding("GPU", "problem", detail, f"update the driver, or install a torch for CUDA {driver[0]}")
    detail = f"there is a driver, but torch (built for CUDA {built}) sees no device"
    return Finding(
        "GPU", "problem", detail, "check whether 'nvidia-smi' lists one, and start containers with --gpus all"
    )


def _gpu_works() -> Finding:
    """A device may be visible although this build of torch has no kernels for it."""
    name = torch.cuda.get_device_name()
    try:
        free, total = torch.cuda.mem_get_info()
        torch.ones(1, device="cuda").add_(1).item()
    except RuntimeError as error:
        said = str(error).strip().splitlines()[0]
        known = " ".join(torch.cuda.get_arch_list())
        fix = f"install a torch that has kernels for it (this one: {known}), and see what 'nvidia-smi' says"
        return Finding("GPU", "problem", f"{name} does not work: {said}", fix)
    memory = f"{name}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free"
    if free < 2e9:
        return Finding("GPU", "note", memory, "'nvidia-smi' shows what uses the memory")
    return Finding("GPU", "ok", memory)


def _driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver can run, as nvidia-smi says it."""
    try:
        said = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=False).stdout  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", said)
    return None if found is None else (int(found[1]), int(found[2]))


def _triton() -> Finding:
    gpu = torch.cuda.is_available()
    if importlib.util.find_spec("triton") is None:
        if gpu:
            return Finding("Triton", "problem", "not installed; the fused kernels are off", "pip install triton")
        return Finding("Triton", "note", "not installed; it is only needed with a GPU")
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # some builds are distributed under another name
        version = "installed"
    if gpu and os.environ.get("TRITON_INTERPRET") == "1":
        detail = f"{version}, but TRITON_INTERPRET=1 lets the kernels run on the CPU, thousands of times slower"
        return Finding("Triton", "problem", detail, "unset TRITON_INTERPRET")
    if gpu and not (os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))):
        detail = f"{version}, but there is no C compiler, which it needs to start kernels"
        return Finding("Triton", "problem", detail, "install gcc, e.g. apt-get install gcc, or set CC")
    if gpu and not Path(sysconfig.get_path("include"), "Python.h").is_file():
        detail = f"{version}, but the headers of Python are missing, which it needs to start kernels"
        return Finding("Triton", "problem", detail, "install them, e.g. apt-get install python3-dev")
    return Finding("Triton", "ok", version)


def _cores() -> Finding:
    """More threads than cores slow each other down; in a container torch counts the cores of the whole machine."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # not in such a container
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = max(1, min(cores, round(int(quota) / int(period))))
    threads = torch.get_num_threads()
    detail = f"{cores} core{'s' * (cores > 1)}, {threads} thread{'s' * (threads > 1)}"
    if threads > cores:
        return Finding("CPU", "note", f"{detail}: they slow each other down", f"export OMP_NUM_THREADS={cores}")
    return Finding("CPU", "ok", detail)


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
    return Finding("Write access", "ok", str(here))


def _disk() -> Finding:
    """Where runs and temporary files go."""
    places = {Path(tempfile.gettempdir())}
    with contextlib.suppress(OSError):  # a deleted folder is another finding
        places.add(Path.cwd())
    free, place = min((shutil.disk_usage(p).free, str(p)) for p in places)
    if free < 1e9:
        fix = "free some space, or set TMPDIR and run_dir to a larger disk"
        return Finding("Disk", "problem", f"{free / 1e6:.0f} MB free in {place}: too little for checkpoints", fix)
    return Finding("Disk", "ok", f"{free / 1e9:.0f} GB free in {place}")


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
