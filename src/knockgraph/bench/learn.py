"""Learning benchmark, time to quality: models and baselines compared on the same data."""

from __future__ import annotations

import gc
import itertools
import math
import shlex
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from knockgraph import registry
from knockgraph.comparison import confidence
from knockgraph.errors import ConfigError, KnockgraphError
from knockgraph.evaluate import ceiling, predict_rows, scorer
from knockgraph.files import atomic_write, finite
from knockgraph.machine import describe_machine
from knockgraph.models import baselines
from knockgraph.train import memory
from knockgraph.train.config import compose, dump
from knockgraph.train.data import TrainingData, load_graph, of_screen
from knockgraph.train.run import load_task, make_task
from knockgraph.train.schema import Config
from knockgraph.train.trainer import make_trainer, quiet, set_epochs
from knockgraph.words import listed

WARM = 10  # steps in which kernels are compiled and recorded; they do not count for the time per step
_VALIDATIONS = 20  # per run, unless the user chooses otherwise
_PARTS_OF_THE_DATA = ("relations", "merge", "genes", "transform")  # what a variant may choose differently


@dataclass(frozen=True)
class Variant:
    """One line of the table.

    Args:
        overrides: What it changes in the config of ``knockgraph train``.
        about: What it shows.
    """

    overrides: tuple[str, ...]
    about: str = ""


def _hetero(about: str, *options: str) -> Variant:
    return Variant(("model=hetero", *(f"model.options.{option}" for option in options)), about)


VARIANTS: dict[str, Variant] = {
    "hetero": _hetero("reference settings"),
    "hetero-fast": Variant(("model=hetero-fast",), "one layer"),
    "hetero-small": Variant(("model=hetero-small",), "the size for the demo cell"),
    "dango": Variant(("model=dango", "loss=dango"), "with its reconstruction loss"),
    "sum": _hetero("relations summed", "messages.aggregation=sum"),
    "mean": _hetero("relations averaged", "messages.aggregation=mean"),
    "attention": _hetero("self-attention over relations", "messages.aggregation=attention"),
    "SAGE": _hetero("instead of GIN", "messages.conv=sage"),
    "GCN": _hetero("instead of GIN", "messages.conv=gcn"),
    "GATv2": _hetero("instead of GIN", "messages.conv=gatv2"),
    "hyper-sagnn": _hetero("Hyper-SAGNN instead of all pairs of deleted genes", "readout.local=hyper-sagnn"),
    "no local": _hetero("without a local predictor", "readout.local=false"),
    "typed": _hetero("all relations in one typed edge list", "messages.merge=typed"),
    "float32": Variant(("model=hetero", "trainer.precision=32-true"), "reference settings, no half precision"),
}

_SMALL = _hetero("", "channels=16", "messages.layers=2", "messages.mlp_layers=2").overrides
MATRIX: dict[str, Variant] = {
    f"{conv}, {aggregation}, {local}": Variant(
        (
            *_SMALL,
            f"model.options.messages.conv={conv}",
            f"model.options.messages.aggregation={aggregation}",
            f"model.options.readout.local={'false' if local == 'none' else local}",
        )
    )
    for conv, aggregation, local in itertools.product(
        ("gin", "sage", "gcn", "gatv2"), ("sum", "mean", "attention", "pairwise"), ("hyper-sagnn", "pairs", "none")
    )
}
"""Every convolution × aggregation × local predictor, two layers of 16 channels."""

MATRIX_SETTINGS = ("loader.batch_size=32", "optimizer.lr=2e-3")
MATRIX_STEPS = 400
"""How the matrix is trained unless the user chooses otherwise."""


def own_variant(text: str) -> tuple[str, Variant]:
    """A variant as a user writes it.

    >>> own_variant("wide: model=hetero model.options.channels=128")
    ('wide', Variant(overrides=('model=hetero', 'model.options.channels=128'), about=''))
    """
    name, colon, rest = text.partition(":")
    try:
        words = tuple(shlex.split(rest))
    except ValueError as error:
        raise KnockgraphError(f"the variant {text!r} cannot be read: {error}") from error
    if not colon or not name.strip() or not words or "=" in name:
        raise KnockgraphError(
            f"the variant {text!r} needs a name and what it changes, e.g. "
            "'wide: model=hetero model.options.channels=128'"
        )
    return name.strip(), Variant(words)


def chosen(only: Sequence[str] | None, own: Sequence[str] | None, matrix: bool, demo: bool) -> dict[str, Variant]:
    """The variants of a comparison: those named, the user's own, the matrix; without any, one model and DANGO.

    Args:
        only: Names of :data:`VARIANTS`.
        own: As :func:`own_variant` reads them.
        matrix: Whether all of :data:`MATRIX` take part.
        demo: Whether the data is the demo's, for which the small model is made.
    """
    names = list(only or [])
    if not (names or own or matrix):
        names = ["hetero-small" if demo else "hetero", "dango"]
    found: dict[str, Variant] = {}
    for name in names:
        if name not in VARIANTS | MATRIX:
            raise KnockgraphError(f"there is no variant {name!r} to train; use {', '.join(VARIANTS)}")
        found[name] = (VARIANTS | MATRIX)[name]
    for text in own or []:
        name, variant = own_variant(text)
        if name in found or name in baselines.available():
            raise KnockgraphError(f"there are two variants named {name!r}; rename one")
        found[name] = variant
    return {**found, **(MATRIX if matrix else {})}


def bench_learn(
    overrides: Sequence[str],
    variants: dict[str, Variant],
    *,
    goal: float | None = None,
    baseline_names: Sequence[str] | None = None,
    validate_every: int | None = None,
    validate_on: int = 10_000,
    directory: Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
    so_far: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Train each variant on the same split with the trainer, task and loaders of ``knockgraph train``, and fit the
    baselines.

    Seconds are wall-clock training time from the first step on, including the compilation and recording of kernels but
    not validation and saving the best checkpoints. The test part is predicted once, at the end, by the checkpoint with
    the best validation error. Variants that cannot be trained are listed with the reason.

    Args:
        overrides: Of the config of ``knockgraph train``, for all variants; they name the data.
        variants: Name → what is trained.
        goal: The validation score (Pearson, of classes AUROC) to be reached; the best baseline's by default.
        baseline_names: All by default.
        validate_every: Optimizer steps (batches, where they are accumulated) between two validations; 20 in all by
            default.
        validate_on: Most validation experiments; a random choice of them, the same for all.
        directory: Keep the run directories here; they are temporary by default.
        progress: Called with what is being done.
        so_far: Given the report after every line, so that a long comparison that is ended early is not lost.
    """
    quiet()
    base = compose(overrides)
    configs = {name: _config(base, overrides, name, variant) for name, variant in variants.items()}
    names = baselines.available() if baseline_names is None else list(baseline_names)
    for name in names:
        registry.check("baseline", name)
    progress("reading the data")
    data = TrainingData.from_config(base)
    report: dict[str, Any] = {
        "benchmark": "learn",
        "machine": describe_machine(),
        "conditions": _conditions(base, data),
    }
    results: list[dict[str, Any]] = []
    report["results"] = results
    predicted: dict[str, Tensor] = {}  # of the test part
    for name in names:
        progress(f"fitting the baseline {name}")
        found, prediction = _fitted(name, data)
        results.append(found)
        if prediction is not None:
            predicted[name] = prediction
    score = report["conditions"]["score"]
    if goal is None:
        reached = [r["validation"][score] for r in results if "validation" in r]
        goal = max((value for value in reached if math.isfinite(value)), default=None)
    report["conditions"]["goal"] = goal
    report["conditions"]["experiments"]["validated"] = min(len(data.rows["val"]), validate_on)
    with tempfile.TemporaryDirectory(prefix="knockgraph-learn-") as temporary:
        for number, (name, config) in enumerate(configs.items()):
            config.run_dir = str((directory or Path(temporary)) / _folder(number, name))
            line = {"name": name, "kind": "model", "about": variants[name].about, "overrides": variants[name].overrides}
            clock = Clock(score, validate_every, lambda text, name=name: progress(f"{name}: {text}"))  # type: ignore[misc]
            found, prediction = _trained(config, base, data, validate_on, clock)
            if prediction is not None:
                predicted[name] = prediction
            if "curve" in found:
                found["to_goal"] = next((p for p in found["curve"] if goal is not None and p[score] >= goal), None)
            results.append({**line, **found})
            so_far(finite(report))
            _free()
    report["confidence"] = _confidence(results, predicted, data, base.seed)
    return dict(finite(report))


def _confidence(
    results: Sequence[dict[str, Any]], predicted: dict[str, Tensor], data: TrainingData, seed: int
) -> dict[str, Any] | None:
    """Of the best model, paired with the others on the experiments of the test part."""
    score = "auroc" if data.classes else "pearson"
    own = [r for r in results if r["kind"] == "model" and "test" in r and math.isfinite(r["test"][score])]
    if not own:
        return None
    best = max(own, key=lambda r: float(r["test"][score]))["name"]
    return confidence(best, data.targets("test"), predicted, data.classes, seed, data.genotypes("test"))


def _config(base: Config, overrides: Sequence[str], name: str, variant: Variant) -> Config:
    """The config of a variant; it may change anything but the experiments."""
    # DANGO's own loss is one for regression.
    words = [word for word in variant.overrides if word != "loss=dango" or base.task == "regression"]
    try:
        config = compose([*overrides, *words])
    except KnockgraphError as error:
        raise ConfigError(f"the variant {name!r}: {error}") from error
    mine, common = asdict(config.data), asdict(base.data)
    changed = [key for key in common if key not in _PARTS_OF_THE_DATA and mine[key] != common[key]]
    changed = [f"data.{key}" for key in changed] + ["task"] * (config.task != base.task)
    if changed:
        raise ConfigError(
            f"the variant {name!r} changes {changed[0]}, but what is compared must have the same experiments and "
            "labels; give it to the command, for all variants"
        )
    if config.task.startswith("empty") or config.trainer.devices * config.trainer.num_nodes > 1:
        raise ConfigError(f"the variant {name!r}: models are compared on one device and cannot be empty tasks")
    config.resume = config.requeue = config.trainer.progress_bar = False
    return config


def _graph(config: Config, base: Config, data: TrainingData) -> Any:
    """The cell graph as this config sees it."""
    mine, common = config.data, base.data
    if (mine.relations, mine.merge, mine.genes) == (common.relations, common.merge, common.genes):
        return data.graph
    graph = load_graph(mine)
    return of_screen(graph, data.screen) if mine.genes == "screened" else graph


def _conditions(config: Config, data: TrainingData) -> dict[str, Any]:
    graph = data.graph
    return {
        "device": "cuda" if config.trainer.accelerator == "gpu" else "cpu",
        "cell": config.data.cell,
        "screen": config.data.screen,
        "phenotype": listed(data.bound.phenotype_types),
        "split": dict(data.split.about),
        "task": config.task,
        "score": "auroc" if data.classes else "pearson",
        "genes": graph.num_genes,
        "relations": len(graph.relations),
        "edges": graph.num_edges,
        "experiments": {part: len(rows) for part, rows in data.rows.items()},
        "seed": config.seed,
        "ceiling": ceiling(data)[0],
    }


def _fitted(name: str, data: TrainingData) -> tuple[dict[str, Any], Tensor | None]:
    """A baseline: seconds of its fit and its scores, and what it predicts for the test part."""
    line = {"name": name, "kind": "baseline"}
    start = time.perf_counter()
    try:
        baseline = baselines.create(name, data.graph)
        baseline.fit(data.bound, data.rows["train"], data.targets("train"), classes=data.classes)
    except KnockgraphError as error:  # a package is missing, or the graph has no such feature
        return {**line, "skipped": str(error)}, None
    seconds = time.perf_counter() - start
    score = scorer(data)
    predicted = {part: baseline.predict(data.bound, data.rows[part]) for part in ("val", "test")}
    found = {kind: score(predicted[p], data.targets(p)) for kind, p in (("validation", "val"), ("test", "test"))}
    return {**line, "seconds": seconds, **found}, predicted["test"]


def _some(rows: np.ndarray[Any, Any], most: int) -> np.ndarray[Any, Any]:
    """At most so many of the rows, at random, in their order."""
    chosen = np.random.default_rng(0).permutation(len(rows))[:most]
    return rows[np.sort(chosen)]


def _folder(number: int, name: str) -> str:
    return f"{number:02d}-" + "".join(c if c.isalnum() or c in "-_." else "-" for c in name)


def _trained(
    config: Config, base: Config, data: TrainingData, most: int, clock: Clock
) -> tuple[dict[str, Any], Tensor | None]:
    """One variant from its first step to its test score and predictions, or the reason why it failed."""
    try:
        own = TrainingData(config, _graph(config, base, data), data.screen, data.split)
        own.rows["val"] = _some(own.rows["val"], most)
        return _run(config, own, clock)
    except KnockgraphError as error:
        return {"skipped": str(error)}, None
    except (RuntimeError, MemoryError) as error:  # the others are still worth measuring
        if memory.is_out_of_memory(error):
            return {"skipped": "out of memory"}, None
        return {"skipped": " ".join(f"{type(error).__name__}: {error}".split())}, None


def _run(config: Config, data: TrainingData, clock: Clock) -> tuple[dict[str, Any], Tensor]:
    directory = Path(config.run_dir or "")
    clock.progress("making the model")
    set_epochs(config, len(data.rows["train"]))
    task = make_task(config, data.graph, data.transform)
    task.model.set_known(data.deleted("train"))
    parts = [(data.rows[part], data.targets(part)) for part in ("train", "val")]
    task.model.prepare(data.bound, *parts[0], parts[1], data.classes)
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(directory / "config.yaml") as part:
        part.write_text(dump(config), encoding="utf-8")
    data.graph.save(directory / "cell.cellgraph")
    data.split.save(directory / "data.split")
    task.strategy.prepare(data.bound, directory / "store")
    trainer: Any = make_trainer(config, directory, directory / "checkpoints")
    trainer.callbacks.append(clock)
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with memory.explained(config.loader.batch_size, config.strategy.name, device):
            trainer.fit(task, datamodule=data)
    except SystemExit:  # Lightning's answer to a KeyboardInterrupt
        raise KeyboardInterrupt from None
    finally:
        data.close()
    clock.progress("predicting the test part")
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    parameters = sum(p.numel() for p in task.parameters() if p.requires_grad)
    found = {
        "model": config.model.name,
        "precision": config.trainer.precision,
        "batch": config.loader.batch_size,
        "parameters": parameters,
        "steps": clock.steps,
        "seconds": clock.seconds,
        "ms_per_step": clock.ms_per_step,
        "warm_up_seconds": clock.warm_seconds,
        "peak_bytes": peak,
        "curve": clock.curve,
        "warnings": task.warnings,
    }
    task.to("cpu")
    del task, trainer
    _free()
    _, best = load_task(directory)
    best.strategy.open(directory / "store")
    prediction = predict_rows(best.to(device), data, "test")
    return {**found, "test": scorer(data)(prediction, data.targets("test"))}, prediction


class Clock(pl.Callback):
    """Training seconds, excluding validation, and the score at each validation.

    Args:
        score: Name of the validation score.
        every: Steps between two validations; about twenty in all by default. The last step is always followed by one.
        progress: Called with the state of the run.

    Attributes:
        curve: ``step``, ``seconds`` and the score of each validation.
        steps: Optimizer steps so far.
        seconds: Training seconds so far.
        warm_seconds: Those of the first steps.
    """

    def __init__(self, score: str, every: int | None, progress: Callable[[str], None]) -> None:
        self.score, self.every, self.progress = score, every, progress
        self.curve: list[dict[str, float]] = []
        self.steps = 0
        self.seconds = 0.0
        self.warm_seconds: float | None = None
        self._since: float | None = None

    @property
    def ms_per_step(self) -> float:
        """Mean over the steps after the warm-up; over all where there are no others."""
        if self.warm_seconds is None or self.steps <= WARM:
            return 1e3 * self.seconds / max(self.steps, 1)
        return 1e3 * (self.seconds - self.warm_seconds) / (self.steps - WARM)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Set how often to validate, before Lightning reads it."""
        t: Any = trainer
        t.val_check_interval = self.every or max(self._batches(trainer) // _VALIDATIONS, 1)
        t.check_val_every_n_epoch = None  # it is counted over the whole run

    def _batches(self, trainer: pl.Trainer) -> int:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        per_epoch = -(-len(data.rows["train"]) // data.config.loader.batch_size)
        ends = [n for n in (trainer.max_steps, (trainer.max_epochs or -1) * per_epoch) if n > 0]
        return min(ends)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start."""
        self._go(trainer)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step; also validate after the very last one."""
        self.steps = trainer.global_step
        if self.steps == WARM and self.warm_seconds is None:
            self._stop(trainer)
            self.warm_seconds = self.seconds
            self._go(trainer)
        last_epoch = trainer.current_epoch + 1 == trainer.max_epochs
        if self.steps == trainer.max_steps or (last_epoch and batch_idx + 1 == trainer.num_training_batches):
            trainer.should_stop = True

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop."""
        if not trainer.sanity_checking:
            self._stop(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the score and restart the clock."""
        if trainer.sanity_checking:
            return
        value = float(trainer.callback_metrics[f"val/{self.score}"])
        self.curve.append({"step": trainer.global_step, "seconds": self.seconds, self.score: value})
        self.progress(f"step {trainer.global_step:,}, {self.seconds:,.1f} s, validation {self.score} {value:.3f}")
        self._go(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop."""
        self._stop(trainer)

    def _go(self, trainer: pl.Trainer) -> None:
        _wait(trainer)
        self._since = time.perf_counter()

    def _stop(self, trainer: pl.Trainer) -> None:
        _wait(trainer)
        if self._since is not None:
            self.seconds += time.perf_counter() - self._since
        self._since = None


def _wait(trainer: pl.Trainer) -> None:
    device = trainer.strategy.root_device
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()  # one for each stream that a graph was recorded on
        torch.cuda.empty_cache()


def settings(
    *,
    device: str,
    matrix: bool = False,
    data: str | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    experiments: int | None = None,
    given: Sequence[str] = (),
) -> list[str]:
    """Overrides for all variants, from named options of the command line and from given overrides."""
    words = [f"trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'}"]
    words.append(f"trainer.precision={'bf16-mixed' if device == 'cuda' else '32-true'}")
    words += MATRIX_SETTINGS if matrix else ()
    if matrix and epochs is None and steps is None:
        steps = MATRIX_STEPS
    if data is not None:
        words.append(f"data={data}")
    if epochs is not None:
        words.append(f"trainer.max_epochs={epochs}")
    if steps is not None:
        words.append(f"trainer.max_steps={steps}")
        if epochs is None:
            words.append("trainer.max_epochs=-1")
    if batch_size is not None:
        words.append(f"loader.batch_size={batch_size}")
    if seed is not None:
        words.append(f"seed={seed}")
    words += given
    if experiments is not None:
        screen = compose(words).data.screen
        words.append(
            f"{'data.experiments' if screen in ('demo', 'yeast-scale') else 'data.split.subset'}={experiments}"
        )
    return words


def check_any(report: dict[str, Any]) -> None:
    """Refuse a comparison in which no variant could be trained."""
    trained = [r for r in report["results"] if r["kind"] == "model"]
    if all("skipped" in r for r in trained):
        raise KnockgraphError(f"no variant could be trained; {trained[0]['name']}: {trained[0]['skipped']}")
