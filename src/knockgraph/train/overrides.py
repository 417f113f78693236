"""What may be changed when a run is resumed: how it is run, not what it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from knockgraph.errors import ConfigError
from knockgraph.train.schema import Config, Tree, from_tree, of_that_time
from knockgraph.words import listed

CHANGEABLE = (
    "data.screen",  # it may have moved; that it is the same is checked when it is read
    "loader.num_workers",
    "loader.pin_memory",
    "loader.persistent_workers",
    "loader.prefetch_factor",
    "loader.copy_ahead",
    "loader.timeout",
    "loader.resident",
    "optimizer.lr",
    "trainer.max_epochs",
    "trainer.accelerator",
    "trainer.process_timeout",
    "trainer.gradient_clip",
    "trainer.compile",
    "trainer.cuda_graph",
    "trainer.early_stopping",
    "trainer.log_every_n_steps",
    "trainer.plot_every_n_epochs",
    "trainer.checkpoint_every_n_steps",
    "trainer.progress_bar",
    "trainer.baselines",
    "trainer.profile",
    "trainer.profile_window",
    "logging.wandb",
    "logging.project",
    "logging.entity",
    "logging.group",
    "logging.tags",
)
_NOT_THE_RUN = ("run_dir", "resume", "requeue")
_FREE = (*_NOT_THE_RUN, *CHANGEABLE, "data.cell")  # a run has its own copy of the cell, known by its hash


def changed(kept: Config, given: Config, overrides: Sequence[str]) -> Config:
    """The config of a run with what the overrides change in it; refused by name if they change what it is.

    A group (``trainer=gpu``, ``preset=reference``) is compared, not applied: its other keys are the run's own.

    Args:
        kept: The config of the run.
        given: The config that the overrides describe.
        overrides: ``key=value``.
    """
    keys = {word.lstrip("+~").partition("=")[0] for word in overrides}
    keys = {"data.phenotypes" if key == "data.phenotype" else key for key in keys}
    before, after = dict(_leaves(kept)), dict(_leaves(given))
    for path in sorted(before.keys() | after.keys()):
        if path in _NOT_THE_RUN or not _is_meant(path, keys) or before.get(path) == after.get(path):
            continue
        if _may_change(path, before, after):
            if path in keys:
                _set(kept, path, after[path])
        else:
            was, now = (f"{found[path]!r}" if path in found else "not set" for found in (before, after))
            raise ConfigError(
                f"config key {path!r}: it is {was} in this run and cannot become {now} when the run is resumed; "
                "leave it out, or start a new run"
            )
    return kept


def trained_with(config: Config) -> Tree:
    """What a run is, for its checkpoints: the config without what may change."""
    tree: Tree = _without_tuples(dataclasses.asdict(config))
    for path in _FREE:
        *groups, name = path.split(".")
        inner = tree
        for group in groups:
            inner = inner[group]
        del inner[name]
    return tree


def check_unedited(config: Config, trained: Tree | None, path: Path) -> None:
    """Refuse a ``config.yaml`` that was edited into that of another run.

    Args:
        config: What it says now.
        trained: What :func:`trained_with` said; ``None`` in a checkpoint of an earlier version.
        path: Where it is.
    """
    if trained is None:
        return
    before, now = dict(_leaves(of_that_time(from_tree(trained)))), dict(_leaves(config))
    edited = []
    for key in sorted(before.keys() | now.keys()):
        if key in _FREE or before.get(key) == now.get(key) or _may_change(key, before, now):
            continue
        was, found = (f"{values[key]!r}" if key in values else "not set" for values in (before, now))
        edited.append(f"{key} is {found} there and was {was}")
    if edited:
        raise ConfigError(
            f"{path} is no longer what the run was trained with ({listed(edited)}); restore it to continue with this "
            "run, or start a new run for other values"
        )


def _without_tuples(value: Any) -> Any:
    """As YAML gives it back."""
    if isinstance(value, dict):
        return {key: _without_tuples(inner) for key, inner in value.items()}
    return [_without_tuples(inner) for inner in value] if isinstance(value, list | tuple) else value


def _may_change(path: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    if path == "trainer.precision":  # weights are in float32 either way
        return {before[path], after[path]} == {"32-true", "bf16-mixed"}
    return path in CHANGEABLE


def _is_meant(path: str, keys: Collection[str]) -> bool:
    return "preset" in keys or any(path == key or path.startswith(f"{key}.") for key in keys)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key → value; the options of a model, strategy or loss have keys, too."""
    if dataclasses.is_dataclass(value):
        inner = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    elif isinstance(value, dict) and ".options" in path:
        inner = value
    else:
        yield path, value
        return
    for name, content in inner.items():
        yield from _leaves(content, f"{path}.{name}" if path else str(name))


def _set(config: Any, path: str, value: Any) -> None:
    *groups, name = path.split(".")
    for group in groups:
        config = getattr(config, group)
    setattr(config, name, value)
