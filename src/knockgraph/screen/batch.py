"""A batch of perturbations: indices, and values where a gene is not deleted. This is all that travels to the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from knockgraph.errors import PerturbationError
from knockgraph.screen.genotypes import VALUES


@dataclass(frozen=True, eq=False)
class PerturbationBatch:
    r"""Which genes each sample of a batch perturbs, as flat sample-local gene indices, and how much.

    Sample :math:`b` perturbs ``perturbation_indices[ptr[b]:ptr[b + 1]]``. The indices are rows of the cell graph in
    every sample, never offset by batching. Each perturbed gene has a value, its dose: 0 deleted (the default), 0.3
    turned down, 1 untouched, 2 turned up. Build one with :meth:`from_lists`, :meth:`from_tensors`,
    :meth:`from_hetero_batch` or a loader: all of them check pointer and range on the host, so that nothing needs
    checking, and nothing synchronises, in the training step.

    Attributes:
        perturbation_indices: int64 ``[total]``.
        perturbation_indices_ptr: int64 ``[batch + 1]``; starts at 0, never falls, ends at ``total``.
        perturbation_indices_batch: int64 ``[total]``, the sample of each index.
        num_genes: Genes of the cell graph.
        experiment: int64 ``[samples]``, row numbers in the screen, or ``None``.
        phenotype_values: float ``[samples, phenotypes]`` or ``None``.
        phenotype_stat_values: float ``[samples, statistics]`` or ``None``.
        step_size: Samples of this step over all ranks; ``samples`` on a single process.
        wild_type: Whether the last column is the wild type added by :meth:`with_wild_type`; the per-sample fields
            above do not have a row for it.
        gene_list_hash: The gene list that the indices refer to, if known.
        payload: What a strategy attached in the loader's workers, a named tuple of its own.
        phenotype_types: The columns of ``phenotype_values``, if known.
        given_values: What :attr:`perturbation_values` returns; ``None`` stands for zeros.
        other_values: Whether a value may be neither 0 nor 1; known on the host, see :attr:`graded`.

    >>> batch = PerturbationBatch.from_lists([[5, 2], [], [7]], num_genes=8)
    >>> batch.perturbation_indices_ptr.tolist(), batch.perturbation_indices_batch.tolist()
    ([0, 2, 2, 3], [0, 0, 2])
    >>> PerturbationBatch.from_lists([[5, 2], [7]], num_genes=8, values=[[0.0, 0.3], [2.0]]).perturbation_values
    tensor([0.0000, 0.3000, 2.0000])
    """

    perturbation_indices: Tensor
    perturbation_indices_ptr: Tensor
    perturbation_indices_batch: Tensor
    num_genes: int
    experiment: Tensor | None = None
    phenotype_values: Tensor | None = None
    phenotype_stat_values: Tensor | None = None
    step_size: int = -1
    wild_type: bool = False
    gene_list_hash: str | None = None
    payload: Any = None
    phenotype_types: tuple[str, ...] | None = None
    given_values: Tensor | None = None
    other_values: bool = False

    def __post_init__(self) -> None:
        if self.step_size < 0:
            object.__setattr__(self, "step_size", self.num_samples)

    @staticmethod
    def from_lists(
        genotypes: Iterable[Sequence[int]],
        num_genes: int,
        phenotype_values: Tensor | None = None,
        phenotype_stat_values: Tensor | None = None,
        experiment: Tensor | None = None,
        values: Iterable[Sequence[float]] | None = None,
    ) -> PerturbationBatch:
        """From one list of gene indices per sample; an empty list is the wild type, a repeated gene counts once.

        Args:
            genotypes: The perturbed genes of each sample.
            num_genes: Genes of the cell graph.
            phenotype_values: ``[samples, phenotypes]``.
            phenotype_stat_values: ``[samples, statistics]``.
            experiment: ``[samples]``, row numbers in the screen.
            values: As many lists, one value per gene; all are deleted by default.
        """
        lists = [[int(g) for g in genotype] for genotype in genotypes]
        doses = None
        if values is None:
            lists = [list(dict.fromkeys(genotype)) for genotype in lists]
        else:
            lists, doses = _valued(lists, [[float(v) for v in row] for row in values])
        count = torch.tensor([0, *map(len, lists)], dtype=torch.long)
        indices = torch.tensor([g for genotype in lists for g in genotype], dtype=torch.long)
        return PerturbationBatch.from_tensors(
            indices, count.cumsum(0), num_genes, phenotype_values, phenotype_stat_values, experiment, doses
        )

    @staticmethod
    def from_tensors(
        perturbation_indices: Tensor,
        perturbation_indices_ptr: Tensor,
        num_genes: int,
        phenotype_values: Tensor | None = None,
        phenotype_stat_values: Tensor | None = None,
        experiment: Tensor | None = None,
        perturbation_values: Tensor | None = None,
    ) -> PerturbationBatch:
        """From flat indices and their pointer, and one value per index where some are not deleted, checked."""
        indices, ptr = perturbation_indices.long(), perturbation_indices_ptr.long()
        _check_pointer(ptr, indices.numel())
        sample = torch.repeat_interleave(torch.arange(len(ptr) - 1, device=ptr.device), ptr.diff())
        _check_range(indices, ptr, sample, num_genes)
        _check_repeats(indices, sample, num_genes)
        n = len(ptr) - 1
        for name, rows in (
            ("phenotype_values", phenotype_values),
            ("phenotype_stat_values", phenotype_stat_values),
            ("experiment", experiment),
        ):
            if rows is not None and len(rows) != n:
                raise PerturbationError(f"{name} has {len(rows)} rows for {n} samples")
        batch = PerturbationBatch(
            indices, ptr, sample, num_genes, experiment, _two_d(phenotype_values), _two_d(phenotype_stat_values)
        )
        return batch if perturbation_values is None else batch.with_values(perturbation_values)

    @staticmethod
    def from_hetero_batch(
        pyg_batch: Any, phenotype_types: Sequence[str] | None = None, phenotype_stat_types: Sequence[str] | None = None
    ) -> PerturbationBatch:
        """From a batch that PyG's DataLoader made of samples with ``perturbation_indices`` (in ``batch["gene"]``).

        Labels follow ``phenotype_type_indices`` and ``phenotype_types`` where the samples have them: a column holds one
        type. Samples that differ in their types, or in the order of them, need ``phenotype_types``.

        Args:
            pyg_batch: The batch.
            phenotype_types: The columns of ``phenotype_values``, in this order; by default those of the samples.
            phenotype_stat_types: The same for ``phenotype_stat_values``.

        Raises:
            MissingPointerError: If the loader was not told to follow ``perturbation_indices``.
            PerturbationError: If a sample lacks a type, or the samples do not agree on them.
        """
        from knockgraph.screen.pyg import from_hetero_batch

        return from_hetero_batch(pyg_batch, phenotype_types, phenotype_stat_types)

    @property
    def num_columns(self) -> int:
        """Columns of every ``[num_genes, batch]`` tensor: the samples and, if added, the wild type."""
        return len(self.perturbation_indices_ptr) - 1

    @property
    def num_samples(self) -> int:
        """Experiments in the batch, the added wild type not counted."""
        return self.num_columns - self.wild_type

    def __len__(self) -> int:
        return self.num_columns

    @property
    def perturbation_values(self) -> Tensor:
        """float ``[total]``: the value of each perturbed gene; may require a gradient."""
        if self.given_values is None:
            zeros = torch.zeros(self.perturbation_indices.shape, device=self.device)
            object.__setattr__(self, "given_values", zeros)  # kept: its gradient may be asked for
        assert self.given_values is not None
        return self.given_values

    @property
    def graded(self) -> bool:
        """Whether a value may be neither 0 nor 1, or has a gradient; known on the host."""
        return self.other_values or (self.given_values is not None and self.given_values.requires_grad)

    def with_values(self, values: Tensor) -> PerturbationBatch:
        """The same genes with other values.

        Args:
            values: float ``[total]``, finite, at least 0.
        """
        if values.shape != self.perturbation_indices.shape or not values.is_floating_point():
            raise PerturbationError(
                f"perturbation_values is {values.dtype} of shape {list(values.shape)}, but there are "
                f"{len(self.perturbation_indices)} perturbed genes; give each a floating-point value"
            )
        plain = values.detach()
        bad = (~plain.isfinite() | (plain < 0)).nonzero()
        if len(bad):
            at = int(bad[0])
            raise PerturbationError(
                f"sample {int(self.perturbation_indices_batch[at])} gives gene {int(self.perturbation_indices[at])} "
                f"the value {float(plain[at]):g}, {VALUES}"
            )
        if not values.requires_grad and not bool(plain.any()):
            return replace(self, given_values=None, other_values=False, payload=None)
        graded = bool(((plain != 0) & (plain != 1)).any())
        return replace(self, given_values=values, other_values=graded, payload=None)

    def deletions(self) -> PerturbationBatch:
        """The same batch with nothing but the genes whose value is 0."""
        if self.given_values is None:
            return self
        deleted = self.given_values.detach() == 0
        sample = self.perturbation_indices_batch[deleted]
        count = torch.bincount(sample, minlength=self.num_columns)
        return replace(
            self,
            perturbation_indices=self.perturbation_indices[deleted],
            perturbation_indices_ptr=torch.nn.functional.pad(count.cumsum(0), (1, 0)),
            perturbation_indices_batch=sample,
            given_values=None,
            other_values=False,
        )

    def effects(self) -> tuple[PerturbationBatch, Tensor | None]:
        """For models that look at the perturbed genes alone: which they are, and ``1 - value`` of each.

        That is 1 for a deletion, 0 for an untouched gene, below 0 for one that is turned up. Where the values are 0 and
        1 only, these are the deletions and ``None``.
        """
        return (self, 1 - self.perturbation_values) if self.graded else (self.deletions(), None)

    def keep(self, dtype: torch.dtype = torch.bool) -> Tensor:
        """Keep-vectors ``[num_genes, batch]``: 0 where the sample deletes the gene, else 1."""
        keep = torch.ones(self.num_genes, self.num_columns, dtype=dtype, device=self.perturbation_indices.device)
        # index_put with a tensor value stays on the device; assigning a Python scalar would too, but only by luck.
        value = torch.zeros((), dtype=dtype, device=keep.device)
        if self.given_values is not None:
            value = (self.given_values.detach() != 0).to(dtype)
        return keep.index_put_((self.perturbation_indices, self.perturbation_indices_batch), value)

    def dose(self) -> Tensor:
        """Dose vectors, float ``[num_genes, batch]``: the value of perturbed genes, 1 elsewhere."""
        values = self.given_values
        if values is None:
            return self.keep(torch.float32)
        ones = torch.ones(self.num_genes, self.num_columns, dtype=values.dtype, device=values.device)
        return ones.index_put((self.perturbation_indices, self.perturbation_indices_batch), values)

    def with_wild_type(self) -> PerturbationBatch:
        """The same batch with the wild type (no deletion) as one more, the last, column."""
        if self.wild_type:
            return self
        ptr = self.perturbation_indices_ptr
        return replace(self, perturbation_indices_ptr=torch.cat([ptr, ptr[-1:]]), wild_type=True)

    def only_wild_type(self) -> PerturbationBatch:
        """A batch of nothing but the wild type, on the same device, for models that never look at perturbed graphs."""
        none = self.perturbation_indices[:0]
        ptr = self.perturbation_indices_ptr.new_zeros(2)
        return PerturbationBatch(none, ptr, none, self.num_genes, wild_type=True, gene_list_hash=self.gene_list_hash)

    def tolist(self) -> list[list[int]]:
        """The perturbed genes of each column."""
        ptr = self.perturbation_indices_ptr.tolist()
        flat = self.perturbation_indices.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(ptr)]

    def mapped(self, function: Callable[[Tensor], Tensor]) -> PerturbationBatch:
        """The batch with ``function`` applied to every tensor, payload included."""
        changed: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = function(value)
        if self.payload is not None:
            changed["payload"] = map_tensors(self.payload, function)
        return replace(self, **changed)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PerturbationBatch:
        """Move every tensor."""
        return self.mapped(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PerturbationBatch:
        """Page-locked copies, so that ``to(device, non_blocking=True)`` overlaps with computation."""
        return self.mapped(lambda t: t.pin_memory())

    @property
    def device(self) -> torch.device:
        """Where the indices are."""
        return self.perturbation_indices.device

    @property
    def nbytes(self) -> int:
        """Bytes that travel when the batch moves to a device, payload included."""
        total = 0

        def add(t: Tensor) -> Tensor:
            nonlocal total
            total += t.nbytes
            return t

        self.mapped(add)
        return total

    def __repr__(self) -> str:
        wild = " + wild type" if self.wild_type else ""
        what = "deletions" if self.given_values is None else "perturbations"
        return (
            f"PerturbationBatch({self.num_samples} samples{wild}, {self.perturbation_indices.numel()} {what}, "
            f"{self.num_genes} genes)"
        )


def map_tensors(payload: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply ``function`` to every tensor in nested dicts, lists and tuples."""
    if isinstance(payload, Tensor):
        return function(payload)
    if isinstance(payload, dict):
        return {key: map_tensors(value, function) for key, value in payload.items()}
    if isinstance(payload, (list, tuple)):
        mapped = [map_tensors(value, function) for value in payload]
        return type(payload)(*mapped) if hasattr(payload, "_fields") else type(payload)(mapped)  # a named tuple
    return payload


def _valued(lists: list[list[int]], values: list[list[float]]) -> tuple[list[list[int]], Tensor]:
    """Each sample's genes once, and their values."""
    if list(map(len, values)) != list(map(len, lists)):
        raise PerturbationError("values must have one number for each gene of each sample, as nested lists")
    rows: list[dict[int, float]] = [{} for _ in lists]
    for sample, (row, genes, given) in enumerate(zip(rows, lists, values, strict=True)):
        for gene, value in zip(genes, given, strict=True):
            if row.setdefault(gene, value) != value and value == value:
                raise PerturbationError(
                    f"sample {sample} gives gene {gene} two values, {row[gene]:g} and {value:g}; give it one"
                )
    return [list(row) for row in rows], torch.tensor([value for row in rows for value in row.values()])


def _two_d(values: Tensor | None) -> Tensor | None:
    return values.unsqueeze(1) if values is not None and values.dim() == 1 else values


def _check_pointer(ptr: Tensor, total: int) -> None:
    if ptr.dim() != 1 or ptr.numel() == 0:
        raise PerturbationError(
            f"perturbation_indices_ptr has shape {list(ptr.shape)}, but it needs [samples + 1], starting with 0"
        )
    if int(ptr[0]) != 0:
        raise PerturbationError(f"perturbation_indices_ptr starts at {int(ptr[0])}, but it must start at 0")
    falls = (ptr.diff() < 0).nonzero()
    if len(falls):
        at = int(falls[0])
        raise PerturbationError(
            f"perturbation_indices_ptr decreases from {int(ptr[at])} to {int(ptr[at + 1])} at sample {at}, "
            "but it must not decrease"
        )
    if int(ptr[-1]) != total:
        raise PerturbationError(
            f"perturbation_indices_ptr ends at {int(ptr[-1])}, but there are {total} perturbation_indices"
        )


def _check_range(indices: Tensor, ptr: Tensor, sample: Tensor, num_genes: int) -> None:
    bad = ((indices < 0) | (indices >= num_genes)).nonzero()
    if len(bad):
        at = int(bad[0])
        b = int(sample[at])
        genes = indices[int(ptr[b]) : int(ptr[b + 1])].tolist()
        raise PerturbationError(
            f"sample {b} deletes gene {int(indices[at])}, but gene indices run from 0 to {num_genes - 1} "
            f"(its list: {genes}); indices are sample-local rows of the cell graph and must not be offset by batching"
        )


def _check_repeats(indices: Tensor, sample: Tensor, num_genes: int) -> None:
    key = torch.sort(sample * num_genes + indices).values
    twice = (key[1:] == key[:-1]).nonzero()
    if len(twice):
        b, gene = divmod(int(key[int(twice[0])]), num_genes)
        raise PerturbationError(f"sample {b} lists gene {gene} twice; list each deleted gene once")
