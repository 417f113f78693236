"""Every command and every Python block in the README and the docs runs."""

import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from training_runs import KNOCKGRAPH, execute, forget, run

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SET_UP = ("make", "git", "cd", "pip", "source", "sbatch", "torchrun")  # run by the newcomer test and by CI itself
# Typed by a newcomer: each command is a real start of the program once; more of them would be most of the time.
FRESH = ("start.md",)
SLOW = "slow"  # ```bash slow: run by the full tier only
GPU = "gpu"  # ```bash gpu: needs a CUDA device


def blocks(page: Path, language: str) -> list[tuple[str, str]]:
    return [(tag.strip(), text) for kind, tag, text in BLOCK.findall(page.read_text()) if kind == language]


def commands(page: Path, slow: bool) -> list[str]:
    found = []
    for tag, text in blocks(page, "bash"):
        if tag == GPU or (tag == SLOW) != slow:
            continue
        joined = text.replace("\\\n", " ")
        found += [line.strip() for line in joined.splitlines() if line.strip() and not line.strip().startswith("#")]
    return found


def run_all(page: Path, folder: Path, slow: bool, fresh: Literal["all", "once", "none"]) -> None:
    shutil.copytree(ROOT / "docs" / "example", folder / "docs" / "example")  # as in a clone
    started = set()
    for command in commands(page, slow):
        words = shlex.split(command, comments=True)
        if words[0] in SET_UP:
            continue
        assert words[0] in ("knockgraph", "python"), f"{page.name}: {command}"
        real = fresh == "all" or (fresh == "once" and words[1] not in started)
        started.add(words[1])
        if words[0] == "knockgraph" and not real:
            done = run(*words[1:], cwd=folder, code=None, before=forget)
        else:
            call = [*KNOCKGRAPH, *words[1:]] if words[0] == "knockgraph" else [sys.executable, *words[1:]]
            done = subprocess.run(call, cwd=folder, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{page.name}: {command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page: Path, tmp_path: Path) -> None:
    run_all(page, tmp_path, slow=False, fresh="once" if page.name in FRESH else "none")


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize("slow", [False, True])
def test_commands_in_fresh_processes(page: Path, slow: bool, tmp_path: Path) -> None:
    run_all(page, tmp_path, slow, fresh="all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks(page: Path, tmp_path: Path) -> None:
    code = "\n".join(text for tag, text in blocks(page, "python") if tag != GPU)
    if not code.strip():
        pytest.skip(f"{page.name} has no Python block")
    done = run(cwd=tmp_path, code=None, before=partial(execute, code))
    assert done.returncode == 0, f"{page.name}\n{done.stderr}"


def test_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_links_between_pages_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.full
def test_newcomer_makes_the_demo_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    for _ in range(2):  # the second time nothing is installed again
        done = subprocess.run(["make", "demo"], cwd=clone, capture_output=True, text=True, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "experiments" in done.stdout
    assert "pip install" not in done.stdout
