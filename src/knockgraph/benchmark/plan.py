"""What a benchmark measures: screens, their splits, and the models of the rows."""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from knockgraph.errors import ConfigError
from knockgraph.screen import Screen
from knockgraph.sources.table_layout import fold
from knockgraph.train.config import compose, quoted
from knockgraph.train.groups import BEST, BEST_OF_LARGER_CLASSES
from knockgraph.train.schema import is_interaction
from knockgraph.words import listed

PAIRS = ("additive", "low-rank", "boosting", "smoothing", "soft-impute", "pair-gp", "profile-propagation")
"""Models of a screen of pairs, unless others are named."""
_UNSEEN = ("data.split.kind=unseen-genes", "data.split.unseen=any")
TRAP = "data.call_signs=both"
"""Override of rows that are shown but not ranked: their input shares errors with the labels (docs/results.md)."""
_LONGEST = 150  # characters of a folder's name; most file systems take 255 bytes


@dataclass(frozen=True)
class BenchmarkScreen:
    """A screen of a benchmark.

    Attributes:
        name: In the tables.
        words: Overrides that choose the data.
        splits: Name of a split → its overrides.
        models: Rows: overrides of each, the name of a model first.
        default: The row of the model that is chosen unless another is.
    """

    name: str
    words: tuple[str, ...]
    splits: Mapping[str, tuple[str, ...]]
    models: tuple[str, ...] = ("ridge-pairs", "low-rank")
    default: str = BEST["interactions"]


@dataclass(frozen=True)
class Cell:
    """One screen, split, seed and model.

    Attributes:
        screen: Name of the screen.
        split: Name of the split.
        seed: Of the split and of the model.
        model: The row: the name of a model, and overrides.
        candidates: Overrides of each candidate; the validation part chooses among several.
        default: Whether the row is that of the default model.
    """

    screen: str
    split: str
    seed: int
    model: str
    candidates: tuple[tuple[str, ...], ...] = field(repr=False)
    default: bool = False

    @property
    def place(self) -> Path:
        """The folder of the cell, below that of all cells; a long row has the start of its name, and a hash."""
        name = re.sub(r"[^\w.=-]+", "-", self.model).strip("-")
        if len(name) > _LONGEST:
            name = f"{name[:_LONGEST]}-{hashlib.sha256(self.model.encode()).hexdigest()[:12]}"
        return Path(self.screen) / self.split / f"seed{self.seed}" / name


def known_screens(folder: Path) -> dict[str, BenchmarkScreen]:
    """The public screens, with the files that :func:`knockgraph.benchmark.files.build` makes in ``folder``."""
    cell = f"data.cell={quoted(str(folder / 'yeast-clean.cellgraph'))}"

    def of(name: str, *more: str) -> tuple[str, ...]:
        return (f"data={name}", cell, f"data.screen={quoted(f'{folder / name}.parquet')}", *more)

    pairs = {"random": (), "unseen genes": _UNSEEN}
    calls = f"data.calls={quoted(str(folder / 'kuzmin2018-digenic.parquet'))}"
    triples = (
        "additive",
        "ridge-pairs",
        "low-rank",
        "boosting data.calls=null",
        "boosting",
        f"boosting {TRAP}",
    )
    return {
        "collins2007": BenchmarkScreen("collins2007", of("collins2007"), pairs, PAIRS),
        "costanzo2016": BenchmarkScreen("costanzo2016", of("costanzo2016"), pairs, PAIRS),
        "kuzmin2018": BenchmarkScreen(
            "kuzmin2018", of("kuzmin2018", calls), {"query pairs": (), "unseen genes": _UNSEEN}, triples, "boosting"
        ),
        "demo": BenchmarkScreen("demo", ("data=demo",), pairs, ("additive", "low-rank", "pair-gp")),
    }


def check_names(names: Collection[str]) -> None:
    """Refuse names of one's own screens that cannot be those of folders, or that public screens have."""
    for name in names:
        if not re.fullmatch(r"[\w.-]+", name) or set(name) == {"."}:
            raise ConfigError(f"--own {name!r}: the name of a screen has letters, digits, dots, - and _ only")
        if name in known_screens(Path()):
            raise ConfigError(f"--own {name!r} is the name of a public screen; give yours another one")


def own_screen(name: str, cell: Path, screen: Path, more: Sequence[str] = ()) -> BenchmarkScreen:
    """A screen of pairs of one's own.

    Args:
        name: In the tables.
        cell: Its cell graph.
        screen: Its file.
        more: Overrides for all cells; those that name a phenotype choose it.
    """
    found = Screen.load(screen)
    if not len(found) or int(found.genotypes.size.max()) < 2:
        raise ConfigError(
            f"--own {name}: no genotype of the screen has two genes, and this benchmark is one of interactions; is "
            "each gene in a column of its own, or joined to the others by '+'?"
        )
    files = (f"data.cell={quoted(str(cell))}", f"data.screen={quoted(str(screen))}")
    words = ["data=interactions", *files, "data.missing=drop", "data.unknown=drop"]
    if not any(word.startswith("data.phenotype") for word in more):
        phenotype = _phenotype(name, list(found.phenotypes))
        words.append(f"data.phenotype={quoted(phenotype)}")
        values = found.phenotypes[phenotype]
        if set(np.unique(values[~np.isnan(values)])) == {0.0, 1.0}:
            words += ["task=classification", "loss=bce"]
    classes = "task=classification" in (*words, *more)
    larger = 2 * int((found.genotypes.size > 2).sum()) > len(found)
    default = BEST_OF_LARGER_CLASSES if classes and larger else BEST["interactions"]
    return BenchmarkScreen(name, tuple(words), {"random": (), "unseen genes": _UNSEEN}, PAIRS, default)


def _phenotype(name: str, names: Sequence[str]) -> str:
    """What is predicted: the screen's only phenotype, or its only one that is an interaction or a score."""
    if len(names) == 1 or "gene_interaction" in names:
        return names[0] if len(names) == 1 else "gene_interaction"
    found = [one for one in names if is_interaction(one)] or [one for one in names if fold(one).endswith("score")]
    if len(found) != 1:
        raise ConfigError(
            f"--own {name}: the screen has the phenotypes {listed(names, most=10)}; choose one, as in "
            f"--set {shlex.quote(f'data.phenotype={quoted((found or names)[0])}')}"
        )
    return found[0]


def cells(
    screens: Sequence[BenchmarkScreen],
    models: Sequence[str],
    splits: Sequence[str],
    seeds: Sequence[int],
    more: Sequence[str] = (),
) -> list[Cell]:
    """All cells, the configs of every row checked.

    Args:
        screens: The screens.
        models: Rows, for all screens; empty: those of each screen. A value with commas is a choice:
            ``hetero-pairs optimizer.lr=1e-3,3e-3`` trains both and takes the better one of the validation part.
        splits: Names of splits; empty: all.
        seeds: Of splits and models.
        more: Overrides for all cells.
    """
    found, checked = [], set()
    for screen in screens:
        rows = dict.fromkeys(models or screen.models)
        unknown = [split for split in splits if split not in screen.splits]
        if unknown:
            known = ", ".join(screen.splits)
            raise ConfigError(f"--split {unknown[0]!r}: the screen {screen.name} has no such split; it has {known}")
        for split, model, seed in itertools.product(dict.fromkeys(splits or screen.splits), rows, seeds):
            words = (*screen.words, *screen.splits[split], f"seed={seed}", f"data.split.seed={seed}", *more)
            candidates = tuple((*words, *chosen) for chosen in _candidates(model))
            if (screen.name, model) not in checked:
                for candidate in candidates:
                    compose(candidate)
                checked.add((screen.name, model))
            found.append(Cell(screen.name, split, seed, model, candidates, model == screen.default))
    return found


def _candidates(model: str) -> list[tuple[str, ...]]:
    """The overrides of a row, for every combination of the values that commas separate.

    >>> _candidates("hetero-pairs optimizer.lr=1e-3,3e-3")
    [('model=hetero-pairs', 'optimizer.lr=1e-3'), ('model=hetero-pairs', 'optimizer.lr=3e-3')]
    """
    name, *words = model.split()
    choices = [[f"model={_CLASSES.get(name, name)}"]]
    for word in words:
        key, _, value = word.partition("=")
        several = value.split(",") if not set(value) & set("[{'\"") else [value]
        choices.append([f"{key}={one}" for one in several])
    return list(itertools.product(*choices))


# The model 'additive' is trained step by step, for tests; a benchmark means the baseline.
_CLASSES = {"additive": "knockgraph.models.baselines.ridge:Additive"}
