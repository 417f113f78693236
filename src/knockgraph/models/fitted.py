"""A baseline as a model: fitted at once instead of trained step by step, then saved and used like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from knockgraph.errors import ModelError
from knockgraph.models.baselines.baseline import Baseline, GenotypeRows
from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import PerturbationBatch

if TYPE_CHECKING:
    from knockgraph.screen import BoundScreen
    from knockgraph.screen.ragged import Ints

_NEWTON_STEPS = 50


class FittedModel(CellModel):
    r"""The prediction f of a baseline; of classes the logit :math:`a f + b`.

    Its weights are the baseline's state. It has nothing to train by gradients and does not look at perturbed graphs.

    Attributes:
        validated: Of a model that was fitted again (:meth:`fit_again`), what it predicted before for the validation
            rows, ``[rows, outputs]``.
        validated_spread: And how far from that their labels were expected to be, if it knows.

    Args:
        baseline: What predicts.
        name: Its name, for messages.
        outputs: Predictions per sample.
    """

    perturbs = False
    hops = 0
    gives = ()
    slope: Tensor
    offset: Tensor

    def __init__(self, baseline: Baseline, name: str, outputs: int = 1) -> None:
        super().__init__()
        if baseline.kept is None:
            raise ModelError(
                f"the baseline {name} cannot be a model: its class does not say in 'kept' which attributes a fit sets, "
                "so that it cannot be saved; use it in trainer.baselines"
            )
        self.baseline = baseline
        self.name = name
        self.register_buffer("slope", torch.ones(outputs))
        self.register_buffer("offset", torch.zeros(outputs))
        self.validated: Tensor | None = None
        self.validated_spread: Tensor | None = None

    def prepare(
        self, screen: BoundScreen, rows: Ints, values: Tensor, validation: tuple[Ints, Tensor], classes: bool
    ) -> None:
        """Fit the baseline, whose settings are chosen on the validation rows; of classes also the map from its
        predictions to probabilities, on the same rows. Arguments as in :meth:`CellModel.prepare`.
        """
        self.baseline.fit(screen, rows, values, validation if len(validation[0]) else None, classes)
        if not classes:
            self.baseline.measure_spread()
            return
        predicted, truth = self.baseline.predict(screen, validation[0]), validation[1]
        for column in range(truth.shape[1]):
            known = ~truth[:, column].isnan()
            self.slope[column], self.offset[column] = logistic(predicted[known, column], truth[known, column])

    def fit_again(self, screen: BoundScreen, parts: Sequence[tuple[Ints, Tensor]]) -> None:
        """Fit on training and validation rows together, with the settings that the latter have chosen.

        What the first fit predicts for the validation rows is kept: scores of that part and intervals are about rows
        that the model has not seen.

        Args:
            screen: The experiments.
            parts: Rows and labels of the training and of the validation part, as in :meth:`prepare`.
        """
        held_out = GenotypeRows.of(screen, parts[1][0])
        self.validated, self.validated_spread = self.predicted(held_out).cpu(), self.spread_of(held_out)
        rows, values = zip(*parts, strict=True)
        self.baseline.fit_again(screen, np.concatenate(rows), torch.cat(values))
        if self.validated_spread is not None:
            self.baseline.measure_spread()

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Predict the samples."""
        del encoded
        return Prediction(self.predicted(GenotypeRows.of_batch(batch)))

    def predicted(self, genotypes: GenotypeRows) -> Tensor:
        """Predict genotypes, ``[rows, outputs]``."""
        return self.baseline.predict_rows(genotypes).to(self.slope) * self.slope + self.offset

    def spread(self, batch: PerturbationBatch) -> Tensor | None:
        """See :meth:`CellModel.spread`."""
        return self.spread_of(GenotypeRows.of_batch(batch))

    def spread_of(self, genotypes: GenotypeRows) -> Tensor | None:
        """Of genotypes, ``[rows, outputs]``, on the host."""
        found = self.baseline.spread_rows(genotypes)
        return None if found is None else torch.from_numpy(found)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # What moves the buffers moves the baseline, too; a change of dtype leaves it where it is.
        self.baseline.to(fn(torch.zeros(0, device=self.baseline.device)).device)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def get_extra_state(self) -> dict[str, Any]:
        """What the baseline has found, as part of ``state_dict()``."""
        found = self.baseline.state()
        if self.validated is None:
            return found
        return {**found, "validated": self.validated, "validated_spread": self.validated_spread}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.validated, self.validated_spread = state.get("validated"), state.get("validated_spread")
        try:
            self.baseline.restore(state)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"the saved weights are not those of a {self.name} model: {error!r}") from error


def logistic(score: Tensor, truth: Tensor) -> tuple[float, float]:
    r"""a and b of :math:`P(1) = 1 / (1 + e^{-a s - b})` by maximum likelihood, :math:`a \ge 0`.

    One more row of each class, half-weighted and spread like the others, keeps them finite where the classes separate.

    Args:
        score: s, ``[rows]``.
        truth: 0 or 1, ``[rows]``.
    """
    s, t = score.double(), truth.double()
    center, scale = (s.mean(), s.std(correction=0)) if len(s) else (s.new_zeros(()), s.new_ones(()))
    scale = scale if bool(scale > 0) else torch.ones_like(scale)
    x = torch.stack([(s - center) / scale, torch.ones_like(s)], 1)
    x = torch.cat([x, x.new_tensor([[-1.0, 1.0], [1.0, 1.0], [-1.0, 1.0], [1.0, 1.0]])])
    t = torch.cat([t, t.new_tensor([0.0, 0.0, 1.0, 1.0])])
    weight = torch.cat([torch.ones_like(s), s.new_full((4,), 0.25)])
    found = x.new_zeros(2)
    for _ in range(_NEWTON_STEPS):
        p = (x @ found).sigmoid()
        gradient = x.T @ (weight * (t - p))
        hessian = (x * (weight * p * (1 - p)).clamp(min=1e-12)[:, None]).T @ x
        step = torch.linalg.solve(hessian, gradient)
        found = found + step * min(1.0, 5.0 / float(step.norm().clamp(min=1e-12)))
        if bool(step.norm() < 1e-9):
            break
    a = float(found[0].clamp(min=0) / scale)
    rate = float((weight * t).sum() / weight.sum())
    return (a, float(found[1]) - a * float(center)) if a > 0 else (0.0, float(torch.logit(torch.tensor(rate))))
