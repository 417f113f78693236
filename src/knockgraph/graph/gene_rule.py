"""Gene rules of metabolic models: ``"(A and B) or C"`` as the list of gene complexes that can run the reaction."""

from __future__ import annotations

import re

from knockgraph.errors import GraphError

MAX_COMPLEXES = 10_000
"""Maximum number of complexes per rule; ``(A or B) and (C or D) and …`` doubles them with every bracket."""

MAX_GENES_WRITTEN = 1_000_000
"""Maximum number of gene names in an expanded rule; limits time and memory for malicious rules."""

MAX_DEPTH = 100
"""Maximum nesting of parentheses; well below Python's own recursion limit."""

# A complex is a set of genes; a dict keeps the complexes distinct and in the order of the rule.
_Complexes = dict[frozenset[str], None]

_WORD = re.compile(r"\s*(\(|\)|&&?|\|\|?|[^\s()&|]+)")
_OPERATORS = {"and": "and", "&": "and", "&&": "and", "or": "or", "|": "or", "||": "or"}


def complexes(rule: str) -> tuple[tuple[str, ...], ...]:
    """Disjunctive normal form of a gene rule: the reaction runs if *all* genes of *one* complex are present.

    ``and`` binds tighter than ``or``; both are case-insensitive and may be written ``&`` and ``|``. Only equal
    complexes are merged: ``A or (A and B)`` keeps both as two enzymes, although survival depends on the first alone.

    Args:
        rule: The rule as published, for instance ``"(YDL174C and YEL039C) or YJR048W"``. Blank means no genes.

    Returns:
        The distinct complexes in the order of the rule, each a sorted tuple of distinct names; ``()`` without genes.

    Raises:
        GraphError: The text is not a rule (says where and what to write), or expands to too many complexes.

    >>> complexes("(A and B) or C")
    (('A', 'B'), ('C',))
    >>> complexes("A & (B | C-1)")
    (('A', 'B'), ('A', 'C-1'))
    >>> complexes(" ")
    ()
    """
    if not rule.strip():
        return ()
    return tuple(tuple(sorted(genes)) for genes in _Parser(rule).parse())


class _Parser:
    """Recursive descent over the grammar ``any := all (or all)*; all := part (and part)*; part := gene | ( any )``."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        self.words = [(match[1], match.start(1)) for match in _WORD.finditer(rule)]
        self.at = 0
        self.written = 0

    def parse(self) -> _Complexes:
        result = self._any(depth=0)
        if self._word == ")":
            raise self._error("has no matching '('; remove it or open one before")
        if self._word is not None:
            raise self._error("should be 'and' or 'or'; write one between two genes")
        return result

    @property
    def _word(self) -> str | None:
        return self.words[self.at][0] if self.at < len(self.words) else None

    def _takes(self, operator: str) -> bool:
        found = _OPERATORS.get((self._word or "").lower()) == operator
        self.at += found
        return found

    def _any(self, depth: int) -> _Complexes:
        result = self._all(depth)
        while self._takes("or"):
            result.update(self._all(depth))
            self._check_count(len(result))
        return result

    def _all(self, depth: int) -> _Complexes:
        # What every complex shares is added once, at the end: a long plain chain of "and" then costs linear time.
        shared: set[str] = set()
        result: _Complexes = {frozenset(): None}
        while True:
            part = self._part(depth)
            if len(part) == 1:
                shared.update(*part)
            else:
                result = self._product(result, part)
            if not self._takes("and"):
                return self._product(result, {frozenset(shared): None})

    def _part(self, depth: int) -> _Complexes:
        word = self._word
        if word is None:
            raise self._error("a gene name or '(' is missing; add it or remove the operator before")
        if word == ")" or word.lower() in _OPERATORS:
            raise self._error("should be a gene name or '('; add one or remove this")
        if word != "(":
            self.at += 1
            return {frozenset((word,)): None}
        if depth == MAX_DEPTH:
            raise self._error(f"opens more than {MAX_DEPTH} nested parentheses; write the rule with fewer")
        opened = self.at
        self.at += 1
        result = self._any(depth + 1)
        if self._word is None:
            self.at = opened
            raise self._error("is never closed; add the missing ')'")
        if self._word != ")":
            raise self._error("should be 'and', 'or' or ')'; write an operator between two genes")
        self.at += 1
        return result

    def _product(self, left: _Complexes, right: _Complexes) -> _Complexes:
        self._check_count(len(left) * len(right))
        self.written += len(left) * sum(map(len, right)) + len(right) * sum(map(len, left))
        if self.written > MAX_GENES_WRITTEN:
            raise GraphError(
                f"gene rule {self._excerpt(0)} expands to more than {MAX_GENES_WRITTEN:,} gene names; "
                "split the reaction or shorten its rule"
            )
        return {first | second: None for first in left for second in right}

    def _check_count(self, count: int) -> None:
        if count > MAX_COMPLEXES:
            raise GraphError(
                f"gene rule {self._excerpt(0)} expands to more than {MAX_COMPLEXES:,} complexes; "
                "split the reaction or shorten its rule"
            )

    def _excerpt(self, position: int) -> str:
        start = max(0, position - 40)
        end = position + 40
        return repr("…" * (start > 0) + self.rule[start:end] + "…" * (end < len(self.rule)))

    def _error(self, problem: str) -> GraphError:
        if self._word is None:
            return GraphError(f"gene rule {self._excerpt(len(self.rule))}: at its end, {problem}")
        word, position = self.words[self.at]
        shown = word if len(word) <= 40 else word[:40] + "…"
        return GraphError(f"gene rule {self._excerpt(position)}: {shown!r} at position {position} {problem}")
