"""Any torch module as a model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs


class AnyModule(CellModel):
    """A module with ``forward(view, batch)`` that does not derive from :class:`CellModel`.

    The view's last column is the wild type. The module gives ``[samples, outputs]``, or a row for each column of the
    view, of which the wild type's is left out.

    Args:
        module: The module; its attributes ``hops`` and ``gives`` are taken over if it has them, see
            :class:`CellModel`.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.hops = getattr(module, "hops", None)
        self.gives = getattr(module, "gives", None)

    def forward(self, view: PerturbedGraphs, batch: PerturbationBatch) -> Prediction:
        """Predict the samples of ``batch``."""
        view.check_model(self.hops)
        found = self.module(view, batch)
        if isinstance(found, Prediction):
            return found
        rows, name = (batch.num_samples, view.batch.num_columns), type(self.module).__name__
        if not isinstance(found, Tensor) or found.dim() != 2 or len(found) not in rows:
            what = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ModelError(
                f"{name}.forward(view, batch) gave {what}, but [samples, outputs] is needed, here [{rows[0]}, outputs] "
                f"(or [{rows[1]}, outputs] with the wild type as the last row)"
            )
        return Prediction(found[: batch.num_samples])

    def gene_states(self, view: PerturbedGraphs) -> Tensor:
        """Those of the module, if it has a method of that name."""
        found: Callable[[PerturbedGraphs], Tensor] | None = getattr(self.module, "gene_states", None)
        if found is None:
            name = type(self.module).__name__
            raise ModelError(
                f"{name} gives no states of genes; give its class a method gene_states(view) that returns "
                "[genes, channels]"
            )
        return found(view)

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Not used: the module has no separate encoder."""
        raise NotImplementedError
