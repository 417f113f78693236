"""The configuration's schema: what a config holds, and which values it takes."""

from __future__ import annotations

import dataclasses
import re
import types
import typing
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from knockgraph import registry
from knockgraph.errors import ConfigError, KnockgraphError
from knockgraph.options import check_options, did_you_mean, in_words

if TYPE_CHECKING:
    from knockgraph.losses import Loss

Tree = dict[str, Any]

NO_BACKWARD = "empty-no-backward"
EMPTY = ("empty", NO_BACKWARD)
"""Tasks that run everything but the model."""


@dataclass
class SplitConfig:
    """Which experiments train, validate and test.

    Attributes:
        kind: What is held out: experiments (random), genotypes, sources, genes (unseen-genes), a fold, or what a file
            says.
        file: kind=file: a .split file made by 'knockgraph screen split'.
        seed: Same seed, same split.
        fractions: Of train, val and test.
        unseen: unseen-genes: how many genes of a test genotype are unseen in training.
        held_out: unseen-genes: fraction of the genes held out for val and for test.
        folds: k-fold: number of folds.
        fold: k-fold: which fold is the test part.
        subset: Only this many experiments, drawn at random.
    """

    kind: str = "genotype"
    file: str | None = None
    seed: int = 0
    fractions: list[float] = field(default_factory=lambda: [0.8, 0.1, 0.1])
    unseen: str = "one"
    held_out: float = 0.1
    folds: int = 5
    fold: int = 0
    subset: int | None = None


@dataclass
class DataConfig:
    """Which cell graph, which screen, which labels.

    Attributes:
        cell: demo, yeast-scale or a .cellgraph file.
        screen: demo, yeast-scale or a screen file (Parquet).
        experiments: How many, of a built-in screen.
        phenotypes: One or more columns of the screen, or patterns such as 'expression_*'; data.phenotype=NAME is short
            for one.
        relations: Only these relations; all by default.
        merge: New name → relations (patterns) that become one.
        calls: A screen file of called pairs, which become relations of the graph.
        call_signs: Which of them; positive ones share errors with trigenic scores of the same study.
        permute: A control: networks and features given to permuted genes, or labels to permuted experiments.
        genes: All genes of the graph, or only the screened ones: smaller and without metabolism.
        unknown: What to do with experiments that have a gene which the graph does not have.
        missing: What to do with experiments without any label; single missing labels are left out of the loss.
        transform: How labels are scaled, fitted on the training part.
        zero_below: Predicted as 0, since the phenotype is 0 by definition: genotypes with fewer deleted genes. By
            default 1, the wild type, for phenotypes that are interaction scores by their name (interaction, epistasis,
            epsilon, tau, GI), else 0: none. Of several phenotypes it concerns these only.
        threshold: Classification: an interaction is positive if its value is below.
        max_p_value: Classification: and if its p-value is below.
        split: Which experiments train, validate and test.
    """

    cell: str = "demo"
    screen: str = "demo"
    experiments: int | None = None
    phenotypes: list[str] = field(default_factory=lambda: ["gene_interaction"])
    relations: list[str] | None = None
    merge: dict[str, list[str]] = field(default_factory=dict)
    calls: str | None = None
    call_signs: str = "negative"
    permute: str = "none"
    genes: str = "all"
    unknown: str = "error"
    missing: str = "error"
    transform: str = "standard"
    zero_below: int | None = None
    threshold: float | None = None
    max_p_value: float | None = None
    split: SplitConfig = field(default_factory=SplitConfig)

    def zero_by_definition(self, phenotypes: Sequence[str]) -> list[int]:
        """For each phenotype: genotypes with fewer deleted genes than this have the value 0, see ``zero_below``."""
        if len(phenotypes) == 1 and self.zero_below is not None:
            return [self.zero_below]
        below = 1 if self.zero_below is None else self.zero_below
        return [below if is_interaction(name) else 0 for name in phenotypes]


def is_interaction(phenotype: str) -> bool:
    """Whether a phenotype is an interaction score by its name: interaction, epistasis, GI, or ε and τ, in letters or
    in words.

    >>> [is_interaction(name) for name in ("gene_interaction", "Epsilon", "GI score", "ε_30C", "fitness", "digit")]
    [True, True, True, True, False, False]
    """
    name = unicodedata.normalize("NFKC", phenotype).casefold()
    words = set(re.split(r"[\W_]+", name))
    return "interaction" in name or not words.isdisjoint(("epistasis", "gi", "epsilon", "eps", "ε", "tau", "τ"))


@dataclass
class LoaderConfig:
    """How batches are made.

    Attributes:
        batch_size: Experiments per batch and process.
        num_workers: Processes that make batches; worker-side strategies (subgraph, lazy-mask, stored-…) gain from some.
        pin_memory: Whether batches are made in pinned memory.
        persistent_workers: Whether workers stay from epoch to epoch.
        prefetch_factor: Batches that each worker makes ahead.
        copy_ahead: Whether each batch is copied to the GPU on a side stream during the step before.
        timeout: Seconds to wait for a batch of the workers.
        resident: Whether the screen lives on the GPU, where there is one and no workers.
    """

    batch_size: int = 32
    num_workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = True
    prefetch_factor: int = 2
    copy_ahead: bool = False
    timeout: int = 120
    resident: bool = True


@dataclass
class NamedConfig:
    """Something chosen by name, with its options.

    Attributes:
        name: Its name, or package.module:Class.
        options: Those of its class, see 'knockgraph options'.
    """

    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class OptimizerConfig:
    """AdamW.

    Attributes:
        lr: Learning rate.
        weight_decay: Weight decay.
        betas: Decay of the two moments.
    """

    lr: float = 3e-3
    weight_decay: float = 1e-4
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])


@dataclass
class SchedulerConfig:
    """Learning rate over time.

    Attributes:
        name: The schedule.
        warmup_steps: Steps in which the rate rises from 0.
        cycles: cosine: warm restarts over the run.
        min_factor: cosine: smallest fraction of lr.
        first_cycle_steps: cosine: cycles of a given length instead, each with its own warm-up.
        cycle_mult: With first_cycle_steps: length of a cycle ÷ length of the one before.
        gamma: With first_cycle_steps: highest rate of a cycle ÷ that of the one before.
        interval: With first_cycle_steps: what its steps are.
        factor: plateau: by what the rate is multiplied.
        patience: plateau: epochs without a lower validation error before that.
        cooldown: plateau: epochs after a reduction that do not count.
        min_lr: plateau: smallest learning rate.
    """

    name: str = "cosine"
    warmup_steps: int = 50
    cycles: int = 1
    min_factor: float = 0.02
    first_cycle_steps: int | None = None
    cycle_mult: float = 1.0
    gamma: float = 1.0
    interval: str = "step"
    factor: float = 0.5
    patience: int = 5
    cooldown: int = 0
    min_lr: float = 0.0


@dataclass
class TrainerConfig:
    """Length of the training, devices, precision and logging.

    Attributes:
        max_epochs: Passes over the training part; -1: as many as max_steps allows. By default that if max_steps is
            given, else as many as make 1,400 steps, from 7 to 100.
        max_steps: Optimizer steps; -1: as many as max_epochs allows.
        accelerator: What to train on.
        devices: GPUs (or processes) per machine.
        num_nodes: Machines.
        process_timeout: Several processes: seconds that one waits for the others.
        precision: Of the computation; weights stay in float32 with bf16-mixed.
        gradient_clip: Largest norm of the gradient; 0: no limit.
        accumulate: From epoch → batches per optimizer step.
        compile: Whether torch.compile compiles the model.
        cuda_graph: Whether the message passing is replayed as one CUDA graph where possible (node-mask, on GPUs).
        overfit_batches: Train and validate on so many batches only, to see whether the model can learn them; 0: on all.
        early_stopping: Stop after so many epochs without a lower validation error (MSE; of classes, cross-entropy).
        log_every_n_steps: How often metrics are logged within an epoch.
        plot_every_n_epochs: How often plots are made; 0: only at the end.
        checkpoint_every_n_steps: How often a checkpoint is written.
        progress_bar: Whether progress is shown.
        baselines: What the model is compared with.
        refit: Whether a model that is fitted at once (and with it the baselines) is fitted again on training and
            validation part, after the validation part has chosen its settings.
        profile: Where the time goes: phases in profile.json, or torch.profiler's trace in traces/.
        profile_window: trace: steps to wait, to warm up, to record.
    """

    max_epochs: int | None = None
    max_steps: int = -1
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    process_timeout: int = 300
    precision: str = "32-true"
    gradient_clip: float = 10.0
    accumulate: dict[int, int] = field(default_factory=lambda: {0: 1})
    compile: bool = False
    cuda_graph: bool = True
    overfit_batches: int = 0
    early_stopping: int | None = None
    log_every_n_steps: int = 10
    plot_every_n_epochs: int = 0
    checkpoint_every_n_steps: int = 100
    progress_bar: bool = True
    baselines: list[str] = field(default_factory=lambda: ["mean", "additive", "ridge-pairs", "low-rank"])
    refit: bool = True
    profile: str = "off"
    profile_window: list[int] = field(default_factory=lambda: [600, 1, 25])


@dataclass
class LoggingConfig:
    """CSV and TensorBoard are always written.

    Attributes:
        wandb: Whether Weights & Biases is used.
        project: Its project.
        entity: Its team or user; by default that of the login.
        group: Its name for runs that belong together.
        tags: Its tags of the run.
    """

    wandb: str = "off"
    project: str = "knockgraph"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Config:
    """Everything that defines a run.

    Attributes:
        task: What is learned; empty tasks run everything but the model.
        seed: Same seed, same result.
        run_dir: Where the run is written; by default runs/MODEL-STRATEGY-SEED-TIME.
        resume: Continue the run in run_dir.
        requeue: The same where there is a checkpoint, else start: for jobs that a cluster starts again.
        data: Which cell graph, which screen, which labels.
        loader: How batches are made.
        model: What predicts.
        strategy: How the model is given each strain's own graph.
        loss: What is minimised.
        optimizer: AdamW.
        scheduler: Learning rate over time.
        trainer: Length of the training, devices, precision and logging.
        logging: CSV and TensorBoard are always written.
    """

    task: str = "regression"
    seed: int = 0
    run_dir: str | None = None
    resume: bool = False
    requeue: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    loader: LoaderConfig = field(default_factory=LoaderConfig)
    model: NamedConfig = field(default_factory=lambda: NamedConfig("hetero"))
    strategy: NamedConfig = field(default_factory=lambda: NamedConfig("node-mask"))
    loss: NamedConfig = field(default_factory=lambda: NamedConfig("mse"))
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)


CHOICES: dict[str, tuple[str, ...]] = {
    "task": ("regression", "classification", *EMPTY),
    "data.genes": ("all", "screened"),
    "data.call_signs": ("negative", "both"),
    "data.permute": ("none", "networks", "labels"),
    "data.unknown": ("error", "drop"),
    "data.missing": ("error", "drop"),
    "data.transform": ("none", "standard", "min-max", "robust"),
    "data.split.kind": ("random", "genotype", "source", "unseen-genes", "k-fold", "file"),
    "data.split.unseen": ("one", "any", "all"),
    "scheduler.name": ("cosine", "plateau", "none"),
    "scheduler.interval": ("step", "epoch"),
    "trainer.accelerator": ("auto", "cpu", "gpu"),
    "trainer.precision": ("32-true", "64-true", "bf16-mixed"),
    "trainer.profile": ("off", "phases", "trace"),
    "logging.wandb": ("off", "offline", "online"),
}
"""Key → the values that it can have."""

_POSITIVE = (
    "loader.batch_size",
    "optimizer.lr",
    "scheduler.cycles",
    "scheduler.cycle_mult",
    "scheduler.gamma",
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
    "scheduler.cooldown",
    "scheduler.min_lr",
    "trainer.overfit_batches",
    "trainer.gradient_clip",
    "trainer.plot_every_n_epochs",
)


def from_tree(tree: Tree) -> Config:
    """The config that nested dictionaries describe, checked against the schema."""
    data = tree.get("data")
    if isinstance(data, dict):
        tree = {**tree, "data": with_phenotypes(data)}
    return checked_values(typing.cast(Config, _typed(Config, tree, "")))


def with_phenotypes(data: Tree) -> Tree:
    """``phenotype: fitness`` is short for ``phenotypes: [fitness]``, and the only spelling of earlier versions.

    >>> with_phenotypes({"cell": "demo", "phenotype": "fitness"})
    {'cell': 'demo', 'phenotypes': ['fitness']}
    """
    found = {key: value for key, value in data.items() if key != "phenotype"}
    names = data.get("phenotype", found.get("phenotypes"))
    if names is not None and not isinstance(names, (list, dict)):
        found["phenotypes"] = [names]
    elif "phenotype" in data:
        raise ConfigError(f"config key 'data.phenotype': {names!r} is not one name; for several use data.phenotypes")
    return found


def checked_values(config: Config) -> Config:
    """Refuse unknown choices and numbers out of range, with the key's path."""
    for path, allowed in CHOICES.items():
        value = _at(config, path)
        if value not in allowed:
            close = did_you_mean(str(value), allowed)
            raise ConfigError(f"config key {path!r}: {value!r} is not one of {', '.join(allowed)}{close}")
    for path in _POSITIVE:
        if not _at(config, path) > 0:
            raise ConfigError(f"config key {path!r}: {_at(config, path)} must be greater than 0")
    for path in _NOT_NEGATIVE:
        if not (_at(config, path) or 0) >= 0:
            raise ConfigError(f"config key {path!r}: {_at(config, path)} must not be negative")
    names = config.data.phenotypes
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"config key 'data.phenotypes': {names} must name at least one phenotype, and each only once")
    _check_trainer(config.trainer)
    if len(config.optimizer.betas) != 2:
        raise ConfigError(f"config key 'optimizer.betas': {config.optimizer.betas} must be two numbers")
    first, warmup = config.scheduler.first_cycle_steps, config.scheduler.warmup_steps
    if first is not None and not first > warmup:
        raise ConfigError(
            f"config key 'scheduler.first_cycle_steps': {first} must be greater than scheduler.warmup_steps ({warmup})"
        )
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
        if value is not None and value < 1 and value != -1:
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


def keys(kind: Any, under: str = "") -> list[str]:
    """All keys of the schema, dotted."""
    hints = get_type_hints(kind)
    found = []
    for name, hint in hints.items():
        found += keys(hint, f"{under}{name}.") if is_dataclass(hint) else [f"{under}{name}"]
    return found


def with_options_spelled_out(config: Config) -> Config:
    """The same config, its model's preset replaced by the options that it stands for; baselines are refused now if
    they cannot be had, not when the training is done.
    """
    from knockgraph.models.presets import spelled_out

    check_baselines(config)

    config.model.options = spelled_out(config.model.name, config.model.options)
    for kind in ("model", "strategy", "loss"):
        given: NamedConfig = getattr(config, kind)
        found = _named(f"{kind}.name", kind, given.name)
        check_options(f"the {kind} {given.name}", found, given.options, registry.KINDS[kind].error)
    return config


def check_baselines(config: Config) -> None:
    """Refuse unknown baselines; prediction does not need them."""
    for name in config.trainer.baselines:
        _named("trainer.baselines", "baseline", name)


def of_that_time(config: Config) -> Config:
    """The config of a run directory; one that an earlier version wrote means what it meant then."""
    from knockgraph.models.presets import of_a_run

    config.model.options = of_a_run(config.model.name, config.model.options)
    return config


def _typed(kind: Any, value: Any, path: str) -> Any:
    """``value`` as a field of this type; refused with its path if it is not."""
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, dict):
            raise ConfigError(f"config key {path!r}: {value!r} is not a group of keys")
        hints = typing.get_type_hints(kind)
        unknown = [name for name in value if name not in hints]
        if unknown:
            hint = did_you_mean(unknown[0], hints)
            has = f"; {path or 'a config'} has {', '.join(hints)}"
            raise ConfigError(f"config key {_below(path, unknown[0])!r}: there is no such key{hint}{has}")
        return kind(**{name: _typed(hints[name], v, _below(path, name)) for name, v in value.items()})
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _typed(next(k for k in typing.get_args(kind) if k is not type(None)), value, path)
    if origin is list and isinstance(value, list):
        return [_typed(typing.get_args(kind)[0], v, f"{path}[{i}]") for i, v in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        key_kind, value_kind = typing.get_args(kind)
        return {_typed(key_kind, k, path): _typed(value_kind, v, _below(path, str(k))) for k, v in value.items()}
    if kind is Any:
        return value
    if value == "???":
        raise ConfigError(f"config key {path!r}: there is no default; give it a value, {path}=…")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if type(value) is kind:
        return value
    raise wrong_type(path, value, kind)


def wrong_type(path: str, value: Any, kind: Any) -> ConfigError:
    """The error of a value that is not what its key needs."""
    allowed = f", one of {', '.join(CHOICES[path])}" if path in CHOICES else ""
    return ConfigError(f"config key {path!r}: {value!r} is not {in_words(kind)}{allowed}")


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
