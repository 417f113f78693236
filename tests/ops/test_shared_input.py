from __future__ import annotations

import importlib.util

import pytest
import torch

from knockgraph import ops
from knockgraph.errors import StrategyError

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.param(
    "triton",
    marks=pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
)


@pytest.mark.parametrize("backend", ["cpu", TRITON])
def test_float64(case, backend, check_shared):
    check_shared(case, backend, torch.float64, device=DEVICE if backend == "triton" else "cpu")


TYPES, NAMES = (torch.float32, torch.bfloat16, torch.float16), ("stacked", "weighted", "stacked-weighted")
# In the fast tier every type and every case once.
CROSSED = [
    pytest.param(NAMES[n], TYPES[t], marks=() if n == t else pytest.mark.full) for n in range(3) for t in range(3)
]


@pytest.mark.parametrize("backend", ["cpu", TRITON])
@pytest.mark.parametrize(("name", "dtype"), CROSSED)
def test_smaller_types(name, dtype, backend, check_shared, cases):
    check_shared(cases[name], backend, dtype, device=DEVICE if backend == "triton" else "cpu")


@pytest.mark.parametrize("backend", ["cpu", TRITON])
@pytest.mark.parametrize("mask_in", [True, False])
@pytest.mark.parametrize("scale", ["keep", "factors", "none"])
@pytest.mark.parametrize("name", ["stacked", "rectangular"])
def test_masks_and_factors(name, scale, mask_in, backend, check_shared, cases):
    device = DEVICE if backend == "triton" else "cpu"
    check_shared(cases[name], backend, torch.float64, mask_in=mask_in, scale=scale, device=device)


@pytest.mark.parametrize("backend", ["cpu", TRITON])
def test_rows_longer_than_a_tile(backend, check_shared, dense_case):
    check_shared(dense_case, backend, torch.float64, device=DEVICE if backend == "triton" else "cpu")


def _arguments(case, device="cpu"):
    genes, samples = (~case.keep_in).nonzero(as_tuple=True)
    return genes.to(device), samples.to(device), case.batch


def test_equals_the_general_product(cases, relative):
    case = cases["stacked"]
    x = case.features()[:, 0]
    shared = ops.spmm_shared(case.operator(), x, *_arguments(case), scale_out=case.keep_out)
    wide = x.unsqueeze(1).expand(-1, case.batch, -1)
    assert relative(shared, ops.spmm(case.operator(), wide, scale_in=case.keep_in, scale_out=case.keep_out)) <= 1e-12


@pytest.mark.parametrize("backend", ["cpu", TRITON])
def test_equal_bits_twice(backend, cases):
    case = cases["stacked"]
    device = DEVICE if backend == "triton" else "cpu"
    results = []
    for _ in range(2):
        x = case.features(torch.float32)[:, 0].to(device).requires_grad_()
        y = ops.spmm_shared(case.operator(device), x, *_arguments(case, device), backend=backend)
        y.backward(case.gradient(torch.float32).to(device))
        results.append((y.detach(), x.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_gradcheck_and_opcheck(cases):
    case = cases["stacked-weighted"]
    operator = case.operator()
    x = case.features()[:, 0].requires_grad_()

    def function(x):
        return ops.spmm_shared(operator, x, *_arguments(case), scale_out=case.keep_out)

    assert torch.autograd.gradcheck(function, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x,), fast_mode=True)
    tables = (*operator.by_destination[:4], *operator.by_source[:4])
    options = (*_arguments(case), case.keep_out, True, "cpu", None, None, None)
    torch.library.opcheck(torch.ops.knockgraph.shared_sum, (*tables, x, *options))
    grad = case.gradient().flatten(0, 1).requires_grad_()
    torch.library.opcheck(torch.ops.knockgraph.shared_sum_grad, (*tables, grad, *options))


def test_compiles_in_one_graph_under_autocast(cases):
    case = cases["stacked"]
    operator = case.operator()

    def layer(x, genes, samples, keep):
        return ops.spmm_shared(operator, x, genes, samples, keep.shape[1], scale_out=keep) * 2

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    x = case.features(torch.float32)[:, 0].contiguous().requires_grad_()
    for batch in (5, 3):
        keep = case.keep_in[:, :batch].contiguous()
        genes, samples = (~keep).nonzero(as_tuple=True)
        with torch.autocast("cpu", torch.bfloat16):
            y, eager = compiled(x, genes, samples, keep), layer(x, genes, samples, keep)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, eager)
        (grad,) = torch.autograd.grad(y.float().sum(), x)
        (expected,) = torch.autograd.grad(eager.float().sum(), x)
        assert torch.equal(grad, expected)


def test_refuses(cases):
    case = cases["random"]
    genes, samples, batch = _arguments(case)
    with pytest.raises(StrategyError, match="use spmm for a batch"):
        ops.spmm_shared(case.operator(), case.features(), genes, samples, batch)
    with pytest.raises(StrategyError, match="two lists of one length"):
        ops.spmm_shared(case.operator(), case.features()[:, 0], genes, samples[:-1], batch)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cusparse", "torch"])
def test_cuda_backends(backend, check_shared, cases):
    for case in cases.values():
        check_shared(case, backend, torch.float64, device="cuda")
    check_shared(cases["stacked"], backend, torch.float32, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cusparse"])
def test_no_host_sync(backend, cases):
    case = cases["stacked"]
    operator, keep = case.operator("cuda"), case.keep_in.cuda()
    x = case.features(torch.float32)[:, 0].cuda().requires_grad_()
    grad = case.gradient(torch.float32).cuda()
    arguments = _arguments(case, "cuda")

    def step():
        ops.spmm_shared(operator, x, *arguments, scale_out=keep, backend=backend).backward(grad)

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
