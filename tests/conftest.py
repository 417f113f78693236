"""What must hold before any test module is imported."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

collect_ignore = ["other_package"]  # it is installed by a test, as somebody else's package would be

# Triton reads this once, when it is imported, and PyG imports it: some other test may do so long before tests/ops.
if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Continuous integration checks a change, it does not search: the same examples for the same code. Locally, and with
# `make test-full`, hypothesis draws new ones each time.
if os.environ.get("CI"):
    from hypothesis import settings

    settings.register_profile("ci", derandomize=True)
    settings.load_profile("ci")


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """A test sees the same random numbers whatever ran before it, and in whichever process."""
    torch.manual_seed(0)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """The command line in this process: exit code checked, standard output and standard error returned."""
    from knockgraph import cli

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["knockgraph", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, (arguments, ended.value.code, out, err)
        return out, err

    return run


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process draw no report: its pictures take longer than so small a run."""
    monkeypatch.setattr("knockgraph.run.write_report", lambda *_: None)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real browser for the tests of pages; each opens tabs of its own."""
    from browser import Browser, chromium  # beside these tests

    program = chromium()
    if program is None:
        pytest.skip("no Chromium: install it (Debian: chromium), or name it in KNOCKGRAPH_CHROMIUM")
    with Browser(program, tmp_path_factory.mktemp("chromium")) as started:
        yield started


@pytest.fixture(autouse=True)
def registered_names_are_forgotten() -> Iterator[None]:
    """What a test registers is not there for the next one."""
    from knockgraph import registry

    before = {kind: dict(found) for kind, found in registry._registered.items()}
    yield
    for kind, found in registry._registered.items():
        found.clear()
        found.update(before.get(kind, {}))
