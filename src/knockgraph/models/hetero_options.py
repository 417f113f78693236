"""The options of the hetero cell model, in four groups."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from knockgraph import registry
from knockgraph.errors import ModelError


@dataclass(frozen=True)
class InputOptions:
    """What is known of a gene before the graph is looked at, see :class:`~knockgraph.nn.gene_input.GeneInput`.

    Attributes:
        embedding: Whether genes have a learned embedding.
        features: Names of the graph's gene features to use beside, or instead of, the embedding.
        embedding_dropout: Share of the genes that do without an embedding of their own in a training step.
        similar: By what genes borrow embeddings from similar genes: the name of a feature; a list of names of networks
            and features (:class:`~knockgraph.models.kernels.similarity.Similarities`), of which each has a learned
            weight; or ``all`` of them but the features that repeat the networks (``degree``, ``spectral``,
            ``diffusion``). A list takes memory for ``num_genes²`` numbers per name, a feature with more than 50 columns
            for twice as many.
        profiles: Whether embeddings start from interaction profiles of the training part, see
            :func:`~knockgraph.models.profile_states.profile_states`.
        norm: Whether the input is normalised; by default see :func:`normalised`.
    """

    group: ClassVar = "input"
    embedding: bool = True
    features: Sequence[str] = ()
    embedding_dropout: float = 0.0
    similar: str | Sequence[str] | None = None
    profiles: bool = False
    norm: bool | None = None


@dataclass(frozen=True)
class MessageOptions:
    """Message passing, see :class:`~knockgraph.nn.hetero_layer.HeteroLayer`.

    Attributes:
        layers: Message-passing layers L.
        conv: ``gin`` (learned ε), ``sage`` (mean), ``gcn``, ``gatv2`` or one of another package, one per relation, see
            :func:`~knockgraph.nn.conv.by_name.relation_conv`.
        aggregation: ``sum``, ``mean``, ``attention`` or ``pairwise``, over the relations.
        relations: Names of the relations; all of the graph by default.
        merge: ``typed`` makes one list of typed edges of all relations, with one convolution per layer
            (:class:`~knockgraph.nn.conv.typed.TypedConv`; not ``gatv2``) and nothing to aggregate. To merge relations
            without types, merge those of the graph: :meth:`CellGraph.merged`.
        mlp_layers: Linear maps in the MLP of ``gin``.
        norm: Whether convolutions are followed by a LayerNorm.
        activation: ``gelu``, ``relu``, ``silu`` or ``elu``.
        dropout: Of the convolutions' activations. The wild type has its own mask, so this adds noise to :math:`z_p`.
        residual: Whether each layer adds to the states instead of replacing them. Without it the model learned nothing
            on a graph of yeast's size.
        rows_at_once: Of ``pairwise``, see :class:`~knockgraph.nn.relation_aggregation.PairwiseAggregation`.
    """

    group: ClassVar = "messages"
    layers: int = 3
    conv: str = "gin"
    aggregation: Literal["sum", "mean", "attention", "pairwise"] = "pairwise"
    relations: Sequence[str] | None = None
    merge: Literal["none", "typed"] = "none"
    mlp_layers: int = 4
    norm: bool = True
    activation: Literal["gelu", "relu", "silu", "elu"] = "gelu"
    dropout: float = 0.0
    residual: bool = True
    rows_at_once: int | None = None

    def __post_init__(self) -> None:
        registry.check("convolution", self.conv)
        check_choices(self)
        at_least_one("messages.layers", self.layers)
        at_least_one("messages.mlp_layers", self.mlp_layers)
        if self.merge == "typed" and self.conv == "gatv2":
            raise ModelError(
                "messages.merge=typed does not go with messages.conv=gatv2; use gin, sage or gcn, or do not merge"
            )


@dataclass(frozen=True)
class ReadoutOptions:
    """From the states of all genes to a prediction.

    Attributes:
        local: What sees the deleted genes' states in the wild type: ``hyper-sagnn`` (or ``True``), ``pairs``
            (:class:`~knockgraph.nn.pair_predictor.PairPredictor`), or ``False`` for nothing.
        local_states: Which states it sees: those after the last layer, ``last``, or before the first, ``first``: what
            is known of the genes themselves, while :math:`z_p` is what the graph says.
        combine: How the two predictions become one: ``gating``, ``mean`` (or ``concat``, as torchcell calls it) or
            ``sum``.
        local_first: Share of the epochs, from the first on, in which only the local predictor and what it sees are
            trained. With ``sum`` the global predictor starts at 0, so until it is trained a prediction depends on the
            wild type alone, and a step takes a small part of the time. Of no effect with another ``combine``, without
            ``local``, and with losses that need :math:`z_p`.
        dropout: Share of :math:`z_p`, and of what ``pairs`` sees, that is dropped before the predictors.
        gain: γ.
        wild_type: ``column``, exact; or ``cached-epoch``, an approximation: given a view without a column for the wild
            type, as in training, its states are those of the last :meth:`HeteroCellModel.refresh_wild_type`, without a
            gradient. It is for measuring what the column costs: the cached wild type goes stale as the weights change,
            N amplifies the error, and on the demo cell a small model learned nothing (held-out Pearson 0.00 instead of
            0.69).
        most_deletions: Of ``hyper-sagnn``, see :class:`~knockgraph.nn.hyper_sagnn.HyperSAGNN`.
    """

    group: ClassVar = "readout"
    local: Literal["hyper-sagnn", "pairs"] | bool = True
    local_states: Literal["last", "first"] = "last"
    combine: Literal["gating", "mean", "concat", "sum"] = "gating"
    local_first: float = 0.0
    dropout: float = 0.0
    gain: float = 1.0
    wild_type: Literal["column", "cached-epoch"] = "column"
    most_deletions: int | None = None

    def __post_init__(self) -> None:
        check_choices(self)
        if isinstance(self.local, str):
            one_of("readout.local", self.local, ("hyper-sagnn", "pairs"))
        if self.local_states == "first" and self.wild_type != "column":
            raise ModelError("readout.local_states=first needs readout.wild_type=column")
        if not 0 <= self.local_first < 1:
            raise ModelError(f"readout.local_first={self.local_first}, but it must be in [0, 1)")


def normalised(residual: bool, local: str | bool) -> bool:
    """Whether the input is normalised unless told.

    Not with a residual path and ``pairs``: unnormalised embeddings stay small, so that the layers do the work, and fit
    less noise. Without a residual path, and without ``pairs``, a model begins to learn sooner with a norm.
    """
    return not (residual and local == "pairs")


@dataclass(frozen=True)
class MetabolismOptions:
    """The reactions' part, see :class:`~knockgraph.nn.metabolic_state.MetabolicState`.

    Attributes:
        enabled: Whether the reactions take part.
        rounds: Rounds of messages reactions → metabolites → reactions.
        attention: Whether these messages are weighed by attention, too.
        isozyme_cap: Most that the isozymes of a reaction add up to if genes have doses; ``None``: no limit. See
            :meth:`Metabolism.activity <knockgraph.graph.Metabolism.activity>`.
    """

    group: ClassVar = "metabolism"
    enabled: bool = False
    rounds: int = 2
    attention: bool = False
    isozyme_cap: float | None = 1.0


MOVED = {
    **{
        option.name: f"{kind.group}.{option.name}"
        for kind in (MetabolismOptions, ReadoutOptions, InputOptions, MessageOptions)
        for option in fields(kind)
    },
    "input_norm": "input.norm",
    "head_dropout": "readout.dropout",
    "metabolism": "metabolism.enabled",
    "metabolism_rounds": "metabolism.rounds",
    "metabolism_attention": "metabolism.attention",
}
"""Where the options are that stood beside each other before there were groups."""


def check_choices(options: Any) -> None:
    """Refuse a value that is none of those that the type of its option lists, and a dropout that is no share."""
    for name, hint in get_type_hints(type(options)).items():
        if get_origin(hint) is Literal:
            one_of(f"{options.group}.{name}", getattr(options, name), get_args(hint))
    if not 0 <= options.dropout < 1:
        raise ModelError(f"{options.group}.dropout={options.dropout}, but it must be in [0, 1)")


def one_of(option: str, value: str, known: Collection[str]) -> None:
    """Refuse a value that is none of those known."""
    if value not in known:
        raise ModelError(f"{option}={value} is not known to the hetero model; use one of {', '.join(known)}")


def at_least_one(option: str, number: int) -> None:
    """Refuse a number below 1."""
    if number < 1:
        raise ModelError(f"{option}={number}, but the hetero model needs at least 1")
