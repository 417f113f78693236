"""One bar for the whole run on a terminal, a line per epoch elsewhere."""

import os
import pty
import re
import sys
from functools import partial
from pathlib import Path
from select import select

from training_runs import LEAST, Started, config, forget

from knockgraph.run import train

SHORT = [word for word in LEAST if not word.startswith(("trainer.max_epochs", "trainer.progress_bar"))]


def test_a_line_per_epoch_without_a_terminal(tmp_path: Path) -> None:
    said: list[str] = []
    train(
        config(*SHORT, "trainer.max_epochs=3", f"run_dir={tmp_path / 'run'}", "trainer.progress_bar=true"), said.append
    )
    lines = [line for line in said if line.startswith("epoch ")]
    figures = r"loss [\d.e+-]+, validation pearson [\d.e+-]+ mse [\d.e+-]+, [\d.]+ s for the epoch"
    assert re.fullmatch(rf"epoch 1/3: {figures}, [\d.]+ s left", lines[0])
    assert re.fullmatch(rf"epoch 3/3: {figures}", lines[2])
    assert len(lines) == 3


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    words = [*SHORT, f"run_dir={tmp_path / 'run'}", "trainer.progress_bar=true"]
    train(config(*words, "trainer.max_epochs=1"), lambda _: None)
    said: list[str] = []
    more = ["trainer.max_epochs=3", "resume=true"]
    train(config(*words, *more), said.append, overrides=[*words, *more])
    assert [line.partition(":")[0] for line in said if line.startswith("epoch ")] == ["epoch 2/3", "epoch 3/3"]


def errors_to(terminal: str) -> None:
    os.dup2(os.open(terminal, os.O_WRONLY | os.O_NOCTTY), 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)  # the one before takes its place for a file
    forget()


def test_one_bar_on_a_terminal(tmp_path: Path) -> None:
    shown, terminal = pty.openpty()
    words = ["train", *SHORT, "trainer.max_epochs=4", f"run_dir={tmp_path / 'run'}", "trainer.progress_bar=true"]
    variables = {"TERM": "xterm", "COLUMNS": "160"}
    run = Started(*words, variables=variables, before=partial(errors_to, os.ttyname(terminal)))
    text = b""
    while run.process.is_alive() or select([shown], [], [], 0)[0]:
        if select([shown], [], [], 0.1)[0]:
            text += os.read(shown, 1 << 16)
    os.close(terminal)
    os.close(shown)
    assert "epoch " not in run.wait().stdout
    bar = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode())
    assert "epoch 1/4" in bar
    assert re.search(r"epoch 4/4 .*loss [\d.e+-]+, validation pearson [\d.e+-]+ mse", bar)
    assert re.search(r"[\d.]+ s left", bar)
    assert "\n" not in bar.strip()  # one line, written over and over, and taken away in the end
