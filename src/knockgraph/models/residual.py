"""A trained correction of a fitted model's prediction, which starts at zero."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph
from knockgraph.models.baselines.baseline import GenotypeRows, sums
from knockgraph.models.fitted import FittedModel
from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import PerturbationBatch, ragged
from knockgraph.strategies import PerturbedGraphs

if TYPE_CHECKING:
    from knockgraph.screen import BoundScreen
    from knockgraph.screen.ragged import Ints


class ResidualModel(CellModel):
    r""":math:`y = f_\mathrm{base}(P) + \gamma\, g(\mathrm{graphs}, P)`, with :math:`\gamma = 0` at the start.

    f is fitted at once (:class:`~knockgraph.models.fitted.FittedModel`), g is trained step by step. A training sample
    sees the prediction of a base that was fitted without it (out of fold): one that has seen its label would leave
    nothing to learn, or the wrong thing. Folds hold out genotypes; where most validation genotypes have a gene that no
    training genotype deletes, they hold out genes. The base alone is one of the states that validation chooses from.
    The correction is not prepared (:meth:`CellModel.prepare`): a hetero model in it does not start from profiles.

    Args:
        graph: The cell graph.
        base: The baseline.
        base_options: Its options.
        correction: The model that corrects it.
        options: Its options, ``preset`` among them.
        perturbed: Whether the correction sees the perturbed graphs; otherwise it sees the wild type in their place.
        folds: Number of folds.
        outputs: Predictions per sample.
    """

    starts_fitted = True

    def __init__(
        self,
        graph: CellGraph,
        base: str = "profile-propagation",
        base_options: Mapping[str, Any] = {},
        correction: str = "hetero",
        options: Mapping[str, Any] = {},
        perturbed: bool = True,
        folds: int = 5,
        outputs: int = 1,
    ) -> None:
        from knockgraph import models

        super().__init__()
        if folds < 2:
            raise ModelError(f"folds is {folds}, but it must be at least 2")
        if not models.is_fitted(base):
            raise ModelError(f"base is {base!r}, which is not fitted at once; use a baseline, such as pair-gp")
        if models.is_fitted(correction) or correction == "residual":
            raise ModelError(f"correction is {correction!r}, which is not trained step by step; use hetero or dango")
        self._make: Callable[[], CellModel] = lambda: models.create(base, graph, **base_options, outputs=outputs)
        self.base = self._make_base()
        inner = models.with_outputs(correction, options, outputs)
        self.correction = models.create(correction, graph, **inner)
        self.gain = nn.Parameter(torch.zeros(outputs))
        self.perturbed = perturbed
        self.folds = folds
        self.hops, self.gives, self.exact = self.correction.hops, self.correction.gives, self.correction.exact
        self.perturbs = self.correction.perturbs
        self.out_of_fold: Tensor | None = None

    def _make_base(self) -> FittedModel:
        made = self._make()
        assert isinstance(made, FittedModel)
        return made

    def columns(self, batch: PerturbationBatch) -> PerturbationBatch:
        """What the view must show; the wild type for every sample, where the graphs are not perturbed."""
        if self.perturbed:
            return self.correction.columns(batch)
        none = batch.perturbation_indices[:0]
        ptr = batch.perturbation_indices_ptr.new_zeros(batch.num_samples + 1)
        return self.correction.columns(PerturbationBatch(none, ptr, none, batch.num_genes))

    @property
    def encodes(self) -> bool:
        """See :attr:`CellModel.encodes`."""
        return self.correction.encodes

    def begin(self, epoch: int, epochs: float) -> None:
        """See :meth:`CellModel.begin`."""
        self.correction.begin(epoch, epochs)
        self.perturbs = self.correction.perturbs

    def remark(self) -> str | None:
        """See :meth:`CellModel.remark`."""
        if not bool(self.gain.any()):
            return f"this state is the base {self.base.name} alone: no validated correction of it was better"
        told = self.correction.remark()
        return None if told is None else told.replace("model.options.", "model.options.options.")

    def spread(self, batch: PerturbationBatch) -> Tensor | None:
        """Those of the base."""
        return self.base.spread(batch)

    def gene_states(self, view: PerturbedGraphs) -> Tensor:
        """See :meth:`CellModel.gene_states`."""
        return self.correction.gene_states(view)

    def set_known(self, genes: Tensor) -> None:
        """See :meth:`CellModel.set_known`."""
        self.correction.set_known(genes)

    def refresh_wild_type(self, view: PerturbedGraphs) -> None:
        """See :meth:`CellModel.refresh_wild_type`."""
        self.correction.refresh_wild_type(view)

    def prepare(
        self, screen: BoundScreen, rows: Ints, values: Tensor, validation: tuple[Ints, Tensor], classes: bool
    ) -> None:
        """Fit the base, and one without each fold."""
        self.base.prepare(screen, rows, values, validation, classes)
        total = torch.zeros(int(screen.experiment.max()) + 1, values.shape[1])
        count = torch.zeros(len(total), 1)
        for held_out in self._folds(screen, rows, validation[0]):
            others = ~held_out
            if not held_out.any() or not others.any():
                continue
            one = self._make_base()
            one.load_state_dict({**self.base.state_dict(), "_extra_state": {}})  # the same map to logits
            one.baseline.fit(screen, rows[others], values[torch.from_numpy(others)], classes=classes)
            place = screen.experiment[rows[held_out]]
            total.index_add_(0, place, one.predicted(GenotypeRows.of(screen, rows[held_out])).float().cpu())
            count.index_add_(0, place, torch.ones(len(place), 1))
        self.out_of_fold = total / count.clamp(min=1)

    def _folds(self, screen: BoundScreen, rows: Ints, others: Ints) -> list[np.ndarray[Any, np.dtype[np.bool_]]]:
        """Which training rows each fold holds out."""
        random, genotypes = np.random.default_rng(0), GenotypeRows.of(screen, rows)
        seen = np.zeros(screen.num_genes, dtype=bool)
        seen[genotypes.genes] = True
        later = GenotypeRows.of(screen, others)
        new = sums(later.row, (~seen[later.genes]).astype(np.float64), len(later)) > 0
        if len(new) and new.mean() > 0.5:
            fold = random.integers(0, self.folds, screen.num_genes)[genotypes.genes]
            return [sums(genotypes.row, (fold == k).astype(float), len(rows)) > 0 for k in range(self.folds)]
        same = ragged.same_set(genotypes.genes, genotypes.ptr, max(screen.num_genes, 1))
        fold = random.integers(0, self.folds, int(same.max(initial=0)) + 1)[same]
        return [fold == k for k in range(self.folds)]

    def forward(self, view: PerturbedGraphs, batch: PerturbationBatch) -> Prediction:
        """Predict the samples."""
        return self._corrected(self.correction(view, batch), batch)

    def encode(self, view: PerturbedGraphs) -> tuple[Tensor, ...]:
        """What the correction sees in the graphs."""
        return self.correction.encode(view)

    def with_wild_type(self, encoded: tuple[Tensor, ...], wild_type: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """See :meth:`CellModel.with_wild_type`."""
        return self.correction.with_wild_type(encoded, wild_type)

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Add what follows from it to the base's prediction."""
        return self._corrected(self.correction.decode(encoded, batch), batch)

    def _corrected(self, found: Prediction, batch: PerturbationBatch) -> Prediction:
        """In the precision of the base, also where that of the correction is lower."""
        return Prediction(self._base_of(batch) + self.gain * found.values, found.embedding, found.auxiliary)

    def _base_of(self, batch: PerturbationBatch) -> Tensor:
        if self.training and self.out_of_fold is not None and batch.experiment is not None:
            return self.out_of_fold.to(batch.device)[batch.experiment]
        with torch.no_grad(), torch.autocast(batch.device.type, enabled=False):
            return self.base.decode((), batch).values

    def get_extra_state(self) -> dict[str, Any]:
        """The predictions out of fold, for a resumed training."""
        return {"out_of_fold": self.out_of_fold}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.out_of_fold = state["out_of_fold"]
