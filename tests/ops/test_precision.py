"""Wide and narrow states under autocast."""

from __future__ import annotations

import pytest
import torch

from knockgraph.ops import wide_and_narrow


def test_without_autocast_they_are_one() -> None:
    x = torch.randn(3, 4)
    wide, narrow = wide_and_narrow(x)
    assert wide is x
    assert narrow is x


@pytest.mark.parametrize("used", [("wide",), ("narrow",), ("wide", "narrow")])
def test_the_gradient_is_that_of_a_cast(used: tuple[str, ...]) -> None:
    given = torch.randn(5, 4)
    grads = []
    for own in (True, False):
        x = given.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            wide, narrow = wide_and_narrow(x) if own else (x, x.to(torch.bfloat16))
        assert (wide.dtype, narrow.dtype) == (torch.float32, torch.bfloat16)
        weight = torch.arange(20.0).view(5, 4)
        parts = {"wide": (weight * wide).sum(), "narrow": (weight.bfloat16() * narrow).float().sum()}
        torch.stack([parts[name] for name in used]).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
