"""Rows of a first layer that differ: found, taken and spread again."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from knockgraph import ops
from knockgraph.ops.distinct_rows import DistinctRows, touched_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.param(
    "triton",
    marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
)
BACKENDS = ["cpu", TRITON]


def place(backend: str) -> str:
    return DEVICE if backend == "triton" else "cpu"


def batch_of(num_genes: int, deletions: list[list[int]], device: str) -> tuple[Tensor, Tensor, Tensor]:
    genes = torch.tensor([g for sample in deletions for g in sample], dtype=torch.long, device=device)
    samples = torch.tensor([b for b, sample in enumerate(deletions) for _ in sample], dtype=torch.long, device=device)
    keep = torch.ones(num_genes, len(deletions), dtype=torch.bool, device=device)
    keep[genes, samples] = False
    return keep, genes, samples


EDGES = [torch.tensor([[0, 1, 5, 5], [2, 3, 0, 4]]), torch.tensor([[2, 0, 3], [0, 1, 3]])]
DELETIONS = [[0], [], [5, 3], [0, 1, 2, 3, 4, 5], [4]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("send", [True, False])
def test_touched(backend: str, send: bool) -> None:
    keep, genes, samples = batch_of(6, DELETIONS, place(backend))
    operator = ops.SparseOperator.stack(EDGES, 6).to(place(backend))
    found = touched_rows(operator, keep, genes, samples, send=send, backend=backend)
    wanted = ~keep.cpu()
    for source, target in torch.cat(EDGES, 1).t().tolist() if send else []:
        wanted[target] |= ~keep.cpu()[source]
    assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_on_distinct_rows_equals_the_layer(backend: str) -> None:
    device = place(backend)
    generator = torch.Generator().manual_seed(0)
    edges = [torch.randint(0, 30, (2, 60), generator=generator).unique(dim=1) for _ in range(3)]
    deletions = [[], [3, 7, 7], [1], [], list(range(30)), [29, 0]]
    keep, genes, samples = batch_of(30, deletions, device)
    operator = ops.SparseOperator.stack(edges, 30).to(device)
    rows = DistinctRows(touched_rows(operator, keep, genes, samples, backend=backend), backend)
    x = torch.randn(30, 5, dtype=torch.float64, generator=generator).to(device)
    weight = torch.randn(30, 6, 5, dtype=torch.float64, generator=generator).to(device)

    def layer(x: Tensor, distinct: bool) -> Tensor:
        h = ops.spmm_shared(operator, x, genes, samples, len(deletions), scale_out=keep, backend=backend).flatten(1, 2)
        if not distinct:
            return (h**2).sum(0).view(30, 6, 5)
        taken = rows.take(h)
        count = taken.shape[1] if rows.count is None else int(rows.count)
        if rows.count is not None:
            assert count < taken.shape[1] == 180
            keeps = torch.arange(180, device=device) < rows.count
            taken = torch.where(keeps[:, None], taken, float("nan"))  # they may be anything
        return rows.spread((taken**2).sum(0))

    leaves = [x.clone().requires_grad_() for _ in range(2)]
    results = [layer(leaf, distinct) for leaf, distinct in zip(leaves, (False, True), strict=True)]
    assert torch.allclose(results[1], results[0], rtol=1e-12, atol=1e-12)
    for result in results:
        (result * weight).sum().backward()
    assert leaves[0].grad is not None
    assert leaves[1].grad is not None
    assert torch.allclose(leaves[1].grad, leaves[0].grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", BACKENDS)
def test_how_many(backend: str) -> None:
    touched = torch.tensor([[True, False, True], [False, False, False], [True, True, True]], device=place(backend))
    rows = DistinctRows(touched, backend)
    count = len(rows.rows) if rows.count is None else int(rows.count)
    assert rows.rows[:count].tolist() == [0, 1, 2, 3, 6, 7, 8]
    assert rows.slot.tolist() == [0, 1, 2, 3, 3, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("mean", "send", "backend"),
    [
        *((mean, send, "cpu") for mean in (True, False) for send in (True, False)),
        *(pytest.param(one, one, "triton", marks=TRITON.marks) for one in (True, False)),
        *(pytest.param(one, not one, "triton", marks=[*TRITON.marks, pytest.mark.full]) for one in (True, False)),
    ],
)
def test_only_the_rows_that_differ_are_summed(send: bool, mean: bool, backend: str) -> None:
    """The same as all rows of the shared product with the others left out, forward and gradient."""
    device = place(backend)
    generator = torch.Generator().manual_seed(0)
    edges = [torch.randint(0, 30, (2, 60), generator=generator).unique(dim=1) for _ in range(3)]
    keep, genes, samples = batch_of(30, [[], [3, 7, 7], [1], [], list(range(30)), [29, 0]], device)
    operator = ops.SparseOperator.stack(edges, 30).to(device)
    rows = DistinctRows(touched_rows(operator, keep, genes, samples, send=send, backend=backend), backend)
    count = len(rows.rows) if rows.count is None else int(rows.count)
    degree = torch.rand(3, 30, 6, dtype=torch.float64, generator=generator).to(device)
    scale = keep / degree if mean else keep
    how = {"scale_out": scale, "mask_in": send}
    made = []
    for function in (
        lambda x: rows.take(ops.spmm_shared(operator, x, genes, samples, 6, backend=backend, **how).flatten(1, 2)),
        lambda x: ops.spmm_shared_rows(operator, x, genes, samples, rows, **how),
    ):
        x = torch.randn(30, 70, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
        y = function(x.requires_grad_())
        grad = torch.full_like(y, float("nan"))  # beyond the count it may be anything
        grad[:, :count] = y[:, :count].detach().sin()
        y.backward(grad)
        made.append((y[:, :count], x.grad))
    torch.testing.assert_close(made[1], made[0], rtol=1e-12, atol=1e-12)
