"""The interface of every source: from files to a cell graph or a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from knockgraph import registry
from knockgraph.errors import KnockgraphError, SourceError
from knockgraph.sources.names import Policy
from knockgraph.sources.report import ImportReport
from knockgraph.sources.table_layout import TableOptions

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph
    from knockgraph.screen import Screen
    from knockgraph.sources.sga import LinkedPolicy

Table = Literal["auto", "scores", "trigenic-calls", "digenic-calls"]


@dataclass(frozen=True)
class GraphOptions:
    """Options for building a graph; each source uses those that apply to it.

    Attributes:
        unknown: What to do with edges that name an unknown gene: ``drop`` leaves them out and reports them, ``error``
            refuses them. Default: ``drop`` for public files and ``error`` for your own tables.
        cutoff: Minimum STRING score, for all channels or per channel.
        merged: Whether to merge all STRING channels into one relation.
        weighted: Whether STRING edges carry their score as weight.
        metabolism: Whether yeast-GEM is read.
        plasmid: Whether the four genes of the 2-micron plasmid belong to the cell.
        features: Structural features to add, see :mod:`knockgraph.graph.structural_features`.
        seed: Of a generated cell.
        phenotypes: Whether ``yeast-clean`` reads YeastPhenome's files as gene features if present.
    """

    unknown: Policy | None = None
    cutoff: int | Mapping[str, int] = 1
    merged: bool = False
    weighted: bool = False
    metabolism: bool = True
    plasmid: bool = False
    features: Sequence[str] = ()
    seed: int = 0
    phenotypes: bool = True


@dataclass(frozen=True)
class ScreenOptions:
    """Options for importing a screen; each source uses those that apply to it.

    Attributes:
        unknown: What to do with experiments that name an unknown gene: ``drop`` leaves them out and reports them,
            ``error`` refuses them. Default: ``drop`` for studies and ``error`` for your own table.
        linked: Crosses of linked genes: ``drop``, or ``mark`` with 1 in the statistic ``linked``.
        table: Which table of Kuzmin's; ``auto`` takes the scores if present, else the trigenic calls.
        genes: Where the gene list comes from: a folder with SGD's files or a cell graph; of studies by default the
            folder itself.
        experiments: Number of experiments of a generated screen.
        seed: Of a screen that is drawn.
        reading: How to read your own table.
    """

    unknown: Policy | None = None
    linked: LinkedPolicy = "drop"
    table: Table = "auto"
    genes: Path | None = None
    experiments: int | None = None
    seed: int = 0
    reading: TableOptions | None = None


class Source:
    """A reader that makes a cell graph, a screen, or both; override :meth:`graph`, :meth:`screen` or both.

    Attributes:
        reads: What ``--from`` must name; ``None`` for a source that reads no files.
        files: Names of files or sets of :mod:`knockgraph.sources.catalogue`: ``graph build`` fetches them where
            ``--from`` is not given.
        resolves: Whether :meth:`screen` itself looks at the options ``genes`` and ``unknown``. If not, names become
            systematic names afterwards.
    """

    reads: ClassVar[str | None] = "the folder or file"
    files: ClassVar[tuple[str, ...]] = ()
    resolves: ClassVar[bool] = False

    def graph(self, path: Path, options: GraphOptions, report: ImportReport) -> CellGraph:
        """The cell graph.

        Args:
            path: What ``--from`` names; the current folder for a source that reads no files.
            options: The options.
            report: Records what was read and dropped.
        """
        raise NotImplementedError

    def screen(self, path: Path, options: ScreenOptions, report: ImportReport) -> Screen:
        """The screen; arguments as above."""
        raise NotImplementedError


What = Literal["graph", "screen"]


def source_of(name: str, what: What) -> Source:
    """A source by name, refused if it has no graph, or no screen."""
    source: Source = registry.create("source", name)
    if not _has(type(source), what):
        others = [other for other in registry.available("source") if _is_source_of(other, what)]
        raise SourceError(f"the source {name!r} has no {what}; use one of {', '.join(others)}")
    return source


def checked_path(source: Source, path: Path | None, what: str) -> Path:
    """What a source reads, refused where there is nothing to read or something to read is missing.

    Args:
        source: The source.
        path: What ``--from`` names.
        what: How the source is called.
    """
    if path is not None and source.reads is None:
        raise SourceError(f"{what} is built in and reads no files; leave --from out")
    if path is None and source.reads is not None:
        raise SourceError(f"{what} needs --from: {source.reads}")
    return path or Path()


def _has(kind: type[Source], what: What) -> bool:
    return getattr(kind, what) is not getattr(Source, what)


def _is_source_of(name: str, what: What) -> bool:
    try:
        return _has(registry.find("source", name), what)
    except KnockgraphError:  # of a package that cannot be imported
        return False
