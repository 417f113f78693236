"""Sums whose entry weights are learned: messages between reactions and metabolites, gated by stoichiometry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from knockgraph.errors import StrategyError
from knockgraph.ops.backends.choice import resolve_backend
from knockgraph.ops.masked_sum import raw_sum
from knockgraph.ops.operator import CsrTable, SparseOperator
from knockgraph.ops.precision import accumulator, autocast_input
from knockgraph.ops.spmm import check_operands

# Products of entries are [entries, batch * channels]; entries are cut so that a block has at most so many elements: on
# a CPU it then stays in the cache, elsewhere it fills the device.
_CPU_ELEMENTS = 2**17
_DEVICE_ELEMENTS = 2**25

_TABLE = "Tensor ptr{0}, Tensor index{0}, Tensor entry{0}, Tensor order{0}"
_TABLES = f"{_TABLE.format('')}, {_TABLE.format('_t')}"
_KEEP = "Tensor? keep_in, Tensor? keep_out, str backend"


class GatedOperator(nn.Module):
    r""":math:`(A_g x)_i = \sum_{e: j \to i} g_e x_j`: a fixed set of entries whose weights come with each call.

    It holds tables only; they are non-persistent buffers, so they move with ``.to()`` and stay out of checkpoints.

    Args:
        edge_index: int64 [2, entries], row 0 source, row 1 destination, without repeated entries. Its order is the
            order of the gates, so ``edge_index.flip(0)`` makes the way back with the same gates.
        num_sources: Number of source nodes.
        num_destinations: Number of destination nodes; the same as ``num_sources`` unless given.

    Example:
        >>> GatedOperator(torch.tensor([[0, 0, 1], [1, 0, 1]]), num_sources=2, num_destinations=3)
        GatedOperator(
          (structure): SparseOperator(relations=1, destinations=3, sources=2, entries=3, weighted=False)
        )
    """

    entry_by_destination: Tensor
    entry_by_source: Tensor

    def __init__(self, edge_index: Tensor, num_sources: int, num_destinations: int | None = None) -> None:
        super().__init__()
        self.structure = SparseOperator.from_edge_index(edge_index, num_sources, num_destinations)
        source, destination = edge_index
        # The number in edge_index of each entry of the two tables, which are sorted by row and then by column.
        by_destination = (destination * max(num_sources, 1) + source).argsort()
        by_source = (source * max(self.structure.num_destinations, 1) + destination).argsort()
        self.register_buffer("entry_by_destination", by_destination, persistent=False)
        self.register_buffer("entry_by_source", by_source, persistent=False)

    @property
    def num_entries(self) -> int:
        """Number of gates."""
        return self.structure.num_entries


def gated_spmm(
    operator: GatedOperator,
    gate: Tensor,
    x: Tensor,
    *,
    keep_in: Tensor | None = None,
    keep_out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r""":math:`y_{ib} = m^{out}_{ib} \sum_{e: j \to i} g_e\, m^{in}_{jb}\, x_{jb}`, differentiable in gate and x.

    Nodes that are left out send and receive nothing: their values (even NaN) reach no other node and no gate, and
    their rows of ``y`` and of the gradient are exact zeros.

    Sums are accumulated in float32 (float64 for float64), in a fixed order for the ``cpu``, ``torch`` and ``triton``
    backends. No tensor with an entry, a batch and a channel axis is kept; the gradient of the gates is computed in
    blocks of entries. Under autocast ``x`` is cast down like the operand of a matrix product, ``gate`` is not. Can be
    differentiated any number of times.

    Shapes:
        gate [entries], x [num_sources, batch, channels] -> y [num_destinations, batch, channels].

    Args:
        operator: Which entries there are.
        gate: One factor per entry, in the order of the operator's ``edge_index``.
        x: Floating point features.
        keep_in: Bool [num_sources, batch], which nodes send; None keeps all.
        keep_out: Bool [num_destinations, batch], which nodes receive; None keeps all.
        backend: ``auto``, ``cpu``, ``cusparse``, ``triton`` or ``torch``.

    Example:
        >>> operator = GatedOperator(torch.tensor([[0, 1], [2, 2]]), num_sources=2, num_destinations=3)
        >>> keep = torch.tensor([[True, True], [True, False]])
        >>> gated_spmm(operator, torch.tensor([0.5, 3.0]), torch.ones(2, 2, 1), keep_in=keep).squeeze(-1)
        tensor([[0.0000, 0.0000],
                [0.0000, 0.0000],
                [3.5000, 0.5000]])
    """
    check_operands(operator.structure, x, keep_in, keep_out)
    if gate.shape != (operator.num_entries,) or not gate.is_floating_point():
        raise StrategyError(
            f"gate must be floating point [entries={operator.num_entries}], not {gate.dtype} {list(gate.shape)}."
        )
    x = autocast_input(x)
    table, transposed = operator.structure.by_destination, operator.structure.by_source
    y: Tensor = _gated_sum(
        *(table.ptr, table.indices, operator.entry_by_destination, table.order),
        *(transposed.ptr, transposed.indices, operator.entry_by_source, transposed.order),
        gate.to(accumulator(x.dtype)),
        x,
        None if keep_in is None else keep_in != 0,
        None if keep_out is None else keep_out != 0,
        resolve_backend(backend, x.device),
    )
    return y


def gated_dot(
    operator: GatedOperator,
    x: Tensor,
    y: Tensor,
    *,
    keep_in: Tensor | None = None,
    keep_out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r""":math:`g_e = \sum_b m^{out}_{ib}\, m^{in}_{jb}\; y_{ib} \cdot x_{jb}`, one number per entry e: j → i.

    It is the derivative of :func:`gated_spmm` by its gates. No matrix of destinations × sources is made. Sums are
    float32 (float64 for float64). Can be differentiated any number of times, in x and y.

    Shapes:
        x [num_sources, batch, channels], y [num_destinations, batch, channels] -> [entries].

    Args:
        operator: Which entries there are; the result is in the order of its ``edge_index``.
        x: Floating point features of the sources.
        y: Features of the destinations, of the same type.
        keep_in: Bool [num_sources, batch]; None keeps all.
        keep_out: Bool [num_destinations, batch]; None keeps all.
        backend: Of the gradient, see :func:`gated_spmm`.

    Example:
        >>> operator = GatedOperator(torch.tensor([[0, 1], [2, 2]]), num_sources=2, num_destinations=3)
        >>> x = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]])
        >>> gated_dot(operator, x, torch.ones(3, 1, 2))
        tensor([3., 3.])
    """
    check_operands(operator.structure, x, keep_in, keep_out)
    expected = (operator.structure.num_destinations, *x.shape[1:])
    if y.shape != expected or y.dtype != x.dtype:
        raise StrategyError(f"y must be {x.dtype} {list(expected)}, not {y.dtype} {list(y.shape)}.")
    table, transposed = operator.structure.by_destination, operator.structure.by_source
    gate: Tensor = _gated_dot(
        *(table.ptr, table.indices, operator.entry_by_destination, table.order),
        *(transposed.ptr, transposed.indices, operator.entry_by_source, transposed.order),
        x,
        y,
        None if keep_in is None else keep_in != 0,
        None if keep_out is None else keep_out != 0,
        resolve_backend(backend, x.device),
    )
    return gate


@torch.library.custom_op(
    "knockgraph::gated_sum", mutates_args=(), schema=f"({_TABLES}, Tensor gate, Tensor x, {_KEEP}) -> Tensor"
)
def _gated_sum(*arguments: Any) -> Tensor:
    (ptr, index, entry, order), (gate, x, keep_in, keep_out, backend) = arguments[:4], arguments[8:]
    if index.numel() == 0 or x.numel() == 0:
        return torch.zeros_like(_empty(ptr, x))
    return raw_sum(CsrTable(ptr, index, gate[entry], order), x, keep_in, keep_out, backend)


@_gated_sum.register_fake
def _(*arguments: Any) -> Tensor:
    return _empty(arguments[0], arguments[9])


def _empty(ptr: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(ptr.shape[0] - 1, *x.shape[1:])


@torch.library.custom_op(
    "knockgraph::gated_dot", mutates_args=(), schema=f"({_TABLES}, Tensor x, Tensor y, {_KEEP}) -> Tensor"
)
def _gated_dot(*arguments: Any) -> Tensor:
    """``Σ_b y_ib · x_jb`` over the samples that keep both ends, for each entry j → i: [entries]."""
    (ptr, index, entry), (x, y, keep_in, keep_out, _) = arguments[:3], arguments[8:]
    dtype = accumulator(x.dtype)
    out: Tensor = x.new_zeros(index.numel(), dtype=dtype)
    if index.numel() == 0 or x.numel() == 0:
        return out
    row = torch.repeat_interleave((ptr[1:] - ptr[:-1]).long(), output_size=index.numel())
    x, y = _kept(x, keep_in).flatten(1), _kept(y, keep_out).flatten(1)
    step = max(1, (_CPU_ELEMENTS if x.device.type == "cpu" else _DEVICE_ELEMENTS) // x.shape[1])
    for start in range(0, index.numel(), step):
        block = slice(start, start + step)
        product = y.index_select(0, row[block]).to(dtype).mul_(x.index_select(0, index[block]))
        out.index_copy_(0, entry[block], product.sum(1))
    return out


@_gated_dot.register_fake
def _(*arguments: Any) -> Tensor:
    index, x = arguments[1], arguments[8]
    return torch.empty_like(index, dtype=accumulator(x.dtype))


def _kept(x: Tensor, keep: Tensor | None) -> Tensor:
    return x if keep is None else x.masked_fill(~keep.unsqueeze(-1), 0.0)


# One trilinear form, Σ_e g_e m_in m_out x_j · y_i: the sum is its derivative by y, or by x with the tables swapped, and
# the dot product its derivative by g. So the gradient of each operator consists of the same two operators.
def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:12])
    ctx.backend = inputs[12]


def _differentiate_sum(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *tables, gate, x, keep_in, keep_out = ctx.saved_tensors
    swapped = (*tables[4:], *tables[:4])
    grad_gate = grad_x = None
    if ctx.needs_input_grad[8]:
        grad_gate = _gated_dot(*tables, x, grad, keep_in, keep_out, ctx.backend)
    if ctx.needs_input_grad[9]:
        grad_x = _gated_sum(*swapped, gate, grad, keep_out, keep_in, ctx.backend)
    return (*[None] * 8, grad_gate, grad_x, None, None, None)


def _differentiate_dot(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    *tables, x, y, keep_in, keep_out = ctx.saved_tensors
    swapped = (*tables[4:], *tables[:4])
    grad_x = grad_y = None
    if ctx.needs_input_grad[8]:
        grad_x = _gated_sum(*swapped, grad, y, keep_out, keep_in, ctx.backend)
    if ctx.needs_input_grad[9]:
        grad_y = _gated_sum(*tables, grad, x, keep_in, keep_out, ctx.backend)
    return (*[None] * 8, grad_x, grad_y, None, None, None)


_gated_sum.register_autograd(_differentiate_sum, setup_context=_save)
_gated_dot.register_autograd(_differentiate_dot, setup_context=_save)
