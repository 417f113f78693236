"""The configuration: one typed schema, composed by Hydra from the YAML files in ``knockgraph/conf``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from knockgraph import registry
from knockgraph.errors import ConfigError, KnockgraphError
from knockgraph.options import did_you_mean

if TYPE_CHECKING:
    from knockgraph.losses import Loss


@dataclass
class SplitConfig:
    """Which experiments train, validate and test."""

    kind: str = "genotype"  # random | genotype | source | unseen-genes | k-fold | file
    file: str | None = None  # kind=file: a .split file made by 'knockgraph screen split'
    seed: int = 0
    fractions: list[float] = field(default_factory=lambda: [0.8, 0.1, 0.1])
    unseen: str = "one"  # unseen-genes: one | any | all
    held_out: float = 0.1  # unseen-genes: share of the genes held out for val and for test
    folds: int = 5
    fold: int = 0
    subset: int | None = None


@dataclass
class DataConfig:
    """Which cell graph, which screen, which labels."""

    cell: str = "demo"  # demo | yeast-scale | a .cellgraph file
    screen: str = "demo"  # demo | yeast-scale | a screen file (Parquet)
    experiments: int | None = None  # built-in screens: how many
    phenotype: str = "gene_interaction"
    relations: list[str] | None = None  # only these; all by default
    merge: dict[str, list[str]] = field(default_factory=dict)  # new name → relations (patterns) that become one
    genes: str = "all"  # all | screened: the graph of the screen's genes only, smaller and without metabolism
    unknown: str = "error"  # experiments with a gene that the graph does not have: error | drop
    missing: str = "error"  # experiments without a label: error | drop
    transform: str = "standard"  # none | standard | min-max | robust
    # Predicted as 0, since the phenotype is 0 by definition: genotypes with fewer deleted genes. By default 1,
    # the wild type, for phenotypes with 'interaction' in their name, else 0: none.
    zero_below: int | None = None
    # Classification: an interaction is positive if its value is below the threshold and its p-value below max_p_value.
    threshold: float | None = None
    max_p_value: float | None = None
    split: SplitConfig = field(default_factory=SplitConfig)

    def zero_by_definition(self) -> int:
        """Genotypes with fewer deleted genes than this have the phenotype 0, see ``zero_below``."""
        return int("interaction" in self.phenotype.lower()) if self.zero_below is None else self.zero_below


@dataclass
class LoaderConfig:
    """How batches come about."""

    batch_size: int = 32  # per process
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = True
    prefetch_factor: int = 2
    timeout: int = 120  # seconds to wait for a batch of the workers
    resident: bool = True  # with a GPU and no workers, the screen lives there


@dataclass
class NamedConfig:
    """Something chosen by name, with its options."""

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerConfig:
    """AdamW."""

    lr: float = 3e-3
    weight_decay: float = 1e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])


@dataclass
class SchedulerConfig:
    """Learning rate over time."""

    name: str = "cosine"  # cosine | plateau | none
    warmup_steps: int = 50
    cycles: int = 1  # cosine: warm restarts over the run
    min_factor: float = 0.02  # cosine: smallest share of lr
    factor: float = 0.5  # plateau
    patience: int = 5  # plateau


@dataclass
class TrainerConfig:
    """How long, where, and with what care."""

    max_epochs: int = 7
    max_steps: int = -1
    accelerator: str = "auto"  # auto | cpu | gpu
    devices: int = 1
    num_nodes: int = 1
    process_timeout: int = 300  # several processes: seconds that one waits for the others
    precision: str = "32-true"  # 32-true | 64-true | bf16-mixed
    gradient_clip: float = 10.0
    accumulate: dict[int, int] = field(default_factory=lambda: {0: 1})  # from epoch → batches per step
    compile: bool = False
    cuda_graph: bool = True
    early_stopping: int | None = None  # epochs without a better validation MSE
    log_every_n_steps: int = 10
    plot_every_n_epochs: int = 0  # 0: only at the end
    checkpoint_every_n_steps: int = 100
    progress_bar: bool = True
    baselines: list[str] = field(default_factory=lambda: ["mean", "additive", "ridge-pairs", "low-rank"])
    profile: str = "off"  # off | phases (where the time goes, in profile.json) | trace (torch.profiler, in traces/)
    profile_window: list[int] = field(default_factory=lambda: [600, 1, 25])  # trace: steps to wait, warm up, record


@dataclass
class LoggingConfig:
    """CSV and TensorBoard are always written."""

    wandb: str = "off"  # off | offline | online
    project: str = "knockgraph"


@dataclass
class Config:
    """Everything that defines a run."""

    task: str = "regression"  # regression | classification | empty (all but the model) | empty-no-backward
    seed: int = 0
    run_dir: str | None = None  # default: runs/MODEL-STRATEGY-SEED-TIME
    resume: bool = False  # continue the run in run_dir
    requeue: bool = False  # the same where there is a checkpoint, else start: for jobs that a cluster starts again
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: NamedConfig = field(default_factory=lambda: NamedConfig("hetero"))
    strategy: NamedConfig = field(default_factory=lambda: NamedConfig("node-mask"))
    loss: NamedConfig = field(default_factory=lambda: NamedConfig("mse"))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


_CHOICES = {
    "task": ("regression", "classification", "empty", "empty-no-backward"),
    "data.genes": ("all", "screened"),
    "data.unknown": ("error", "drop"),
    "data.missing": ("error", "drop"),
    "data.transform": ("none", "standard", "min-max", "robust"),
    "data.split.kind": ("random", "genotype", "source", "unseen-genes", "k-fold", "file"),
    "data.split.unseen": ("one", "any", "all"),
    "scheduler.name": ("cosine", "plateau", "none"),
    "trainer.accelerator": ("auto", "cpu", "gpu"),
    "trainer.precision": ("32-true", "64-true", "bf16-mixed"),
    "trainer.profile": ("off", "phases", "trace"),
    "logging.wandb": ("off", "offline", "online"),
}
_POSITIVE = (
    "loader.batch_size",
    "optimizer.lr",
    "scheduler.cycles",
    "loader.prefetch_factor",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.process_timeout",
    "loader.timeout",
    "trainer.log_every_n_steps",
    "trainer.checkpoint_every_n_steps",
)
_NOT_NEGATIVE = (
    "data.zero_below",
    "loader.num_workers",
    "optimizer.weight_decay",
    "scheduler.warmup_steps",
    "scheduler.min_factor",
    "scheduler.patience",
    "trainer.gradient_clip",
    "trainer.plot_every_n_epochs",
)


NAMED = ("model", "strategy", "loss")
"""Groups whose members are names of the registry; a YAML file is for those that set more than the name."""
_FREE = r"(model|strategy|loss)\.options\.|trainer\.accumulate\b|data\.merge\b"


def compose(overrides: Sequence[str] = ()) -> Config:
    """The config for a list of Hydra overrides such as ``trainer.max_epochs=3``; checked against the schema, the
    model's preset spelled out.
    """
    if find_spec("hydra") is None:  # measuring must be possible on a machine that has torch and little else
        from knockgraph.train.plain_config import compose_plain

        return compose_plain(overrides)
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module

    words = chosen_by_name(overrides)
    check_words(words)
    offer(words)
    try:
        with initialize_config_module("knockgraph.conf", version_base="1.3"):
            composed = hydra_compose("config", overrides=[free(word) for word in words])
    except Exception as error:  # Hydra's and OmegaConf's own, and where they did not think of a word, an assertion
        text = first_line(error).rstrip(".")
        raise ConfigError(
            f"the overrides cannot be applied: {text}{_hint(text)}; 'knockgraph train --cfg' shows all keys"
        ) from error
    return with_options_spelled_out(checked(composed))


def choices(group: str) -> list[str]:
    """What a group of the config can be: its YAML files and, of models, strategies and losses, every name."""
    return sorted({*_written(group), *(registry.available(group) if group in NAMED else ())})


def _written(group: str) -> set[str]:
    folder = files("knockgraph.conf").joinpath(group)
    members = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return {name.removesuffix(".yaml") for name in members if name.endswith(".yaml")}


def of_name(name: str) -> dict[str, Any]:
    """The member of a group that no YAML file describes: a name without options."""
    return {"name": name, "options": {}}


def offer(words: Sequence[str]) -> None:
    """Make every name a member of its group for Hydra, so that ``strategy=mine`` needs no file."""
    from hydra.core.config_store import ConfigStore

    store = ConfigStore.instance()
    for group in NAMED:
        given = (word.partition("=")[2] for word in words if word.startswith(f"{group}="))
        classes = [name for text in given for name in text.split(",") if ":" in name]
        for name in {*registry.available(group), *classes} - _written(group):  # a file is the better description
            store.store(name, of_name(name), group)


def chosen_by_name(words: Sequence[str]) -> list[str]:
    """``model.name=mine`` chooses ``model=mine`` where no other word chooses a model: the options of the default one
    are not its own.
    """
    chosen = []
    for word in words:
        group, dot, name = word.partition(".name=")
        alone = dot and group in NAMED and not any(other.startswith(f"{group}=") for other in words)
        chosen.append(f"{group}={name}" if alone and name not in _written(group) else word)
    return chosen


def with_options_spelled_out(config: Config) -> Config:
    """The same config, its model's preset replaced by the options that it stands for; baselines are refused now if
    they cannot be had, not when the training is done.
    """
    from knockgraph.models.presets import spelled_out

    check_baselines(config)

    config.model.options = spelled_out(config.model.name, config.model.options)
    return config


def check_baselines(config: Config) -> None:
    """Refuse baselines that are not there; what was trained predicts without them."""
    for name in config.trainer.baselines:
        _named("trainer.baselines", "baseline", name)


def _hint(text: str) -> str:
    """What may have been meant where Hydra does not find something."""
    key = re.search(r"Could not override '([^']+)'", text)
    if key:
        return did_you_mean(key[1], keys(Config)) or _named_like(key[1])
    member = re.search(r"Could not find '(\w+)/([^']*)'", text)
    if member:
        known = choices(member[1])
        return f"{did_you_mean(member[2], known, 3)}, there are {', '.join(known)}"
    return ""


def check_words(overrides: Sequence[str]) -> None:
    """Refuse words that Hydra's grammar does not know, which it answers with the name of a parser's class."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    for word in overrides:
        name = word.lstrip("-").partition("=")[0]
        if word.startswith(("-", "=")) or not ("=" in word or word.startswith("~")):
            hint = did_you_mean(name, keys(Config)) or _named_like(name)
            raise ConfigError(
                f"the overrides cannot be applied: {word!r} is not key=value{hint}; write for instance "
                "trainer.max_epochs=3, 'knockgraph train --cfg' shows all keys"
            )
        try:
            OverridesParser.create().parse_override(word)
        except HydraException as error:
            key, _, value = word.partition("=")
            raise ConfigError(
                f"the overrides cannot be applied: the value of {key!r} cannot be read, {value!r}; put a text with "
                f"special characters in quotes, \"{key}='…'\""
            ) from error


def _named_like(name: str) -> str:
    """The keys that end like a word, for those who leave the group out: ``epochs`` is ``trainer.max_epochs``."""
    found = [key for key in keys(Config) if name and key.rpartition(".")[2].endswith(name)]
    return f" (did you mean {' or '.join(f'{key}=…' for key in found[:3])}?)" if found else ""


def keys(kind: Any, under: str = "") -> list[str]:
    """All keys of the schema, dotted."""
    hints = get_type_hints(kind)
    found = []
    for name, hint in hints.items():
        found += keys(hint, f"{under}{name}.") if is_dataclass(hint) else [f"{under}{name}"]
    return found


def free(word: str) -> str:
    """Options of a model, strategy or loss (which check them), epochs and merged relations need no ``+``."""
    return f"++{word}" if re.match(_FREE, word) else word


def load(path: Path) -> Config:
    """The resolved config of a run directory."""
    if find_spec("omegaconf") is None:
        from knockgraph.train.plain_config import load_plain

        return load_plain(path)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from knockgraph.train.plain_config import check_yaml

    if not path.is_file():
        raise ConfigError(f"there is no config at {path}; is {path.parent} a run directory?")
    try:
        check_yaml(path)
        found = OmegaConf.load(path)
        if not OmegaConf.is_dict(found) or not found:
            raise ConfigError(f"{path} cannot be read: it holds no keys; copy it again from its origin")
        # A resolved config has none left, and one that reads the environment of whoever opens it is not to be trusted.
        if "${" in OmegaConf.to_yaml(found):
            raise ConfigError(f"{path} cannot be read: it is not resolved, it holds ${{…}}; write the value there")
    except (OmegaConfBaseException, YAMLError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {first_line(error)}") from error
    try:
        return of_that_time(checked(found))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def of_that_time(config: Config) -> Config:
    """The config of a run directory; one that an earlier version wrote means what it meant then."""
    from knockgraph.models.presets import of_a_run

    config.model.options = of_a_run(config.model.name, config.model.options)
    return config


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

    from knockgraph.train.plain_config import from_tree

    try:
        missing = sorted(OmegaConf.missing_keys(composed))  # asked before merging, which would take the default
        if missing:
            raise ConfigError(f"config key {missing[0]!r}: there is no default; give it a value, {missing[0]}=…")
        config: Config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), composed))  # type: ignore[assignment]
        # OmegaConf lets [[1], 2] pass for a list of numbers.
        return from_tree(asdict(config))
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or ""
        raise ConfigError(f"config key {key!r}: {first_line(error)}") from error


def checked_values(config: Config) -> Config:
    """Refuse unknown choices and numbers out of range, with the key's path."""
    for path, allowed in _CHOICES.items():
        value = _at(config, path)
        if value not in allowed:
            raise ConfigError(f"config key {path!r}: {value!r} is not one of {', '.join(allowed)}")
    for path in _POSITIVE:
        if not _at(config, path) > 0:
            raise ConfigError(f"config key {path!r}: {_at(config, path)} must be greater than 0")
    for path in _NOT_NEGATIVE:
        if not (_at(config, path) or 0) >= 0:
            raise ConfigError(f"config key {path!r}: {_at(config, path)} must not be negative")
    _check_trainer(config.trainer)
    if len(config.optimizer.betas) != 2:
        raise ConfigError(f"config key 'optimizer.betas': {config.optimizer.betas} must be two numbers")
    _check_loss(config)
    return config


def _check_loss(config: Config) -> None:
    """Classes need a loss of logits, and no other task has them; an empty task computes no loss."""
    if config.task.startswith("empty"):
        return
    loss, classes = config.loss, config.task == "classification"
    found: type[Loss] = _named("loss.name", "loss", loss.name)
    options = found.options_for(classes, loss.options)
    if options is None:
        ours = {name: registry.find("loss", name) for name in registry.BUILT_IN["loss"]}
        fitting = [f"loss={name}" for name, kind in ours.items() if kind.options_for(classes, {}) is not None]
        other = "regression" if classes else "classification"
        raise ConfigError(f"config key 'loss': task={config.task} needs {' or '.join(fitting)}; or use task={other}")
    loss.options = options


def _named(key: str, kind: str, name: str) -> Any:
    """The class behind a name, refused with its place in the config."""
    try:
        return registry.find(kind, name)
    except KnockgraphError as error:
        raise ConfigError(f"config key {key!r}: {error}") from error


def _check_trainer(trainer: TrainerConfig) -> None:
    for path, value in (("max_epochs", trainer.max_epochs), ("max_steps", trainer.max_steps)):
        if value < 1 and value != -1:
            raise ConfigError(f"config key 'trainer.{path}': {value} must be 1 or more, or -1 for no limit")
    if trainer.max_epochs == trainer.max_steps == -1:
        raise ConfigError("config key 'trainer.max_epochs': the run has no end; set it or max_steps to 1 or more")
    for epoch, batches in trainer.accumulate.items():
        if epoch < 0 or batches < 1:
            raise ConfigError(
                f"config key 'trainer.accumulate': {{{epoch}: {batches}}} must give, from an epoch (0 or more) on, "
                "1 or more batches per step"
            )
    if len(trainer.profile_window) != 3 or min(trainer.profile_window) < 0 or trainer.profile_window[2] < 1:
        raise ConfigError(
            f"config key 'trainer.profile_window': {trainer.profile_window} must be three numbers of steps: wait, "
            "warm-up, active, the last at least 1"
        )


def _at(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return config


def first_line(error: BaseException) -> str:
    """What an error says; Hydra raises some without a word, and their cause knows."""
    text = str(error).strip()
    if not text and error.__cause__ is not None:
        return first_line(error.__cause__)
    return text.splitlines()[0] if text else type(error).__name__
