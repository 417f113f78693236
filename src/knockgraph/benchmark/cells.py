"""Running the cells of a benchmark: each one once, kept in a folder, several at a time."""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from knockgraph import __version__, progress
from knockgraph.benchmark.plan import Cell
from knockgraph.errors import KnockgraphError
from knockgraph.evaluate import predict_rows, scorer
from knockgraph.files import atomic_write, write_json
from knockgraph.models.fitted import FittedModel
from knockgraph.train.config import compose, quoted
from knockgraph.train.data import TrainingData
from knockgraph.train.predictor import Say
from knockgraph.train.run import fit, load_task
from knockgraph.train.schema import Config
from knockgraph.train.task import Task
from knockgraph.words import counted

_RESULT, _PREDICTIONS, _RUN, _ERROR = "cell.json", "predictions.safetensors", "run", "error.txt"
_METHOD = 5  # to be raised when a change of the code changes scores: cells that were made before are then run again


def finished(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The result of a cell that has been run by the same method with the same overrides on the same files; else
    ``None``.
    """
    found = _read(folder / cell.place / _RESULT)
    if found.get("method") != _METHOD or found.get("candidates") != [list(words) for words in cell.candidates]:
        return None
    return found if _same_inputs(found, [_inputs(words) for words in cell.candidates]) else None


def _read(path: Path) -> dict[str, Any]:
    """What was kept; nothing where it is damaged or absent."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _inputs(words: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each file that a config names: a result belongs to what it was measured on."""
    data = compose(words).data
    named = {"cell": data.cell, "screen": data.screen, "calls": data.calls, "split": data.split.file}
    files = {key: Path(path) for key, path in named.items() if path is not None and Path(path).is_file()}
    return {key: _sha256(path, path.stat().st_mtime_ns) for key, path in files.items()}


@functools.cache
def _sha256(path: Path, modified: int) -> str:
    del modified
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _same_inputs(found: dict[str, Any], now: Sequence[dict[str, str]]) -> bool:
    """Whether a result was measured on these files; one of an earlier version does not say."""
    before = found.get("inputs") or now
    return all(was.get(key) == digest for was, files in zip(before, now, strict=True) for key, digest in files.items())


class Predictions(NamedTuple):
    """Of the test part of a cell, each ``[rows]``."""

    experiment: np.ndarray[Any, Any]
    genotype: np.ndarray[Any, Any]  #: equal where the genotypes are
    measured: np.ndarray[Any, Any]
    predicted: np.ndarray[Any, Any]


def predictions(folder: Path, cell: Cell) -> Predictions:
    """Those of a finished cell."""
    found = load_file(folder / cell.place / _PREDICTIONS)
    return Predictions(*(found[name].numpy() for name in Predictions._fields))


def run_all(folder: Path, cells: Sequence[Cell], jobs: int, say: Say) -> list[str]:
    """Run the cells that are not finished; what went wrong, one sentence each.

    Args:
        folder: Where cells are kept.
        cells: All cells.
        jobs: How many are run at a time, each in a process of its own.
        say: Told about each cell.
    """
    left = [cell for cell in cells if finished(folder, cell) is None]
    say(f"{len(cells)} cells, {len(cells) - len(left)} of them finished before")
    before = [_read(folder / cell.place / _RESULT) for cell in left]
    earlier = sum(bool(found) and found.get("method") != _METHOD for found in before)
    if earlier:
        say(f"{counted(earlier, 'cell was', 'cells were')} made by an earlier version, with other results: run again")
    problems = []
    if jobs <= 1:
        for k, cell in enumerate(left, 1):
            problems += _tell(cell, _outcome(folder, cell), f"{k}/{len(left)}", say)
        return problems
    spawn = multiprocessing.get_context("spawn")
    places = spawn.Queue()
    for k in range(jobs):
        places.put(k)
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start, initargs=(places, jobs)) as pool:
        running = {pool.submit(_outcome, folder, cell): cell for cell in left}
        try:
            for k, done in enumerate(as_completed(running), 1):
                problems += _tell(running[done], _result(done), f"{k}/{len(left)}", say)
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return problems


def _result(done: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return done.result()
    except BrokenProcessPool:
        return {"problem": "its process, or one beside it, was killed (out of memory?); try fewer --jobs"}


def _start(places: Any, jobs: int) -> None:
    """A process of several shares cores and GPUs with the others, shows its progress, and ends with its parent."""
    progress.show()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    place, devices = places.get(), torch.cuda.device_count()
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(place % devices)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // jobs))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tell(cell: Cell, outcome: dict[str, Any], count: str, say: Say) -> list[str]:
    name = f"{cell.screen}, {cell.split}, seed {cell.seed}, {cell.model}"
    if "problem" in outcome:
        say(f"{count} {name}: {outcome['problem']}")
        return [f"{name}: {outcome['problem']}"]
    scores = ", ".join(f"{key} {outcome['test'][key]:.3f}" for key in shown(outcome["classes"]))
    say(f"{count} {name}: {scores} ({outcome['seconds']:.0f} s)")
    return []


def shown(classes: bool) -> tuple[str, ...]:
    """The scores of a benchmark."""
    return ("auroc", "average_precision") if classes else ("pearson",)


def _outcome(folder: Path, cell: Cell) -> dict[str, Any]:
    """The result of a cell, or what went wrong: one failure must not end the others."""
    try:
        return run_cell(folder, cell)
    except KnockgraphError as error:
        return {"problem": str(error)}
    except Exception as error:
        path = folder / cell.place / _ERROR
        path.write_text(traceback.format_exc(), encoding="utf-8")
        return {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]} (all of it: {path})"}


def run_cell(folder: Path, cell: Cell) -> dict[str, Any]:
    """Train every candidate, choose by the validation part, and only then predict the test part with the chosen one."""
    place = folder / cell.place
    place.mkdir(parents=True, exist_ok=True)
    tried = [_trained(place / _RUN / str(k), words) for k, words in enumerate(cell.candidates)]
    key, sign = ("auroc", 1) if tried[0]["classes"] else ("mse", -1)
    best = max(range(len(tried)), key=lambda k: _comparable(sign * tried[k]["val"][key]))
    config, task = load_task(place / _RUN / str(best))
    data = TrainingData.from_directory(config, place / _RUN / str(best))
    task.strategy.open(place / _RUN / str(best) / "store")
    if not isinstance(task.model, FittedModel):  # that chooses its device itself
        task = task.to(tried[best]["device"])
    prediction = predict_rows(task, data, "test")
    target = data.targets("test")
    if target.shape[1] != 1:
        raise KnockgraphError("a benchmark compares models on one phenotype; choose it with data.phenotype=NAME")
    columns = {"measured": target[:, 0], "predicted": prediction[:, 0]}
    with atomic_write(place / _PREDICTIONS) as part:
        tensors = {name: column.double().contiguous() for name, column in columns.items()}
        experiment, genotype = (
            data.bound.experiment[data.rows["test"]].clone(),
            torch.from_numpy(data.genotypes("test")),
        )
        save_file({"experiment": experiment, "genotype": genotype, **tensors}, part)
    result = {
        **asdict(cell),
        **tried[best],
        "chosen_words": list(cell.candidates[best]),
        "validation_of_candidates": [one["val"] for one in tried],
        "test": scorer(data)(prediction, target),
        "experiments": {part: len(rows) for part, rows in data.rows.items()},
        "graph": data.graph.fingerprint(),
        "version": __version__,
        "method": _METHOD,
    }
    result["candidates"] = [list(words) for words in cell.candidates]
    result["inputs"] = [one["inputs"] for one in tried]
    del result["words"], result["device"]
    write_json(place / _RESULT, result)
    shutil.rmtree(place / _RUN)
    return result


def _comparable(value: float) -> float:
    return -float("inf") if np.isnan(value) else value


def _trained(directory: Path, words: Sequence[str]) -> dict[str, Any]:
    """What the validation part says about a run; one that was cut off goes on, one that has ended is not repeated."""
    path = directory / "validated.json"
    inputs = _inputs(words)
    found = _read(path)
    if (found.get("method"), found.get("words"), found.get("inputs")) == (_METHOD, list(words), inputs):
        return found
    if path.is_file():  # of another method, other overrides or files
        shutil.rmtree(directory)
    keys = (f"run_dir={quoted(str(directory))}", "requeue=true", "trainer.baselines=[]", "trainer.progress_bar=false")

    def validate(config: Config, data: TrainingData, task: Task, run: Path, seconds: float, say: Say) -> None:
        del config, say
        if not isinstance(task.model, FittedModel):
            task = load_task(run)[1].to(task.device)
            task.strategy.open(run / "store")
        values = scorer(data)(predict_rows(task, data, "val"), data.targets("val"))
        chosen = task.model.baseline.chosen() if isinstance(task.model, FittedModel) else {}
        about = {"words": list(words), "inputs": inputs, "seconds": seconds, "classes": data.classes}
        about |= {"method": _METHOD, "device": str(task.device)}
        write_json(path, {"val": values, "settings": chosen, **about})

    fit(compose([*words, *keys]), lambda *_: None, validate, lambda _: None)
    return _trained(directory, words)
