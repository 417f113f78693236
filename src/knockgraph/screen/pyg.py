"""The screen as a PyG dataset: one small ``HeteroData`` per experiment, for people with PyG pipelines.

The flat loader is some hundred times faster and gives the same batches; this view exists for compatibility.
"""

from __future__ import annotations

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
        if key in ("perturbation_indices", "phenotype_type_indices", "phenotype_stat_type_indices", "experiment"):
            return 0
        return super().__inc__(key, value, store, *args, **kwargs)


class PerturbationDataset(Dataset):  # type: ignore[misc]
    """A PyG dataset over a bound screen.

    ``dataset[i]["gene"]`` holds ``num_nodes``, ``perturbed_genes`` (names), ``perturbation_indices``, ``pert_mask``
    (True at deleted genes), ``mask`` (its opposite), ``experiment``, ``gene_list_hash`` and, in coordinate form,
    ``phenotype_values``, ``phenotype_type_indices`` (into ``phenotype_types``), ``phenotype_sample_indices``, with the
    ``phenotype_stat_*`` twins for the statistics.

    Args:
        screen: The bound screen.
        graph: The graph it is bound to; gives the gene names.
    """

    def __init__(self, screen: BoundScreen, graph: CellGraph) -> None:
        screen.check(graph)
        super().__init__()
        self.screen = screen.to("cpu")
        self.names = graph.genes.names

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
        gene.pert_mask = torch.zeros(s.num_genes, dtype=torch.bool).index_fill_(0, indices, True)
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
        return data


def from_hetero_batch(pyg_batch: Any) -> PerturbationBatch:
    """See :meth:`PerturbationBatch.from_hetero_batch`."""
    node_types = getattr(pyg_batch, "node_types", None)
    store = pyg_batch["gene"] if node_types and "gene" in node_types else pyg_batch
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
    nodes = int(store.num_nodes or 0)
    if n < 1 or nodes % n or nodes == 0:
        raise PerturbationError(
            f"the batch has {nodes} gene nodes for {n} samples; set the same data['gene'].num_nodes in every sample"
        )
    batch = PerturbationBatch.from_tensors(
        store["perturbation_indices"],
        ptr,
        nodes // n,
        _rows(store, "phenotype_values", n),
        _rows(store, "phenotype_stat_values", n),
        store.get("experiment", None),
    )
    hashes = set(store["gene_list_hash"]) if "gene_list_hash" in store else {None}
    if len(hashes) > 1:
        raise GeneListMismatchError("the samples of this batch belong to different gene lists; bind them to one graph")
    return replace(batch, gene_list_hash=hashes.pop())


def _rows(store: Any, key: str, n: int) -> Tensor | None:
    """Coordinate-form values as ``[samples, types]``."""
    if key not in store:
        return None
    values: Tensor = store[key]
    if values.numel() % n:
        raise PerturbationError(
            f"{key} has {values.numel()} entries for {n} samples; every sample needs the same types"
        )
    return values.reshape(n, values.numel() // n)
