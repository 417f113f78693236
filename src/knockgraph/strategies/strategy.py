"""The interface of all strategies: cell graph + batch → perturbed graphs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from knockgraph.errors import GeneListMismatchError, StrategyError
from knockgraph.graph import CellGraph, Metabolism
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies.view import PerturbedGraphs

GenotypesLike: TypeAlias = "Screen | BoundScreen | Genotypes | PerturbationBatch | Sequence[Sequence[int]]"

if TYPE_CHECKING:
    from knockgraph.screen import BoundScreen, Genotypes, Screen

Direction = Literal["both", "in"]
Ability = Literal["doses", "gradients at 0", "static shapes"]
ABILITIES = get_args(Ability)
Placement = Literal["worker", "stored", "device"]


class Strategy(nn.Module, ABC):
    """One way to give a model each sample's own perturbed graph.

    Tables are non-persistent buffers: they move with ``.to()`` and stay out of checkpoints, so a model trained with one
    strategy predicts with any other.

    Args:
        graph: The cell graph.
        direction: ``both`` removes every edge of a deleted gene; ``in`` only its incoming edges (the causal
            do-operator).

    Attributes:
        name: As in :func:`knockgraph.strategies.available`; that of the class if it does not say.
        placement: Where the work is done: in the loader's ``worker`` processes, ``stored`` on disk beforehand, or on
            the ``device``.
        abilities: What it can beside deletions, see :meth:`supports`.
    """

    name: ClassVar[str]
    placement: ClassVar[Placement] = "device"
    abilities: ClassVar[frozenset[Ability]] = frozenset()
    _place: Tensor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.name = vars(cls).get("name", cls.__name__)

    def __init__(self, graph: CellGraph, direction: Direction = "both") -> None:
        super().__init__()
        if direction not in ("both", "in"):
            raise StrategyError(f"direction={direction!r} is not known: use 'both' or 'in'")
        self.direction: Direction = direction
        self.num_genes = graph.num_genes
        self.gene_list_hash = graph.gene_list_hash
        self.relation_names = tuple(graph.relations)
        self.has_weights = tuple(relation.weight is not None for relation in graph.relations.values())
        self.metabolism: Metabolism | None = graph.metabolism
        # Gives the device of the module, also for strategies without device tables.
        self.register_buffer("_place", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self._place.device

    @property
    def exact(self) -> bool:
        """Whether every model gets what message passing on graphs with the edges actually removed gives.

        Where that depends on the model, this is False, and :meth:`exact_for` answers.
        """
        return self.receptive_field is None

    @property
    def receptive_field(self) -> int | None:
        """How many hops from a perturbation results are exact; ``None``: at any distance."""
        return None

    def exact_for(self, hops: int | None) -> bool:
        """Whether a certain model gets exact results.

        Args:
            hops: How far from a deletion the model's gene states can differ from the wild type's
                (:attr:`CellModel.hops <knockgraph.models.CellModel.hops>`), or ``None`` if that is not known.
        """
        reach = self.receptive_field
        return reach is None or (hops is not None and reach >= hops)

    def supports(self, ability: Ability) -> bool:
        """Whether the strategy can do more than show deletions.

        Args:
            ability: ``doses``: perturbations with values other than 0 and 1. ``gradients at 0``: the gradient with
                respect to the value of a deleted gene. ``static shapes``: a view is made without waiting for the device
                and of tensors whose shapes depend on the sizes of the batch only, so that it can be recorded once as a
                CUDA graph; only each perturbation's gene and sample are looked at, so that one may be listed twice.
        """
        if ability not in ABILITIES:
            raise StrategyError(f"{ability!r} is not an ability of strategies; they are {', '.join(ABILITIES)}")
        return ability in self.abilities

    def prepare(self, genotypes: GenotypesLike, directory: str | os.PathLike[str]) -> None:
        """Stored strategies write what they need for ``genotypes`` to ``directory``, and open it; the others have
        nothing to do.
        """
        del genotypes, directory

    def open(self, directory: str | os.PathLike[str]) -> None:
        """Stored strategies read from what :meth:`prepare` wrote; the others have nothing to do."""
        del directory

    def close(self) -> None:
        """Stored strategies let go of their files, until they read again; the others have nothing to do."""

    @property
    def collate(self) -> Callable[[Any], PerturbationBatch]:
        """``strategy.collate(samples)``: turn samples into a batch and attach what the loader's workers can prepare.

        It refers to host memory only, so that it can be handed to worker processes. ``samples`` is a
        :class:`PerturbationBatch`, or a list of PyG samples with ``perturbation_indices``.
        """
        return as_batch

    def memory(self) -> dict[str, int]:
        """Bytes by part: tables on the device, host tables of the workers, files on disk."""
        parts = {"device tables": _bytes_of(self)}
        if self.metabolism is not None:
            parts["metabolism"] = sum(t.nbytes for t in self.metabolism.tensors().values())
        return parts

    def tables(self) -> dict[str, int]:
        """The tables on the device by what they hold, in bytes; together ``memory()["device tables"]``.

        A table's name says it: ``incidence_ptr_0`` and ``incidence_edge_0`` are the incidence of relation 0.
        """
        parts: dict[str, int] = {}
        seen: set[int] = set()
        for name, table in self.named_buffers():
            if table.numel() and table.data_ptr() not in seen:  # shared ones count once
                seen.add(table.data_ptr())
                part = _PARTS.get(name.split("_")[0].partition(".")[0], "other")
                parts[part] = parts.get(part, 0) + table.nbytes
        return parts

    def bytes_moved(self, batch: PerturbationBatch) -> int:
        """Bytes that move from host to device for ``batch`` as :attr:`collate` makes it."""
        return batch.nbytes

    def relation_number(self, relation: str) -> int:
        """Position of a relation in ``graph.relations``."""
        try:
            return self.relation_names.index(relation)
        except ValueError:
            names = ", ".join(self.relation_names)
            raise StrategyError(f"the graph has no relation {relation!r}; it has {names}") from None

    def forward(self, batch: PerturbationBatch) -> PerturbedGraphs:
        """The perturbed graphs of ``batch``."""
        if batch.num_genes != self.num_genes or batch.gene_list_hash not in (None, self.gene_list_hash):
            raise GeneListMismatchError(
                f"the batch was built for a different gene list ({batch.num_genes} genes) than that of the graph "
                f"({self.num_genes} genes); bind the screen to this graph"
            )
        if batch.device != self.device:
            raise StrategyError(f"the batch is on {batch.device}, the strategy on {self.device}; move one with .to()")
        if batch.graded and not self.supports("doses"):
            raise StrategyError(
                f"the strategy {self.name} shows deletions only, but this batch has values other than 0 and 1; "
                "use node-mask, the default"
            )
        view = self._view(batch.deletions())
        view.batch = batch
        return view

    @abstractmethod
    def _view(self, batch: PerturbationBatch) -> PerturbedGraphs:
        """The graphs of a batch without the genes whose value is not 0; their doses are the view's concern."""

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Strategy:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.metabolism is not None:
            self.metabolism = self.metabolism.to(self.device)
        return self

    def extra_repr(self) -> str:
        """Shown by ``repr``."""
        return f"{self.name}, {self.num_genes} genes, {len(self.relation_names)} relations, direction={self.direction}"


_PARTS = {
    "edge": "edge lists",
    "weight": "edge weights",
    "incidence": "incidence",
    "padded": "padded incidence",
    "incoming": "incoming edges",
    "mask": "base masks",
    "cache": "masks of single deletions",
    "stacked": "adjacency",
    "single": "adjacency",
    "step": "adjacency",
}
"""First word of a table's name → what it holds."""


def _bytes_of(module: nn.Module) -> int:
    """Bytes of all buffers; tables that share memory count once."""
    return sum({b.data_ptr(): b.nbytes for b in module.buffers() if b.numel()}.values())


def as_batch(samples: Any) -> PerturbationBatch:
    """A batch from a batch, or from a list of PyG samples."""
    if isinstance(samples, PerturbationBatch):
        return samples
    from torch_geometric.data import Batch

    return PerturbationBatch.from_hetero_batch(
        Batch.from_data_list(list(samples), follow_batch=["perturbation_indices"])
    )
