"""Models, written once against ``PerturbedGraphs``, by name.

============  ========================================================================================
name          what it is
============  ========================================================================================
``hetero``    message passing on each sample's own perturbed graph, compared with the wild type
``dango``     message passing on the wild type; a perturbation only chooses gene embeddings
``additive``  one learned number per gene, summed over the deletions (for tests of the training)
``constant``  0, whatever it sees (for tests of the training)
============  ========================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from knockgraph.errors import ModelError
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.presets import PRESETS, spelled_out
from knockgraph.options import check_options

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph

__all__ = ["PRESETS", "CellModel", "Prediction", "available", "create"]

_CLASSES = {
    "hetero": ("hetero", "HeteroCellModel"),
    "dango": ("dango", "Dango"),
    "additive": ("toy", "AdditiveModel"),
    "constant": ("toy", "ConstantModel"),
}


def available() -> list[str]:
    """The names of all models."""
    return list(_CLASSES)


def create(name: str, graph: CellGraph, preset: str | None = None, **options: Any) -> CellModel:
    """A model by name.

    Args:
        name: One of :func:`available`.
        graph: The cell graph.
        preset: Options to start from, one of ``PRESETS[name]``.
        options: See the model's own docstring; they win over the preset's.
    """
    if name not in _CLASSES:
        raise ModelError(f"there is no model {name!r}; use one of {', '.join(_CLASSES)}")
    chosen = spelled_out(name, {"preset": preset, **options})
    module, class_name = _CLASSES[name]
    kind: type[CellModel] = getattr(import_module(f"knockgraph.models.{module}"), class_name)
    check_options(f"the model {name}", kind, options, ModelError)
    return kind(graph, **chosen)
