"""Graphs, batches and comparisons that the tests of the operators share."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

# Triton decides when a kernel is defined whether it is compiled or interpreted, so this must come before its import.
if importlib.util.find_spec("triton") is not None and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from knockgraph import ops
from knockgraph.ops import reference


@dataclass
class Case:
    """One or more relations on one set of nodes, and one batch of deletions."""

    edges: list[Tensor]
    weights: list[Tensor | None]
    num_sources: int
    num_destinations: int
    keep_in: Tensor
    keep_out: Tensor
    channels: int

    @property
    def batch(self) -> int:
        return self.keep_in.shape[1]

    def operator(self, device: str = "cpu") -> ops.SparseOperator:
        """Stacked, with one relation too."""
        return ops.SparseOperator.stack(self.edges, self.num_sources, self.num_destinations, self.weights).to(device)

    def features(self, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (self.num_sources, self.batch, self.channels)
        # Few distinct values, exact in every type, so that max and min have ties.
        return (torch.randint(-8, 9, shape, generator=generator) / 8 + 1 / 16).to(dtype)

    def gradient(self, dtype: torch.dtype = torch.float64, seed: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        shape = (len(self.edges), self.num_destinations, self.batch, self.channels)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    def reference(self, x: Tensor, reduce: str, keep_in: Tensor | None, keep_out: Tensor | None) -> Tensor:
        results = [
            reference.aggregate(
                edges,
                x,
                self.num_destinations,
                weight=None if weight is None else weight.to(x.dtype),
                keep_in=keep_in,
                keep_out=keep_out,
                reduce=reduce,
            )
            for edges, weight in zip(self.edges, self.weights, strict=True)
        ]
        return torch.stack(results)


def random_edges(num_sources: int, num_destinations: int, density: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    present = torch.rand(num_sources, num_destinations, generator=generator) < density
    edges = present.nonzero().t()
    return edges[:, torch.randperm(edges.shape[1], generator=generator)].contiguous()


def random_keep(num_genes: int, batch: int, seed: int, deleted: float = 0.25) -> Tensor:
    return torch.rand(num_genes, batch, generator=torch.Generator().manual_seed(seed)) >= deleted


def square(edges: list[Tensor], n: int, batch: int, channels: int, weights: list[Tensor | None] | None = None) -> Case:
    keep = random_keep(n, batch, seed=7)
    if batch:
        keep[:, -1] = True  # the wild type
    return Case(edges, weights or [None] * len(edges), n, n, keep, keep, channels)


def _cases() -> dict[str, Case]:
    empty = torch.zeros(2, 0, dtype=torch.int64)
    n = 13
    hub = torch.stack([torch.zeros(n, dtype=torch.int64), torch.arange(n)])
    directed = random_edges(n, n, 0.3, seed=3)
    one_way = random_edges(n, n, 0.2, seed=4)
    symmetric = torch.cat([one_way, one_way.flip(0)], dim=1).unique(dim=1)
    loops = torch.arange(n).repeat(2, 1)
    weight = torch.randn(directed.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    weight[0] = 0.0
    cases = {
        "random": square([directed], n, 4, 3),
        "symmetric": square([symmetric], n, 4, 5),
        "weighted": square([directed], n, 4, 3, [weight]),
        "stacked": square([directed, symmetric, empty, loops, hub, hub.flip(0)], n, 5, 4),
        "stacked-weighted": square([directed, symmetric], n, 3, 2, [weight, None]),
        "stacked-symmetric": square([symmetric, loops], n, 3, 2),
        "empty-relation": square([empty], n, 3, 2),
        "self-loops": square([loops], n, 3, 2),
        "hub": square([torch.cat([hub, hub.flip(0)], dim=1).unique(dim=1)], n, 3, 2),
        "isolated": square([directed[:, (directed < n // 2).all(0)]], n, 3, 2),
        "one-gene": square([torch.zeros(2, 1, dtype=torch.int64)], 1, 3, 2),
        "batch-1": square([directed], n, 1, 3),
        "one-channel": square([directed], n, 4, 1),
        "odd-channels": square([directed], n, 2, 67),
        "wide-channels": square([random_edges(5, 5, 0.5, seed=8)], 5, 2, 515),
        "no-samples": square([directed, symmetric], n, 0, 3),
        "no-channels": square([directed], n, 2, 0),
    }
    gone = square([directed], n, 3, 2)
    gone.keep_in = gone.keep_out = torch.zeros(n, 3, dtype=torch.bool)
    cases["all-deleted"] = gone
    rectangular = [random_edges(n, 6, 0.4, seed=9), random_edges(n, 6, 0.2, seed=10)]
    cases["rectangular"] = Case(rectangular, [None, None], n, 6, random_keep(n, 4, 11), random_keep(6, 4, 12), 3)
    return cases


CASES = _cases()


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return CASES


@pytest.fixture(scope="session")
def dense_case() -> Case:
    """Rows of 140 neighbours: several rounds of every kernel's loop."""
    edges = random_edges(150, 2, 0.95, seed=13)
    edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    return square([edges], 150, 2, 2)


@pytest.fixture(name="relative", scope="session")
def relative_fixture():
    return relative


def relative(actual: Tensor, expected: Tensor) -> float:
    """Norm-wise error; everything in float64."""
    assert actual.shape == expected.shape
    actual, expected = actual.detach().cpu().double(), expected.detach().cpu().double()
    assert torch.isfinite(actual).all()
    return float((actual - expected).norm() / expected.norm().clamp(min=1e-300)) if actual.numel() else 0.0


TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture
def check_spmm():
    """The comparison every backend goes through: forward and gradient against filtered edges in float64."""

    def check(
        case: Case,
        backend: str,
        dtype: torch.dtype,
        reduce: str,
        *,
        device: str = "cpu",
        mask_in: bool = True,
        mask_out: bool = True,
        as_factors: bool = False,
    ) -> None:
        keep_in = case.keep_in if mask_in else None
        keep_out = case.keep_out if mask_out else None
        grad = case.gradient(dtype)
        exact = case.features(dtype).double().requires_grad_()
        expected = case.reference(exact, reduce, keep_in, keep_out)
        expected.backward(grad.double())

        def on_device(keep: Tensor | None) -> Tensor | None:
            return None if keep is None else (keep.float() if as_factors else keep).to(device)

        x = case.features(dtype).to(device).requires_grad_()
        before = x.detach().clone()
        y = ops.spmm(
            case.operator(device),
            x,
            scale_in=on_device(keep_in),
            scale_out=on_device(keep_out),
            reduce=reduce,
            backend=backend,
        )
        assert y.dtype == dtype
        assert y.is_contiguous()
        y.backward(grad.to(device))
        assert relative(y, expected) <= TOLERANCE[dtype]
        # The gradient passes through rounding twice where factors scale it before the sum.
        assert relative(x.grad, exact.grad) <= TOLERANCE[dtype] * (2 if reduce == "mean" else 1)
        if keep_out is not None:
            assert (y.detach().cpu()[:, ~keep_out] == 0).all()
        if keep_in is not None:
            assert (x.grad.cpu()[~keep_in] == 0).all()
        assert torch.equal(x.detach(), before)

    return check


@pytest.fixture
def check_shared():
    """The shared-input product against filtered edges in float64, forward and gradient."""

    def check(
        case: Case,
        backend: str,
        dtype: torch.dtype,
        *,
        device: str = "cpu",
        mask_in: bool = True,
        scale: str = "keep",
    ) -> None:
        genes, samples = (~case.keep_in).nonzero(as_tuple=True)
        order = torch.randperm(genes.numel(), generator=torch.Generator().manual_seed(3))
        repeated = torch.cat([order, order[:2]])  # a gene listed twice is deleted once
        genes, samples = genes[repeated], samples[repeated]
        factor = torch.rand(case.keep_out.shape, generator=torch.Generator().manual_seed(4)) * case.keep_out
        scale_out = {"keep": case.keep_out, "factors": factor, "none": None}[scale]
        grad = case.gradient(dtype)
        exact = case.features(dtype)[:, :1].squeeze(1) if case.batch else torch.ones(case.num_sources, case.channels)
        exact = exact.double().requires_grad_()
        wide = exact.unsqueeze(1).expand(-1, case.batch, -1)
        expected = case.reference(wide, "sum", case.keep_in if mask_in else None, None)
        if scale_out is not None:
            expected = expected * scale_out.unsqueeze(-1)
        expected.backward(grad.double())
        x = exact.detach().to(dtype).to(device).requires_grad_()
        y = ops.spmm_shared(
            case.operator(device),
            x,
            genes.to(device),
            samples.to(device),
            case.batch,
            scale_out=None if scale_out is None else scale_out.to(device),
            mask_in=mask_in,
            backend=backend,
        )
        assert y.dtype == dtype
        y.backward(grad.to(device))
        difference = (y.detach().cpu().double() - expected).norm()
        # Differences of sums: rounding is relative to what was subtracted from.
        size = case.reference(wide, "sum", None, None).norm()
        assert difference <= TOLERANCE[dtype] * size
        assert (
            relative(x.grad, exact.grad) <= TOLERANCE[dtype]
            or (x.grad.cpu() - exact.grad).norm() <= TOLERANCE[dtype] * grad.double().norm()
        )
        if scale == "keep":
            assert (y.detach().cpu()[:, ~case.keep_out] == 0).all()

    return check
