"""Prediction from a run directory: named genotypes, a table, or all combinations of a gene list, streamed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph import strategies
from knockgraph.errors import KnockgraphError, ScreenError
from knockgraph.files import atomic_write, check_writable
from knockgraph.graph import CellGraph
from knockgraph.graph.genes import WILD_TYPE
from knockgraph.models.fitted import FittedModel
from knockgraph.screen import PerturbationBatch, Screen
from knockgraph.screen.genotypes import as_text, entry, name_and_value, parse
from knockgraph.train import memory
from knockgraph.train.predictor import MOST_NAMED, Predictor, Say, load_predictor, named
from knockgraph.train.schema import EMPTY
from knockgraph.words import counted, listed

_MOST_SHOWN = 20
_TEXT = {".csv": ",", ".tsv": "\t"}
_MOST_WAITING = 65_536  # predictions that are kept before they are written
_SHARE_OF_MEMORY = 0.5  # of what is free: others use the machine, too


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

    def entries(self, graph: CellGraph) -> list[str]:
        """The genes as they are written, e.g. ``YAL001C=0.3``."""
        values = self.values or (0.0,) * len(self.genes)
        return [entry(graph.genes[gene], value) for gene, value in zip(self.genes, values, strict=True)]


Batches = Iterator[tuple[list[Genotype], npt.NDArray[np.float64]]]
"""Genotypes, and what is predicted for them, ``[genotypes, phenotypes]``."""


def predict(
    directory: Path,
    output: Path | None,
    *,
    genes: list[str] | None = None,
    screen: Path | None = None,
    all_pairs: Path | None = None,
    all_triples: Path | None = None,
    batch_size: int | None = None,
    strategy: str | None = None,
    which: str = "best-error",
    device: str = "cpu",
    say: Say = print,
) -> dict[str, Any]:
    """Predict and write, or print a few; see ``knockgraph predict --help``."""
    given = [source for source in (genes, screen, all_pairs, all_triples) if source]
    if len(given) != 1:
        raise KnockgraphError("give exactly one of --genes, --screen, --all-pairs and --all-triples")
    if output is not None and output.suffix not in (".parquet", *_TEXT):
        raise KnockgraphError(f"-o {output}: the name must end in .parquet, .csv or .tsv, which says what is written")
    if output is not None:
        check_writable(output)
    config, task = load_predictor(directory, which)
    if config.task in EMPTY:
        raise KnockgraphError(f"{directory} is a run of the empty task, which has no model; predict from another run")
    graph = task.graph
    if strategy is not None:
        # What a deletion means is part of the model; all other options belong to the strategy that it trained with.
        meaning = {k: v for k, v in config.strategy.options.items() if k == "direction"}
        other = named("strategy", strategies.create, strategy, graph, **meaning)
        task.strategy = other.double() if config.trainer.precision == "64-true" else other
    if task.approximation is not None:
        say(f"note: {task.approximation}")
    task = task.to(device)
    genotypes, total, dosed = _genotypes(graph, genes, screen, all_pairs, all_triples)
    if output is None and total > _MOST_SHOWN:
        raise KnockgraphError(f"{total:,} genotypes are too many to print; write them to a file with -o FILE")
    if output is None and len(task.phenotypes) > MOST_NAMED:
        many = counted(len(task.phenotypes), "phenotype")
        raise KnockgraphError(f"{many} are too many to print; write them to a file with -o FILE")
    size = batch_size or choose_batch_size(task, graph.num_genes, total, dosed)
    names = [f"predicted_{name}" + ("_probability" if task.classes else "") for name in task.phenotypes]
    batches = _batches(task, genotypes, graph.num_genes, size)
    if output is None:
        written = _print(graph, task.phenotypes, batches, say)
    else:
        written = _stream(output, graph, names, batches)
        say(f"wrote {output}: {counted(written, 'genotype')}, column{'s' * (len(names) > 1)} {listed(names)}")
    about = {"column": names[0]} if len(names) == 1 else {"columns": names}
    return {"genotypes": written, "batch_size": size, **about, "output": None if output is None else str(output)}


def _print(graph: CellGraph, phenotypes: Sequence[str], batches: Batches, say: Say) -> int:
    """A line for each genotype, its predictions behind it; the names of several phenotypes in the first line."""
    if len(phenotypes) > 1:
        say("\t".join(["genotype", *phenotypes]))
    written = 0
    for chunk, values in batches:
        for genotype, predicted in zip(chunk, values.tolist(), strict=True):
            written_genes = "+".join(genotype.entries(graph)) or WILD_TYPE
            say("\t".join([written_genes, *(f"{value:.6g}" for value in predicted)]))
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
        values: Tensor = task(task.strategy.collate(batch).to(task.device)).values
    return values


def _batch(chunk: list[Genotype], num_genes: int) -> PerturbationBatch:
    genes = [genotype.genes for genotype in chunk]
    if not any(genotype.values for genotype in chunk):
        return PerturbationBatch.from_lists(genes, num_genes)
    values = [genotype.values or (0.0,) * len(genotype.genes) for genotype in chunk]
    return PerturbationBatch.from_lists(genes, num_genes, values=values)


def _batches(task: Predictor, genotypes: Iterable[Genotype], num_genes: int, size: int) -> Batches:
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
        yield chunk, task.told(values, perturbed).numpy()


def _genotypes(
    graph: CellGraph,
    genes: list[str] | None,
    screen: Path | None,
    all_pairs: Path | None,
    all_triples: Path | None,
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
    if screen is not None:
        genotypes = _table(screen).genotypes
        row_of = graph.gene_index(genotypes.names).numpy()[genotypes.codes] if len(genotypes.names) else genotypes.codes
        ptr, doses = genotypes.ptr, np.zeros(len(row_of)) if genotypes.values is None else genotypes.values
        parts = (slice(ptr[i], ptr[i + 1]) for i in range(len(genotypes)))
        return (
            (Genotype.of(row_of[part].tolist(), doses[part].tolist()) for part in parts),
            len(genotypes),
            genotypes.values is not None,
        )
    path, k = (all_pairs, 2) if all_pairs is not None else (all_triples, 3)
    assert path is not None
    chosen = np.unique(graph.gene_index(read_names(path)).numpy()).tolist()
    if len(chosen) < k:
        raise KnockgraphError(f"{path} names {len(chosen)} genes, but {k} are needed for one combination")
    return map(Genotype, itertools.combinations(chosen, k)), math.comb(len(chosen), k), False


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


def _table(path: Path) -> Screen:
    """A screen file, or any table with a ``genotype`` column."""
    from knockgraph.errors import FileFormatError
    from knockgraph.sources.tables import read_genotypes

    if path.name.endswith(".parquet"):
        try:
            return Screen.load(path)
        except FileFormatError as error:
            if "not a knockgraph screen" not in str(error):
                raise
    return read_genotypes(path)


def _stream(output: Path, graph: CellGraph, columns: Sequence[str], batches: Batches) -> int:
    """Write batch by batch, so that millions of genotypes never stand in memory together: a row for each genotype, a
    column for each phenotype.

    Parquet has the genes of a genotype as a list; text has them joined by +, as screens are read.
    """
    import pyarrow as pa

    text = output.suffix != ".parquet"
    kinds = [("genotype", pa.string() if text else pa.list_(pa.string())), *((name, pa.float64()) for name in columns)]
    schema = pa.schema(kinds)
    most = max(_MOST_WAITING // len(columns), 1)
    written = 0
    with atomic_write(output) as part, _writer(part, schema, output.suffix) as writer:
        genotypes: list[Any] = []
        values: list[npt.NDArray[np.float64]] = []
        for chunk, predicted in batches:
            written_genes = (genotype.entries(graph) for genotype in chunk)
            genotypes.extend(as_text(row) if text else row for row in written_genes)
            values.append(predicted)
            if len(genotypes) >= most:
                written += _flush(writer, schema, genotypes, values)
        written += _flush(writer, schema, genotypes, values)
    return written


def _writer(path: Path, schema: Any, suffix: str) -> Any:
    from pyarrow import csv
    from pyarrow.parquet import ParquetWriter

    if suffix == ".parquet":
        return ParquetWriter(path, schema)
    options = csv.WriteOptions(delimiter=_TEXT[suffix])
    return csv.CSVWriter(path, schema, write_options=options)


def _flush(writer: Any, schema: Any, genotypes: list[Any], values: list[npt.NDArray[np.float64]]) -> int:
    import pyarrow as pa

    columns = np.concatenate(values).T.copy() if values else np.empty((len(schema) - 1, 0))
    writer.write_table(pa.table([pa.array(genotypes, schema[0].type), *columns], schema=schema))
    count = len(genotypes)
    genotypes.clear()
    values.clear()
    return count
