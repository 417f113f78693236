"""Splits: which experiments train, validate and test, checked for emptiness and leakage.

A split compares the names that the screen has. Where one gene may go by several names, give it a screen whose names are
genes: ``splits.by_genotype(screen.resolved(graph))``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from knockgraph.container import read_container, write_container
from knockgraph.errors import FileFormatError, SplitError
from knockgraph.graph.genes import GeneNames
from knockgraph.html.notebook import card
from knockgraph.screen import ragged
from knockgraph.screen.genotypes import Genotypes
from knockgraph.screen.ragged import Ints
from knockgraph.screen.screen import Screen
from knockgraph.words import counted

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph

FORMAT = "knockgraph.split"
VERSION = 1
PARTS = ("train", "val", "test")
DEFAULT_FRACTIONS = (0.8, 0.1, 0.1)

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of a screen, by part.

    Attributes:
        parts: Part name → ascending row numbers of the screen.
        about: How the split was made: kind, seed, options; JSON-safe.
        genotypes_hash: The genotypes that the row numbers refer to; another screen is refused.
        held_out: Part name → genes that appear in no training genotype (unseen-gene splits).
        labels_hash: In a run directory, the labels that were trained on, :attr:`BoundScreen.labels_hash`.
    """

    parts: Mapping[str, Rows]
    about: Mapping[str, Any]
    genotypes_hash: str
    held_out: Mapping[str, tuple[str, ...]]
    labels_hash: str | None = None

    def __getitem__(self, part: str) -> Rows:
        if part not in self.parts:
            raise SplitError(f"this split has no part {part!r}; it has {', '.join(self.parts)}")
        return self.parts[part]

    @property
    def num_experiments(self) -> int:
        """Experiments over all parts."""
        return sum(map(len, self.parts.values()))

    def check(self, screen: Screen) -> None:
        """Refuse a screen with other genotypes."""
        if screen.genotypes.hash != self.genotypes_hash:
            raise SplitError(
                "this split was made for another screen (its genotypes differ); make it again with "
                "'knockgraph screen split'"
            )

    def resolved(self, screen: Screen, genes: CellGraph | GeneNames) -> Split:
        """The same rows as a split of ``screen.resolved(genes)``.

        Raises:
            SplitError: If the split was made for another screen, or on names as written where two names of one gene, or
                of one genotype, stand in different parts.
        """
        named = screen.resolved(genes)
        if self.genotypes_hash == named.genotypes.hash:
            return self
        self.check(screen)
        names = genes if isinstance(genes, GeneNames) else genes.genes
        held_out = {part: tuple(names.systematic(held)) for part, held in self.held_out.items()}
        split = replace(self, genotypes_hash=named.genotypes.hash, held_out=held_out)
        leak = _leak(split, named.genotypes)
        if leak:
            raise SplitError(
                f"this split was made on gene names as written, in which one gene has several names: {leak}; "
                "make it again with 'knockgraph screen split --graph'"
            )
        return split

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the split to one file, atomically."""
        document: dict[str, Any] = {
            "parts": list(self.parts),
            "about": dict(self.about),
            "genotypes_hash": self.genotypes_hash,
            "held_out": {part: list(genes) for part, genes in self.held_out.items()},
        }
        if self.labels_hash is not None:
            document["labels_hash"] = self.labels_hash
        tensors = {part: torch.from_numpy(rows) for part, rows in self.parts.items()}
        write_container(path, FORMAT, VERSION, document, tensors)

    @staticmethod
    def load(path: str | os.PathLike[str], screen: Screen | None = None) -> Split:
        """Read a split; with ``screen`` it is checked that the split was made for it."""
        contents = read_container(path, FORMAT, range(1, VERSION + 1), lambda part: f"part {part!r}")
        document = contents.document
        try:
            split = Split(
                {part: contents.tensors[part].numpy() for part in document["parts"]},
                dict(document["about"]),
                document["genotypes_hash"],
                {part: tuple(genes) for part, genes in document["held_out"].items()},
                document.get("labels_hash"),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{os.fspath(path)} does not describe a valid split: {error}") from error
        if screen is not None:
            split.check(screen)
        return split

    def __repr__(self) -> str:
        sizes = ", ".join(f"{part} {len(rows)}" for part, rows in self.parts.items())
        return f"Split({self.about.get('kind')}: {sizes})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        rows = [[part, len(rows), len(self.held_out.get(part, ()))] for part, rows in self.parts.items()]
        about = ", ".join(f"{key} {value}" for key, value in self.about.items())
        return card(repr(self), ["part", "experiments", "genes held out"], rows, about)


def random(
    screen: Screen, fractions: Sequence[float] = DEFAULT_FRACTIONS, seed: int = 0, subset: int | None = None
) -> Split:
    """Experiments at random. Refused if a genotype was measured twice and would be in two parts."""
    rows = _subset(screen, subset, seed)
    order = _random(seed, "split").permutation(rows)
    return _split(screen, _cut(order, fractions), _about("random", seed, subset, fractions=list(fractions)))


def by_genotype(
    screen: Screen, fractions: Sequence[float] = DEFAULT_FRACTIONS, seed: int = 0, subset: int | None = None
) -> Split:
    """Genotypes at random: all experiments of a genotype are in the same part."""
    rows = _subset(screen, subset, seed)
    _, group = np.unique(screen.genotypes.group[rows], return_inverse=True)
    num_groups = int(group.max(initial=-1)) + 1
    part = np.empty(num_groups, dtype=np.int64)
    for number, groups in enumerate(_cut(_random(seed, "split").permutation(num_groups), fractions).values()):
        part[groups] = number
    parts = {name: rows[part[group] == number] for number, name in enumerate(PARTS)}
    return _split(screen, parts, _about("genotype", seed, subset, fractions=list(fractions)))


def by_source(
    screen: Screen, fractions: Sequence[float] = DEFAULT_FRACTIONS, seed: int = 0, subset: int | None = None
) -> Split:
    """Sources at random: all experiments of one source (a query, a plate, a laboratory) stand in one part.

    Sources that measured the same genotype stand together, too. The fractions are of sources, not of experiments.
    """
    rows = _subset(screen, subset, seed)
    _, source = np.unique(screen.source_codes[rows], return_inverse=True)
    _, genotype = np.unique(screen.genotypes.group[rows], return_inverse=True)
    label = np.arange(int(source.max(initial=-1)) + 1)
    while True:  # the smallest source of a genotype, then of all sources joined to it, until nothing changes
        lowest = np.full(int(genotype.max(initial=-1)) + 1, len(label))
        np.minimum.at(lowest, genotype, label[source])
        joined = label.copy()
        np.minimum.at(joined, source, lowest[genotype])
        if np.array_equal(joined, label):
            break
        label = joined
    _, group = np.unique(label, return_inverse=True)
    num_groups = int(group.max(initial=-1)) + 1
    part = np.empty(num_groups, dtype=np.int64)
    for number, groups in enumerate(_cut(_random(seed, "split").permutation(num_groups), fractions).values()):
        part[groups] = number
    parts = {name: rows[part[group[source]] == number] for number, name in enumerate(PARTS)}
    return _split(screen, parts, _about("source", seed, subset, fractions=list(fractions), sources=num_groups))


def unseen_genes(
    screen: Screen,
    unseen: Literal["one", "any", "all"] = "one",
    fraction: float = 0.1,
    seed: int = 0,
    subset: int | None = None,
) -> Split:
    """Genes at random: those held out appear in no training genotype.

    Two disjoint sets of genes are held out, one for ``val`` and one for ``test``. A genotype trains if it has none of
    them. It tests (validates) if, of its genes, exactly one (``one``; DANGO's gene split 1), at least one (``any``) or
    all (``all``; DANGO's gene split 2) are held out for ``test`` (``val``) and none is held out for the other. The
    remaining experiments are left out and counted in ``about["left_out"]``.

    Args:
        screen: The experiments.
        unseen: How many genes of a test genotype are unseen.
        fraction: Share of the genes held out for each of ``val`` and ``test``.
        seed: Of the draw.
        subset: Use only that many experiments, drawn at random.
    """
    if unseen not in ("one", "any", "all"):
        raise SplitError(f"unseen={unseen!r} is not known: use one, any or all")
    rows = _subset(screen, subset, seed)
    genotypes = screen.genotypes.take(rows)
    num_genes = len(genotypes.names)
    held = round(num_genes * fraction)
    if held < 1 or 2 * held >= num_genes:
        raise SplitError(f"fraction={fraction} holds out {held} of {num_genes} genes twice; choose another fraction")
    drawn = _random(seed, "genes").permutation(num_genes)
    genes = {"val": np.sort(drawn[:held]), "test": np.sort(drawn[held : 2 * held])}
    named, count = {}, {}  # a gene with the value 1 counts as seen where it trains, but is not one to test
    for part, codes in genes.items():
        mark = np.zeros(num_genes + 1, dtype=np.int64)
        mark[codes] = 1
        named[part] = _per_row_sum(mark[genotypes.codes], genotypes.ptr)
        count[part] = _per_row_sum(mark[genotypes.codes] * genotypes.perturbed, genotypes.ptr)
    size = _per_row_sum(genotypes.perturbed.astype(np.int64), genotypes.ptr)
    matches: dict[str, Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]] = {
        "one": lambda c: c == 1,
        "any": lambda c: c >= 1,
        "all": lambda c: (c == size) & (size > 0),
    }
    parts = {
        "train": rows[(named["val"] == 0) & (named["test"] == 0)],
        "val": rows[matches[unseen](count["val"]) & (count["test"] == 0)],
        "test": rows[matches[unseen](count["test"]) & (count["val"] == 0)],
    }
    names = {part: tuple(genotypes.names[c] for c in codes) for part, codes in genes.items()}
    about = _about("unseen-genes", seed, subset, unseen=unseen, fraction=fraction)
    return _split(screen, parts, about, names)


def k_fold(screen: Screen, folds: int = 5, fold: int = 0, seed: int = 0, subset: int | None = None) -> Split:
    """Fold ``fold`` of ``folds`` tests, the next one validates, the others train; genotypes stay together."""
    if folds < 3:
        raise SplitError(f"folds={folds}, but train, val and test need at least 3")
    if not 0 <= fold < folds:
        raise SplitError(f"fold={fold} does not exist among {folds} folds (0 … {folds - 1})")
    rows = _subset(screen, subset, seed)
    _, group = np.unique(screen.genotypes.group[rows], return_inverse=True)
    num_groups = int(group.max(initial=-1)) + 1
    of_group = np.empty(num_groups, dtype=np.int64)
    of_group[_random(seed, "split").permutation(num_groups)] = np.arange(num_groups) % folds
    number = of_group[group]
    test, val = number == fold, number == (fold + 1) % folds
    parts = {"train": rows[~test & ~val], "val": rows[val], "test": rows[test]}
    return _split(screen, parts, _about("k-fold", seed, subset, folds=folds, fold=fold))


def by_kind(
    screen: Screen,
    kind: str,
    fractions: Sequence[float] = DEFAULT_FRACTIONS,
    unseen: str = "one",
    held_out: float = 0.1,
    folds: int = 5,
    fold: int = 0,
    seed: int = 0,
    subset: int | None = None,
) -> Split:
    """The split of a kind that is known by name; each kind takes those options that it has.

    Args:
        screen: The experiments.
        kind: ``random``, ``genotype``, ``source``, ``unseen-genes`` or ``k-fold``.
        fractions: Fractions of train, val and test.
        unseen: As of :func:`unseen_genes`.
        held_out: As of :func:`unseen_genes`.
        folds: As of :func:`k_fold`.
        fold: As of :func:`k_fold`.
        seed: Same seed, same split.
        subset: Use only this many experiments, drawn at random.
    """
    if kind == "unseen-genes":
        return unseen_genes(screen, unseen, held_out, seed, subset)  # type: ignore[arg-type]
    if kind == "k-fold":
        return k_fold(screen, folds, fold, seed, subset)
    makers = {"random": random, "source": by_source, "genotype": by_genotype}
    if kind not in makers:
        raise SplitError(f"there is no split {kind!r}; use {', '.join(makers)}, unseen-genes or k-fold")
    return makers[kind](screen, fractions, seed, subset)


def _split(
    screen: Screen, parts: dict[str, Rows], about: dict[str, Any], held_out: dict[str, tuple[str, ...]] | None = None
) -> Split:
    """The checked split."""
    empty = [part for part in PARTS if len(parts[part]) == 0]
    if empty:
        sizes = ", ".join(f"{part} {len(rows)}" for part, rows in parts.items())
        raise SplitError(
            f"the {about['kind']} split leaves {' and '.join(empty)} empty ({sizes} of {len(screen)} experiments); "
            "use more experiments or other fractions"
        )
    about["left_out"] = len(screen) - sum(map(len, parts.values()))
    split = Split(
        {part: np.sort(parts[part]).astype(np.int64) for part in PARTS}, about, screen.genotypes.hash, held_out or {}
    )
    leakage(split, screen.genotypes)
    return split


def leakage(split: Split, genotypes: Genotypes) -> None:
    """Raise :class:`SplitError` if a genotype stands in two parts or a held-out gene in training."""
    leak = _leak(split, genotypes)
    if leak:
        raise SplitError(f"{leak}; split by genotype, or merge duplicated genotypes first")


def _leak(split: Split, genotypes: Genotypes) -> str | None:
    """What is on both sides of a split, or ``None``."""
    part_of = np.full(len(genotypes), -1)
    for number, rows in enumerate(split.parts.values()):
        if bool((part_of[rows] >= 0).any()):
            return "an experiment is in two parts"
        part_of[rows] = number
    used = np.flatnonzero(part_of >= 0)
    group, part = genotypes.group[used], part_of[used]
    order = np.lexsort((part, group))
    group, part = group[order], part[order]
    leaking = (group[1:] == group[:-1]) & (part[1:] != part[:-1])
    if bool(leaking.any()):
        n = len(np.unique(group[1:][leaking]))
        example = "+".join(genotypes[int(used[order][1:][leaking][0])]) or "the wild type"
        return f"{counted(n, 'genotype')} would be in more than one part (for instance {example})"
    training = set(genotypes.take(split.parts["train"]).names)
    for held, genes in split.held_out.items():
        if training & set(genes):
            return f"genes held out for {held} appear in training genotypes"
    return None


def _about(kind: str, seed: int, subset: int | None, **options: Any) -> dict[str, Any]:
    return {"kind": kind, "seed": seed, "subset": subset, **options}


def _random(seed: int, purpose: str) -> np.random.Generator:
    """Independent streams for independent draws, so that a subset does not correlate with the split of it."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed % 2**64, *purpose.encode()])))


def _subset(screen: Screen, subset: int | None, seed: int) -> Rows:
    if subset is None:
        return np.arange(len(screen))
    if not 1 <= subset <= len(screen):
        raise SplitError(f"subset={subset}, but the screen has {len(screen)} experiments")
    return np.sort(_random(seed, "subset").permutation(len(screen))[:subset])


def _cut(order: Rows, fractions: Sequence[float]) -> dict[str, Rows]:
    if len(fractions) != 3 or min(fractions) < 0 or not abs(sum(fractions) - 1) <= 1e-6:
        raise SplitError(f"fractions {list(fractions)} must be three numbers ≥ 0 (train, val, test) that sum to 1")
    edge = np.round(np.cumsum([0, *fractions]) * len(order)).astype(int)
    return {part: order[edge[k] : edge[k + 1]] for k, part in enumerate(PARTS)}


def _per_row_sum(values: Ints, ptr: Ints) -> npt.NDArray[np.int64]:
    return np.bincount(ragged.row_of_entry(ptr), weights=values, minlength=len(ptr) - 1).astype(np.int64)
