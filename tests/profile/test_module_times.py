"""Time per module: self times, forward and backward, on nested modules with known delays."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from knockgraph.profile.modules import module_times


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradient, None, None


class Slow(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.seconds = forward, backward
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Any:
        return _Slow.apply(x * self.weight, *self.seconds)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Slow(0.02, 0.03)
        self.last = Slow(0.01, 0.02)

    def forward(self, x: Tensor) -> Any:
        x = _Slow.apply(self.inner(x), 0.02, 0.01)  # the block's own work, between its children
        return self.last(x)


def test_self_times() -> None:
    model = nn.Sequential(Block(), Slow(0.01, 0.01))
    x = torch.ones(3, requires_grad=True)
    found = {row["module"]: row for row in module_times(model, lambda: model(x).sum(), torch.device("cpu"), 3, 1)}
    expected = {"0.inner": (0.02, 0.03), "0.last": (0.01, 0.02), "0": (0.02, 0.01), "1": (0.01, 0.01)}
    for name, (forward, backward) in expected.items():
        assert found[name]["calls"] == 1
        assert found[name]["forward_seconds"] == pytest.approx(forward, abs=0.003), name
        assert found[name]["backward_seconds"] == pytest.approx(backward, abs=0.003), name
    assert found["model"]["forward_seconds"] < 0.003
    assert next(iter(found)) == "0.inner"  # the slowest first
    assert not model._forward_hooks
    assert not model[1]._forward_pre_hooks


def test_modules_that_are_never_called_are_not_listed() -> None:
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    step = lambda: model["used"](torch.ones(1, 2)).sum()  # noqa: E731
    assert [row["module"] for row in module_times(model, step, torch.device("cpu"), 1, 0)] == ["used"]
