"""Losses: a prediction and its labels in, one scalar and its named parts out.

=============  ===================================================================================================
name           what it is
=============  ===================================================================================================
``mse``        squared error
``log-cosh``   log cosh of the error: squared when small, absolute when large
``gaussian``   squared error over a noise that is learned for each phenotype
``bce``        binary cross-entropy with logits
``dango``      DANGO's reconstruction and interaction terms, weighted by a schedule over epochs
``composite``  squared error, Wasserstein distance of the label distributions, supervised contrastive regression
=============  ===================================================================================================
"""

from __future__ import annotations

from typing import Any

from knockgraph import registry
from knockgraph.errors import LossError
from knockgraph.losses.loss import Loss, LossParts

__all__ = ["Loss", "LossError", "LossParts", "available", "create"]


def available() -> list[str]:
    """The names of all losses."""
    return registry.available("loss")


def create(name: str, **options: Any) -> Loss:
    """A loss by name.

    Args:
        name: One of :func:`available`, or ``package.module:Class``.
        options: Those of the loss's own docstring.

    >>> create("bce", positive_weight=3.0)
    BCELoss(positive_weight=3.0)
    """
    made: Loss = registry.create("loss", name, **options)
    return made
