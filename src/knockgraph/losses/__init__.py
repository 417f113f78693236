"""Losses: a prediction and its labels in, one scalar and its named parts out.

=============  ===================================================================================================
name           what it is
=============  ===================================================================================================
``mse``        squared error
``log-cosh``   log cosh of the error: squared when small, absolute when large
``bce``        binary cross-entropy with logits
``dango``      DANGO's reconstruction and interaction terms, weighted by a schedule over epochs
``composite``  squared error, Wasserstein distance of the label distributions, supervised contrastive regression
=============  ===================================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from knockgraph.losses.loss import Loss, LossError, LossParts
from knockgraph.options import check_options

__all__ = ["Loss", "LossError", "LossParts", "available", "create"]

_CLASSES = {
    "mse": ("pointwise", "MSELoss"),
    "log-cosh": ("pointwise", "LogCoshLoss"),
    "bce": ("pointwise", "BCELoss"),
    "dango": ("dango", "DangoLoss"),
    "composite": ("composite", "CompositeLoss"),
}


def available() -> list[str]:
    """The names of all losses."""
    return list(_CLASSES)


def create(name: str, **options: Any) -> Loss:
    """A loss by name.

    Args:
        name: One of :func:`available`.
        options: Those of the loss's own docstring.

    >>> create("bce", positive_weight=3.0)
    BCELoss(positive_weight=3.0)
    """
    if name not in _CLASSES:
        raise LossError(f"there is no loss {name!r}; use one of {', '.join(_CLASSES)}")
    module, class_name = _CLASSES[name]
    loss_class: type[Loss] = getattr(import_module(f"knockgraph.losses.{module}"), class_name)
    check_options(f"the loss {name}", loss_class, options, LossError)
    return loss_class(**options)
