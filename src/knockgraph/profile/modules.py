"""Time per module of a model, forward and backward, on one stored batch."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.models.model import Prediction
from knockgraph.phases import PhaseClock

_FORWARD, _BACKWARD, _REST = "forward of ", "backward of ", "rest"


def module_times(
    model: nn.Module, step: Callable[[], Tensor], device: torch.device, repeats: int = 5, warmup: int = 2
) -> list[dict[str, Any]]:
    """Self times of all modules that were called, the slowest first; a module's self time leaves its children's out.

    A module's backward pass begins when the gradient of its output arrives and ends when that of another module's does,
    or of its own input. What the model does between its modules counts as the model itself, called ``model``.

    Args:
        model: The model; hooks are put on its modules and taken off again.
        step: Computes the loss of the stored batch with it.
        device: Where it runs; on a GPU the times are those of the stream.
        repeats: Steps that are averaged.
        warmup: Steps before them.

    Returns:
        One entry per module: ``module``, ``kind``, ``calls``, ``forward_seconds``, ``backward_seconds``, per step.
    """
    clock = PhaseClock(device, first=warmup, drawn=0, every=1)
    calls: Counter[str] = Counter()
    with _hooked(model, clock, calls):
        for _ in range(warmup + repeats):
            clock.begin_step()
            clock.push((_REST, ""))
            loss = step()
            clock.replace((_BACKWARD + "model", ""))
            loss.backward()  # type: ignore[no-untyped-call]
            clock.pop()
            clock.end_step()
            model.zero_grad(set_to_none=True)
    clock.read_device()
    spent = clock.device_totals or {name: nanoseconds / 1e9 for (name, _), nanoseconds in clock.totals.items()}
    kinds = {name or "model": type(module).__name__ for name, module in model.named_modules()}
    rows = [
        {
            "module": name,
            "kind": kinds[name],
            "calls": calls[name] // (warmup + repeats),
            "forward_seconds": spent.get(_FORWARD + name, 0.0) / repeats,
            "backward_seconds": spent.get(_BACKWARD + name, 0.0) / repeats,
        }
        for name in kinds
        if calls[name]
    ]
    return sorted(rows, key=lambda row: -(row["forward_seconds"] + row["backward_seconds"]))


@contextlib.contextmanager
def _hooked(model: nn.Module, clock: PhaseClock, calls: Counter[str]) -> Iterator[None]:
    handles = []
    known: dict[int, Tensor] = {}  # tensors of this step that have a hook; kept alive, so that no id is used twice

    def arrives(tensors: list[Tensor], name: str) -> None:
        for tensor in tensors:
            if tensor.requires_grad and id(tensor) not in known:
                known[id(tensor)] = tensor
                tensor.register_hook(lambda _: clock.replace((_BACKWARD + name, "")))  # type: ignore[no-untyped-call]

    def enter(name: str, parent: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            calls[name] += 1
            if name == "model":
                known.clear()
            # Parameters outlive the step, and so would a hook on one.
            arrives([t for t in _tensors(inputs) if not t.is_leaf], parent)
            clock.push((_FORWARD + name, ""))

        return hook

    def leave(name: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            clock.pop()
            arrives([t for t in _tensors(output) if not t.is_leaf], name)

        return hook

    try:
        for path, module in model.named_modules():
            name = path or "model"
            parent = path.rpartition(".")[0] or "model"
            handles.append(module.register_forward_pre_hook(enter(name, parent)))
            handles.append(module.register_forward_hook(leave(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for part in value for t in _tensors(part)]
    if isinstance(value, Prediction):
        return [t for part in (value.values, value.embedding, *value.auxiliary.values()) for t in _tensors(part)]
    return []
