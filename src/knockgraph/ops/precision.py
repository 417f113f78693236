"""The precision in which operands are read, sums are kept and results are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The precision of sums: float64 for float64, float32 for everything smaller."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def at_least_float32(x: Tensor) -> Tensor:
    """Half types become float32, the others stay."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def autocast_input(x: Tensor) -> Tensor:
    """Cast ``x`` as autocast casts the operand of a matrix product; float64 stays."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return x.to(torch.get_autocast_dtype(kind))
    return x


def wide_and_narrow(x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` and :func:`autocast_input` of it, whose gradients become one in a single pass."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype in (torch.float64, torch.get_autocast_dtype(kind)):
        return x, x
    wide, narrow = _WideAndNarrow.apply(x, torch.get_autocast_dtype(kind))  # type: ignore[no-untyped-call]
    return wide, narrow


class _WideAndNarrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.dtype = x.dtype
        ctx.set_materialize_grads(False)
        return x.view_as(x), x.to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None]:
        wide, narrow = grads
        if wide is None or narrow is None:
            return wide if narrow is None else narrow.to(ctx.dtype), None
        return wide + narrow, None
