"""Every group, name and key of the config in words: what there is to choose, and what each option means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from importlib.resources import files
from typing import Any, get_type_hints

from knockgraph import registry
from knockgraph.errors import ConfigError, KnockgraphError
from knockgraph.options import NO_DEFAULT, Option, described, did_you_mean, summary
from knockgraph.train.groups import NAMED, choices, written
from knockgraph.train.schema import CHOICES, Config, keys

FILES = ("data", "trainer", "preset")
"""Groups whose members are YAML files."""

_WHAT = {
    "model": "what predicts",
    "strategy": "how the model is given each strain's own graph",
    "loss": "what is minimised",
    "data": "which cell graph, which screen, which labels",
    "trainer": "length of the training, devices, precision and logging",
    "preset": "named runs",
    "convolution": "how a layer of the hetero model passes messages: model.options.messages.conv=NAME",
    "baseline": "what a model is compared with: trainer.baselines=[NAME,…], or 'knockgraph baselines'",
    "source": "readers of files: 'knockgraph graph build --preset NAME', 'knockgraph screen import NAME'",
}


@dataclass(frozen=True)
class Explained:
    """The options of something, and how one of them is set.

    Attributes:
        what: What it is.
        prefix: What stands before the name of an option.
        options: The options.
    """

    what: str
    prefix: str
    options: list[Option]


def groups() -> dict[str, str]:
    """Group → what it is: those chosen by name, then those that have keys only."""
    only_keys = {
        name: hint for name, hint in get_type_hints(Config).items() if is_dataclass(hint) and name not in _WHAT
    }
    plain = {name: summary(hint) for name, hint in only_keys.items()}  # type: ignore[arg-type]
    return {**_WHAT, **plain}


def members(group: str) -> dict[str, str]:
    """Member of a group → what it is, in a line."""
    if group in FILES:
        return {name: _of_file(group, name) for name in choices(group)}
    if group in NAMED:
        return {name: _of_file(group, name) or _about(group, name) for name in choices(group)}
    if group in registry.KINDS:
        return {name: _about(group, name) for name in registry.available(group)}
    return {}


def explained(word: str) -> Explained:
    """The options of ``model=hetero``, the keys of ``trainer``, or those that ``trainer=gpu`` sets."""
    group, _, name = word.partition("=")
    if group not in groups():
        raise ConfigError(
            f"there is no group {group!r}{did_you_mean(group, groups())}; use one of {', '.join(groups())}"
        )
    known = list(members(group))
    if name and name not in known and ":" not in name:
        raise ConfigError(f"there is no {group}={name}{did_you_mean(name, known, 3)}; use one of {', '.join(known)}")
    if group in registry.KINDS and name:
        return _of_class(group, name)
    if group == "preset" or group in registry.KINDS:
        return Explained(_of_file(group, name) if name else groups()[group], "", [])
    from knockgraph.train.config import compose

    given = [f"{group}.{key}={NO_DEFAULT!r}" for key in _must_be_given(group, name)]
    chosen = compose([*([word] if name else []), *given])
    return Explained(groups()[group], f"{group}.", _keys(group, chosen))


def completions(incomplete: str, chosen_model: str = "hetero") -> Iterator[str]:
    """Words ``key=value`` that begin like this: for a key its choices or its default, for a group its members."""
    group, equals, _ = incomplete.partition("=")
    in_groups = [*NAMED, *FILES]
    if equals and group in in_groups:
        yield from (f"{group}={name}" for name in choices(group) if f"{group}={name}".startswith(incomplete))
        return
    if incomplete.startswith("model.options."):
        for option in _of_class("model", chosen_model).options:
            yield from _words(f"model.options.{option.name}", option, incomplete)
        return
    if not equals:
        yield from (f"{name}=" for name in in_groups if name.startswith(incomplete))
    for option in _all_keys():
        yield from _words(option.name, option, incomplete)
    if "model.options.".startswith(incomplete):
        yield "model.options."


def _words(key: str, option: Option, incomplete: str) -> Iterator[str]:
    values = option.choices or (option.default,)
    words = (
        [f"{key}={written_value(value)}" for value in values]
        if incomplete.startswith(f"{key}=")
        else [f"{key}={written_value(option.default)}"]
    )
    yield from (word for word in words if word.startswith(incomplete))


def written_value(value: Any) -> str:
    """A value as it is written on the command line.

    >>> written_value(None), written_value(True), written_value([1, 2]), written_value({0: 1}), written_value(())
    ('null', 'true', '[1,2]', '{0:1}', '[]')
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(written_value, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{written_value(v)}' for key, v in value.items())}}}"
    return str(value)


def _of_class(group: str, name: str) -> Explained:
    """The options of a class of the registry, with the defaults of the YAML file if one of that name sets them."""
    set_there: dict[str, Any] = {}
    kind = name
    what = ""
    if group in NAMED and name in written(group):
        from knockgraph.train.config import compose

        chosen = getattr(compose([f"{group}={name}"]), group)
        kind, set_there, what = chosen.name, dict(_flat(chosen.options)), _of_file(group, name)
    options = [
        replace(option, default=set_there.get(option.name, option.default))
        for option in described(registry.find(group, kind))
    ]
    prefix = f"{group}.options." if group in NAMED else ""
    return Explained(what or _about(group, kind), prefix, options)


def _keys(group: str, config: Config) -> list[Option]:
    """The keys of a group of the config, with their values in a config."""
    kind = get_type_hints(Config)[group]
    return [_with_choices(option, group, _value_at(getattr(config, group), option)) for option in described(kind)]


def _must_be_given(group: str, name: str) -> list[str]:
    """Keys of a YAML file that have no value yet."""
    path = files("knockgraph.conf").joinpath(group, f"{name}.yaml")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return re.findall(r"^(\w+): \?\?\?", text, re.MULTILINE)


def _all_keys() -> list[Option]:
    top = [option for option in described(Config) if "." not in option.name]
    inner = [
        replace(option, name=f"{group}.{option.name}")
        for group, kind in get_type_hints(Config).items()
        if is_dataclass(kind) and group not in NAMED
        for option in _keys(group, Config())
    ]
    known = set(keys(Config))
    return [_with_choices(option, "", option.default) for option in top if option.name in known] + inner


def _with_choices(option: Option, group: str, default: Any) -> Option:
    allowed = CHOICES.get(f"{group}.{option.name}" if group else option.name, option.choices)
    needed = f"one of {', '.join(allowed)}" if allowed else option.needed
    return replace(option, choices=tuple(allowed), needed=needed, default=default)


def _value_at(config: Any, option: Option) -> Any:
    for part in option.name.split("."):
        config = getattr(config, part)
    return config


def _flat(options: Any, under: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{under}{name}.")
        else:
            yield f"{under}{name}", value


def _about(kind: str, name: str) -> str:
    try:
        return registry.about(kind, name)
    except KnockgraphError as error:  # of a package that cannot be imported
        return f"cannot be used: {error}"


def _of_file(group: str, name: str) -> str:
    """The first sentence of the comment on top of a YAML file."""
    path = files("knockgraph.conf").joinpath(group, f"{name}.yaml")
    if not path.is_file():
        return ""
    lines = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    text = " ".join(line for line in lines if not line.startswith("@"))
    return re.split(r"\.\s+(?=[A-Z])", text, maxsplit=1)[0].rstrip(".: ")
