"""Write the demo screen as torchcell keeps experiments: ``torchcell-store`` (LMDB) and ``torchcell-dataset`` (PyG)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import torch
from torch_geometric.data import HeteroData

import knockgraph as kg

Measured = tuple[list[str], float, float | None]  # genes, score, p-value where there is one


def measured(experiments: int = 300) -> Iterator[Measured]:
    """The demo's experiments; every third has no p-value."""
    screen = kg.demo_screen(experiments)
    for i, (genes, score) in enumerate(zip(screen.genotypes, screen.phenotypes["gene_interaction"], strict=True)):
        yield list(genes), float(score), 0.05 if i % 3 else None


def record(genes: list[str], score: float, p_value: float | None) -> list[dict[str, Any]]:
    """The experiments on one genotype, here one."""
    deletions = [
        {"systematic_gene_name": gene, "perturbed_gene_name": gene.lower(), "perturbation_type": "deletion"}
        for gene in genes
    ]
    environment = {"media": {"name": "SC", "state": "solid"}, "temperature": {"value": 30.0, "unit": "Celsius"}}
    phenotype = {
        "graph_level": "hyperedge",
        "label_name": "gene_interaction",
        "label_statistic_name": "gene_interaction_p_value",
        "gene_interaction": score,
        "gene_interaction_p_value": p_value,
    }
    experiment = {
        "experiment_type": "gene interaction",
        "dataset_name": "demo",
        "genotype": {"perturbations": deletions},
        "environment": environment,
        "phenotype": phenotype,
    }
    return [{"experiment": experiment, "experiment_reference": {"dataset_name": "demo"}}]


def sample(genes: list[str], score: float, p_value: float | None) -> HeteroData:
    """As torchcell's graph processors make it: statistics are there only where one was measured."""
    data = HeteroData()
    gene = data["gene"]
    gene.perturbed_genes = genes
    measurements = [("phenotype", "gene_interaction", score), ("phenotype_stat", "gene_interaction_p_value", p_value)]
    for prefix, name, value in measurements:
        if value is not None:
            gene[f"{prefix}_values"] = torch.tensor([value])
            gene[f"{prefix}_type_indices"] = torch.tensor([0])
            gene[f"{prefix}_sample_indices"] = torch.tensor([0])
            gene[f"{prefix}_types"] = [name]
    return data


store, dataset = Path("torchcell-store/processed/lmdb"), Path("torchcell-dataset/processed")
store.mkdir(parents=True, exist_ok=True)
dataset.mkdir(parents=True, exist_ok=True)
with lmdb.open(str(store), map_size=2**26) as env, env.begin(write=True) as writing:
    for i, one in enumerate(measured()):
        writing.put(str(i).encode(), json.dumps(record(*one)).encode())
torch.save([sample(*one) for one in measured()], dataset / "data.pt")
