"""Attention over the shared graph with each sample's own deleted genes left out of the softmax (GATv2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from knockgraph.errors import StrategyError
from knockgraph.ops.backends.choice import resolve_backend
from knockgraph.ops.operator import SparseOperator
from knockgraph.ops.precision import accumulator, autocast_input

# On a CPU a block of edges and samples stays in the cache; elsewhere it fills the device.
_CPU_COLUMNS = 448
_CPU_ENTRIES = 1024
_DEVICE_ELEMENTS = 2**26

_TABLES = "Tensor ptr, Tensor index, Tensor order, Tensor ptr_t, Tensor index_t, Tensor order_t"
_STATES = "Tensor source, Tensor target, Tensor attention, Tensor? keep_in"
_SCHEMA = f"({_TABLES}, {_STATES}, Tensor? keep_out, int? batch, float slope, str backend) -> (Tensor, Tensor)"
_GRAD_SCHEMA = (
    f"({_TABLES}, {_STATES}, Tensor y, Tensor lse, Tensor grad, float slope, str backend) -> (Tensor, Tensor, Tensor)"
)


def attend(
    operator: SparseOperator,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    *,
    slope: float = 0.2,
    keep_in: Tensor | None = None,
    keep_out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    r""":math:`y_i = \sum_{j \to i} \operatorname{softmax}_j\bigl(a^\top \mathrm{LeakyReLU}(s_j + t_i)\bigr)\, s_j`.

    The softmax runs over the kept neighbours of each sample's own graph, separately for each head. Rows that are
    deleted or have no kept neighbour are exact zeros. States of deleted genes (even NaN) reach no other gene, and their
    gradients are exact zeros.

    No tensor with an edge and a channel axis is kept: the forward pass saves the result and one log-sum-exp per row,
    sample and head, the backward pass computes the shares again. Logits and sums are accumulated in float32 (float64
    for float64), in a fixed order, so that equal inputs give equal bits. Under autocast ``source`` and ``target`` are
    cast down like operands of a matrix product, ``attention`` is not. Can be differentiated once.

    Shapes:
        source [num_sources, batch, heads, channels], target [num_destinations, batch, heads, channels] ->
        y [num_destinations, batch, heads, channels]. Both may lack the batch, which is then that of the keep-vectors:
        shared by all samples, whose logits are then computed once for several samples.

    Args:
        operator: The shared graph, one relation; edge weights play no part.
        source: :math:`s`, what genes send.
        target: :math:`t`, of the same type.
        attention: :math:`a`, [heads, channels].
        slope: Of the LeakyReLU for negative inputs.
        keep_in: Bool [num_sources, batch], which genes send; None keeps all.
        keep_out: Bool [num_destinations, batch], which genes receive; None keeps all.
        backend: ``auto``, ``cpu``, ``triton`` or ``torch``.

    Example:
        >>> operator = SparseOperator.from_edge_index(torch.tensor([[0, 1], [2, 2]]), num_sources=3)
        >>> source = torch.tensor([1.0, 3.0, 5.0]).view(3, 1, 1, 1).expand(3, 2, 1, 1)
        >>> keep = torch.tensor([[True, True], [True, False], [True, True]])
        >>> attend(operator, source, source, torch.zeros(1, 1), keep_in=keep, keep_out=keep).flatten(1)
        tensor([[0., 0.],
                [0., 0.],
                [2., 1.]])
    """
    source, target = autocast_input(source), autocast_input(target)
    backend = resolve_backend(backend, source.device, sums=False)
    batch = None
    if source.dim() == target.dim() == 3:
        batch = _batch(keep_in, keep_out)
        wide = [x.unsqueeze(1).expand(-1, batch, -1, -1) for x in (source, target)]
        check_attention(operator, wide[0], wide[1], attention, keep_in, keep_out)
        if backend != "triton" or source.numel() * batch == 0:
            (source, target), batch = wide, None
    else:
        check_attention(operator, source, target, attention, keep_in, keep_out)
    by_destination, by_source = operator.by_destination, operator.by_source
    y: Tensor = _csr_attend(
        *(by_destination.ptr, by_destination.indices, by_destination.order),
        *(by_source.ptr, by_source.indices, by_source.order),
        source,
        target,
        attention.to(accumulator(source.dtype)),
        None if keep_in is None else keep_in != 0,
        None if keep_out is None else keep_out != 0,
        batch,
        slope,
        backend,
    )[0]
    return y


def _batch(keep_in: Tensor | None, keep_out: Tensor | None) -> int:
    keep = keep_out if keep_in is None else keep_in
    if keep is None:
        raise StrategyError("States without a batch axis need keep_in or keep_out, which tell the number of samples.")
    return keep.shape[1]


@torch.library.custom_op("knockgraph::csr_attend", mutates_args=(), schema=_SCHEMA)
def _csr_attend(*arguments: Any) -> tuple[Tensor, Tensor]:
    (ptr, index, order), (*states, keep_in, keep_out, batch, slope, backend) = arguments[:3], arguments[6:]
    source, target, attention = states
    if index.numel() == 0 or source.numel() == 0:
        shape = _result_shape(target, batch)
        return target.new_zeros(shape), target.new_full(shape[:3], float("inf"), dtype=attention.dtype)
    source, target, attention = source.contiguous(), target.contiguous(), attention.contiguous()
    if backend == "triton":
        from knockgraph.ops.triton import attention as attention_triton

        return attention_triton.forward(ptr, index, order, source, target, attention, keep_in, keep_out, slope, batch)
    return attend_forward(ptr, index, source, target, attention, keep_in, keep_out, slope)


@_csr_attend.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor]:
    target, attention = arguments[7:9]
    shape = _result_shape(target, arguments[11])
    return target.new_empty(shape), target.new_empty(shape[:3], dtype=attention.dtype)


def _result_shape(target: Tensor, batch: int | None) -> tuple[int, ...]:
    return tuple(target.shape) if batch is None else (target.shape[0], batch, *target.shape[1:])


@torch.library.custom_op("knockgraph::csr_attend_grad", mutates_args=(), schema=_GRAD_SCHEMA)
def _csr_attend_grad(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    ptr, index, order, ptr_t, index_t, order_t, *given, backend = arguments
    source, target, attention = (state.contiguous() for state in given[:3])
    if index.numel() == 0 or source.numel() == 0:
        return torch.zeros_like(source), torch.zeros_like(target), torch.zeros_like(attention)
    keep_in, y, lse, grad, slope = given[3:]
    states = (source, target, attention, keep_in, y, lse, grad.contiguous(), slope)
    if backend == "triton":
        from knockgraph.ops.triton import attention as attention_triton

        return attention_triton.backward(ptr, index, order, ptr_t, index_t, order_t, *states)
    return attend_backward(ptr, index, *states)


@_csr_attend_grad.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    source, target, attention = (state.new_empty(state.shape) for state in arguments[6:9])
    return source, target, attention


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:10], *output)
    ctx.mark_non_differentiable(output[1])
    ctx.slope, ctx.backend = inputs[12:]


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    grads = _csr_attend_grad(*ctx.saved_tensors, grad, ctx.slope, ctx.backend)
    return (*[None] * 6, *grads, *[None] * 5)


_csr_attend.register_autograd(_differentiate, setup_context=_save)


class _Block(NamedTuple):
    """The edges into consecutive rows: which edges and rows, and row (within them) and source of each edge."""

    edges: slice
    rows: slice
    row: Tensor
    source: Tensor


def attend_forward(
    ptr: Tensor,
    index: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    keep_in: Tensor | None,
    keep_out: Tensor | None,
    slope: float,
    gate: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The result and the log-sum-exp of its logits, which is +inf where there is nothing to attend to.

    ``gate [edges]``, in the order of ``index``, multiplies the messages but has no part in the softmax.
    """
    y = torch.empty_like(target)
    lse = torch.empty(target.shape[:3], dtype=attention.dtype, device=target.device)
    blocks = list(_edge_blocks(ptr, index))
    for samples in _sample_blocks(index, source):
        s, t = _states(source, keep_in, samples, attention), _states(target, keep_out, samples, attention)
        for edges, rows, row, column in blocks:
            messages = s[column]
            z = messages + t[rows][row]
            logit = _sent(torch.nn.functional.leaky_relu_(z, slope).mul_(attention).sum(-1), keep_in, samples, column)
            height = logit.new_full((rows.stop - rows.start, *logit.shape[1:]), float("-inf"))
            height.scatter_reduce_(0, row.view(-1, 1, 1).expand_as(logit), logit, "amax")
            height.masked_fill_(height == float("-inf"), 0.0)  # rows without a kept neighbour
            share = logit.sub_(height[row]).exp_()
            total = _add_rows(torch.zeros_like(height), row, share)
            passed = share if gate is None else share * gate[edges].view(-1, 1, 1)
            result = _add_rows(torch.zeros_like(t[rows]), row, messages.mul_(passed.unsqueeze(-1)))
            dead = total == 0
            if keep_out is not None:
                dead = dead | ~keep_out[rows, samples].unsqueeze(-1)
            y[rows, samples] = torch.where(dead.unsqueeze(-1), 0.0, result / total.unsqueeze(-1)).to(y.dtype)
            lse[rows, samples] = torch.where(dead, float("inf"), height + total.log())
    return y, lse


def attend_backward(
    ptr: Tensor,
    index: Tensor,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    keep_in: Tensor | None,
    y: Tensor,
    lse: Tensor,
    grad: Tensor,
    slope: float,
    gate: Tensor | None = None,
    grad_gate: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of source, target and attention, from shares computed again; that of the gate is added to its own."""
    grad_source, grad_target = torch.empty_like(source), torch.empty_like(target)
    grad_attention = torch.zeros_like(attention)
    flat = attention.new_full((), slope)
    received = lse[:, :, 0] != float("inf")
    blocks = list(_edge_blocks(ptr, index))
    for samples in _sample_blocks(index, source):
        s, t = _states(source, keep_in, samples, attention), _states(target, received, samples, attention)
        dy, norm = _states(grad, received, samples, attention), lse[:, samples]
        mean = (dy * y[:, samples]).sum(-1)
        ds = torch.zeros_like(s)
        for edges, rows, row, column in blocks:
            messages, incoming = s[column], dy[rows][row]
            z = messages + t[rows][row]
            steepness = torch.where(z > 0, 1.0, flat)
            logit = _sent((z * steepness).mul_(attention).sum(-1), keep_in, samples, column)
            share = logit.sub_(norm[rows][row]).exp_()
            product = messages.mul_(incoming).sum(-1)
            if gate is not None and grad_gate is not None:
                grad_gate[edges] += (product * share).sum((1, 2))
                product *= gate[edges].view(-1, 1, 1)
            grad_logit = product.sub_(mean[rows][row]).mul_(share)
            inner = steepness.mul_(grad_logit.unsqueeze(-1))
            grad_attention += z.mul_(inner).sum((0, 1))
            outer = inner.mul_(attention)
            grad_target[rows, samples] = _add_rows(torch.zeros_like(t[rows]), row, outer).to(target.dtype)
            passed = share if gate is None else share.mul_(gate[edges].view(-1, 1, 1))
            _add_rows(ds, column, outer.addcmul_(incoming, passed.unsqueeze(-1)))
        grad_source[:, samples] = ds.to(source.dtype)
    return grad_source, grad_target, grad_attention


def _edge_blocks(ptr: Tensor, index: Tensor) -> Iterator[_Block]:
    """All edges, on a CPU in pieces of about equal size."""
    rows = ptr.numel() - 1
    row = torch.repeat_interleave((ptr[1:] - ptr[:-1]).long(), output_size=index.numel())
    index = index.long()
    if index.device.type != "cpu":  # asking for pointers would wait for the device
        yield _Block(slice(0, index.numel()), slice(0, rows), row, index)
        return
    sizes = torch.unique_consecutive(ptr[:-1] // _CPU_ENTRIES, return_counts=True)[1]
    start = 0
    for stop in sizes.cumsum(0).tolist():
        entries = slice(int(ptr[start]), int(ptr[stop]))
        yield _Block(entries, slice(start, stop), row[entries] - start, index[entries])
        start = stop


def _sample_blocks(index: Tensor, x: Tensor) -> Iterator[slice]:
    columns = x.shape[2] * x.shape[3]
    at_once = _CPU_COLUMNS if x.device.type == "cpu" else _DEVICE_ELEMENTS // index.numel()
    step = max(1, at_once // columns)
    for start in range(0, x.shape[1], step):
        yield slice(start, min(start + step, x.shape[1]))


def _states(x: Tensor, keep: Tensor | None, samples: slice, like: Tensor) -> Tensor:
    """Some samples in the precision of ``like``, zeros for deleted genes."""
    block = x[:, samples].to(like.dtype)
    return block.contiguous() if keep is None else block.masked_fill(~keep[:, samples, None, None], 0.0)


def _sent(logit: Tensor, keep: Tensor | None, samples: slice, column: Tensor) -> Tensor:
    """Logits, −inf on the edges of senders that are deleted."""
    return logit if keep is None else logit.masked_fill_(~keep[:, samples][column].unsqueeze(-1), float("-inf"))


def _add_rows(out: Tensor, index: Tensor, messages: Tensor) -> Tensor:
    """``out[index] += messages`` in a fixed order: of the two ways, each is so on its own kind of device only."""
    if out.device.type == "cpu":
        flat, add = out.view(out.shape[0], -1), messages.reshape(messages.shape[0], -1)
        flat.index_add_(0, index, add)
        return out
    return out.index_put_((index,), messages, accumulate=True)


def check_attention(
    operator: SparseOperator,
    source: Tensor,
    target: Tensor,
    attention: Tensor,
    keep_in: Tensor | None,
    keep_out: Tensor | None,
) -> None:
    """Refuse shapes that do not fit: the kernels would read out of bounds."""
    if operator.stacked:
        raise StrategyError("Attention runs on one relation; build its operator with from_edge_index, not stack.")
    if source.dim() != 4 or source.shape[0] != operator.num_sources or not source.is_floating_point():
        raise StrategyError(
            f"source must be floating point [num_sources={operator.num_sources}, batch, heads, channels], "
            f"not {source.dtype} {list(source.shape)}."
        )
    _, batch, heads, channels = source.shape
    for name, tensor, shape in (
        ("target", target, (operator.num_destinations, batch, heads, channels)),
        ("attention", attention, (heads, channels)),
        ("keep_in", keep_in, (operator.num_sources, batch)),
        ("keep_out", keep_out, (operator.num_destinations, batch)),
    ):
        if tensor is not None and tensor.shape != shape:
            raise StrategyError(f"{name} must be {list(shape)}, not {list(tensor.shape)}.")
    if target.dtype != source.dtype:
        raise StrategyError(f"source is {source.dtype} but target is {target.dtype}; give both the same type.")
