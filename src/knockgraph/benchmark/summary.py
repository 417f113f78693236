"""From the finished cells to the table: scores, intervals and differences to the best row."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from knockgraph import __version__
from knockgraph.benchmark.cells import finished, predictions
from knockgraph.benchmark.plan import TRAP, Cell
from knockgraph.bootstrap import Floats, interval, mean_over_seeds, resampled
from knockgraph.errors import KnockgraphError
from knockgraph.train.config import compose

SAMPLES = 500


def summary(folder: Path, cells: Sequence[Cell], permute: str, samples: int = SAMPLES) -> dict[str, Any]:
    """The result of a benchmark, as it is written to JSON.

    Args:
        folder: Where the cells are kept.
        cells: All cells; those that are not finished are left out, and a row needs all of its seeds.
        permute: What was permuted, for the record.
        samples: Of the bootstrap.
    """
    tables = []
    for screen, split in dict.fromkeys((cell.screen, cell.split) for cell in cells):
        here = [cell for cell in cells if (cell.screen, cell.split) == (screen, split)]
        tables += _table(folder, here, samples)
    seeds = sorted({cell.seed for cell in cells})
    about = {"version": __version__, "date": datetime.date.today().isoformat(), "permute": permute}
    return {**about, "seeds": seeds, "samples": samples, "tables": tables}


def _table(folder: Path, cells: Sequence[Cell], samples: int) -> list[dict[str, Any]]:
    """One for each score of a screen and a split."""
    seeds = sorted({cell.seed for cell in cells})
    models = list(dict.fromkeys(cell.model for cell in cells))
    done = {(cell.model, cell.seed): found for cell in cells if (found := finished(folder, cell)) is not None}
    models = [model for model in models if all((model, seed) in done for seed in seeds)]
    if not models:
        return []
    sampled = [_of_seed(folder, [c for c in cells if c.seed == seed and c.model in models], samples) for seed in seeds]
    first, any_cell = done[models[0], seeds[0]], cells[0]
    ranked = [model for model in models if TRAP not in model.split()] or models
    phenotype = ", ".join(compose(any_cell.candidates[0]).data.phenotypes)
    tables = []
    for score in sampled[0]:
        means = {model: mean_over_seeds([one[score][model] for one in sampled]) for model in models}
        known = [model for model in ranked if not np.isnan(means[model][0])]
        best = max(known, key=lambda model: means[model][0]) if known else None
        rows = []
        for model in models:
            less = None if best in (None, model) else asdict(interval(means[model] - means[best]))
            rows.append(
                {
                    "model": model,
                    "ranked": model in ranked,
                    "default": any(cell.default for cell in cells if cell.model == model),
                    "seeds": [float(one[score][model][0]) for one in sampled],
                    "mean": asdict(interval(means[model])),
                    "less_than_best": less,
                    "settings": [done[model, seed]["settings"] for seed in seeds],
                    "chosen": [done[model, seed]["chosen_words"] for seed in seeds],
                    "seconds": float(np.mean([done[model, seed]["seconds"] for seed in seeds])),
                }
            )
        about = {
            "screen": any_cell.screen,
            "split": any_cell.split,
            "phenotype": phenotype,
            "score": score,
            "best": best,
        }
        tables.append({**about, "experiments": first["experiments"], "rows": rows})
    return tables


def _of_seed(folder: Path, cells: Sequence[Cell], samples: int) -> dict[str, dict[str, Floats]]:
    """Scores of all models on the test part of one seed, resampled together."""
    found = {cell.model: predictions(folder, cell) for cell in cells}
    first = found[cells[0].model]
    for cell in cells:
        if not np.array_equal(found[cell.model].experiment, first.experiment):
            raise KnockgraphError(
                f"the cells of {cell.screen}, {cell.split}, seed {cell.seed} were measured on different experiments: "
                f"the data have changed; remove {folder} and run the benchmark again"
            )
    result = finished(folder, cells[0])
    assert result is not None
    predicted = {model: its.predicted.astype(np.float64) for model, its in found.items()}
    measured = first.measured.astype(np.float64)
    return resampled(measured, predicted, result["classes"], samples, cells[0].seed, first.genotype)
