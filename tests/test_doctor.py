import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
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
    packages = ["torch", "numpy", "safetensors", "pyarrow", "torch_geometric", "typer", "rich"]
    assert names == [*packages, "GPU", "Triton", "Shared memory", "Write access", "Self test"]
    assert {f.status for f in found} <= {"ok", "note", "problem"}
    assert all(f.detail for f in found)
    assert all(f.fix for f in found if f.status == "problem")
    assert {f.name: f.detail for f in found}["torch"] == importlib.metadata.version("torch")
    assert all(f.status == "ok" for f in found if f.name in (*packages, "Write access"))


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


@pytest.mark.parametrize(("cuda", "why"), [(None, "torch is a CPU build"), ("12.8", "torch was built for CUDA 12.8")])
def test_driver_without_device(monkeypatch: pytest.MonkeyPatch, no_gpu: None, cuda: str | None, why: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    found = finding("GPU")
    assert found.status == "problem"
    assert why in found.detail
    assert "CUDA_VISIBLE_DEVICES" in found.fix


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
