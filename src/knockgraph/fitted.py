"""The front door: from a graph and a table to a model that predicts, in Python.

>>> import knockgraph as kg
>>> fitted = kg.fit(kg.demo_cell(), kg.demo_screen(400), epochs=1, verbose=False)  # doctest: +SKIP
>>> fitted.predict([["YAA001W", "YAA010C"], []])  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph import registry, run
from knockgraph.errors import FileFormatError, KnockgraphError, ModelError, ScreenError
from knockgraph.evaluate import coverage_in_words, evaluate
from knockgraph.explain import Explanation, explain
from knockgraph.files import check_folder
from knockgraph.frames import Library, frame, library_of
from knockgraph.graph import CellGraph, GeneNames
from knockgraph.html.notebook import card
from knockgraph.options import did_you_mean
from knockgraph.predict import (
    Genotype,
    Order,
    Predicted,
    Progress,
    RunPredictor,
    combinations,
    foremost,
    records,
    rows_of,
    table_at,
    without,
)
from knockgraph.progress import shown
from knockgraph.report.explorer import EXPLAINED, PAIRS, PARTNERS, write_explorer
from knockgraph.screen import PerturbationBatch, Screen, Split
from knockgraph.screen.genotypes import Genotypes, as_text, parse
from knockgraph.sources.table_layout import TableOptions
from knockgraph.sources.tables import read_genotypes, read_table
from knockgraph.train.data import SCREEN, TrainingData, screen_of, selected
from knockgraph.train.intervals import COVERAGE
from knockgraph.train.keywords import config_of
from knockgraph.train.predictor import Say
from knockgraph.train.schema import Config, checked_values
from knockgraph.words import listed

PathLike = str | os.PathLike[str]
_GENOTYPES = ("genotype", "perturbation", "condition", "guide_identity")
_FILES = (".parquet", ".csv", ".tsv", ".txt", ".xlsx", ".xls", ".gz", ".xz", ".bz2", ".zip")
_MANY = 1_000_000  # pairs that nobody should wait for without a word
_FIRST = ("pearson", "spearman", "rmse_original", "auroc", "average_precision")
Model = str | type[nn.Module] | nn.Module | Callable[[CellGraph], nn.Module]


def fit(
    graph: CellGraph | PathLike,
    screen: Any,
    phenotype: str | Sequence[str] | None = None,
    model: Model = "hetero",
    split: str | Split = "genotype",
    epochs: int | None = None,
    seed: int = 0,
    run_dir: PathLike | None = None,
    verbose: bool = True,
    **options: Any,
) -> Fitted:
    """Train a model and test it, as ``knockgraph train`` does.

    Args:
        graph: The cell graph, or the path of one.
        screen: A :class:`Screen`, a path (a screen, or a table as people have them), a dataframe of pandas or polars,
            an Arrow table, or an AnnData with the genotypes in ``obs`` and a phenotype for each variable.
        phenotype: What to predict: one or several columns. By default ``gene_interaction``, or the only one there is.
        model: A name, a class that is created as ``model(graph)``, a module, or a function from the graph to a module;
            anything with ``forward(view, batch)`` that gives ``[samples, outputs]``. ``hetero`` has the preset
            ``small`` for cells of fewer than 2,000 genes, else ``fast``; ``preset=…`` chooses another one.
        split: ``genotype``, ``unseen-genes``, ``random``, ``source``, ``k-fold``, or a :class:`Split` of the screen.
        epochs: By default as many as make 1,400 steps, from 7 to 100.
        seed: Same seed, same result.
        run_dir: Where the run is kept; a temporary folder by default, see :meth:`Fitted.save`.
        verbose: Whether to print what the command line prints, with a progress bar.
        options: Any key of the config, in full (``**{"loader.batch_size": 64}``) or by its last word
            (``batch_size=64``), and the options of the model (``channels=32``).

    Returns:
        The trained model.
    """
    if not isinstance(graph, CellGraph | str | os.PathLike):
        raise KnockgraphError(
            f"the graph is a {type(graph).__name__}; give a kg.CellGraph or the path of one first, then the screen"
        )
    cell = graph if isinstance(graph, CellGraph) else CellGraph.load(graph)
    _check_whole("epochs", 1 if epochs is None else epochs)
    _check_whole("seed", seed)
    wanted = () if phenotype is None else (phenotype,) if isinstance(phenotype, str) else tuple(phenotype)
    columns = () if any("*" in name for name in wanted) else wanted  # a pattern is for all columns that can be read
    table = as_screen(screen, columns, print if verbose else _silent, cell.genes)
    config = config_of(_name_of(model), cell.num_genes, {"progress_bar": verbose, **options})
    if not wanted and hasattr(screen, "var_names"):  # a vector per genotype
        wanted = tuple(table.phenotypes)
    config.data.phenotypes = _phenotypes(table, wanted)
    if not isinstance(split, Split):
        config.data.split.kind = split
    config.seed = seed
    temporary = None if run_dir is not None else Path(tempfile.mkdtemp(prefix="knockgraph-"))
    try:
        directory = _train(config, cell, table, split, epochs, temporary or Path(os.fspath(run_dir or "")), verbose)
        device = "cuda" if config.trainer.accelerator != "cpu" and torch.cuda.is_available() else "cpu"
        fitted = Fitted(directory, device, library_of(screen))
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    if temporary is not None:
        weakref.finalize(fitted, shutil.rmtree, temporary, ignore_errors=True)
    return fitted


def _train(
    config: Config,
    cell: CellGraph,
    table: Screen,
    split: str | Split,
    epochs: int | None,
    directory: Path,
    verbose: bool,
) -> Path:
    if epochs is not None:
        config.trainer.max_epochs = epochs
    config.run_dir = str(directory)
    config.data.cell, config.data.screen = str(directory / "cell.cellgraph"), str(directory / SCREEN)
    data = TrainingData.of(
        checked_values(config), selected(cell, config.data), table, split if isinstance(split, Split) else None
    )
    with shown() if verbose else contextlib.nullcontext():
        return run.train(checked_values(config), print if verbose else _silent, data=data)


def load(
    directory: PathLike,
    device: str = "cpu",
    checkpoint: str = "best-error",
    model: Model | None = None,
    note: Say | None = None,
) -> Fitted:
    """The model of a run directory, made by :func:`fit`, :meth:`Fitted.save` or ``knockgraph train``.

    Args:
        directory: The run directory.
        device: ``cpu`` or ``cuda``.
        checkpoint: ``best-error``, ``best-score`` or ``last``.
        model: What was given to :func:`fit` as the model, where that was a class that cannot be imported, a module or a
            function: a run keeps the name of its model, not its code.
        note: Called with what you should know about predictions; by default it is a warning.
    """
    if model is not None:
        _name_of(model)
    return Fitted(Path(os.fspath(directory)), device, checkpoint=checkpoint, note=note)


class Fitted:
    """A trained model and the run that it comes from.

    Args:
        directory: The run directory.
        device: Where it predicts.
        library: Whose dataframes it gives: ``pandas``, ``polars`` or ``pyarrow``.
        checkpoint: ``best-error``, ``best-score`` or ``last``.
        note: Called with what one should know about predictions; by default it is a warning.

    Attributes:
        directory: The run directory.
        graph: The cell graph.
        config: The resolved config.
        model: The trained module.
        phenotypes: What is predicted.
    """

    def __init__(
        self,
        directory: Path,
        device: str = "cpu",
        library: Library = "pandas",
        checkpoint: str = "best-error",
        note: Say | None = None,
    ) -> None:
        self._library: Library = library
        self._note = note or _warn
        self._checkpoint = checkpoint
        self._predictor = RunPredictor(directory, checkpoint, device, note=self._note)
        self.directory = directory
        self.graph = self._predictor.graph
        self.config = self._predictor.config
        self.model: nn.Module = self._predictor.task.model
        self.phenotypes: tuple[str, ...] = tuple(self._predictor.task.phenotypes)

    def predict(self, genotypes: Any, coverage: float = COVERAGE, batch_size: int | None = None) -> Any:
        """Predict genotypes that need not have been measured.

        Args:
            genotypes: Lists of gene names (``[]`` is the wild type, ``["YAL001C=0.3"]`` a gene that is turned down),
                written genotypes (``"YAL001C+YBR002C"``), a table with genotypes or the path of one, or a
                :class:`Screen`.
            coverage: Of the intervals, see :class:`~knockgraph.train.intervals.Intervals`.
            batch_size: Samples per batch; by default as many as fit the memory.

        Returns:
            A dataframe with ``genotype``, ``standard`` (standard names), ``prediction``, ``lower`` and ``upper`` in
            original units, a row for each genotype; where there are several phenotypes a row for each, named in
            ``phenotype``. Without intervals (classes, other checkpoints) ``lower`` and ``upper`` are NaN.
        """
        found = self._genotypes(genotypes)
        predictor = self._with(coverage)
        dosed = any(genotype.values for genotype in found)
        library = library_of(genotypes) if _is_table(genotypes) else self._library
        self._note_new(found)
        return self._frame(predictor(found, max(len(found), 1), dosed, batch_size), library)

    def candidates(
        self,
        top: int = 100,
        new: bool = True,
        genes: Iterable[str] | None = None,
        order: Order = "extreme",
        phenotype: str | None = None,
        coverage: float = COVERAGE,
        progress: Progress | None = None,
    ) -> Any:
        """The pairs of genes with the most extreme predictions.

        Args:
            top: How many.
            new: Leave out pairs that the run's screen has measured.
            genes: Pairs of these genes only; by default of all genes of the graph.
            order: ``extreme`` (farthest from the prediction for the wild type), ``lowest`` or ``highest`` first.
            phenotype: The one to sort by, where there are several.
            coverage: Of the intervals.
            progress: Told after each batch how many pairs are done, and how many there are at most.

        Returns:
            A dataframe as that of :meth:`predict`.
        """
        _check_whole("top", top)
        chosen = None if genes is None else self.graph.gene_index(list(genes)).tolist()
        genotypes, total = combinations(self.graph, chosen)
        predictor = self._with(coverage)
        if progress is None and total > _MANY and predictor.task.device.type == "cpu":
            self._note(
                f"{total:,} pairs are predicted on the CPU, which may take hours; give genes=[…] to predict fewer, or "
                "progress=print to see how far it is"
            )
        if new:
            genotypes = without(genotypes, predictor.measured())
        column, centre = predictor.centre(phenotype)
        found = foremost(predictor(genotypes, total, progress=progress), top, column, centre, order)
        self._note_new(found.genotypes)
        return self._frame([found], self._library)

    def explain(self, genes: Iterable[str] | str, phenotype: str | None = None) -> Explanation:
        """Which deleted genes, relations and neighbours carry a prediction.

        Args:
            genes: The deleted genes, ``["YAL001C", "YBR002C"]`` or ``"YAL001C+YBR002C"``.
            phenotype: Which one, where there are several.

        Returns:
            Parts that add up to the prediction minus the wild type, as tables and pictures.
        """
        names = parse(genes) if isinstance(genes, str) else tuple(genes)
        if not all(isinstance(name, str) for name in names):
            raise KnockgraphError(f"explain takes one genotype, such as ['A', 'B'] or 'A+B', not {genes!r}")
        if any("=" in name for name in names):
            raise KnockgraphError("only deletions are explained; leave the values of the genes out")
        rows = self.graph.gene_index(names).tolist()
        self._note_new([Genotype(tuple(rows))])
        return explain(self._predictor.task, rows, phenotype).in_library(self._library)

    def explorer(
        self,
        path: PathLike,
        genes: Iterable[str] | str | None = None,
        phenotype: str | None = None,
        pairs: int = PAIRS,
        partners: int = PARTNERS,
        explained: int = EXPLAINED,
        progress: Progress | None = None,
    ) -> Path:
        """Write a self-contained page on which a gene's partners are looked up: measured and predicted, with intervals,
        neighbours in the relations and explanations of the most extreme new pairs.

        Args:
            path: The ``.html`` file; at most about 10 MB.
            genes: The genes whose pairs are predicted; by default all, or where these make too many pairs, the ones
                with the most measured pairs.
            phenotype: Which one, where there are several.
            pairs: At most so many pairs are predicted.
            partners: At most so many measured and so many new partners are listed for each gene.
            explained: So many of the most extreme new pairs are explained.
            progress: Told after each batch how many pairs are done, and how many there are.
        """
        names = None if genes is None else parse(genes) if isinstance(genes, str) else tuple(genes)
        rows = None if names is None else self.graph.gene_index(names).tolist()
        target = Path(os.fspath(path))
        return write_explorer(self._predictor, target, rows, phenotype, pairs, partners, explained, progress)

    def evaluate(self, part: str = "test", verbose: bool = False) -> Any:
        """Metrics of the model and of the baselines on one part of the split.

        Args:
            part: ``test``, ``val`` or ``train``.
            verbose: Whether to print what the command line prints.

        Returns:
            A dataframe with a row for the model and one for each baseline. Its column ``coverage`` is the share of
            measured values that lie in the model's intervals.
        """
        if part == "test" and not verbose and self._checkpoint == "best-error" and self.result is not None:
            result = self.result
        else:
            say = print if verbose else _silent
            result = evaluate(self.directory, part, self._checkpoint, say, str(self._predictor.task.device))
        lines: dict[str, dict[str, float]] = result["metrics"]
        measured = (result.get("intervals") or {}).get("measured") or [None]
        known = [share for share in measured if share is not None]
        there = dict.fromkeys(key for found in lines.values() for key in found if key != "seconds")
        names = [*(key for key in _FIRST if key in there), *(key for key in there if key not in _FIRST)]
        columns: dict[str, list[Any]] = {"model": list(lines)}
        own = sum(known) / len(known) if known else None
        coverage = [_number(own if line == self.config.model.name else None) for line in lines]
        for name in names:
            if name not in _FIRST:
                columns.setdefault("coverage", coverage)
            columns[name] = [_number(found.get(name)) for found in lines.values()]
        return frame(columns, self._library, index="model")

    def embeddings(self) -> Any:
        """What the model knows about each gene of the wild type: a dataframe of genes × channels."""
        task = self._predictor.task
        batch = PerturbationBatch.from_lists([], self.graph.num_genes).only_wild_type().to(task.device)
        with torch.no_grad(), task.strategy(task.strategy.collate(batch)) as view:
            states: Tensor = task.model.gene_states(view).detach().double().cpu()
        columns: dict[str, Any] = {"gene": list(self.graph.genes.names)}
        columns |= {f"channel_{k}": column.tolist() for k, column in enumerate(states.T)}
        return frame(columns, self._library, index="gene")

    def save(self, directory: PathLike) -> Path:
        """Copy the run, with its screen, to a folder that does not exist yet; :func:`load` reads it."""
        target = Path(os.fspath(directory))
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise KnockgraphError(f"cannot save to {target}: it is there already; choose another folder")
        check_folder(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            part = Path(folder) / "run"
            shutil.copytree(self.directory, part, ignore=shutil.ignore_patterns("*.lock", "store"))
            if not (part / SCREEN).exists():
                with contextlib.suppress(KnockgraphError):  # moved away since; prediction does without
                    screen_of(self.config, self.directory).resolved(self.graph).save(part / SCREEN)
            if target.exists():
                target.rmdir()
            part.replace(target)
        return target

    @cached_property
    def result(self) -> dict[str, Any] | None:
        """The figures of the test part, as in ``result.json``."""
        path = self.directory / "result.json"
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (ValueError, RecursionError) as error:
            raise FileFormatError(
                f"{path} cannot be read: {error}; remove it, and the test part is measured"
            ) from error

    @property
    def split(self) -> Split:
        """Which experiments trained, validated and tested."""
        return Split.load(self.directory / "data.split")

    @property
    def report(self) -> Path:
        """The HTML report of the run."""
        return self.directory / "report.html"

    def _note_new(self, genotypes: Sequence[Genotype]) -> None:
        """Say what of these genotypes training has not seen: genes, and how many at once."""
        task = self._predictor.task
        genes = task.never_deleted(gene for genotype in genotypes for gene in genotype.genes)
        sizes = task.never_so_many(genotype.size for genotype in genotypes)
        for text in filter(None, (genes, sizes)):
            self._note(text)

    def _with(self, coverage: float) -> RunPredictor:
        """The predictor with intervals of another coverage."""
        predictor = copy.copy(self._predictor)
        predictor.set_coverage(coverage)
        return predictor

    def _genotypes(self, given: Any) -> list[Genotype]:
        genotypes = _written(given)
        rows = self.graph.gene_index(genotypes.names).numpy()[genotypes.codes] if genotypes.names else genotypes.codes
        return list(rows_of(genotypes, rows))

    def _frame(self, batches: Iterable[Predicted], library: Library) -> Any:
        rows = [row for found in batches for row in records(self.graph, self.phenotypes, found)]
        names = ["genotype", "standard", *(["phenotype"] if len(self.phenotypes) > 1 else [])]
        columns: dict[str, list[Any]] = {
            name: [as_text(row[name]) if isinstance(row[name], list) else row[name] for row in rows] for name in names
        }
        for name in ("prediction", "lower", "upper"):
            columns[name] = [_number(row[name]) for row in rows]
        return frame(columns, library)

    def __repr__(self) -> str:
        return f"Fitted({self.config.model.name}, {listed(self.phenotypes)}{self._score()}, {self.directory})"

    def _score(self) -> str:
        found = (self.result or {}).get("metrics", {}).get(self.config.model.name, {})
        score = "auroc" if self._predictor.task.classes else "pearson"
        return "" if found.get(score) is None else f", test {score} {found[score]:.3f}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the model beside the baselines."""
        result = self.result or {}
        score, error = ("auroc", "bce") if self._predictor.task.classes else ("pearson", "rmse_original")
        rows = [
            [name, *(_number(found.get(key)) for key in (score, error))]
            for name, found in result.get("metrics", {}).items()
        ]
        note = f"{coverage_in_words(result)}." if result.get("intervals") else ""
        return card(repr(self), ["test part", score, error], rows, note)


def as_screen(screen: Any, phenotypes: Sequence[str] = (), say: Say = print, genes: GeneNames | None = None) -> Screen:
    """A screen from whatever holds one: a :class:`Screen`, a path, or a table.

    Args:
        screen: What holds it.
        phenotypes: Columns of a table that are wanted; by default all that can be phenotypes.
        say: Told how a table was understood.
        genes: Those of the cell, by which a matrix is known.
    """
    if isinstance(screen, Screen):
        return screen
    path = Path(os.fspath(screen)) if isinstance(screen, str | os.PathLike) else None
    if path is not None and path.name.endswith(".parquet"):
        try:
            return Screen.load(path)
        except FileFormatError as error:
            if "not a knockgraph screen" not in str(error):
                raise
    if all(hasattr(screen, name) for name in ("obs", "var_names", "to_df")):
        return _from_anndata(screen)
    if type(screen).__name__ == "LazyFrame":  # of polars
        screen = screen.collect()
    if path is None and not _is_table(screen) and not isinstance(screen, Mapping):
        raise ScreenError(
            f"a {type(screen).__name__} is no screen; give a kg.Screen, a path, or a table of pandas, polars or Arrow"
        )
    try:
        found, reading = read_table(screen if path is None else path, TableOptions(phenotypes, known=genes))
    except (ScreenError, FileFormatError) as error:
        if " --" not in str(error):
            raise
        how = "in Python: knockgraph.sources.tables.read_table(…, TableOptions(…)) has these options and gives a screen"
        raise type(error)(f"{error} ({how})") from error
    say(str(reading))
    return found


def _from_anndata(data: Any) -> Screen:
    """An AnnData: genotypes in ``obs``, a phenotype for each variable."""
    columns = {str(name).lower(): name for name in data.obs.columns}
    found = next((columns[name] for name in _GENOTYPES if name in columns), None)
    if found is None:
        raise ScreenError(
            f"the AnnData has no genotypes: its obs needs a column {' or '.join(_GENOTYPES)} (genes joined by +); it "
            f"has {listed([str(name) for name in data.obs.columns]) or 'none'}"
        )
    genotypes = read_genotypes(data.obs[[found]].astype(str)).genotypes
    values = data.to_df()
    return Screen(genotypes, {str(name): values[name].to_numpy() for name in values.columns}, source="AnnData")


def _is_table(given: object) -> bool:
    return hasattr(given, "columns") and (hasattr(given, "__arrow_c_stream__") or library_of(given) == "pandas")


def _written(given: Any) -> Genotypes:
    """Genotypes as they may be given for prediction."""
    if isinstance(given, Screen):
        return given.genotypes
    if _is_table(given):
        return read_genotypes(given).genotypes
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.lower().endswith(_FILES)):
        return table_at(Path(os.fspath(given))).genotypes
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, Iterable):
        raise KnockgraphError(f"{given!r} are no genotypes; give a list such as [['A', 'B'], ['C']], or a table")
    return Genotypes.from_lists(parse(one) if isinstance(one, str) else one for one in given)


def _phenotypes(screen: Screen, wanted: Sequence[str]) -> list[str]:
    names = list(screen.phenotypes)
    if not wanted:
        if len(names) > 1 and "gene_interaction" not in names:
            raise ScreenError(f"the screen has several phenotypes, {listed(names)}; say which to predict, phenotype=…")
        return ["gene_interaction"] if "gene_interaction" in names else names
    for name in wanted:
        if name not in names and "*" not in name:
            near = did_you_mean(name, names)
            raise ScreenError(f"the screen has no phenotype {name!r}{near}; it has {listed(names)}")
    return list(wanted)


def _name_of(model: Model) -> str:
    """The name under which the registry knows a model."""
    if isinstance(model, str):
        return model
    if isinstance(model, type) and issubclass(model, nn.Module):
        kind: type[nn.Module] = (
            model if _takes_graph(model) else _made(f"{model.__name__}-alone", lambda graph: model())
        )
        module, path = model.__module__, model.__qualname__
        if kind is model and module != "__main__" and "<locals>" not in path and hasattr(sys.modules.get(module), path):
            return f"{module}:{path}"
    elif isinstance(model, nn.Module):
        kind = _made(f"{type(model).__name__}-copy", lambda graph: copy.deepcopy(model))
    elif callable(model) and not isinstance(model, type):
        kind = _made(f"{getattr(model, '__name__', type(model).__name__)}-made", model)
    else:
        raise ModelError(
            f"{model!r} is no model; give a name, a torch module, its class, or a function from the graph to a module"
        )
    name = re.sub(r"[^\w.-]+", "-", kind.__name__).strip("-") or "model"
    registry.register("model", name, kind)
    return name


def _takes_graph(kind: type) -> bool:
    """Whether a class is created with an argument."""
    parameters = inspect.signature(kind).parameters.values()
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


def _made(name: str, make: Callable[[CellGraph], nn.Module]) -> type[nn.Module]:
    """A class whose objects are what a function makes of the graph."""

    def new(cls: type[nn.Module], graph: CellGraph) -> nn.Module:
        del cls
        made = make(graph)
        if not isinstance(made, nn.Module):
            raise ModelError(f"{name}(graph) gave a {type(made).__name__} instead of a torch module")
        return made

    return type(name, (nn.Module,), {"__new__": new, "__module__": __name__, "__qualname__": name})


def _check_whole(name: str, value: object) -> None:
    if type(value) is bool or not isinstance(value, Integral):
        raise KnockgraphError(f"{name} is {value!r}; give a whole number")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)  # where Fitted was asked


def _silent(text: str) -> None:
    del text


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
