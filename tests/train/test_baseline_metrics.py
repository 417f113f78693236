"""Baselines alone, through the same code as the evaluation of a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from knockgraph import KnockgraphError
from knockgraph.evaluate import compare_baselines
from knockgraph.models.baselines.boosting import Boosting, MissingPackageError
from knockgraph.train.config import compose


def test_the_command(command: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    words = ["data.experiments=1500", "--only", "low-rank", "--only", "boosting", "--json", tmp_path / "b.json"]
    assert "boosting  pearson" in command("baselines", *words)[0]
    found = json.loads((tmp_path / "b.json").read_text())
    assert list(found["metrics"]) == ["low-rank", "boosting"]
    assert found["experiments"] == {"train": 1200, "val": 150, "test": 150}
    assert found["split"]["kind"] == "genotype"
    _, err = command("baselines", "--only", "magic", code=1)
    assert "there is no baseline 'magic'; use one of mean, additive" in err


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
