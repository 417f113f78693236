from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from knockgraph import ops
from knockgraph.errors import StrategyError
from knockgraph.ops import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.param(
    "triton", marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
)
BACKENDS = ("cpu", "torch", TRITON)
# Half types: the gradient subtracts means that are taken from the rounded result, and Triton's interpreter truncates.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 4e-3}


@dataclass
class Case:
    """One relation, one batch of deletions, and the sizes of the states."""

    edges: Tensor
    keep_in: Tensor | None
    keep_out: Tensor | None
    num_sources: int = 11
    num_destinations: int = 11
    batch: int = 3
    heads: int = 2
    channels: int = 4
    slope: float = 0.2

    def operator(self, device: str = "cpu") -> ops.SparseOperator:
        return ops.SparseOperator.from_edge_index(self.edges, self.num_sources, self.num_destinations).to(device)

    def states(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Source, target, attention and the gradient of the result."""
        generator = torch.Generator().manual_seed(1)
        inner = (self.batch, self.heads, self.channels)
        shapes = [
            (self.num_sources, *inner),
            (self.num_destinations, *inner),
            inner[1:],
            (self.num_destinations, *inner),
        ]
        source, target, attention, grad = (
            torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
        )
        return source, target, attention, grad

    def masks(self, device: str = "cpu") -> dict[str, Tensor | None]:
        masks = {"keep_in": self.keep_in, "keep_out": self.keep_out}
        return {name: None if keep is None else keep.to(device) for name, keep in masks.items()}


def _edges(num_sources: int, num_destinations: int, density: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    edges = (torch.rand(num_sources, num_destinations, generator=generator) < density).nonzero().t()
    return edges[:, torch.randperm(edges.shape[1], generator=generator)].contiguous()


def _keep(num_genes: int, batch: int, seed: int = 7) -> Tensor:
    keep = torch.rand(num_genes, batch, generator=torch.Generator().manual_seed(seed)) >= 0.3
    keep[:, batch - 1 :] = True  # the wild type
    return keep


def _cases() -> dict[str, Case]:
    n = 11
    directed = _edges(n, n, 0.3, seed=3)
    hub = torch.stack([torch.zeros(n, dtype=torch.int64), torch.arange(n)])
    keep = _keep(n, 3)
    base = Case(directed, keep, keep)
    nobody = torch.zeros(n, 3, dtype=torch.bool)
    neighbours_gone = keep.clone()
    neighbours_gone[directed[0, directed[1] == directed[1, 0]], 0] = False
    return {
        "random": base,
        "symmetric": replace(base, edges=torch.cat([directed, directed.flip(0)], dim=1).unique(dim=1)),
        "no-edges": replace(base, edges=torch.zeros(2, 0, dtype=torch.int64)),
        "isolated": replace(base, edges=directed[:, (directed < n // 2).all(0)]),
        "hub": replace(base, edges=torch.cat([hub, hub.flip(0)], dim=1).unique(dim=1)),
        "self-loops": replace(base, edges=torch.arange(n).repeat(2, 1)),
        "neighbours-gone": replace(base, keep_in=neighbours_gone, keep_out=None),
        "all-deleted": replace(base, keep_in=nobody, keep_out=nobody),
        "nobody-sends": replace(base, keep_in=nobody, keep_out=None),
        "nobody-receives": replace(base, keep_in=None, keep_out=nobody),
        "incoming-only": replace(base, keep_in=None),
        "outgoing-only": replace(base, keep_out=None),
        "wild-type": replace(base, keep_in=None, keep_out=None),
        "batch-0": replace(base, batch=0, keep_in=_keep(n, 1)[:, :0], keep_out=None),
        "batch-1": replace(base, batch=1, keep_in=_keep(n, 2)[:, :1].contiguous(), keep_out=None),
        "batch-5": replace(base, batch=5, keep_in=_keep(n, 5), keep_out=_keep(n, 5, seed=8)),
        "one-head": replace(base, heads=1, slope=0.0),
        "three-heads": replace(base, heads=3, channels=5),
        "one-channel": replace(base, heads=3, channels=1),
        "no-channels": replace(base, channels=0),
        "wide-channels": replace(base, heads=1, channels=67),
        "very-wide-channels": Case(_edges(4, 4, 0.6, seed=12), _keep(4, 3), _keep(4, 3), 4, 4, channels=300),
        "long-rows": Case(_edges(40, 2, 0.95, seed=9), _keep(40, 2), _keep(2, 2), 40, 2, batch=2, heads=1),
        "rectangular": Case(_edges(11, 6, 0.4, seed=10), _keep(11, 3), _keep(6, 3, seed=8), 11, 6),
    }


CASES = _cases()


def run(case: Case, dtype: torch.dtype, backend: str, device: str, states=None) -> tuple[Tensor, list[Tensor]]:
    source, target, attention, grad = (x.to(device) for x in states or case.states(dtype))
    inputs = [x.requires_grad_() for x in (source, target, attention)]
    y = ops.attend(case.operator(device), *inputs, slope=case.slope, **case.masks(device), backend=backend)
    y.backward(grad)
    return y, [x.grad for x in inputs]


def check(case: Case, dtype: torch.dtype, backend: str, device: str, relative) -> None:
    states = case.states(dtype)
    exact = [x.double().requires_grad_() for x in states[:3]]
    expected = reference.attend(case.edges, *exact, slope=case.slope, **case.masks())
    expected.backward(states[3].double())
    y, grads = run(case, dtype, backend, device)
    assert y.dtype == dtype
    assert y.is_contiguous()
    assert relative(y, expected) <= TOLERANCE[dtype]
    for grad, one in zip(grads, exact, strict=True):
        assert grad.dtype == dtype
        # A gradient may vanish although its terms do not, so errors are measured against the incoming one.
        assert (grad.cpu().double() - one.grad).norm() <= TOLERANCE[dtype] * (one.grad.norm() + 0.1 * states[3].norm())
        assert grad.isfinite().all()
    if case.keep_out is not None:
        assert (y.detach().cpu()[~case.keep_out] == 0).all()
        assert (grads[1].cpu()[~case.keep_out] == 0).all()
    if case.keep_in is not None:
        assert (grads[0].cpu()[~case.keep_in] == 0).all()


def _device(backend: str) -> str:
    return DEVICE if backend == "triton" else "cpu"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_float64(name, backend, relative):
    check(CASES[name], torch.float64, backend, _device(backend), relative)


TYPES, NAMES = (torch.float32, torch.bfloat16, torch.float16), ("random", "three-heads", "long-rows")
# In the fast tier every type and every case once.
CROSSED = [
    pytest.param(NAMES[n], TYPES[t], marks=() if n == t else pytest.mark.full) for n in range(3) for t in range(3)
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("name", "dtype"), CROSSED)
def test_smaller_types(name, backend, dtype, relative):
    check(CASES[name], dtype, backend, _device(backend), relative)


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.full)])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["random", "three-heads", "long-rows", "rectangular", "batch-5", "batch-1", "no-edges", "nobody-sends"]
)
def test_states_that_all_samples_share(name, backend, dtype, relative):
    """The same as copies for every sample, whose gradients are added up."""
    case, device = CASES[name], _device(backend)
    source, target, attention, grad = (x.to(device) for x in case.states(dtype))
    shared = [source[:, 0], target[:, 0], attention]
    exact = [x.double().clone().requires_grad_() for x in shared]
    wide = [x.unsqueeze(1).expand(-1, case.batch, -1, -1) for x in exact[:2]]
    masks = case.masks(device)
    expected = reference.attend(case.edges.to(device), *wide, exact[2], slope=case.slope, **masks)
    expected.backward(grad.double())
    inputs = [x.detach().clone().requires_grad_() for x in shared]
    y = ops.attend(case.operator(device), *inputs, slope=case.slope, **masks, backend=backend)
    assert y.dtype == dtype
    y.backward(grad)
    assert relative(y, expected) <= TOLERANCE[dtype]
    for one, want in zip(inputs, exact, strict=True):
        size = want.grad.norm() + 0.1 * grad.double().norm()
        assert (one.grad.double() - want.grad).norm() <= TOLERANCE[dtype] * size
    if case.keep_out is not None:
        assert (y.detach().cpu()[~case.keep_out] == 0).all()


def test_many_blocks(monkeypatch, relative):
    monkeypatch.setattr("knockgraph.ops.attention._CPU_COLUMNS", 1)
    monkeypatch.setattr("knockgraph.ops.attention._CPU_ENTRIES", 4)
    for case in CASES.values():
        check(case, torch.float64, "cpu", "cpu", relative)


def test_offsets_beyond_32_bits_use_the_wide_form(monkeypatch, relative):
    triton = pytest.importorskip("knockgraph.ops.triton.attention", exc_type=ImportError)
    monkeypatch.setattr(triton, "_INT32_MAX", 0)
    check(CASES["three-heads"], torch.float64, "triton", DEVICE, relative)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_neighbour_gives_exact_zero(backend):
    for name in ("no-edges", "all-deleted", "nobody-sends", "nobody-receives"):
        y, grads = run(CASES[name], torch.float32, backend, _device(backend))
        assert all((x == 0).all() for x in (y, *grads))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_neighbour_is_copied(backend):
    case = replace(CASES["self-loops"], keep_in=None, keep_out=None)
    y, _ = run(case, torch.float64, backend, _device(backend))
    torch.testing.assert_close(y.detach().cpu(), case.states()[0], rtol=1e-14, atol=0.0)


@pytest.mark.parametrize(
    ("scale", "dtype"),
    [
        (1e4, torch.float32),
        (-1e4, torch.float64),
        pytest.param(1e4, torch.float64, marks=pytest.mark.full),
        pytest.param(-1e4, torch.float32, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_logits(backend, scale, dtype):
    for name in ("random", "long-rows"):
        case = CASES[name]
        source, target, attention, grad = case.states(dtype)
        states = (source, target, attention * scale, grad)
        y, grads = run(case, dtype, backend, _device(backend), states)
        assert all(x.isfinite().all() for x in (y, *grads))
        # All logits of a row can be shifted together: a softmax of differences.
        exact = [x.double() for x in states[:3]]
        expected = reference.attend(case.edges, *exact, **case.masks())
        torch.testing.assert_close(y.detach().cpu().double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["random", "batch-5", "nobody-sends", "nobody-receives"])
def test_states_of_deleted_genes_reach_nobody(name, backend):
    case = CASES[name]
    clean = run(case, torch.float64, backend, _device(backend))
    source, target, attention, grad = case.states()
    if case.keep_in is not None:
        source[~case.keep_in] = float("nan")
    if case.keep_out is not None:
        target[~case.keep_out] = float("inf")
        grad[~case.keep_out] = float("nan")
    dirty = run(case, torch.float64, backend, _device(backend), (source, target, attention, grad))
    assert torch.equal(clean[0], dirty[0])
    assert all(torch.equal(a, b) for a, b in zip(clean[1], dirty[1], strict=True))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kept_nan_shows(backend):
    case = CASES["self-loops"]
    source, *others = case.states()
    source[0, 2] = float("nan")  # the wild type keeps every gene
    operator = case.operator(_device(backend))
    y = ops.attend(operator, *(x.to(_device(backend)) for x in (source, *others[:2])), backend=backend)
    assert y[0, 2].isnan().all()
    assert y[1:].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_bits_twice(backend):
    for name in ("random", "long-rows"):
        first, second = (run(CASES[name], torch.float32, backend, _device(backend)) for _ in range(2))
        assert torch.equal(first[0], second[0])
        assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.parametrize("name", ["random", "three-heads", "rectangular", "neighbours-gone"])
def test_gradcheck(name):
    case = CASES[name]
    operator = case.operator()
    inputs = tuple(x.requires_grad_() for x in case.states()[:3])
    assert torch.autograd.gradcheck(lambda *x: ops.attend(operator, *x, **case.masks()), inputs, fast_mode=True)


@pytest.mark.parametrize("name", ["random", "rectangular", "no-edges"])
def test_opcheck(name):
    case = CASES[name]
    operator = case.operator()
    a, b = operator.by_destination, operator.by_source
    tables = (a.ptr, a.indices, a.order, b.ptr, b.indices, b.order)
    *states, grad = case.states(torch.float32)
    arguments = (*tables, *(x.requires_grad_() for x in states), case.keep_in, case.keep_out, None, 0.2, "cpu")
    torch.library.opcheck(torch.ops.knockgraph.csr_attend, arguments)
    y, lse = (x.detach() for x in torch.ops.knockgraph.csr_attend(*arguments))
    arguments = (*tables, *(x.detach() for x in states), case.keep_in, y, lse, grad, 0.2, "cpu")
    torch.library.opcheck(torch.ops.knockgraph.csr_attend_grad, arguments)


def test_compiles_in_one_graph_for_any_batch(relative):
    case = CASES["batch-5"]
    operator = case.operator()

    def layer(source, target, attention, keep):
        return torch.relu(ops.attend(operator, source * 2, target, attention, keep_in=keep, keep_out=keep))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (5, 3, 4):
        source, target, attention, _ = case.states()
        inputs = (source[:, :batch].clone(), target[:, :batch].clone(), attention)
        inputs = tuple(x.requires_grad_() for x in inputs)
        keep = case.keep_in[:, :batch].contiguous()
        eager, y = layer(*inputs, keep), compiled(*inputs, keep)
        assert torch.equal(y, eager)
        expected = torch.autograd.grad(eager.sum(), inputs)
        for grad, one in zip(torch.autograd.grad(y.sum(), inputs), expected, strict=True):
            assert relative(grad, one) <= 1e-12


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast(compiled, relative):
    case = CASES["three-heads"]
    operator = case.operator()

    def layer(*states):
        return ops.attend(operator, *states, **case.masks())

    call = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    inputs = [x.requires_grad_() for x in case.states(torch.float32)[:3]]
    with torch.autocast("cpu", torch.bfloat16):
        y = call(*inputs)
        assert call(*case.states()[:3]).dtype == torch.float64
    assert y.dtype == torch.bfloat16
    assert relative(y, reference.attend(case.edges, *case.states()[:3], **case.masks())) <= TOLERANCE[torch.bfloat16]
    y.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in inputs)


def test_expanded_and_non_contiguous_states():
    case = CASES["random"]
    source, target, attention, _ = case.states()
    shared = source[:, :1].expand(-1, case.batch, -1, -1)
    turned = target.transpose(0, 1).contiguous().transpose(0, 1)
    expected = ops.attend(case.operator(), shared.contiguous(), target, attention, **case.masks())
    assert torch.equal(expected, ops.attend(case.operator(), shared, turned, attention, **case.masks()))
    numbers = {name: keep.float() for name, keep in case.masks().items()}
    assert torch.equal(expected, ops.attend(case.operator(), shared, turned, attention, **numbers))


def test_refuses():
    case = CASES["random"]
    source, target, attention, _ = case.states()
    stacked = ops.SparseOperator.stack([case.edges], case.num_sources)
    for arguments, options, message in [
        ((stacked, source, target, attention), {}, "one relation"),
        ((case.operator(), source[1:], target, attention), {}, "num_sources=11"),
        ((case.operator(), source.long(), target, attention), {}, "floating point"),
        ((case.operator(), source, target[1:], attention), {}, r"target must be \[11, 3, 2, 4\]"),
        ((case.operator(), source, target, attention[0]), {}, r"attention must be \[2, 4\]"),
        ((case.operator(), source, target.float(), attention), {}, "the same type"),
        ((case.operator(), source, target, attention), {"keep_in": case.keep_in[1:]}, "keep_in must be"),
        ((case.operator(), source, target, attention), {"keep_out": case.keep_in[:, 1:]}, "keep_out must be"),
        ((case.operator(), source, target, attention), {"backend": "fast"}, "Unknown backend"),
        ((case.operator(), source[:, 0], target[:, 0], attention), {}, "need keep_in or keep_out"),
        ((case.operator(), source[:, 0], target, attention), {"keep_in": case.keep_in}, "floating point"),
    ]:
        with pytest.raises(StrategyError, match=message):
            ops.attend(*arguments, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_cuda_backends(backend, dtype, relative):
    for case in CASES.values():
        check(case, dtype, backend, "cuda", relative)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_cuda_gives_equal_bits_twice(backend):
    case = Case(_edges(500, 500, 0.1, seed=11), _keep(500, 9), _keep(500, 9), 500, 500, 9, 4, 16)
    first, second = (run(case, torch.bfloat16, backend, "cuda") for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_no_host_sync(backend):
    case = CASES["three-heads"]
    operator, masks = case.operator("cuda"), case.masks("cuda")
    *inputs, grad = (x.cuda() for x in case.states(torch.float32))
    inputs = [x.requires_grad_() for x in inputs]

    def step():
        ops.attend(operator, *inputs, **masks, backend=backend).backward(grad)

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_autocast_and_compile_on_cuda(relative):
    case = CASES["three-heads"]
    operator, masks = case.operator("cuda"), case.masks("cuda")
    inputs = [x.cuda().requires_grad_() for x in case.states(torch.float32)[:3]]

    def layer(*states):
        return ops.attend(operator, *states, **masks)

    compiled = torch.compile(layer, fullgraph=True)
    with torch.autocast("cuda", torch.bfloat16):
        eager, y = layer(*inputs), compiled(*inputs)
    assert y.dtype == torch.bfloat16
    assert torch.equal(eager, y)
    expected = reference.attend(case.edges, *case.states()[:3], **case.masks())
    assert relative(y, expected) <= TOLERANCE[torch.bfloat16]
    y.float().sum().backward()
    assert all(x.grad.dtype == torch.float32 for x in inputs)
