"""Prediction imports what it uses: a genotype takes a moment, and the imports were most of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from knockgraph import CellGraph

UNUSED = (
    "hydra",
    "lightning",
    "lmdb",
    "matplotlib",
    "pandas",
    "pyarrow",
    "scipy",
    "sympy",
    "tensorboard",
    "torch._dynamo",
    "torch._inductor",
    "torch_geometric",
    "torchmetrics",
    "triton",
)
PROGRAM = """
import json, sys
from knockgraph.cli import main
sys.argv = ["knockgraph", *json.loads(sys.argv[1])]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(json.dumps(sorted(sys.modules)))
"""


# Of more than a few, the memory is asked how large a batch may be.
@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.full), 6])
def test_predict_imports_only_what_it_uses(count: int, finished: Path) -> None:
    genes = CellGraph.load(finished / "cell.cellgraph").genes[: count + 1]
    genotypes = [f"{genes[0]}+{genes[1]}", *genes[2:]]
    words = ["predict", str(finished), *(word for genotype in genotypes for word in ("--genes", genotype))]
    command = [sys.executable, "-c", PROGRAM, json.dumps(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *shown, modules = done.stdout.splitlines()
    assert [line.split("\t")[0] for line in shown] == ["genotype", *genotypes]
    assert "knockgraph.predict" in json.loads(modules)
    assert [name for name in UNUSED if name in json.loads(modules)] == []
