import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from knockgraph import CellGraph, doctor
from knockgraph.doctor import Finding, examine


def finding(name: str) -> Finding:
    return {f.name: f for f in examine()}[name]


def failing(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_every_check_reports_once_and_in_order() -> None:
    found = examine()
    names = [f.name for f in found]
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    packages = [requirement.partition(">")[0] for requirement in project["dependencies"]]
    assert names == [*packages, "GPU", "Triton", "CPU", "Shared memory", "Write access", "Disk", "Self test"]
    assert {f.status for f in found} <= {"ok", "note", "problem"}
    assert all(f.detail for f in found)
    assert all(f.fix for f in found if f.status == "problem")
    assert {f.name: f.detail for f in found}["torch"] == importlib.metadata.version("torch")
    assert all(f.status == "ok" for f in found if f.name in (*packages, "Write access", "Disk"))


def test_self_test_passes() -> None:
    found = finding("Self test")
    assert found.status == "ok"
    assert found.detail.startswith("passed in ")


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without_pyarrow(name: str) -> str:
        if name == "pyarrow":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_pyarrow)
    assert finding("pyarrow") == Finding("pyarrow", "problem", "not installed", "pip install pyarrow")
    assert finding("numpy").status == "ok"


def test_no_write_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "TemporaryFile", failing(PermissionError(13, "Permission denied")))
    found = finding("Write access")
    assert found == Finding(
        "Write access", "problem", f"{tmp_path}: Permission denied", "run from a folder you can write to"
    )


def test_deleted_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    found = finding("Write access")
    assert (found.status, found.detail) == ("problem", "the current folder was deleted")
    assert found.fix


def test_small_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=64e6, used=0, free=64e6))
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    found = doctor._shared_memory()
    assert (found.status, found.detail) == ("problem", "64 MB free: too little for loader workers")
    assert "--shm-size=2g" in found.fix
    assert "num_workers=0" in found.fix


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    assert doctor._shared_memory() == Finding("Shared memory", "note", "no /dev/shm on this system")


def test_no_gpu_is_only_a_note(monkeypatch: pytest.MonkeyPatch, no_gpu: None) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert finding("GPU") == Finding("GPU", "note", "none; training runs on the CPU")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, no_gpu: None, tmp_path: Path) -> None:
    """A machine whose driver has CUDA 12.4."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '| NVIDIA-SMI 550.54   Driver Version: 550.54   CUDA Version: 12.4 |'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("cuda", "detail", "fix"),
    [
        (None, "there is a driver, but this torch is a CPU build", "pytorch.org shows the command"),
        ("13.0", "torch was built for CUDA 13.0, but the driver only has CUDA 12.4", "a torch for CUDA 12"),
        ("12.8", "there is a driver, but torch (built for CUDA 12.8) sees no device", "--gpus all"),
    ],
)
def test_driver_without_device(
    monkeypatch: pytest.MonkeyPatch, driver: None, cuda: str | None, detail: str, fix: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = finding("GPU")
    assert (found.status, found.detail) == ("problem", detail)
    assert fix in found.fix


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_hidden_device(monkeypatch: pytest.MonkeyPatch, driver: None, hidden: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = finding("GPU")
    assert found.detail == f"hidden from this process by CUDA_VISIBLE_DEVICES={hidden!r}"
    assert found.fix.startswith("unset CUDA_VISIBLE_DEVICES")


def test_visible_devices_are_not_called_hidden(monkeypatch: pytest.MonkeyPatch, driver: None) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert "hidden" not in finding("GPU").detail


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that answers, with 80 GB free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H200")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80e9, 140e9))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_50", "sm_80"])
    ones = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *size, device=None: ones(*size))


def test_a_device_that_works(monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    assert doctor._gpu() == Finding("GPU", "ok", "H200, 80 of 140 GB free")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1e9, 140e9))
    assert doctor._gpu() == Finding("GPU", "note", "H200, 1 of 140 GB free", "'nvidia-smi' shows what uses the memory")


def test_a_device_that_torch_has_no_kernels_for(monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    said = "CUDA error: no kernel image is available for execution on the device\nCompile with ..."
    monkeypatch.setattr(torch, "ones", failing(RuntimeError(said)))
    found = doctor._gpu()
    assert found.status == "problem"
    assert found.detail == "H200 does not work: CUDA error: no kernel image is available for execution on the device"
    assert "(this one: sm_50 sm_80)" in found.fix


def test_triton_that_cannot_start_kernels(monkeypatch: pytest.MonkeyPatch, gpu: None) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.5.0")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert doctor._triton().fix == "unset TRITON_INTERPRET"
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.delenv("CC", raising=False)
    with monkeypatch.context() as without:
        without.setattr(shutil, "which", lambda name: None)
        found = doctor._triton()
    assert "no C compiler" in found.detail
    assert "install gcc" in found.fix
    with monkeypatch.context() as without:
        without.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
        without.setattr(Path, "is_file", lambda self: False)
        assert "python3-dev" in doctor._triton().fix
        without.setattr(Path, "is_file", lambda self: True)
        assert doctor._triton() == Finding("Triton", "ok", "3.5.0")


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(Path, "read_text", lambda self: "max 100000")
    assert doctor._cores() == Finding("CPU", "ok", "4 cores, 4 threads")
    monkeypatch.setattr(Path, "read_text", lambda self: "150000 100000")  # a container with one and a half cores
    found = doctor._cores()
    assert (found.status, found.fix) == ("note", "export OMP_NUM_THREADS=2")
    assert found.detail == "2 cores, 4 threads: they slow each other down"


def test_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200e6))
    found = doctor._disk()
    assert (found.status, found.detail.partition(" in ")[0]) == ("problem", "200 MB free")
    assert "TMPDIR" in found.fix


@pytest.mark.parametrize(("gpu", "status", "fix"), [(True, "problem", "pip install triton"), (False, "note", "")])
def test_missing_triton_matters_only_with_a_gpu(
    monkeypatch: pytest.MonkeyPatch, gpu: bool, status: str, fix: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    found = doctor._triton()
    assert (found.status, found.fix) == (status, fix)


def test_triton_under_another_distribution_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(importlib.metadata, "version", failing(importlib.metadata.PackageNotFoundError("triton")))
    assert doctor._triton().status == "ok"


def test_self_test_that_fails_or_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(CellGraph, "save", failing(OSError("disk on fire")))
        found = finding("Self test")
    assert (found.status, found.detail) == ("problem", "failed: disk on fire")
    assert "reinstall" in found.fix
    monkeypatch.setattr(CellGraph, "load", lambda path: CellGraph(["Z"], {}))
    found = finding("Self test")
    assert (found.status, found.detail) == ("problem", "gave a wrong result")


def test_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    examine()
    assert os.listdir(tmp_path) == []
