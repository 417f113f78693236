"""The models are tiny and the cores are shared."""

import sys
from collections.abc import Callable

import pytest
import torch

from knockgraph import cli

torch.set_num_threads(1)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """The command line in this process: exit code checked, standard output and standard error returned."""

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["knockgraph", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, (arguments, ended.value.code, out, err)
        return out, err

    return run
