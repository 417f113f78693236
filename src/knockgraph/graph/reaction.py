"""A reaction as a metabolic model publishes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from knockgraph.errors import GraphError


@dataclass(frozen=True)
class Reaction:
    """One reaction as a metabolic model publishes it, before it becomes one or more nodes of the graph.

    Args:
        id: Its unique name, for instance ``r_0001``.
        stoichiometry: Metabolite name → coefficient, negative if consumed.
        lower_bound: Smallest flux; below zero the reaction can run backwards.
        upper_bound: Largest flux.
        gene_rule: The genes it needs, as in :func:`knockgraph.graph.gene_rule.complexes`; blank for none.
        growth: Whether it is a growth reaction (of the subsystem "Growth", or making or taking up biomass).
    """

    id: str
    stoichiometry: Mapping[str, float]
    lower_bound: float = 0.0
    upper_bound: float = 1000.0
    gene_rule: str = ""
    growth: bool = False

    def __post_init__(self) -> None:
        if not self.id:
            raise GraphError("a reaction has an empty id; give every reaction a name")
        # Written so that NaN fails too.
        if not self.lower_bound <= self.upper_bound:
            raise GraphError(
                f"reaction {self.id!r}: lower bound {self.lower_bound} is not below or equal to its upper bound "
                f"{self.upper_bound}; correct or swap them"
            )

    def directions(self) -> tuple[int, ...]:
        """``(1,)`` forward, ``(-1,)`` backward only, ``(1, -1)`` reversible.

        Reversible means lower < 0 < upper; backward only means lower < 0 and upper ≤ 0. All others are forward,
        including
        those blocked with both bounds at zero: the bounds describe a medium, and the reaction is still part of the
        cell.
        """
        if self.lower_bound >= 0:
            return (1,)
        return (1, -1) if self.upper_bound > 0 else (-1,)

    def nodes(
        self, rule: Sequence[tuple[str, ...]], known: Sequence[set[int]], split: bool
    ) -> list[tuple[str, int, list[set[int]]]]:
        """Name suffix, sign of the stoichiometry and complexes (gene indices) of each node that it becomes.

        Args:
            rule: The gene complexes of its rule, by name.
            known: The same as indices, without genes that are not known.
            split: Whether each direction and each complex is a node of its own.
        """
        directions = self.directions()
        if not split:
            # A complex without known genes is always complete, so the whole reaction always survives.
            sign = directions[0]
            return [("" if sign > 0 else "_rev", sign, list(known) if all(known) else [])]
        isozymes: list[tuple[str, list[set[int]]]] = [
            (":" + "+".join(names) if len(rule) > 1 else "", [genes] if genes else [])
            for names, genes in zip(rule, known, strict=True)
        ] or [("", [])]
        return [("_rev" * (sign < 0) + name, sign, genes) for sign in directions for name, genes in isozymes]
