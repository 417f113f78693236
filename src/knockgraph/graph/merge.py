"""Merging several relations into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch

from knockgraph.errors import GraphError
from knockgraph.graph.relation import Relation


def merge_relations(
    relations: Mapping[str, Relation], groups: Mapping[str, Sequence[str]], num_genes: int
) -> dict[str, Relation]:
    """The relations, with each group replaced by the union of its members at the position of the first of them.

    Args:
        relations: Name → relation, in order.
        groups: New name → names of relations, or patterns such as ``string12_0_*``.
        num_genes: Number of genes.
    """
    group_of: dict[str, str] = {}
    for group, patterns in groups.items():
        for name in _members(list(relations), group, patterns):
            if name in group_of:
                raise GraphError(f"relation {name!r} cannot be merged into both {group_of[name]!r} and {group!r}")
            group_of[name] = group
    merged: dict[str, Relation] = {}
    for name, relation in relations.items():
        group = group_of.get(name, name)
        if name not in group_of and group in groups:
            raise GraphError(f"there is already a relation {group!r}; give the merged one another name")
        if name not in group_of:
            merged[name] = relation
        elif group not in merged:
            members = [relations[other] for other, its in group_of.items() if its == group]
            merged[group] = union(members, num_genes, group)
    return merged


def union(members: Sequence[Relation], num_genes: int, name: str = "") -> Relation:
    """One relation with every edge of the members once, with its largest weight (1 in a member without weights).

    Args:
        members: The relations; the edges keep their order.
        num_genes: Number of genes.
        name: Shown in error messages.
    """
    edge_index = torch.cat([r.edge_index for r in members], 1)
    if all(r.weight is None for r in members):
        return Relation(edge_index, num_genes, None, name)
    weight = torch.cat([torch.ones(r.num_edges) if r.weight is None else r.weight for r in members])
    _, edge = torch.unique(edge_index[1] * num_genes + edge_index[0], return_inverse=True)
    largest = torch.full_like(weight, -torch.inf).scatter_reduce(0, edge, weight, "amax")[edge]
    return Relation(edge_index, num_genes, largest, name)


def _members(names: Sequence[str], group: str, patterns: Sequence[str]) -> list[str]:
    if isinstance(patterns, str) or not patterns:
        raise GraphError(f"the merged relation {group!r} needs a list of relations, or of patterns such as 'string*'")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise GraphError(
                f"no relation matches {pattern!r}, to be merged into {group!r}; there are {', '.join(names)}"
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
