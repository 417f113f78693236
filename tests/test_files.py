"""JSON files that any reader takes."""

import json
from pathlib import Path

from knockgraph.files import finite, write_json


def test_a_number_that_is_not_finite_is_null(tmp_path: Path) -> None:
    """Python would write NaN, which JSON does not have."""
    write_json(tmp_path / "x.json", {"a": [1.5, float("nan")], "b": {"c": (float("-inf"), "É")}})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert "É" in text
    assert json.loads(text, parse_constant=lambda name: 1 / 0) == {"a": [1.5, None], "b": {"c": [None, "É"]}}


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    write_json(None, {"a": 1})
    assert not list(tmp_path.iterdir())


def test_finite_leaves_the_original_alone() -> None:
    data = {"a": [float("inf")], "n": 3, "s": "nan"}
    assert finite(data) == {"a": [None], "n": 3, "s": "nan"}
    assert data["a"] == [float("inf")]
