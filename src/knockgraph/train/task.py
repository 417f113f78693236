"""The Lightning task: one step from a batch to a loss, and the metrics of a split."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch import distributed as dist

from knockgraph import losses, registry
from knockgraph.errors import ConfigError, GeneListMismatchError, PerturbationError, StrategyError
from knockgraph.graph import CellGraph
from knockgraph.losses import LossParts
from knockgraph.models.graphed import GraphedModel, can_be_graphed
from knockgraph.models.model import CellModel, Prediction
from knockgraph.options import takes
from knockgraph.phases import FORWARD, LOGGING, LOSS, MASKS, phase
from knockgraph.screen import LabelTransform, PerturbationBatch
from knockgraph.strategies import PerturbedGraphs
from knockgraph.train.exchange import mean_over_ranks, several
from knockgraph.train.metrics import gather_rows, headline, metrics_of
from knockgraph.train.overrides import trained_with
from knockgraph.train.predictor import MOST_NAMED, Predictor, named
from knockgraph.train.ranks import Ranks
from knockgraph.train.schema import Config
from knockgraph.words import counted


class Task(Predictor, LightningModule):
    """Model, strategy and loss, trained together.

    Args:
        config: The config.
        graph: The cell graph.
        transform: Labels' original units ↔ label units; the model gets an output for each of its phenotypes.

    Attributes:
        replays: Whether steps were replayed from a recorded CUDA graph.
        validated: Predictions and targets (label units) of the last validation, of all ranks.
        warnings: What looks as if the run had not learned, see :mod:`knockgraph.train.learning`.
    """

    def __init__(self, config: Config, graph: CellGraph, transform: LabelTransform) -> None:
        super().__init__(config, graph, transform)
        options = dict(config.loss.options)
        if takes("outputs", registry.find("loss", config.loss.name)):
            options.setdefault("outputs", len(self.phenotypes))
            if options["outputs"] not in (1, len(self.phenotypes)):
                raise ConfigError(
                    f"config key 'loss.options.outputs': it is {options['outputs']}, but "
                    f"{counted(len(self.phenotypes), 'phenotype')} will be trained; leave it out, it follows from them"
                )
        self.loss = named("loss", losses.create, config.loss.name, **options)
        self._check_loss()
        if config.trainer.precision == "64-true":
            self.double()  # the loss, too
        # The tables are the same everywhere by construction: what brings all ranks to the state of rank 0 (Lightning's
        # _sync_module_states in train/ranks.py, or torch's DDP in somebody else's trainer) must not send them around.
        self._ddp_params_and_buffers_to_ignore = [f"strategy.{name}" for name, _ in self.strategy.named_buffers()]
        self._open = contextlib.ExitStack()
        self.validated: tuple[Tensor, Tensor] | None = None
        self.warnings: list[str] = []
        self._outputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._to_restore: dict[str, Any] | None = None
        self._recorded: GraphedModel | None = None
        self.replays = False
        if config.trainer.compile:
            self.model.compile(dynamic=False)

    def _check_loss(self) -> None:
        """Refuse a loss that needs what the model does not give, before anything is computed."""
        gives = self.model.gives
        missing = [name for name in self.loss.needs if gives is not None and name not in gives]
        if missing and not self.config.task.startswith("empty"):
            raise ConfigError(
                f"config key 'loss': the loss {self.config.loss.name} needs the {missing[0]} of a model, which "
                f"{self.config.model.name} does not give; choose another loss or model"
            )

    @property
    def unused_terms(self) -> list[str]:
        """Auxiliary terms that the model gives and the loss leaves out."""
        return [name for name in self.model.gives or () if name not in ("embedding", *self.loss.needs)]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> PerturbationBatch:
        """Take the batches of PyG's loaders too; checked on the host."""
        return self.as_batch(batch)

    def as_batch(self, batch: Any) -> PerturbationBatch:
        """A batch of knockgraph's loader or of PyG's, such as those of torchcell's data module, of this task's graph.

        Raises:
            PerturbationError: If a PyG batch lacks something, which the error names.
        """
        if isinstance(batch, PerturbationBatch):
            return batch
        made = PerturbationBatch.from_hetero_batch(batch, self.phenotypes if _says_types(batch) else None)
        values = made.phenotype_values
        if values is not None and values.shape[1] != len(self.phenotypes):
            raise PerturbationError(
                f"the samples of this batch have {counted(values.shape[1], 'phenotype_value')} each, but "
                f"{counted(len(self.phenotypes), 'phenotype')} ({', '.join(self.phenotypes)}) are trained; give them "
                "phenotype_types and phenotype_type_indices"
            )
        if made.num_genes != self.num_genes:
            raise GeneListMismatchError(
                f"the samples of this batch have {made.num_genes} genes, but the cell graph has {self.num_genes}; make "
                "the graph of the dataset's own cell graph with kg.CellGraph.from_hetero_data"
            )
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        unknown = torch.full((made.num_samples,), -1, device=made.device)
        return replace(
            made,
            step_size=made.num_samples * ranks,  # PyG's samplers give every rank as many
            experiment=unknown if made.experiment is None else made.experiment,
        )

    def forward(self, batch: PerturbationBatch) -> Prediction:
        """Predict a batch, also one of PyG's."""
        return super().forward(self.as_batch(batch))

    def training_step(self, batch: PerturbationBatch, batch_idx: int) -> Tensor:
        """One step; the perturbed graphs stay open until the backward pass is done."""
        parts = self._loss_of(batch)
        if self._is_logged():
            with phase(LOGGING, "log_dict"):
                values = {"loss": parts.total.detach(), **(parts.parts if len(parts.parts) > 1 else {})}
                # The mean over ranks is the value of the step.
                values = mean_over_ranks({f"train/{name}": value for name, value in values.items()})
                self.log_dict(values, batch_size=batch.num_samples)
        total: Tensor = parts.total
        return total

    def _is_logged(self) -> bool:
        """Whether the loggers will be told about this batch: the last one of every nth optimizer step."""
        trainer = self.trainer
        return not trainer.fit_loop._should_accumulate() and trainer._logger_connector.should_update_logs

    def _loss_of(self, batch: PerturbationBatch) -> LossParts:
        prediction = self._predicted(batch)
        with phase(LOSS):
            parts: LossParts = self.loss(
                prediction,
                self._target(batch, prediction.values.dtype),
                step_size=batch.step_size,
                world_size=self.trainer.world_size,
                epoch=self.current_epoch,
                known=self.transform.known,
            )
        return parts

    def _predicted(self, batch: PerturbationBatch) -> Prediction:
        """In training: a replay of what was recorded where that is possible."""
        if self._recorded is None and self._records():
            self._recorded, self.replays = self._record(), True
        if self._recorded is not None and self._recorded.takes(batch):
            with phase(FORWARD):
                return self._recorded(batch)
        view = self.perturbed(batch)
        with phase(FORWARD):
            prediction: Prediction = self.model(view, batch)
        return prediction

    def _records(self) -> bool:
        t, trainer = self.config.trainer, self.trainer
        # Torch's own DDP, in somebody else's trainer, would not see the gradients of a recording.
        exchanged = trainer.world_size == 1 or isinstance(trainer.strategy, Ranks)
        return exchanged and t.cuda_graph and not t.compile and can_be_graphed(self.model, self.strategy, self.device)

    def _record(self) -> GraphedModel:
        """Made in the first step, when everything is where it will be trained."""
        samples = self.config.loader.batch_size
        data = getattr(self.trainer, "datamodule", None)
        most = getattr(data, "most_deletions", 3)
        return GraphedModel(self.model, self.strategy, samples, samples * most)

    def perturbed(self, batch: PerturbationBatch) -> PerturbedGraphs:
        """The view of the batch, open until the backward pass is done."""
        with phase(MASKS):
            self._open.close()
            view: PerturbedGraphs = self._open.enter_context(self.strategy(self._columns(batch)))
        return view

    def on_train_epoch_start(self) -> None:
        """The loader's order is a function of the epoch; a resumed epoch keeps the position that was restored."""
        loader = getattr(getattr(self.trainer, "datamodule", None), "train_loader", None)
        if loader is not None:
            loader.set_epoch(self.current_epoch)
        self._begin()
        self._refresh_wild_type()

    def on_validation_start(self) -> None:
        """A run that is resumed may begin with a validation."""
        self._begin()

    def _begin(self) -> None:
        """Tell the model how far the training is; what was recorded holds as long as the same parts are trained."""
        model, trainer = self.model, self.trainer
        assert isinstance(model, CellModel)
        if trainer.state.fn != "fit" or "embedding" in self.loss.needs:
            return
        before = model.perturbs
        model.begin(self.current_epoch, self._epochs())
        if model.perturbs != before:
            self._recorded = self._wild_type = None

    def _epochs(self) -> float:
        """How many there will be; less than a whole number where the steps end sooner."""
        t = self.trainer
        most = math.inf if t.max_epochs in (None, -1) else float(t.max_epochs or 0)
        if t.max_steps == -1:
            return most
        _ = t.estimated_stepping_batches  # it counts the batches, which the check before training has not done yet
        if t.num_training_batches == math.inf:  # of somebody else's loader without a length
            return most
        return min(most, t.max_steps / optimizer_steps(int(t.num_training_batches), 1, self.config.trainer.accumulate))

    def _refresh_wild_type(self) -> None:
        """For models that keep it for an epoch; in the middle of one it is part of the checkpoint."""
        model = self.model
        assert isinstance(model, CellModel)
        if not model.exact:
            wild_type = PerturbationBatch.from_lists([], self.num_genes).only_wild_type().to(self.device)
            with self.trainer.precision_plugin.forward_context(), self.strategy(wild_type) as view:
                model.refresh_wild_type(view)

    def on_fit_end(self) -> None:
        """Forget the recording: Lightning moves the parameters away from where it finds them."""
        self._recorded = None

    def on_after_backward(self) -> None:
        """Release the perturbed graphs."""
        with phase(MASKS, "give back"):
            self._open.close()

    def _target(self, batch: PerturbationBatch, dtype: torch.dtype) -> Tensor:
        values = batch.phenotype_values
        if values is None:
            raise StrategyError(
                "this batch has no labels; give its samples phenotype_values, or use predict for experiments "
                "without them"
            )
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        return self.transform(values.to(kind))

    def validation_step(self, batch: PerturbationBatch, batch_idx: int) -> None:
        """Collect predictions; metrics are made of all of them."""
        self._collect(batch)

    def test_step(self, batch: PerturbationBatch, batch_idx: int) -> None:
        """As in validation."""
        self._collect(batch)

    def _collect(self, batch: PerturbationBatch) -> None:
        values = self(batch).values.detach()
        values = values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
        experiment = batch.experiment
        assert experiment is not None
        self._outputs.append((values, self._target(batch, values.dtype), experiment))

    def on_validation_epoch_end(self) -> None:
        """Log ``val/…``."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log ``test/…``."""
        self._log_metrics("test")

    def _log_metrics(self, part: str) -> None:
        prediction, target, _ = self.collected()
        self._outputs.clear()
        self.validated = (prediction, target)
        found = self.metrics(prediction, target)
        logged = headline(found)
        if 1 < len(self.phenotypes) <= MOST_NAMED:
            score = "auroc" if self.classes else "pearson"
            logged |= {f"{score}/{name}": v for name, v in zip(self.phenotypes, found[score], strict=True)}
        self.log_dict({f"{part}/{name}": value.float() for name, value in logged.items()}, rank_zero_only=False)

    def metrics(self, prediction: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Metric → one value for each phenotype.

        Args:
            prediction: ``[experiments, phenotypes]``, in label units.
            target: The same shape and units, NaN where a label is missing.
        """
        return metrics_of(prediction, target, self.transform, self.classes)

    def collected(self) -> tuple[Tensor, Tensor, Tensor]:
        """Predictions, targets ``[n, outputs]`` (label units), experiments ``[n]`` of all ranks since the last call."""
        prediction, target, experiment = (torch.cat(part) for part in zip(*self._outputs, strict=True))
        return gather_rows(prediction), gather_rows(target), gather_rows(experiment)

    def configure_optimizers(self) -> Any:
        """AdamW and the configured schedule."""
        o, s = self.config.optimizer, self.config.scheduler
        parameters = [p for p in self.parameters() if p.requires_grad]
        if not parameters:
            name = self.config.model.name
            raise ConfigError(f"config key 'model': {name} has nothing to train step by step; choose another model")
        fused = all(p.is_cuda for p in parameters)
        optimizer = torch.optim.AdamW(
            parameters, o.lr, (o.betas[0], o.betas[1]), weight_decay=o.weight_decay, fused=fused
        )
        if s.name == "none":
            return optimizer
        if s.name == "plateau":
            mode: Any = "min"
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, mode, factor=s.factor, patience=s.patience, cooldown=s.cooldown, min_lr=s.min_lr
            )
            monitor = "val/bce" if self.classes else "val/mse"
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": monitor}}
        first = s.first_cycle_steps
        if first is not None:
            restarts = torch.optim.lr_scheduler.LambdaLR(
                optimizer,
                lambda step: restart_factor(step, first, s.cycle_mult, s.gamma, s.warmup_steps, s.min_factor),
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": restarts, "interval": s.interval}}
        total = self._total_steps()
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: cosine_factor(step, total, s.warmup_steps, s.cycles, s.min_factor)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _total_steps(self) -> int:
        t = self.trainer  # it may be the user's own, with another length than the config's
        loaded = t.estimated_stepping_batches  # it ignores the accumulation schedule
        if t.max_epochs is None or t.max_epochs == -1:
            return int(loaded)
        steps = optimizer_steps(int(t.num_training_batches), t.max_epochs, self.config.trainer.accumulate)
        return steps if t.max_steps == -1 else min(steps, t.max_steps)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """By the norm, in place; Lightning's own way refuses the fused optimizer, which needs no unscaling in bf16."""
        if gradient_clip_val:
            torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what each rank has for itself: random state and the loss's buffers."""
        checkpoint["knockgraph"] = {
            "graph": self.graph_hash,
            "transform": self.transform.state_dict(),
            "trained_genes": self.trained_genes,
            "trained_sizes": self.trained_sizes,
            "config": trained_with(self.config),
            "ranks": all_ranks(
                {
                    "random": torch.get_rng_state(),
                    "cuda_random": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
                    "loss": {k: v.cpu() if isinstance(v, Tensor) else v for k, v in self.loss.state_dict().items()},
                }
            ),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remember it for :meth:`on_train_start`: the sanity check must not use the restored random state up."""
        if checkpoint["knockgraph"]["graph"] != self.graph_hash:
            raise GeneListMismatchError("the checkpoint was trained on another cell graph than the run directory holds")
        self._to_restore = checkpoint["knockgraph"]

    def on_train_start(self) -> None:
        """Restore what this rank had for itself; a run that goes on in the middle of an epoch does not start it."""
        self._begin()
        if self._to_restore is None:
            return
        ranks = self._to_restore["ranks"]
        if self.global_rank < len(ranks):
            mine = ranks[self.global_rank]
            torch.set_rng_state(mine["random"])
            if mine["cuda_random"] is not None and torch.cuda.is_available():
                torch.cuda.set_rng_state(mine["cuda_random"])
            self.loss.load_state_dict(mine["loss"])
        self._to_restore = None


def _says_types(pyg_batch: Any) -> bool:
    """Whether the samples of a batch say which phenotypes their values are."""
    store = pyg_batch["gene"] if "gene" in getattr(pyg_batch, "node_types", ()) else pyg_batch
    return "phenotype_values" in store and ("phenotype_types" in store or "phenotype_type_indices" in store)


def cosine_factor(step: int, total: int, warmup: int, cycles: int, least: float) -> float:
    r"""Linear warm-up, then ``cycles`` cosines from 1 to ``least``: the factor on the learning rate.

    .. math:: f = l + (1 - l)\,\tfrac12\bigl(1 + \cos(\pi\, p)\bigr), \quad p = \mathrm{frac}(\text{cycles} \cdot t)

    >>> [round(cosine_factor(step, 100, 10, 1, 0.0), 2) for step in (0, 9, 10, 55, 100)]
    [0.1, 1.0, 1.0, 0.5, 0.0]
    """
    if step < warmup:
        return (step + 1) / warmup
    t = min((step - warmup) / max(total - warmup, 1), 1.0)
    p = 1.0 if t >= 1.0 else (cycles * t) % 1.0
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * p))


def restart_factor(step: int, first: int, multiple: float, gamma: float, warmup: int, least: float) -> float:
    r"""Cosines from :math:`\gamma^c` to ``least``, each after a linear warm-up: the factor on the learning rate.

    .. math::
        f = l + (\gamma^c - l)\,\tfrac12\bigl(1 + \cos(\pi\, p)\bigr), \quad
        p = \frac{s - w}{n_c - w}, \quad n_{c+1} = \lfloor m\,(n_c - w) \rfloor + w

    with the step s of cycle c, which has :math:`n_c` steps, w of them warm-up, at least one not.

    >>> [round(restart_factor(step, 4, 0.5, 0.5, 0, 0.0), 2) for step in range(7)]
    [1.0, 0.85, 0.5, 0.15, 0.5, 0.25, 0.25]
    """
    length, cycle = first, 0
    while step >= length:
        step -= length
        length = max(int((length - warmup) * multiple), 1) + warmup
        cycle += 1
    if step < warmup:
        return least + (gamma**cycle - least) * step / warmup
    p = (step - warmup) / (length - warmup)
    return least + (gamma**cycle - least) * 0.5 * (1 + math.cos(math.pi * p))


def optimizer_steps(batches: int, epochs: int, accumulate: Mapping[int, int]) -> int:
    """Optimizer steps of a run; the last step of an epoch may accumulate fewer batches.

    >>> optimizer_steps(10, 3, {0: 1, 2: 4})
    23
    """
    steps = 0
    for epoch in range(epochs):
        steps += -(-batches // accumulate.get(max((k for k in accumulate if k <= epoch), default=-1), 1))
    return steps


def all_ranks(state: Any) -> list[Any]:
    """What every rank gave, in the order of the ranks."""
    if not several():
        return [state]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, state)
    return ranks
