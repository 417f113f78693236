"""Which implementation runs: chosen by device, or by name."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from knockgraph.errors import StrategyError

BACKENDS = ("auto", "torch", "cpu", "cusparse", "triton")
"""Accepted names. ``auto`` picks the fastest that the device and the installation allow."""

# Looked up, not imported: triton takes a second to import and is absent on many machines.
_HAS_TRITON = importlib.util.find_spec("triton") is not None


def resolve_backend(backend: str, device: torch.device, *, sums: bool = True) -> str:
    """The name of the implementation to run on ``device``.

    Args:
        backend: One of :data:`BACKENDS`.
        device: Where the operands live.
        sums: Whether the reduction is a sum; cuSPARSE knows no other.
    """
    if backend == "auto":
        if device.type == "cpu":
            return "cpu"
        if device.type == "cuda" and _HAS_TRITON:
            return "triton"
        return "cusparse" if device.type == "cuda" and sums else "torch"
    if backend not in BACKENDS:
        raise StrategyError(f"Unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}.")
    if backend == "triton" and not _HAS_TRITON:
        raise StrategyError("Backend 'triton' needs the package triton; install it or use backend='auto'.")
    interpreted = backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"
    needed = {"torch": device.type, "cpu": "cpu", "cusparse": "cuda", "triton": "cuda"}[backend]
    if device.type != needed and not interpreted:
        raise StrategyError(f"Backend {backend!r} does not run on {device.type}; use backend='auto'.")
    if backend == "cusparse" and not sums:
        raise StrategyError("Backend 'cusparse' only sums; use backend='auto' for max and min.")
    return backend


def fused(backend: str, x: Tensor, *widths: int) -> bool:
    """Whether a fused Triton kernel takes ``x``, or the plain formula does.

    Args:
        backend: ``auto``, ``triton`` or ``torch``.
        x: The operand.
        widths: Sizes of the matrix products' inner axes: the kernels know powers of two from 16 to 64.
    """
    if backend not in ("auto", "triton", "torch"):
        raise StrategyError(f"Unknown backend {backend!r} of a fused operation; choose auto, triton or torch.")
    fits = x.dtype != torch.float64 and all(w in (16, 32, 64) for w in widths)
    if backend == "triton" and not fits:
        raise StrategyError(
            f"The fused kernels take widths 16, 32 and 64 and no float64, not {list(widths)} and {x.dtype}; "
            "use backend='auto'."
        )
    return fits and backend != "torch" and resolve_backend(backend, x.device) == "triton"
