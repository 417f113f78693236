"""Prediction from a run directory: named genotypes, a table, or all combinations of a gene list, streamed."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph import strategies
from knockgraph.errors import KnockgraphError, ScreenError, UnknownGeneError
from knockgraph.files import atomic_write, check_writable, write_json
from knockgraph.graph import CellGraph
from knockgraph.graph.genes import WILD_TYPE
from knockgraph.models.fitted import FittedModel
from knockgraph.options import did_you_mean
from knockgraph.screen import PerturbationBatch, Screen, ragged
from knockgraph.screen.genotypes import Genotypes, as_text, entry, name_and_value, parse
from knockgraph.train import checkpoints, memory
from knockgraph.train.intervals import COVERAGE, Intervals
from knockgraph.train.predictor import MOST_NAMED, PRECISIONS, Predictor, Say, checkpoint_of, load_predictor, named
from knockgraph.train.schema import EMPTY
from knockgraph.words import counted, listed

_MOST_SHOWN = 20
_TEXT = {".csv": ",", ".tsv": "\t"}
_MOST_WAITING = 65_536  # predictions that are kept before they are written
_PIECE = 1_000_000  # genotypes of a file that is written in pieces
_MOST_KEPT = 1_000_000  # predictions in a JSON file
_SHARE_OF_MEMORY = 0.5  # of what is free: others use the machine, too

Floats = npt.NDArray[np.float64]
Order = Literal["extreme", "lowest", "highest"]
ORDERS: tuple[str, ...] = get_args(Order)


class Genotype(NamedTuple):
    """Rows of the genes that a sample perturbs, and their values if they are not all deleted."""

    genes: tuple[int, ...]
    values: tuple[float, ...] | None = None

    @staticmethod
    def of(genes: Iterable[int], values: Iterable[float]) -> Genotype:
        """The genes once, ascending."""
        found: dict[int, float] = {}
        for gene, value in sorted(zip(genes, values, strict=True)):
            if found.setdefault(gene, value) != value:
                raise ScreenError(f"a genotype gives one gene two values, {found[gene]:g} and {value:g}; give it one")
        return Genotype(tuple(found), tuple(found.values()) if any(found.values()) else None)

    @property
    def size(self) -> int:
        """Number of perturbed genes; a gene with the value 1 is not perturbed."""
        return len(self.genes) if self.values is None else sum(value != 1 for value in self.values)

    @property
    def perturbed(self) -> Genotype:
        """The same without genes that have the value 1, which are not perturbed."""
        if self.values is None:
            return self
        kept = [(gene, value) for gene, value in zip(self.genes, self.values, strict=True) if value != 1]
        return Genotype.of((gene for gene, _ in kept), (value for _, value in kept))

    def entries(self, graph: CellGraph, standard: bool = False) -> list[str]:
        """The genes as they are written, e.g. ``YAL001C=0.3``, or under their standard names."""
        values = self.values or (0.0,) * len(self.genes)
        name = graph.genes.standard if standard else graph.genes.__getitem__
        return [entry(name(gene), value) for gene, value in zip(self.genes, values, strict=True)]


class Predicted(NamedTuple):
    """Some genotypes and what is predicted for them, each ``[genotypes, phenotypes]`` and in original units."""

    genotypes: list[Genotype]
    values: Floats
    lower: Floats | None = None
    upper: Floats | None = None

    def columns(self) -> Floats:
        """The values, or for each phenotype value, lower and upper end; one row each."""
        if self.lower is None or self.upper is None:
            return self.values.T
        return np.stack([self.values, self.lower, self.upper], 2).reshape(len(self.values), -1).T


Batches = Iterator[Predicted]
Progress = Callable[[int, int], None]
"""Called with the number of genotypes that are done, and with how many there are at most."""


class RunPredictor:
    """The model of a run, ready to predict.

    Args:
        directory: The run directory.
        which: The checkpoint.
        device: ``cpu`` or ``cuda``.
        strategy: A different strategy from that of training.
        note: Called with what the user should know.
        coverage: Of the intervals, see :class:`~knockgraph.train.intervals.Intervals`.
        precision: ``auto``, ``full`` or ``bf16``, see :class:`~knockgraph.train.predictor.Predictor`.

    Attributes:
        intervals: Those of the run, or ``None`` where it has none.
    """

    def __init__(
        self,
        directory: Path,
        which: str = "best-error",
        device: str = "cpu",
        strategy: str | None = None,
        note: Say = print,
        coverage: float = COVERAGE,
        precision: str = "auto",
    ) -> None:
        if precision not in PRECISIONS:
            raise KnockgraphError(f"there is no precision {precision!r}; use {listed(PRECISIONS, 'or')}")
        self.directory = directory
        self.config, task = load_predictor(directory, which)
        if self.config.task in EMPTY:
            raise KnockgraphError(
                f"{directory} is a run of the empty task, which has no model; predict from another run"
            )
        if strategy is not None:
            # What a deletion means is part of the model; other options belong to the strategy that it trained with.
            meaning = {k: v for k, v in self.config.strategy.options.items() if k == "direction"}
            other = named("strategy", strategies.create, strategy, task.graph, **meaning)
            task.strategy = other.double() if self.config.trainer.precision == "64-true" else other
        if task.approximation is not None:
            note(task.approximation)
        self.task = task.to(device)
        self.task.precision = precision
        self.graph = task.graph
        self.checkpoint = checkpoint_of(self.config, which, directory)
        if self.checkpoint != which and not isinstance(task.model, FittedModel):
            note(f"{directory} has not validated, so there is no checkpoint {which}; its last state predicts")
        self.intervals = Intervals.load(directory, self.checkpoint)
        self.set_coverage(coverage)

    def set_coverage(self, coverage: float) -> None:
        """Choose the coverage of the intervals; one that the run does not have is refused."""
        if self.intervals is not None:
            self.intervals.half_width(coverage)
        self.coverage = coverage

    def __call__(
        self,
        genotypes: Iterable[Genotype],
        total: int,
        dosed: bool = False,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> Batches:
        """Predict, batch by batch.

        Args:
            genotypes: The genotypes.
            total: How many there are at most.
            dosed: Whether some of them have values.
            batch_size: Samples per batch; by default as many as fit the memory.
            progress: Told after each batch.
        """
        size = batch_size or self.batch_size(total, dosed)
        done = 0
        scaled = self.intervals is not None and self.intervals.scaled
        for chunk, values, spread in _batches(self.task, genotypes, self.graph.num_genes, size, scaled):
            yield self._with_intervals(chunk, values, spread)
            done += len(chunk)
            if progress is not None:
                progress(done, total)

    def batch_size(self, total: int, dosed: bool = False) -> int:
        """As many samples as fit the memory."""
        return choose_batch_size(self.task, self.graph.num_genes, total, dosed)

    def _with_intervals(self, chunk: list[Genotype], values: Floats, spread: Floats | None) -> Predicted:
        if self.intervals is None:
            return Predicted(chunk, values)
        exact = self.task.by_definition(torch.tensor([genotype.size for genotype in chunk])).numpy()
        return Predicted(chunk, values, *self.intervals.around(values, exact, self.coverage, spread))

    def centre(self, phenotype: str | None = None) -> tuple[int, float]:
        """The column of a phenotype, and what is predicted there for the wild type; see :func:`foremost`."""
        names = self.task.phenotypes
        if phenotype is None and len(names) > 1:
            raise KnockgraphError(f"this run predicts {listed(names)}; say by which one to sort, --phenotype NAME")
        if phenotype is not None and phenotype not in names:
            near = did_you_mean(phenotype, names)
            raise KnockgraphError(f"this run does not predict {phenotype!r}{near}, but {listed(names)}")
        column = 0 if phenotype is None else names.index(phenotype)
        return column, float(next(self([Genotype(())], 1, batch_size=1)).values[0, column])

    def fingerprint(self) -> str:
        """SHA-256 of the checkpoint: what pieces of a prediction remember."""
        path = checkpoints.find(self.directory / "checkpoints", self.checkpoint)
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def measured(self) -> set[Genotype]:
        """The genotypes of the run's screen; those with a gene that the graph does not have are left out."""
        from knockgraph.train.data import screen_of  # it imports Lightning

        genotypes = screen_of(self.config, self.directory).resolved(self.graph).genotypes
        row = np.array([(*self.graph.genes.find(name), -1)[0] for name in genotypes.names], dtype=np.int64)
        return {
            genotype.perturbed
            for genotype in rows_of(genotypes, row[genotypes.codes] if len(row) else genotypes.codes)
            if -1 not in genotype.genes
        }


def predict(
    directory: Path,
    output: Path | None,
    *,
    genes: list[str] | None = None,
    screen: Path | None = None,
    unknown: str = "error",
    all_pairs: Path | Literal["graph"] | None = None,
    all_triples: Path | Literal["graph"] | None = None,
    top: int | None = None,
    order: Order = "extreme",
    new: bool = False,
    phenotype: str | None = None,
    coverage: float = COVERAGE,
    batch_size: int | None = None,
    strategy: str | None = None,
    which: str = "best-error",
    device: str = "cpu",
    precision: str = "auto",
    say: Say = print,
    note: Say = print,
    progress: Progress | None = None,
    keep: bool = False,
) -> dict[str, Any]:
    """Predict and write, or print a few; see ``knockgraph predict --help``.

    Args:
        directory: The run directory.
        output: A file to write.
        genes: Genotypes as they are written.
        screen: A table of genotypes.
        unknown: ``error``, or ``drop``: genotypes of the table with a name that the graph does not have are left out.
        all_pairs: A file of gene names, or ``graph`` for all genes.
        all_triples: The same.
        top: Only so many, see :func:`foremost`.
        order: In which order, with ``top``.
        new: Leave out genotypes that the run's screen has measured.
        phenotype: The one to sort by, with ``top``, where there are several.
        coverage: Of the intervals.
        batch_size: Samples per batch.
        strategy: A different strategy from that of training.
        which: The checkpoint.
        device: ``cpu`` or ``cuda``.
        precision: ``auto``, ``full`` or ``bf16``.
        say: Called with predictions to print, and with what was written.
        note: Called with what the user should know about them.
        progress: Told after each batch.
        keep: Whether the result holds the predictions themselves.
    """
    given = [source for source in (genes, screen, all_pairs, all_triples) if source]
    if len(given) != 1:
        raise KnockgraphError("give exactly one of --genes, --screen, --all-pairs and --all-triples")
    if output is not None and output.suffix not in (".parquet", *_TEXT):
        raise KnockgraphError(f"-o {output}: the name must end in .parquet, .csv or .tsv, which says what is written")
    if output is not None:
        check_writable(output)
    predictor = RunPredictor(directory, which, device, strategy, note, coverage, precision)
    graph, task = predictor.graph, predictor.task
    table = None if screen is None else _known(table_at(screen).genotypes, graph, unknown, note)
    genotypes, total, dosed = _genotypes(graph, genes, table, all_pairs, all_triples)
    if new:
        genotypes = without(genotypes, predictor.measured())
    _check_amount(total if top is None else top, output, top is not None, len(task.phenotypes), keep)
    size = batch_size or predictor.batch_size(total, dosed)
    names = [f"predicted_{name}" + ("_probability" if task.classes else "") for name in task.phenotypes]
    columns = _column_names(task.phenotypes, names, predictor.intervals)
    kept: list[dict[str, Any]] = []
    genes_seen: set[int] = set()
    sizes_seen: set[int] = set()
    if output is not None and top is None and not keep and total > _PIECE:
        about_it = [predictor.fingerprint(), task.strategy.name, task.in_bf16, new, coverage, columns, total]
        genotypes = _noting(genotypes, genes_seen, sizes_seen)
        written = _stream_in_pieces(output, predictor, genotypes, total, dosed, size, columns, about_it, progress)
    else:
        batches = predictor(genotypes, total, dosed, size, progress)
        if top is not None:
            batches = iter([foremost(batches, top, *predictor.centre(phenotype), order)])
        batches = (one._replace(genotypes=list(_noting(one.genotypes, genes_seen, sizes_seen))) for one in batches)
        if keep:
            batches = _kept(graph, task.phenotypes, batches, kept)
        if output is None:
            written = _print(graph, task.phenotypes, batches, say)
        else:
            written = _stream(output, graph, columns, batches)
    if output is not None:
        say(f"wrote {output}: {counted(written, 'genotype')}, column{'s' * (len(names) > 1)} {listed(names)}")
    for unseen in filter(None, (task.never_deleted(genes_seen), task.never_so_many(sizes_seen))):
        note(unseen)
    about: dict[str, Any] = {"column": names[0]} if len(names) == 1 else {"columns": names}
    about["precision"] = "bf16" if task.in_bf16 else str(next(task.parameters(), torch.zeros(0)).dtype).split(".")[1]
    about["coverage"] = None if predictor.intervals is None else coverage
    summary = {"genotypes": written, "batch_size": size, **about, "output": None if output is None else str(output)}
    return {**summary, "predictions": kept} if keep else summary


def _check_amount(amount: int, output: Path | None, chosen: bool, phenotypes: int, keep: bool) -> None:
    """Refuse what is too much to print or to hold, before any work."""
    if output is None and amount > _MOST_SHOWN and not chosen and not keep:
        raise KnockgraphError(f"{amount:,} genotypes are too many to print; write them to a file with -o FILE")
    if output is None and phenotypes > MOST_NAMED and not keep:
        many = counted(phenotypes, "phenotype")
        raise KnockgraphError(f"{many} are too many to print; write them to a file with -o FILE")
    if keep and amount * phenotypes > _MOST_KEPT:
        raise KnockgraphError(
            f"{amount * phenotypes:,} predictions are too many for --json; write them with -o FILE, or ask for --top"
        )


def _column_names(phenotypes: Sequence[str], predicted: Sequence[str], intervals: Intervals | None) -> list[str]:
    if intervals is None:
        return list(predicted)
    return [
        c for name, first in zip(phenotypes, predicted, strict=True) for c in (first, f"lower_{name}", f"upper_{name}")
    ]


def without(genotypes: Iterable[Genotype], measured: set[Genotype]) -> Iterator[Genotype]:
    """The genotypes that are not measured."""
    return (genotype for genotype in genotypes if genotype.perturbed not in measured)


def foremost(batches: Batches, top: int, column: int, centre: float, order: Order = "extreme") -> Predicted:
    """The first ``top`` of all genotypes in an order; no more than these and a batch are in memory at a time.

    Args:
        batches: The predictions.
        top: How many.
        column: The phenotype to sort by.
        centre: What is predicted for the wild type; 0 for interactions.
        order: ``extreme``: farthest from the centre first; ``lowest`` or ``highest`` first. Of equal ones the earlier.
    """
    if top < 1:
        raise KnockgraphError(f"top is {top}; ask for at least one")
    if order not in ORDERS:
        raise KnockgraphError(f"there is no order {order!r}; use {', '.join(ORDERS)}")
    best: Predicted | None = None
    for batch in batches:
        best = batch if best is None else _joined(best, batch)
        value = best.values[:, column]
        key = {"extreme": -np.abs(value - centre), "lowest": value, "highest": -value}[order]
        best = _taken(best, np.argsort(key, kind="stable")[:top])
    if best is None:
        raise KnockgraphError("there is nothing left to predict: all of these genotypes are measured; leave --new out")
    return best


def _joined(first: Predicted, second: Predicted) -> Predicted:
    def both(a: Floats | None, b: Floats | None) -> Floats | None:
        return None if a is None or b is None else np.concatenate([a, b])

    values = np.concatenate([first.values, second.values])
    lower, upper = both(first.lower, second.lower), both(first.upper, second.upper)
    return Predicted([*first.genotypes, *second.genotypes], values, lower, upper)


def _taken(found: Predicted, rows: npt.NDArray[np.int64]) -> Predicted:
    def some(a: Floats | None) -> Floats | None:
        return None if a is None else a[rows]

    return Predicted([found.genotypes[row] for row in rows], found.values[rows], some(found.lower), some(found.upper))


def records(graph: CellGraph, phenotypes: Sequence[str], found: Predicted) -> Iterator[dict[str, Any]]:
    """One record for each genotype and phenotype; ``lower`` and ``upper`` are ``None`` without intervals."""
    for row, genotype in enumerate(found.genotypes):
        names, standard = genotype.entries(graph), genotype.entries(graph, standard=True)
        for column, phenotype in enumerate(phenotypes):
            yield {
                "genotype": names,
                "standard": standard,
                "phenotype": phenotype,
                "prediction": float(found.values[row, column]),
                "lower": None if found.lower is None else float(found.lower[row, column]),
                "upper": None if found.upper is None else float(found.upper[row, column]),
            }


def _noting(genotypes: Iterable[Genotype], genes: set[int], sizes: set[int]) -> Iterator[Genotype]:
    """The genotypes; their genes and the numbers of these are noted."""
    for genotype in genotypes:
        genes.update(genotype.genes)
        sizes.add(genotype.size)
        yield genotype


def _kept(graph: CellGraph, phenotypes: Sequence[str], batches: Batches, kept: list[dict[str, Any]]) -> Batches:
    for found in batches:
        kept.extend(records(graph, phenotypes, found))
        yield found


def _print(graph: CellGraph, phenotypes: Sequence[str], batches: Batches, say: Say) -> int:
    """A line for each genotype under a header: its predictions, of one phenotype with the interval, standard names."""
    written = 0
    for found in batches:
        several = len(phenotypes) > 1
        ends = [] if several or found.lower is None else ["lower", "upper"]
        if written == 0:
            say("\t".join(["genotype", *phenotypes, *ends, "standard"]))
        rows = found.values.T if several else found.columns()
        for genotype, numbers in zip(found.genotypes, rows.T.tolist(), strict=True):
            texts = ("+".join(genotype.entries(graph, standard)) or WILD_TYPE for standard in (False, True))
            first, last = texts
            say("\t".join([first, *(f"{value:.6g}" for value in numbers), last]))
            written += 1
    return written


def choose_batch_size(task: Predictor, num_genes: int, total: int, dosed: bool = False) -> int:
    """The batch size that fits half of the free memory, at most 512 and at most the number of genotypes."""
    if isinstance(task.model, FittedModel):  # a few numbers per genotype
        return max(min(_MOST_WAITING, total), 1)
    available = int(_SHARE_OF_MEMORY * memory.available_bytes(task.device))
    most = min(total, 512)
    return memory.largest_batch(_step(task, num_genes, dosed), available, most, device=task.device)


def _step(task: Predictor, num_genes: int, dosed: bool = False) -> Callable[[int], None]:
    """Predicts a batch of the given size, to see what it takes."""

    def step(n: int) -> None:
        genes = [[k % num_genes] for k in range(n)]
        values = [[0.5]] * n if dosed else None
        _forward(task, PerturbationBatch.from_lists(genes, num_genes, values=values))

    return step


def _forward(task: Predictor, batch: PerturbationBatch) -> Tensor:
    """Predictions in label units, ``[samples, outputs]``."""
    with contextlib.ExitStack() as stack, torch.no_grad():
        if task.strategy.placement == "stored":  # new genotypes, so nothing is stored for them yet
            task.strategy.prepare(batch, stack.enter_context(tempfile.TemporaryDirectory()))
        values: Tensor = task(task.strategy.collate(batch).to(task.device)).values.detach()
    return values


def _batch(chunk: list[Genotype], num_genes: int) -> PerturbationBatch:
    genes = [genotype.genes for genotype in chunk]
    if not any(genotype.values for genotype in chunk):
        return PerturbationBatch.from_lists(genes, num_genes)
    values = [genotype.values or (0.0,) * len(genotype.genes) for genotype in chunk]
    return PerturbationBatch.from_lists(genes, num_genes, values=values)


def _batches(
    task: Predictor, genotypes: Iterable[Genotype], num_genes: int, size: int, scaled: bool = False
) -> Iterator[tuple[list[Genotype], Floats, Floats | None]]:
    """Genotypes, their predictions and, if ``scaled``, the spread of the errors of these."""
    task.eval()
    iterator = iter(genotypes)
    while chunk := list(itertools.islice(iterator, size)):
        batch = _batch(chunk, num_genes)
        with memory.explained(
            size,
            task.strategy.name,
            task.device,
            functools.partial(memory.predict_peak, _step(task, num_genes, batch.graded), size, device=task.device),
        ):
            values = _forward(task, batch).double().cpu()
        perturbed = torch.tensor([genotype.size for genotype in chunk])
        spread = task.spread(batch) if scaled else None
        yield chunk, task.told(values, perturbed).numpy(), None if spread is None else spread.numpy()


def _genotypes(
    graph: CellGraph,
    genes: list[str] | None,
    table: Genotypes | None,
    all_pairs: Path | Literal["graph"] | None,
    all_triples: Path | Literal["graph"] | None,
) -> tuple[Iterable[Genotype], int, bool]:
    """The genotypes, lazily, how many there are and whether some have values; names are resolved before any work."""
    if genes:
        named_genes = [_read(text) for text in genes]
        names = sorted({name for genotype in named_genes for name, _ in genotype})
        row = dict(zip(names, graph.gene_index(names).tolist(), strict=True))
        made = [
            Genotype.of([row[name] for name, _ in genotype], [value for _, value in genotype])
            for genotype in named_genes
        ]
        return made, len(made), any(genotype.values for genotype in made)
    if table is not None:
        used, entries = np.unique(table.codes, return_inverse=True)
        row_of = graph.gene_index([table.names[code] for code in used]).numpy()[entries] if len(used) else entries
        return rows_of(table, row_of), len(table), table.values is not None
    path, k = (all_pairs, 2) if all_pairs is not None else (all_triples, 3)
    assert path is not None
    chosen = None if path == "graph" else graph.gene_index(read_names(Path(path))).tolist()
    return *combinations(graph, chosen, k, f"{path}"), False


def combinations(
    graph: CellGraph, chosen: Iterable[int] | None = None, k: int = 2, what: str = "genes"
) -> tuple[Iterator[Genotype], int]:
    """All combinations of k genes, lazily, and how many there are.

    Args:
        graph: The cell graph.
        chosen: Rows of the genes; all by default, each counts once.
        k: 2 for pairs, 3 for triples.
        what: Where the genes come from, for the error.
    """
    rows = list(range(graph.num_genes)) if chosen is None else sorted(set(chosen))
    if len(rows) < k:
        raise KnockgraphError(f"{what} names {len(rows)} genes, but {k} are needed for one combination")
    return map(Genotype, itertools.combinations(rows, k)), math.comb(len(rows), k)


def rows_of(genotypes: Genotypes, row_of: npt.NDArray[Any]) -> Iterator[Genotype]:
    """The genotypes of a screen, given the row of each of its codes."""
    ptr, doses = genotypes.ptr, np.zeros(len(row_of)) if genotypes.values is None else genotypes.values
    parts = (slice(ptr[i], ptr[i + 1]) for i in range(len(genotypes)))
    return (Genotype.of(row_of[part].tolist(), doses[part].tolist()) for part in parts)


def read_names(path: Path) -> list[str]:
    """Gene names, one per line; empty lines are ignored."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise KnockgraphError(f"cannot read {path}: there is no such file") from error
    except OSError as error:
        raise KnockgraphError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise KnockgraphError(f"{path} is not UTF-8 text ({error.reason}); give gene names, one per line") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _read(text: str) -> list[tuple[str, float]]:
    try:
        return [name_and_value(gene) for gene in parse(text)]
    except ScreenError as error:
        raise KnockgraphError(f"--genes {text!r}: {error}") from error


def _known(genotypes: Genotypes, graph: CellGraph, unknown: str, note: Say) -> Genotypes:
    """The genotypes whose genes the graph has; others are an error, or left out."""
    if unknown not in ("error", "drop"):
        raise KnockgraphError(f"--unknown {unknown!r} is not an option; use error or drop")
    hits = {name: graph.genes.find(name) for name in genotypes.names}
    names = {name: found for name, found in hits.items() if len(found) != 1}
    if not names:
        return genotypes
    if unknown == "error":
        error = graph.genes.unknown(names)
        raise UnknownGeneError(f"{error}, or leave their genotypes out with --unknown drop", error.names)
    bad = np.array([name in names for name in genotypes.names])
    lost = np.zeros(len(genotypes), dtype=bool)
    lost[ragged.row_of_entry(genotypes.ptr)[bad[genotypes.codes]]] = True
    if lost.all():
        raise KnockgraphError("there is nothing left to predict: every genotype has an unknown gene; check the names")
    note(f"left out {counted(int(lost.sum()), 'genotype')} with unknown genes ({listed(list(names), most=5)})")
    return genotypes.take(np.flatnonzero(~lost))


def table_at(path: Path) -> Screen:
    """A screen file, or any table with a ``genotype`` column."""
    from knockgraph.errors import FileFormatError
    from knockgraph.sources.tables import read_genotypes

    if path.name.endswith(".parquet"):
        try:
            return Screen.load(path)
        except FileFormatError as error:
            if "not a knockgraph screen" not in str(error):
                raise
    try:
        return read_genotypes(path)
    except (ScreenError, FileFormatError) as error:
        if " --" not in str(error):
            raise
        how = (
            "that is an option of 'knockgraph screen import table': import the table with it, and predict the new file"
        )
        raise type(error)(f"{error} ({how})") from error


def _stream(output: Path, graph: CellGraph, columns: Sequence[str], batches: Batches) -> int:
    """Write batch by batch, so that millions of genotypes never stand in memory together: a row for each genotype, a
    column for each phenotype.

    Parquet has the genes of a genotype as a list; text has them joined by +, as screens are read.
    """
    import pyarrow as pa

    text = output.suffix != ".parquet"
    kind = pa.string() if text else pa.list_(pa.string())
    schema = pa.schema([("genotype", kind), ("standard", kind), *((name, pa.float64()) for name in columns)])
    most = max(_MOST_WAITING // len(columns), 1)
    written = 0
    with atomic_write(output) as part, _writer(part, schema, output.suffix) as writer:
        waiting: list[Predicted] = []
        for found in batches:
            waiting.append(found)
            if sum(len(one.genotypes) for one in waiting) >= most:
                written += _flush(writer, schema, graph, waiting)
        written += _flush(writer, schema, graph, waiting)
    return written


def _stream_in_pieces(
    output: Path,
    predictor: RunPredictor,
    genotypes: Iterable[Genotype],
    total: int,
    dosed: bool,
    size: int,
    columns: Sequence[str],
    about: Sequence[Any],
    progress: Progress | None,
) -> int:
    """As :func:`_stream`, in pieces that a second call of the same command finds and does not predict again.

    They lie in ``OUTPUT.parts`` until all are there; pieces of another command are refused. The name of a piece holds
    the hash of its genotypes, so that it is predicted again where the table of genotypes has changed.
    """
    folder = output.with_name(f"{output.name}.parts")
    told = folder / "about.json"
    if told.is_file() and _told(told) != list(about):
        raise KnockgraphError(f"{folder} holds pieces of another prediction; remove it, or give another name with -o")
    folder.mkdir(exist_ok=True)
    write_json(told, list(about))
    pieces: list[Path] = []
    iterator, done = iter(genotypes), 0
    while chunk := list(itertools.islice(iterator, _PIECE)):
        which = hashlib.sha256(repr(chunk).encode()).hexdigest()[:16]
        pieces.append(folder / f"{len(pieces):06d}-{which}{output.suffix}")
        if not pieces[-1].is_file():

            def counted_on(now: int, _: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + now, total)

            _stream(pieces[-1], predictor.graph, columns, predictor(chunk, len(chunk), dosed, size, counted_on))
        done += len(chunk)
    _join(output, pieces)
    shutil.rmtree(folder)
    return done


def _told(path: Path) -> Any:
    """What pieces of a prediction remember; nothing where that is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None


def _join(output: Path, pieces: Sequence[Path]) -> None:
    """All pieces as one file, a piece at a time."""
    import pyarrow.parquet as pq

    with atomic_write(output) as part:
        if output.suffix == ".parquet":
            with pq.ParquetWriter(part, pq.read_schema(pieces[0])) as writer:
                for piece in pieces:
                    writer.write_table(pq.read_table(piece))
            return
        with part.open("wb") as whole:
            for number, piece in enumerate(pieces):
                with piece.open("rb") as one:
                    if number:
                        one.readline()  # the header
                    shutil.copyfileobj(one, whole)


def _writer(path: Path, schema: Any, suffix: str) -> Any:
    from pyarrow import csv
    from pyarrow.parquet import ParquetWriter

    if suffix == ".parquet":
        return ParquetWriter(path, schema)
    options = csv.WriteOptions(delimiter=_TEXT[suffix])
    return csv.CSVWriter(path, schema, write_options=options)


def _flush(writer: Any, schema: Any, graph: CellGraph, waiting: list[Predicted]) -> int:
    import pyarrow as pa

    kind = schema[0].type
    names: list[Any] = []
    for standard in (False, True):
        rows = (genotype.entries(graph, standard) for found in waiting for genotype in found.genotypes)
        names.append(pa.array(map(as_text, rows) if pa.types.is_string(kind) else rows, kind))
    numbers = np.concatenate([found.columns() for found in waiting], 1) if waiting else np.empty((len(schema) - 2, 0))
    writer.write_table(pa.table([*names, *np.ascontiguousarray(numbers)], schema=schema))
    waiting.clear()
    return len(names[0])
