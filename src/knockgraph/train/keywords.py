"""From the keyword arguments of :func:`knockgraph.fit` to a config."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from knockgraph import registry
from knockgraph.errors import ConfigError
from knockgraph.models.presets import SMALL_CELL
from knockgraph.options import did_you_mean
from knockgraph.train.config import compose
from knockgraph.train.schema import Config, from_tree, keys, with_options_spelled_out

_PRESETS = {"small": "hetero-small", "fast": "hetero-fast", "pairs": "hetero-pairs", "reference": "hetero"}
_GIVEN_OTHERWISE = {
    "data.cell": "graph",
    "data.screen": "screen",
    "data.phenotypes": "phenotype",
    "data.split.kind": "split",
    "data.split.file": "split",
    "trainer.max_epochs": "epochs",
    "seed": "seed",
    "run_dir": "run_dir",
    "model.name": "model",
}
_NOT_HERE = ("resume", "requeue", "data.experiments", "model.options")
_CHOSEN = ("loss", "strategy", "trainer")  # groups whose members can be given by name


def config_of(model: str, num_genes: int, options: Mapping[str, Any]) -> Config:
    """The config of a run that is started in Python.

    Args:
        model: A name, ``hetero`` in the size that suits the number of genes.
        num_genes: Genes of the cell graph.
        options: Keys of the config in full (``loader.batch_size``), by their last word where that is unambiguous
            (``batch_size``), as groups (``optimizer={"lr": 1e-3}``), or options of the model (``channels``).
    """
    rest = dict(options)
    words = [f"model={_with_size(model, num_genes, rest)}"]
    words += [f"{group}={rest.pop(group)}" for group in _CHOSEN if isinstance(rest.get(group), str)]
    config = compose(words)
    tree = asdict(config)
    for key, value in rest.items():
        if isinstance(value, Mapping) and key in tree and isinstance(tree[key], dict):
            for path, inner in _leaves(key, value):
                _set(tree, _checked(path), inner)
        else:
            path = key if "." in key else _path(key, config.model.name)
            _set(tree, _checked(path), value)
    return with_options_spelled_out(from_tree(tree))


def _with_size(model: str, num_genes: int, rest: dict[str, Any]) -> str:
    """The hetero model with its preset's optimizer, as the command line has it."""
    if model != "hetero":
        return model
    preset = rest.pop("preset", "small" if num_genes < SMALL_CELL else "fast")
    if preset not in _PRESETS:
        raise ConfigError(f"the model hetero has no preset {preset!r}; it has {', '.join(_PRESETS)}")
    return _PRESETS[preset]


def _path(name: str, model: str) -> str:
    """The key that a word means."""
    config, own = keys(Config), _model_options(model)
    if name in config:
        return name
    found = [key for key in config if key.rpartition(".")[2] == name and not key.startswith(("model.", "logging."))]
    found = [key for key in found if key.rpartition(".")[2] not in ("name", "options")]
    found += [f"model.options.{option}" for option in own if option.rpartition(".")[2] == name]
    if len(found) > 1:
        raise ConfigError(
            f"the option {name!r} may mean {' or '.join(found)}; write **{{{found[0]!r}: …}} for the first"
        )
    if not found:
        known = {key.rpartition(".")[2] for key in (*config, *own)} | set(_GIVEN_OTHERWISE.values())
        raise ConfigError(
            f"there is no option {name!r}{did_you_mean(name, known)}; the model {model} has {', '.join(own)}, and "
            "'knockgraph train --cfg' shows the keys of a run"
        )
    return found[0]


def _model_options(model: str) -> list[str]:
    """Names of a model's options, those in groups with the group in front."""
    kind = registry.find("model", model)
    try:
        hints = typing.get_type_hints(inspect.getattr_static(kind, "__init__"))
    except NameError:
        hints = {}
    names: list[str] = ["preset"]
    for name, parameter in inspect.signature(kind).parameters.items():
        if name == "graph" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        names.append(name)
        group = hints.get(name)
        if is_dataclass(group):
            names += [f"{name}.{field.name}" for field in fields(group)]
    return names


def _checked(path: str) -> str:
    if path in _GIVEN_OTHERWISE:
        raise ConfigError(f"{path!r} is the argument {_GIVEN_OTHERWISE[path]}=… of fit; give it there")
    if path in _NOT_HERE:
        raise ConfigError(f"{path!r} has no meaning in Python; leave it out")
    return path


def _leaves(under: str, tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{under}.{key}"
        free = path.endswith((".options", ".accumulate", ".merge"))
        found += _leaves(path, value) if isinstance(value, Mapping) and not free else [(path, value)]
    return found


def _set(tree: dict[str, Any], path: str, value: Any) -> None:
    *groups, last = path.split(".")
    for group in groups:
        inner = tree.setdefault(group, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"there is no option {path!r}: {group} is not a group of options")
        tree = inner
    if isinstance(value, Mapping) and isinstance(tree.get(last), dict):
        value = {**tree[last], **value}
    tree[last] = list(value) if isinstance(value, tuple) else value
