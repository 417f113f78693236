"""A screen bound to a cell graph: flat tensors, ready for the loader, on any device."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph.errors import GeneListMismatchError, LabelError, ScreenError, SplitError, UnknownGeneError
from knockgraph.screen import ragged
from knockgraph.screen.batch import PerturbationBatch
from knockgraph.screen.ragged import Ints
from knockgraph.words import counted, listed

if TYPE_CHECKING:
    from knockgraph.graph import CellGraph
    from knockgraph.screen.screen import Screen


@dataclass(frozen=True)
class BindReport:
    """What binding left out, and why."""

    experiments: int  #: in the screen
    bound: int  #: kept
    unknown_genes: tuple[str, ...] = ()  #: names that the graph does not have (or that mean two of its genes)
    with_unknown_genes: int = 0  #: experiments dropped for such a name
    without_label: int = 0  #: further experiments dropped because none of the phenotypes was measured

    def left_out(self) -> list[str]:
        """What was left out, in words."""
        found = []
        if self.with_unknown_genes:
            names = listed(self.unknown_genes, most=5)
            found.append(f"left out {counted(self.with_unknown_genes, 'experiment')} with unknown genes ({names})")
        if self.without_label:
            found.append(f"left out {counted(self.without_label, 'experiment')} without a label")
        return found


@dataclass(frozen=True, eq=False, repr=False)
class BoundScreen:
    """Experiments as flat tensors over the genes of one cell graph.

    Attributes:
        indices: int32 ``[total]`` perturbed genes, ascending within each experiment.
        ptr: int64 ``[experiments + 1]``.
        experiment: int64 ``[experiments]``, row numbers in the screen.
        values: float32 ``[experiments, phenotypes]``, NaN where a phenotype was not measured; every row has a number.
        stat_values: float32 ``[experiments, statistics]``.
        phenotype_types: Names of the columns of ``values``.
        phenotype_stat_types: Names of the columns of ``stat_values``, ``PHENOTYPE.STATISTIC``.
        num_genes: Genes of the graph.
        gene_list_hash: The graph's gene list; another graph is refused.
        report: What was left out.
        doses: float32 ``[total]``, the value of each perturbed gene, or ``None`` where all are deleted.
    """

    indices: Tensor
    ptr: Tensor
    experiment: Tensor
    values: Tensor
    stat_values: Tensor
    phenotype_types: tuple[str, ...]
    phenotype_stat_types: tuple[str, ...]
    num_genes: int
    gene_list_hash: str
    report: BindReport
    host_ptr: Ints = field(repr=False)  # slicing needs offsets on the host even when everything else is on the GPU
    doses: Tensor | None = None
    # Per experiment 0: all deleted, 1: all deleted or untouched, 2: other values; on the host, as the offsets.
    host_kinds: npt.NDArray[np.int8] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.host_ptr) - 1

    def __repr__(self) -> str:
        names = listed(list(self.phenotype_types))
        return f"BoundScreen({len(self):,} experiments on {self.num_genes:,} genes, {names}, {self.device})"

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.indices.device

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        tensors = (self.indices, self.ptr, self.experiment, self.values, self.stat_values, self.doses)
        return sum(t.nbytes for t in tensors if t is not None)

    @property
    def num_perturbed(self) -> Tensor:
        """int64 ``[experiments]``, on the host: genes whose value is not 1."""
        ptr = torch.as_tensor(self.host_ptr)
        if self.doses is None:
            return ptr.diff()
        count = torch.nn.functional.pad((self.doses.cpu() != 1).long().cumsum(0), (1, 0))
        return count[ptr].diff()

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of gene list, genotypes and labels: what a saved loader position remembers."""
        h = hashlib.sha256(self.gene_list_hash.encode())
        for t in (self.indices, self.ptr, self.experiment, self.values, self.doses):
            if t is not None:
                h.update(t.cpu().contiguous().numpy().data)
        return h.hexdigest()

    @cached_property
    def labels_hash(self) -> str:
        """SHA-256 of the labels and whose they are: what a run remembers of what it was trained on."""
        h = hashlib.sha256("\n".join(self.phenotype_types).encode())
        for t in (self.experiment, self.values):
            h.update(t.cpu().contiguous().numpy().data)
        return h.hexdigest()

    def to(self, device: torch.device | str) -> BoundScreen:
        """The same experiments, resident on ``device``."""
        names = ("indices", "ptr", "experiment", "values", "stat_values", "doses")
        return replace(self, **{name: t.to(device) for name in names if (t := getattr(self, name)) is not None})

    def check(self, graph: CellGraph) -> None:
        """Refuse a graph with another gene list."""
        if graph.gene_list_hash != self.gene_list_hash:
            raise GeneListMismatchError(
                f"this screen was bound to a different gene list ({self.num_genes} genes, hash "
                f"{self.gene_list_hash[:12]}) than the graph has ({graph.num_genes} genes, hash "
                f"{graph.gene_list_hash[:12]}); bind the screen to this graph with screen.bind(graph)"
            )

    def locate(self, experiments: Ints, what: str = "these experiments") -> Ints:
        """Positions of the screen's rows ``experiments``; rows that binding dropped are left out.

        Raises:
            SplitError: If none is left.
        """
        rows = self.experiment.cpu().numpy()
        where = np.searchsorted(rows, experiments)
        here = np.isin(experiments, rows)
        if not bool(here.any()):
            raise SplitError(
                f"none of the {len(experiments)} rows of {what} is left after binding; "
                "check the unknown-gene and missing-label report of this screen"
            )
        found: Ints = where[here]
        return found

    def batch(self, rows: Ints | Sequence[int]) -> PerturbationBatch:
        """The experiments at positions ``rows`` as one batch."""
        return self.batches(np.asarray(rows, dtype=np.int64), max(len(rows), 1))[0]

    def batches(self, rows: Ints, batch_size: int, step_size: int = -1) -> list[PerturbationBatch]:
        """The experiments at ``rows``, cut into batches of ``batch_size`` (the last may be shorter).

        One gather serves them all; each batch is a handful of views. Nothing synchronises with the device: the sizes
        come from the host's copy of the pointer, and both were checked when the screen was bound.
        """
        n = len(rows)
        # Sizes are needed on the host to cut the tensors; everything else happens where the screen lives.
        cut = np.append(np.arange(0, max(n, 1), batch_size), n)
        edge = np.append(0, np.cumsum(self.host_ptr[rows + 1] - self.host_ptr[rows]))
        total = int(edge[-1])
        lengths, sizes = np.diff(edge[cut]).tolist(), np.diff(cut).tolist()

        at = _upload(rows, self.device)
        start = self.ptr[at]
        count = self.ptr[at + 1] - start
        ptr = torch.nn.functional.pad(count.cumsum(0), (1, 0))
        entry = torch.arange(total, device=self.device) + _repeat(start - ptr[:-1], count, total)
        sample = _repeat(torch.arange(n, device=self.device) % batch_size, count, total)
        doses, kinds = self._doses(rows, entry, lengths, cut)
        parts = zip(
            torch.split(self.indices[entry].long(), lengths),
            _cut_pointer(ptr, batch_size),
            torch.split(sample, lengths),
            torch.split(self.experiment[at], sizes),
            torch.split(self.values[at], sizes),
            torch.split(self.stat_values[at], sizes),
            doses,
            kinds,
            strict=True,
        )
        return [
            PerturbationBatch(
                indices,
                pointer,
                sample,
                self.num_genes,
                experiment,
                values,
                stats,
                step_size,
                False,
                self.gene_list_hash,
                phenotype_types=self.phenotype_types,
                given_values=dose if kind else None,
                other_values=kind == 2,
            )
            for indices, pointer, sample, experiment, values, stats, dose, kind in parts
        ]

    def _doses(
        self, rows: Ints, entry: Tensor, lengths: list[int], cut: Ints
    ) -> tuple[Sequence[Tensor | None], list[int]]:
        """The values of each batch's genes, and the largest of ``host_kinds`` in it."""
        if self.doses is None or self.host_kinds is None:
            return [None] * len(lengths), [0] * len(lengths)
        kinds = self.host_kinds[rows]
        most = [int(kinds[a:b].max(initial=0)) for a, b in itertools.pairwise(cut.tolist())]
        return torch.split(self.doses[entry], lengths), most


def _repeat(values: Tensor, count: Tensor, total: int) -> Tensor:
    """``repeat_interleave``; on the host by numpy, because torch starts all its threads for it, however short it is."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.repeat(values.numpy(), count.numpy()))
    return torch.repeat_interleave(values, count, output_size=total)


def _chosen(wanted: Sequence[str], known: Collection[str]) -> list[str]:
    """The names that were asked for; one that no phenotype has may be a pattern such as ``expression_*``."""
    chosen: dict[str, None] = {}  # each once, in the order in which they were asked for
    for name in wanted:
        found = [name] if name in known else [other for other in known if fnmatchcase(other, name)]
        if not found:
            raise ScreenError(
                f"the screen has no phenotype {name!r}; it has {listed(list(known), most=20)}; choose one of these "
                "(data.phenotype=NAME)"
            )
        chosen.update(dict.fromkeys(found))
    if not chosen:
        raise ScreenError(f"no phenotype was chosen; the screen has {listed(list(known), most=20)}")
    return list(chosen)


def _upload(rows: Ints, device: torch.device) -> Tensor:
    at = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64))
    # Only page-locked memory is copied without waiting for the device.
    return at.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else at


def _float32(values: npt.NDArray[np.float64], rows: Ints, names: Sequence[str]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    single[np.isnan(single)] = np.nan  # one of the many, so that equal labels have equal hashes
    infinite = np.isinf(single)
    if bool(infinite.any()):
        row, column = np.argwhere(infinite)[0].tolist()
        raise LabelError(
            f"{names[column]} of experiment {rows[row]} is {values[row, column]:g}, which float32 cannot hold; "
            "rescale the column or mark the value as NaN"
        )
    return single


def _cut_pointer(ptr: Tensor, batch_size: int) -> list[Tensor]:
    """The pointer of each batch, starting at 0; a batch of ``s`` samples has ``s + 1`` entries."""
    full, rest = divmod(len(ptr) - 1, batch_size)
    pointers: list[Tensor] = []
    if full:
        windows = ptr[: full * batch_size + 1].unfold(0, batch_size + 1, batch_size)
        pointers.extend((windows - windows[:, :1]).unbind(0))
    if rest or not full:
        tail = ptr[full * batch_size :]
        pointers.append(tail - tail[:1])
    return pointers


def bind(
    screen: Screen,
    graph: CellGraph,
    phenotypes: str | Sequence[str] | None = None,
    unknown: Literal["error", "drop"] = "error",
    missing: Literal["error", "drop"] = "error",
) -> BoundScreen:
    """See :meth:`Screen.bind`."""
    for option, value in (("unknown", unknown), ("missing", missing)):
        if value not in ("error", "drop"):
            raise ScreenError(f"{option}={value!r} is not a policy: use 'error' or 'drop'")
    wanted = [phenotypes] if isinstance(phenotypes, str) else phenotypes
    chosen = list(screen.phenotypes) if wanted is None else _chosen(wanted, screen.phenotypes)
    names = screen.genotypes.names
    found = [graph.genes.find(name) for name in names]
    bad = {name: hits for name, hits in zip(names, found, strict=True) if len(hits) != 1}
    if bad and unknown == "error":
        error = graph.genes.unknown(bad)
        raise UnknownGeneError(
            f"{error}, or leave their experiments out with unknown='drop' (data.unknown=drop)", error.names
        )
    row = np.array([hits[0] if len(hits) == 1 else -1 for hits in found], dtype=np.int32)
    gene = row[screen.genotypes.codes] if len(names) else np.empty(0, dtype=np.int32)
    # An experiment with an unknown gene goes as a whole: without that gene it would be another genotype.
    resolved = np.ones(len(screen), dtype=bool)
    resolved[ragged.row_of_entry(screen.genotypes.ptr)[gene < 0]] = False
    values = np.stack([screen.phenotypes[name] for name in chosen], 1)
    labelled: npt.NDArray[np.bool_] = np.asarray(~np.isnan(values).all(1))
    if missing == "error" and not bool(labelled[resolved].all()):
        n = int((~labelled[resolved]).sum())
        first = int(np.flatnonzero(resolved & ~labelled)[0])
        raise LabelError(
            f"{n} of {int(resolved.sum())} experiments have no value for {listed(chosen, 'or')} (the first is "
            f"experiment {first}); leave them out with missing='drop' (data.missing=drop), or choose another phenotype"
        )
    kept = np.flatnonzero(resolved & labelled)
    if len(kept) == 0 and len(screen):
        unnamed, unmeasured = int((~resolved).sum()), int((~labelled).sum())
        which = f" ({listed(list(bad))})" if bad else ""
        advice = "; give the cell graph of this organism, with these names of its genes" if bad else ""
        raise ScreenError(
            f"nothing is left of {len(screen):,} experiments: {unnamed:,} name an unknown gene{which}, {unmeasured:,} "
            f"have no value for {listed(chosen, 'or')}{advice}"
        )
    flat, ptr = ragged.positions(screen.genotypes.ptr, kept)
    doses = kinds = None  # two names may mean the same gene
    if screen.genotypes.values is None:
        indices, ptr = ragged.as_sets(gene[flat], ptr, graph.num_genes)
    else:
        given = screen.genotypes.values[flat]
        indices, given, ptr = ragged.as_valued_sets(gene[flat], given, ptr, graph.genes.names)
        doses, kinds = _kinds(given, ptr)
    stats = {
        f"{name}.{kind}": column[kept] for name in chosen for kind, column in screen.statistics.get(name, {}).items()
    }
    stat_values = np.stack(list(stats.values()), 1) if stats else np.empty((len(kept), 0))
    return BoundScreen(
        indices=torch.from_numpy(indices.astype(np.int32, copy=False)),
        ptr=torch.from_numpy(ptr),
        experiment=torch.from_numpy(kept.astype(np.int64)),
        values=torch.from_numpy(_float32(values[kept], kept, chosen)),
        stat_values=torch.from_numpy(_float32(stat_values, kept, list(stats))),
        phenotype_types=tuple(chosen),
        phenotype_stat_types=tuple(stats),
        num_genes=graph.num_genes,
        gene_list_hash=graph.gene_list_hash,
        report=BindReport(
            len(screen), len(kept), tuple(bad), int((~resolved).sum()), int((resolved & ~labelled).sum())
        ),
        host_ptr=ptr,
        doses=None if doses is None else torch.from_numpy(doses),
        host_kinds=kinds,
    )


def _kinds(
    values: npt.NDArray[np.float64], ptr: Ints
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.int8] | None]:
    """Values as float32, and what kinds each experiment has, see :class:`BoundScreen`."""
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
    if bool(np.isinf(single).any()):
        raise ScreenError(
            f"a gene has the value {values[np.isinf(single)][0]:g}, which float32 cannot hold; rescale it"
        )
    if not single.any():
        return None, None
    kind = np.where(single == 0, 0, np.where(single == 1, 1, 2)).astype(np.int8)
    of_row = np.zeros(len(ptr) - 1, dtype=np.int8)
    np.maximum.at(of_row, ragged.row_of_entry(ptr), kind)
    return single, of_row
