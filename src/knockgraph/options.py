"""Options of everything that is chosen by name, checked against the signature of its class."""

from __future__ import annotations

import difflib
import inspect
import numbers
import re
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from knockgraph.errors import KnockgraphError

_NOT_OPTIONS = ("self", "graph")
_ANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_options(
    what: str, kind: type, options: Mapping[str, Any], error: type[KnockgraphError], under: str = ""
) -> dict[str, Any]:
    """Refuse an option that ``kind`` does not have, or whose type does not match the signature.

    Args:
        what: What to call it in the error, e.g. ``the model hetero``.
        kind: Its class; the cell graph is not an option.
        options: Name → value. Where the signature wants a dataclass, a group of options, the value may be a mapping.
        error: The error to raise.
        under: The group that they are in, with a dot.

    Returns:
        The same, each group an object of its class.
    """
    parameters = inspect.signature(kind).parameters
    known = [name for name, p in parameters.items() if name not in _NOT_OPTIONS and p.kind not in _ANY]
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    hints = _hints(kind)
    checked = dict(options)
    for name, value in options.items():
        hint = hints.get(name, Any)
        if name not in known and not takes_any:
            has = f"{under.rstrip('.') or 'it'} has {', '.join(known) or 'none'}"
            raise error(f"{what} has no option {under + name!r}{did_you_mean(name, known)}; {has}")
        if is_dataclass(hint) and isinstance(value, Mapping):
            assert isinstance(hint, type)
            checked[name] = hint(**check_options(what, hint, value, error, f"{under}{name}."))
        elif not fits(value, hint):
            raise error(f"{what}: the option {under}{name} is {value!r}, but {in_words(hint)} is needed")
    return checked


def takes(name: str, kind: type) -> bool:
    """Whether the class has such an option.

    >>> takes("size", type("Box", (), {"__init__": lambda self, size=1: None}))
    True
    """
    parameters = inspect.signature(kind).parameters
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _hints(kind: type) -> dict[str, Any]:
    """The types of the options; empty if a signature names types that are not imported at run time."""
    try:
        return typing.get_type_hints(inspect.getattr_static(kind, "__init__"))
    except NameError:
        return {}


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """`` (did you mean …?)`` for a name that resembles a known one; otherwise an empty string.

    >>> did_you_mean("chanels", ["channels", "layers"])
    " (did you mean 'channels'?)"
    """
    known = list(known)
    close = difflib.get_close_matches(name, known, n=most) or [k for k in known if len(name) > 2 and k.startswith(name)]
    close = close[:most]
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type; an integer is a number, a truth value is not.

    >>> fits(3, float), fits(True, float), fits("abc", float | None), fits(["a"], Iterable[str])
    (True, False, False, True)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:  # the class itself checks the values
        return any(type(value) is type(one) for one in arguments)
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))
    if hint is float or hint is int:
        number = numbers.Real if hint is float else numbers.Integral
        return isinstance(value, number) and not isinstance(value, bool)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            fits(k, arguments[0]) and fits(v, arguments[1]) for k, v in value.items()
        )
    if isinstance(origin, type) and issubclass(origin, Iterable):
        texts = isinstance(value, str) or not isinstance(value, Iterable)
        return not texts and (not arguments or all(fits(v, arguments[0]) for v in value))
    kind = origin or hint
    return isinstance(value, kind) if isinstance(kind, type) else True


def in_words(hint: Any) -> str:
    """A type in words.

    >>> in_words(int | None), in_words(Iterable[str])
    ('an integer or nothing (null)', 'a list of strings')
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(one) for one in arguments)
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if is_dataclass(hint):
        return f"a group of options ({', '.join(field.name for field in fields(hint))})"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a string", type(None): "nothing (null)"}
    if hint in words:
        return words[hint]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a mapping {name: value}"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        plural = {int: "integers", float: "numbers", str: "strings"}
        return f"a list of {plural.get(arguments[0], 'values')}" if arguments else "a list"
    return getattr(hint, "__name__", str(hint))


# ── what there is ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Option:
    """One option, as its class describes it.

    Attributes:
        name: Its name, dotted if it is in a group.
        needed: The type in words.
        default: The value that it has otherwise; :data:`NO_DEFAULT` if it must be given.
        choices: The values that it can have, if they are few.
        meaning: What it does, from the docstring.
    """

    name: str
    needed: str
    default: Any
    choices: tuple[Any, ...]
    meaning: str


NO_DEFAULT = "(must be given)"
"""The default of an option without one."""


def described(kind: type, under: str = "") -> list[Option]:
    """The options of a class: names, types and defaults from its signature, meanings from its docstring.

    Args:
        kind: The class; an argument that is a dataclass is a group of options.
        under: The group that they are in, with a dot.

    >>> class Box:
    ...     '''A box.
    ...
    ...     Args:
    ...         size: Of ``one`` side,
    ...             in metres.
    ...     '''
    ...     def __init__(self, size: float = 1.0) -> None: ...
    >>> described(Box)
    [Option(name='size', needed='a number', default=1.0, choices=(), meaning='Of one side, in metres.')]
    """
    hints = _hints(kind)
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):  # an argument of a base class may be described there only
        meanings |= _meanings(inspect.cleandoc(vars(base).get("__doc__") or ""))
    found: list[Option] = []
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in _NOT_OPTIONS or parameter.kind in _ANY:
            continue
        hint = hints.get(name, Any)
        if is_dataclass(hint) and isinstance(hint, type):
            found += described(hint, f"{under}{name}.")
            continue
        default = NO_DEFAULT if parameter.default is inspect.Parameter.empty else parameter.default
        factory = (
            next((f.default_factory for f in fields(kind) if f.name == name), None) if is_dataclass(kind) else None
        )
        if callable(factory):
            default = factory()
        needed = "any value" if hint is Any else in_words(hint)
        found.append(Option(f"{under}{name}", needed, default, _choices(hint), meanings.get(name, "")))
    return found


def summary(kind: type) -> str:
    """The first sentence of a class's docstring, in plain text."""
    text = re.split(r"\n\s*\n|\n\s*\.\. math", inspect.getdoc(kind) or "")[0]
    return re.split(r"(?<=[.:])\s", _plain(text), maxsplit=1)[0].rstrip(":,. ")


def _choices(hint: Any) -> tuple[Any, ...]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return arguments
    return tuple(one for part in arguments for one in _choices(part)) if arguments else ()


def _meanings(doc: str) -> dict[str, str]:
    """Name → text of the sections ``Args:`` and ``Attributes:`` of a docstring."""
    found: dict[str, list[str]] = {}
    inside, name = False, ""
    for line in doc.splitlines():
        if re.match(r"\S", line):
            inside, name = line.strip() in ("Args:", "Attributes:"), ""
        elif inside and (start := re.match(r" {4}(\w+): (.*)", line)):
            name = start[1]
            found[name] = [start[2]]
        elif inside and name:
            found[name].append(line.strip())
    return {name: _plain(" ".join(lines)) for name, lines in found.items()}


def _plain(text: str) -> str:
    """Text without the marks of reStructuredText."""
    text = re.sub(r":math:`([^`]*)`", r"\1", text)
    text = re.sub(r":\w+:`([^`<]+?)\s*<[^`]*>`", r"\1", text)
    text = re.sub(r":\w+:`~?(?:[^`]*\.)?([^`.]+)`", r"\1", text)
    text = re.sub(r"`([^`<]+?)\s*<[^>]*>`_", r"\1", text)
    return " ".join(text.replace("``", "").split())
