"""Models, written once against ``PerturbedGraphs``, by name.

============  ========================================================================================
name          what it is
============  ========================================================================================
``hetero``    message passing on each sample's own perturbed graph, compared with the wild type
``dango``     message passing on the wild type; a perturbation only chooses gene embeddings
``residual``  a trained model as a correction, zero at the start, of one that is fitted at once
``additive``  one learned number per gene, summed over the deletions (for tests of the training)
``constant``  0, whatever it sees (for tests of the training)
============  ========================================================================================

Every baseline of :mod:`knockgraph.models.baselines` is a model, too, such as ``pair-gp``: one that is fitted at once
(:class:`~knockgraph.models.fitted.FittedModel`). Where both have the same name, it is the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from knockgraph import registry
from knockgraph.errors import ModelError
from knockgraph.models.any_module import AnyModule
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.presets import PRESETS, spelled_out
from knockgraph.options import takes
from knockgraph.words import counted

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph

__all__ = ["PRESETS", "CellModel", "Prediction", "available", "create", "is_fitted", "with_outputs"]


def available() -> list[str]:
    """The names of all models."""
    return registry.available("model")


def create(name: str, graph: CellGraph, preset: str | None = None, **options: Any) -> CellModel:
    """A model by name.

    Args:
        name: One of :func:`available`, or ``package.module:Class``: a :class:`CellModel`, or any module with
            ``forward(view, batch)`` (:class:`~knockgraph.models.any_module.AnyModule`), or a baseline.
        graph: The cell graph.
        preset: Options to start from, one of ``PRESETS[name]``.
        options: See the model's own docstring; they win over the preset's.
    """
    chosen = spelled_out(name, {"preset": preset, **options})
    if is_fitted(name):
        from knockgraph.models import baselines
        from knockgraph.models.fitted import FittedModel

        outputs = chosen.pop("outputs", 1)
        return FittedModel(baselines.create(name, graph, **chosen), name, outputs)
    made = registry.create("model", name, graph, **chosen)
    return made if isinstance(made, CellModel) else AnyModule(made)


def is_fitted(name: str) -> bool:
    """Whether a name is that of a baseline, which is fitted at once.

    >>> is_fitted("pair-gp"), is_fitted("hetero")
    (True, False)
    """
    from knockgraph.models.baselines.baseline import Baseline

    return issubclass(registry.find("model", name), Baseline)


def on_the_host(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a baseline that is fitted on the CPU even where there is a GPU, unless they say otherwise."""
    device = {"device": "cpu"} if takes("device", registry.find("model", name)) else {}
    return {**device, **options}


def with_outputs(name: str, options: Mapping[str, Any], phenotypes: int) -> dict[str, Any]:
    """The options of a model that predicts so many phenotypes; one without the option ``outputs`` sees to it itself.

    >>> with_outputs("additive", {}, 2)
    {'outputs': 2}
    """
    if options.get("outputs", phenotypes) != phenotypes:
        raise ModelError(
            f"the option outputs is {options['outputs']}, but there {'is' if phenotypes == 1 else 'are'} "
            f"{counted(phenotypes, 'phenotype')} to predict; leave it out, it follows from them"
        )
    if phenotypes == 1 or not (is_fitted(name) or takes("outputs", registry.find("model", name))):
        return dict(options)
    return {**options, "outputs": phenotypes}
