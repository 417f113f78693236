"""The configuration: composed by Hydra from the YAML files in ``knockgraph/conf``, written and read again."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from knockgraph import registry
from knockgraph.errors import ConfigError
from knockgraph.options import did_you_mean
from knockgraph.train import plain_config
from knockgraph.train.groups import NAMED, choices, chosen_by_name, of_name, written
from knockgraph.train.schema import Config, from_tree, keys, of_that_time, with_options_spelled_out, with_phenotypes

_FREE = r"(model|strategy|loss)\.options[.=]|trainer\.accumulate\b|data\.merge\b|data\.phenotype="

_OPTIONS = {
    "batch": "loader.batch_size",
    "cell": "data.cell",
    "channels": "model.options.channels",
    "device": "trainer.accelerator",
    "epochs": "trainer.max_epochs",
    "gpus": "trainer.devices",
    "graph": "data.cell",
    "hidden": "model.options.channels",
    "layers": "model.options.messages.layers",
    "learning_rate": "optimizer.lr",
    "n_epochs": "trainer.max_epochs",
    "num_epochs": "trainer.max_epochs",
    "o": "run_dir",
    "out": "run_dir",
    "output": "run_dir",
    "output_dir": "run_dir",
    "phenotype": "data.phenotype",
    "split": "data.split.kind",
    "steps": "trainer.max_steps",
    "workers": "loader.num_workers",
    **{group: group for group in ("model", "data", "strategy", "loss", "trainer", "preset")},
}
"""What options of other programs are called → our key, where its last word is another."""


def quoted(value: str) -> str:
    """A text as the value of an override: in quotes where Hydra would not read it as it is.

    >>> quoted("runs/my"), quoted("my run [1]")
    ('runs/my', "'my run [1]'")
    """
    if re.fullmatch(r"[\w./:+@%-]+", value, re.ASCII):
        return value
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), value)
    return f"'{escaped}'"


def compose(overrides: Sequence[str] = ()) -> Config:
    """The config for a list of Hydra overrides such as ``trainer.max_epochs=3``; checked against the schema, the
    model's preset spelled out.
    """
    if find_spec("hydra") is None:  # measuring must be possible on a machine that has torch and little else
        return plain_config.compose_plain(overrides)
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    words = chosen_by_name(overrides)
    check_words(words)
    offer(words)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", module="hydra"
            )  # how it uses the newest OmegaConf is not the user's concern
            with initialize_config_module("knockgraph.conf", version_base="1.3"):
                composed = hydra_compose("config", overrides=[free(word) for word in words])
    except Exception as error:  # errors of Hydra and OmegaConf; some Hydra failures are bare assertions
        text = first_line(error).rstrip(".")
        raise ConfigError(
            f"the overrides cannot be applied: {_in_words(text)}; 'knockgraph options' lists all keys"
        ) from error
    return with_options_spelled_out(checked(composed))


def offer(words: Sequence[str]) -> None:
    """Make every name a member of its group for Hydra, so that ``strategy=mine`` needs no file."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for group in NAMED:
        given = (word.partition("=")[2] for word in words if word.startswith(f"{group}="))
        classes = [name for text in given for name in text.split(",") if ":" in name]
        for name in {*registry.available(group), *classes} - written(group):  # a file is the better description
            store.store(name, of_name(name), group)


def _in_words(text: str) -> str:
    """What Hydra says, with a suggestion for a key or a member that it does not find."""
    key = re.search(r"Could not override '([^']+)'", text)
    if key:
        group = key[1].rpartition(".")[0]
        beside = [known.rpartition(".")[2] for known in keys(Config) if known.rpartition(".")[0] == group]
        has = f", {group or 'a config'} has {', '.join(beside)}" if group and beside else ""
        return text + (did_you_mean(key[1], keys(Config)) or _named_like(key[1])) + has
    member = re.search(r"Could not find '(\w+)/([^']*)'", text)
    if member:
        known = choices(member[1])
        close = did_you_mean(member[2], known, 3)
        return f"there is no {member[1]}={member[2]}{close}, there are {', '.join(known)}"
    return text


def check_words(overrides: Sequence[str]) -> None:
    """Refuse words outside Hydra's grammar, for which it would only name a parser class."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    for at, word in enumerate(overrides):
        if word.startswith(("-", "=")) or not ("=" in word or word.startswith("~")):
            raise ConfigError(f"the overrides cannot be applied: {_instead(word, list(overrides[at + 1 :]))}")
        try:
            OverridesParser.create().parse_override(word)
        except HydraException as error:
            key, _, value = word.partition("=")
            raise ConfigError(
                f"the overrides cannot be applied: the value of {key!r} cannot be read, {value!r}; put a string with "
                f"special characters in quotes, \"{key}='…'\""
            ) from error


def _instead(word: str, after: list[str]) -> str:
    """What to write instead of a word that is not key=value: ``--epochs 3`` is ``trainer.max_epochs=3``."""
    name, given, value = word.lstrip("-").partition("=")
    name = name.replace("-", "_").lower()
    if word.startswith("-") and not given and after and "=" not in after[0] and not after[0].startswith("-"):
        value, word = after[0], f"{word} {after[0]}"
    key = _OPTIONS.get(name) or next((key for key in keys(Config) if key.rpartition(".")[2] == name), None)
    if word.startswith("-") and key is not None:
        return f"{word!r} is not key=value; write {key}={value or '…'}"
    hint = did_you_mean(name, keys(Config)) or _named_like(name)
    return (
        f"{word!r} is not key=value{hint}; write for instance trainer.max_epochs=3, 'knockgraph options' lists all keys"
    )


def _named_like(name: str) -> str:
    """Keys that end with a word, in case the group was left out: ``epochs`` is ``trainer.max_epochs``."""
    found = [key for key in keys(Config) if name and key.rpartition(".")[2].endswith(name)]
    return f" (did you mean {' or '.join(f'{key}=…' for key in found[:3])}?)" if found else ""


def free(word: str) -> str:
    """Options of a model, strategy or loss (which check them), epochs and merged relations need no ``+``."""
    return f"++{word}" if re.match(_FREE, word) else word


def load(path: Path) -> Config:
    """The resolved config of a run directory."""
    if find_spec("omegaconf") is None:
        return plain_config.load_plain(path)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    if not path.is_file():
        raise ConfigError(f"there is no config at {path}; is {path.parent} a run directory?")
    try:
        plain_config.check_yaml(path)
        found = OmegaConf.load(path)
        if not OmegaConf.is_dict(found) or not found:
            raise ConfigError(f"{path} cannot be read: it holds no keys; copy it again from its origin")
        # A resolved config has no interpolations, and one that reads the environment of the reader cannot be trusted.
        if "${" in OmegaConf.to_yaml(found):
            raise ConfigError(f"{path} cannot be read: it is not resolved, it holds ${{…}}; write the value there")
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {first_line(error)}") from error
    try:
        return of_that_time(checked(found))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def dump(config: Config) -> str:
    """The config as YAML text."""
    if find_spec("omegaconf") is None:
        from yaml import safe_dump

        return str(safe_dump(asdict(config), sort_keys=False))
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.structured(config))


def checked(composed: Any) -> Config:
    """Merge into the schema: unknown keys, wrong types and unknown choices are refused with the key's path."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    tree: Any = {}
    try:
        missing = sorted(OmegaConf.missing_keys(composed))  # asked before merging, which would take the default
        if missing:
            raise ConfigError(f"config key {missing[0]!r}: there is no default; give it a value, {missing[0]}=…")
        tree = OmegaConf.to_container(composed)
        if isinstance(tree.get("data"), dict):
            tree["data"] = with_phenotypes(tree["data"])
        config: Config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), tree))  # type: ignore[assignment]
        # OmegaConf lets [[1], 2] pass for a list of numbers.
        return from_tree(asdict(config))
    except OmegaConfBaseException as error:
        from_tree(tree)  # refuses it in better words
        key = getattr(error, "full_key", None) or ""
        raise ConfigError(f"config key {key!r}: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """The message of an error, or of its cause: some Hydra errors have no message."""
    text = str(error).strip()
    if not text and error.__cause__ is not None:
        return first_line(error.__cause__)
    return text.splitlines()[0] if text else type(error).__name__
