from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from knockgraph import ops
from knockgraph.errors import GraphError, StrategyError
from knockgraph.ops import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
)
BACKENDS = ("cpu", "torch", TRITON)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@dataclass
class Case:
    """Reactions that send to metabolites, and which of both are alive in each sample."""

    entries: Tensor
    keep_in: Tensor | None
    keep_out: Tensor | None
    num_sources: int = 9
    num_destinations: int = 6
    batch: int = 3
    channels: int = 4

    def operator(self, device: str = "cpu") -> ops.GatedOperator:
        return ops.GatedOperator(self.entries, self.num_sources, self.num_destinations).to(device)

    def operands(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
        """Gate, features and the gradient of the result."""
        generator = torch.Generator().manual_seed(1)
        inner = (self.batch, self.channels)
        shapes = [(self.entries.shape[1],), (self.num_sources, *inner), (self.num_destinations, *inner)]
        gate, x, grad = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
        return gate, x, grad

    def masks(self, device: str = "cpu") -> dict[str, Tensor | None]:
        masks = {"keep_in": self.keep_in, "keep_out": self.keep_out}
        return {name: None if keep is None else keep.to(device) for name, keep in masks.items()}


def _entries(num_sources: int, num_destinations: int, density: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    entries = (torch.rand(num_sources, num_destinations, generator=generator) < density).nonzero().t()
    return entries[:, torch.randperm(entries.shape[1], generator=generator)].contiguous()


def _keep(nodes: int, batch: int, seed: int) -> Tensor:
    return torch.rand(nodes, batch, generator=torch.Generator().manual_seed(seed)) >= 0.3


def _cases() -> dict[str, Case]:
    base = Case(_entries(9, 6, 0.4, seed=3), _keep(9, 3, 4), _keep(6, 3, 5))
    nobody = torch.zeros(9, 3, dtype=torch.bool)
    square = _entries(7, 7, 0.3, seed=6)
    symmetric = torch.cat([square, square.flip(0)], dim=1).unique(dim=1)
    shuffled = symmetric[:, torch.randperm(symmetric.shape[1], generator=torch.Generator().manual_seed(7))]
    return {
        "random": base,
        "way-back": replace(
            base,
            entries=base.entries.flip(0),
            keep_in=base.keep_out,
            keep_out=base.keep_in,
            num_sources=6,
            num_destinations=9,
        ),
        "symmetric": Case(shuffled, _keep(7, 3, 4), _keep(7, 3, 5), 7, 7),
        "self-loops": Case(torch.arange(5).flip(0).repeat(2, 1), _keep(5, 3, 4), None, 5, 5),
        "hub": replace(base, entries=torch.stack([torch.arange(9), torch.full((9,), 2)])),
        "no-entries": replace(base, entries=torch.zeros(2, 0, dtype=torch.int64)),
        "all-dead": replace(base, keep_in=nobody),
        "unmasked": replace(base, keep_in=None, keep_out=None),
        "receivers-only": replace(base, keep_in=None),
        "batch-0": replace(base, batch=0, keep_in=None, keep_out=None),
        "batch-1": replace(base, batch=1, keep_in=_keep(9, 1, 4), keep_out=None),
        "no-channels": replace(base, channels=0),
        "odd-channels": replace(base, channels=67),
        "long-rows": Case(_entries(40, 2, 0.95, seed=9), _keep(40, 3, 4), None, 40, 2),
    }


CASES = _cases()


def run(case: Case, dtype: torch.dtype, backend: str, device: str, operands=None) -> tuple[Tensor, Tensor, Tensor]:
    gate, x, grad = (one.to(device) for one in operands or case.operands(dtype))
    gate.requires_grad_()
    x.requires_grad_()
    y = ops.gated_spmm(case.operator(device), gate, x, **case.masks(device), backend=backend)
    y.backward(grad)
    return y.detach(), gate.grad, x.grad


def check(case: Case, dtype: torch.dtype, backend: str, device: str, relative) -> None:
    gate, x, grad = (one.double() for one in case.operands(dtype))
    gate.requires_grad_()
    x.requires_grad_()
    expected = reference.aggregate(case.entries, x, case.num_destinations, weight=gate, **case.masks())
    (expected + 0 * gate.sum() + 0 * x.sum()).backward(grad)
    y, grad_gate, grad_x = run(case, dtype, backend, device)
    assert y.dtype == grad_gate.dtype == grad_x.dtype == dtype
    assert relative(y, expected) <= TOLERANCE[dtype]
    assert relative(grad_gate, gate.grad) <= TOLERANCE[dtype]
    assert relative(grad_x, x.grad) <= TOLERANCE[dtype]
    if case.keep_out is not None:
        assert (y.cpu()[~case.keep_out] == 0).all()
    if case.keep_in is not None:
        assert (grad_x.cpu()[~case.keep_in] == 0).all()


def _device(backend: str) -> str:
    return DEVICE if backend == "triton" else "cpu"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_float64(name, backend, relative):
    check(CASES[name], torch.float64, backend, _device(backend), relative)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["random", "odd-channels"])
def test_smaller_types(name, backend, dtype, relative):
    check(CASES[name], dtype, backend, _device(backend), relative)


def test_many_blocks(monkeypatch, relative):
    monkeypatch.setattr("knockgraph.ops.gated._CPU_ELEMENTS", 40)
    for case in CASES.values():
        check(case, torch.float64, "cpu", "cpu", relative)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_dot(name, backend, relative):
    """A product sampled at the entries, against a loop over them; then its gradient."""
    case, device = CASES[name], _device(backend)
    upstream, x, y = case.operands()
    results = []
    for fast in (False, True):
        a, b = (one.to(device if fast else "cpu").requires_grad_() for one in (x.clone(), y.clone()))
        if fast:
            found = ops.gated_dot(case.operator(device), a, b, **case.masks(device), backend=backend)
        else:
            rows = []
            for source, destination in case.entries.t().tolist():
                both = torch.ones(case.batch, dtype=torch.bool)
                for keep, node in ((case.keep_in, source), (case.keep_out, destination)):
                    both = both if keep is None else both & keep[node]
                rows.append((a[source] * b[destination])[both].sum())
            found = torch.stack(rows) if rows else (a.sum() + b.sum()) * torch.zeros(0, dtype=a.dtype)
        found.backward(upstream.to(found.device))
        results.append([one.detach().cpu() for one in (found, a.grad, b.grad)])
    for actual, expected in zip(*results[::-1], strict=True):
        assert relative(actual, expected) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_of_dead_nodes_reach_nobody(backend):
    case = CASES["random"]
    clean = run(case, torch.float64, backend, _device(backend))
    gate, x, grad = case.operands()
    x[~case.keep_in] = float("nan")
    grad[~case.keep_out] = float("inf")
    dirty = run(case, torch.float64, backend, _device(backend), (gate, x, grad))
    assert all(torch.equal(a, b) for a, b in zip(clean, dirty, strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_bits_twice(backend):
    for name in ("random", "long-rows"):
        first, second = (run(CASES[name], torch.float32, backend, _device(backend)) for _ in range(2))
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", ["random", "symmetric", "unmasked"])
def test_gradcheck(name):
    case = CASES[name]
    operator = case.operator()
    operands = tuple(one.requires_grad_() for one in case.operands()[:2])

    def function(gate, x):
        return ops.gated_spmm(operator, gate, x, **case.masks())

    assert torch.autograd.gradcheck(function, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, operands, fast_mode=True)


def test_only_the_wanted_gradient_is_computed():
    case = CASES["random"]
    gate, x, grad = case.operands()
    for wanted in (gate, x):
        y = ops.gated_spmm(case.operator(), *(one.detach().requires_grad_(one is wanted) for one in (gate, x)))
        y.backward(grad)


@pytest.mark.parametrize("name", ["random", "way-back", "no-entries"])
def test_opcheck(name):
    case = CASES[name]
    operator = case.operator()
    a, b = operator.structure.by_destination, operator.structure.by_source
    tables = (a.ptr, a.indices, operator.entry_by_destination, a.order)
    tables = (*tables, b.ptr, b.indices, operator.entry_by_source, b.order)
    gate, x, grad = (one.requires_grad_() for one in case.operands(torch.float32))
    options = (case.keep_in, case.keep_out, "cpu")
    torch.library.opcheck(torch.ops.knockgraph.gated_sum, (*tables, gate, x, *options))
    torch.library.opcheck(torch.ops.knockgraph.gated_dot, (*tables, x, grad, *options))


def test_compiles_in_one_graph_for_any_batch(relative):
    case = CASES["random"]
    operator = case.operator()

    def layer(gate, x):
        keep_in, keep_out = (keep[:, : x.shape[1]] for keep in (case.keep_in, case.keep_out))
        return torch.relu(ops.gated_spmm(operator, gate.sigmoid(), x * 2, keep_in=keep_in, keep_out=keep_out))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (3, 2):
        gate, x, _ = case.operands()
        operands = (gate.requires_grad_(), x[:, :batch].clone().requires_grad_())
        eager, y = layer(*operands), compiled(*operands)
        assert torch.equal(y, eager)
        expected = torch.autograd.grad(eager.sum(), operands)
        for grad, one in zip(torch.autograd.grad(y.sum(), operands), expected, strict=True):
            assert relative(grad, one) <= 1e-12


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(compiled, relative):
    case = CASES["random"]
    operator = case.operator()

    def layer(gate, x):
        return ops.gated_spmm(operator, gate, x, **case.masks())

    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    gate, x, _ = (one.requires_grad_() for one in case.operands(torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        y = call(gate, x)
        assert call(*case.operands()[:2]).dtype == torch.float64
    assert y.dtype == torch.bfloat16
    exact_gate, exact_x, _ = case.operands()
    expected = reference.aggregate(case.entries, exact_x, case.num_destinations, weight=exact_gate, **case.masks())
    assert relative(y, expected) <= 8e-3
    y.float().sum().backward()
    assert gate.grad.dtype == x.grad.dtype == torch.float32


def test_operator_holds_tables_only():
    case = CASES["random"]
    operator = case.operator()
    assert operator.state_dict() == {}
    assert list(operator.parameters()) == []
    assert operator.num_entries == case.entries.shape[1]
    source, destination = case.entries
    assert torch.equal(source[operator.entry_by_destination].int(), operator.structure.by_destination.indices)
    assert torch.equal(destination[operator.entry_by_source].int(), operator.structure.by_source.indices)


def test_refuses():
    case = CASES["random"]
    gate, x, _ = case.operands()
    with pytest.raises(GraphError, match="repeated"):
        ops.GatedOperator(torch.zeros(2, 2, dtype=torch.int64), 3)
    for arguments, options, message in [
        ((gate[1:], x), {}, "gate must be floating point"),
        ((gate.long(), x), {}, "gate must be floating point"),
        ((gate, x[1:]), {}, "num_sources=9"),
        ((gate, x), {"keep_in": case.keep_in[1:]}, "scale of the sources"),
        ((gate, x), {"keep_out": case.keep_in}, "scale of the destinations"),
        ((gate, x), {"backend": "fast"}, "Unknown backend"),
    ]:
        with pytest.raises(StrategyError, match=message):
            ops.gated_spmm(case.operator(), *arguments, **options)
    with pytest.raises(StrategyError, match=r"y must be torch.float64 \[6, 3, 4\], not torch.float64 \[9, 3, 4\]"):
        ops.gated_dot(case.operator(), x, x)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cusparse", "torch"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_cuda_backends(backend, dtype, relative):
    for case in CASES.values():
        if backend == "cusparse" and dtype in (torch.bfloat16, torch.float16):
            continue  # it rounds the gates
        check(case, dtype, backend, "cuda", relative)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_cuda_gives_equal_bits_twice(backend):
    case = Case(_entries(700, 300, 0.02, seed=11), _keep(700, 9, 4), _keep(300, 9, 5), 700, 300, 9, 64)
    first, second = (run(case, torch.bfloat16, backend, "cuda") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
def test_no_host_sync():
    case = CASES["random"]
    operator, masks = case.operator("cuda"), case.masks("cuda")
    gate, x, grad = (one.cuda() for one in case.operands(torch.float32))
    gate.requires_grad_()
    x.requires_grad_()

    def step():
        ops.gated_spmm(operator, gate, x, **masks).backward(grad)

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
