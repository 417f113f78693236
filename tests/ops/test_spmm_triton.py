"""The Triton kernels: on a GPU where there is one, else on the CPU through Triton's interpreter."""

from __future__ import annotations

import itertools

import pytest
import torch

from knockgraph import ops
from knockgraph.ops.split_sum import split_sum

pytest.importorskip("triton", reason="Triton is not installed")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REDUCTIONS = ("sum", "mean", "max", "min")
# There are two kernels, for sums and for extremes; the reductions that they share are in the full tier.
KERNELS = ("mean", "max", pytest.param("sum", marks=pytest.mark.full), pytest.param("min", marks=pytest.mark.full))


@pytest.mark.parametrize("reduce", KERNELS)
def test_float64(case, reduce, check_spmm):
    check_spmm(case, "triton", torch.float64, reduce, device=DEVICE)


NAMES = ("stacked", "weighted")
SMALLER = (torch.float32, torch.bfloat16, torch.float16)
# Every two of case, reduction and type meet in the fast tier, all three in the full one.
CROSSED = [
    pytest.param(NAMES[n], REDUCTIONS[r], SMALLER[t], marks=pytest.mark.full if (n + r + t) % 2 else ())
    for n, r, t in itertools.product(range(2), range(4), range(3))
]


@pytest.mark.parametrize(("name", "reduce", "dtype"), CROSSED)
def test_smaller_types(name, reduce, dtype, check_spmm, cases):
    check_spmm(cases[name], "triton", dtype, reduce, device=DEVICE)


@pytest.mark.parametrize(("mask_in", "mask_out"), [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("reduce", KERNELS)
def test_each_side_can_be_masked_alone(reduce, mask_in, mask_out, check_spmm, cases):
    check_spmm(cases["stacked"], "triton", torch.float64, reduce, device=DEVICE, mask_in=mask_in, mask_out=mask_out)


@pytest.mark.parametrize("as_numbers", [False, True])
def test_scaled_in_place(as_numbers):
    from knockgraph.ops.triton.spmm import scale_rows

    keep = torch.tensor([[True, False, True], [False, True, True]], device=DEVICE)
    x = torch.randn(4, 3, 20, generator=torch.Generator().manual_seed(0)).to(DEVICE)  # two relations share the mask
    x[~keep.repeat(2, 1)] = float("nan")
    scale = 0.5 * keep if as_numbers else keep
    expected = scale_rows(x, scale)
    assert (expected[~keep.repeat(2, 1)] == 0).all()
    assert torch.equal(expected[keep.repeat(2, 1)], x[keep.repeat(2, 1)] * (0.5 if as_numbers else 1))
    assert scale_rows(x, scale, out=x) is x
    assert torch.equal(x, expected)


@pytest.mark.parametrize("reduce", KERNELS)
def test_keep_as_numbers(reduce, check_spmm, cases):
    check_spmm(cases["stacked"], "triton", torch.float32, reduce, device=DEVICE, as_factors=True)


@pytest.mark.parametrize("reduce", KERNELS)
def test_rows_longer_than_a_tile(reduce, check_spmm, dense_case):
    check_spmm(dense_case, "triton", torch.float64, reduce, device=DEVICE)


def test_offsets_beyond_32_bits_use_the_wide_form(check_spmm, cases, monkeypatch):
    monkeypatch.setattr("knockgraph.ops.triton.spmm._INT32_MAX", 0)
    check_spmm(cases["stacked"], "triton", torch.float64, "sum", device=DEVICE)


@pytest.mark.parametrize("reduce", KERNELS)
def test_values_of_deleted_genes_reach_nobody(reduce, cases):
    case = cases["stacked"]
    keep = case.keep_in.to(DEVICE)
    x = case.features().to(DEVICE)
    options = {"scale_in": keep, "scale_out": keep, "reduce": reduce, "backend": "triton"}
    clean = ops.spmm(case.operator(DEVICE), x, **options)
    x[~keep] = float("nan")
    assert torch.equal(clean, ops.spmm(case.operator(DEVICE), x, **options))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_go_to_the_first_source(reduce):
    operator = ops.SparseOperator.from_edge_index(torch.tensor([[3, 1, 2], [0, 0, 0]]), 4).to(DEVICE)
    x = torch.ones(4, 1, 1, device=DEVICE, requires_grad=True)
    ops.spmm(operator, x, reduce=reduce, backend="triton").sum().backward()
    assert x.grad.flatten().tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("reduce", KERNELS)
def test_equal_bits_twice(reduce, cases):
    case = cases["stacked"]
    keep = case.keep_in.to(DEVICE)
    results = []
    for _ in range(2):
        x = case.features(torch.float32).to(DEVICE).requires_grad_()
        y = ops.spmm(case.operator(DEVICE), x, scale_in=keep, scale_out=keep, reduce=reduce, backend="triton")
        y.backward(case.gradient(torch.float32).to(DEVICE))
        results.append((y.detach(), x.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("backend", ["triton", "cusparse", "torch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.gpu
def test_cuda_backends(backend, dtype, check_spmm, cases):
    for name, case in cases.items():
        for reduce in ("sum", "mean") if backend == "cusparse" else REDUCTIONS:
            if dtype == torch.float64 or name in ("stacked", "weighted", "odd-channels"):
                check_spmm(case, backend, dtype, reduce, device="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_no_host_sync(reduce, cases):
    case = cases["stacked"]
    operator, keep = case.operator("cuda"), case.keep_in.cuda()
    x = case.features(torch.float32).cuda().requires_grad_()
    grad = case.gradient(torch.float32).cuda()

    def step():
        y = ops.spmm(operator, x, scale_in=keep, scale_out=keep, reduce=reduce)
        y.backward(grad)

    step()  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["triton", "cusparse"])
def test_autocast_and_compile_on_cuda(backend, cases, relative):
    case = cases["stacked"]
    operator, keep = case.operator("cuda"), case.keep_in.cuda()

    def layer(x):
        return ops.spmm(operator, x, scale_in=keep, scale_out=keep, backend=backend)

    compiled = torch.compile(layer, fullgraph=True)
    x = case.features(torch.float32).cuda().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        eager, y = layer(x), compiled(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(eager, y)
    assert relative(y, case.reference(case.features(), "sum", case.keep_in, case.keep_out)) <= 8e-3
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("dense", [[0], [0, 3, 4], [0, 1, 2, 3, 4, 5]])
def test_crowded_relations_beside_sparse_ones(dense, cases, relative):
    case = cases["stacked"]
    operator = case.operator(DEVICE)
    split = operator.split(dense, torch.float64)
    assert len(split.sparse.order) == (6 - len(dense)) * case.num_destinations
    keep = case.keep_in.to(DEVICE)
    x, copy = (case.features().to(DEVICE).requires_grad_() for _ in range(2))
    y = split_sum(split, x, keep, keep, "triton").view(6, case.num_destinations, case.batch, -1)
    expected = ops.spmm(operator, copy, scale_in=keep, scale_out=keep, backend="torch")
    assert relative(y, expected) <= 1e-12
    y.backward(case.gradient().to(DEVICE))
    expected.backward(case.gradient().to(DEVICE))
    assert relative(x.grad, copy.grad) <= 1e-12


@pytest.mark.gpu
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_crowded_relations_on_a_gpu(reduce, relative):
    """Two dense relations among three, against the same sums in float64."""
    genes, batch, channels = 3001, 5, 64
    generator = torch.Generator().manual_seed(0)
    edges = [
        (torch.rand(genes, genes, generator=generator) < p).nonzero().t().contiguous() for p in (0.03, 0.002, 0.02)
    ]
    operator = ops.SparseOperator.stack(edges, genes).to("cuda")
    keep = (torch.rand(genes, batch, generator=generator) > 0.01).cuda()
    x = torch.randn(genes, batch, channels, generator=generator).bfloat16().cuda().requires_grad_()
    grad = torch.randn(3, genes, batch, channels, generator=generator).bfloat16().cuda()
    y = ops.spmm(operator, x, scale_in=keep, scale_out=keep, reduce=reduce)
    assert [matrix.shape[0] for matrix in operator.split_for(x).matrices] == [genes, genes]
    y.backward(grad)
    exact = x.detach().double().requires_grad_()
    expected = ops.spmm(operator, exact, scale_in=keep, scale_out=keep, reduce=reduce)
    expected.backward(grad.double())
    assert relative(y, expected) <= 8e-3
    assert relative(x.grad, exact.grad) <= 1.6e-2
    assert (y[:, ~keep] == 0).all()
    assert (x.grad[~keep] == 0).all()

    graph = torch.cuda.CUDAGraph()  # recorded, it is the same
    leaf = x.detach().requires_grad_()  # x itself belongs to the stream of the first pass
    with torch.cuda.graph(graph):
        again = ops.spmm(operator, leaf, scale_in=keep, scale_out=keep, reduce=reduce)
        (found,) = torch.autograd.grad(again, leaf, grad)
    again.detach().zero_()
    found.zero_()
    graph.replay()
    assert torch.equal(again, y)
    assert torch.equal(found, x.grad)
