"""The processes of a run as Lightning starts them, with our own exchange of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from knockgraph.phases import SYNC, phase
from knockgraph.train.exchange import GradientExchange, check_alike


class Ranks(DDPStrategy):
    """Lightning's processes for DDP, with a :class:`GradientExchange` in place of torch's wrapper of the module.

    The exchange comes between the backward pass of the last accumulated batch and the clipping. So a step replayed as a
    CUDA graph runs on several GPUs as on one.
    """

    def _setup_model(self, model: nn.Module) -> Any:
        """Not wrapped. All ranks start from the parameters and buffers of the first, but for a strategy's tables."""
        check_alike(model)
        _sync_module_states(model)
        self._exchange = GradientExchange(p for p in model.parameters() if p.requires_grad)
        return model

    def _register_ddp_hooks(self) -> None:
        """None: there is nothing to hook into."""

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Lightning's, with the exchange after ``closure``, which runs the last backward pass of the step."""

        def exchanged() -> Any:
            result = closure()
            with phase(SYNC):
                self._exchange()
            return result

        return super().optimizer_step(optimizer, exchanged, model, **kwargs)
