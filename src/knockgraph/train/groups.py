"""Groups of the config: what can be chosen by name, with a YAML file or without."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from knockgraph import registry
from knockgraph.errors import ConfigError

NAMED = ("model", "strategy", "loss")
"""Groups whose members are names of the registry; a YAML file is for those that set more than the name."""

BEST = dict.fromkeys(("collins2007", "costanzo2016", "interactions"), "profile-propagation") | {
    "kuzmin2018": "boosting"
}
"""Data → the model of a run that chooses none: the best one there; how it was chosen: docs/results.md."""
BEST_OF_LARGER_CLASSES = BEST["kuzmin2018"]
"""The best model where most genotypes have three genes or more and their labels are classes."""


def choices(group: str) -> list[str]:
    """What a group of the config can be: its YAML files and, of models, strategies and losses, every name."""
    return sorted({*written(group), *(registry.available(group) if group in NAMED else ())})


def written(group: str) -> set[str]:
    """The members of a group that have a YAML file."""
    folder = files("knockgraph.conf").joinpath(group)
    members = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return {name.removesuffix(".yaml") for name in members if name.endswith(".yaml")}


def of_name(name: str) -> dict[str, Any]:
    """The member of a group that no YAML file describes: a name without options."""
    return {"name": name, "options": {}}


def chosen_by_name(words: Sequence[str]) -> list[str]:
    """``model.name=mine`` chooses ``model=mine`` where no other word chooses a model: the options of the default one
    are not its own. Where none is chosen, it is the one that is best on the data.
    """
    if {"data.phenotype", "data.phenotypes"} <= {word.lstrip("+").partition("=")[0] for word in words}:
        raise ConfigError("config key 'data.phenotype': it is short for data.phenotypes=[…]; give one of the two")
    chosen = []
    for word in words:
        group, dot, name = word.partition(".name=")
        alone = dot and group in NAMED and not any(other.startswith(f"{group}=") for other in words)
        chosen.append(f"{group}={name}" if alone and name not in written(group) else word)
    given = {word.partition("=")[0]: word.partition("=")[2] for word in chosen}
    if given.get("data") in BEST and not given.keys() & {"model", "preset"}:
        chosen.append(f"model={BEST[given['data']]}")
    return chosen
