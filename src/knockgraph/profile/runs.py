"""The three runs: full, empty and model only, and their combined result."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from knockgraph.machine import describe_machine
from knockgraph.profile.compare import uncertain
from knockgraph.profile.explain import summary
from knockgraph.profile.measure import Say, Workbench
from knockgraph.profile.settings import VERSION
from knockgraph.train.schema import Config


def profile_run(
    config: Config,
    *,
    steps: int = 50,
    warmup: int = 10,
    runs: tuple[str, ...] = ("full", "empty", "model-only"),
    epoch_limit: float = 60.0,
    label: str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Run full, empty and model only, and report the time of each phase.

    Args:
        config: The run to explain.
        steps: Steps that are measured in each run.
        warmup: Steps before them.
        runs: Of ``full``, ``empty``, ``empty-no-backward`` and ``model-only``; the first must be ``full``.
        epoch_limit: Seconds; an epoch that is expected to take longer is predicted but not run. 0 runs none.
        label: What to call this setting.
        say: Called with what is being done.

    Returns:
        ``runs`` (each with ``wall_seconds`` and ``phases``), ``epoch``, ``conditions``, ``machine``; JSON-safe.
    """
    directory = Path(config.run_dir) if config.run_dir is not None else None
    with Workbench(config, directory, say) as bench:
        found: dict[str, Any] = {}
        for name in runs:
            say(f"run {name}: {warmup} + {steps} steps")
            found[name] = _run(bench, name, steps, warmup)
            if name == "full":
                epoch = bench.epoch(epoch_limit, found["full"]["seconds_per_step"])
                conditions = describe(bench)
        if uncertain(found):
            say(f"run full again: {warmup} + {steps} steps")
            found["full again"] = bench.measure(None, steps, warmup)
    return _result(label or f"{config.model.name}+{config.strategy.name}", conditions, steps, warmup, found, epoch)


def profile_together(
    settings: Sequence[tuple[str, Config]],
    *,
    steps: int,
    warmup: int,
    rounds: int = 2,
    epoch_limits: Sequence[float],
    others: Sequence[Sequence[str]] | None = None,
    say: Say = lambda text: None,
) -> list[dict[str, Any]]:
    """The full runs of several settings, alternating, so that a change in the speed of the machine affects all of them.

    The fastest round of each setting counts: other work on the machine can only add time.

    Args:
        settings: What to call each, and its config.
        steps: Steps that are measured in each run.
        warmup: Steps before them.
        rounds: Runs of each setting.
        epoch_limits: For each setting, see :func:`profile_run`.
        others: For each setting, the runs that are made once, beside the full one, see :func:`profile_run`.
        say: Called with what is being done.
    """
    with contextlib.ExitStack() as stack:
        benches = []
        for number, (_, config) in enumerate(settings):
            directory = None if config.run_dir is None else Path(config.run_dir) / str(number)
            benches.append(stack.enter_context(Workbench(config, directory, say)))
        found: list[list[dict[str, Any]]] = [[] for _ in benches]
        for turn in range(rounds):
            for (label, _), bench, mine in zip(settings, benches, found, strict=True):
                say(f"{label}, round {turn + 1} of {rounds}: {warmup} + {steps} steps")
                mine.append(bench.measure(None, steps, warmup))
        results = []
        more = [()] * len(settings) if others is None else others
        for (label, _), bench, mine, limit, names in zip(settings, benches, found, epoch_limits, more, strict=True):
            best = min(mine, key=lambda run: run["seconds_per_step"])
            best["rounds_seconds_per_step"] = [run["seconds_per_step"] for run in mine]
            epoch = bench.epoch(limit, best["seconds_per_step"])
            conditions = describe(bench)
            runs = {"full": best}
            for name in names:
                say(f"{label}, run {name}: {warmup} + {steps} steps")
                runs[name] = _run(bench, name, steps, warmup)
            results.append(_result(label, conditions, steps, warmup, runs, epoch))
    return results


def _run(bench: Workbench, name: str, steps: int, warmup: int) -> dict[str, Any]:
    if name == "model-only":
        return bench.model_only(steps, warmup)
    return bench.measure(None if name == "full" else name, steps, warmup)


def _result(
    label: str, conditions: dict[str, Any], steps: int, warmup: int, runs: dict[str, Any], epoch: dict[str, Any]
) -> dict[str, Any]:
    result = {
        "profile": VERSION,
        "setting": label,
        "conditions": conditions,
        "machine": describe_machine(),
        "steps": steps,
        "warmup": warmup,
        "runs": runs,
        "epoch": epoch,
    }
    return {**result, "summary": summary(result)}


def describe(bench: Workbench) -> dict[str, Any]:
    """The conditions that a time depends on; JSON-safe."""
    c, task, graph = bench.config, bench.task(), bench.data.graph
    device = task.trainer.strategy.root_device
    relations = list(getattr(task.model, "relations", graph.relations))
    return {
        "model": c.model.name,
        "model options": dict(c.model.options),
        "parameters": sum(p.numel() for p in task.parameters() if p.requires_grad),
        "strategy": c.strategy.name,
        "placement": task.strategy.placement,
        "loss": c.loss.name,
        "task": c.task,
        "graphs per step": c.loader.batch_size + 1 if task.model.perturbs else 1,
        "batch per process": c.loader.batch_size,
        "processes": c.trainer.devices * c.trainer.num_nodes,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "precision": c.trainer.precision,
        "compiled": c.trainer.compile,
        "captured as a CUDA graph": task.replays,
        "batches per optimizer step": {str(k): v for k, v in c.trainer.accumulate.items()},
        "genes": graph.num_genes,
        "relations": relations,
        "edges": sum(graph.relations[r].num_edges for r in relations if r in graph.relations),
        "metabolism": getattr(task.model, "metabolic", None) is not None,
        "training samples": bench.samples,
        "workers": c.loader.num_workers,
        "pinned memory": c.loader.pin_memory,
        "copied ahead": c.loader.copy_ahead,
        "screen on the device": c.loader.resident and c.loader.num_workers == 0 and device.type == "cuda",
        "log every n steps": c.trainer.log_every_n_steps,
        "threads": torch.get_num_threads(),
    }
