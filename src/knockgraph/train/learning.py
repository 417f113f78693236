r"""Whether a run learns: how different the genes' states still are, how large z_p is beside its rounding, and whether
the validation score is better than that of guessing.

.. math:: \text{cosine} = \operatorname{mean}_{g \neq h} \cos(x_g, x_h), \qquad
    \text{noise} = \frac{\lVert z_p - \hat z_p \rVert}{\lVert \hat z_p \rVert}

with the genes' states x of the wild type, and :math:`\hat z_p` computed in a higher precision.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from knockgraph.models.model import Prediction
from knockgraph.nn.hetero_layer import HeteroLayer
from knockgraph.screen import PerturbationBatch

if TYPE_CHECKING:
    from knockgraph.train.task import Task

# Mean cosine after the last layer. A common component is harmless in itself: a model that learns may come close to 1.
COLLAPSED, COLLAPSED_AND_GUESSING = 0.999, 0.99
NOISY = 0.5  # rounding, as a share of z_p
_SAMPLES = 4  # experiments that are looked at
_ENOUGH = 50  # validation experiments; fewer say nothing about a correlation
_MOST_BYTES = 32_000_000  # of weights and tables that are copied to float64


class Learning(pl.Callback):
    """Logs ``learn/cosine_input``, ``learn/cosine_layer_1``, … and ``learn/z_p_noise`` at each validation, and says
    once per kind, in one sentence with what to try, what looks like a run that does not learn; at the end, what still
    holds and was not said in the same words.

    It looks at a few validation experiments, in evaluation mode; it uses no random number up. Models without
    :class:`HeteroLayer` are judged by their validation score alone.

    Args:
        say: Told the sentences.

    Attributes:
        warnings: Kind → sentence, what holds at the last validation.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.say = say
        self.warnings: dict[str, str] = {}
        self._told: list[str] = []
        self._said: set[str] = set()
        self._measured: dict[str, float] = {}

    def state_dict(self) -> dict[str, Any]:
        """What was said, so that a resumed run does not say it again."""
        return {"warnings": dict(self.warnings), "told": list(self._told)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.warnings, self._told = dict(state_dict["warnings"]), list(state_dict["told"])

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Measure and log."""
        if trainer.sanity_checking:
            return
        task: Any = pl_module
        self._measured = measured(task)
        task.log_dict({f"learn/{name}": value for name, value in self._measured.items()})

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Judge; before the checkpoint of this validation is saved, which knows it then."""
        if trainer.sanity_checking:
            return
        task: Any = pl_module
        ended = int(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)
        epochs = trainer.current_epoch + ended
        guesses = not_learned(task, epochs)
        # After a whole epoch, and not while the learning rate is still being raised, unless nothing comes after it.
        s, last = task.config.scheduler, epochs == trainer.max_epochs
        warming = s.name == "cosine" and trainer.global_step <= s.warmup_steps and not last
        found = judged(self._measured, task, bool(guesses)) | (guesses if epochs and not warming else {})
        self.warnings = found
        for kind, text in found.items():
            if kind not in self._told:
                self._told.append(kind)
                self._say(text)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave it to the result and the report, also where nothing was left to train."""
        pl_module.warnings = list(self.warnings.values())  # type: ignore[assignment]
        for text in self.warnings.values():
            self._say(text)

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(f"warning: {text}")


def measured(task: Task) -> dict[str, float]:
    """Cosines of the genes' states by layer, and the noise of z_p, for a model with layers; else nothing."""
    data: Any = getattr(task.trainer, "datamodule", None)
    layers = [m for m in task.model.modules() if isinstance(m, HeteroLayer)]
    if data is None or not layers:
        return {}
    batch: Any = task.strategy.collate(data.bound.batch(data.rows["val"][:_SAMPLES]))
    batch = batch.to(task.device)
    devices = [task.device] if task.device.type == "cuda" else []
    states: list[Tensor] = []
    hooks = [layers[0].register_forward_pre_hook(lambda _, given: states.append(given[1]))]
    hooks += [layer.register_forward_hook(lambda _, given, made: states.append(made)) for layer in layers]
    with torch.random.fork_rng(devices), torch.no_grad():
        try:
            with task.trainer.precision_plugin.forward_context():
                prediction = _predicted(task.model, task.strategy, batch)
        finally:
            for hook in hooks:
                hook.remove()
        noise = _noise(task, batch, prediction)
    names = ["cosine_input", *(f"cosine_layer_{number}" for number in range(1, len(layers) + 1))]
    # There are no states where only a local predictor that sees the input is trained.
    found = {name: mean_cosine(x if x.dim() == 2 else x[:, -1]) for name, x in zip(names, states, strict=False)}
    return found if noise is None else {**found, "z_p_noise": noise}


def _predicted(model: nn.Module, strategy: Any, batch: PerturbationBatch) -> Prediction:
    with strategy(model.columns(batch)) as view:  # type: ignore[operator]
        # Past __call__: where the whole model is compiled, its layers are not seen.
        prediction: Prediction = model.forward(view, batch)
    return prediction


def mean_cosine(x: Tensor) -> float:
    """Mean cosine over all pairs of different rows ``[n, channels]``; 1 where all point the same way.

    From the length of the sum of the directions: it is ``n + Σ_{g≠h} cos`` when squared.

    >>> mean_cosine(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]))
    0.333...
    """
    n = len(x)
    direction = nn.functional.normalize(x.double(), dim=1)
    return float((direction.sum(0).square().sum() - direction.square().sum()) / max(n * (n - 1), 1))


def _noise(task: Task, batch: PerturbationBatch, prediction: Prediction) -> float | None:
    """How far z_p is from what a higher precision gives; None where that cannot be had, or not cheaply."""
    if prediction.embedding is None:
        return None
    precision = task.config.trainer.precision
    try:
        if precision == "bf16-mixed":
            with torch.autocast(task.device.type, enabled=False):
                exact = _predicted(task.model, task.strategy, batch).embedding
        elif precision == "32-true" and _bytes(task) < _MOST_BYTES:
            model, strategy = copy.deepcopy(task.model).double(), copy.deepcopy(task.strategy).double()
            exact = _predicted(model, strategy, batch).embedding
        else:
            return None
    except Exception:  # it is a measurement beside the run, which must not end for it
        return None
    assert exact is not None
    exact = exact.double()
    noise = float((prediction.embedding.double() - exact).norm() / exact.norm())
    return noise if math.isfinite(noise) else None


def _bytes(task: Task) -> int:
    weights = sum(p.nbytes for p in task.model.parameters())
    return int(weights + sum(task.strategy.memory().values()))


def judged(found: dict[str, float], task: Task, guessing: bool) -> dict[str, str]:
    """Kind → sentence, for states that have collapsed and for a z_p that is mostly rounding.

    Args:
        found: What :func:`measured` found.
        task: The task.
        guessing: Whether its validation score is no better than guessing.
    """
    said = {}
    layers = [m for m in task.model.modules() if isinstance(m, HeteroLayer)]
    without = not all(getattr(layer, "residual", False) for layer in layers)
    last = found.get(f"cosine_layer_{len(layers)}", 0.0)
    lr = f"an optimizer.lr below {task.config.optimizer.lr:g}"
    if last > (COLLAPSED_AND_GUESSING if guessing else COLLAPSED):
        tries = (["model.options.messages.residual=true"] if without else []) + ["fewer layers", lr]
        said["collapse"] = (
            f"the gene states have become nearly identical (mean cosine {last:.3f} after layer {len(layers)}, "
            f"{found['cosine_input']:.3f} before the first), so the model cannot distinguish genes; try "
            + _either(tries)
        )
    noise = found.get("z_p_noise", 0.0)
    if noise > NOISY:
        precision = task.config.trainer.precision
        tries = ["trainer.precision=32-true" if precision == "bf16-mixed" else "trainer.precision=64-true"]
        tries += ["model.options.messages.residual=true"] if without else [lr]
        said["noise"] = (
            f"rounding in {precision} is {noise:.0%} of z_p, the effect of a deletion, so the model sees "
            f"mostly noise; try {_either(tries)}"
        )
    return said


def not_learned(task: Task, epochs: int) -> dict[str, str]:
    """Kind → sentence, if the last validation is no better than guessing."""
    if task.validated is None:
        return {}
    prediction, target = (x.double() for x in task.validated)
    known = ~target.isnan()
    labels = float(known.double().sum(0).mean())  # of a phenotype
    if labels < _ENOUGH or bool((~known | (target == target.nan_to_num(nan=torch.inf).amin(0))).all()):
        return {}
    o, s = task.config.optimizer, task.config.scheduler
    after = f"after {epochs} epoch{'s' * (epochs != 1)}"
    tries = ["more epochs", "more experiments", f"another optimizer.lr than {o.lr:g}"]
    tries.append(f"more scheduler.warmup_steps than {s.warmup_steps}")
    if bool((prediction == prediction[:1]).all()):
        return {"constant": f"{after} every validation experiment gets the same prediction; try {_either(tries[2:])}"}
    name, guess, margin = _chance(target, task.classes)
    value = float(task.trainer.callback_metrics["val/auroc" if task.classes else "val/pearson"])
    if math.isfinite(value) and abs(value - guess) < margin:
        return {
            "chance": f"{after} the validation {name} is {value:.3f}, which {labels:,.0f} experiments cannot tell "
            f"from {guess:g}, the score of guessing; try {_either(tries)}"
        }
    return {}


def _chance(target: Tensor, classes: bool) -> tuple[str, float, float]:
    """Name of the score, what guessing gives, and twice its standard error, for a phenotype with as many labels as
    they have on average: the scores of several phenotypes are no independent trials.
    """
    n = float((~target.isnan()).double().sum(0).mean())
    if not classes:
        return "Pearson", 0.0, 2 / math.sqrt(n)
    positive = float((target > 0.5).double().sum(0).mean())
    return "AUROC", 0.5, 2 * math.sqrt((n + 1) / (12 * positive * (n - positive)))


def _either(tries: list[str]) -> str:
    return tries[0] if len(tries) == 1 else f"{', '.join(tries[:-1])} or {tries[-1]}"
