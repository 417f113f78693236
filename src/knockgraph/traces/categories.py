"""The category of each event of a trace: ordered rules, read from a file."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from knockgraph.errors import KnockgraphError

BUILT_IN = Path(__file__).with_name("categories.toml")
UNMATCHED = "unmatched"
IDLE = "idle"
_RULE_KEYS = {"category", "on", "name", "cat", "inside", "phase"}
_FILE_KEYS = {"categories", "gaps", "filled_by", "syncs", "items", "rule"}


@dataclass(frozen=True)
class Rule:
    """One rule: which events it matches, and their category."""

    category: int
    device: bool
    phase: bool
    name: re.Pattern[str] | None
    cat: frozenset[str] | None
    inside: re.Pattern[str] | None

    def fits(self, name: str, cat: str, device: bool) -> bool:
        """Whether it matches an event, apart from the enclosing events."""
        return (
            self.device == device
            and (self.cat is None or cat in self.cat)
            and (self.name is None or self.name.search(name) is not None)
        )


@dataclass(frozen=True)
class Verdict:
    """The decision of a rule about an event."""

    category: int
    phase: bool


class Categories:
    """The categories of a file and their rules.

    The number of a category is its position in :attr:`names`; the last one is ``unmatched``.

    Args:
        path: A TOML file like ``categories.toml``, which is the default.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or BUILT_IN
        document = self._load()
        names = self._texts(document, "categories", "")
        if not names or len({*names, UNMATCHED, IDLE}) != len(names) + 2:
            self._refuse(f"'categories' must list names, each once, without {UNMATCHED!r} and {IDLE!r}")
        self.names: tuple[str, ...] = (*names, UNMATCHED)
        self.unmatched = len(names)
        self.gaps = frozenset(self._category(name, "gaps") for name in self._texts(document, "gaps", ""))
        filled_by = self._texts(document, "filled_by", "")
        self.filled_by = frozenset(self._category(name, "filled_by") for name in filled_by)
        self._syncs = self._pattern(document, "syncs", "")
        self._items = self._pattern(document, "items", "")
        tables = document.get("rule", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._refuse("rules are written as [[rule]]")
        self.rules = tuple(self._rule(table, place) for place, table in enumerate(tables, 1))
        self._inside = [rule for rule in self.rules if rule.inside is not None]

    def is_sync(self, name: str) -> bool:
        """Whether a host call of this name waits for the device."""
        return self._syncs is not None and self._syncs.search(name) is not None

    def is_item(self, name: str) -> bool:
        """Whether an operator of this name reads a single value to the host."""
        return self._items is not None and self._items.search(name) is not None

    def enclosing_bits(self, name: str) -> int:
        """For which rules with ``inside`` an event of this name is one to be inside of; one bit each."""
        bits = 0
        for place, rule in enumerate(self._inside):
            assert rule.inside is not None
            if rule.inside.search(name):
                bits |= 1 << place
        return bits

    def candidates(self, name: str, cat: str, device: bool) -> list[tuple[int, Verdict]]:
        """The matching rules, up to the first unconditional one, each with the bit of what must enclose it (0:
        nothing).
        """
        found = []
        for rule in self.rules:
            if rule.fits(name, cat, device):
                bit = 0 if rule.inside is None else 1 << self._inside.index(rule)
                found.append((bit, Verdict(rule.category, rule.phase)))
                if not bit:
                    break
        return found

    def _load(self) -> dict[str, Any]:
        try:
            with self.path.open("rb") as file:
                document = tomllib.load(file)
        except OSError as error:
            reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror).lower()
            raise KnockgraphError(f"cannot read the categories {self.path}: {reason}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise KnockgraphError(
                f"the categories {self.path} are not valid TOML ({error}); correct the file"
            ) from error
        if unknown := set(document) - _FILE_KEYS:
            self._refuse(f"{sorted(unknown)[0]!r} is not known; use {', '.join(sorted(_FILE_KEYS))}")
        return document

    def _rule(self, table: dict[str, Any], place: int) -> Rule:
        where = f"rule {place}: "
        if unknown := set(table) - _RULE_KEYS:
            self._refuse(f"{where}{sorted(unknown)[0]!r} is not known; use {', '.join(sorted(_RULE_KEYS))}")
        on, phase = table.get("on", "host"), table.get("phase", False)
        if on not in ("host", "device"):
            self._refuse(f'{where}\'on\' is {on!r}; use "host" or "device"')
        if not isinstance(phase, bool):
            self._refuse(f"{where}'phase' is {phase!r}; use true or false")
        if not {"name", "cat", "inside"} & set(table):
            self._refuse(f"{where}it matches everything; give it a 'name', a 'cat' or an 'inside'")
        if on == "device" and (phase or "inside" in table):
            self._refuse(
                f"{where}nothing runs inside a kernel; leave 'phase' and 'inside' out where 'on' is \"device\""
            )
        cats = self._texts(table, "cat", where)
        return Rule(
            self._category(table.get("category"), f"{where}category"),
            on == "device",
            phase,
            self._pattern(table, "name", where),
            frozenset(cat.lower() for cat in cats) if "cat" in table else None,
            self._pattern(table, "inside", where),
        )

    def _category(self, name: Any, where: str) -> int:
        if name not in self.names[:-1]:
            self._refuse(f"{where}: {name!r} is not one of 'categories'; add it there")
        return self.names.index(name)

    def _pattern(self, table: dict[str, Any], key: str, where: str) -> re.Pattern[str] | None:
        patterns = self._texts(table, key, where)
        for pattern in patterns:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # patterns that a later Python will read differently
                    re.compile(pattern)
            except (re.error, FutureWarning, OverflowError, RecursionError) as error:
                self._refuse(f"{where}{key} {pattern!r} is not a regular expression ({error})")
        return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None

    def _texts(self, table: dict[str, Any], key: str, where: str) -> Sequence[str]:
        texts = table.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            self._refuse(f"{where}{key!r} must be a list of strings")
        if key in table and not texts and key in _RULE_KEYS:
            self._refuse(f"{where}{key!r} is an empty list, which matches nothing; fill it or leave it out")
        return list(texts)

    def _refuse(self, what: str) -> NoReturn:
        raise KnockgraphError(f"the categories {self.path}: {what}")
