"""The hetero cell model: message passing on each sample's own perturbed graph, compared with the wild type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from knockgraph.errors import StrategyError
from knockgraph.graph import CellGraph
from knockgraph.models.gene_input import GeneInput
from knockgraph.models.hyper_sagnn import HyperSAGNN
from knockgraph.models.metabolic_state import MetabolicState
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.relation_aggregation import relation_aggregation
from knockgraph.nn.attention_pooling import AttentionPooling, at_least_float32
from knockgraph.nn.grouped_layer_norm import GroupedLayerNorm
from knockgraph.nn.relation_conv import (
    GATv2RelationConv,
    GCNRelationConv,
    GINRelationConv,
    RelationConv,
    SAGERelationConv,
)
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs

Convolution = Literal["gin", "sage", "gcn", "gatv2"]
Aggregation = Literal["sum", "mean", "attention", "pairwise"]
Combination = Literal["gating", "mean"]
WildType = Literal["column", "cached-epoch"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU}


class HeteroLayer(nn.Module):
    r"""One convolution per relation, then one state again,

    .. math:: x' = \mathrm{aggregation}_r\bigl(\mathrm{dropout}(\phi(\mathrm{norm}_r(\mathrm{conv}_r(A_r, x))))\bigr).

    Args:
        conv: The convolutions.
        aggregation: Maps ``[relations, rows, channels]`` to ``[rows, channels]``.
        norm: Whether there is a LayerNorm.
        activation: Name of the activation φ.
        dropout: Share of the activations that are dropped in training.

    Shapes:
        x ``[num_genes, batch, channels]`` (or ``[num_genes, channels]``, shared by all samples) ->
        ``[num_genes, batch, channels]``.
    """

    def __init__(
        self, conv: RelationConv, aggregation: nn.Module, norm: bool, activation: str, dropout: float
    ) -> None:
        super().__init__()
        self.conv = conv
        self.norm = GroupedLayerNorm(len(conv.relations), conv.channels) if norm else nn.Identity()
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.aggregation = aggregation

    def forward(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """See the formula above."""
        h = self.conv(view, x)
        shape = h.shape[1:3]
        y: Tensor = self.aggregation(self.dropout(self.activation(self.norm(h.flatten(1, 2)))))
        return y.unflatten(0, shape)


class HeteroCellModel(CellModel):
    exact: bool
    z_wild_type: Tensor
    x_wild_type: Tensor

    def __init__(
        self,
        graph: CellGraph,
        channels: int = 64,
        layers: int = 3,
        conv: Convolution = "gin",
        aggregation: Aggregation = "pairwise",
        relations: Sequence[str] | None = None,
        embedding: bool = True,
        features: Sequence[str] = (),
        mlp_layers: int = 4,
        heads: int = 4,
        norm: bool = True,
        activation: str = "gelu",
        dropout: float = 0.0,
        local: bool = True,
        combine: Combination = "gating",
        metabolism: bool = False,
        metabolism_rounds: int = 2,
        wild_type: WildType = "column",
        most_deletions: int | None = None,
        rows_at_once: int | None = None,
        outputs: int = 1,
        scale: float = 0.7, residual: bool = False, normz: bool=False,
    ) -> None:
        super().__init__()
        names = tuple(graph.relations) if relations is None else tuple(relations)
        self.residual=residual; self.normz=normz
        self.exact = wild_type == "column"
        self.input = GeneInput(graph, channels, embedding, features)
        self.layers = nn.ModuleList(
            HeteroLayer(
                _convolution(conv, names, channels, mlp_layers, heads),
                relation_aggregation(aggregation, len(names), channels, heads=heads, rows_at_once=rows_at_once),
                norm,
                activation,
                dropout,
            )
            for _ in range(layers)
        )
        self.pool = AttentionPooling(channels)
        self.metabolic: MetabolicState | None = None
        self.scales = [graph.num_genes**scale]
        if metabolism:
            self.metabolic = MetabolicState(graph.metabolism, graph.num_genes, channels, metabolism_rounds)
            self.joint = nn.Linear(2 * channels, channels, bias=False)
            self.scales.append(graph.metabolism.num_reactions**scale)
        self.predict = nn.Sequential(nn.Linear(channels, 4*channels), nn.GELU(), nn.Linear(4*channels, outputs))
        nn.init.zeros_(self.predict[2].weight); nn.init.zeros_(self.predict[2].bias)
        self.local = HyperSAGNN(channels, heads, outputs=outputs, most_deletions=most_deletions) if local else None
        self.gate = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 2)) if local and combine == "gating" else None

    def forward(self, view: PerturbedGraphs, batch: PerturbationBatch) -> Prediction:
        x = self.input()
        for layer in self.layers:
            y = layer(view, x)
            x = y + (x.unsqueeze(1) if x.dim()==2 else x) if self.residual else y
        z = self.pool(x, view.keep)
        z_p = self.scales[0] * (z[-1:] - z[:-1])
        if self.metabolic is not None:
            zr = self.metabolic(view, x)
            z_p = self.joint(torch.cat([z_p, self.scales[1] * (zr[-1:] - zr[:-1])], 1))
        if self.normz: z_p = nn.functional.layer_norm(z_p, z_p.shape[-1:])
        y = at_least_float32(self.predict(z_p))
        if self.local is not None:
            both = torch.stack([y, self.local(x[:, -1], batch)], -1)
            share = at_least_float32(self.gate(both)).softmax(-1) if self.gate is not None else 0.5
            y = (share * both).sum(-1)
        return Prediction(y, z_p)


def _convolution(name: str, relations: Sequence[str], channels: int, mlp_layers: int, heads: int) -> RelationConv:
    if name == "gin":
        return GINRelationConv(relations, channels, mlp_layers)
    if name == "sage":
        return SAGERelationConv(relations, channels)
    if name == "gcn":
        return GCNRelationConv(relations, channels)
    if name == "gatv2":
        return GATv2RelationConv(relations, channels, heads)
    raise StrategyError(f"there is no convolution {name!r}")
