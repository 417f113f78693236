"""From the config to cell graph, screen, split, labels and loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from knockgraph import registry
from knockgraph.errors import (
    ConfigError,
    FileFormatError,
    GraphError,
    KnockgraphError,
    LabelError,
    ScreenError,
    SplitError,
)
from knockgraph.graph import CellGraph
from knockgraph.graph.permuted import permuted
from knockgraph.models.baselines.baseline import GenotypeRows
from knockgraph.screen import BoundScreen, LabelTransform, Screen, ScreenLoader, Split, ragged, splits
from knockgraph.screen.calls import check_calls, with_calls
from knockgraph.screen.ragged import Ints
from knockgraph.strategies.strategy import Strategy, as_batch
from knockgraph.train.schema import Config, DataConfig

SCREEN = "screen.parquet"
"""The screen in the run directory, if it has a copy."""


class TrainingData(LightningDataModule):
    """What a run learns from.

    Args:
        config: The config.
        graph: The cell graph.
        screen: The experiments, under any names that the graph knows.
        split: Which of them train, validate and test; refused if two names of one gene would leak.

    Attributes:
        screen: The experiments under systematic names.
        bound: The experiments bound to the graph; ``values`` hold the labels in original units (or classes), NaN where
            one of several is missing.
        rows: Part → positions in ``bound``.
        transform: Fitted on the training part only.
        between_batches: Called between two batches of training.
    """

    def __init__(self, config: Config, graph: CellGraph, screen: Screen, split: Split) -> None:
        super().__init__()
        data = config.data
        self.config = config
        self.graph = graph
        self.split = split.resolved(screen, graph)
        self.screen = screen = screen.resolved(graph)
        self.classes = config.task == "classification"
        bound = screen.bind(graph, data.phenotypes, data.unknown, data.missing)  # type: ignore[arg-type]
        if data.calls is not None and data.permute != "networks":
            check_calls(graph, bound)
        self.bound = _as_classes(bound, data) if self.classes else bound
        if data.permute == "labels":
            order = torch.randperm(len(self.bound), generator=torch.Generator().manual_seed(data.split.seed))
            self.bound = replace(self.bound, values=self.bound.values[order])
        self.rows: dict[str, Ints] = {
            part: self.bound.locate(rows, f"the {part} part") for part, rows in split.parts.items()
        }
        if config.trainer.overfit_batches:
            self.rows["train"] = self.rows["val"] = self.rows["train"][: _overfitted(config)]
        transform: Any = data.transform
        labels, names = self.bound.values[self.rows["train"]], self.bound.phenotype_types
        self.transform = LabelTransform.fit(labels, transform, self.classes, names)
        self.train_loader: ScreenLoader | None = None
        self.between_batches: Callable[[], None] | None = None
        self._position: dict[str, Any] | None = None
        self._loaders: list[ScreenLoader] = []

    @staticmethod
    def from_config(config: Config) -> TrainingData:
        """Read or make everything that the config names."""
        return TrainingData.of(config, load_graph(config.data), load_screen(config.data))

    @staticmethod
    def of(config: Config, graph: CellGraph, written: Screen, split: Split | None = None) -> TrainingData:
        """From a graph and a screen, and by default the split that the config names.

        Args:
            config: The config.
            graph: The cell graph, see :func:`selected`.
            written: The experiments.
            split: A split of them.
        """
        if config.data.genes == "screened":
            graph = of_screen(graph, written)
        screen = written.resolved(graph)
        found = make_split(config.data, screen) if split is None else split
        if split is not None or config.data.split.kind == "file":
            found = found.resolved(written, graph)
        return TrainingData(config, graph, screen, found)

    @staticmethod
    def from_directory(config: Config, directory: Path) -> TrainingData:
        """What a run was started with: its own copy of graph and split; the screen is refused if it has changed."""
        graph, screen = CellGraph.load(directory / "cell.cellgraph"), screen_of(config, directory)
        data = TrainingData(config, graph, screen, Split.load(directory / "data.split"))
        remembered = data.split.labels_hash
        if remembered is not None and remembered != data.bound.labels_hash:
            raise LabelError(
                f"the labels of {config.data.screen} are not those that {directory} was trained on (or others are "
                "missing); put that screen back, or predict its genotypes with 'knockgraph predict --screen'"
            )
        return data

    def loader(
        self, part: str, shuffle: bool, strategy: Strategy | None = None, rank: int = 0, world_size: int = 1
    ) -> ScreenLoader:
        """Batches of one part, with what the strategy attaches to them where they are made."""
        loader = self.config.loader
        collate = None if strategy is None else strategy.collate
        # What a worker-side strategy attaches is made on the host.
        here = loader.num_workers == 0 and collate in (None, as_batch)
        resident = loader.resident and here and self._device().type == "cuda"
        ahead = self._device() if loader.copy_ahead and not resident and self._device().type == "cuda" else None
        return ScreenLoader(
            self.bound.to(self._device()) if resident else self.bound,
            self.rows[part],
            batch_size=loader.batch_size,
            seed=self.config.seed,
            shuffle=shuffle,
            rank=rank,
            world_size=world_size,
            collate=collate,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory or ahead is not None,
            persistent_workers=loader.persistent_workers and loader.num_workers > 0,
            prefetch_factor=loader.prefetch_factor,
            ahead=ahead,
            timeout=loader.timeout,
        )

    def train_dataloader(self) -> ScreenLoader:
        """Shuffled, shared out over the ranks."""
        self.train_loader = self._distributed("train", True)
        if self._position is not None:
            self.train_loader.load_state_dict(self._position)
            self._position = None
        self.train_loader.between_batches = self.between_batches
        return self.train_loader

    def state_dict(self) -> dict[str, Any]:
        """The position in the training data."""
        return {} if self.train_loader is None else {"train_loader": self.train_loader.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue there: the next training loader starts at this position."""
        self._position = state_dict.get("train_loader")

    def val_dataloader(self) -> ScreenLoader:
        """In order."""
        return self._distributed("val", False)

    def test_dataloader(self) -> ScreenLoader:
        """In order."""
        return self._distributed("test", False)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Indices and labels only, without waiting."""
        return batch.to(device, non_blocking=True)

    def _distributed(self, part: str, shuffle: bool) -> ScreenLoader:
        rank, world = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)
        strategy = getattr(self.trainer.lightning_module, "strategy", None) if self.trainer else None
        self._loaders.append(self.loader(part, shuffle, strategy, rank, world))
        return self._loaders[-1]

    def close(self) -> None:
        """Stop the workers of all loaders."""
        for loader in self._loaders:
            loader.close()
        self._loaders.clear()

    def _device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer else torch.device("cpu")

    def deleted(self, *parts: str) -> Tensor:
        """Which genes the experiments of these parts delete, bool ``[num_genes]``."""
        genes = torch.zeros(self.graph.num_genes, dtype=torch.bool)
        for part in parts:
            genes[self.bound.batch(self.rows[part]).perturbation_indices] = True
        return genes

    def sizes(self, *parts: str) -> Tensor:
        """How many genes the experiments of these parts perturb: each number once, ascending."""
        ptr, rows = self.bound.host_ptr, np.concatenate([self.rows[part] for part in parts])
        sizes: Tensor = torch.unique(torch.as_tensor(ptr[rows + 1] - ptr[rows]))
        return sizes

    @property
    def most_deletions(self) -> int:
        """Of any experiment, at least 1."""
        ptr = self.bound.host_ptr
        return int((ptr[1:] - ptr[:-1]).max(initial=1))

    def targets(self, part: str) -> Tensor:
        """Labels of a part in label units, ``[experiments, outputs]``; NaN where one is missing."""
        return self.transform(self.bound.values[self.rows[part]])

    def genotypes(self, part: str) -> Ints:
        """A number per experiment of a part, equal where the same genes are perturbed, ``[experiments]``."""
        rows = GenotypeRows.of(self.bound, self.rows[part])
        return ragged.same_set(rows.genes, rows.ptr, max(self.bound.num_genes, 1))


def _overfitted(config: Config) -> int:
    """Experiments of the batches that a run is to learn by heart."""
    trainer = config.trainer
    return trainer.overfit_batches * config.loader.batch_size * trainer.devices * trainer.num_nodes


def load_graph(data: DataConfig) -> CellGraph:
    """The cell graph that the config names."""
    if _is_source("data.cell", data.cell):
        from knockgraph.sources.presets import build_graph

        graph, _ = build_graph(data.cell, None)
    else:
        graph = CellGraph.load(_there("data.cell", data.cell))
    return selected(graph, data)


def selected(graph: CellGraph, data: DataConfig) -> CellGraph:
    """The graph as the config sees it: its relations, merged, with digenic calls, or permuted as a control."""
    graph = _merged(_only(graph, data.relations), data.merge)
    if data.calls is not None:
        calls = Screen.load(_there("data.calls", data.calls))
        graph = with_calls(graph, calls, positive=data.call_signs == "both")
    return permuted(graph, data.split.seed) if data.permute == "networks" else graph


def of_screen(graph: CellGraph, screen: Screen) -> CellGraph:
    """The graph of the screen's genes only; names that it does not know are left to :meth:`Screen.bind`."""
    found = {gene for name in screen.genotypes.names for gene in graph.genes.find(name)}
    return graph.restricted(graph.genes.names[gene] for gene in sorted(found))


def _only(graph: CellGraph, relations: list[str] | None) -> CellGraph:
    if relations is None:
        return graph
    absent = [name for name in relations if name not in graph.relations]
    if absent or not relations:
        names = ", ".join(graph.relations)
        what = f"the graph has no relation {absent[0]!r}" if absent else "no relation is left"
        raise ConfigError(f"config key 'data.relations': {what}; it has {names}")
    return CellGraph(graph.genes, {name: graph.relations[name] for name in relations}, graph.metabolism, graph.features)


def _merged(graph: CellGraph, groups: dict[str, list[str]]) -> CellGraph:
    try:
        return graph.merged(groups) if groups else graph
    except GraphError as error:
        raise ConfigError(f"config key 'data.merge': {error}") from error


def load_screen(data: DataConfig) -> Screen:
    """The screen that the config names."""
    if not _is_source("data.screen", data.screen):
        return Screen.load(_there("data.screen", data.screen))
    from knockgraph.sources.presets import import_screen
    from knockgraph.sources.source import ScreenOptions

    screen, _ = import_screen(data.screen, None, ScreenOptions(experiments=data.experiments))
    return screen


def screen_of(config: Config, directory: Path) -> Screen:
    """The screen of a run: its own copy, which runs made in Python have, or what its config names."""
    own = directory / SCREEN
    return Screen.load(own) if own.is_file() else load_screen(config.data)


def _is_source(key: str, name: str) -> bool:
    """Whether a key names a source that reads no files, such as ``demo``; else it is the path of a file."""
    if name not in registry.available("source") and (":" not in name or Path(name).exists()):
        return False
    try:
        source = registry.find("source", name)
    except KnockgraphError as error:
        raise ConfigError(f"config key {key!r}: {error}") from error
    if source.reads is not None:
        made = "graph build --preset" if key == "data.cell" else "screen import"
        raise ConfigError(
            f"config key {key!r}: the source {name!r} reads files; make a file of it with 'knockgraph {made} {name} "
            "--from … -o FILE' and name that"
        )
    return True


def _there(key: str, path: str) -> Path:
    """The path, refused with the command that makes the file where it is one of a config group."""
    if not Path(path).exists():
        from knockgraph.sources.presets import how_to_build

        raise FileFormatError(f"cannot read {path}: there is no such file ({key}){how_to_build(Path(path))}")
    return Path(path)


def make_split(data: DataConfig, screen: Screen) -> Split:
    """The split that the config describes; the screen is resolved, so that it is one of genes and not of names."""
    s = data.split
    if s.kind == "file":
        if s.file is None:
            raise ConfigError("config key 'data.split.file': kind=file needs the path of a .split file")
        return Split.load(s.file)  # not checked here: it may be one of the names as they were written
    return splits.by_kind(screen, s.kind, s.fractions, s.unseen, s.held_out, s.folds, s.fold, s.seed, s.subset)


def _as_classes(bound: BoundScreen, data: DataConfig) -> BoundScreen:
    """Values as 0 and 1: already so, or by threshold and p-value; a missing one stays missing."""
    values = bound.values
    missing = values.isnan()
    if data.threshold is not None:
        positive = values < data.threshold
        if data.max_p_value is not None:
            positive &= _p_values(bound) < data.max_p_value
        values = positive.to(values.dtype).masked_fill(missing, torch.nan)
    other = ~(missing | (values == 0) | (values == 1))
    if bool(other.any()):
        column = int(other.any(0).nonzero()[0])
        found = values[:, column][~missing[:, column]]
        raise LabelError(
            f"task=classification needs labels 0 and 1, but {bound.phenotype_types[column]} holds {found.min():g} … "
            f"{found.max():g}; set data.threshold (and data.max_p_value) to make classes of them"
        )
    single = ~(values == 0).any(0) | ~(values == 1).any(0)
    if bool(single.any()):
        column = int(single.nonzero()[0])
        shown = [f"{value:g}" for value in values[:, column][~missing[:, column]][:1].tolist()] or ["missing"]
        whose = f" of {bound.phenotype_types[column]}" if len(single) > 1 else ""
        raise SplitError(f"all labels{whose} are {shown[0]}, so there is nothing to classify; choose another threshold")
    return replace(bound, values=values)


def _p_values(bound: BoundScreen) -> Tensor:
    """Those of every phenotype, ``[experiments, phenotypes]``."""
    place = {name: column for column, name in enumerate(bound.phenotype_stat_types)}
    wanted = [f"{name}.p_value" for name in bound.phenotype_types]
    for name in wanted:
        if name not in place:
            raise ScreenError(f"data.max_p_value needs the statistic {name!r}, which this screen does not have")
    return bound.stat_values[:, [place[name] for name in wanted]]
