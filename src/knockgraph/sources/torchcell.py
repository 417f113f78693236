"""The experiment stores of torchcell (https://github.com/Mjvolk3/torchcell): LMDB with one JSON text per genotype.

A record is a list of experiments on one genotype, ``[{"experiment": …, "experiment_reference": …}, …]``, or a single
one. Of an experiment these are read::

    dataset_name
    genotype      perturbations: [{systematic_gene_name, perturbation_type, …}, …]
    environment   media: {name, state}, temperature: {value, unit}, …
    phenotype     label_name (earlier: label): the field that holds the phenotype; label_statistic_name (earlier:
                  label_error): the field of its statistic

A phenotype that is a table of numbers (expression, morphology) becomes one phenotype for each of its entries,
``LABEL_ENTRY``. Every perturbed gene counts as deleted, as in torchcell's graphs; the report counts the alleles among
them. An infinite statistic (an error of one measurement) counts as missing. The source of an experiment is its
dataset and, in a store with several environments, its environment: ``DATASET (SC solid 30 Celsius)``. References and
publications are left out.

``STORE.json`` beside the data says whether the records are compressed. The stores of single datasets hold pickles,
which are never read.
"""

from __future__ import annotations

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from knockgraph.errors import FileFormatError, MissingPackageError, ScreenError
from knockgraph.screen import Genotypes, Screen
from knockgraph.screen.coordinates import Coordinates, as_columns
from knockgraph.sources.report import FileReport, ImportReport
from knockgraph.sources.source import ScreenOptions, Source
from knockgraph.words import listed

Record = dict[str, Any]
_PLACES = tuple(
    (*parts, "lmdb") for parts in ((), *((step,) for step in ("processed", "aggregation", "deduplication", "raw")))
)


class Torchcell(Source):
    """The source ``torchcell``."""

    reads = "the dataset's folder, or its folder 'lmdb'"

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """See above."""
        folder = store_folder(path)
        return read_store(folder, report.file("torchcell", folder))


def store_folder(path: Path) -> Path:
    """The folder that holds the store: itself, or where torchcell puts it below a dataset's folder."""
    for parts in ((), *_PLACES):
        folder = path.joinpath(*parts)
        if (folder / "data.mdb").is_file():
            return folder
    raise FileFormatError(
        f"{path} holds no experiment store: there is no data.mdb in it, in lmdb/ or in processed/lmdb/; give the "
        "folder of a torchcell dataset"
    )


def read_store(folder: Path, report: FileReport) -> Screen:
    """The screen of a store.

    Args:
        folder: The folder with ``data.mdb``.
        report: Records what was read.
    """
    return screen_of(_texts(folder), folder, report)


def screen_of(texts: Iterable[tuple[str, bytes]], folder: Path, report: FileReport) -> Screen:
    """The screen of records: keys and JSON texts."""
    collected = _Collected()
    for key, text in texts:
        collected.add(_record(key, text, folder), f"record {key} of {folder}")
    report.read = len(collected.ptr) - 1
    if report.read == 0:
        raise FileFormatError(f"{folder} holds no experiments; is it the right folder?")
    report.notes += collected.notes()
    try:
        screen = collected.screen()
    except ScreenError as error:
        raise ScreenError(f"{folder}: {error}") from error
    report.kept["experiments"] = len(screen)
    return screen


class _Collected:
    """Experiments in coordinate form."""

    def __init__(self) -> None:
        self.genes: dict[str, int] = {}
        self.codes: list[int] = []
        self.ptr = [0]
        self.types: Counter[str] = Counter()
        self.labels = _Entries()
        self.statistics = _Entries()
        self.sources: dict[tuple[str, str], int] = {}  # dataset and environment
        self.label_sources: list[int] = []
        self.environments: Counter[str] = Counter()
        self.undefined = 0
        self.ownerless = 0

    def add(self, record: list[Any], where: str) -> None:
        """Add the experiments on one genotype."""
        genotypes = set()
        for item, entry in enumerate(record):
            try:
                genotypes.add(self._add_experiment(entry["experiment"], item))
            except KeyError as error:
                raise FileFormatError(f"{where} is not an experiment of torchcell: it has no {error}") from error
            except (TypeError, AttributeError, ValueError, OverflowError) as error:
                raise FileFormatError(f"{where} is not an experiment of torchcell: {str(error)[:200]}") from error
        if len(genotypes) != 1:
            raise FileFormatError(
                f"{where} holds experiments on {len(genotypes)} genotypes; aggregate them by genotype"
            )
        self.codes += [self.genes.setdefault(gene, len(self.genes)) for gene in genotypes.pop()]
        self.ptr.append(len(self.codes))

    def _add_experiment(self, experiment: Record, item: int) -> tuple[str, ...]:
        """Add the numbers of one; its genotype is returned."""
        perturbed = experiment["genotype"]["perturbations"]
        genes = [gene["systematic_gene_name"] for gene in perturbed]
        phenotype = experiment["phenotype"]
        # Earlier versions say 'label' and 'label_error'.
        label = str(phenotype["label"] if "label" in phenotype else phenotype["label_name"])
        statistic = str(phenotype.get("label_statistic_name") or phenotype.get("label_error") or "")
        environment = " ".join(_words(experiment.get("environment")))
        self.environments[environment] += 1
        made = (str(experiment.get("dataset_name", "")), environment)
        source = self.sources.setdefault(made, len(self.sources))
        sample = len(self.ptr) - 1
        short = statistic.removeprefix(f"{label}_")
        deviations = dict(_numbers("", phenotype.get(statistic)))
        for entry, value in _numbers("", phenotype[label]):
            self.labels.add(sample, f"{label}{entry}", item, value)
            self.label_sources.append(source)
            deviation = deviations.pop(entry, None)
            if deviation is not None and math.isinf(deviation):
                self.undefined += 1
            elif deviation is not None:
                self.statistics.add(sample, f"{label}{entry}.{short}", item, deviation)
        self.ownerless += len(deviations)
        self.types.update(str(gene.get("perturbation_type", "deletion")) for gene in perturbed)
        if not all(isinstance(gene, str) for gene in genes):
            raise TypeError("a systematic_gene_name is no text")
        return tuple(sorted(set(genes)))

    def notes(self) -> Iterator[str]:
        """What the report says beside numbers of rows."""
        alleles = [f"{count:,} {kind}" for kind, count in self.types.most_common() if kind != "deletion"]
        if alleles:
            yield f"perturbations other than deletions count as deletions, as in torchcell: {', '.join(alleles)}"
        if len(self.environments) > 1:
            common = [f"{name or 'none given'} ({count:,})" for name, count in self.environments.most_common()]
            yield (
                f"experiments of {len(self.environments)} environments share their columns, as in torchcell; the "
                f"source of each says which it is: {listed(common)}"
            )
        if self.undefined:
            yield f"infinite statistics are taken for missing: {self.undefined:,}"
        if self.ownerless:
            yield f"statistics of which no phenotype has the name are left out: {self.ownerless:,}"

    def screen(self) -> Screen:
        """All of them."""
        labels = self.labels.coordinates()
        made = as_columns(len(self.ptr) - 1, labels, self.statistics.coordinates())
        genotypes = Genotypes(tuple(self.genes), np.array(self.codes, np.int32), np.array(self.ptr))
        source = self._sources(np.asarray(made.place), len(made.sample))
        return Screen(genotypes.take(made.sample), made.phenotypes, made.statistics, source)

    def _sources(self, place: np.ndarray[Any, Any], rows: int) -> list[str]:
        """The datasets of each row's numbers, joined by ``+``, and their environments if there are several."""
        several = len(self.environments) > 1
        names = [f"{dataset} ({place})" if several and place else dataset for dataset, place in self.sources]
        codes = np.array(self.label_sources, dtype=np.int64)
        first = np.full(rows, -1)
        first[place[::-1]] = codes[::-1]
        of_row = [[code] if code >= 0 else [] for code in first.tolist()]
        for entry in np.flatnonzero(codes != first[place]).tolist():
            if codes[entry] not in (found := of_row[place[entry]]):
                found.append(codes[entry])
        return ["+".join(names[code] for code in found) for found in of_row]


class _Entries:
    """Coordinates that grow."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.rows: list[tuple[int, int, int]] = []
        self.values: list[float] = []

    def add(self, sample: int, name: str, item: int, value: float) -> None:
        self.rows.append((sample, self.names.setdefault(name, len(self.names)), item))
        self.values.append(value)

    def coordinates(self) -> Coordinates:
        rows = np.array(self.rows, dtype=np.int64).reshape(-1, 3)
        return Coordinates(rows[:, 0], rows[:, 1], rows[:, 2], np.array(self.values, np.float64), tuple(self.names))


def _numbers(entry: str, value: Any) -> Iterator[tuple[str, float]]:
    """A phenotype's numbers: one, called ``""``, or of a table one for each entry, called ``_ENTRY``."""
    if isinstance(value, dict):
        for key, number in value.items():
            yield from _numbers(f"{entry}_{key}", number)
    elif isinstance(value, (int, float)):
        yield entry, float(value)
    elif value is not None:
        raise TypeError(f"a phenotype is {value!r:.40}, which is no number")


def _words(value: Any) -> Iterator[str]:
    """All texts and numbers of an environment, in their order.

    >>> list(_words({"media": {"name": "SC", "state": "solid"}, "temperature": {"value": 30.0}, "other": None}))
    ['SC', 'solid', '30']
    """
    if isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _words(part)
    elif value is not None:
        yield f"{value:g}" if isinstance(value, float) else str(value)


def _texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Keys and JSON texts, in the order of the records' numbers."""
    try:
        import lmdb
    except ImportError as error:
        raise MissingPackageError(
            "reading a torchcell store needs the package lmdb; pip install 'knockgraph[stored]'"
        ) from error
    compressed = _compressed(folder)
    try:
        with lmdb.open(str(folder), readonly=True, lock=False, readahead=False, max_dbs=0) as env, env.begin() as store:
            if (env.info()["last_pgno"] + 1) * env.stat()["psize"] > (folder / "data.mdb").stat().st_size:
                raise FileFormatError(f"{folder}/data.mdb is shorter than it says; copy it again")
            keys = sorted((bytes(key) for key, _ in store.cursor()), key=_number)
            for key in keys:
                text = store.get(key) or b""
                yield key.decode(errors="replace"), zlib.decompress(text) if compressed else text
    except (lmdb.Error, zlib.error) as error:
        raise FileFormatError(f"{folder} is not a readable LMDB store ({error}); copy it again") from error


def _compressed(folder: Path) -> bool:
    file = folder / "STORE.json"
    if not file.is_file():
        return False
    try:
        codec = json.loads(file.read_text())["codec"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{file} does not say how the records are stored; copy the store again") from error
    if codec not in ("none", "zlib"):
        raise FileFormatError(f"{file} names the codec {codec!r}, but only none and zlib are known")
    return bool(codec == "zlib")


def _number(key: bytes) -> tuple[int, bytes]:
    """Records are numbered: ``17`` or ``data_17``."""
    digits = key.rpartition(b"_")[2]
    return (int(digits), key) if digits.isdigit() else (-1, key)


def _record(key: str, text: bytes, folder: Path) -> list[Any]:
    if text.startswith((b"\x80", b"PK\x03\x04")):  # of torch.save
        raise FileFormatError(
            f"{folder} holds pickles, which may run code and are never read; load the dataset in Python with "
            "torchcell, and use the store of a queried dataset, which holds JSON"
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"record {key} of {folder} is not JSON ({error}); copy the store again") from error
    return found if isinstance(found, list) else [found]
