"""The config without Hydra: the same YAML files and the same overrides, for machines that have little but torch.

Understood are groups (``model=dango``), presets, and dotted keys (``trainer.max_steps=30``). Sweeps, interpolations and
deletions are Hydra's own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import knockgraph.conf
from knockgraph import registry
from knockgraph.errors import ConfigError
from knockgraph.options import did_you_mean
from knockgraph.train.groups import NAMED, choices, chosen_by_name, of_name
from knockgraph.train.schema import Config, Tree, from_tree, of_that_time, with_options_spelled_out

MOST_BYTES = 1 << 18
"""Of a config that is read."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def compose_plain(overrides: Sequence[str] = ()) -> Config:
    """The config for a list of overrides; the same as Hydra's."""
    folder = Path(str(knockgraph.conf.__file__)).parent
    root = _read(folder / "config.yaml")
    chosen: dict[str, str | None] = {}
    for entry in root.pop("defaults"):
        if isinstance(entry, dict):
            chosen.update(entry)
    given: dict[str, str] = {}
    keys: list[tuple[str, Any]] = []
    for word in chosen_by_name(overrides):
        name, equals, text = word.lstrip("+").partition("=")
        if not equals:
            raise ConfigError(f"the overrides cannot be applied: {word!r} is not key=value")
        if name in chosen:
            given[name] = text
        else:
            keys.append((name, _value(text)))
    chosen.update(given)
    wanted = chosen.pop("preset", None)
    preset: Tree = {}
    if wanted is not None:
        preset, selected = _preset(folder, wanted)
        chosen.update({group: choice for group, choice in selected.items() if group not in given})
    for group, choice in list(chosen.items()):
        if _sets_everything(folder / group / f"{choice}.yaml"):
            more, selected = _preset(folder, str(chosen.pop(group)), group)
            chosen.update({other: name for other, name in selected.items() if other not in given})
            preset = _merged(more, preset)
    tree: Tree = {group: _member(folder, group, str(choice)) for group, choice in chosen.items()}
    tree = _merged(_merged(tree, root), preset)
    for name, value in keys:
        _set(tree, name.split("."), value)
    return with_options_spelled_out(from_tree(tree))


def load_plain(path: Path) -> Config:
    """The resolved config of a run directory."""
    import yaml

    if not path.is_file():
        raise ConfigError(f"there is no config at {path}; is {path.parent} a run directory?")
    try:
        check_yaml(path)
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{path} cannot be read: it holds no keys; copy it again from its origin")
    try:
        return of_that_time(from_tree(tree))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def check_yaml(path: Path) -> None:
    """Refuse a file of a size that no config has, and aliases: a few of them stand for millions of values.

    Raises:
        yaml.YAMLError: It is not YAML.
    """
    import yaml

    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ConfigError(f"{path} cannot be read: it has {size:,} bytes, and a config has a few thousand")
    for token in yaml.scan(path.read_text(encoding="utf-8")):
        if isinstance(token, yaml.AliasToken):
            raise ConfigError(
                f"{path} cannot be read: line {token.start_mark.line + 1} has the alias *{token.value}, and a resolved "
                "config has none; write the value there"
            )


def _read(path: Path) -> Tree:
    import yaml

    if not os.path.isfile(path):  # unlike Path.is_file, it takes any text for a name
        known = choices(path.parent.name)
        raise ConfigError(
            f"the overrides cannot be applied: there is no {path.parent.name}={path.stem}"
            f"{did_you_mean(path.stem, known, 3)}; use one of {', '.join(known)}"
        )
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})


def _member(folder: Path, group: str, name: str) -> Tree:
    """A group's file on top of the files of the same group that it names."""
    path = folder / group / f"{name}.yaml"
    if group in NAMED and not os.path.isfile(path) and (":" in name or name in registry.available(group)):
        return of_name(name)
    tree = _read(path)
    under: Tree = {}
    for entry in tree.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            under = _merged(under, _member(folder, group, entry))
    return _merged(under, tree)


def _sets_everything(path: Path) -> bool:
    """Whether a file says that its keys are those of the whole config, not of its group."""
    return os.path.isfile(path) and path.read_text(encoding="utf-8").startswith("# @package _global_")


def _preset(folder: Path, name: str, group: str = "preset") -> tuple[Tree, dict[str, str]]:
    """What a preset (or a member of a group that sets everything) sets, and which members of groups it selects."""
    tree = _read(folder / group / f"{name}.yaml")
    under: Tree = {}
    selected: dict[str, str] = {}
    for entry in tree.pop("defaults", []):
        if isinstance(entry, dict):
            selected.update({key.removeprefix("override /"): choice for key, choice in entry.items()})
        elif "@" in entry:
            base, _, key = entry.partition("@")
            under = _merged(under, {key: _member(folder, group, base)})
        elif entry != "_self_":
            more, chosen = _preset(folder, entry, group)
            under, selected = _merged(under, more), {**chosen, **selected}
    return _merged(under, tree), selected


def _merged(under: Tree, over: Tree) -> Tree:
    """Both, key by key; ``over`` wins."""
    both = dict(under)
    for key, value in over.items():
        known = both.get(key)
        both[key] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return both


def _set(tree: Tree, path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"the overrides cannot be applied: {'.'.join(path)!r} has no keys below {name!r}")
    known = tree.get(path[-1])
    tree[path[-1]] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value


def _value(text: str) -> Any:
    """YAML, except where Hydra reads another thing: 1e-3 is a number, off is a word, {0:2} needs no blank."""
    import yaml

    try:
        found = yaml.safe_load(re.sub(r":(?=\S)", ": ", text) if text.startswith("{") else text)
    except (yaml.YAMLError, RecursionError) as error:
        what = str(error).splitlines()[0]
        raise ConfigError(f"the overrides cannot be applied: {text!r} is not a value ({what})") from error
    if isinstance(found, bool) and text.strip().lower() not in ("true", "false"):
        return text.strip()
    return float(found) if isinstance(found, str) and _NUMBER.fullmatch(found) else found
