"""Training itself: toy models, every strategy, schedules, accumulation, clipping, precision, early stopping."""

import json
import math
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_runs import close, config, same, weights

import knockgraph as kg
from knockgraph.run import train
from knockgraph.train import run as run_module
from knockgraph.train.checkpoints import LAST, load, save
from knockgraph.train.metrics_file import curves
from knockgraph.train.task import Task, cosine_factor, optimizer_steps, restart_factor

pytestmark = pytest.mark.usefixtures("no_page")

HETERO = ["model=hetero-small", "model.options.channels=4", "model.options.messages.layers=2"]
Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Train in this process; every call has its own run directory."""
    count = 0

    def start(*overrides: str, say: Callable[[str], None] = lambda _: None) -> Path:
        nonlocal count
        count += 1
        return train(config(f"run_dir={tmp_path}/{count}", *overrides), say=say)

    return start


class Watched(Task):
    """Writes down what happens in each step."""

    seen: list[dict[str, Any]]

    def on_train_start(self) -> None:
        super().on_train_start()
        type(self).seen = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.rate = self.trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        squares = [p.grad.double().square().sum() for p in self.parameters() if p.grad is not None]
        masks = [b for name, b in self.strategy.named_buffers() if name.startswith("mask_")]
        self.seen.append(
            {
                "lr": self.rate,
                "norm": float(torch.stack(squares).sum().sqrt()),
                "samples": batch.num_samples,
                "restored": not getattr(self.strategy, "borrowed", False) and all(bool(m.all()) for m in masks),
                "flipped": sum(m.numel() for m in masks),
                "dtype": outputs["loss"].dtype,
            }
        )


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(run_module, "Task", Watched)
    return Watched


def logged(directory: Path, name: str) -> list[float]:
    return [value for _, value in curves(directory / "metrics.csv")[name]]


# Toy models


def test_constant_does_not_move(run: Run) -> None:
    directory = run("model=constant", "loader.batch_size=64", "trainer.max_epochs=4")
    for name in ("train/loss", "val/mse", "val/rmse"):
        values = logged(directory, name)
        assert len(values) == 4
        assert values == pytest.approx([values[0]] * 4, rel=1e-6), name  # the order of the sum changes
    assert weights(directory)["model.unused"].item() == 0.0
    result = json.loads((directory / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["metrics"]["constant"]["pearson"] is None  # a constant has none; NaN is no JSON
    assert result["metrics"]["constant"]["mse"] == pytest.approx(result["metrics"]["mean"]["mse"], rel=1e-4)


def test_additive_learns_what_is_additive(run: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    genes = [f"g{k}" for k in range(12)]
    effect = random.normal(size=12)
    sets = [sorted(random.choice(12, 3, replace=False)) for _ in range(300)]
    screen = kg.Screen([[genes[g] for g in s] for s in sets], {"score": [2 + effect[s].sum() for s in sets]})
    screen.save(tmp_path / "s.parquet")
    kg.CellGraph(genes, {"ring": torch.stack([torch.arange(12), torch.arange(12).roll(1)])}).save(
        tmp_path / "c.cellgraph"
    )
    files = ["data=files", f"data.cell={tmp_path}/c.cellgraph", f"data.screen={tmp_path}/s.parquet"]
    rate = ["optimizer.lr=0.05", "optimizer.weight_decay=0", "scheduler.warmup_steps=0", "trainer.max_epochs=20"]
    directory = run(*files, "data.phenotype=score", *rate)
    loss = logged(directory, "val/mse")
    assert loss[-1] < 1e-3 < 0.3 < loss[0]
    metrics = json.loads((directory / "result.json").read_text())["metrics"]
    assert metrics["additive"]["pearson"] > 0.999
    assert metrics["additive (baseline)"]["pearson"] > 0.99  # the baseline of the same name keeps its own row
    learned = weights(directory)["model.effect"][:, 0].double().numpy()
    assert np.corrcoef(learned, effect)[0, 1] > 0.999


# Strategies


EXACT = {
    **{name: [] for name in kg.strategies.available() if name not in ("node-mask", "neighborhood")},
    "neighborhood": ["strategy.options.hops=2", "strategy.options.layers=2"],
    "device-vectorized, padded": ["strategy.options.layout=padded"],
    "stored-masks, packed": ["strategy.options.packed=true"],
    "lazy-mask, workers": ["loader.num_workers=2"],
}
# One of each kind; of the others tests/models compares predictions and gradients in the fast tier.
KINDS = ("device-cached", "device-inplace", "neighborhood", "stored-indices", "lazy-mask, workers")
TEN_STEPS = [
    *HETERO,
    "trainer.precision=64-true",
    "loader.batch_size=8",
    "trainer.max_steps=10",
    "trainer.max_epochs=2",
]


@pytest.fixture(scope="module")
def by_node_mask(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(config(f"run_dir={tmp_path_factory.mktemp('steps')}/run", *TEN_STEPS), say=lambda _: None)


@pytest.mark.parametrize(
    "variant", [name if name in KINDS else pytest.param(name, marks=pytest.mark.full) for name in EXACT]
)
def test_every_exact_strategy_gives_the_same_trajectory(by_node_mask: Path, run: Run, variant: str) -> None:
    directory = run(*TEN_STEPS, f"strategy={variant.split(',')[0]}", *EXACT[variant])
    expected = logged(by_node_mask, "train/loss")
    assert len(expected) == 10
    assert len(set(expected)) == 10
    np.testing.assert_allclose(logged(directory, "train/loss"), expected, rtol=1e-8)
    np.testing.assert_allclose(logged(directory, "val/mse"), logged(by_node_mask, "val/mse"), rtol=1e-6)
    assert close(weights(by_node_mask), weights(directory), 1e-8)


def test_an_approximate_strategy_says_so_and_differs(by_node_mask: Path, run: Run) -> None:
    said: list[str] = []
    directory = run(*TEN_STEPS, "strategy=neighborhood", "strategy.options.hops=0", say=said.append)
    assert any("the strategy neighborhood is approximate" in text for text in said)
    assert not close(weights(by_node_mask), weights(directory), 1e-8)


def test_inplace_gives_its_buffer_back_after_every_step(run: Run, watched: type[Watched]) -> None:
    run(*HETERO, "strategy=device-inplace", "data.experiments=90")
    assert len(watched.seen) == 5
    assert all(step["restored"] and step["flipped"] for step in watched.seen)
    assert [step["samples"] for step in watched.seen] == [16, 16, 16, 16, 8]


def test_workers_end_with_the_run(run: Run) -> None:
    """Left to the garbage collector, every persistent worker was waited for in vain, five seconds long."""
    before = set(multiprocessing.active_children())
    run("strategy=lazy-mask", "loader.num_workers=2")
    assert set(multiprocessing.active_children()) <= before


def test_stored_strategies_are_prepared(run: Run) -> None:
    directory = run(*HETERO, "strategy=stored-indices")
    manifest = json.loads((directory / "store" / "manifest.json").read_text())
    assert manifest["records"] == 80  # the demo screen has the wild type itself


# Learning rate


def slow_cosine(step: int, total: int, warmup: int, cycles: int, least: float) -> float:
    if step < warmup:
        return (step + 1) / warmup
    length = (total - warmup) / cycles
    into = (step - warmup) % length
    return least + (1 - least) * (1 + math.cos(math.pi * into / length)) / 2


@pytest.mark.parametrize(("warmup", "cycles"), [(0, 1), (3, 1), (2, 2), (0, 4)])
def test_cosine(run: Run, watched: type[Watched], warmup: int, cycles: int) -> None:
    schedule = [f"scheduler.warmup_steps={warmup}", f"scheduler.cycles={cycles}", "scheduler.min_factor=0.1"]
    run(*schedule, "optimizer.lr=0.5", "loader.batch_size=8", "trainer.max_epochs=2")
    rates = [step["lr"] for step in watched.seen]
    np.testing.assert_allclose(rates, [0.5 * slow_cosine(s, 16, warmup, cycles, 0.1) for s in range(16)], rtol=1e-12)


def test_cosine_at_its_ends() -> None:
    assert cosine_factor(100, 100, 10, 3, 0.2) == pytest.approx(0.2)
    assert cosine_factor(10_000, 100, 10, 3, 0.2) == pytest.approx(0.2)  # a run resumed for longer
    assert cosine_factor(40, 100, 10, 3, 0.2) == 1.0  # a warm restart
    assert cosine_factor(5, 3, 10, 1, 0.0) == 0.6  # a run that ends in its warm-up


def test_plateau(run: Run, watched: type[Watched]) -> None:
    plateau = ["scheduler.name=plateau", "scheduler.patience=1", "scheduler.factor=0.1", "optimizer.lr=0.5"]
    run("model=constant", *plateau, "loader.batch_size=64", "trainer.max_epochs=6")
    rates = [step["lr"] for step in watched.seen]
    # Best at epoch 0; epochs 1 and 2 are no better, one more than the patience; and so on.
    np.testing.assert_allclose(rates, [0.5, 0.5, 0.5, 0.05, 0.05, 0.005], rtol=1e-12)


def test_no_schedule(run: Run, watched: type[Watched]) -> None:
    run("scheduler.name=none", "optimizer.lr=0.25")
    assert {step["lr"] for step in watched.seen} == {0.25}


# Accumulation, clipping, precision, stopping


def test_accumulation_equals_a_larger_batch(run: Run) -> None:
    options = [*HETERO, "trainer.precision=64-true", "trainer.max_epochs=2"]
    large = run(*options, "loader.batch_size=16")
    small = run(*options, "loader.batch_size=4", "trainer.accumulate={0:4}")
    assert load(small / "checkpoints" / LAST)["global_step"] == load(large / "checkpoints" / LAST)["global_step"] == 8
    assert close(weights(large), weights(small), 1e-10)


def test_accumulation_by_schedule(run: Run, watched: type[Watched]) -> None:
    schedule = ["trainer.accumulate={0:1,1:4,2:3}", "scheduler.warmup_steps=0", "scheduler.min_factor=0"]
    directory = run(*schedule, "loader.batch_size=8", "trainer.max_epochs=3", "optimizer.lr=0.5")
    steps = 8 + 2 + 3  # the last step of the last epoch takes two batches
    assert optimizer_steps(8, 3, {0: 1, 1: 4, 2: 3}) == steps
    assert load(directory / "checkpoints" / LAST)["global_step"] == steps
    # The schedule knows how many steps there are, and ends where they end.
    assert watched.seen[-1]["lr"] == pytest.approx(0.5 * slow_cosine(steps - 1, steps, 0, 1, 0.0))


def test_optimizer_steps() -> None:
    assert optimizer_steps(10, 2, {}) == 20
    assert optimizer_steps(10, 3, {2: 10}) == 21
    assert optimizer_steps(1, 5, {0: 100}) == 5


def test_gradients_are_clipped(run: Run, watched: type[Watched]) -> None:
    run(*HETERO, "trainer.gradient_clip=0.001", "data.transform=none")
    assert watched.seen
    assert all(step["norm"] == pytest.approx(0.001, rel=1e-3) for step in watched.seen)
    run(*HETERO, "trainer.gradient_clip=0", "data.transform=none")
    assert all(step["norm"] > 0.002 for step in watched.seen)


def test_mixed_precision(run: Run, watched: type[Watched]) -> None:
    directory = run(*HETERO, "trainer.precision=bf16-mixed", "trainer.max_epochs=2")
    assert all(math.isfinite(value) for value in logged(directory, "train/loss"))
    assert {step["dtype"] for step in watched.seen} == {torch.float32}  # the loss itself is never in half precision
    found = weights(directory)
    assert {t.dtype for t in found.values() if isinstance(t, Tensor) and t.is_floating_point()} == {torch.float32}
    full = logged(run(*HETERO, "trainer.max_epochs=2"), "train/loss")
    assert logged(directory, "train/loss")[0] == pytest.approx(full[0], rel=0.05)
    assert logged(directory, "train/loss") != pytest.approx(full, rel=1e-6)  # it did make a difference


def test_early_stopping(run: Run) -> None:
    stop = ["trainer.early_stopping=2", "trainer.max_epochs=50"]
    directory = run("model=constant", *stop)
    assert len(logged(directory, "val/mse")) == 3  # the first is the best, two are no better
    assert load(directory / "checkpoints" / LAST)["global_step"] == 12


def test_a_run_shorter_than_an_epoch(run: Run) -> None:
    directory = run("trainer.max_steps=2")
    assert load(directory / "checkpoints" / LAST)["global_step"] == 2
    assert json.loads((directory / "result.json").read_text())["experiments"] == 8


def test_classification(run: Run) -> None:
    options = ["task=classification", "loss=bce", "data.threshold=-0.1", "data.experiments=300"]
    directory = run(*HETERO, *options)
    result = json.loads((directory / "result.json").read_text())
    assert set(result["metrics"]["hetero"]) == {"bce", "auroc", "average_precision"}
    assert all(0 <= p <= 1 for p in result["predicted"])
    assert set(result["measured"]) == {0.0, 1.0}
    assert len(logged(directory, "val/auroc")) == 1
    assert (directory / "checkpoints" / "best-score.ckpt").is_file()


def test_same_seed_same_run(run: Run) -> None:
    first, again, other = run(*HETERO), run(*HETERO), run(*HETERO, "seed=1")
    assert close(weights(first), weights(again), 0.0)
    assert logged(first, "train/loss") == logged(again, "train/loss") != logged(other, "train/loss")


OTHERS = [pytest.param(name, marks=pytest.mark.full) for name in ("32-true", "bf16-mixed")]


@pytest.mark.parametrize("precision", ["64-true", *OTHERS])
def test_a_run_in_two_parts_is_the_run_in_one(run: Run, precision: str) -> None:
    """Lightning restores a checkpoint before it converts to float64: the resumed run had lost half of the digits."""
    options = [*HETERO, "model.options.messages.dropout=0.2", "scheduler.name=none", f"trainer.precision={precision}"]
    options += ["model.options.readout.local_first=0"]  # a share of the epochs that are planned
    whole = run(*options, "trainer.max_epochs=3")
    parts = run(*options, "trainer.max_epochs=1")
    for epochs in (2, 3):
        train(config(f"run_dir={parts}", "resume=true"), say=lambda _: None, max_epochs=epochs)
    assert same(weights(whole), weights(parts))
    for name in ("train/loss", "val/mse", "val/pearson"):
        assert curves(whole / "metrics.csv")[name] == curves(parts / "metrics.csv")[name]


def test_rates_and_metrics_are_logged(finished: Path) -> None:
    found = curves(finished / "metrics.csv")
    for name in ("mse", "rmse", "pearson", "spearman", "mse_original", "rmse_original"):
        assert len(found[f"val/{name}"]) == 2
    assert all(value > 0 for name in ("it_per_s", "samples_per_s") for _, value in found[f"train/{name}"])
    assert [step for step, _ in found["train/loss"]] == list(range(16))
    assert list((finished / "tensorboard").glob("events.*"))


def test_out_of_memory_is_explained(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("knockgraph.models.toy.AdditiveModel.forward", full)
    with pytest.raises(kg.KnockgraphError, match=r"out of memory on cpu with batch size 16 and strategy lazy-mask.*GB"):
        run("strategy=lazy-mask")


# Merged relations


@pytest.mark.parametrize("option", ["data.merge={one: ['*']}", "model.options.messages.merge=typed"])
def test_merged_relations_train_and_predict(run: Run, option: str) -> None:
    directory = run(*HETERO, option)
    graph = kg.CellGraph.load(directory / "cell.cellgraph")
    assert list(graph.relations) == (["one"] if option.startswith("data") else list(kg.demo_cell().relations))
    assert math.isfinite(logged(directory, "val/mse")[-1])
    from knockgraph.evaluate import evaluate

    again = evaluate(directory, "test", "best-error", lambda _: None)
    assert again["predicted"] == pytest.approx(json.loads((directory / "result.json").read_text())["predicted"])


# The wild type kept for an epoch

CACHED = [
    *HETERO,
    "model.options.readout.wild_type=cached-epoch",
    "model.options.metabolism.enabled=true",
    "trainer.max_epochs=3",
    "scheduler.warmup_steps=0",
]


class Cached(Watched):
    """Writes down the cache, the wild type as it is, and the columns of the views."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.seen.append({"start": self.current_epoch, "cached": self.model.z_wild_type.clone(), "now": self.exactly()})

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        assert self.training
        columns = {mode: self.train(mode)._columns(batch).wild_type for mode in (False, True)}
        self.seen.append({"cached": self.model.z_wild_type.clone(), "now": self.exactly(), "columns": columns})

    def exactly(self) -> Tensor:
        view = self.strategy(kg.PerturbationBatch.from_lists([], self.num_genes).with_wild_type())
        with torch.no_grad():
            found: Tensor = self.model.states(view)[1]
        return found


def test_the_cached_wild_type_is_renewed_once_per_epoch(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "Task", Cached)
    said: list[str] = []
    run(*CACHED, "model.options.readout.local_first=0", say=said.append)
    assert len([text for text in said if "the cached wild type is an approximation" in text]) == 1
    caches = []
    for note in Cached.seen:
        if "start" in note:
            caches.append(note["cached"])
            torch.testing.assert_close(note["cached"], note["now"], rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(note["cached"], caches[-1])
            assert not torch.allclose(note["now"], caches[-1], rtol=1e-5)
            assert note["columns"] == {True: False, False: True}  # only what is measured or predicted is exact
    assert [note["start"] for note in Cached.seen if "start" in note] == [0, 1, 2]
    assert not torch.allclose(caches[0], caches[1])


def test_a_run_with_a_cached_wild_type_predicts_by_its_weights_alone(run: Run) -> None:
    from knockgraph.evaluate import evaluate

    directory = run(*CACHED, "trainer.precision=64-true")
    expected = json.loads((directory / "result.json").read_text())["predicted"]
    config_file = directory / "config.yaml"
    config_file.write_text(config_file.read_text().replace("cached-epoch", "column"))
    for path in (directory / "checkpoints").glob("*.ckpt"):
        state = load(path)
        state["state_dict"] = {k: v for k, v in state["state_dict"].items() if "wild_type" not in k}
        del state["knockgraph"]["config"]
        save(path, state)
    found = evaluate(directory, "test", "best-error", lambda _: None)["predicted"]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


# Cycles of a given length


def test_cycles_of_a_given_length() -> None:
    """As the cosine schedule with warm restarts that torchcell uses, step by step."""
    first, multiple, gamma, warmup, highest, lowest = 12, 0.75, 0.5, 3, 5e-4, 1e-6
    rates, length, at, cycle = [], first, 0, 0
    for _ in range(60):
        top = highest * gamma**cycle
        if at < warmup:
            rates.append(lowest + (top - lowest) * at / warmup)
        else:
            rates.append(lowest + (top - lowest) * (1 + math.cos(math.pi * (at - warmup) / (length - warmup))) / 2)
        at += 1
        if at == length:
            at, cycle, length = 0, cycle + 1, max(int((length - warmup) * multiple), 1) + warmup
    found = [highest * restart_factor(s, first, multiple, gamma, warmup, lowest / highest) for s in range(60)]
    assert found == pytest.approx(rates, rel=1e-12)
    assert restart_factor(10_000, 2, 0.1, 1.0, 0, 0.0) == 1.0  # cycles never get shorter than one step


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_the_rate_follows_the_cycles(run: Run, watched: type[Watched], interval: str) -> None:
    cycles = ["scheduler.first_cycle_steps=4", "scheduler.cycle_mult=0.5", "scheduler.gamma=0.5"]
    run("scheduler.warmup_steps=0", f"scheduler.interval={interval}", "optimizer.lr=1", *cycles, "trainer.max_epochs=3")
    rates = [step["lr"] for step in watched.seen]
    each = len(rates) // 3
    expected = [restart_factor(s if interval == "step" else s // each, 4, 0.5, 0.5, 0, 0.02) for s in range(len(rates))]
    assert rates == pytest.approx(expected)


def test_a_first_cycle_within_the_warm_up() -> None:
    with pytest.raises(kg.ConfigError, match=r"first_cycle_steps': 50 must be greater than .*warmup_steps \(50"):
        config("scheduler.first_cycle_steps=50", "scheduler.warmup_steps=50")


@pytest.mark.parametrize("name", ["plateau", "none"])
def test_some_steps_without_a_schedule_that_counts_them(run: Run, name: str) -> None:
    """The model is told how many epochs there will be before Lightning has counted the batches."""
    assert len(logged(run(f"scheduler.name={name}", "trainer.max_steps=3"), "train/loss")) == 3


def test_overfitting_some_batches(run: Run, watched: type[Watched]) -> None:
    run("trainer.overfit_batches=2", "trainer.max_epochs=3", "loader.batch_size=8")
    assert [step["samples"] for step in watched.seen] == [8] * 6


def test_parameters_by_part(run: Run) -> None:
    said: list[str] = []
    directory = run(*HETERO, say=said.append)
    result = json.loads((directory / "result.json").read_text())
    parts = result["parameters_by_part"]
    assert sum(parts.values()) == result["parameters"]
    assert {"input", "layers", "pool", "global_predictor", "local_predictor"} <= set(parts)
    (line,) = (text for text in said if text.startswith("model hetero"))
    assert f"layers {parts['layers']:,}" in line
