"""The registry of everything that is chosen by name: models, strategies, convolutions, losses, baselines, sources.

A name is one of three things:

* one that is registered: ours (:data:`BUILT_IN`), or yours (:func:`register`);
* an entry point of another installed package, in the group ``knockgraph.models``, ``knockgraph.strategies``,
  ``knockgraph.convolutions``, ``knockgraph.losses``, ``knockgraph.baselines`` or ``knockgraph.sources``;
* ``package.module:Class``, for anything that Python can import.

Nothing is imported before it is needed. Only a class of the right kind is ever called, and the current folder is not
searched: the config of someone else's run can name installed code, but cannot bring its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from knockgraph.errors import (
    BaselineError,
    KnockgraphError,
    LossError,
    ModelError,
    RegistryError,
    SourceError,
    StrategyError,
)
from knockgraph.options import check_options, did_you_mean, summary


@dataclass(frozen=True)
class Kind:
    """One kind of thing that is chosen by name.

    Attributes:
        group: Entry points of this group belong to it.
        base: The class that all of them derive from.
        error: Raised where a name is wrong.
        also: Another kind whose members serve as well: a baseline is a model that is fitted at once.
    """

    group: str
    base: str
    error: type[KnockgraphError]
    also: str | None = None


KINDS: dict[str, Kind] = {
    "model": Kind("knockgraph.models", "torch.nn:Module", ModelError, also="baseline"),
    "strategy": Kind("knockgraph.strategies", "knockgraph.strategies.strategy:Strategy", StrategyError),
    "convolution": Kind("knockgraph.convolutions", "torch.nn:Module", ModelError),
    "loss": Kind("knockgraph.losses", "knockgraph.losses.loss:Loss", LossError),
    "baseline": Kind("knockgraph.baselines", "knockgraph.models.baselines.baseline:Baseline", BaselineError),
    "source": Kind("knockgraph.sources", "knockgraph.sources.source:Source", SourceError),
}

BUILT_IN: dict[str, dict[str, str]] = {
    "model": {
        "hetero": "knockgraph.models.hetero:HeteroCellModel",
        "dango": "knockgraph.models.dango:Dango",
        "residual": "knockgraph.models.residual:ResidualModel",
        "additive": "knockgraph.models.toy:AdditiveModel",
        "constant": "knockgraph.models.toy:ConstantModel",
    },
    "strategy": {
        "subgraph": "knockgraph.strategies.subgraph:Subgraph",
        "lazy-mask": "knockgraph.strategies.lazy_mask:LazyMask",
        "stored-indices": "knockgraph.strategies.stored_indices:StoredIndices",
        "stored-masks": "knockgraph.strategies.stored_masks:StoredMasks",
        "device-loop": "knockgraph.strategies.device_loop:DeviceLoop",
        "device-vectorized": "knockgraph.strategies.device_vectorized:DeviceVectorized",
        "device-inplace": "knockgraph.strategies.device_inplace:DeviceInplace",
        "device-cached": "knockgraph.strategies.device_cached:DeviceCached",
        "device-filter": "knockgraph.strategies.device_filter:DeviceFilter",
        "neighborhood": "knockgraph.strategies.neighborhood:Neighborhood",
        "node-mask": "knockgraph.strategies.node_mask:NodeMask",
    },
    "convolution": {
        "gin": "knockgraph.nn.conv.gin:GINConv",
        "sage": "knockgraph.nn.conv.sage:SAGEConv",
        "gcn": "knockgraph.nn.conv.gcn:GCNConv",
        "gatv2": "knockgraph.nn.conv.gatv2:GATv2Conv",
    },
    "loss": {
        "mse": "knockgraph.losses.pointwise:MSELoss",
        "log-cosh": "knockgraph.losses.pointwise:LogCoshLoss",
        "gaussian": "knockgraph.losses.pointwise:GaussianLoss",
        "bce": "knockgraph.losses.pointwise:BCELoss",
        "dango": "knockgraph.losses.dango:DangoLoss",
        "composite": "knockgraph.losses.composite:CompositeLoss",
    },
    "baseline": {
        "mean": "knockgraph.models.baselines.baseline:Mean",
        "additive": "knockgraph.models.baselines.ridge:Additive",
        "ridge-pairs": "knockgraph.models.baselines.ridge:RidgePairs",
        "low-rank": "knockgraph.models.baselines.low_rank:LowRank",
        "boosting": "knockgraph.models.baselines.boosting:Boosting",
        "smoothing": "knockgraph.models.baselines.smoothing:Smoothing",
        "soft-impute": "knockgraph.models.baselines.soft_impute:SoftImpute",
        "pair-gp": "knockgraph.models.baselines.pair_gp:PairGP",
        "profile-propagation": "knockgraph.models.baselines.profile_propagation:ProfilePropagation",
    },
    "source": {
        "demo": "knockgraph.sources.demo:Demo",
        "yeast-scale": "knockgraph.sources.yeast_scale:YeastScale",
        "tables": "knockgraph.sources.graph_tables:Tables",
        "table": "knockgraph.sources.tables:Table",
        "pyg": "knockgraph.sources.pyg:Pyg",
        "torchcell": "knockgraph.sources.torchcell:Torchcell",
        "yeast": "knockgraph.sources.presets:Yeast",
        "yeast-lite": "knockgraph.sources.presets:YeastLite",
        "yeast-clean": "knockgraph.sources.presets:YeastClean",
        "dango-string9_1": "knockgraph.sources.presets:DangoString9_1",
        "dango-string11_0": "knockgraph.sources.presets:DangoString11_0",
        "dango-string12_0": "knockgraph.sources.presets:DangoString12_0",
        "collins2007": "knockgraph.sources.presets:Collins2007",
        "costanzo2016": "knockgraph.sources.presets:Costanzo2016",
        "kuzmin2018": "knockgraph.sources.presets:Kuzmin2018",
    },
}
"""Kind → name → where its class is; a new one of ours is a line here."""

ABOUT: dict[str, dict[str, str]] = {
    "model": {
        "hetero": "messages on each strain's own graph; the difference to the wild type predicts",
        "dango": "DANGO (Zhang et al.): messages on the wild type only, attention among the deleted genes",
        "residual": "a trained model that corrects one that is fitted at once, from zero",
        "additive": "one effect per gene, by gradient descent: shows that training works",
        "constant": "predicts 0: shows that metrics do not move by themselves",
    },
    "strategy": {
        "lazy-mask": "edge masks built in the loader's workers from an incidence map",
        "device-vectorized": "edge masks built on the device without loops: the reference design",
        "device-cached": "bit masks of all single deletions, combined for several",
        "node-mask": "no edge masks: one shared sparse product, masked on both sides (the default)",
    },
    "convolution": {
        "gin": "sum of the neighbours, then an MLP (Xu et al.)",
        "sage": "mean of the neighbours and the gene itself (Hamilton et al.)",
        "gcn": "neighbours weighted by degree (Kipf and Welling)",
        "gatv2": "neighbours weighted by attention (Brody et al.)",
    },
    "loss": {
        "mse": "mean squared error",
        "log-cosh": "log cosh of the error: squared for small errors, absolute for large ones",
        "gaussian": "squared error over a noise that is learned for each phenotype: for several screens together",
        "bce": "binary cross-entropy, for task=classification",
        "dango": "DANGO's: reconstruction of the networks and log-cosh, weighted by epoch",
        "composite": "MSE, Wasserstein distance of the values and contrastive regression of the embeddings",
    },
    "baseline": {
        "mean": "the mean of the training labels",
        "additive": "one effect per gene, by ridge regression",
        "ridge-pairs": "effects of genes and of pairs, by ridge regression",
        "low-rank": "effects of genes, and of pairs as products of learned vectors",
        "boosting": "boosted regression trees on features of the genotype",
        "soft-impute": "the matrix of pairs completed by one of low rank",
        "profile-propagation": "pair-gp, corrected; unseen genes take the profiles of similar ones: the best on pairs",
    },
}
"""Kind → name → what it is, in a line, where the docstring of the class starts with a formula."""

_registered: dict[str, dict[str, type]] = {kind: {} for kind in KINDS}


def register(kind: str, name: str, thing: type) -> None:
    """Register a class under a name, in this process.

    Args:
        kind: ``model``, ``strategy``, ``convolution``, ``loss``, ``baseline`` or ``source``.
        name: The name by which it can be chosen, for instance ``model=mine``.
        thing: The class. Registering another one of the same module and name replaces it, so that a cell of a notebook
            can be run again.
    """
    _kind(kind)
    if not name or set(name) & set(":/=, \t\n"):
        raise RegistryError(f"{name!r} cannot be the name of a {kind}: leave out spaces and any of : / = ,")
    _check(kind, name, thing, RegistryError)
    known = _registered[kind].get(name)
    same = known is not None and (known.__module__, known.__qualname__) == (thing.__module__, thing.__qualname__)
    if name in BUILT_IN[kind] or (known is not None and not same):
        raise RegistryError(f"there is already a {kind} {name!r}; choose another name")
    _registered[kind][name] = thing


def available(kind: str) -> list[str]:
    """All names of a kind: built-in, registered, and from other installed packages."""
    also = _kind(kind).also
    return list(dict.fromkeys([*_own(kind), *(_own(also) if also else ())]))


def _own(kind: str) -> list[str]:
    """Without those of the kind that serves as well."""
    return [*BUILT_IN[kind], *_registered[kind], *_offered(_kind(kind).group)]


def check(kind: str, name: str) -> None:
    """Refuse an unknown name, and suggest the nearest ones; nothing is imported."""
    if ":" not in name and name not in available(kind):
        raise _kind(kind).error(f"there is no {kind} {name!r}{near(name, available(kind))}")


def find(kind: str, name: str) -> Any:
    """The class behind a name.

    Args:
        kind: One of :data:`KINDS`.
        name: One of :func:`available`, or ``package.module:Class``.
    """
    about = _kind(kind)
    check(kind, name)
    if about.also is not None and ":" not in name and name not in _own(kind):
        return find(about.also, name)
    if name in _registered[kind]:
        return _registered[kind][name]
    places = dict(_offered(about.group).get(name, {}))
    if name in BUILT_IN[kind]:
        places[BUILT_IN[kind][name]] = "knockgraph"
    if len(places) > 1:
        raise about.error(
            f"several packages have a {kind} {name!r}: {' and '.join(sorted(places.values()))}; uninstall one, or "
            f"choose by class: {' or '.join(sorted(places))}"
        )
    found = _imported(kind, name, next(iter(places), name), about.error)
    _check(kind, name, found, about.error)
    return found


def about(kind: str, name: str) -> str:
    """What a name stands for, in a line."""
    said = ABOUT.get(kind, {}).get(name)
    if said is None and kind == "model":  # baselines are models, too
        said = ABOUT["baseline"].get(name)
    return said or summary(find(kind, name))


def create(kind: str, name: str, *arguments: Any, **options: Any) -> Any:
    """Create one by name, with options checked against the signature of its class.

    Args:
        kind: One of :data:`KINDS`.
        name: See :func:`find`.
        arguments: Positional arguments of every class of this kind, such as the cell graph.
        options: Those of the class.
    """
    found = find(kind, name)
    checked = check_options(f"the {kind} {name}", found, options, _kind(kind).error)
    return found(*arguments, **checked)


def near(name: str, known: list[str]) -> str:
    """Suggestions and the available names, as the end of a sentence.

    >>> near("heterro", ["hetero", "dango"])
    " (did you mean 'hetero'?); use one of hetero, dango, or package.module:Class"
    """
    return f"{did_you_mean(name, known, 3)}; use one of {', '.join(known)}, or package.module:Class"


def _kind(kind: str) -> Kind:
    if kind not in KINDS:
        raise RegistryError(f"there is no kind {kind!r}; use one of {', '.join(KINDS)}")
    return KINDS[kind]


def _offered(group: str) -> Mapping[str, Mapping[str, str]]:
    """Entry points of other packages: name → where its class is → the package."""
    return _entry_points(group, tuple(sys.path))


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
    """Looked up once per import path."""
    from importlib.metadata import entry_points

    found: dict[str, dict[str, str]] = {}
    for point in sorted(entry_points(group=group)):  # else in the order of the disk
        place = f"{point.module}:{point.attr}"
        found.setdefault(point.name, {})[place] = place if point.dist is None else point.dist.name
    return found


def _imported(kind: str, name: str, place: str, error: type[KnockgraphError]) -> Any:
    """What ``package.module:Class`` names."""
    module, _, attribute = place.partition(":")
    what = f"the {kind} {name!r} cannot be imported"
    if not (module and attribute and all(part.isidentifier() for part in (*module.split("."), *attribute.split(".")))):
        raise error(f"{what}: {place!r} is not of the form package.module:Class")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as missing:
        raise error(
            f"{what}: there is no module {missing.name!r}; install its package, or name the folder that holds it in "
            "PYTHONPATH"
        ) from missing
    except Exception as broken:  # it is someone else's module and may raise anything
        raise error(f"{what}: {module} raises {type(broken).__name__}: {broken}") from broken
    for part in attribute.split("."):
        if not hasattr(found, part):
            classes = [key for key, value in vars(found).items() if isinstance(value, type)]
            raise error(f"{what}: {module} has no {part}{did_you_mean(part, classes)}")
        found = getattr(found, part)
    return found


def _check(kind: str, name: str, thing: Any, error: type[KnockgraphError]) -> None:
    """Refuse anything that is not a class of the right kind."""
    about = KINDS[kind]
    bases = [about.base, *([KINDS[about.also].base] if about.also else ())]
    if not isinstance(thing, type) or not any(issubclass(thing, _imported(kind, base, base, error)) for base in bases):
        known = " or ".join(base.replace(":", ".") for base in bases)
        raise error(f"the {kind} {name!r} cannot be used: it is not a class that derives from {known}")
