"""The precision in which operands are read, sums are kept and results are given."""

from __future__ import annotations

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
