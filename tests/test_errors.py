"""The text of an error is one line that a terminal only shows."""

import pickle

import pytest

from knockgraph import FileFormatError, KnockgraphError, UnknownGeneError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ε ≥ 1 × 2", "plain, ε ≥ 1 × 2"),
        ("first\n  second\n\nthird", "first second third"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\rb\x0bc\x1ed\u2028e\x85f", r"a\rb\x0bc\x1ed\u2028e\x85f"),
        ("\ud800\x00", r"\ud800\x00"),
        ("", ""),
    ],
)
def test_one_printable_line(text: str, shown: str) -> None:
    for kind in (KnockgraphError, FileFormatError, UnknownGeneError):
        assert str(kind(text)) == shown
        assert str(pickle.loads(pickle.dumps(kind(text)))) == shown


def test_names_stay_as_they_are() -> None:
    error = UnknownGeneError("no\n", ["A\n", "B"])
    assert (str(error), error.names) == ("no", ("A\n", "B"))
