"""The hetero cell model: message passing on each sample's own perturbed graph, compared with the wild type."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from knockgraph.errors import ModelError
from knockgraph.graph import CellGraph
from knockgraph.models.hetero_options import (
    InputOptions,
    MessageOptions,
    MetabolismOptions,
    ReadoutOptions,
    at_least_one,
    normalised,
    one_of,
)
from knockgraph.models.model import CellModel, Prediction
from knockgraph.models.profile_states import profile_states
from knockgraph.models.relation_choice import relation_choice
from knockgraph.models.similar_genes import similarities
from knockgraph.nn.attention_pooling import AttentionPooling
from knockgraph.nn.conv.by_name import relation_conv
from knockgraph.nn.gene_input import GeneInput
from knockgraph.nn.hetero_layer import HeteroLayer
from knockgraph.nn.hyper_sagnn import HyperSAGNN
from knockgraph.nn.metabolic_state import MetabolicState
from knockgraph.nn.pair_predictor import PairPredictor
from knockgraph.nn.relation_aggregation import relation_aggregation
from knockgraph.ops import at_least_float32
from knockgraph.screen import PerturbationBatch
from knockgraph.strategies import PerturbedGraphs

if TYPE_CHECKING:
    from knockgraph.screen import BoundScreen
    from knockgraph.screen.ragged import Ints

LATER_LAYERS = 0.1
"""Initial scale of what the layers after the first add to the states: at 1 three layers learn less (docs/learn.md)."""


class HeteroCellModel(CellModel):
    r"""The hetero cell model: the effect of a deletion on the whole cell, and the states of the deleted genes,

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
        heads: Heads of ``gatv2``, of ``attention``, of the metabolism's attention and of Hyper-SAGNN.
        input: What is known of a gene before the graph is looked at.
        messages: Message passing: layers, convolutions, relations.
        readout: From the states of all genes to a prediction.
        metabolism: The reactions' part.
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
        heads: int = 4,
        input: InputOptions = InputOptions(),
        messages: MessageOptions = MessageOptions(),
        readout: ReadoutOptions = ReadoutOptions(),
        metabolism: MetabolismOptions = MetabolismOptions(),
        kernels: Literal["auto", "torch", "triton"] = "auto",
        outputs: int = 1,
    ) -> None:
        super().__init__()
        at_least_one("channels", channels)
        one_of("kernels", kernels, ("auto", "torch", "triton"))
        self.relations = relation_choice(graph, messages.relations)
        self.readout = readout
        self.exact = readout.wild_type == "column"
        self.input = self._gene_input(graph, channels, input, normalised(messages.residual, readout.local))
        self._first_states: Callable[[BoundScreen, Ints, Tensor], Tensor] | None = None
        if input.profiles:
            self._first_states = lambda screen, rows, values: profile_states(graph, screen, rows, values, channels)
        self.layers = nn.ModuleList(
            self._layer(channels, heads, messages, kernels, first=number == 0) for number in range(messages.layers)
        )
        degrees = cast(HeteroLayer, self.layers[0]).conv.degrees
        self.hops = None if degrees is None else messages.layers + degrees
        self.pool = AttentionPooling(channels, kernels)
        sizes = [graph.num_genes]
        self.metabolic: MetabolicState | None = None
        if metabolism.enabled:
            if graph.metabolism is None:
                raise ModelError("metabolism.enabled=true, but this cell graph has no metabolism; build one into it")
            attention = heads if metabolism.attention else 0
            self.metabolic = MetabolicState(
                graph.metabolism,
                graph.num_genes,
                channels,
                metabolism.rounds,
                attention,
                isozyme_cap=metabolism.isozyme_cap,
                backend=kernels,
            )
            sizes.append(graph.metabolism.num_reactions)
        # A bias would cancel in the difference.
        self.joint = nn.Linear(2 * channels, channels, bias=False) if metabolism.enabled else None
        self.scales = [readout.gain * size for size in sizes]
        self._make_predictors(channels, heads, outputs, kernels)
        self._known = self.exact
        if not self.exact:
            # Part of a checkpoint: a run resumed in the middle of an epoch continues with the same wild type.
            self.register_buffer("x_wild_type", torch.zeros(graph.num_genes, channels))
            self.register_buffer("z_wild_type", torch.zeros(len(sizes), 1, channels))

    @staticmethod
    def _gene_input(graph: CellGraph, channels: int, options: InputOptions, normalised: bool) -> GeneInput:
        if options.profiles and not options.embedding:
            raise ModelError("input.profiles=true lets embeddings start, but input.embedding=false; change one of them")
        given = {key: value for key, value in vars(options).items() if key != "profiles"}
        given["norm"] = normalised if options.norm is None else options.norm
        if options.similar is not None and options.embedding:
            given["similar"] = similarities(graph, options.similar)
        return GeneInput(graph, channels, **given)

    def _layer(self, channels: int, heads: int, messages: MessageOptions, kernels: str, first: bool) -> HeteroLayer:
        number, typed = len(self.relations), messages.merge == "typed"
        conv = relation_conv(
            messages.conv,
            number,
            channels,
            typed,
            mlp_layers=messages.mlp_layers,
            heads=heads,
            backend=kernels,
            norm=messages.norm,
        )
        aggregation = relation_aggregation(
            "sum" if typed else messages.aggregation,  # of one
            number,
            channels,
            heads=heads,
            rows_at_once=messages.rows_at_once,
            backend=kernels,
        )
        return HeteroLayer(
            conv,
            self.relations,
            channels,
            aggregation,
            messages.norm,
            messages.activation,
            messages.dropout,
            messages.residual,
            1.0 if first or not messages.residual else LATER_LAYERS,
        )

    def _make_predictors(self, channels: int, heads: int, outputs: int, kernels: str) -> None:
        readout = self.readout
        self.global_predictor = nn.Sequential(
            nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, outputs)
        )
        if readout.local and readout.combine == "sum":
            # At first z_p is large and uninformative: a predictor that starts at 0 lets the local one learn first.
            for parameter in self.global_predictor[-1].parameters():
                nn.init.zeros_(parameter)
        self.head_dropout = nn.Dropout(readout.dropout)
        self.local_predictor: nn.Module | None = None
        if readout.local == "pairs":
            self.local_predictor = PairPredictor(channels, outputs, readout.dropout, kernels)
        elif readout.local:
            self.local_predictor = HyperSAGNN(channels, heads, 2, outputs, readout.most_deletions)
        gated = readout.local and readout.combine == "gating"
        self.gate = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 2)) if gated else None

    def encode(self, view: PerturbedGraphs) -> tuple[Tensor, ...]:
        """The gene states that the local predictor sees, ``[num_genes, channels]``, and the wild type's pooled states
        ``[1 or 2, 1, channels]``, then the pooled states of all columns; while only the local predictor is trained,
        the first of them.
        """
        if self.exact and not view.batch.wild_type:
            raise ModelError(
                "the hetero model compares with the wild type, but the view has no column for it; "
                "give it strategy(batch.with_wild_type())"
            )
        first = self.input()
        if not self.perturbs:
            return (first if self.readout.local_states == "first" else self._layered(view, first)[:, -1],)
        x, z = self.states(view, first)
        x_wild, z_wild = (x[:, -1], z[:, -1:]) if view.batch.wild_type else self._cached()
        return first if self.readout.local_states == "first" else x_wild, z_wild, z

    def with_wild_type(self, encoded: tuple[Tensor, ...], wild_type: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The states that the local predictor sees, from ``wild_type``; the pooled states are compared."""
        return wild_type[0], *encoded[1:]

    def decode(self, encoded: tuple[Tensor, ...], batch: PerturbationBatch) -> Prediction:
        """Compare with the wild type and add what the deleted genes themselves say."""
        if not self.perturbs:
            assert self.local_predictor is not None
            return Prediction(self.local_predictor(encoded[0], batch), None)
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
        x = self._layered(view, self.input() if x is None else x)
        pooled = [self.pool(x, view.keep)]
        if self.metabolic is not None:
            pooled.append(self.metabolic(view, x))
        return x, torch.stack(pooled)

    def _layered(self, view: PerturbedGraphs, x: Tensor) -> Tensor:
        """The states after the last layer; in the first all samples share x."""
        for layer in self.layers:
            x = layer(view, x)
        return x

    def gene_states(self, view: PerturbedGraphs) -> Tensor:
        """See :class:`CellModel`: the states after the last layer."""
        return self.states(view)[0][:, -1]

    def begin(self, epoch: int, epochs: float) -> None:
        """See :class:`CellModel`: for the first of them, a share of ``readout.local_first``, only the local predictor
        and what it sees are trained. The others' parameters have no gradient then.
        """
        able = self._local_first
        soon = epoch + 1 <= self.readout.local_first * epochs < math.inf
        # A run that goes on for longer than was planned does not give up what it has learned.
        whole = not (able and soon) or self._begun
        if whole == self.perturbs:
            return  # also what somebody has frozen stays as it is
        self.perturbs = whole
        for part in (self.pool, self.metabolic, self.joint, self.global_predictor):
            if part is not None:
                part.requires_grad_(whole)

    @property
    def _local_first(self) -> bool:
        """Whether the local predictor can be trained alone."""
        return bool(self.readout.local) and self.readout.combine == "sum"

    @property
    def _begun(self) -> bool:
        """Whether the global predictor, which starts at 0, has been trained."""
        return any(bool(parameter.any()) for parameter in self.global_predictor[-1].parameters())

    def remark(self) -> str | None:
        """See :class:`CellModel`."""
        if not self._local_first or self.readout.local_first == 0 or self._begun:
            return None
        return (
            f"this state is from the first {self.readout.local_first:.0%} of the epochs, in which only the local "
            "predictor is trained: it knows which genes are deleted, not what that changes in the graph "
            "(model.options.readout.local_first=0 trains all parts from the start)"
        )

    def set_known(self, genes: Tensor) -> None:
        """See :class:`CellModel`."""
        self.input.set_known(genes)

    def prepare(
        self, screen: BoundScreen, rows: Ints, values: Tensor, validation: tuple[Ints, Tensor], classes: bool
    ) -> None:
        """See :class:`CellModel`: with ``input.profiles`` the embeddings start from those of the training rows."""
        del validation, classes
        if self._first_states is not None:
            self.input.add_to_embedding(self._first_states(screen, rows, values))

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
        if self.readout.combine == "sum":
            return first + second
        both = torch.stack([first, second], -1)
        if self.gate is None:
            return both.mean(-1)
        return (at_least_float32(self.gate(both)).softmax(-1) * both).sum(-1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._known = self._known or f"{prefix}x_wild_type" in state_dict
