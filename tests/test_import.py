"""Importing knockgraph is light: it adds little to torch and pulls in no heavy library."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

import knockgraph

HEAVY = ("hydra", "lmdb", "pyarrow", "matplotlib", "torch_geometric", "pandas", "scipy", "triton")
LATER = ("Fitted", "PerturbationDataset", "demo_cell", "demo_screen", "fit", "load")
LATER += ("yeast_scale_cell", "yeast_scale_screen")
MEASURE = (
    f"LATER = {LATER}"
    + """
import json, sys, time
import torch
before = set(sys.modules)
start = time.process_time()  # the machine may be busy, the import may not be slow
import knockgraph
for name in knockgraph.__all__:
    if name not in LATER:
        getattr(knockgraph, name)
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "new": sorted({m.split(".")[0] for m in set(sys.modules) - before})}))
"""
)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_import_pulls_in_nothing_heavy(measured: dict[str, Any]) -> None:
    assert "knockgraph" in measured["new"]
    assert set(measured["new"]) & set(HEAVY) == set()


def test_import_costs_less_than_half_a_second_on_top_of_torch(measured: dict[str, Any]) -> None:
    assert measured["seconds"] < 0.5


def test_every_public_name_is_there() -> None:
    assert sorted(knockgraph.__all__) == knockgraph.__all__
    for name in knockgraph.__all__:
        assert getattr(knockgraph, name) is not None


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match="module 'knockgraph' has no attribute 'nonsense'"):
        knockgraph.nonsense  # noqa: B018


def test_every_error_is_public() -> None:
    errors = {name for name in knockgraph.__all__ if name.endswith("Error")}
    assert all(issubclass(getattr(knockgraph, name), knockgraph.KnockgraphError) for name in errors)
    assert errors == {name for name in vars(knockgraph.errors) if name.endswith("Error")}
    elsewhere = re.compile(r"^class (\w+)\((\w*Error)\b", re.MULTILINE)
    folder = Path(knockgraph.__file__).parent
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path.name != "errors.py"}
    defined = {name: base for text in texts.values() for name, base in elsewhere.findall(text)}
    assert {name for name, base in defined.items() if base in errors} == set()


def test_every_imported_package_is_asked_for() -> None:
    """The command line imported click, which came with a package that is only for development."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.sub(r"[-_.]+", "-", one.partition(">")[0]).lower() for one in project["dependencies"]}
    optional = {"cobra", "lmdb", "polars", "python_calamine", "sklearn", "triton"}
    where = packages_distributions()
    for path in Path(knockgraph.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
        for top in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"knockgraph"} - optional:
            from_ = {re.sub(r"[-_.]+", "-", name).lower() for name in where.get(top, ())}
            assert from_ & asked, f"{path.name} imports {top}, which pyproject.toml does not ask for"


def test_nothing_else_shows() -> None:
    """``dir(kg)`` listed ``Any`` and ``import_module``, and ``kg.nn`` was missing until somebody imported it."""
    program = "import knockgraph as kg; print(*dir(kg)); print(kg.nn.GINConv, kg.models.create, kg.losses.create)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shown = {name for name in done.stdout.splitlines()[0].split() if not name.startswith("__")}
    assert shown == set(knockgraph.__all__)


@pytest.mark.parametrize("statement", ["import knockgraph", "import knockgraph.cli"])
def test_nothing_is_imported_before_it_is_used(statement: str) -> None:
    """Help and tab completion took two seconds, for torch."""
    program = f"import sys; {statement}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_names_are_listed_before_they_are_used() -> None:
    program = "import knockgraph; print(set(knockgraph.__all__) <= set(dir(knockgraph)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("knockgraph be", {"bench", "benchmark"}),
        ("knockgraph bench ", {"loader", "strategies", "step", "learn", "tune"}),
        ("knockgraph bench step --scale ", {"demo", "yeast", "human"}),
        ("knockgraph bench step --sca", {"--scale"}),
    ],
)
def test_tab_completion(line: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_KNOCKGRAPH_COMPLETE": "complete_bash"}
    program = "import sys; sys.argv = ['knockgraph']; from knockgraph.cli import main; main()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **words})
    assert set(done.stdout.split()) == offered, done.stderr
