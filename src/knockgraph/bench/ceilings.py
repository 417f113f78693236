"""The measured peak performance of a device, and the least work that a step of the hetero model needs."""

from __future__ import annotations

import time
from typing import Any

import torch

from knockgraph.graph import CellGraph


def ceilings(device: torch.device) -> dict[str, float]:
    """Bytes per second of a large copy (read plus written) and operations per second of a large matrix product.

    On CUDA the product is in bfloat16, on a CPU in float32. Random numbers: zeros can run faster than real data.
    """
    cuda = device.type == "cuda"
    size, side = (2**30, 8192) if cuda else (2**25, 1024)
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    kind = torch.bfloat16 if cuda else torch.float32
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    copy = _seconds(lambda: target.copy_(source), device)
    product = _seconds(lambda: a @ b, device)
    return {"copy_bytes_per_s": 2 * size / copy, "matmul_flops_per_s": 2 * side**3 / product}


def _seconds(work: Any, device: torch.device, repeats: int = 10) -> float:
    for _ in range(3):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def floor(
    graph: CellGraph, columns: int, channels: int, layers: int, limits: dict[str, float], hidden: int = 32
) -> dict[str, float]:
    r"""The minimum time of a step with the reference settings: operations and bytes divided by the measured peaks.

    With R relations, P = R(R+1)/2 pairs, M = genes × columns rows and H channels a layer's forward pass takes
    :math:`2 M H^2 \cdot 4R` operations for the MLPs, :math:`2 M \cdot 3 H K P` for the pairs, :math:`2 M H K (P + 1)`
    for the scorer; the backward pass twice as many. Every layer reads and writes its states and what it keeps for the
    backward pass at least once in each direction (2 bytes each). The first layer is counted as if it were for nothing:
    its rows hardly differ between samples.

    Args:
        graph: The cell graph.
        columns: Samples and the wild type.
        channels: H.
        layers: Number of layers.
        limits: Of :func:`ceilings`.
        hidden: K.
    """
    relations, rows = len(graph.relations), graph.num_genes * columns
    pairs = relations * (relations + 1) // 2
    full = max(layers - 1, 0)
    mlp = 2 * rows * channels**2 * 4 * relations
    mix = 2 * rows * channels * hidden * (3 * pairs + pairs + 1)
    flops = 3 * full * (mlp + mix)
    aggregated = relations * rows * channels
    # n, z (four of them) and y of the MLPs and t of the pairs: written once and read once, and so are their gradients.
    stored = full * 2 * (6 * aggregated + pairs * rows * hidden) * 2
    seconds = max(flops / limits["matmul_flops_per_s"], stored / limits["copy_bytes_per_s"])
    return {
        "flops": float(flops),
        "bytes": float(stored),
        "flops_ms": 1e3 * flops / limits["matmul_flops_per_s"],
        "bytes_ms": 1e3 * stored / limits["copy_bytes_per_s"],
        "floor_ms": 1e3 * seconds,
    }
