"""Options are checked against the signature of what they belong to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from knockgraph import registry
from knockgraph.errors import KnockgraphError
from knockgraph.options import check_options, fits, in_words


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [3, -1], [3.0, True, "3", None]),
        (float, [3, 0.5, float("inf")], [True, "0.5", None, [1.0]]),
        (bool, [True, False, 0, 1], ["true", 2, None, 1.0]),
        (str, ["", "x"], [1, None, ["x"]]),
        (int | None, [3, None], ["3"]),
        (Literal["a", "b"], ["a", "other"], [1, None]),
        (Sequence[str], [["a"], ("a", "b"), []], ["a", [1], None, 3]),
        (Mapping[str, float], [{"a": 1}, {}], [["a"], {"a": "b"}, {1: 1.0}]),
        (float | Sequence[float] | None, [1, [1.0], None], ["a", ["a"], [[1.0]]]),
        (Any, [object()], []),
    ],
)
def test_what_fits_a_type(hint: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(fits(value, hint) for value in good)
    assert not any(fits(value, hint) for value in bad)
    assert in_words(hint)


def test_every_class_chosen_by_name_says_its_types() -> None:
    """A class whose annotations cannot be read would take any value."""
    chosen = ("model", "loss", "strategy", "baseline")
    kinds = [registry.find(kind, name) for kind in chosen for name in registry.BUILT_IN[kind]]
    for kind in kinds:
        with pytest.raises(KnockgraphError, match="it has"):
            check_options("it", kind, {"no such option": 1}, KnockgraphError)
    for name in ("channels", "messages.layers", "readout.dropout", "input.norm", "messages.relations"):
        group, _, option = name.rpartition(".")
        given = {option: object()}
        with pytest.raises(KnockgraphError, match=f"the option {name} is"):
            check_options("it", kinds[0], {group: given} if group else given, KnockgraphError)


@dataclass(frozen=True)
class Part:
    size: int = 1
    names: tuple[str, ...] = ()


class Whole:
    def __init__(self, part: Part = Part(), more: int = 0) -> None: ...  # noqa: B008


def test_a_group_of_options() -> None:
    made = check_options("it", Whole, {"part": {"size": 3}, "more": 2}, KnockgraphError)
    assert made == {"part": Part(3), "more": 2}
    assert check_options("it", Whole, {"part": Part(4)}, KnockgraphError) == {"part": Part(4)}
    for wrong, match in (
        ({"part": {"sise": 3}}, r"it has no option 'part.sise' \(did you mean 'size'\?\); part has size, names"),
        ({"part": {"size": "x"}}, "it: the option part.size is 'x', but an integer is needed"),
        ({"part": 3}, r"it: the option part is 3, but a group of options \(size, names\) is needed"),
    ):
        with pytest.raises(KnockgraphError, match=match):
            check_options("it", Whole, wrong, KnockgraphError)
