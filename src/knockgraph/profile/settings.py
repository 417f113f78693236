"""Settings by name: ``dango``, ``hetero+lazy-mask``, overrides in quotes, a run's config, an earlier profile."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import knockgraph.conf
from knockgraph import registry
from knockgraph.errors import FileFormatError, KnockgraphError
from knockgraph.train.config import compose, load
from knockgraph.train.schema import Config

VERSION = 1
"""Of the results that ``knockgraph profile --json`` writes and reads again."""

_GROUPS = ("model", "strategy", "loss", "preset")
_NEEDED = ("conditions", "machine", "runs", "epoch")


@dataclass(frozen=True)
class Setting:
    """Something to profile.

    Attributes:
        label: What it is called.
        config: Its config, or
        result: what was measured earlier.
    """

    label: str
    config: Config | None
    result: dict[str, Any] | None = None


def setting(text: str, common: Sequence[str] = ()) -> Setting:
    """The setting that an argument of the command line describes.

    Args:
        text: Names joined by ``+`` and overrides, a YAML file, a run directory, or a JSON file of an earlier profile.
        common: Overrides of all settings; those of ``text`` win.
    """
    path = Path(text)
    if path.suffix == ".json":
        return Setting(path.stem, None, read_profile(path))
    if path.suffix in (".yaml", ".yml") or (path / "config.yaml").is_file():
        file = path if path.suffix else path / "config.yaml"
        if common:
            raise KnockgraphError(
                f"the overrides {' '.join(common)} do not apply to {file}, which is a whole config; "
                "give settings by name, or leave the overrides out"
            )
        return Setting(path.parent.name if file == path else path.name, load(file))
    return Setting(text, compose([*common, *words(text)]))


def words(text: str) -> list[str]:
    """The overrides that a setting stands for.

    >>> words("hetero+lazy-mask loader.batch_size=8")
    ['model=hetero', 'strategy=lazy-mask', 'loader.batch_size=8']
    >>> words("dango")
    ['model=dango', 'loss=dango']
    """
    found = []
    for word in shlex.split(text):
        found += [word] if "=" in word else [_named(name, text) for name in word.split("+")]
    if "model=dango" in found and not any(word.startswith("loss=") for word in found):
        found.insert(found.index("model=dango") + 1, "loss=dango")  # its reconstruction loss is part of its cost
    return found


def _named(name: str, text: str) -> str:
    folder = Path(str(knockgraph.conf.__file__)).parent
    known = {group: {file.stem for file in (folder / group).glob("*.yaml")} for group in _GROUPS}
    for group in set(_GROUPS) & set(registry.BUILT_IN):
        known[group].update(registry.available(group))
    for group, names in known.items():
        if name in names:
            return f"{group}={name}"
    choices = "; ".join(f"{group} {', '.join(sorted(names))}" for group, names in known.items())
    raise KnockgraphError(f"{text!r}: there is no setting {name!r}; use key=value, or a name of {choices}")


def read_profile(path: Path) -> dict[str, Any]:
    """An earlier result of ``knockgraph profile --json``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise KnockgraphError(
            f"there is no profile at {path}; write one with knockgraph profile --json {path}"
        ) from None
    except (ValueError, OSError, RecursionError) as error:
        raise FileFormatError(f"{path} cannot be read as JSON: {error}; write the profile again") from error
    version = found.get("profile") if isinstance(found, dict) else None
    if type(version) is int and version > VERSION:
        raise FileFormatError(
            f"{path} has profile format version {version}, newer than the {VERSION} this release reads; upgrade "
            "knockgraph"
        )
    if type(version) is not int or version < 1:
        raise FileFormatError(
            f"{path} is not a profile of one setting; write one with knockgraph profile --json {path}"
        )
    if missing := [key for key in _NEEDED if not isinstance(found.get(key), dict)]:
        raise FileFormatError(f"{path} is not a complete profile, it has no {missing[0]!r}; write the profile again")
    return dict(found)
