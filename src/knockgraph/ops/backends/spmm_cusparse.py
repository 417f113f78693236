"""Sparse sums on an NVIDIA GPU by cuSPARSE, for installations without Triton."""

from __future__ import annotations

import torch
from torch import Tensor

from knockgraph.ops.backends.spmm_cpu import _silence_beta_warning
from knockgraph.ops.backends.spmm_torch import scaled
from knockgraph.ops.operator import CsrTable


def csr_sum(table: CsrTable, x: Tensor, scale_in: Tensor | None, scale_out: Tensor | None) -> Tensor:
    """``scale_out ⊙ A(scale_in ⊙ x)`` as one product with all samples side by side."""
    _silence_beta_warning()
    rows = table.ptr.numel() - 1
    weight = (
        torch.ones(table.indices.numel(), dtype=x.dtype, device=x.device)
        if table.weight is None
        else table.weight.to(x.dtype)
    )
    matrix = torch.sparse_csr_tensor(table.ptr, table.indices, weight, (rows, x.shape[0]))
    # The operands have their precision already: autocast would cast float32 down behind the caller's back.
    with torch.autocast(x.device.type, enabled=False):
        y: Tensor = matrix @ scaled(x, scale_in).flatten(1)
    return scaled(y.view(rows, *x.shape[1:]), scale_out)
