"""Baselines alone, through the same code as the evaluation of a model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from knockgraph import KnockgraphError
from knockgraph.evaluate import compare_baselines
from knockgraph.models.baselines.boosting import Boosting, MissingPackageError
from knockgraph.train.config import compose


def test_the_command(tmp_path: Path) -> None:
    call = [sys.executable, "-W", "ignore", "-c", "from knockgraph.cli import main; main()", "baselines"]
    words = ["data.experiments=1500", "--only", "low-rank", "--only", "boosting", "--json", "b.json"]
    done = subprocess.run([*call, *words], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "boosting  pearson" in done.stdout
    found = json.loads((tmp_path / "b.json").read_text())
    assert list(found["metrics"]) == ["low-rank", "boosting"]
    assert found["experiments"] == {"train": 1200, "val": 150, "test": 150}
    assert found["split"]["kind"] == "genotype"
    done = subprocess.run([*call, "--only", "magic"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "there is no baseline 'magic'; use one of mean, additive" in done.stderr


def test_a_missing_package_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(self: Boosting, *_: object) -> None:
        raise MissingPackageError("it needs scikit-learn")

    monkeypatch.setattr(Boosting, "_fit", fit)
    said: list[str] = []
    found = compare_baselines(compose(["data.experiments=500"]), ["mean", "boosting", "additive"], "val", said.append)
    assert list(found["metrics"]) == ["mean", "additive"]
    assert said[0] == "boosting is left out: it needs scikit-learn"
    with pytest.raises(KnockgraphError, match="there is no part 'all'; use train, val, test"):
        compare_baselines(compose(["data.experiments=500"]), ["mean"], "all", said.append)
