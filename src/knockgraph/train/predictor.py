"""Model and strategy of a run: from a batch to predictions. What prediction needs of a task, without Lightning."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from knockgraph import models, strategies
from knockgraph.errors import ConfigError, FileFormatError, GeneListMismatchError, KnockgraphError, ModelError
from knockgraph.graph import CellGraph
from knockgraph.models.model import CellModel, Prediction
from knockgraph.screen import LabelTransform, PerturbationBatch
from knockgraph.train import checkpoints, foreseen
from knockgraph.train.config import load
from knockgraph.train.overrides import check_unedited
from knockgraph.train.schema import Config
from knockgraph.words import counted, listed

Say = Callable[[str], None]

PRECISIONS = ("auto", "full", "bf16")
"""In which to predict, see :class:`Predictor`."""

MOST_NAMED = 20
"""Phenotypes that are logged and reported one by one; more are summarised."""


class Predictor(nn.Module):
    """Model and strategy of a config.

    Args:
        config: The config.
        graph: The cell graph.
        transform: Labels' original units ↔ label units; the model gets an output for each of its phenotypes.

    Attributes:
        graph: The cell graph.
        phenotypes: What is predicted, in the order of the outputs.
        trained_genes: Which genes the training experiments delete, bool [num_genes]; ``None`` where a run of an earlier
            version does not say.
        trained_sizes: How many genes the training experiments perturb, each number once; ``None`` as above.
        precision: ``full``, that of the weights; ``bf16`` for perturbed graphs; or ``auto``, bf16 on a GPU if the model
            was trained in it. With bf16 the wild type is still encoded in the precision of the weights, once for all
            batches, and its states are used where nothing is compared with them (:meth:`CellModel.with_wild_type`); so
            only the effect of a perturbation is rounded.
    """

    def __init__(self, config: Config, graph: CellGraph, transform: LabelTransform) -> None:
        super().__init__()
        self.config = config
        self.transform = transform
        self.phenotypes = transform.names or tuple(config.data.phenotypes)
        self._zero_below = torch.tensor(config.data.zero_by_definition(self.phenotypes))
        if config.data.zero_below and not bool(self._zero_below.any()):
            raise ConfigError(
                "config key 'data.zero_below': of several phenotypes it concerns those that are interaction scores by "
                "their name (interaction, epistasis, epsilon, tau, GI), and there is none; leave it out"
            )
        self.classes = config.task == "classification"
        self.graph = graph
        self.graph_hash = graph.fingerprint()
        self.num_genes = graph.num_genes
        options = models.with_outputs(config.model.name, config.model.options, len(self.phenotypes))
        if models.is_fitted(config.model.name) and config.trainer.accelerator == "cpu":
            options = models.on_the_host(config.model.name, options)
        self.model = named("model", models.create, config.model.name, graph, **options)
        self.strategy = named("strategy", strategies.create, config.strategy.name, graph, **config.strategy.options)
        self.trained_genes: Tensor | None = None
        self.trained_sizes: Tensor | None = None
        self.precision = "full"
        self._wild_type: tuple[Tensor, ...] | None = None
        self._encoded_with: list[int] = []
        if config.trainer.precision == "64-true":
            self.double()  # here, not by Lightning: it restores a checkpoint before it converts, in float32

    @property
    def device(self) -> torch.device:
        """Where it predicts."""
        place: torch.device = self.strategy.device
        return place

    @property
    def in_bf16(self) -> bool:
        """Whether perturbed graphs are predicted in bf16, see :attr:`precision`."""
        if self.precision != "auto":
            return self.precision == "bf16"
        return self.device.type == "cuda" and self.config.trainer.precision == "bf16-mixed"

    @property
    def approximation(self) -> str | None:
        """In one sentence, that the strategy is not exact for this model; ``None`` if it is."""
        model = self.model
        assert isinstance(model, CellModel)
        if self.strategy.exact_for(model.hops):
            return None
        reach = "does not state its number of hops" if model.hops is None else f"reaches {model.hops} hops"
        return (
            f"the strategy {self.strategy.name} is approximate with these options: the model "
            f"{self.config.model.name} {reach} from a deletion, beyond what is recomputed"
        )

    def never_deleted(self, genes: Iterable[int]) -> str | None:
        """In one sentence, that training has not deleted some of these genes (rows); ``None`` if it has."""
        known = self.trained_genes
        new = [] if known is None else [gene for gene in sorted(set(genes)) if not known[gene]]
        if not new:
            return None
        shown = listed([self.graph.genes.standard(gene) for gene in new], most=5)
        tested = self.config.data.split.kind == "unseen-genes"
        how = "the test part" if tested else "a run with the split unseen-genes"
        some = counted(len(new), "gene was", "genes were")
        return (
            f"{some} never deleted in training ({shown}): expect less of such predictions; {how} says how good they are"
        )

    def never_so_many(self, sizes: Iterable[int]) -> str | None:
        """In one sentence, that training has no genotypes of these numbers of genes; ``None`` if it has, or if such a
        value follows from a definition.
        """
        known = None if self.trained_sizes is None else self.trained_sizes.tolist()
        asked = [] if known is None else sorted(set(sizes) - set(known))
        new = [size for size in asked if not bool(self.by_definition(torch.tensor([size])).all())]
        if not new or known is None:
            return None
        had = listed([f"{size:,}" for size in known], most=5)
        of = {0: "the wild type", 1: "single genes"}
        asked_for = listed([of.get(size, f"{size:,} genes") for size in new], most=5)
        return f"training has only genotypes with {had} deleted genes: expect less of predictions for {asked_for}"

    def forward(self, batch: PerturbationBatch) -> Prediction:
        """Predict a batch; the view closes before the result is returned, so no gradient with ``device-inplace``."""
        prediction = self._whole(batch) if self.training else self._parts(batch)
        outputs = prediction.values.shape[-1]
        if outputs != len(self.phenotypes):
            raise ModelError(
                f"the model {self.config.model.name} gives {counted(outputs, 'output')} for "
                f"{counted(len(self.phenotypes), 'phenotype')}; give its class the argument outputs, the number of them"
            )
        return prediction

    def _whole(self, batch: PerturbationBatch) -> Prediction:
        with self.strategy(self._columns(batch)) as view, self._autocast():
            prediction: Prediction = self.model(view, batch)
        return prediction

    def _parts(self, batch: PerturbationBatch) -> Prediction:
        """What depends on the wild type alone is encoded once for all batches."""
        model = self.model
        assert isinstance(model, CellModel)
        if not model.perturbs:
            return model.decode(self._encoded_wild_type(batch), batch)
        if not self.in_bf16 or not model.encodes:
            return self._whole(batch)
        with self.strategy(model.columns(batch)) as view, self._autocast():
            view.check_model(model.hops)
            encoded = model.encode(view)
        return model.decode(model.with_wild_type(encoded, self._encoded_wild_type(batch)), batch)

    def _encoded_wild_type(self, batch: PerturbationBatch) -> tuple[Tensor, ...]:
        model = self.model
        assert isinstance(model, CellModel)
        weights = [parameter._version for parameter in model.parameters()]  # loading others changes it
        if self._wild_type is not None and self._encoded_with == weights and not torch.is_grad_enabled():
            return self._wild_type
        with self.strategy(batch.only_wild_type()) as view:
            view.check_model(model.hops)
            encoded = model.encode(view)
        self._wild_type, self._encoded_with = None if torch.is_grad_enabled() else encoded, weights
        return encoded

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bf16 and not self.training)

    def train(self, mode: bool = True) -> Self:
        """Forget what was encoded: the weights may have changed."""
        self._wild_type = None
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._wild_type = None  # it is not moved or converted
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call,no-any-return]

    def _columns(self, batch: PerturbationBatch) -> PerturbationBatch:
        model = self.model
        assert isinstance(model, CellModel)
        return model.columns(batch)

    def spread(self, batch: PerturbationBatch) -> Tensor | None:
        """See :meth:`CellModel.spread`."""
        model = self.model
        assert isinstance(model, CellModel)
        return model.spread(batch)

    def told(self, prediction: Tensor, deleted: Tensor) -> Tensor:
        """Predictions for output: in original units (classes: probabilities), 0 where the definition requires it.

        Args:
            prediction: ``[samples, outputs]`` in label units, on the host.
            deleted: ``[samples]``, the number of deleted genes of each.
        """
        if self.classes:
            return prediction.double().sigmoid()
        values = self.transform.invert(prediction.double())
        values[self.by_definition(deleted)] = 0.0
        return values

    def by_definition(self, deleted: Tensor) -> Tensor:
        """Where a value is 0 by definition, bool ``[samples, outputs]``; ``deleted`` as in :meth:`told`."""
        if self.config.task != "regression":  # an empty task says nothing about genotypes
            return torch.zeros(len(deleted), len(self.phenotypes), dtype=torch.bool)
        return deleted.unsqueeze(1) < self._zero_below


def named(what: str, create: Any, name: str, *arguments: Any, **options: Any) -> Any:
    """Create something by name; an option that it cannot have is reported with its place in the config."""
    try:
        return create(name, *arguments, **options)
    except TypeError as error:  # another one's class, whose signature does not say its types
        raise ConfigError(f"config key '{what}.options': {what} {name!r} cannot be created: {error}") from error


def checkpoint_of(config: Config, which: str, directory: Path) -> str:
    """The checkpoint that is meant: what is fitted at once has one state, and a run that has not validated no best."""
    folder = directory / "checkpoints"
    unvalidated = which == "best-error" and not checkpoints.any_best(folder) and (folder / checkpoints.LAST).is_file()
    return "last" if unvalidated or models.is_fitted(config.model.name) else which


Kind = TypeVar("Kind", bound=Predictor)


def load_predictor(directory: Path, which: str = "best-error") -> tuple[Config, Predictor]:
    """Model and strategy of a run, with the weights of a checkpoint, and its config."""
    return load_run(directory, which, Predictor)


def load_run(
    directory: Path, which: str, make: Callable[[Config, CellGraph, LabelTransform], Kind]
) -> tuple[Config, Kind]:
    """What ``make`` makes of a run's config, graph and labels, with the weights of a checkpoint; and the config."""
    config = load(directory / "config.yaml")
    config.trainer.compile = False
    path = checkpoints.find(directory / "checkpoints", checkpoint_of(config, which, directory))
    state = checkpoints.load(path)
    graph = CellGraph.load(directory / "cell.cellgraph")
    about = state.get("knockgraph")
    if not isinstance(about, dict) or not {"graph", "transform"} <= set(about) or "state_dict" not in state:
        raise FileFormatError(f"{path} is a checkpoint, but not one of a training run")
    check_unedited(config, about.get("config"), directory / "config.yaml")
    if about["graph"] != graph.fingerprint():
        raise GeneListMismatchError(
            f"the checkpoint {path} was trained on another cell graph than {directory}/cell.cellgraph; "
            "put the graph of that run back"
        )
    with foreseen.model_that_fits(config):
        made = make(config, graph, LabelTransform.from_state_dict(about["transform"]))
    loss = hasattr(made, "loss")  # its buffers are part of a checkpoint
    try:
        made.load_state_dict({k: v for k, v in state["state_dict"].items() if loss or not k.startswith("loss.")})
    except RuntimeError as error:
        raise KnockgraphError(f"the checkpoint {path} does not fit the model of its config: {error}") from error
    made.trained_genes, made.trained_sizes = about.get("trained_genes"), about.get("trained_sizes")
    made.precision = "auto"
    made.eval()
    return config, made
