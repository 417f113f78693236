"""The hetero cell model: message passing on each sample's own perturbed graph, compared with the wild type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from knockgraph import registry
from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.relation_choice import relation_choice
from knockgraph.nn.attention_pooling import AttentionPooling
from knockgraph.nn.conv.by_name import relation_conv
from knockgraph.nn.gene_input import GeneInput
from knockgraph.nn.hetero_layer import ACTIVATIONS, HeteroLayer
from knockgraph.nn.hyper_sagnn import HyperSAGNN
from knockgraph.nn.metabolic_state import MetabolicState
from knockgraph.nn.pair_predictor import PairPredictor
from knockgraph.nn.relation_aggregation import AGGREGATIONS, relation_aggregation
from knockgraph.ops import at_least_float32
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs

Aggregation = Literal["sum", "mean", "attention", "pairwise"]
Combination = Literal["gating", "mean", "sum"]
Local = Literal["hyper-sagnn", "pairs"]
WildType = Literal["column", "cached-epoch"]
Kernels = Literal["auto", "torch", "triton"]
Merge = Literal["none", "typed"]

_TYPED = ("gin", "sage", "gcn")


class HeteroCellModel(CellModel):
    r"""What a deletion changes in the cell, and what the deleted genes mean to each other,

    .. math::
        x &= \mathrm{layer}_L \circ \dots \circ \mathrm{layer}_1 (\mathrm{input}), \qquad
        z = \mathrm{pool}_{kept\ genes}(x), \qquad
        z_p = \gamma N\, (z_{wild\ type} - z_{perturbed}), \\
        y &= \mathrm{combine}\bigl(\mathrm{MLP}(z_p),\ \mathrm{local}(x_{wild\ type};\ P)\bigr),

    in one pass: the wild type is the last column of the view. ``gating`` weighs the two predictions with the softmax
    of an MLP that sees both, ``mean`` averages them, ``sum`` adds them up. With metabolism a second pooled state, of
    the living reactions, is treated alike and :math:`z_p` becomes a linear map of the two differences, each with its
    own N.

    The factor N: pooling is nearly a mean over N genes, so a deletion changes z by about 1/N, and with differences that
    small the MLP is linear and sees no interaction. :math:`N (z_{wild\ type} - z_{perturbed})` is about the *sum* of
    the changes of all genes, which does not depend on the size of the cell. The difference is taken in float32 (float64
    for float64) also under autocast. Without a deletion :math:`z_p = 0`.

    Args:
        graph: The cell graph.
        channels: Channels H of all states.
        layers: Message-passing layers L.
        conv: ``gin`` (learned ε), ``sage`` (mean), ``gcn``, ``gatv2`` or one of another package, one per relation, see
            :func:`~knockgraph.nn.conv.relation_conv.relation_conv`.
        aggregation: ``sum``, ``mean``, ``attention`` or ``pairwise``, over the relations.
        relations: Names of the relations; all of the graph by default.
        merge: ``typed`` makes one list of typed edges of all relations, with one convolution per layer
            (:class:`~knockgraph.nn.conv.typed.TypedConv`; not ``gatv2``) and nothing to aggregate. To merge relations
            without types, merge those of the graph: :meth:`CellGraph.merged`.
        embedding: Whether genes have a learned embedding.
        features: Names of the graph's gene features to use beside, or instead of, the embedding.
        embedding_dropout: Share of the genes that do without an embedding of their own in a training step, see
            :class:`GeneInput`.
        similar: Name of the feature by which genes borrow embeddings, see :class:`GeneInput`.
        input_norm: Whether the input is normalised, see :class:`GeneInput`. By default only without a residual path,
            which is when states have to be told apart by their direction.
        mlp_layers: Linear maps in the MLP of ``gin``.
        heads: Heads of ``gatv2``, of ``attention``, of the metabolism's attention and of Hyper-SAGNN.
        norm: Whether convolutions are followed by a LayerNorm.
        activation: ``gelu``, ``relu``, ``silu`` or ``elu``.
        dropout: Of the convolutions' activations. The wild type has its own mask, so this adds noise to :math:`z_p`.
        residual: Whether each layer adds to the states instead of replacing them, see :class:`HeteroLayer`. Without it
            the model learned nothing on a graph of yeast's size.
        local: What sees the deleted genes' states in the wild type: ``hyper-sagnn`` (or ``True``), ``pairs``
            (:class:`PairPredictor`), or ``False`` for nothing.
        head_dropout: Share of :math:`z_p`, and of what ``pairs`` sees, that is dropped before the predictors.
        local_states: Which states it sees: those after the last layer, ``last``, or before the first, ``first``: what
            is known of the genes themselves, while :math:`z_p` is what the graph says.
        combine: ``gating``, ``mean`` or ``sum``.
        metabolism: Whether the reactions take part.
        metabolism_rounds: Rounds of messages reactions → metabolites → reactions.
        metabolism_attention: Whether these messages are weighed by attention, too.
        wild_type: ``column``, exact; or ``cached-epoch``, an approximation: given a view without a column for the wild
            type, as in training, its states are those of the last :meth:`refresh_wild_type`, without a gradient. It is
            for measuring what the column costs: with the weights also the wild type moves, N times as much as counts,
            and on the demo cell a small model learned nothing (held-out Pearson 0.00 instead of 0.69).
        gain: γ.
        most_deletions: See :class:`HyperSAGNN`.
        rows_at_once: See :class:`PairwiseAggregation`.
        kernels: ``auto`` takes fused kernels where they exist (CUDA with Triton, H of 16, 32 or 64), ``torch`` never.
        outputs: Predictions per sample.

    Attributes:
        exact: False with ``wild_type="cached-epoch"``.
    """

    gives = ("embedding",)
    z_wild_type: Tensor
    x_wild_type: Tensor

    def __init__(
        self,
        graph: CellGraph,
        channels: int = 64,
        layers: int = 3,
        conv: str = "gin",
        aggregation: Aggregation = "pairwise",
        relations: Sequence[str] | None = None,
        merge: Merge = "none",
        embedding: bool = True,
        features: Sequence[str] = (),
        embedding_dropout: float = 0.0,
        similar: str | None = None,
        input_norm: bool | None = None,
        mlp_layers: int = 4,
        heads: int = 4,
        norm: bool = True,
        activation: str = "gelu",
        dropout: float = 0.0,
        residual: bool = True,
        local: Local | bool = True,
        head_dropout: float = 0.0,
        local_states: Literal["last", "first"] = "last",
        combine: Combination = "gating",
        metabolism: bool = False,
        metabolism_rounds: int = 2,
        metabolism_attention: bool = False,
        wild_type: WildType = "column",
        gain: float = 1.0,
        most_deletions: int | None = None,
        rows_at_once: int | None = None,
        kernels: Kernels = "auto",
        outputs: int = 1,
    ) -> None:
        super().__init__()
        registry.check("convolution", conv)
        _one_of("aggregation", aggregation, AGGREGATIONS)
        _one_of("activation", activation, ACTIVATIONS)
        _one_of("combine", combine, ("gating", "mean", "sum"))
        _one_of("local_states", local_states, ("last", "first"))
        if local_states == "first" and wild_type != "column":
            raise ModelError("local_states='first' needs wild_type='column'")
        if isinstance(local, str):
            _one_of("local", local, ("hyper-sagnn", "pairs"))
        _one_of("wild_type", wild_type, ("column", "cached-epoch"))
        _one_of("kernels", kernels, ("auto", "torch", "triton"))
        _one_of("merge", merge, ("none", "typed"))
        for name, number in (("channels", channels), ("layers", layers), ("mlp_layers", mlp_layers)):
            if number < 1:
                raise ModelError(f"{name}={number}, but the hetero model needs at least 1")
        for name, share in (("dropout", dropout), ("head_dropout", head_dropout)):
            if not 0 <= share < 1:
                raise ModelError(f"{name}={share}, but it is a share from 0 to below 1")
        if merge == "typed" and conv not in _TYPED:
            raise ModelError(f"merge='typed' does not go with conv={conv!r}; use gin, sage or gcn, or merge='none'")
        if metabolism and graph.metabolism is None:
            raise ModelError("metabolism=True, but this cell graph has no metabolism; build one into the graph")
        self.relations = names = relation_choice(graph, relations)
        if merge == "typed":
            aggregation = "sum"  # of one
        self.exact = wild_type == "column"
        self.input = GeneInput(
            graph,
            channels,
            embedding,
            features,
            embedding_dropout,
            similar,
            not residual if input_norm is None else input_norm,
        )
        self.layers = nn.ModuleList(
            HeteroLayer(
                relation_conv(
                    conv,
                    len(names),
                    channels,
                    merge == "typed",
                    mlp_layers=mlp_layers,
                    heads=heads,
                    backend=kernels,
                ),
                names,
                channels,
                relation_aggregation(
                    aggregation, len(names), channels, heads=heads, rows_at_once=rows_at_once, backend=kernels
                ),
                norm,
                activation,
                dropout,
                residual,
            )
            for _ in range(layers)
        )
        degrees = cast(HeteroLayer, self.layers[0]).conv.degrees
        self.hops = None if degrees is None else layers + degrees
        self.pool = AttentionPooling(channels)
        sizes = [graph.num_genes]
        self.metabolic: MetabolicState | None = None
        if metabolism:
            assert graph.metabolism is not None
            attention = heads if metabolism_attention else 0
            self.metabolic = MetabolicState(graph.metabolism, graph.num_genes, channels, metabolism_rounds, attention)
            sizes.append(graph.metabolism.num_reactions)
        # A bias would cancel in the difference.
        self.joint = nn.Linear(2 * channels, channels, bias=False) if metabolism else None
        self.scales = [gain * size for size in sizes]
        self.global_predictor = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, outputs)
        )
        if local and combine == "sum":
            # At first z_p is large and means nothing: a predictor that starts at 0 leaves the states to the local one.
            for parameter in self.global_predictor[-1].parameters():
                nn.init.zeros_(parameter)
        self.head_dropout = nn.Dropout(head_dropout)
        self.local_predictor: nn.Module | None = None
        if local == "pairs":
            self.local_predictor = PairPredictor(channels, outputs, head_dropout)
        elif local:
            self.local_predictor = HyperSAGNN(channels, heads, 2, outputs, most_deletions)
        self.local_states = local_states
        self.combine = combine
        gated = local and combine == "gating"
        self.gate = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 2)) if gated else None
        self._known = self.exact
        if not self.exact:
            # Part of a checkpoint: a run that goes on in the middle of an epoch goes on with the same wild type.
            self.register_buffer("x_wild_type", torch.zeros(graph.num_genes, channels))
            self.register_buffer("z_wild_type", torch.zeros(len(sizes), 1, channels))

    def encode(self, view: PerturbedGraphs) -> tuple[Tensor, ...]:
        """The gene states that the local predictor sees, ``[num_genes, channels]``, and the wild type's pooled states
        ``[1 or 2, 1, channels]``, then the pooled states of all columns.
        """
        if self.exact and not view.batch.wild_type:
            raise ModelError(
                "the hetero model compares with the wild type, but the view has no column for it; "
                "give it strategy(batch.with_wild_type())"
            )
        first = self.input()
        x, z = self.states(view, first)
        x_wild, z_wild = (x[:, -1], z[:, -1:]) if view.batch.wild_type else self._cached()
        return first if self.local_states == "first" else x_wild, z_wild, z

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Compare with the wild type and add what the deleted genes themselves say."""
        genes, z_wild, z = encoded
        difference = z_wild - z[:, : batch.num_samples]
        scaled = [scale * part for scale, part in zip(self.scales, difference, strict=True)]
        z_p = scaled[0] if self.joint is None else self.joint(torch.cat(scaled, 1))
        y = at_least_float32(self.global_predictor(self.head_dropout(z_p)))
        if self.local_predictor is not None:
            y = self._combined(y, self.local_predictor(genes, batch))
        return Prediction(y, at_least_float32(z_p))

    def states(self, view: PerturbedGraphs, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """States of the genes ``[num_genes, columns, channels]`` and pooled states ``[1 or 2, columns, channels]``.

        Args:
            view: The graphs.
            x: What :attr:`input` gave, ``[num_genes, channels]``; asked for unless given.
        """
        x = self.input() if x is None else x  # in the first layer all samples share it
        for layer in self.layers:
            x = layer(view, x)
        pooled = [self.pool(x, view.keep)]
        if self.metabolic is not None:
            pooled.append(self.metabolic(view, x))
        return x, torch.stack(pooled)

    def set_known(self, genes: Tensor) -> None:
        """See :class:`CellModel`."""
        self.input.set_known(genes)

    @torch.no_grad()
    def refresh_wild_type(self, view: PerturbedGraphs) -> None:
        """Compute the wild type's states anew and keep them; for ``wild_type="cached-epoch"``, once per epoch.

        Args:
            view: Its last column is the wild type, e.g. ``strategy(batch.only_wild_type())``.
        """
        if self.exact:
            return
        if not view.batch.wild_type:
            raise ModelError("the view has no wild-type column; give strategy(batch.only_wild_type())")
        training = self.training
        self.eval()
        x, z = self.states(view)
        self.train(training)
        self.x_wild_type.copy_(x[:, -1])
        self.z_wild_type.copy_(z[:, -1:])
        self._known = True

    def _cached(self) -> tuple[Tensor, Tensor]:
        if not self._known:
            raise ModelError(
                "the wild type is not known yet; call model.refresh_wild_type(strategy(batch.only_wild_type())) "
                "at the start of each epoch"
            )
        return self.x_wild_type, self.z_wild_type

    def _combined(self, first: Tensor, second: Tensor) -> Tensor:
        """Two predictions ``[samples, outputs]`` made one."""
        if self.combine == "sum":
            return first + second
        both = torch.stack([first, second], -1)
        if self.gate is None:
            return both.mean(-1)
        return (at_least_float32(self.gate(both)).softmax(-1) * both).sum(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._known = self._known or f"{prefix}x_wild_type" in state_dict


def _one_of(option: str, value: str, known: Sequence[str] | dict[str, Any]) -> None:
    if value not in known:
        raise ModelError(f"{option}={value!r} is not known to the hetero model; use one of {', '.join(known)}")
