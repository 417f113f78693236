"""``metrics.csv`` of a run: a resumed run continues it. Lightning's own logger would delete it."""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter

from knockgraph.files import atomic_write


class MetricsFile(CSVLogger):
    """One row per logged step and epoch.

    Args:
        directory: The run directory.
        every_n_steps: Steps between two writes to disk.
    """

    def __init__(self, directory: Path, every_n_steps: int) -> None:
        super().__init__(directory, name="", version="", flush_logs_every_n_steps=every_n_steps)

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The writer, made when it is first needed."""
        if self._experiment is None:
            self._experiment = _Writer(self.log_dir)
        return self._experiment

    def count(self) -> int:
        """How many rows there are; 0 in processes that do not write them."""
        return self._experiment.count if isinstance(self._experiment, _Writer) else 0


class _Writer(ExperimentWriter):
    def __init__(self, log_dir: str) -> None:
        super().__init__(log_dir)
        path = Path(self.metrics_file_path)
        self.metrics_keys = _header(path)
        self.count = len(rows(path))

    def log_metrics(self, metrics_dict: dict[str, float], step: int | None = None) -> None:
        """One more row."""
        super().log_metrics(metrics_dict, step)
        self.count += 1

    def _check_log_dir_exists(self) -> None:
        """Where Lightning deletes an existing file."""

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        """A new metric, a new column; a run that is killed here must not lose the rows."""
        path = Path(self.metrics_file_path)
        _write(path, fieldnames, rows(path))


def cut(path: Path, count: int | None, step: int = 0) -> None:
    """Leave out what a run wrote after the checkpoint from which it is resumed: keep ``count`` rows.

    Checkpoints of earlier versions do not know it; for them the rows before ``step`` are kept.
    """
    names = _header(path)
    if not names:
        path.unlink(missing_ok=True)
        return
    found = rows(path)
    _write(path, names, found[:count] if count is not None else [row for row in found if int(row["step"]) < step])


def rows(path: Path) -> list[dict[str, str]]:
    """Metric → text, one per whole line; the line in which a run was killed, or a damaged one, is passed over."""
    names = _header(path)
    if not names:
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines(keepends=True)
    if not lines[-1].endswith("\n"):
        lines.pop()
    found = (dict(zip(names, row, strict=True)) for row in csv.reader(lines[1:]) if len(row) == len(names))
    return [row for row in found if row["step"].isdecimal() and len(row["step"]) < 19]


def _write(path: Path, names: list[str], rows: list[dict[str, str]]) -> None:
    with atomic_write(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def _header(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        names = next(csv.reader([file.readline()]), [])
    return names if "step" in names else []


def curves(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Metric → (step, value), from the run's CSV."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows(path):
        for name, text in row.items():
            if name not in ("epoch", "step") and text:
                with contextlib.suppress(ValueError):  # a damaged number is none
                    found.setdefault(name, []).append((int(row["step"]), float(text)))
    return found
