"""Checkpoints: what is read is what was written, or an error; nothing in the file is ever executed."""

import math
import os
import pickle
import resource
import shlex
import shutil
import signal
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from training_runs import LEAST, config, run, weights

import knockgraph as kg
from knockgraph.container import write_container
from knockgraph.run import train
from knockgraph.train import checkpoints
from knockgraph.train.checkpoints import LAST, NEXT, PREVIOUS, load, newest_valid, resume_command, save
from knockgraph.train.config import compose

pytestmark = pytest.mark.usefixtures("no_page")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
Command = Callable[..., tuple[str, str]]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 99))).integers(-3, 4, shape))
    t = values.to(dtype)
    if dtype.is_floating_point and t.numel():
        t.view(-1)[0] = draw(st.sampled_from([math.inf, -math.inf, math.nan, -0.0, 1e-7]))
    return t.transpose(0, -1) if t.dim() > 1 and draw(st.booleans()) else t


KEYS = (
    st.text(max_size=5) | st.integers() | st.booleans() | st.none() | st.sampled_from(["a/b", "a", "b", "__metadata__"])
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | tensors()
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def identical(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        return not a.numel() or bytes(a.reshape(-1).view(torch.uint8)) == bytes(b.reshape(-1).view(torch.uint8))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(identical(*pair) for pair in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, float):
        return a.hex() == b.hex()
    return bool(a == b)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_round_trip(tmp_path: Path, state: dict[Any, Any]) -> None:
    save(tmp_path / "x.ckpt", state)
    assert identical(load(tmp_path / "x.ckpt"), state)


def test_round_trip_of_what_shares_memory_or_a_name(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    state = {
        "whole": whole,
        "again": whole,
        "part": whole[3:5],
        "view": whole.view(3, 4).T,
        "wide": torch.ones(1).expand(5),
        "scalar": torch.tensor(3.5, dtype=torch.bfloat16),
        "empty": torch.empty(0, 7),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        # Each of these would have the same path as another.
        "a/b": torch.tensor(1),
        "a": {"b": torch.tensor(2), "b'": torch.tensor(3)},
        1: torch.tensor(4),
        "1": torch.tensor(5),
        "": torch.tensor(6),
        "__metadata__": torch.tensor(7),
        "nested": [OrderedDict(x=(1, 2.5)), [(), [], {}]],
        np.float64(0.1): np.float64(0.2),
    }
    save(tmp_path / "x.ckpt", state)
    found = load(tmp_path / "x.ckpt")
    assert list(found) == list(state)
    assert all(torch.equal(found[k], t) for k, t in state.items() if isinstance(t, torch.Tensor))
    assert [found["a"]["b"].item(), found["a"]["b'"].item()] == [2, 3]
    assert found["nested"] == [{"x": (1, 2.5)}, [(), [], {}]]
    assert found[0.1] == 0.2
    found["whole"].zero_()
    assert found["again"].sum() == 66  # values, not memory


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, r"cannot hold set \(at a/0/b\)"),
        (object(), r"cannot hold object \(at a/0/b\)"),
        (np.int64(3), r"cannot hold int64 \(at a/0/b\)"),
        (b"bytes", r"cannot hold bytes \(at a/0/b\)"),
        (1j, r"cannot hold complex"),
        (os.system, r"cannot hold builtin_function"),
        ({(1, 2): 3}, r"cannot hold tuple"),
        (torch.eye(2).to_sparse(), r"cannot hold a torch.float32, torch.sparse_coo tensor \(at a/0/b\)"),
        (torch.ones(1, dtype=torch.complex128), r"cannot hold a torch.complex128"),
    ],
)
def test_what_a_checkpoint_cannot_hold(tmp_path: Path, value: Any, text: str) -> None:
    with pytest.raises(kg.KnockgraphError, match=text):
        save(tmp_path / "x.ckpt", {"a": [{"b": value}]})
    assert not list(tmp_path.iterdir())


def test_every_byte_counts(tmp_path: Path) -> None:
    state = {"epoch": 3, "weights": {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bfloat16)}, "lr": [0.1]}
    path = tmp_path / "x.ckpt"
    save(path, state)
    whole = path.read_bytes()
    for at in range(0, len(whole), 2):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 7
        path.write_bytes(damaged)
        try:
            found = load(path)
        except kg.FileFormatError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:  # a byte that says nothing, such as the padding of the header
            assert identical(found, state), at
    for length in range(0, len(whole), 9):
        path.write_bytes(whole[:length])
        with pytest.raises(kg.FileFormatError, match=str(path)):
            load(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(kg.FileFormatError):
        load(path)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"state": 5},
        {"state": {"list": []}},
        {"state": {"dict": 5}},
        {"state": {"dict": [[1]]}},
        {"state": {"dict": [["a", {"tensor": "none"}]]}},
        {"state": {"dict": [["a", {"float": "0x1p99999"}]]}},
        {"state": {"dict": [["a", {"float": 5}]]}},
        {"state": {"dict": [["a", {"float": "1", "list": []}]]}},
        {"state": {"dict": [["a", {"eval": "1"}]]}},
        {"state": {"dict": [[{"list": []}, 1]]}},
        {"state": {"dict": []}, "state ": 1},
    ],
)
def test_a_sound_file_that_says_nonsense(
    tmp_path: Path, document: dict[str, Any], finished: Path, command: Command
) -> None:
    path = tmp_path / "x.ckpt"
    write_container(path, checkpoints.FORMAT, checkpoints.VERSION, document, {})
    if "state " not in document:
        with pytest.raises(kg.FileFormatError, match="does not describe a valid checkpoint"):
            load(path)
    run_dir = shutil.copytree(finished, tmp_path / "run")
    shutil.copy(path, run_dir / "checkpoints" / "best-error.ckpt")
    assert "checkpoint" in command("predict", str(run_dir), "--genes", "WT", code=1)[1]


class Malicious:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


@pytest.mark.parametrize("kind", ["torch", "torch, old format", "pickle", "weights"])
def test_a_pickle_is_refused_and_not_executed(tmp_path: Path, finished: Path, command: Command, kind: str) -> None:
    canary = tmp_path / "canary"
    payload = {"state_dict": {"w": torch.ones(2)}, "evil": Malicious(canary)}
    evil = tmp_path / "evil.ckpt"
    if kind == "pickle":
        evil.write_bytes(pickle.dumps(payload))
    else:
        torch.save(
            payload["state_dict"] if kind == "weights" else payload,
            evil,
            _use_new_zipfile_serialization="old" not in kind,
        )
    directory = shutil.copytree(finished, tmp_path / "run")
    for name in ("last", "previous", "best-error", "best-score"):
        shutil.copy(evil, directory / "checkpoints" / f"{name}.ckpt")
    with pytest.raises(kg.FileFormatError, match="not a readable checkpoint"):
        load(evil)
    for arguments in (
        ["train", f"run_dir={directory}", "resume=true"],
        ["predict", str(directory), "--genes", "WT"],
        ["evaluate", str(directory)],
    ):
        _, err = command(*arguments, code=1)
        assert "not a readable checkpoint" in err
        assert "Traceback" not in err
    assert not canary.exists()
    if kind != "weights":  # the canary would have sung
        torch.load(evil, weights_only=False) if "torch" in kind else pickle.loads(evil.read_bytes())
        assert canary.exists()


def test_newest_valid(tmp_path: Path) -> None:
    with pytest.raises(kg.KnockgraphError, match=f"no checkpoint to resume from: {tmp_path} holds none; start the run"):
        newest_valid(tmp_path)
    save(tmp_path / PREVIOUS, {"step": 1})
    assert newest_valid(tmp_path) == (tmp_path / PREVIOUS, [])
    save(tmp_path / LAST, {"step": 2})
    assert newest_valid(tmp_path) == (tmp_path / LAST, [])
    (tmp_path / LAST).write_bytes((tmp_path / LAST).read_bytes()[:-1])
    path, problems = newest_valid(tmp_path)
    assert path == tmp_path / PREVIOUS
    assert len(problems) == 1
    assert LAST in problems[0]
    (tmp_path / PREVIOUS).write_bytes(b"")
    with pytest.raises(kg.KnockgraphError, match=r"no checkpoint to resume from: .*last\.ckpt.*; .*previous\.ckpt"):
        newest_valid(tmp_path)


def test_every_save_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses a bit is noticed when the checkpoint is written, not when it is needed."""
    write = checkpoints.write_container

    def lossy(path: Path, *rest: Any) -> str:
        content_hash = write(path, *rest)
        content = bytearray(Path(path).read_bytes())
        content[-1] ^= 1
        Path(path).write_bytes(content)
        return content_hash

    monkeypatch.setattr(checkpoints, "write_container", lossy)
    with pytest.raises(kg.KnockgraphError, match="damaged"):
        save(tmp_path / "x.ckpt", {"a": torch.ones(3)})
    other = tmp_path / "other.ckpt"
    monkeypatch.setattr(checkpoints, "write_container", write)
    save(other, {"a": torch.zeros(3)})
    monkeypatch.setattr(checkpoints, "write_container", lambda path, *_: shutil.copy(other, path) and "hash")
    with pytest.raises(kg.KnockgraphError, match="does not read back as it was written; check the disk"):
        save(tmp_path / "x.ckpt", {"a": torch.ones(3)})


def small_disk() -> None:
    """Every file may have 12 kB: a checkpoint of this run has more once AdamW has its moments."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))


def test_a_full_disk_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    train(config(f"run_dir={directory}"), say=lambda _: None)
    before = {name: (directory / "checkpoints" / name).read_bytes() for name in (LAST, "best-error.ckpt")}
    assert len(before[LAST]) > 12_000
    told = run(
        "train", f"run_dir={directory}", *LEAST, "resume=true", "trainer.max_epochs=3", code=1, before=small_disk
    )
    assert told.stderr.count("\n") == 1
    assert told.stderr.startswith("error: cannot write ")
    assert "file too large" in told.stderr.lower()
    path, problems = newest_valid(directory / "checkpoints")
    assert (path.read_bytes(), problems) == (before[LAST], [])
    assert (directory / "checkpoints" / "best-error.ckpt").read_bytes() == before["best-error.ckpt"]
    assert not list(directory.rglob("*.part"))
    # With room again the run goes on.
    train(config(f"run_dir={directory}", "resume=true"), say=lambda _: None, max_epochs=2)
    assert load(directory / "checkpoints" / LAST)["global_step"] == 8


def test_a_folder_that_cannot_be_written(tmp_path: Path, command: Command) -> None:
    """Lightning 2.6.6 swallows a PermissionError here and trains on without checkpoints (#21800)."""
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "checkpoints").write_text("I am a file")
    _, err = command("train", f"run_dir={directory}", *LEAST, code=1)
    assert err.startswith("error: cannot write ")
    assert err.count("\n") == 1
    assert not (directory / "result.json").exists()


def test_a_damaged_last_never_takes_the_place_of_the_previous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the renaming and the writing of the next save would leave no checkpoint at all."""
    directory = tmp_path / "run"
    train(config(f"run_dir={directory}", "trainer.checkpoint_every_n_steps=1"), say=lambda _: None)
    folder = directory / "checkpoints"
    good = (folder / PREVIOUS).read_bytes()
    (folder / LAST).write_bytes(b"damaged")

    class Killed(BaseException):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    monkeypatch.setattr(checkpoints, "save", killed)
    with pytest.raises(Killed):
        train(config(f"run_dir={directory}", "resume=true"), say=lambda _: None, max_epochs=2)
    assert (folder / PREVIOUS).read_bytes() == good
    assert newest_valid(folder)[0] == folder / PREVIOUS


@pytest.mark.parametrize("kind", ["newer", "damaged"])
def test_a_checkpoint_is_never_deleted(tmp_path: Path, kind: str) -> None:
    """One of a newer version, say: upgrading knockgraph brings it back."""
    directory = tmp_path / "run"
    train(config(f"run_dir={directory}", "trainer.checkpoint_every_n_steps=1"), say=lambda _: None)
    last = directory / "checkpoints" / LAST
    contents = []
    for epochs in (2, 3):
        if kind == "newer":
            write_container(last, checkpoints.FORMAT, checkpoints.VERSION + 1, {"state": epochs}, {})
        else:
            last.write_bytes(b"damaged %d" % epochs)
        contents.append(last.read_bytes())
        said: list[str] = []
        train(config(f"run_dir={directory}", "resume=true"), say=said.append, max_epochs=epochs)
        assert f"kept as {last.parent}/last-unread-{epochs - 1}.ckpt" in said
    assert [(last.parent / f"last-unread-{n}.ckpt").read_bytes() for n in (1, 2)] == contents
    assert load(last)["global_step"] == 12


def test_a_checkpoint_of_something_else(tmp_path: Path, finished: Path) -> None:
    directory = shutil.copytree(finished, tmp_path / "run")
    save(directory / "checkpoints" / LAST, {"weights": torch.ones(2)})
    with pytest.raises(kg.FileFormatError, match=r"last\.ckpt is a checkpoint, but not one that a run can be resumed"):
        train(config(f"run_dir={directory}", "resume=true"), say=lambda _: None)


def test_an_unreadable_file_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ckpt"
    save(path, {"a": 1})
    path.chmod(0)

    def refused(*_: Any) -> None:  # whoever may do everything may also read it
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(kg.FileFormatError, match=f"cannot read {path}: permission denied"):
        load(path)


def test_checkpoints_of_a_run(finished: Path) -> None:
    folder = finished / "checkpoints"
    assert {p.name for p in folder.iterdir()} == {LAST, PREVIOUS, "best-error.ckpt", "best-score.ckpt"}
    state = load(folder / LAST)
    assert state["global_step"] == 16
    assert not [name for name in weights(finished) if name.startswith("strategy.")]  # tables stay out of it


@pytest.mark.parametrize(
    "name", ["runs/my", "my run", "a[1]", "it's", "δ", "a,b=c", "{q}", "$HOME", "tail\\", "x'y\"\\'"]
)
def test_the_command_that_continues_a_run_is_one(name: str) -> None:
    """``run_dir=my run [1]`` is two words for a shell and no value for Hydra."""
    first, second, *words = shlex.split(resume_command(Path(name)))
    assert (first, second) == ("knockgraph", "train")
    found = compose(words)
    assert (found.run_dir, found.resume) == (name, True)


def test_the_last_is_there_while_the_next_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``predict --checkpoint last`` of a run that trains found none, for as long as the next took to be written."""
    folder, found = tmp_path / "run/checkpoints", []
    read = checkpoints.read_container

    def watched(path: Any, *given: Any) -> Any:
        if Path(path).name == NEXT:
            found.append([name for name in (LAST, PREVIOUS) if (folder / name).is_file()])
            files = [file.stat().st_ino for file in folder.iterdir()]
            assert len(set(files)) == len(files)  # damage to one file is damage to one checkpoint
        return read(path, *given)

    monkeypatch.setattr(checkpoints, "read_container", watched)
    train(config(f"run_dir={tmp_path}/run", "trainer.checkpoint_every_n_steps=1"), say=lambda _: None)
    assert found[:2] == [[], [LAST]]
    assert len(found) > 3
    assert all(names == [LAST, PREVIOUS] for names in found[2:])
    last, previous = (load(folder / name) for name in (LAST, PREVIOUS))
    assert (last["global_step"], previous["global_step"]) == (4, 4)  # before and after the validation
    assert not list(folder.glob(".*"))


def test_a_next_checkpoint_that_is_damaged_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read back before it takes the place of a good one."""
    directory = tmp_path / "run"
    train(config(f"run_dir={directory}", "trainer.checkpoint_every_n_steps=1"), say=lambda _: None)
    folder = directory / "checkpoints"
    before = {name: (folder / name).read_bytes() for name in (LAST, PREVIOUS)}
    write = checkpoints.write_container

    def lossy(path: Path, *rest: Any) -> str:
        content_hash = write(path, *rest)
        Path(path).write_bytes(Path(path).read_bytes()[:-1])
        return content_hash

    monkeypatch.setattr(checkpoints, "write_container", lossy)
    with pytest.raises(kg.KnockgraphError, match="damaged"):
        train(config(f"run_dir={directory}", "resume=true"), say=lambda _: None, max_epochs=2)
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert newest_valid(folder) == (folder / LAST, [])


def test_make_last(tmp_path: Path) -> None:
    def steps() -> dict[str, int]:
        return {path.name: load(path)["step"] for path in tmp_path.iterdir()}

    save(tmp_path / NEXT, {"step": 1})
    assert not checkpoints.any_saved(tmp_path)
    with pytest.raises(kg.KnockgraphError, match="holds none"):
        newest_valid(tmp_path)
    checkpoints.make_last(tmp_path)
    assert steps() == {LAST: 1}
    save(tmp_path / NEXT, {"step": 2})
    (tmp_path / f".{NEXT}.x1.part").touch()  # of a kill while another was written
    checkpoints.make_last(tmp_path)
    assert steps() == {LAST: 2, PREVIOUS: 1}
    (tmp_path / PREVIOUS).unlink()
    (tmp_path / PREVIOUS).hardlink_to(tmp_path / LAST)  # as earlier versions did
    save(tmp_path / NEXT, {"step": 3})
    checkpoints.make_last(tmp_path)
    assert steps() == {LAST: 3, PREVIOUS: 2}
    assert checkpoints.find(tmp_path, "last") == tmp_path / LAST
    (tmp_path / LAST).unlink()
    assert checkpoints.find(tmp_path, "last") == tmp_path / PREVIOUS
