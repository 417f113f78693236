"""Metabolism of a cell: which genes catalyse which reactions, and which metabolites these convert."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from knockgraph.errors import GraphError, UnknownGeneError
from knockgraph.graph.gene_rule import complexes
from knockgraph.graph.groups import Groups
from knockgraph.graph.reaction import Reaction

_TENSORS = ("complex_reaction", "gpr_index", "gpr_complex", "rmr_index", "stoichiometry", "w_growth")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Metabolism:
    """Reaction nodes, the gene complexes that run them (``gpr``) and the metabolites they touch (``rmr``); immutable.

    A reaction node survives a deletion if *all* genes of *one* of its complexes are kept; without complexes, always:

        alive[r] = (r has no complex) or any over complexes c of r: all over genes g of c: keep[g]

    Args:
        reactions: Unique names of the reaction nodes.
        metabolites: Unique names of the metabolites.
        complex_reaction: [complexes] int64, the reaction node of each gene complex.
        gpr_index: [2, gpr] int64, gene and reaction node of each entry.
        gpr_complex: [gpr] int64, the complex each entry belongs to.
        rmr_index: [2, rmr] int64, reaction node and metabolite of each entry.
        stoichiometry: [rmr] float32, negative if the reaction node consumes the metabolite.
        w_growth: [reactions] float32, 1 for growth reactions and 0 for the others.

    Raises:
        GraphError: Anything that does not fit together; the text names the entry.
    """

    reactions: tuple[str, ...]
    metabolites: tuple[str, ...]
    complex_reaction: Tensor
    gpr_index: Tensor
    gpr_complex: Tensor
    rmr_index: Tensor
    stoichiometry: Tensor
    w_growth: Tensor
    num_reactions_with_genes: int = field(init=False)
    """Reaction nodes with at least one gene complex."""
    num_genes_required: int = field(init=False)
    """Largest gene index plus one: a gene list shorter than this does not fit."""
    _genes_of_complex: Groups = field(init=False)
    _complexes_of_reaction: Groups = field(init=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        set_field(self, "reactions", _unique_names("reaction", self.reactions))
        set_field(self, "metabolites", _unique_names("metabolite", self.metabolites))
        _check(self)
        for name in _TENSORS:  # own copies: later changes to the caller's tensors must not affect the graph
            tensor = getattr(self, name).detach()
            set_field(self, name, tensor.clone(memory_format=torch.contiguous_format))
        complex_reaction, genes = self.complex_reaction.cpu(), self.gpr_index[0].cpu()
        has_genes = torch.zeros(self.num_reactions, dtype=torch.bool)
        has_genes[complex_reaction] = True
        set_field(self, "num_reactions_with_genes", int(has_genes.sum()))
        set_field(self, "num_genes_required", int(genes.max()) + 1 if len(genes) else 0)

        num_complexes = len(complex_reaction)
        by_complex = Groups.build(self.gpr_complex.cpu(), genes, num_complexes)
        # Nodes without genes get a row that is always true, one past the last complex.
        free = (~has_genes).nonzero()[:, 0]
        by_reaction = Groups.build(
            torch.cat([complex_reaction, free]),
            torch.cat([by_complex.rank, torch.full_like(free, num_complexes)]),
            self.num_reactions,
        )
        set_field(self, "_genes_of_complex", by_complex.to(self.device))
        set_field(self, "_complexes_of_reaction", by_reaction.to(self.device))

    @classmethod
    def from_reactions(
        cls,
        reactions: Iterable[Reaction],
        gene_index: Mapping[str, int] | Callable[[str], int | None],
        split: bool = True,
        unknown: Literal["error", "drop"] = "error",
    ) -> Metabolism:
        """Turn published reactions into nodes, one per (reaction, direction, gene complex).

        Directions are those of :meth:`Reaction.directions`; backward nodes are named ``r_0001_rev`` and have the
        negated stoichiometry. The complexes are those of :func:`~knockgraph.graph.gene_rule.complexes`; where there are
        several, their genes are part of the name: ``r_0001_rev:YDL174C+YEL039C``. Metabolites are numbered in order of
        appearance. All nodes of a growth reaction have ``w_growth`` 1.

        On yeast-GEM 9.0.2 this gives 7,122 nodes, 4,881 of them with genes, 5,450 gpr entries, 2,806 metabolites and
        26,325 rmr entries. Two conventions matter for these figures: the seven reactions blocked with both bounds at
        zero stay, as forward nodes, and a complex that contains another one of the same rule is a node of its own.

        Args:
            reactions: The reactions of the model.
            gene_index: Gene name → index, as a mapping, or as a function that returns None for a name it does not know.
            split: False gives one node per reaction, which holds all complexes of its rule. A reversible reaction then
                is one node with the stoichiometry as written; one that only runs backwards is turned round as above.
            unknown: What to do with genes that ``gene_index`` does not know: ``"error"``, or ``"drop"`` to leave them
                out of their complex as if always kept. A complex of unknown genes only then cannot be lost: its node
                has no genes when split, and unsplit its reaction has none.

        Raises:
            UnknownGeneError: Lists every unknown gene of all rules, once.
            GraphError: A reaction occurs twice, or its rule, bounds or stoichiometry are malformed.
        """
        if unknown not in ("error", "drop"):
            raise GraphError(f"unknown={unknown!r} is not an option; use 'error' or 'drop'")
        lookup = gene_index.get if isinstance(gene_index, Mapping) else gene_index
        index: dict[str, int | None] = {}
        nodes: list[str] = []
        growth: list[float] = []
        metabolite_index: dict[str, int] = {}
        complex_reaction: list[int] = []
        gpr: list[tuple[int, int, int]] = []
        rmr: list[tuple[int, int, float]] = []
        seen: set[str] = set()
        for reaction in reactions:
            if reaction.id in seen:
                raise GraphError(f"reaction {reaction.id!r} occurs twice; give every reaction its own id")
            seen.add(reaction.id)
            try:
                rule = complexes(reaction.gene_rule)
            except GraphError as error:
                raise GraphError(f"reaction {reaction.id!r}: {error}") from error
            for gene in (gene for names in rule for gene in names if gene not in index):
                index[gene] = lookup(gene)
            known = [{i for gene in names if (i := index[gene]) is not None} for names in rule]
            for suffix, sign, genes_of_node in reaction.nodes(rule, known, split):
                node = len(nodes)
                nodes.append(reaction.id + suffix)
                growth.append(float(reaction.growth))
                for genes in genes_of_node:
                    gpr.extend((gene, node, len(complex_reaction)) for gene in sorted(genes))
                    complex_reaction.append(node)
                rmr.extend(
                    (node, metabolite_index.setdefault(metabolite, len(metabolite_index)), sign * coefficient)
                    for metabolite, coefficient in reaction.stoichiometry.items()
                )
        missing = [gene for gene, i in index.items() if i is None]
        if missing and unknown == "error":
            raise UnknownGeneError(
                f"{len(missing)} gene(s) of the gene rules are not in the gene list: {', '.join(missing)}; "
                "add them to the gene list, correct the rules, or pass unknown='drop' to treat them as always kept",
                missing,
            )
        gpr_columns = torch.tensor(gpr, dtype=torch.int64).reshape(-1, 3).T
        return cls(
            reactions=tuple(nodes),
            metabolites=tuple(metabolite_index),
            complex_reaction=torch.tensor(complex_reaction, dtype=torch.int64),
            gpr_index=gpr_columns[:2],
            gpr_complex=gpr_columns[2],
            rmr_index=torch.tensor([entry[:2] for entry in rmr], dtype=torch.int64).reshape(-1, 2).T,
            stoichiometry=torch.tensor([entry[2] for entry in rmr], dtype=torch.float64).float(),
            w_growth=torch.tensor(growth, dtype=torch.float32),
        )

    @property
    def num_reactions(self) -> int:
        """Number of reaction nodes."""
        return len(self.reactions)

    @property
    def num_metabolites(self) -> int:
        """Number of metabolites."""
        return len(self.metabolites)

    @property
    def num_gpr(self) -> int:
        """Number of (gene, complex) entries."""
        return self.gpr_index.size(1)

    @property
    def num_rmr(self) -> int:
        """Number of (reaction node, metabolite) entries."""
        return self.rmr_index.size(1)

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.complex_reaction.device

    def reactions_alive(self, keep: Tensor) -> Tensor:
        """Which reaction nodes survive each sample's deletions; fixed shapes, no host synchronisation, no gradient.

        Args:
            keep: [genes, batch], bool or 0/1 of any dtype; on the device of this object.

        Returns:
            [reactions, batch] bool.
        """
        self._check_genes(keep)
        kept = keep if keep.dtype == torch.bool else keep != 0
        complete = self._genes_of_complex.reduce(kept, every=True)
        complete = torch.cat([complete, complete.new_ones(1, keep.size(1))])
        return self._complexes_of_reaction.reduce(complete, every=False)[self._complexes_of_reaction.rank]

    def _check_genes(self, keep: Tensor) -> None:
        """Refuse vectors of another gene list."""
        if keep.dim() != 2 or keep.size(0) < self.num_genes_required:
            raise GraphError(
                f"keep has shape {list(keep.shape)}, expected [genes, batch] with at least {self.num_genes_required} "
                "genes; give the keep-vectors of the gene list this metabolism was built for"
            )
        if keep.device != self.device:
            raise GraphError(f"keep is on {keep.device}, the metabolism on {self.device}; move one with .to()")

    def activity(self, dose: Tensor, cap: float | None = 1.0) -> Tensor:
        r"""How much each reaction node works where genes have values,

        .. math:: a_r = \min\Bigl(\sum_c a_c,\ \max(\mathrm{cap}, \max_c a_c)\Bigr), \qquad a_c = \min_{g \in c} d_g :

        a complex at the minimum of its genes' values; isozymes, which are the complexes of one node, add up, to the cap
        or to the strongest of them. A node without genes has 1. Above 0 exactly where :meth:`reactions_alive`, and
        equal to it for doses of 0 and 1 with a cap of 1. Differentiable in ``dose``; equal minima
        share the gradient.

        Args:
            dose: [genes, batch] float, not negative.
            cap: What isozymes add up to at most; ``None`` for any amount.

        Returns:
            [reactions, batch], as ``dose``.
        """
        self._check_genes(dose)
        num_complexes = len(self.complex_reaction)
        of_gene = dose[self.gpr_index[0]]
        complex_index = self.gpr_complex.unsqueeze(1).expand_as(of_gene)
        works = dose.new_full((num_complexes, dose.size(1)), math.inf)
        works = works.scatter_reduce(0, complex_index, of_gene, "amin")
        index = self.complex_reaction.unsqueeze(1).expand_as(works)
        nothing = dose.new_zeros(self.num_reactions, dose.size(1))
        total = nothing.index_add(0, self.complex_reaction, works)
        if cap is not None:
            strongest = nothing.scatter_reduce(0, index, works, "amax")
            total = torch.minimum(total, strongest.clamp(min=cap))
        free = torch.ones(self.num_reactions, 1, dtype=torch.bool, device=dose.device)
        free[self.complex_reaction] = False
        return torch.where(free, total.new_ones(()), total)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name; together with :meth:`document` everything to store."""
        return {name: getattr(self, name) for name in _TENSORS}

    def document(self) -> dict[str, list[str]]:
        """The names, as plain lists that JSON can hold."""
        return {"reactions": list(self.reactions), "metabolites": list(self.metabolites)}

    @classmethod
    def from_tensors(cls, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Metabolism:
        """Inverse of :meth:`document` and :meth:`tensors`; everything is validated again.

        Raises:
            GraphError: A part is missing or malformed.
        """
        missing = [name for name in ("reactions", "metabolites") if name not in document]
        missing += [name for name in _TENSORS if name not in tensors]
        if missing:
            raise GraphError(f"metabolism lacks {', '.join(missing)}; store all of document() and tensors()")
        return cls(
            reactions=document["reactions"],
            metabolites=document["metabolites"],
            **{name: tensors[name] for name in _TENSORS},
        )

    def to(self, device: torch.device | str) -> Metabolism:
        """A copy on another device; ``self`` where nothing moves."""
        if self.device == torch.device(device):
            return self
        moved = copy.copy(self)
        for name in (*_TENSORS, "_genes_of_complex", "_complexes_of_reaction"):
            object.__setattr__(moved, name, getattr(self, name).to(device))
        return moved

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Metabolism):
            return NotImplemented
        return self.document() == other.document() and all(
            torch.equal(tensor.cpu(), other.tensors()[name].cpu()) for name, tensor in self.tensors().items()
        )

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(reactions={self.num_reactions}, with_genes={self.num_reactions_with_genes}, "
            f"metabolites={self.num_metabolites}, gpr={self.num_gpr}, rmr={self.num_rmr})"
        )


def _unique_names(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple, checked."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise GraphError(f"the {kind} names are {names!r}; give a list of strings")
    names = tuple(names)
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name:
            raise GraphError(f"{kind} name {name!r} is not a non-empty string; name every {kind}")
        if name in seen:
            raise GraphError(f"{kind} name {name!r} occurs twice; make the names unique")
        seen.add(name)
    return names


def _check(m: Metabolism) -> None:
    """Raise a GraphError for the first inconsistency in the tensors."""
    integer, real = torch.int64, torch.float32
    layout: dict[str, tuple[torch.dtype, tuple[int | None, ...]]] = {
        "complex_reaction": (integer, (None,)),
        "gpr_index": (integer, (2, None)),
        "gpr_complex": (integer, (None,)),
        "rmr_index": (integer, (2, None)),
        "stoichiometry": (real, (None,)),
        "w_growth": (real, (m.num_reactions,)),
    }
    for name, (dtype, shape) in layout.items():
        tensor = getattr(m, name)
        if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
            given = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise GraphError(f"{name} is {given}, expected a tensor of {dtype}; convert it")
        if tensor.dim() != len(shape) or any(w not in (None, s) for w, s in zip(shape, tensor.shape, strict=True)):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise GraphError(f"{name} has shape {list(tensor.shape)}, expected [{wanted}]; reshape it")
        if tensor.device != m.device:
            raise GraphError(f"{name} is on {tensor.device}, complex_reaction on {m.device}; move all to one device")
    for entries, values in (("gpr_index", "gpr_complex"), ("rmr_index", "stoichiometry")):
        columns, length = getattr(m, entries).size(1), len(getattr(m, values))
        if columns != length:
            raise GraphError(f"{entries} has {columns} entries but {values} has {length}; give one per entry")

    on_host = {name: getattr(m, name).detach().cpu() for name in _TENSORS}
    complex_reaction, gpr_complex = on_host["complex_reaction"], on_host["gpr_complex"]
    gene, gpr_reaction = on_host["gpr_index"]
    rmr_reaction, metabolite = on_host["rmr_index"]
    stoichiometry = on_host["stoichiometry"]
    _in_range("complex_reaction", complex_reaction, m.num_reactions, "reaction")
    _in_range("gpr_index[0]", gene, None, "gene")
    _in_range("gpr_index[1]", gpr_reaction, m.num_reactions, "reaction")
    _in_range("gpr_complex", gpr_complex, len(complex_reaction), "complex")
    _in_range("rmr_index[0]", rmr_reaction, m.num_reactions, "reaction")
    _in_range("rmr_index[1]", metabolite, m.num_metabolites, "metabolite")

    if (at := _first(torch.bincount(gpr_complex, minlength=len(complex_reaction)) == 0)) is not None:
        node = m.reactions[int(complex_reaction[at])]
        raise GraphError(f"complex {at} of reaction {node!r} has no genes; leave it out of complex_reaction")
    if (at := _first(complex_reaction[gpr_complex] != gpr_reaction)) is not None:
        owner, other = (m.reactions[int(node)] for node in (complex_reaction[gpr_complex[at]], gpr_reaction[at]))
        raise GraphError(
            f"gpr entry {at} puts complex {int(gpr_complex[at])} on reaction {other!r}, but it belongs to {owner!r}; "
            "number the complexes of every reaction separately"
        )
    if (at := _first_repeated(gpr_complex, gene)) is not None:
        raise GraphError(
            f"gpr entry {at} repeats gene {int(gene[at])} in complex {int(gpr_complex[at])} of reaction "
            f"{m.reactions[int(gpr_reaction[at])]!r}; list every gene of a complex once"
        )
    if (at := _first_repeated(rmr_reaction, metabolite)) is not None:
        raise GraphError(
            f"rmr entry {at} repeats metabolite {m.metabolites[int(metabolite[at])]!r} in reaction "
            f"{m.reactions[int(rmr_reaction[at])]!r}; add up its coefficients"
        )
    if (at := _first(~stoichiometry.isfinite() | (stoichiometry == 0))) is not None:
        raise GraphError(
            f"stoichiometry of metabolite {m.metabolites[int(metabolite[at])]!r} in reaction "
            f"{m.reactions[int(rmr_reaction[at])]!r} is {float(stoichiometry[at])}, expected finite and not zero; "
            "correct the coefficient or leave the metabolite out"
        )
    if (at := _first(~on_host["w_growth"].isfinite())) is not None:
        value = float(on_host["w_growth"][at])
        raise GraphError(f"w_growth of reaction {m.reactions[at]!r} is {value}; use 1 for growth reactions, else 0")


def _in_range(name: str, index: Tensor, size: int | None, kind: str) -> None:
    """Raise unless 0 ≤ index < size; ``None`` leaves the end open."""
    if (at := _first((index < 0) | (index >= (math.inf if size is None else size)))) is not None:
        valid = (
            f"there is no {kind}" if size == 0 else f"{kind} numbers run from 0" + (f" to {size - 1}" if size else "")
        )
        raise GraphError(f"{name} entry {at} is {int(index[at])}, but {valid}; correct it")


def _first(bad: Tensor) -> int | None:
    """Position of the first True, or None."""
    where = bad.nonzero()
    return int(where[0]) if len(where) else None


def _first_repeated(left: Tensor, right: Tensor) -> int | None:
    """Position of the first pair (left, right) that occurred before, None if all are distinct."""
    order = right.argsort(stable=True)
    order = order[left[order].argsort(stable=True)]
    left, right = left[order], right[order]
    repeated = order[1:][(left[1:] == left[:-1]) & (right[1:] == right[:-1])]
    return int(repeated.min()) if len(repeated) else None
