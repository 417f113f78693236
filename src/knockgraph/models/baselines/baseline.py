"""The interface of every baseline: fitted on genotypes and labels, it predicts any genotype."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from knockgraph.errors import BaselineError, GeneListMismatchError, LabelError, NoDosesError
from knockgraph.graph import CellGraph
from knockgraph.screen import BoundScreen, PerturbationBatch, ragged
from knockgraph.screen.ragged import Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GenotypeRows:
    """Some rows of a screen, on the host: row ``i`` perturbs ``genes[ptr[i]:ptr[i + 1]]``, ascending.

    Genes with a value :math:`d` other than 0 and 1 have the effect :math:`w = 1 - d`, 1 for a deletion, below 0 for a
    gene that is turned up. Those with the value 1 are left out.
    """

    genes: npt.NDArray[np.int64]
    ptr: npt.NDArray[np.int64]
    num_genes: int
    effect: Floats | None = None  #: :math:`w` of each entry; ``None``: 1

    @staticmethod
    def of(screen: BoundScreen, rows: Ints) -> GenotypeRows:
        """The rows at positions ``rows`` of ``screen``."""
        rows = np.asarray(rows)
        if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
            raise BaselineError(f"rows are {rows.dtype} of shape {list(rows.shape)}, but they need integers [rows]")
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(screen)):
            raise BaselineError(f"rows must lie in 0 … {len(screen) - 1}, the experiments of this screen")
        entry, ptr = ragged.positions(screen.host_ptr, rows)
        genes = screen.indices.cpu().numpy()[entry].astype(np.int64)
        if screen.doses is None:
            return GenotypeRows(genes, ptr, screen.num_genes)
        effect = 1.0 - screen.doses.cpu().numpy()[entry].astype(np.float64)
        count = np.bincount(ragged.row_of_entry(ptr)[effect != 0], minlength=len(rows))
        genes, effect = genes[effect != 0], effect[effect != 0]
        ptr = np.append(0, np.cumsum(count))
        return GenotypeRows(genes, ptr, screen.num_genes, None if bool((effect == 1).all()) else effect)

    @staticmethod
    def of_batch(batch: PerturbationBatch) -> GenotypeRows:
        """The samples of a batch."""
        batch, weight = batch.effects()
        row, genes = batch.perturbation_indices_batch.cpu().numpy(), batch.perturbation_indices.cpu().numpy()
        effect = np.ones(len(row)) if weight is None else weight.detach().cpu().double().numpy()
        order = np.lexsort((genes, row))
        order = order[effect[order] != 0]
        row, genes, effect = row[order], genes[order], effect[order]
        ptr = np.append(0, np.cumsum(np.bincount(row, minlength=batch.num_samples)))
        return GenotypeRows(genes, ptr, batch.num_genes, None if bool((effect == 1).all()) else effect)

    def __len__(self) -> int:
        return len(self.ptr) - 1

    def part(self, start: int, stop: int) -> GenotypeRows:
        """The rows ``start`` to ``stop``."""
        ptr = self.ptr[start : stop + 1]
        effect = None if self.effect is None else self.effect[ptr[0] : ptr[-1]]
        return GenotypeRows(self.genes[ptr[0] : ptr[-1]], ptr - ptr[0], self.num_genes, effect)

    def take(self, rows: Ints) -> GenotypeRows:
        """The rows at these positions."""
        entry, ptr = ragged.positions(self.ptr, rows)
        return GenotypeRows(self.genes[entry], ptr, self.num_genes, None if self.effect is None else self.effect[entry])

    @cached_property
    def row(self) -> npt.NDArray[np.int64]:
        """The row of each entry of ``genes``."""
        return ragged.row_of_entry(self.ptr)

    def pairs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Every pair of genes ``g < h`` that one row perturbs: its row, and its code ``g * num_genes + h``."""
        row, code, _ = self.weighted_pairs()
        return row, code

    def weighted_pairs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats | None]:
        """:meth:`pairs`, and the product of their effects."""
        size = np.diff(self.ptr)
        row, code = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        both: list[Floats] = [np.empty(0)]
        for s in np.unique(size[size > 1]).tolist():
            of_size = np.flatnonzero(size == s)
            first, second = np.triu_indices(s, 1)
            start = self.ptr[of_size, None]
            code.append((self.genes[start + first] * self.num_genes + self.genes[start + second]).ravel())
            row.append(np.repeat(of_size, len(first)))
            if self.effect is not None:
                both.append((self.effect[start + first] * self.effect[start + second]).ravel())
        return np.concatenate(row), np.concatenate(code), None if self.effect is None else np.concatenate(both)


def sums(group: Ints, values: Floats, num_groups: int) -> Floats:
    """The sum of ``values`` in each group ``0 … num_groups - 1``."""
    if len(group) == 0:  # bincount of an empty array returns integers
        return np.zeros(num_groups)
    total: Floats = np.bincount(group, values, num_groups).astype(np.float64, copy=False)
    return total


def same_graph(name: str, graph: CellGraph, genotypes: GenotypeRows) -> None:
    """Refuse genotypes of a gene list other than that of the baseline's graph."""
    if genotypes.num_genes != graph.num_genes:
        raise GeneListMismatchError(
            f"the baseline {name} was made for a graph of {graph.num_genes} genes, the screen is bound to "
            f"one of {genotypes.num_genes}; give it the same graph"
        )


def positive(name: str, value: float) -> float:
    """``value``, refused if it is not a positive number."""
    if not 0 < value < float("inf"):
        raise BaselineError(f"{name} is {value}, but it must be positive")
    return value


class Baseline(ABC):
    """Fitted on some rows of a screen, it predicts any row of any screen over the same genes.

    >>> from knockgraph import demo_cell, demo_screen
    >>> screen = demo_screen(1_000).bind(demo_cell(), "gene_interaction")
    >>> baseline = Mean().fit(screen, np.arange(800), screen.values[:800])
    >>> baseline.predict(screen, np.arange(800, 1_000)).shape
    torch.Size([200, 1])
    """

    needs_graph: ClassVar[bool] = False
    doses: ClassVar[bool] = False  #: whether it knows genes with values other than 0 and 1
    kept: ClassVar[tuple[str, ...] | None] = None  #: attributes that a fit sets, for saving; ``None``: not savable
    device: torch.device = torch.device("cpu")  #: where its tensors are, if it has any
    validation: tuple[GenotypeRows, Floats] | None = None
    classes: bool = False
    _genes: str | None = None
    _each: Sequence[Self] = ()  # one for each phenotype, where there are several

    def fit(
        self,
        screen: BoundScreen,
        rows: Ints,
        values: Tensor,
        validation: tuple[Ints, Tensor] | None = None,
        classes: bool = False,
    ) -> Self:
        """Fit on the experiments at ``rows``; each phenotype on its own, on the labels that it has.

        Args:
            screen: The experiments.
            rows: Integers ``[rows]``, positions in ``screen``.
            values: Their labels, ``[rows, phenotypes]``, in the units of the predictions; NaN where one of
                several is missing.
            validation: Rows and labels for choosing settings, never used for fitting; without them a baseline uses
                its defaults.
            classes: Whether the labels are classes, 0 and 1; predictions then need not be in their units, only the
                higher, the more probable 1.
        """
        self.classes = classes
        training = each_phenotype("training", screen, rows, values)
        if not all(len(y) for _, y in training):
            what = "there are no training labels" if len(training) == 1 else "a phenotype has no training label"
            raise LabelError(f"{what} to fit on; check the split")
        others: list[tuple[GenotypeRows, Floats]] = []
        if validation is not None:
            others = each_phenotype("validation", screen, *validation)
        self._each = [copy(self) for _ in training] if len(training) > 1 else ()
        for k, (one, (genotypes, y)) in enumerate(zip(self._each or (self,), training, strict=True)):
            # A phenotype may have no label in the validation part.
            self._check_doses(genotypes)
            one.validation = others[k] if others and (len(training) == 1 or len(others[k][1])) else None
            one._fit(genotypes, y)
            one.validation = None
        self._genes = screen.gene_list_hash
        return self

    def fit_again(self, screen: BoundScreen, rows: Ints, values: Tensor) -> Self:
        """Fit on other rows, usually those of the training and the validation part, with the settings that :meth:`fit`
        has chosen; arguments as there.
        """
        training = each_phenotype("training", screen, rows, values)
        for one, (genotypes, y) in zip(self._each or (self,), training, strict=True):
            self._check_doses(genotypes)
            one._fit_again(genotypes, y)
        return self

    def predict(self, screen: BoundScreen, rows: Ints) -> Tensor:
        """Predict the experiments at ``rows``: float32 ``[rows, phenotypes]``, on the host."""
        if self._genes is not None and screen.gene_list_hash != self._genes:
            raise GeneListMismatchError(
                f"{type(self).__name__} was fitted on another gene list (hash {self._genes[:12]}) than this screen is "
                f"bound to (hash {screen.gene_list_hash[:12]}); bind both to the same graph"
            )
        return self.predict_rows(GenotypeRows.of(screen, rows))

    def predict_rows(self, genotypes: GenotypeRows) -> Tensor:
        """Predict genotypes over the genes of the fit: float32 ``[rows, phenotypes]``, on the host."""
        if self._genes is None:
            raise BaselineError(f"{type(self).__name__} was not fitted; call fit first")
        self._check_doses(genotypes)
        columns = [one._predict(genotypes).astype(np.float32) for one in self._each or (self,)]
        return torch.from_numpy(np.stack(columns, 1))

    def measure_spread(self) -> None:
        """Called after a fit where :meth:`spread_rows` will be asked for; it is kept with the rest of the fit."""
        for one in self._each or (self,):
            one._measure_spread()

    def spread_rows(self, genotypes: GenotypeRows) -> Floats | None:
        """How far from its prediction a measurement of each genotype is expected to be, as a standard deviation in the
        units of the labels, ``[rows, phenotypes]``; ``None`` where the baseline does not know.
        """
        columns = [one._spread(genotypes) for one in self._each or (self,)]
        known = [column for column in columns if column is not None]
        return np.stack(known, 1) if len(known) == len(columns) else None

    def chosen(self) -> dict[str, float]:
        """The settings that the validation part has chosen (of several phenotypes: for the first), for the report."""
        return (self._each[0] if self._each else self)._chosen()

    def state(self) -> dict[str, Any]:
        """What a fit has found, as tensors, numbers and dictionaries of them; empty before a fit."""
        if self._genes is None:
            return {}
        return {"genes": self._genes, "phenotypes": [one._state() for one in self._each or (self,)]}

    def restore(self, state: dict[str, Any]) -> Self:
        """Be as the baseline was that ``state`` is of; it had the same options and the same graph."""
        if not state:
            return self
        self._genes, found = state["genes"], state["phenotypes"]
        each: list[Self] = [] if len(found) == 1 else [copy(self) for _ in found]
        self._each = each
        for k, its in enumerate(found):
            (self._each[k] if self._each else self)._restore(its)
        return self

    def to(self, device: torch.device) -> Self:
        """Compute on another device from now on; arrays stay on the host."""
        del device
        return self

    def _measure_spread(self) -> None:
        """Of one phenotype."""
        return

    def _spread(self, genotypes: GenotypeRows) -> Floats | None:
        """Of one phenotype, ``[rows]``."""
        del genotypes
        return None

    def _chosen(self) -> dict[str, float]:
        return {}

    def _state(self) -> dict[str, Any]:
        return {name: packed(getattr(self, name)) for name in self.kept or ()}

    def _restore(self, state: dict[str, Any]) -> None:
        for name in self.kept or ():
            setattr(self, name, unpacked(state[name]))

    def _check_doses(self, genotypes: GenotypeRows) -> None:
        if genotypes.effect is not None and not self.doses:
            raise NoDosesError(
                f"the baseline {type(self).__name__} knows deletions only, but genes of this screen have values other "
                "than 0 and 1; use additive, ridge-pairs or low-rank"
            )

    @abstractmethod
    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        """Fit one phenotype, every row of which has a label."""

    def _fit_again(self, genotypes: GenotypeRows, y: Floats) -> None:
        """The same, with the settings of the last fit: to be overridden where ``_fit`` chooses some."""
        self._fit(genotypes, y)

    @abstractmethod
    def _predict(self, genotypes: GenotypeRows) -> Floats:
        """Predict it."""


def packed(value: Any) -> Any:
    """Arrays as tensors that :func:`unpacked` recognises; anything else is left as it is."""
    return {"array": torch.from_numpy(np.ascontiguousarray(value))} if isinstance(value, np.ndarray) else value


def unpacked(value: Any) -> Any:
    """The inverse of :func:`packed`."""
    return value["array"].numpy() if isinstance(value, dict) and value.keys() == {"array"} else value


def each_phenotype(what: str, screen: BoundScreen, rows: Ints, values: Tensor) -> list[tuple[GenotypeRows, Floats]]:
    """For each phenotype, the rows that have a label of it, and those labels.

    Args:
        what: The part, for messages.
        screen: The experiments.
        rows: Positions in ``screen``.
        values: Labels, ``[rows, phenotypes]``.
    """
    genotypes = GenotypeRows.of(screen, rows)
    if values.dim() != 2 or len(values) != len(genotypes) or values.shape[1] == 0:
        raise BaselineError(f"the labels have shape {list(values.shape)}, but they need [{len(genotypes)}, phenotypes]")
    labels = values.detach().cpu().double().numpy()
    known = ~np.isnan(labels)
    bad = np.isinf(labels).any(1) | ~known.any(1)
    if bool(bad.any()):
        row = int(np.flatnonzero(bad)[0])
        shown = labels[row].tolist() if labels.shape[1] > 1 else labels[row, 0]
        raise LabelError(f"{what} label {row} is {shown}; drop experiments without a finite label")
    found = []
    for y, there in zip(labels.T, known.T, strict=True):
        some = genotypes if there.all() else GenotypeRows.of(screen, np.asarray(rows)[there])
        found.append((some, np.ascontiguousarray(y[there])))
    return found


class Mean(Baseline):
    r""":math:`\hat y = \bar y`, the mean of the training labels."""

    doses = True
    kept = ("mean",)

    def _fit(self, genotypes: GenotypeRows, y: Floats) -> None:
        self.mean = float(y.mean())

    def _predict(self, genotypes: GenotypeRows) -> Floats:
        return np.full(len(genotypes), self.mean)
