from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from knockgraph import ops
from knockgraph.errors import GraphError, StrategyError
from knockgraph.ops import operator as operator_module
from knockgraph.ops.backends.choice import resolve_backend
from knockgraph.ops.operator import CsrTable
from knockgraph.ops.split_sum import split_sum

REDUCTIONS = ("sum", "mean", "max", "min")
BACKENDS = ("cpu", "torch")


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_float64(case, backend, reduce, check_spmm):
    check_spmm(case, backend, torch.float64, reduce)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["stacked", "weighted"])
def test_smaller_types(name, backend, reduce, dtype, check_spmm, cases):
    check_spmm(cases[name], backend, dtype, reduce)


@pytest.mark.parametrize(("mask_in", "mask_out"), [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["stacked", "rectangular"])
def test_each_side_can_be_masked_alone(name, backend, reduce, mask_in, mask_out, check_spmm, cases):
    check_spmm(cases[name], backend, torch.float64, reduce, mask_in=mask_in, mask_out=mask_out)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_keep_as_numbers(backend, reduce, check_spmm, cases):
    check_spmm(cases["stacked"], backend, torch.float64, reduce, as_factors=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_factors_on_both_sides(backend, cases, relative):
    case = cases["stacked"]
    scale_in = torch.rand(case.keep_in.shape, dtype=torch.float64) * case.keep_in
    scale_out = torch.rand(len(case.edges), *case.keep_out.shape, dtype=torch.float64) * case.keep_out
    x, grad = case.features(), case.gradient()
    expected = scale_out.unsqueeze(-1) * case.reference(scale_in.unsqueeze(-1) * x, "sum", None, None)
    x.requires_grad_()
    y = ops.spmm(case.operator(), x, scale_in=scale_in, scale_out=scale_out, backend=backend)
    assert relative(y, expected) <= 1e-12
    y.backward(grad)
    copy = x.detach().clone().requires_grad_()
    scaled = scale_out.unsqueeze(-1) * case.reference(scale_in.unsqueeze(-1) * copy, "sum", None, None)
    scaled.backward(grad)
    assert relative(x.grad, copy.grad) <= 1e-12


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_column_blocks_and_panels(backend, cases, relative, monkeypatch):
    monkeypatch.setattr("knockgraph.ops.backends.spmm_cpu._BLOCK_COLUMNS", 8)
    monkeypatch.setattr("knockgraph.ops.backends.spmm_torch._MESSAGE_BYTES", 2000)
    case = cases["stacked"]
    for reduce in REDUCTIONS:
        x = case.features().requires_grad_()
        exact = case.features().requires_grad_()
        expected = case.reference(exact, reduce, case.keep_in, case.keep_out)
        y = ops.spmm(case.operator(), x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce, backend=backend)
        assert relative(y, expected) <= 1e-12
        y.backward(case.gradient())
        expected.backward(case.gradient())
        assert relative(x.grad, exact.grad) <= 1e-12


def test_without_panels_the_gradient_is_the_same(cases, relative):
    case = cases["stacked-weighted"]
    operator = case.operator()
    grads = []
    for _ in range(2):
        x = case.features().requires_grad_()
        ops.spmm(operator, x, scale_in=case.keep_in, scale_out=case.keep_out).backward(case.gradient())
        grads.append(x.grad)
        operator.panel_ptr = operator.panel_index = operator.panel_weight = None
    assert operator.by_source_in_panels.panels == 1
    assert relative(*grads) <= 1e-12


def test_one_relation_has_no_relation_axis(cases):
    case = cases["random"]
    operator = ops.SparseOperator.from_edge_index(case.edges[0], case.num_sources)
    y = ops.spmm(operator, case.features())
    assert y.shape == (case.num_destinations, case.batch, case.channels)
    assert torch.equal(y, ops.spmm(case.operator(), case.features())[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_values_of_deleted_genes_reach_nobody(backend, reduce, cases):
    case = cases["stacked"]
    x = case.features()
    clean = ops.spmm(case.operator(), x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce, backend=backend)
    x[~case.keep_in] = float("nan")
    dirty = ops.spmm(case.operator(), x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce, backend=backend)
    assert torch.equal(clean, dirty)


def test_degree(cases):
    for name in ("stacked", "rectangular", "stacked-weighted"):
        case = cases[name]
        ones = torch.ones(case.num_sources, case.batch, 1, dtype=torch.float64)
        degree = ops.masked_degree(case.operator(), case.keep_in, case.keep_out)
        unweighted = type(case)(**{**vars(case), "weights": [None] * len(case.edges)})
        assert torch.equal(degree.double(), unweighted.reference(ones, "sum", case.keep_in, case.keep_out).squeeze(-1))
        weighted = ops.masked_degree(case.operator(), case.keep_in, case.keep_out, weighted=True, dtype=torch.float64)
        torch.testing.assert_close(
            weighted, case.reference(ones, "sum", case.keep_in, case.keep_out).squeeze(-1), rtol=1e-12, atol=1e-12
        )


def test_mean_with_a_degree_computed_before(cases):
    case = cases["stacked"]
    operator = case.operator()
    degree = ops.masked_degree(operator, case.keep_in, case.keep_out)
    masks = {"scale_in": case.keep_in, "scale_out": case.keep_out, "reduce": "mean"}
    given = ops.spmm(operator, case.features(), degree=degree, **masks)
    assert torch.equal(given, ops.spmm(operator, case.features(), **masks))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("name", ["random", "stacked-weighted"])
def test_gradcheck(name, reduce, cases):
    case = cases[name]
    operator = case.operator()

    def function(x):
        return ops.spmm(operator, x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce)

    x = case.features().requires_grad_()
    assert torch.autograd.gradcheck(function, (x,), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (x,), fast_mode=True)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_gradcheck_of_extremes(reduce, cases):
    case = cases["stacked-weighted"]
    operator = case.operator()
    # Distinct values: at a tie the derivative does not exist.
    shape = case.features().shape
    values = torch.randperm(shape.numel(), generator=torch.Generator().manual_seed(0)) + 1.0
    x = values.view(shape).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: ops.spmm(operator, x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce),
        (x,),
        fast_mode=True,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_go_to_the_first_source(backend, reduce):
    operator = ops.SparseOperator.from_edge_index(torch.tensor([[3, 1, 2], [0, 0, 0]]), 4)
    x = torch.ones(4, 1, 1, requires_grad=True)
    ops.spmm(operator, x, reduce=reduce, backend=backend).sum().backward()
    assert x.grad.flatten().tolist() == [0.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_equal_bits_twice(backend, reduce, cases):
    case = cases["stacked"]
    results = []
    for _ in range(2):
        x = case.features(torch.float32).requires_grad_()
        y = ops.spmm(case.operator(), x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce, backend=backend)
        y.backward(case.gradient(torch.float32))
        results.append((y.detach(), x.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def _sum_arguments(case, requires_grad=True):
    operator = case.operator()
    x = case.features(torch.float32).requires_grad_(requires_grad)
    return (*operator.by_destination, *operator.by_source_in_panels, x, case.keep_in, case.keep_out, "cpu")


@pytest.mark.parametrize("name", ["random", "stacked-weighted", "rectangular"])
def test_opcheck(name, cases):
    case = cases[name]
    torch.library.opcheck(torch.ops.knockgraph.csr_sum, _sum_arguments(case))
    operator = case.operator()
    tables = (*operator.by_destination[:4], *operator.by_source[:4])
    x = case.features(torch.float32).requires_grad_()
    options = (case.keep_in, case.keep_out, True, True, "cpu")
    torch.library.opcheck(torch.ops.knockgraph.csr_extreme, (*tables, x, *options))
    y, arg = torch.ops.knockgraph.csr_extreme(*tables, x.detach(), *options)
    torch.library.opcheck(torch.ops.knockgraph.csr_extreme_grad, (*tables, y, arg, "cpu"))


@pytest.mark.parametrize(
    "reduce", ["mean", "max", *(pytest.param(reduce, marks=pytest.mark.full) for reduce in ("sum", "min"))]
)
def test_compiles_in_one_graph_for_any_batch(reduce, cases, relative):
    case = cases["stacked"]
    operator = case.operator()

    def layer(x, keep):
        return torch.relu(ops.spmm(operator, x * 2, scale_in=keep, scale_out=keep, reduce=reduce))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch in (5, 3, 4):
        x = case.features()[:, :batch].contiguous().requires_grad_()
        keep = case.keep_in[:, :batch].contiguous()
        eager = layer(x, keep)
        (expected,) = torch.autograd.grad(eager.sum(), x)
        y = compiled(x, keep)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(y, eager)
        assert relative(grad, expected) <= 1e-12


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_autocast(reduce, compiled, cases, relative):
    case = cases["stacked"]
    operator = case.operator()

    def layer(x):
        return ops.spmm(operator, x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce)

    run = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    x = case.features(torch.float32).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = run(x)
    assert y.dtype == torch.bfloat16
    assert relative(y, case.reference(case.features(), reduce, case.keep_in, case.keep_out)) <= 8e-3
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert run(case.features(torch.float64)).dtype == torch.float64


def test_non_contiguous_operands(cases):
    case = cases["stacked"]
    x = case.features()
    swapped = x.transpose(0, 1).contiguous().transpose(0, 1)
    keep = case.keep_in.t().contiguous().t()
    for reduce in REDUCTIONS:
        expected = ops.spmm(case.operator(), x, scale_in=case.keep_in, scale_out=case.keep_out, reduce=reduce)
        y = ops.spmm(case.operator(), swapped, scale_in=keep, scale_out=keep, reduce=reduce)
        assert torch.equal(y, expected)
        assert y.is_contiguous()


def test_operator_shares_tables_and_keeps_out_of_checkpoints(cases):
    symmetric = ops.SparseOperator.from_edge_index(cases["symmetric"].edges[0], 13)
    assert symmetric.by_source.indices is symmetric.by_destination.indices
    directed = ops.SparseOperator.from_edge_index(cases["random"].edges[0], 13)
    assert directed.by_source.indices is not directed.by_destination.indices
    assert symmetric.state_dict() == {}
    assert list(symmetric.parameters()) == []
    stacked = cases["stacked-symmetric"].operator()
    assert stacked.panel_index is stacked.destination_index
    assert stacked.nbytes < 4 * (4 * stacked.num_entries + 200)
    moved = cases["stacked"].operator().to("meta")
    assert isinstance(moved.by_source_in_panels, CsrTable)
    assert moved.by_source_in_panels.panels == 1
    assert "relations=6" in repr(cases["stacked"].operator())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 3, 3, [], True), "at least one relation"),
        (([torch.zeros(3, 1, dtype=torch.int64)], 3, 3, [None], True), r"shape \[2, E\]"),
        (([torch.tensor([[0], [3]])], 3, 3, [None], True), r"destination outside 0\.\.2"),
        (([torch.tensor([[-1], [0]])], 3, 3, [None], True), r"source outside 0\.\.2"),
        (([torch.tensor([[0, 0], [1, 1]])], 3, 3, [None], True), "1 edges are repeated"),
        (([torch.tensor([[0], [1]])], 3, 3, [torch.ones(2)], True), "weights of shape"),
        (([torch.tensor([[0], [1]])], 3, 3, [], True), "1 relations but 0 weights"),
    ],
)
def test_operator_refuses(arguments, message):
    with pytest.raises(GraphError, match=message):
        ops.SparseOperator(*arguments)


def test_spmm_refuses(cases):
    operator, case = cases["stacked"].operator(), cases["stacked"]
    x = case.features()
    for bad, message in [
        ({"x": x[:-1]}, "num_sources=13"),
        ({"x": x.long()}, "floating point"),
        ({"x": x, "scale_in": case.keep_in[:, :-1]}, "scale of the sources"),
        ({"x": x, "scale_out": case.keep_in[:-1]}, "scale of the destinations"),
        ({"x": x, "backend": "fast"}, "Unknown backend 'fast'"),
        ({"x": x, "backend": "cusparse"}, "does not run on cpu"),
        ({"x": x, "reduce": "median"}, "Unknown reduction 'median'"),
    ]:
        with pytest.raises(StrategyError, match=message):
            ops.spmm(operator, **bad)


def test_backend_by_device_and_installation(monkeypatch):
    cuda = torch.device("cuda")
    assert resolve_backend("auto", torch.device("cpu")) == "cpu"
    assert resolve_backend("auto", torch.device("meta")) == "torch"
    monkeypatch.setattr("knockgraph.ops.backends.choice._HAS_TRITON", True)
    assert resolve_backend("auto", cuda, sums=False) == "triton"
    monkeypatch.setattr("knockgraph.ops.backends.choice._HAS_TRITON", False)
    assert resolve_backend("auto", cuda) == "cusparse"
    assert resolve_backend("auto", cuda, sums=False) == "torch"
    with pytest.raises(StrategyError, match="needs the package triton"):
        resolve_backend("triton", cuda)
    with pytest.raises(StrategyError, match="only sums"):
        resolve_backend("cusparse", cuda, sums=False)


def test_importing_does_not_import_triton():
    code = "import sys, knockgraph.ops; sys.exit('triton' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dense", [[0], [1, 2], [0, 3, 4, 5], [0, 1, 2, 3, 4, 5]])
@pytest.mark.parametrize("masks", ["keep", "factors", "none"])
def test_crowded_relations_as_dense_matrices(dense, masks, cases, relative):
    case = cases["stacked"]
    split = case.operator().split(dense, torch.float64)
    assert sum(matrix.shape[0] for matrix in split.matrices) == len(dense) * case.num_destinations
    scale_in, scale_out = {
        "keep": (case.keep_in, case.keep_out),
        "factors": (case.keep_in.double() * 0.7, torch.rand(6, *case.keep_out.shape) * case.keep_out),
        "none": (None, None),
    }[masks]
    x = case.features().requires_grad_()
    flat = None if scale_out is None else scale_out.flatten(0, -2)
    y = split_sum(split, x, scale_in, flat, "torch").view(6, case.num_destinations, case.batch, -1)
    copy = case.features().requires_grad_()
    expected = ops.spmm(case.operator(), copy, scale_in=scale_in, scale_out=scale_out, backend="torch")
    assert relative(y, expected) <= 1e-12
    y.backward(case.gradient())
    expected.backward(case.gradient())
    assert relative(x.grad, copy.grad) <= 1e-12


def test_the_dense_form_can_be_differentiated_twice_and_checked(cases):
    case = cases["stacked-symmetric"]
    split = case.operator().split([1], torch.float64)
    arguments = [split.sparse.ptr, split.sparse.indices, split.sparse.order]
    arguments += [split.sparse_transposed.ptr, split.sparse_transposed.indices, split.sparse_transposed.order]
    x, keep = case.features().requires_grad_(), case.keep_in
    torch.library.opcheck(
        torch.ops.knockgraph.split_sum.default,
        (*arguments, split.matrices, split.first, x, keep, keep, "torch"),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    assert torch.autograd.gradcheck(lambda x: split_sum(split, x, keep, keep, "torch"), x)
    assert torch.autograd.gradgradcheck(lambda x: split_sum(split, x, keep, keep, "torch"), x)


def test_which_relations_are_crowded(monkeypatch, cases):
    """By share of the possible edges, and only in half precision and without weights."""
    monkeypatch.setattr(operator_module, "_CROWDED_EDGES", 10)
    case = cases["stacked"]
    monkeypatch.setattr(operator_module, "_CROWDED_SHARE", 0.2)
    operator, half = case.operator(), case.features(torch.bfloat16)
    crowded = [r for r, edges in enumerate(case.edges) if edges.shape[1] >= 0.2 * 13 * 13]
    assert crowded == [0, 1]
    split = operator.split_for(half)
    assert split is not None
    assert [matrix.shape for matrix in split.matrices] == [(26, 16)]
    assert split.first == [0]
    assert operator.split_for(half) is split
    assert operator.nbytes > split.matrices[0].nbytes
    assert operator.split_for(half.float()) is None
    assert cases["stacked-weighted"].operator().split_for(half) is None
    assert operator.to("cpu")._split == {}
