"""What every model is: perturbed graphs in, one prediction per sample out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs

if TYPE_CHECKING:
    from knockgraph.screen import BoundScreen
    from knockgraph.screen.ragged import Ints


@dataclass(frozen=True)
class Prediction:
    """What a model says about a batch.

    Attributes:
        values: ``[samples, outputs]``, in label units (logits for classes).
        embedding: ``[samples, channels]``, the perturbation embedding that a contrastive loss works on, or ``None``.
        auxiliary: Scalar terms that the model defines itself, e.g. ``reconstruction``.
    """

    values: Tensor
    embedding: Tensor | None = None
    auxiliary: Mapping[str, Tensor] = field(default_factory=dict)


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Trainable parameters of each part of a model: its modules, and what it has beside them.

    >>> parameter_counts(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    {'0': 9, '2': 4}
    """
    parts = {name: p.numel() for name, p in model.named_parameters(recurse=False) if p.requires_grad}
    for name, part in model.named_children():
        parts[name] = sum(p.numel() for p in part.parameters() if p.requires_grad)
    return {name: count for name, count in parts.items() if count}


class CellModel(nn.Module, ABC):
    """A model, written once against :class:`PerturbedGraphs`.

    Attributes:
        perturbs: Whether it looks at the perturbed graphs. If so, the view's last column is the wild type
            (``batch.with_wild_type()``); if not, the view is of the wild type alone (``batch.only_wild_type()``).
        hops: How far from a deletion a gene's state can differ from the wild type's: one hop per layer of message
            passing, one more where degrees count (GCN); ``None``: not stated. Strategies that leave distant genes out
            are asked whether that is far enough (:meth:`Strategy.exact_for`).
        gives: What its predictions have beside values: ``embedding``, names of auxiliary terms; ``None``: not stated.
        exact: False if it can be trained with a wild type that is kept from :meth:`refresh_wild_type`, an
            approximation. The views that it is trained with then need no column for it.
        starts_fitted: Whether :meth:`prepare` makes it as good as a fitted model: its state before the first step is
            then one of those that validation chooses from.
    """

    perturbs: bool = True
    hops: int | None = None
    gives: tuple[str, ...] | None = None
    exact: bool = True
    starts_fitted: bool = False

    @property
    def encodes(self) -> bool:
        """Whether it has an :meth:`encode` of its own."""
        return type(self).encode is not CellModel.encode

    def refresh_wild_type(self, view: PerturbedGraphs) -> None:
        """Called at the start of each epoch of a model that is not :attr:`exact`.

        Args:
            view: Of the wild type alone.
        """

    def set_known(self, genes: Tensor) -> None:
        """Called once before training; for models that treat genes differently that no training sample deletes.

        Args:
            genes: bool [num_genes], the genes that training samples delete.
        """

    def begin(self, epoch: int, epochs: float) -> None:
        """Called at the start of each epoch; for models of which some parts are trained later than others.

        Args:
            epoch: Its number, from 0 on.
            epochs: How many there will be.
        """

    def remark(self) -> str | None:
        """What one should know about these weights, in one sentence; ``None``: nothing."""
        return None

    def prepare(
        self, screen: BoundScreen, rows: Ints, values: Tensor, validation: tuple[Ints, Tensor], classes: bool
    ) -> None:
        """Called once before training, not when it is resumed; for models that are fitted, or start from one that is.

        Args:
            screen: The experiments.
            rows: Positions of the training rows.
            values: Their labels, ``[rows, phenotypes]``, in label units.
            validation: The same of the validation part.
            classes: Whether the labels are 0 and 1.
        """

    def spread(self, batch: PerturbationBatch) -> Tensor | None:
        """How far from its prediction a measurement of each sample is expected to be, as a standard deviation in label
        units, ``[samples, outputs]``, on the host; ``None`` where the model does not know.
        """
        del batch
        return None

    def gene_states(self, view: PerturbedGraphs) -> Tensor:
        """What the model knows about each gene of the wild type, ``[num_genes, channels]``.

        Args:
            view: Of the wild type alone.
        """
        raise ModelError(
            f"{type(self).__name__} gives no states of genes; give its class a method gene_states(view) that returns "
            "[genes, channels]"
        )

    def columns(self, batch: PerturbationBatch) -> PerturbationBatch:
        """What the view of ``batch`` must show, see :attr:`perturbs`: ``model(strategy(model.columns(batch)), batch)``.

        A kept wild type is for training; what is measured or predicted does not depend on its age.
        """
        if not self.perturbs:
            return batch.only_wild_type()
        return batch.with_wild_type() if self.exact or not self.training else batch

    def forward(self, view: PerturbedGraphs, batch: PerturbationBatch) -> Prediction:
        """Predict the samples of ``batch``.

        Args:
            view: The perturbed graphs, see :attr:`perturbs`.
            batch: The samples, without the wild-type column.
        """
        view.check_model(self.hops)
        return self.decode(self.encode(view), batch)

    def with_wild_type(self, encoded: tuple[Tensor, ...], wild_type: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What :meth:`encode` gave, with those parts that depend on the wild type alone taken from ``wild_type``, what
        it gave for the wild type. Parts that are compared with a perturbed state stay: their rounding errors cancel.
        """
        return encoded

    def encode(self, view: PerturbedGraphs) -> tuple[Tensor, ...]:
        """What the graphs say: all that needs no more of a batch than its view. Nearly all of the time is spent here,
        on tensors of fixed shapes, so this is what :class:`~knockgraph.models.graphed.GraphedModel` records. Empty for
        a model that does not look at them.
        """
        return ()

    @abstractmethod
    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """What follows for the samples of ``batch``, ``[samples, outputs]``; columns beyond them are left out."""
