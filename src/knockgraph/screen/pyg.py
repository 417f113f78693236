"""The screen as a PyG dataset: one small ``HeteroData`` per experiment, for people with PyG pipelines.

The flat loader is some hundred times faster and gives the same batches; this view exists for compatibility.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Dataset, HeteroData

from knockgraph.errors import GeneListMismatchError, MissingPointerError, PerturbationError
from knockgraph.graph import CellGraph
from knockgraph.screen.batch import PerturbationBatch
from knockgraph.screen.bound import BoundScreen

_FOLLOW = 'DataLoader(dataset, batch_size, follow_batch=["perturbation_indices"])'


class PerturbedSample(HeteroData):  # type: ignore[misc]
    """One experiment. Gene indices stay sample-local when PyG batches it; only sample numbers are counted up."""

    def __inc__(self, key: str, value: Any, store: Any = None, *args: Any, **kwargs: Any) -> Any:
        if key in ("phenotype_sample_indices", "phenotype_stat_sample_indices"):
            return 1
        if key in (
            "perturbation_indices",
            "perturbation_values",
            "phenotype_type_indices",
            "phenotype_stat_type_indices",
            "experiment",
        ):
            return 0
        return super().__inc__(key, value, store, *args, **kwargs)


class PerturbationDataset(Dataset):  # type: ignore[misc]
    """A PyG dataset over a bound screen.

    ``dataset[i]["gene"]`` holds ``num_nodes``, ``perturbed_genes`` (names), ``perturbation_indices``, ``pert_mask``
    (True at deleted genes), ``mask`` (its opposite), ``experiment``, ``gene_list_hash``, ``perturbation_values`` where
    the screen has genes that are not deleted, and, in coordinate form,
    ``phenotype_values``, ``phenotype_type_indices`` (into ``phenotype_types``), ``phenotype_sample_indices``, with the
    ``phenotype_stat_*`` twins for the statistics. With a metabolism ``["reaction"]`` and ``["metabolite"]`` hold
    ``num_nodes``, ``pert_mask`` (True at reactions that do not survive; metabolites all do) and ``mask``.

    Args:
        screen: The bound screen.
        graph: The graph it is bound to; gives the gene names.
    """

    def __init__(self, screen: BoundScreen, graph: CellGraph) -> None:
        screen.check(graph)
        super().__init__()
        self.screen = screen.to("cpu")
        self.names = graph.genes.names
        self.metabolism = graph.metabolism

    def len(self) -> int:
        """Number of experiments."""
        return len(self.screen)

    def get(self, idx: int) -> HeteroData:
        """Experiment ``idx`` as ``HeteroData``."""
        s = self.screen
        indices = s.indices[int(s.host_ptr[idx]) : int(s.host_ptr[idx + 1])].long()
        data = PerturbedSample()
        gene = data["gene"]
        gene.num_nodes = s.num_genes
        gene.perturbed_genes = [self.names[i] for i in indices.tolist()]
        gene.perturbation_indices = indices
        deleted = indices
        if s.doses is not None:
            gene.perturbation_values = s.doses[int(s.host_ptr[idx]) : int(s.host_ptr[idx + 1])]
            deleted = indices[gene.perturbation_values == 0]
        gene.pert_mask = torch.zeros(s.num_genes, dtype=torch.bool).index_fill_(0, deleted, True)
        gene.mask = ~gene.pert_mask
        gene.experiment = s.experiment[idx : idx + 1]
        gene.gene_list_hash = s.gene_list_hash
        for prefix, values, types in (
            ("phenotype", s.values, s.phenotype_types),
            ("phenotype_stat", s.stat_values, s.phenotype_stat_types),
        ):
            gene[f"{prefix}_values"] = values[idx]
            gene[f"{prefix}_type_indices"] = torch.arange(len(types))
            gene[f"{prefix}_sample_indices"] = torch.zeros(len(types), dtype=torch.long)
            gene[f"{prefix}_types"] = list(types)
        if self.metabolism is not None:
            _add_masks(data["reaction"], self.metabolism.reactions_alive(gene.mask.unsqueeze(1)).squeeze(1))
            _add_masks(data["metabolite"], torch.ones(self.metabolism.num_metabolites, dtype=torch.bool))
        return data


def _add_masks(store: Any, kept: Tensor) -> None:
    store.num_nodes = len(kept)
    store.pert_mask = ~kept
    store.mask = kept


def from_hetero_batch(
    pyg_batch: Any, phenotype_types: Sequence[str] | None = None, phenotype_stat_types: Sequence[str] | None = None
) -> PerturbationBatch:
    """See :meth:`PerturbationBatch.from_hetero_batch`."""
    node_types = getattr(pyg_batch, "node_types", None)
    grouped = node_types and "gene" in node_types
    store = pyg_batch["gene"] if grouped else pyg_batch
    if "perturbation_indices" not in store:
        raise PerturbationError(
            "this batch has no perturbation_indices; make its samples with kg.PerturbationDataset, or give each sample "
            'data["gene"].perturbation_indices, the rows of its deleted genes'
        )
    if "perturbation_indices_ptr" not in store:
        raise MissingPointerError(
            "this batch has perturbation_indices but no perturbation_indices_ptr, so its samples cannot be told apart; "
            f"add follow_batch to the loader: {_FOLLOW} (in the train, validation, test and predict loaders)"
        )
    ptr: Tensor = store["perturbation_indices_ptr"]
    n = len(ptr) - 1
    nodes = _gene_nodes(store)
    if n < 1 or nodes % n or nodes == 0:
        raise PerturbationError(
            f"the batch has {nodes} gene nodes for {n} samples; set the same data['gene'].num_nodes in every sample"
        )
    slices = getattr(pyg_batch, "_slice_dict", None) or {}
    slices = slices.get("gene", {}) if grouped else slices
    values, types = _labels(store, slices, "phenotype", n, phenotype_types)
    stat_values, _ = _labels(store, slices, "phenotype_stat", n, phenotype_stat_types)
    batch = PerturbationBatch.from_tensors(
        store["perturbation_indices"],
        ptr,
        nodes // n,
        values,
        stat_values,
        store.get("experiment", None),
        store.get("perturbation_values", None),
    )
    hashes = set(store["gene_list_hash"]) if "gene_list_hash" in store else {None}
    if len(hashes) > 1:
        raise GeneListMismatchError("the samples of this batch belong to different gene lists; bind them to one graph")
    return replace(batch, gene_list_hash=hashes.pop(), phenotype_types=types)


def _gene_nodes(store: Any) -> int:
    """The genes of all samples together, also where the nodes are only those that are left, as in torchcell's
    subgraphs.
    """
    nodes = int(store.num_nodes or 0)
    deleted = store.get("pert_mask", None)
    if deleted is not None and nodes == len(deleted) - int(deleted.sum()):
        return len(deleted)
    return nodes


def _labels(
    store: Any, slices: Any, prefix: str, n: int, wanted: Sequence[str] | None
) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Coordinate-form values as ``[samples, types]``, and the types of the columns where the samples say them."""
    key = f"{prefix}_values_original"  # where a transform has changed the others
    if key not in store:
        key = f"{prefix}_values"
    if key not in store:
        return None, None
    values: Tensor = store[key].flatten()
    count = _entries(store, slices, key, n)
    found = _types(store, prefix, count)
    if found is None:
        if wanted is not None:
            raise PerturbationError(
                f"{prefix}_types={list(wanted)} cannot be chosen: the samples have no {prefix}_types; add them"
            )
        if len(set(count)) > 1:
            raise PerturbationError(
                f"{key} has {values.numel()} entries for {n} samples; every sample needs the same types"
            )
        return values.reshape(n, count[0]), None
    columns = found[0] if wanted is None else tuple(wanted)
    if all(types == columns for types in found):
        return values.reshape(n, len(columns)), columns
    order = []
    start = 0
    for sample, types in enumerate(found):
        if wanted is None and types != columns:
            raise PerturbationError(
                f"sample 0 has the {prefix}_types {list(columns)}, but sample {sample} has {list(types)}, so their "
                f"{key} cannot share columns; say which are wanted, in which order, with "
                f"PerturbationBatch.from_hetero_batch(batch, {prefix}_types=[…])"
            )
        absent = [name for name in columns if name not in types]
        if absent:
            raise PerturbationError(
                f"sample {sample} has no value of {absent[0]!r} (it has {', '.join(types) or 'none'}); leave such "
                f"samples out of the loader, or choose other {prefix}_types"
            )
        order += [start + types.index(name) for name in columns]
        start += len(types)
    return values[torch.tensor(order, dtype=torch.long, device=values.device)].reshape(n, len(columns)), columns


def _entries(store: Any, slices: Any, key: str, n: int) -> list[int]:
    """How many values each sample has: as PyG cut them, as followed, or the same number each."""
    values: Tensor = store[key]
    cut = store[f"{key}_ptr"] if f"{key}_ptr" in store else slices.get(key)
    if cut is not None and len(cut) == n + 1:
        width = values[:1].numel()  # of a sample with values [1, types]
        return [int(rows) * width for rows in torch.as_tensor(cut).diff()]
    if values.numel() % n:
        raise PerturbationError(
            f"{key} has {values.numel()} entries for {n} samples; every sample needs the same types"
        )
    return [values.numel() // n] * n


def _types(store: Any, prefix: str, count: Sequence[int]) -> list[tuple[str, ...]] | None:
    """The type of every value, sample by sample; ``None`` if the samples do not say."""
    indices = store[f"{prefix}_type_indices"].flatten().tolist() if f"{prefix}_type_indices" in store else None
    names = store.get(f"{prefix}_types", None)
    if indices is None and names is None:
        return None
    if indices is not None and len(indices) != sum(count):
        raise PerturbationError(
            f"{prefix}_type_indices has {len(indices)} entries for {sum(count)} {prefix}_values; give one for each"
        )
    found = []
    start = 0
    for sample, size in enumerate(count):
        own = range(size) if indices is None else indices[start : start + size]
        start += size
        known = None if names is None else names[sample]
        known = [known] if isinstance(known, str) else known
        if known is not None and not all(0 <= i < len(known) for i in own):
            raise PerturbationError(
                f"sample {sample} has {size} {prefix}_values with {prefix}_type_indices {list(own)}, which do not fit "
                f"its {prefix}_types {list(known)}; correct them"
            )
        types = tuple(str(i) if known is None else str(known[i]) for i in own)
        if len(set(types)) != len(types):
            raise PerturbationError(
                f"sample {sample} has two values of one type ({', '.join(types)}); give one of each"
            )
        found.append(types)
    return found
