"""A batch of perturbations: indices only. This is all that travels to the device."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from knockgraph.errors import PerturbationError


@dataclass(frozen=True, eq=False)
class PerturbationBatch:
    r"""Which genes each sample of a batch deletes, as flat sample-local gene indices.

    Sample :math:`b` deletes ``perturbation_indices[ptr[b]:ptr[b + 1]]``. The indices are rows of the cell graph in
    every sample, never offset by batching. Build one with :meth:`from_lists`, :meth:`from_tensors`,
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
        payload: What a worker-side strategy attached in the loader's workers.
        phenotype_types: The columns of ``phenotype_values``, if known.

    >>> batch = PerturbationBatch.from_lists([[5, 2], [], [7]], num_genes=8)
    >>> batch.perturbation_indices_ptr.tolist(), batch.perturbation_indices_batch.tolist()
    ([0, 2, 2, 3], [0, 0, 2])
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
    ) -> PerturbationBatch:
        """From one list of gene indices per sample; an empty list is the wild type, a repeated gene counts once."""
        lists = [[int(g) for g in genotype] for genotype in genotypes]
        lists = [list(dict.fromkeys(genotype)) for genotype in lists]
        count = torch.tensor([0, *map(len, lists)], dtype=torch.long)
        indices = torch.tensor([g for genotype in lists for g in genotype], dtype=torch.long)
        return PerturbationBatch.from_tensors(
            indices, count.cumsum(0), num_genes, phenotype_values, phenotype_stat_values, experiment
        )

    @staticmethod
    def from_tensors(
        perturbation_indices: Tensor,
        perturbation_indices_ptr: Tensor,
        num_genes: int,
        phenotype_values: Tensor | None = None,
        phenotype_stat_values: Tensor | None = None,
        experiment: Tensor | None = None,
    ) -> PerturbationBatch:
        """From flat indices and their pointer, checked."""
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
        return PerturbationBatch(
            indices, ptr, sample, num_genes, experiment, _two_d(phenotype_values), _two_d(phenotype_stat_values)
        )

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

    def keep(self, dtype: torch.dtype = torch.bool) -> Tensor:
        """Keep-vectors ``[num_genes, batch]``: 0 where the sample deletes the gene, else 1."""
        keep = torch.ones(self.num_genes, self.num_columns, dtype=dtype, device=self.perturbation_indices.device)
        # index_put with a tensor value stays on the device; assigning a Python scalar would too, but only by luck.
        zero = torch.zeros((), dtype=dtype, device=keep.device)
        return keep.index_put_((self.perturbation_indices, self.perturbation_indices_batch), zero)

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
        """The deleted genes of each column."""
        ptr = self.perturbation_indices_ptr.tolist()
        flat = self.perturbation_indices.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(ptr)]

    def _map(self, function: Callable[[Tensor], Tensor]) -> PerturbationBatch:
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
        return self._map(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PerturbationBatch:
        """Page-locked copies, so that ``to(device, non_blocking=True)`` overlaps with computation."""
        return self._map(lambda t: t.pin_memory())

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

        self._map(add)
        return total

    def __repr__(self) -> str:
        wild = " + wild type" if self.wild_type else ""
        return (
            f"PerturbationBatch({self.num_samples} samples{wild}, {self.perturbation_indices.numel()} deletions, "
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
            f"perturbation_indices_ptr falls from {int(ptr[at])} to {int(ptr[at + 1])} at sample {at}, "
            "but it must never fall"
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
